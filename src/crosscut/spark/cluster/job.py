"""A running job, as its user sees it."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener

from crosscut.contracts.connectors import Sink
from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.engine_run import RunContext
from crosscut.driver.running_job import RunningJob
from crosscut.errors import (
    CheckpointError,
    CrosscutError,
    JobFailedError,
)
from crosscut.events import JobEvent
from crosscut.foundation.urls import absolute
from crosscut.monitoring.live import Panels, kernel_shell
from crosscut.monitoring.metrics import JobMetrics
from crosscut.monitoring.status import CheckpointStatus, JobStatus, WorkerStatus
from crosscut.monitoring.worker_logs import WorkerLine
from crosscut.protocol.events import RestartRequested, StopRequested
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.snapshots import Part
from crosscut.savepoints.writing import WriteFiles
from crosscut.spark.cluster.endings import Terminated, failure_of, plain_interrupts, termination_raises
from crosscut.spark.cluster.job_views import Seeing

STOP_ON_INTERRUPT_S = 90.0
"""Longer than `checkpoint_timeout` by default, so that one slow call does not cost the last checkpoint."""
AWAIT_EVERY_S = 0.05


class Job:
    """A flow that was started. All methods may be called from any thread."""

    def __init__(self, name: str, checkpoint_dir: str, run: RunningJob) -> None:
        self._name = name
        self._checkpoint_dir = checkpoint_dir
        self._run = run
        self._seeing: Seeing | None = None
        self._panels = Panels(name, self._looks_like, run.ended)

    # What the user asks.

    def __repr__(self) -> str:
        return f"<Job {self._name!r}: {self.status}>"

    def _repr_html_(self) -> str:
        """Return what the job looks like now, for notebooks. The link to its page is not in it: notebooks are
        passed on."""
        from crosscut.monitoring.html import html_of

        return html_of(self.metrics())

    def _ipython_display_(self) -> None:
        """Show the job in a notebook, renewed each second until it has ended."""
        self._panels.show()

    def _looks_like(self) -> dict[str, str]:
        try:
            return {"text/plain": repr(self), "text/html": self._repr_html_()}
        except CrosscutError as error:
            # It has not begun, or could not.
            return {"text/plain": f"<Job {self._name!r}: {error}>"}

    def __await__(self) -> Generator[Any, None, Job]:
        """Wait until the job has ended, and let the event loop do other things: `await job`.

        Giving up the wait, as by interrupting a cell, does not stop the job.

        Returns:
            The job itself.

        Raises:
            JobFailedError: The job has failed, or another driver has taken it over.
        """
        return self._ended().__await__()

    async def _ended(self) -> Job:
        while not self._run.ended.is_set():
            await asyncio.sleep(AWAIT_EVERY_S)
        self._raise_if_failed()
        return self

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
        return self._run.phase

    def report(self) -> JobStatus:
        """Return everything there is to know of the job at this moment.

        Raises:
            JobFailedError: The job could not even be started.
        """
        return self._run.status()

    def progress(self) -> dict[str, Any]:
        """Return the report as plain data; and by vertex how long records take from each source to there."""
        latencies = {one.vertex: [asdict(each) for each in one.latencies] for one in self.metrics().vertices}
        return {**self.report().as_dict(), "latencies": latencies, "status": self.status}

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The newest of `recent_progress`; None before the first checkpoint."""
        recent = self.recent_progress
        return recent[-1] if recent else None

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """What the newest 100 batches came to, oldest first, in the shape of Structured Streaming's progress.

        Of a job without batches: what it did from checkpoint to checkpoint. With `id`, `runId`, `batchId`
        (the id of the checkpoint), `numInputRows`, `inputRowsPerSecond`, `processedRowsPerSecond`,
        `durationMs`, `eventTime`, `stateOperators`, `sources` with their offsets, `sink`.
        """
        return self._run.progress()

    def metrics(self) -> JobMetrics:
        """Return the job in numbers: vertices and edges with their rates, tasks, checkpoints step by step,
        failovers, errors. Also after its end.

        Raises:
            JobFailedError: The job could not even be started.
        """
        return self._run.metrics()

    @property
    def page(self) -> str:
        """The link to the job's page, with the token that it needs; "" without `Settings(web=True)`.

        The page stays after the end of the job, until `close_page` or the end of the program.
        """
        return self._seeing.link if self._seeing is not None else ""

    def close_page(self) -> None:
        """Close the port of the job's page, if there is one."""
        if self._seeing is not None:
            self._seeing.close_page()

    def on_event(self, listener: Callable[[JobEvent], object]) -> None:
        """Have `listener` called with whatever happens to the job: see `crosscut.events`.

        It is told of everything from the job's beginning on, in order, whenever it is added, in a thread that
        all listeners share; `wait` returns after it was told of the end, or five seconds later. The job never
        waits for it: if it is so slow that it is more than 1,000 events behind, it misses the oldest. If it
        raises, that is logged, once.

        Examples:
            >>> import crosscut as cc
            >>> def tell(event: cc.events.JobEvent) -> None:
            ...     if isinstance(event, cc.events.FailedOver):
            ...         print(event.job, event.message)
        """
        self._run.listeners.add(listener)

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Have a listener of Structured Streaming told of the job, as it is: `onQueryStarted`, then
        `onQueryProgress` at each checkpoint or batch, and `onQueryTerminated`.

        It is told as `on_event` tells, with PySpark's own events. What Structured Streaming counts and this
        engine does not is -1 there.

        Raises:
            SettingsError: It is no `pyspark.sql.streaming.StreamingQueryListener`.
        """
        from crosscut.spark.cluster.query_listener import telling

        self.on_event(telling(listener))

    def logs(self) -> list[WorkerLine]:
        """Return the newest 200 lines that workers have logged, oldest first: with `logging`, from
        `Settings(log_level=...)` on.

        Each says which worker, task, epoch and checkpoint it is of. All of them are on the standard error of
        the workers, too.

        Raises:
            JobFailedError: The job could not even be started.
        """
        return list(self.metrics().logs)

    def workers(self) -> list[WorkerStatus]:
        """Return the admitted workers, by index: `index`, `host`, `pid`, `epoch`."""
        return list(self.report().workers)

    def checkpoints(self) -> list[CheckpointStatus]:
        """Return the checkpoints that this driver has completed, oldest first (the newest 1,000)."""
        return list(self.report().checkpoints)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended.

        On Ctrl-C the job is stopped (a last checkpoint is taken and committed; the next start resumes
        from there), and KeyboardInterrupt is raised again; a second Ctrl-C cancels it. In a notebook an
        interrupt only ends the waiting: the job runs on.

        SIGTERM, unless the program handles it, stops the job in the same way, and then ends the program by
        SystemExit with 143.

        Args:
            timeout: Seconds; None: no limit.

        Returns:
            True if the job has ended well, False if it has not ended within `timeout`.

        Raises:
            JobFailedError: The job has failed, or another driver has taken it over.
        """
        try:
            with plain_interrupts(), termination_raises():
                if not self._run.ended.wait(timeout):
                    return False
        except (KeyboardInterrupt, Terminated):
            if kernel_shell() is None:
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
        return self._run.ask(
            CoordinatorDriver.checkpoint, timeout, on_timeout="the checkpoint was not complete"
        )

    def savepoint(self, path: str | os.PathLike[str], timeout: float | None = None) -> str:
        """Take a checkpoint now, and write it as a savepoint; the job runs on.

        A savepoint is a directory of its own: it needs neither this job nor its checkpoint directory, and
        anybody can read it. All output up to it is committed. Needs pyarrow (`crosscut[parquet]`).

        Args:
            path: A directory that is not there yet, or is empty, or a URL that fsspec knows, such as
                "s3://bucket/monday".
            timeout: Seconds; None: no limit.

        Returns:
            The path.

        Raises:
            CheckpointError: No checkpoint could be had, or it was not written within `timeout`.
            StoreError: It can't be written; nothing is left of it.
            StateError: A class in the state can't be imported on the driver.
        """
        from crosscut.savepoints.folder import check_free
        from crosscut.savepoints.writing import write_savepoint

        directory = os.fspath(path)
        check_free(path)

        def write(checkpoint: CheckpointCompleted) -> None:
            store = self._run.store
            claim = claims_in([entry for _, entry in store.tail(1)])[-1]
            files = self.write_files(directory)
            write_savepoint(directory, checkpoint, claim, store.read_part, write_files=files)

        self._run.ask(
            lambda driver: driver.savepoint(write), timeout, on_timeout="the savepoint was not written"
        )
        return directory

    def values(self, uid: str, state: str = "") -> dict[Any, Any]:
        """Return the value of each key of operator `uid`, of all tasks, in the newest completed checkpoint.

        That is one moment for all keys, about a checkpoint interval ago. The job is not held up: its state is
        read from the checkpoint store. It also answers when the job has ended.

        Args:
            uid: The name of a count, sum, reduce, aggregate or process.
            state: Of a process: which of its states. Of a MapState a value is the dict of its entries.

        Raises:
            CheckpointError: No checkpoint is complete yet.
            FlowError: The flow has no such operator, or it has no such keyed state.
            StateError: A class in the state can't be imported here.
            StoreError: The checkpoint can't be read.
        """
        return self._run.values(uid, state)

    def last_checkpoint(self) -> tuple[CheckpointCompleted, EpochClaimed]:
        """Return the last checkpoint of a job that has ended well, and the claim that it is of.

        Raises:
            CheckpointError: There is none whose output is committed.
        """
        end = self._run.end
        if end is None or end.outcome not in ("stopped", "finished") or end.cause is not None:
            why = end.cause.message if end is not None and end.cause is not None else ""
            raise CheckpointError(
                f"job {self._name!r} has ended ({self.status}) without a last checkpoint whose output is "
                f"committed, so no savepoint was written{': ' if why else ''}{why}"
            )
        tail = [entry for _, entry in self._run.store.tail(1)]
        checkpoint = [entry for entry in tail if isinstance(entry, CheckpointCompleted)][-1]
        return checkpoint, claims_in(tail)[-1]

    def write_files(self, path: str) -> WriteFiles:
        """Return what writes the files of a savepoint of this job at `path`: a process without its secret."""
        from crosscut.savepoints.child import files_by_child

        return files_by_child(path, absolute(self._checkpoint_dir), self._run.packed_graph)

    def read_part(self, part: Part) -> bytes:
        """Return the verified bytes of a part of a checkpoint.

        Raises:
            StoreError: It is damaged, or can't be read.
        """
        return self._run.store.read_part(part)

    def _last_as_savepoint(self, directory: str) -> None:
        from crosscut.savepoints.writing import write_savepoint

        files = self.write_files(directory)
        write_savepoint(directory, *self.last_checkpoint(), self.read_part, write_files=files)

    def stop(self, timeout: float | None = None, *, savepoint: str | os.PathLike[str] | None = None) -> bool:
        """Take a last checkpoint, commit it, and end; the next start resumes from there.

        If that checkpoint can't be completed within `checkpoint_timeout`, or something fails meanwhile, the
        job ends without it: nothing is lost, and the next start goes on from the newest checkpoint that is
        complete. If it is complete, but its output can't be committed, the job ends all the same, and the
        next start commits it. In both cases a RuntimeWarning, the journal and `report().cause` say why,
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
            StoreError: There is something at `savepoint` already: the job runs on. Or it can't be written.
        """
        if savepoint is not None:
            from crosscut.savepoints.folder import check_free

            check_free(savepoint)
        self._run.post(StopRequested())
        has_ended = self._run.ended.wait(timeout)
        if has_ended:
            self._raise_if_failed()
            if savepoint is not None:
                self._last_as_savepoint(os.fspath(savepoint))
        return has_ended

    def restart(self) -> None:
        """Have the job go back to its newest checkpoint, and make all of its tasks anew; returns at once.

        As after a failure, but that it doesn't count as one: workers stay, whatever they hold in memory is
        given up, and read again, sources and sinks are opened again. A job whose records don't flow at the
        moment, because it starts, stops or fails over, is left alone.

        Raises:
            CheckpointError: The job has ended.
        """
        if self._run.ended.is_set():
            raise CheckpointError(f"job {self._name!r} has ended ({self.status}): start the flow again")
        self._run.post(RestartRequested())

    def cancel(self) -> None:
        """End now, without a last checkpoint; the next start resumes from the newest one."""
        self._run.cancel()

    def state(self, uid: str, state: str = "") -> DataFrame:
        """Return the state of an operator in the newest completed checkpoint as a Spark DataFrame.

        See `crosscut.spark.register` for its columns. Spark reads the checkpoint each time it needs it:
        persist the DataFrame if it has to outlive the checkpoint.

        Args:
            uid: Of the operator: its name.
            state: Of a process: which of its states.

        Raises:
            AnalysisException: Of PySpark, at once: there is no such state, or no checkpoint yet.
        """
        from crosscut.spark.data.crosscut_format import frame

        return frame(absolute(self._checkpoint_dir), uid, state)

    def result(self, sink: Sink[Any] | str) -> DataFrame:
        """Return what a file sink has committed so far as a Spark DataFrame.

        Args:
            sink: The sink that the flow was written with, or its name. One of `crosscut.files.write_jsonl`,
                `write_text` or `write_parquet`, or `crosscut.spark.table`.

        Raises:
            FlowError: The flow has no such sink.
            AnalysisException: Of PySpark, at once: it can't be read.
        """
        from crosscut.spark.data.crosscut_format import frame

        return frame(absolute(self._checkpoint_dir), self._run.sink_uid(sink))

    # How it runs.

    def begin(self, context: RunContext, seeing: Seeing, released: Callable[[], None]) -> Job:
        """Start, and return once the job owns its checkpoint directory.

        Args:
            released: Called at the end, when the job needs the cluster no more.

        Raises:
            CrosscutError: The job can't start; nothing has been changed.
        """
        self._seeing = seeing
        self._run.start(context, seeing, released)
        if self._run.end is not None and self._run.end.outcome in ("failed", "fenced"):
            try:
                self._raise_if_failed()
            except JobFailedError as failure:
                # Nothing has run: what is wrong is for the caller to tell apart.
                if isinstance(failure.__cause__, CrosscutError):
                    raise failure.__cause__ from None
                raise
        return self

    def _interrupted(self) -> None:
        try:
            self._run.post(StopRequested())
            if not self._run.ended.wait(STOP_ON_INTERRUPT_S):
                warnings.warn(
                    f"job {self._name!r} has not stopped within {STOP_ON_INTERRUPT_S:g} s, and ends without "
                    f"a last checkpoint; the next start resumes from the newest one",
                    RuntimeWarning,
                    stacklevel=3,
                )
                self.cancel()
        except KeyboardInterrupt:
            self.cancel()

    def _raise_if_failed(self) -> None:
        end = self._run.end
        if end is None or end.outcome not in ("failed", "fenced"):
            if end is not None and end.cause is not None:
                warnings.warn(f"job {self._name!r}: {end.cause.message}", RuntimeWarning, stacklevel=3)
            return
        raise failure_of(self._name, end, self._run.error)
