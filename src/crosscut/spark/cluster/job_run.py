"""How a job runs on the driver: the coordinator, and what it needs, on an event loop in a thread."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

from pyspark import SparkContext

from crosscut.contracts.connectors import Sink
from crosscut.contracts.invariants import Invariant
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.contracts.settings import Settings
from crosscut.driver.cuts import newest_values
from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.engine_run import WORKERS_END_TIMEOUT_S, EngineRun, RunContext
from crosscut.driver.job_spec import JobSpec, job_spec
from crosscut.driver.reading_on import LOOK_EVERY_S, Answer, read_on
from crosscut.errors import CheckpointError, FlowError, JobFailedError
from crosscut.events import Ended, EngineSwitched
from crosscut.events import JobEvent as WatchedEvent
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.graph.rehearsal import Rehearsal
from crosscut.graph.shipping import Exceptions
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import check_batches
from crosscut.host.clock import SystemClock
from crosscut.host.failpoints import Failpoints, armed
from crosscut.host.interpreter_lock import DRIVER_SWITCH_US, switching_within
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.listeners import Listeners
from crosscut.monitoring.metrics import JobMetrics, build_metrics, shown_settings
from crosscut.monitoring.observer import PROGRESS_MAX, Watching
from crosscut.monitoring.status import JobStatus, Observations
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, JobEvent, StopRequested
from crosscut.protocol.log.recovery import Predecessor
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.engine_switch import (
    EndAsked,
    EngineEnded,
    Engines,
    StartEngine,
    StopEngine,
    Switch,
)
from crosscut.savepoints.writing import WriteFiles
from crosscut.spark.cluster import session
from crosscut.spark.cluster.checks import (
    check_checkpoint_dir,
    check_local_dirs_are_private,
    check_log_key_stays_here,
    checked_network,
    warn_of_single_attempts,
)
from crosscut.spark.cluster.job_views import Seeing
from crosscut.spark.cluster.placing import placed
from crosscut.spark.cluster.slots import Holding
from crosscut.spark.cluster.spark_cluster import SparkCluster
from crosscut.spark.data.staging import Staging, staging_timeout_ms
from crosscut.spark.data.stream_source import StreamSource
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import log_key
from crosscut.web.answers import Actions

SWITCH_LOOK_S = 0.25
"""So often it is looked how far behind a job with two engines is."""
SWITCHING = "switching"
"""What a job with two engines is doing between the stop of one and the start of the other."""
LISTENERS_END_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 10.0
_NO_EPOCH = Epoch(0)


class Run:
    """One run of a job, from its claim to its end. All methods may be called from any thread.

    Attributes:
        last_status: Of its end.
        end: How it has ended.
        error: What has ended it, where that was raised here.
        ended: Set at the end.
        store: That of the checkpoints; not before `begin`.
        listeners: Those of the job's user.
        seeing: Its record and its page.
        driver: Acts for the coordinator; None at first.
    """

    store: CheckpointStore

    def __init__(
        self,
        name: str,
        compiled: Callable[[int], JobGraph],
        invariants: Sequence[Invariant],
        settings: Settings,
        checkpoint_dir: str,
    ) -> None:
        self._name = name
        self._compiled = compiled
        self._graph = compiled(settings.parallelism)
        if settings.engine != "continuous":
            # Said before Spark starts, which takes some seconds.
            check_batches(self._graph)
        self._invariants = invariants
        self._settings = settings
        self._checkpoint_dir = checkpoint_dir
        self._rehearsal: Rehearsal | None = None
        self._engines: Engines | None = None
        if settings.engine == "auto":
            self._engines = Engines(
                caught_up_at=settings.caught_up_at,
                behind_at=settings.behind_at,
                behind_for_ms=int(settings.milliseconds("behind_for")),
            )
        self._spec: JobSpec | None = None
        # That it end, as the user has asked: whichever stretch runs hears of it.
        self._asked: list[JobEvent] = []
        self._stretch_count = 0
        # What ran has ended, and what follows has not begun.
        self._is_between = False
        # What the driver of a stretch has said of its end, and that of the stretch before.
        self._said_end: Ended | None = None
        self._ended_before: Ended | None = None
        self._is_end_told = False
        self._progress_before: list[dict[str, Any]] = []
        self.driver: CoordinatorDriver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.last_status: JobStatus | None = None
        self.end: EndJob | None = None
        self.error: BaseException | None = None
        self.listeners = Listeners(name)
        self.seeing: Seeing | None = None
        self._claimed = threading.Event()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"crosscut-{name}", daemon=True)

    def had_ended(self, status: JobStatus) -> None:
        """There was nothing to do; this is its status."""
        self.last_status, self.end = status, EndJob("finished")
        self.listeners.tell(self._ended(self.end, Epoch(status.epoch)))
        self._claimed.set()
        self.ended.set()

    def rehearse(self) -> None:
        """Begin to try what is sent to the workers, while Spark starts.

        Raises:
            FlowError: Something can't be sent.
        """
        self._rehearsal = Rehearsal(self._graph)

    def _rehearsed(self) -> Exceptions:
        return self._rehearsal.result() if self._rehearsal is not None else Exceptions()

    def begin(self, context: SparkContext, holding: Holding, actions: Actions) -> None:
        """Start in Spark, and return once the job owns its checkpoint directory, or has ended.

        Args:
            actions: What its page can do to the job.

        Raises:
            CrosscutError: The job can't start; nothing has been changed.
        """
        self._context = context
        settings = self._settings
        warn_of_single_attempts(context)
        check_local_dirs_are_private(settings, context)
        check_log_key_stays_here(context, strict=settings.strict)
        network = checked_network(settings, context)
        self._holding = holding
        check_checkpoint_dir(self._checkpoint_dir)
        store_url = absolute(self._checkpoint_dir)
        cluster = SparkCluster(context, store_url)
        self._spec = spec = job_spec(
            self._name,
            settings,
            lambda parallelism: placed(self._compiled(parallelism), store_url, context),
            store_url=store_url,
            invariants=self._invariants,
            slots=cluster.slots,
            at_once=session.tasks_at_once(context),
            discover_timeout_ms=staging_timeout_ms(self._graph),
            exceptions=self._rehearsed(),
        )
        self._graph = spec.graph
        for vertex in self._graph.vertices:
            if vertex.sink is not None:
                vertex.sink.sink.check()
            if vertex.source is not None and isinstance(vertex.source.source, StreamSource):
                vertex.source.source.check()
        self.store = open_store(self._checkpoint_dir, key=log_key())
        LOGGER.info("job %r: %s", self._name, self.store.protection)
        group = f"crosscut-{self._name}-{secrets.token_hex(4)}"
        if settings.restore_from is not None:
            # No job is started slower because it could begin so.
            from crosscut.spark.cluster.restoring import begin_with_savepoint

            staging = Staging(context, name=self._name, group=f"{group}-staging", store_url=store_url)
            begin_with_savepoint(
                settings.restore_from,
                self._name,
                self._graph,
                self.store,
                staging,
                settings,
                spec.packed,
            )
        self._run_context = RunContext(cluster, spec, group, self.store, network)
        self.seeing = Seeing(self._name, self.metrics, actions, self._checkpoint_dir, self._settings, context)
        self._thread.start()
        try:
            while not self._claimed.wait(0.1):
                if not self._thread.is_alive():
                    break
        except BaseException:
            # Ctrl-C: nobody would have a handle to the job that goes on.
            self.cancel()
            raise

    @property
    def phase(self) -> str:
        """Where the job is, or how it has ended."""
        return self.end.outcome if self.end is not None else self.status().phase

    def status(self) -> JobStatus:
        """Return everything there is to know of the job at this moment.

        Raises:
            JobFailedError: The job could not even be started.
        """
        driver, loop = self.driver, self._loop
        if self.last_status is not None:
            return self.last_status
        if driver is None or loop is None:
            raise JobFailedError(f"job {self._name!r} has not started")

        status = read_on(loop, driver.status, STATUS_TIMEOUT_S)
        return replace(status, phase=SWITCHING) if self._is_switching else status

    @property
    def _is_switching(self) -> bool:
        if self._engines is None:
            return False
        return self._is_between or self._engines.phase is Switch.SWITCHING

    def metrics(self) -> JobMetrics:
        """Return the numbers of the job at this moment, or at its end.

        Raises:
            JobFailedError: The job could not even be started.
        """
        driver, loop = self.driver, self._loop
        settings = self._spec.shown_settings if self._spec is not None else shown_settings(self._settings)
        if driver is None or loop is None:
            nothing = Watching(self._name, self._settings.parallelism, int, lambda event: None).seen()
            status = self.status()
            return build_metrics(self._graph, status, self.phase, nothing, None, settings, _wall_ms())
        if self.last_status is not None:
            # Nothing changes any more.
            return driver.looked_at(self._graph, settings)()
        # The loop has others to serve: only what changes is read there.
        found = read_on(loop, lambda: driver.looked_at(self._graph, settings))()
        return replace(found, status=SWITCHING) if self._is_switching else found

    def progress(self) -> list[dict[str, Any]]:
        """Return the newest that is known of the job's progress, oldest first."""
        driver, loop = self.driver, self._loop
        if driver is None or loop is None:
            return []
        return [*self._progress_before, *read_on(loop, driver.progress)][-PROGRESS_MAX:]

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
            asked = self._stretch_count
            left = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            try:
                return self._ask(question, left, timeout, on_timeout)
            except CheckpointError:
                # Of a stretch that has ended meanwhile: the next one can answer.
                while self._is_switching and (ends_s is None or time.monotonic() < ends_s):
                    if self.ended.wait(LOOK_EVERY_S):
                        break
                if self._stretch_count == asked:
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
            raise CheckpointError(f"job {self._name!r} is over") from error
        try:
            return future.result(left)
        except TimeoutError as error:
            future.cancel()
            raise CheckpointError(f"job {self._name!r}: {on_timeout} within {timeout or 0:g} s") from error
        except CancelledError as error:
            raise CheckpointError(f"job {self._name!r} is over") from error

    def post(self, event: JobEvent) -> None:
        """Tell the coordinator something; nobody is told after the end."""
        loop = self._loop
        if loop is None or self.ended.is_set():
            return
        try:
            loop.call_soon_threadsafe(self._hear, event)
        except RuntimeError:
            # The loop has ended between the check and the call: so has the job.
            return

    def _hear(self, event: JobEvent) -> None:
        if isinstance(event, StopRequested | CancelRequested):
            # Between two stretches nobody else hears of it.
            self._asked.append(event)
            if self._engines is not None:
                self._engines.handle(EndAsked())
        if self.driver is not None:
            self.driver.post(event)

    def cancel(self) -> None:
        """End now, without a last checkpoint."""
        self.post(CancelRequested())
        self.ended.wait(WORKERS_END_TIMEOUT_S * 4)

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

    def write_files(self, path: str) -> WriteFiles:
        """Return what writes the files of a savepoint at `path`: a process that has no secret of this one."""
        from crosscut.savepoints.child import files_by_child

        packed = self._run_context.spec.packed
        return files_by_child(path, absolute(self._checkpoint_dir), packed)

    def _run(self) -> None:
        try:
            with switching_within(DRIVER_SWITCH_US):
                asyncio.run(self._drive())
        except BaseException as error:  # noqa: BLE001 - kept, and raised by `wait`
            self.error = error
            if self.end is None:
                self.end = EndJob("failed", FailureCause(type(error).__name__, str(error)))
        finally:
            if self.last_status is None and self.driver is not None:
                self.last_status = self.driver.status()
            self._holding.release()
            self._claimed.set()
            if not self._is_end_told and self.end is not None:
                # Told late where another stretch might have followed; or by nobody, where what was to run
                # next could not even be made.
                self.listeners.tell(self._said_end or self._ended(self.end))
            self.listeners.close(LISTENERS_END_TIMEOUT_S)
            if self.seeing is not None:
                self.seeing.close()
            self.ended.set()

    async def _drive(self) -> None:
        self._loop = asyncio.get_running_loop()
        seen, failpoints = Observations(), Failpoints(armed(), None)
        follows: Predecessor | None = None
        while True:
            stretch = await self._begun(seen, follows)
            end = await self._over(stretch)
            driver, follows = stretch.driver, stretch.predecessor
            self.error = driver.error
            await stretch.close()
            following = self._following(end)
            if following is None:
                self.last_status = driver.status()
                self.end = end
                await driver.close()
                return
            self._is_between = True
            # Not the end of the job, which comes in words of its own.
            self._ended_before, self._said_end = self._said_end, None
            # Whoever writes a savepoint reads parts that the next stretch may drop.
            await driver.savepoints_written(self._settings.milliseconds("checkpoint_timeout") / 1_000)
            seen = driver.carried_on()
            self._progress_before = [*self._progress_before, *driver.progress()][-PROGRESS_MAX:]
            await driver.close()
            failpoints("engine.switch")
            self._tell_switch(following, driver)

    async def _begun(self, seen: Observations, follows: Predecessor | None) -> EngineRun:
        specs = self._run_context.spec.engines
        spec = specs[self._engines.engine if self._engines is not None else next(iter(specs))]
        number = self._stretch_count + 1
        stretch = EngineRun(self._run_context, number, spec, self._tell, seen, follows)
        self._graph = spec.graph
        self.driver = stretch.driver
        # In this order: whoever asks must not take the driver before for this one.
        self._stretch_count = number
        self._is_between = False
        await stretch.start()
        for event in self._asked:
            stretch.post(event)
        if not stretch.driver.ended.done() and not self._claimed.is_set():
            self._claimed.set()
            if self.seeing is not None:
                self.seeing.start()
        return stretch

    async def _over(self, stretch: EngineRun) -> EndJob:
        """Wait for the end of a stretch, which may be brought about here."""
        timeout_s = None if self._engines is None else SWITCH_LOOK_S
        while (end := await stretch.ended(timeout_s)) is None:
            news = stretch.lag()
            for effect in [] if self._engines is None or news is None else self._engines.handle(news):
                if isinstance(effect, StopEngine):
                    LOGGER.info("job %r: goes over to the other engine: %s", self._name, effect.why)
                    stretch.post(StopRequested())
        return end

    def _following(self, end: EndJob) -> StartEngine | None:
        """Return what follows the end of a stretch; None: the job is over."""
        if self._engines is None:
            return None
        effects = self._engines.handle(EngineEnded(end.outcome))
        return next((one for one in effects if isinstance(one, StartEngine)), None)

    def _tell(self, event: WatchedEvent) -> None:
        if isinstance(event, Ended):
            self._said_end = event
            # That a stretch has ended may not be the end of the job.
            if self._engines is not None:
                return
            self._is_end_told = True
        self.listeners.tell(event)

    def _ended(self, end: EndJob, epoch: Epoch = _NO_EPOCH) -> Ended:
        """Return the last event of a job of which no driver has told it."""
        cause = "" if end.cause is None else end.cause.message
        if (before := self._ended_before) is not None:
            return replace(before, at_ms=_wall_ms(), outcome=end.outcome, cause=cause)
        return Ended(
            job=self._name,
            at_ms=_wall_ms(),
            epoch=epoch,
            outcome=end.outcome,
            cause=cause,
            resumes_from=None,
        )

    def _tell_switch(self, following: StartEngine, driver: CoordinatorDriver) -> None:
        status = driver.status()
        n = status.resumes_from
        self.listeners.tell(
            EngineSwitched(
                job=self._name,
                at_ms=_wall_ms(),
                epoch=Epoch(status.epoch),
                engine=following.engine,
                reason=following.why,
                resumes_from=None if n is None else CheckpointId(n),
            )
        )


def _wall_ms() -> int:
    return int(SystemClock().now().timestamp() * 1_000)


def absolute(url: str) -> str:
    """Return a directory as every process finds it."""
    return url if "://" in url else os.path.abspath(url)
