"""A running job, as its user sees it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.invariants import InvariantChecker
from crosscut.driver.journal import LOGGER
from crosscut.driver.status import CheckpointStatus, JobStatus, WorkerStatus
from crosscut.errors import (
    CheckpointError,
    ConnectorError,
    CrosscutError,
    FlowError,
    HistoryError,
    JobFailedError,
    SettingsError,
    StoreError,
    WorkersError,
)
from crosscut.flow.flow import Flow
from crosscut.graph.shipping import pack_graph
from crosscut.host.clock import SystemClock
from crosscut.host.failpoints import Failpoints, armed
from crosscut.net.connections import Credentials
from crosscut.net.encryption import make_certificate
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, JobEvent, StopRequested
from crosscut.protocol.job.identity import Claimant
from crosscut.protocol.job.segments import claims_in
from crosscut.protocol.messages import CheckpointCompleted, EpochClaimed, FailureCause
from crosscut.settings import Settings
from crosscut.spark import session
from crosscut.spark.checks import (
    check_checkpoint_dir,
    checked_encryption,
    checked_host,
    held_slots,
    is_loopback,
    warn_of_single_attempts,
)
from crosscut.spark.holding import Holding
from crosscut.spark.session import LOOPBACK, is_local
from crosscut.spark.staging import Staging, placed, staging_timeout_ms
from crosscut.spark.terms import committed_output, job_terms, status_if_finished
from crosscut.spark.workers import SparkWorkers
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import log_key
from crosscut.urls import shown_url
from crosscut.wire.handshake import JOB_BYTES, SECRET_BYTES
from crosscut.worker.deployment import TaskTerms
from crosscut.worker.worker import WorkerPlan

WORKERS_END_TIMEOUT_S = 5.0
STOP_ON_INTERRUPT_S = 20.0
LAST_CUT_TIMEOUT_S = 10.0
"""How long the end of a job waits for the invariants of its last cut."""

_EXCEPTIONS: dict[str, type[CrosscutError]] = {
    kind.__name__: kind
    for kind in (ConnectorError, FlowError, HistoryError, SettingsError, StoreError, WorkersError)
}


class Job:
    """A flow that was started. All methods may be called from any thread."""

    def __init__(self, flow: Flow, settings: Settings) -> None:
        self._name = flow.name
        self._settings = settings
        self._checkpoint_dir = settings.store_of(flow.name)
        compiled = flow.compile(settings.parallelism, settings.max_parallelism)
        self._graph = placed(compiled, _absolute(self._checkpoint_dir))
        self._invariants = flow.invariants
        self._driver: CoordinatorDriver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_status: JobStatus | None = None
        self._end: EndJob | None = None
        self._error: BaseException | None = None
        self._claimed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"crosscut-{flow.name}", daemon=True)

    # What the user asks.

    def __repr__(self) -> str:
        return f"<Job {self._name!r}: {self.status}>"

    @property
    def name(self) -> str:
        """Name of the flow."""
        return self._name

    @property
    def checkpoint_dir(self) -> str:
        """Where the job keeps its checkpoints: a directory or a URL."""
        return self._checkpoint_dir

    @property
    def status(self) -> str:
        """Where the job is: a phase ("gathering", "running", ...), or how it ended.

        Ends are "finished" (all input processed and committed), "stopped", "cancelled", "failed", and
        "fenced" (another driver has taken the job over).
        """
        if self._end is not None:
            return self._end.outcome
        return self.report().phase

    def report(self) -> JobStatus:
        """Return everything there is to know of the job at this moment.

        Raises:
            JobFailedError: The job could not even be started.
        """
        driver, loop = self._driver, self._loop
        if self._last_status is not None:
            return self._last_status
        if driver is None or loop is None:
            raise JobFailedError(f"job {self._name!r} has not started")

        async def read() -> JobStatus:
            return driver.status()

        try:
            return asyncio.run_coroutine_threadsafe(read(), loop).result(10)
        except (RuntimeError, asyncio.CancelledError):
            # The loop ended meanwhile.
            self._ended.wait(WORKERS_END_TIMEOUT_S * 2)
            if self._last_status is None:
                raise
            return self._last_status

    def progress(self) -> dict[str, Any]:
        """Return the job's status as plain data: phase, epoch, workers, checkpoints, rates."""
        return {**self.report().as_dict(), "status": self.status}

    def workers(self) -> list[WorkerStatus]:
        """Return the admitted workers, by index: `index`, `host`, `pid`, `epoch`."""
        return list(self.report().workers)

    def checkpoints(self) -> list[CheckpointStatus]:
        """Return the checkpoints that this driver has completed, oldest first (the newest 1,000)."""
        return list(self.report().checkpoints)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended.

        On Ctrl-C the job is stopped (a last checkpoint is taken and committed; the next start resumes
        from there), and KeyboardInterrupt is raised again; a second Ctrl-C cancels it.

        Args:
            timeout: Seconds; None: no limit.

        Returns:
            True if the job has ended well, False if it has not ended within `timeout`.

        Raises:
            JobFailedError: The job has failed, or another driver has taken it over.
        """
        try:
            with _plain_interrupts():
                if not self._wait_ended(timeout):
                    return False
        except KeyboardInterrupt:
            self._interrupted()
            raise
        self._raise_if_failed()
        return True

    def checkpoint(self, timeout: float | None = None) -> CheckpointStatus:
        """Take a checkpoint now, between the periodic ones, and wait until it is complete.

        What every source had read when this was called is in it. In a job that is still starting it is
        taken as soon as records flow.

        Args:
            timeout: Seconds; None: no limit but `checkpoint_timeout`.

        Returns:
            The checkpoint, or a newer one that was completed first.

        Raises:
            CheckpointError: It has failed, or has not been completed within `timeout`; the job runs on.
        """
        driver, loop = self._driver, self._loop
        if driver is None or loop is None or self._ended.is_set():
            raise CheckpointError(f"job {self._name!r} is not running: {self.status}")
        waiting = driver.checkpoint()
        try:
            future = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError as error:
            waiting.close()
            raise CheckpointError(f"job {self._name!r} is over") from error
        try:
            return future.result(timeout)
        except TimeoutError as error:
            future.cancel()
            raise CheckpointError(
                f"job {self._name!r}: the checkpoint was not complete within {timeout:g} s"
            ) from error
        except CancelledError as error:
            raise CheckpointError(f"job {self._name!r} is over") from error

    def savepoint(self, path: str | os.PathLike[str], timeout: float | None = None) -> str:
        """Take a checkpoint now, and write it as a savepoint; the job runs on.

        A savepoint is a directory of its own: it needs neither this job nor its checkpoint directory, and
        anybody can read it. All output up to it is committed. Needs pyarrow (`crosscut[parquet]`).

        Args:
            path: A directory of a local or shared file system that is not there yet, or is empty.
            timeout: Seconds; None: no limit.

        Returns:
            The path.

        Raises:
            CheckpointError: No checkpoint could be had, or it was not written within `timeout`.
            StoreError: It can't be written; nothing is left of it.
            StateError: A class in the state can't be imported on the driver.
        """
        from crosscut.savepoints.writing import write_savepoint

        directory = os.fspath(path)
        driver, loop = self._driver, self._loop
        if driver is None or loop is None or self._ended.is_set():
            raise CheckpointError(f"job {self._name!r} is not running: {self.status}")

        def write(checkpoint: CheckpointCompleted) -> None:
            write_savepoint(directory, checkpoint, self._newest_claim(), self._store.read_part)

        waiting = driver.savepoint(write)
        try:
            future = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError as error:
            waiting.close()
            raise CheckpointError(f"job {self._name!r} is over") from error
        try:
            future.result(timeout)
        except TimeoutError as error:
            future.cancel()
            raise CheckpointError(
                f"job {self._name!r}: the savepoint was not written within {timeout:g} s"
            ) from error
        except CancelledError as error:
            raise CheckpointError(f"job {self._name!r} is over") from error
        return directory

    def _newest_claim(self) -> EpochClaimed:
        return claims_in([entry for _, entry in self._store.tail(1)])[-1]

    def _last_as_savepoint(self, directory: str) -> None:
        from crosscut.savepoints.writing import write_savepoint

        if (
            self._end is None
            or self._end.outcome not in ("stopped", "finished")
            or self._end.cause is not None
        ):
            why = self._end.cause.message if self._end is not None and self._end.cause is not None else ""
            raise CheckpointError(
                f"job {self._name!r} has ended ({self.status}) without a last checkpoint whose output is "
                f"committed, so no savepoint was written{': ' if why else ''}{why}"
            )
        tail = [entry for _, entry in self._store.tail(1)]
        checkpoint = [entry for entry in tail if isinstance(entry, CheckpointCompleted)][-1]
        write_savepoint(directory, checkpoint, claims_in(tail)[-1], self._store.read_part)

    def stop(self, timeout: float | None = None, *, savepoint: str | os.PathLike[str] | None = None) -> bool:
        """Take a last checkpoint, commit it, and end; the next start resumes from there.

        If that checkpoint can't be completed within `checkpoint_timeout`, or something fails meanwhile, the
        job ends without it: nothing is lost, and the next start goes on from the newest checkpoint that is
        complete. If it is complete, but its output can't be committed, the job ends all the same, and the
        next start commits it. In both cases a RuntimeWarning, the journal and `progress()["cause"]` say why,
        and from which checkpoint the next start goes on.

        Args:
            timeout: Seconds to wait for the end; None: no limit.
            savepoint: Where to write the last checkpoint as a savepoint, too; see `savepoint`.

        Returns:
            True if the job has ended, with or without a last checkpoint.

        Raises:
            JobFailedError: The job has failed instead.
            CheckpointError: The job has ended, and there is no savepoint: no last checkpoint could be had, or
                not all of its output was committed.
        """
        self._post(StopRequested())
        has_ended = self._wait_ended(timeout)
        if has_ended:
            self._raise_if_failed()
            if savepoint is not None:
                self._last_as_savepoint(os.fspath(savepoint))
        return has_ended

    def cancel(self) -> None:
        """End now, without a last checkpoint; the next start resumes from the newest one."""
        self._post(CancelRequested())
        self._wait_ended(WORKERS_END_TIMEOUT_S * 4)

    # How it runs.

    def finished_before(self, status: JobStatus) -> Job:
        """Be a job that had nothing to do, without Spark; it has this status."""
        self._last_status, self._end = status, EndJob("finished")
        self._claimed.set()
        self._ended.set()
        return self

    def begin(self, context: SparkContext, holding: Holding) -> Job:
        """Start in Spark, and return once the job owns its checkpoint directory.

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
        for vertex in self._graph.vertices:
            if vertex.sink is not None:
                vertex.sink.sink.check()
        self._group = f"crosscut-{self._name}-{secrets.token_hex(4)}"
        self._staging = Staging(
            context,
            name=self._name,
            group=f"{self._group}-staging",
            store_url=_absolute(self._checkpoint_dir),
        )
        self._packed = pack_graph(self._graph)
        self._store = open_store(self._checkpoint_dir, key=log_key())
        LOGGER.info("job %r: %s", self._name, self._store.protection)
        if self._settings.restore_from is not None:
            self._begin_with_savepoint(self._settings.restore_from)
        self._thread.start()
        try:
            while not self._claimed.wait(0.1):
                if not self._thread.is_alive():
                    break
        except BaseException:
            # Ctrl-C: nobody would have a handle to the job that goes on.
            self.cancel()
            raise
        if self._end is not None and self._end.outcome in ("failed", "fenced"):
            try:
                self._raise_if_failed()
            except JobFailedError as failure:
                # Nothing has run: what is wrong is for the caller to tell apart.
                if isinstance(failure.__cause__, CrosscutError):
                    raise failure.__cause__ from None
                raise
        return self

    def _begin_with_savepoint(self, path: str | os.PathLike[str]) -> None:
        from crosscut.savepoints.starting import EPOCH, begin_with
        from crosscut.savepoints.tables import as_savepoint

        settings = self._settings
        with tempfile.TemporaryDirectory(prefix="crosscut-restore-") as scratch:
            found = begin_with(
                str(as_savepoint(path, Path(scratch) / "savepoint")),
                self._store,
                self._graph,
                discover=lambda graph: self._staging.assignments(graph, EPOCH),
                look=lambda: committed_output(self._graph),
                allow_dropped_state=settings.allow_dropped_state,
                accept_changes=settings.accept_changes,
                is_fresh=settings.fresh,
                migrations=settings.migrate_state,
                claimant=Claimant(socket.gethostname(), os.getpid(), SystemClock().now().isoformat()),
            )
        if found is None:
            LOGGER.info("job %r: has begun with %s before, and goes on", self._name, path)
        else:
            n, then = found.checkpoint_id, found.parallelism
            LOGGER.info(
                "job %r: begins with checkpoint %s of %s, of parallelism %s", self._name, n, path, then
            )

    def _run(self) -> None:
        try:
            asyncio.run(self._drive())
        except BaseException as error:  # noqa: BLE001 - kept, and raised by `wait`
            self._error = error
            if self._end is None:
                self._end = EndJob("failed", FailureCause(type(error).__name__, str(error)))
        finally:
            if self._last_status is None and self._driver is not None:
                self._last_status = self._driver.status()
            self._holding.release()
            self._claimed.set()
            self._ended.set()

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
        kind, alignment_timeout_ms = settings.snapshot_kind()
        plan_of_failpoints = armed()
        supply = SparkWorkers(
            self._context,
            parallelism=settings.parallelism,
            name=self._name,
            group=self._group,
            description=f"Crosscut: {self._name}, {settings.parallelism} workers",
            post=self._post,
        )
        checker = InvariantChecker(self._invariants, self._graph, self._store, self._post)
        driver = CoordinatorDriver(
            name=self._name,
            terms=job_terms(
                self._graph,
                settings,
                self._slots,
                awaits_verdict=any(one.on_broken == "stop" for one in self._invariants),
                discover_timeout_ms=staging_timeout_ms(self._graph),
            ),
            store=self._store,
            credentials=credentials,
            supply=supply,
            discover=lambda epoch: self._staging.assignments(self._graph, epoch),
            look=lambda: committed_output(self._graph),
            failpoints=Failpoints(plan_of_failpoints, None),
            invariants=checker,
        )
        self._driver = driver
        port = await driver.listen(self._host)
        supply.provide(
            WorkerPlan(
                credentials=credentials,
                coordinator_host=self._host,
                coordinator_port=port,
                bind_host=LOOPBACK if is_local(self._context) else None,
                packed_graph=self._packed,
                store_url=_absolute(self._checkpoint_dir),
                terms=TaskTerms(
                    batch_rows=settings.batch_rows,
                    channel_bytes=settings.channel_bytes,
                    commit_attempts=settings.commit_attempts,
                    sink_timeout_ms=int(settings.milliseconds("checkpoint_timeout")),
                    snapshots="aligned" if kind == "none" else kind,
                    alignment_timeout_ms=alignment_timeout_ms,
                    spill_bytes=settings.spill_bytes,
                    spill_dir=None if settings.spill_dir is None else os.fspath(settings.spill_dir),
                    state_backend=settings.state_backend,
                    state_dir=None if settings.state_dir is None else os.fspath(settings.state_dir),
                ),
                linger_ms=settings.milliseconds("linger"),
                heartbeat_timeout_ms=int(settings.milliseconds("heartbeat_timeout")),
                failpoints=plan_of_failpoints,
            )
        )
        driver.start()
        await driver.claimed
        if not driver.ended.done():
            self._claimed.set()
        end = await driver.ended
        self._error = driver.error
        await loop.run_in_executor(None, self._staging.cancel)
        await loop.run_in_executor(None, supply.end, WORKERS_END_TIMEOUT_S)
        await loop.run_in_executor(None, checker.close, LAST_CUT_TIMEOUT_S)
        self._last_status = driver.status()
        self._end = end
        await driver.close()

    def _post(self, event: JobEvent) -> None:
        driver = self._driver
        if driver is None or self._ended.is_set():
            return
        try:
            driver.post(event)
        except RuntimeError:
            # The loop has ended between the check and the call: so has the job.
            return

    def _wait_ended(self, timeout: float | None) -> bool:
        return self._ended.wait(timeout)

    def _interrupted(self) -> None:
        try:
            self._post(StopRequested())
            if not self._wait_ended(STOP_ON_INTERRUPT_S):
                self.cancel()
        except KeyboardInterrupt:
            self.cancel()

    def _raise_if_failed(self) -> None:
        end = self._end
        if end is None or end.outcome not in ("failed", "fenced"):
            if end is not None and end.cause is not None:
                warnings.warn(f"job {self._name!r}: {end.cause.message}", RuntimeWarning, stacklevel=3)
            return
        cause = end.cause or FailureCause("Unknown", "no cause was given")
        # The error itself where it was raised here, else one of its kind; what happened elsewhere is text.
        error = self._error
        kind = _EXCEPTIONS.get(cause.kind)
        if error is None and kind is not None and not cause.operator:
            error = kind(f"job {self._name!r}: {cause.message}")
        raise JobFailedError(_failure_text(self._name, cause), cause=cause) from error


@contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt and do no more.

    A SparkContext that the user has made answers it by cancelling all Spark jobs: that would end the
    workers before a last checkpoint.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not getattr(before, "__module__", "").startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start_job(flow: Flow, settings: Settings, spark: Any) -> Job:
    """Start `flow`; see `Flow.start`."""
    job = Job(flow, settings)
    # Asked here as well as by the coordinator, which decides: it takes Spark some seconds to start.
    if (finished := status_if_finished(flow, settings)) is not None:
        LOGGER.warning(
            "job %r in %s has finished before: nothing is read or written; to run it again, choose another "
            "checkpoint_dir and another location for its output",
            flow.name,
            shown_url(job.checkpoint_dir),
        )
        return job.finished_before(finished)
    with session.starting:
        if spark is not None:
            context = _context_of(spark)
            session.check_is_there(context)
        else:
            context, _ = session.spark_context(settings.parallelism, f"crosscut: {flow.name}")
        holding = held_slots(flow.name, settings.parallelism, context)
    try:
        return job.begin(context, holding)
    except BaseException:
        holding.release()
        raise


def _context_of(spark: Any) -> SparkContext:
    context = spark if isinstance(spark, SparkContext) else getattr(spark, "sparkContext", None)
    if not isinstance(context, SparkContext):
        raise SettingsError(f"spark={spark!r}: expected a SparkSession or a SparkContext")
    return context


def _absolute(url: str) -> str:
    return url if "://" in url else os.path.abspath(url)


def _failure_text(name: str, cause: FailureCause) -> str:
    lines = [f"job {name!r} failed: {cause.message}"]
    if cause.record:
        lines.append(f"record: {cause.record}")
    if cause.traceback:
        lines.append(cause.traceback.rstrip())
    return "\n".join(lines)
