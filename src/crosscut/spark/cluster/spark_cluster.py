"""Spark as the cluster of a job: its tasks run in Spark tasks, started from threads of this process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext

from crosscut.driver.cluster import ClusterRun
from crosscut.errors import WorkersError
from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.graph.specs import JobGraph
from crosscut.microbatch.ports import RunOutcome
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.events import WorkersEnded
from crosscut.protocol.messages import SplitAssignment
from crosscut.spark.cluster import session
from crosscut.spark.cluster.batch_job import BatchJobs
from crosscut.spark.cluster.lost_executors import give_up_if_lost
from crosscut.spark.cluster.workers import run_workers, why_lost
from crosscut.spark.data.staging import Staging
from crosscut.worker.worker import WorkerPlan

LOGGER = logging.getLogger("crosscut")

END_TIMEOUT_S = 5.0
"""How long the end of a run waits for its Spark jobs, which have been cancelled."""


class SparkCluster:
    """See `Cluster`. It runs one job.

    Args:
        store_url: Of the checkpoint store, absolute: DataFrames are staged there.
        pool: Of Spark's fair scheduler, in which all Spark jobs of the job run; None: the default one.
    """

    def __init__(self, context: SparkContext, store_url: str, pool: str | None = None) -> None:
        self._context = context
        self._pool = pool
        self._store_url = store_url
        self._slots = session.slots(context)
        self._lock = threading.Lock()
        self._runs: dict[str, _Running] = {}
        # Number of the newest run that has ended: a thread that is late must not start anything for it.
        self._ended = 0

    @property
    def slots(self) -> int | None:
        """See `Cluster.slots`."""
        return self._slots

    def discover(self, run: ClusterRun, graph: JobGraph, epoch: Epoch) -> tuple[SplitAssignment, ...]:
        """See `Cluster.discover`."""
        return self._running(run).staging.assignments(graph, epoch)

    def submit(self, run: ClusterRun, plan: WorkerPlan, ended: Callable[[WorkersEnded], None]) -> None:
        """See `Cluster.submit`."""

        def work() -> None:
            end = WorkersEnded("the thread that waited for Spark has ended")
            try:
                end = run_workers(self._context, run, plan)
            finally:
                ended(end)

        self._running(run).start(f"crosscut-spark-{run.group}", work)

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """See `Cluster.replace`. A killed attempt does not count as a failure of the Spark task."""
        with self._lock:
            groups = list(self._runs)
        threading.Thread(target=self._kill, args=(attempt, groups), daemon=True).start()

    def run_batch(
        self,
        run: ClusterRun,
        batch: str,
        orders: Sequence[Sequence[StageOrder]],
        description: str,
        returned: Callable[[bytes], None],
        ended: Callable[[RunOutcome], None],
    ) -> None:
        """See `Cluster.run_batch`."""
        running = self._running(run)

        def work() -> None:
            outcome = RunOutcome("the thread that waited for Spark has ended")
            try:
                for data in running.batches.run(batch, orders, description):
                    returned(data)
                outcome = RunOutcome()
            except Exception as error:  # noqa: BLE001 - whatever it is, the batches have to know
                outcome = RunOutcome(str(error) or type(error).__name__)
                outcome = replace(outcome, lost=why_lost(self._context))
            finally:
                ended(outcome)

        running.start(f"crosscut-batch-{batch}", work)

    def cancel(self, run: ClusterRun, batch: str) -> None:
        """See `Cluster.cancel`."""
        with self._lock:
            running = self._runs.get(run.group)
        if running is not None:
            threading.Thread(target=running.batches.cancel, args=(batch,), daemon=True).start()

    def end(self, run: ClusterRun, ended: Callable[[], None]) -> None:
        """See `Cluster.end`."""
        with self._lock:
            self._ended = max(self._ended, run.number)
            running = self._runs.pop(run.group, None) or self._new(run)
        threading.Thread(
            target=partial(running.end, ended), name=f"crosscut-end-{run.group}", daemon=True
        ).start()

    def _running(self, run: ClusterRun) -> _Running:
        with self._lock:
            if run.number <= self._ended:
                raise WorkersError(f"job {run.name!r}: Spark is asked for an engine run that has ended")
            if run.group not in self._runs:
                self._runs[run.group] = self._new(run)
            return self._runs[run.group]

    def _new(self, run: ClusterRun) -> _Running:
        return _Running(self._context, run, self._store_url, self._pool)

    def _kill(self, attempt: AttemptId, groups: Sequence[str]) -> None:
        spark = self._context._jsc
        try:
            if spark is None:
                return
            spark.sc().killTaskAttempt(attempt, True, "Crosscut: the worker is silent")
            # An executor that is gone kills nothing, and Spark would wait for it.
            for group in groups:
                if lost := give_up_if_lost(self._context, group, attempt):
                    LOGGER.warning("%s; Spark was told to start its tasks elsewhere", lost)
        except (Py4JError, OSError):
            # Best effort by contract: the attempt is gone, or Spark is. Epochs keep it harmless.
            return


class _Running:
    """What Spark runs for one engine run, and the threads that wait for it."""

    def __init__(
        self, context: SparkContext, run: ClusterRun, store_url: str, pool: str | None = None
    ) -> None:
        self._context = context
        self._pool = pool
        self._group = run.group
        # What is cancelled there never runs again, so each engine run has its own.
        self.staging = Staging(context, name=run.name, group=f"{run.group}-staging", store_url=store_url)
        self.batches = BatchJobs(context, run)
        self._threads: set[threading.Thread] = set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Do `work`, which waits for a Spark job, in a thread."""

        def run() -> None:
            try:
                if self._pool is not None:
                    # Spark knows it by the thread that submits, which is not the one of the caller.
                    self._context.setLocalProperty("spark.scheduler.pool", self._pool)
                work()
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def end(self, ended: Callable[[], None]) -> None:
        """Cancel whatever still runs, and wait for it."""
        try:
            self.staging.cancel()
            self.batches.end()
            self._cancel_workers()
            threads = list(self._threads)
            ends_s = time.monotonic() + END_TIMEOUT_S
            for thread in threads:
                thread.join(max(0.0, ends_s - time.monotonic()))
            self.batches.close()
        finally:
            ended()

    def _cancel_workers(self) -> None:
        # If Spark is gone already, so are the workers.
        with suppress(Py4JError, OSError):
            if self._context._jsc is not None:
                # A thread that is late may not have submitted them yet. Nothing else runs in this group.
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
