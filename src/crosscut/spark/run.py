"""How a job runs on the driver: the coordinator, and what it needs, on an event loop in a thread."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkContext

from crosscut.cuts import Invariant
from crosscut.driver.cuts import newest_values
from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.invariants import InvariantChecker
from crosscut.driver.journal import LOGGER
from crosscut.driver.listeners import Listeners
from crosscut.driver.metrics import JobMetrics, build_metrics, shown_settings
from crosscut.driver.status import JobStatus
from crosscut.driver.watching import Watching
from crosscut.driver.worker_lines import WorkerLines
from crosscut.errors import CheckpointError, FlowError, JobFailedError
from crosscut.events import Ended
from crosscut.graph.shipping import pack_graph
from crosscut.graph.specs import JobGraph
from crosscut.graph.stages import check_batches, stages_of
from crosscut.host.clock import SystemClock
from crosscut.host.failpoints import Failpoints, Plan, armed
from crosscut.ids import Epoch
from crosscut.interfaces import Sink
from crosscut.net.connections import Credentials
from crosscut.net.encryption import make_certificate
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, JobEvent
from crosscut.protocol.job.identity import Claimant
from crosscut.protocol.messages import FailureCause
from crosscut.settings import Settings
from crosscut.spark import session
from crosscut.spark.checks import (
    check_checkpoint_dir,
    checked_encryption,
    checked_host,
    is_loopback,
    warn_of_single_attempts,
)
from crosscut.spark.holding import Holding
from crosscut.spark.microbatch.job import BatchJobs
from crosscut.spark.microbatch.output import check_sinks
from crosscut.spark.microbatch.workers import BatchWorkers
from crosscut.spark.placing import placed
from crosscut.spark.seeing import Seeing
from crosscut.spark.session import LOOPBACK, is_local
from crosscut.spark.staging import Staging, staging_timeout_ms
from crosscut.spark.terms import batch_terms, committed_output, job_terms, task_terms
from crosscut.spark.workers import SparkWorkers
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import log_key
from crosscut.task.discovery import found_in
from crosscut.urls import shown_url
from crosscut.web.answers import Actions
from crosscut.wire.handshake import JOB_BYTES, SECRET_BYTES
from crosscut.worker.lines import LogTerms
from crosscut.worker.worker import WorkerPlan

Answer = TypeVar("Answer")

WORKERS_END_TIMEOUT_S = 5.0
LISTENERS_END_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 10.0
LOOK_EVERY_S = 0.1
"""So often whoever waits for the loop looks whether there still is one."""
LAST_CUT_TIMEOUT_S = 10.0
"""How long the end of a job waits for the invariants of its last cut."""


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
        graph: JobGraph,
        invariants: Sequence[Invariant],
        settings: Settings,
        checkpoint_dir: str,
    ) -> None:
        self._name = name
        self._graph = graph
        self._invariants = invariants
        self._settings = settings
        self._checkpoint_dir = checkpoint_dir
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
        self.listeners.tell(
            Ended(
                job=self._name,
                at_ms=_wall_ms(),
                epoch=Epoch(status.epoch),
                outcome="finished",
                cause="",
                resumes_from=None,
            )
        )
        self._claimed.set()
        self.ended.set()

    def begin(self, context: SparkContext, holding: Holding, actions: Actions) -> None:
        """Start in Spark, and return once the job owns its checkpoint directory, or has ended.

        Args:
            actions: What its page can do to the job.

        Raises:
            CrosscutError: The job can't start; nothing has been changed.
        """
        self._context = context
        warn_of_single_attempts(context)
        self._host = checked_host(self._settings, context)
        self._is_encrypted = checked_encryption(self._settings, context, self._host)
        self._holding = holding
        self._slots = session.slots(context)
        check_checkpoint_dir(self._checkpoint_dir)
        self._graph = placed(self._graph, absolute(self._checkpoint_dir))
        if self._settings.engine == "micro-batch":
            check_batches(self._graph)
            check_sinks(self._graph)
        for vertex in self._graph.vertices:
            if vertex.sink is not None:
                vertex.sink.sink.check()
        self._group = f"crosscut-{self._name}-{secrets.token_hex(4)}"
        self._staging = Staging(
            context,
            name=self._name,
            group=f"{self._group}-staging",
            store_url=absolute(self._checkpoint_dir),
        )
        self._packed = pack_graph(self._graph)
        self.store = open_store(self._checkpoint_dir, key=log_key())
        LOGGER.info("job %r: %s", self._name, self.store.protection)
        if self._settings.restore_from is not None:
            self._begin_with_savepoint(self._settings.restore_from)
        self.seeing = Seeing(self._name, self.metrics, actions, self._checkpoint_dir, self._settings)
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

        return read_on(loop, driver.status, STATUS_TIMEOUT_S)

    def metrics(self) -> JobMetrics:
        """Return the numbers of the job at this moment, or at its end.

        Raises:
            JobFailedError: The job could not even be started.
        """
        driver, loop, settings = self.driver, self._loop, shown_settings(self._settings)
        if driver is None or loop is None:
            nothing = Watching(self._name, self._settings.parallelism, int, lambda event: None)
            status = self.status()
            return build_metrics(self._graph, status, self.phase, nothing, None, settings, _wall_ms())
        if self.last_status is not None:
            # Nothing changes any more.
            return driver.metrics(self._graph, settings)
        return read_on(loop, lambda: driver.metrics(self._graph, settings))

    def progress(self) -> list[dict[str, Any]]:
        """Return the newest that is known of the job's progress, oldest first."""
        driver, loop = self.driver, self._loop
        return read_on(loop, driver.progress) if driver is not None and loop is not None else []

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
            return future.result(timeout)
        except TimeoutError as error:
            future.cancel()
            raise CheckpointError(f"job {self._name!r}: {on_timeout} within {timeout:g} s") from error
        except CancelledError as error:
            raise CheckpointError(f"job {self._name!r} is over") from error

    def post(self, event: JobEvent) -> None:
        """Tell the coordinator something; nobody is told after the end."""
        driver = self.driver
        if driver is None or self.ended.is_set():
            return
        try:
            driver.post(event)
        except RuntimeError:
            # The loop has ended between the check and the call: so has the job.
            return

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
            if sink == uid or sink is found:
                return uid
        named = ", ".join(map(repr, sinks))
        raise FlowError(f"flow {self._name!r} has no sink {sink!r:.100}; it has {named}")

    def values(self, uid: str, state: str) -> dict[Any, Any]:
        """Return the state of an operator in the newest completed checkpoint; see `Job.values`."""
        store = open_store(self._checkpoint_dir, create=False, key=log_key())
        return newest_values(store, self._graph, uid, state)

    def _begin_with_savepoint(self, path: str | os.PathLike[str]) -> None:
        from crosscut.savepoints.loading import EPOCH
        from crosscut.savepoints.migrations import Migrations
        from crosscut.savepoints.starting import begin_with, has_begun
        from crosscut.savepoints.tables import as_savepoint, origin_of

        settings = self._settings
        shown = shown_url(os.fspath(path))
        # Before anything is copied: a job is started often, and begins once.
        if has_begun(origin_of(path), self.store):
            LOGGER.info("job %r: has begun with %s before, and goes on", self._name, shown)
            return
        with tempfile.TemporaryDirectory(prefix="crosscut-restore-") as scratch:
            found = begin_with(
                as_savepoint(path, Path(scratch) / "savepoint"),
                self.store,
                self._graph,
                discover=lambda graph: self._staging.assignments(graph, EPOCH),
                look=lambda: committed_output(self._graph),
                allow_dropped_state=settings.allow_dropped_state,
                accept_changes=settings.accept_changes,
                is_fresh=settings.fresh,
                migrations=Migrations(settings.migrate_state),
                claimant=Claimant(socket.gethostname(), os.getpid(), SystemClock().now().isoformat()),
            )
        if found is not None:
            n, then = found.checkpoint_id, found.parallelism
            LOGGER.info(
                "job %r: begins with checkpoint %s of %s, of parallelism %s", self._name, n, shown, then
            )

    def _run(self) -> None:
        try:
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
            self.listeners.close(LISTENERS_END_TIMEOUT_S)
            if self.seeing is not None:
                self.seeing.close()
            self.ended.set()

    async def _drive(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        settings = self._settings
        credentials = Credentials(
            secrets.token_bytes(SECRET_BYTES),
            secrets.token_bytes(JOB_BYTES),
            make_certificate() if self._is_encrypted else None,
            int(settings.milliseconds("heartbeat_timeout")),
            # On loopback nobody but the administrator can come between.
            seals_frames=not self._is_encrypted and not is_loopback(self._host),
        )
        plan_of_failpoints = armed()
        supply = (
            self._batch_workers(plan_of_failpoints) if settings.engine == "micro-batch" else self._workers()
        )
        checker = InvariantChecker(self._invariants, self._graph, self.store, self.post)
        driver = CoordinatorDriver(
            name=self._name,
            terms=job_terms(
                self._graph,
                settings,
                self._slots,
                awaits_verdict=any(one.on_broken == "stop" for one in self._invariants),
                discover_timeout_ms=staging_timeout_ms(self._graph),
            ),
            store=self.store,
            credentials=credentials,
            supply=supply,
            discover=lambda epoch: self._staging.assignments(self._graph, epoch),
            look=lambda: committed_output(self._graph),
            find=lambda source, known: found_in(self._graph, source, known),
            failpoints=Failpoints(plan_of_failpoints, None),
            invariants=checker,
            tell=self.listeners.tell,
            lines=WorkerLines(self._name, are_seen=is_local(self._context)),
            progress_of=None if settings.engine == "micro-batch" else self._graph,
        )
        self.driver = driver
        if isinstance(supply, BatchWorkers):
            supply.provide(driver)
        else:
            port = await driver.listen(self._host)
            supply.provide(self._worker_plan(credentials, port, plan_of_failpoints))
        driver.start()
        await driver.claimed
        if not driver.ended.done():
            self._claimed.set()
            if self.seeing is not None:
                self.seeing.start()
        end = await driver.ended
        self.error = driver.error
        await loop.run_in_executor(None, self._staging.cancel)
        await loop.run_in_executor(None, supply.end, WORKERS_END_TIMEOUT_S)
        await loop.run_in_executor(None, checker.close, LAST_CUT_TIMEOUT_S)
        self.last_status = driver.status()
        self.end = end
        await driver.close()

    def _workers(self) -> SparkWorkers:
        return SparkWorkers(
            self._context,
            parallelism=self._settings.parallelism,
            name=self._name,
            group=self._group,
            description=f"Crosscut: {self._name}, {self._settings.parallelism} workers",
            post=self.post,
        )

    def _batch_workers(self, failpoints: Plan | None) -> BatchWorkers:
        jobs = BatchJobs(
            self._context,
            group=self._group,
            name=self._name,
            parallelism=self._graph.parallelism,
            packed_graph=self._packed,
            stages=[", ".join(one) for one in stages_of(self._graph)],
        )
        return BatchWorkers(
            jobs,
            name=self._name,
            graph=self._graph,
            store=self.store,
            store_url=absolute(self._checkpoint_dir),
            terms=batch_terms(self._settings),
            records_max=self._settings.batch_records_max,
            trigger=self._settings.trigger,
            failpoints=failpoints,
        )

    def _worker_plan(self, credentials: Credentials, port: int, failpoints: Plan | None) -> WorkerPlan:
        settings = self._settings
        return WorkerPlan(
            credentials=credentials,
            coordinator_host=self._host,
            coordinator_port=port,
            bind_host=LOOPBACK if is_local(self._context) else None,
            packed_graph=self._packed,
            store_url=absolute(self._checkpoint_dir),
            terms=task_terms(settings),
            linger_ms=settings.milliseconds("linger"),
            heartbeat_timeout_ms=int(settings.milliseconds("heartbeat_timeout")),
            failpoints=failpoints,
            log=LogTerms(self._name, settings.log_level, settings.log_format),
        )


def _wall_ms() -> int:
    return int(SystemClock().now().timestamp() * 1_000)


def read_on(
    loop: asyncio.AbstractEventLoop, read: Callable[[], Answer], timeout_s: float | None = None
) -> Answer:
    """Return what `read` returns on `loop`; or here, once the loop has been closed: nothing changes then.

    A loop that ends drops what it was given last without a word, so whoever waits for it looks again.

    Args:
        timeout_s: None: no limit.

    Raises:
        TimeoutError: The loop has had something else to do for so long.
    """
    found: Future[Answer] = Future()

    def look() -> None:
        try:
            found.set_result(read())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.set_exception(error)

    try:
        loop.call_soon_threadsafe(look)
    except RuntimeError:
        return read()
    ends_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not wait([found], LOOK_EVERY_S).done:
        if loop.is_closed():
            return read()
        if ends_s is not None and time.monotonic() >= ends_s:
            raise TimeoutError(f"the driver has not answered within {timeout_s:g} s")
    return found.result()


def absolute(url: str) -> str:
    """Return a directory as every process finds it."""
    return url if "://" in url else os.path.abspath(url)
