"""A running job, for other threads: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from crosscut.contracts.connectors import Sink
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.driver.cuts import newest_values
from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.engine_run import WORKERS_END_TIMEOUT_S, RunContext
from crosscut.driver.job_runner import JobRunner, ended_event
from crosscut.driver.reading_on import LOOK_EVERY_S, Answer, read_on
from crosscut.errors import CheckpointError, FlowError, InternalError, JobFailedError
from crosscut.events import Ended
from crosscut.events import JobEvent as WatchedEvent
from crosscut.foundation.ids import Epoch
from crosscut.graph.specs import JobGraph
from crosscut.host.calls import call_on
from crosscut.host.clock import SystemClock
from crosscut.host.installed_packages import note_packages_beside
from crosscut.host.interpreter_lock import DRIVER_SWITCH_US, switching_within
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.listeners import Listeners
from crosscut.monitoring.metrics import JobMetrics, build_metrics
from crosscut.monitoring.observer import PROGRESS_MAX, Watching
from crosscut.monitoring.status import JobStatus
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, JobEvent
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.messages import FailureCause
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import log_key

SWITCHING = "switching"
"""What a job with two engines is doing between the stop of one and the start of the other."""
LISTENERS_END_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = WORKERS_END_TIMEOUT_S * 4


class Shown(Protocol):
    """What shows the job while it runs."""

    def start(self) -> None:
        """The job owns its checkpoint directory."""

    def close(self) -> None:
        """The job has ended."""


class RunningJob:
    """One run of a job, from its claim to its end. All methods may be called from any thread.

    Args:
        graph: At the parallelism that was asked for.
        settings: As text, for people.

    Attributes:
        last_status: Of its end.
        end: How it has ended.
        error: What has ended it, where that was raised here.
        ended: Set at the end.
        listeners: Those of the job's user.
    """

    def __init__(self, name: str, graph: JobGraph, checkpoint_dir: str, settings: Mapping[str, str]) -> None:
        self._name = name
        self._first_graph = graph
        self._checkpoint_dir = checkpoint_dir
        self._settings = settings
        self._context: RunContext | None = None
        self._shown: Shown | None = None
        self._released: Callable[[], None] | None = None
        # Both are set on the thread of the loop: the loop last.
        self._runner: JobRunner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # What was posted before there was a loop.
        self._early: list[JobEvent] = []
        # Reentrant: a signal handler that stops the job may interrupt the thread that holds it.
        self._posting = threading.RLock()
        self.last_status: JobStatus | None = None
        self.end: EndJob | None = None
        self.error: BaseException | None = None
        self._is_end_notified = False
        self.listeners = Listeners(name)
        self._owned = threading.Event()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"crosscut-{name}", daemon=True)

    def had_ended(self, status: JobStatus) -> None:
        """There was nothing to do; this is its status."""
        self.last_status, self.end = status, EndJob("finished")
        self.listeners.notify(ended_event(self._name, self.end, _wall_ms(), Epoch(status.epoch)))
        self._owned.set()
        self.ended.set()

    def start(self, context: RunContext, shown: Shown, released: Callable[[], None]) -> None:
        """Start, and return once the job owns its checkpoint directory, or has ended.

        Args:
            released: Called at the end, when the job needs the cluster no more.
        """
        self._context, self._shown, self._released = context, shown, released
        try:
            self._thread.start()
            while not self._owned.wait(LOOK_EVERY_S):
                if not self._thread.is_alive():
                    break
        except BaseException:
            # Ctrl-C, also within `Thread.start`: the caller gets no handle, so the job must not go on.
            self.post(CancelRequested())
            if self._thread.ident is not None:
                self.ended.wait(CANCEL_TIMEOUT_S)
            raise

    @property
    def driver(self) -> CoordinatorDriver | None:
        """Acts for the coordinator; None at first."""
        return self._runner.driver if self._runner is not None else None

    @property
    def store(self) -> CheckpointStore:
        """That of the checkpoints.

        Raises:
            CheckpointError: The job has not run here.
        """
        return self._started.store

    @property
    def packed_graph(self) -> bytes:
        """The graph, as workers get it."""
        return self._started.spec.packed

    @property
    def _started(self) -> RunContext:
        if self._context is None:
            raise CheckpointError(f"job {self._name!r} has not run in this program")
        return self._context

    @property
    def _graph(self) -> JobGraph:
        return self._runner.graph if self._runner is not None else self._first_graph

    @property
    def _engine_count(self) -> int:
        return self._runner.engine_count if self._runner is not None else 0

    @property
    def _is_switching(self) -> bool:
        return self._runner is not None and self._runner.is_switching

    @property
    def phase(self) -> str:
        """Where the job is, or how it has ended."""
        return self.end.outcome if self.end is not None else self.status().phase

    def status(self) -> JobStatus:
        """Return everything there is to know of the job at this moment.

        Raises:
            JobFailedError: The job could not even be started.
        """
        loop = self._loop
        if self.last_status is not None:
            return self.last_status
        if self.driver is None or loop is None:
            raise JobFailedError(f"job {self._name!r} has not started")
        return read_on(loop, self._status_now, STATUS_TIMEOUT_S)

    def _status_now(self) -> JobStatus:
        """Return the status; on the loop, where the engine run can't change meanwhile."""
        status = self._newest_driver.status()
        return replace(status, phase=SWITCHING) if self._is_switching else status

    def metrics(self) -> JobMetrics:
        """Return the numbers of the job at this moment, or at its end.

        Raises:
            JobFailedError: The job could not even be started.
        """
        driver, loop, settings = self.driver, self._loop, self._settings
        if driver is None or loop is None:
            nothing = Watching(self._name, self._first_graph.parallelism, int, lambda event: None).seen()
            return build_metrics(self._graph, self.status(), self.phase, nothing, None, settings, _wall_ms())
        if self.last_status is not None:
            # Nothing changes any more.
            found = driver.looked_at(self._graph, settings)()
            return replace(found, status=self.phase, summary=self.last_status)
        # The loop has others to serve: only what changes is read there.
        look, is_switching = read_on(loop, self._look_now)
        return replace(look(), status=SWITCHING) if is_switching else look()

    def _look_now(self) -> tuple[Callable[[], JobMetrics], bool]:
        """See `_status_now`; the second: whether one engine makes way for the other."""
        return self._newest_driver.looked_at(self._graph, self._settings), self._is_switching

    @property
    def _newest_driver(self) -> CoordinatorDriver:
        if (driver := self.driver) is None:
            raise InternalError(f"job {self._name!r} has lost its engine run")
        return driver

    def progress(self) -> list[dict[str, Any]]:
        """Return the newest that is known of the job's progress, oldest first."""
        runner, loop = self._runner, self._loop
        if runner is None or loop is None or runner.driver is None:
            return []
        return read_on(loop, self._progress_now)

    def _progress_now(self) -> list[dict[str, Any]]:
        """See `_status_now`."""
        before = self._runner.progress_before if self._runner is not None else []
        return [*before, *self._newest_driver.progress()][-PROGRESS_MAX:]

    def ask(
        self,
        question: Callable[[CoordinatorDriver], Coroutine[Any, Any, Answer]],
        timeout: float | None,
        *,
        on_timeout: str,
    ) -> Answer:
        """Return what the driver answers.

        Args:
            timeout: Seconds; None: no limit.
            on_timeout: What has not happened then.

        Raises:
            CheckpointError: The job does not run or has ended meanwhile, or no answer came in time.
        """
        ends_s = None if timeout is None else time.monotonic() + timeout
        while True:
            asked = self._engine_count
            left = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            try:
                return self._ask(question, left, timeout, on_timeout)
            except CheckpointError:
                # Of an engine run that has ended meanwhile: the next one can answer.
                while self._is_switching and (ends_s is None or time.monotonic() < ends_s):
                    if self.ended.wait(LOOK_EVERY_S):
                        break
                if self._engine_count == asked:
                    raise

    def _ask(
        self,
        question: Callable[[CoordinatorDriver], Coroutine[Any, Any, Answer]],
        left: float | None,
        timeout: float | None,
        on_timeout: str,
    ) -> Answer:
        driver, loop = self.driver, self._loop
        if driver is None or loop is None or self.ended.is_set():
            raise CheckpointError(f"job {self._name!r} is not running: {self.phase}")
        waiting = question(driver)
        try:
            future = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError as error:
            waiting.close()
            raise CheckpointError(f"job {self._name!r} has ended") from error
        try:
            return future.result(left)
        except TimeoutError as error:
            future.cancel()
            raise CheckpointError(f"job {self._name!r}: {on_timeout} within {timeout or 0:g} s") from error
        except CancelledError as error:
            raise CheckpointError(f"job {self._name!r} has ended") from error

    def post(self, event: JobEvent) -> None:
        """Post what the user asks for; after the end nothing is done."""
        with self._posting:
            loop, runner = self._loop, self._runner
            if loop is None or runner is None:
                self._early.append(event)
                return
        if self.ended.is_set():
            return
        call_on(loop, runner.post, event)

    def cancel(self) -> None:
        """End now, without a last checkpoint."""
        self.post(CancelRequested())
        self.ended.wait(CANCEL_TIMEOUT_S)

    def sink_uid(self, sink: Sink[Any] | str) -> str:
        """Return the uid of a sink of the flow.

        Raises:
            FlowError: It has no such sink.
        """
        sinks = {one.chain[-1].uid: one.sink.sink for one in self._graph.vertices if one.sink is not None}
        for uid, found in sinks.items():
            records = found.sink if isinstance(found, SinkWithDeadLetters) else found
            if sink == uid or sink is records:
                return uid
        named = ", ".join(map(repr, sinks))
        raise FlowError(f"flow {self._name!r} has no sink {sink!r:.100}; it has {named}")

    def values(self, uid: str, state: str) -> dict[Any, Any]:
        """Return the state of an operator in the newest completed checkpoint; see `Job.values`."""
        store = open_store(self._checkpoint_dir, create=False, key=log_key())
        return newest_values(store, self._graph, uid, state)

    def _run(self) -> None:
        try:
            note_packages_beside()
            with switching_within(DRIVER_SWITCH_US):
                self.end = asyncio.run(self._drive())
        except BaseException as error:  # noqa: BLE001 - kept, and raised by `wait`
            self.error = error
            self.end = EndJob("failed", FailureCause(type(error).__name__, str(error)))
        finally:
            self._over()

    async def _drive(self) -> EndJob:
        if self._context is None:
            raise InternalError("a job was run before it was started")
        runner = JobRunner(self._context, self._notify, self._announce_owned)
        with self._posting:
            self._runner, self._loop = runner, asyncio.get_running_loop()
            for event in self._early:
                self._loop.call_soon(runner.post, event)
        end = await runner.run()
        self.error = runner.error
        return end

    def _over(self) -> None:
        steps: tuple[Callable[[], object], ...] = (
            self._release,
            self._keep_last_status,
            self._owned.set,
            self._notify_end,
            partial(self.listeners.close, LISTENERS_END_TIMEOUT_S),
            self._close_shown,
        )
        for step in steps:
            try:
                step()
            except BaseException as error:  # noqa: BLE001 - whatever it is, others wait for the steps that follow
                LOGGER.warning(
                    "job %r: some of its resources could not be closed: %s: %s",
                    self._name,
                    type(error).__name__,
                    error,
                    exc_info=error if LOGGER.isEnabledFor(logging.DEBUG) else None,
                )
        self.ended.set()

    def _release(self) -> None:
        if self._released is not None:
            self._released()

    def _keep_last_status(self) -> None:
        if (runner := self._runner) is None or (driver := runner.driver) is None or self.end is None:
            return
        status = runner.last_status or driver.status()
        # The job may have failed where its newest engine run had not.
        cause = self.end.cause.message if self.end.cause is not None else ""
        self.last_status = replace(status, phase=Phase.ENDED.name.lower(), cause=cause)

    def _notify_end(self) -> None:
        if not self._is_end_notified and self.end is not None:
            # The loop itself has failed.
            self.listeners.notify(ended_event(self._name, self.end, _wall_ms()))

    def _close_shown(self) -> None:
        if self._shown is not None:
            self._shown.close()

    def _announce_owned(self) -> None:
        self._owned.set()
        if self._shown is not None:
            self._shown.start()

    def _notify(self, event: WatchedEvent) -> None:
        self._is_end_notified |= isinstance(event, Ended)
        self.listeners.notify(event)


def _wall_ms() -> int:
    return int(SystemClock().now().timestamp() * 1_000)
