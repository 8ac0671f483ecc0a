"""One run of a batch as one Spark job: a stage of tasks, a shuffle of shuffle blocks, a stage, and so on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, TaskContext
from pyspark.core.broadcast import Broadcast
from pyspark.serializers import NoOpSerializer

from crosscut.errors import WorkersError
from crosscut.microbatch.batch_process import run_partition
from crosscut.microbatch.ports import Routed
from crosscut.microbatch.shuffle import encoded_result
from crosscut.microbatch.stage import StageOrder
from crosscut.protocol.microbatch.retry_policy import deaths_before
from crosscut.spark.cluster.batch_retries import tried, tries_of
from crosscut.spark.cluster.versions import results_of
from crosscut.spark.cluster.workers import STOPPED, bytes_of, python_of_this_program

if TYPE_CHECKING:
    # A worker loads this module, and nothing of the driver.
    from crosscut.driver.cluster import ClusterRun


class BatchJobs:
    """Runs the batches of one engine run in Spark. Any thread may call any of it."""

    def __init__(self, context: SparkContext, run: ClusterRun) -> None:
        self._context = context
        self._group = run.group
        self._name = run.name
        self._parallelism = run.parallelism
        self._stages = run.stages
        self._packed = run.packed_graph
        # Made by the first batch: Spark needs some time for them.
        self._graph: Broadcast[bytes] | None = None
        self._seed: RDD[int] | None = None
        # By name.
        self._running: set[str] = set()
        self._is_ended = False
        self._lock = threading.Lock()

    def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
        """Run the orders, by stage and index; yield the result of each partition of the last stage. Blocks.

        Args:
            name: Of the run, which no other has.

        Raises:
            Exception: The run has failed, or was cancelled; PySpark's.
        """
        context = self._context
        if context._jvm is None or context._jsc is None:
            raise WorkersError(f"Spark can't run the batch: {STOPPED}")
        with self._lock:
            if self._is_ended:
                raise WorkersError(f"job {self._name!r}: Spark is asked for a batch after the end")
            # Before it is planned, which takes time: it may be cancelled meanwhile.
            self._running.add(name)
        try:
            yield from self._collected(context, name, orders, description)
        finally:
            with self._lock:
                self._running.discard(name)

    def _collected(
        self, context: SparkContext, name: str, orders: Sequence[Sequence[StageOrder]], description: str
    ) -> Iterator[bytes]:
        # One for each run: a run that is given up late must not take another one with it.
        context.setJobGroup(f"{self._group}-{name}", description, interruptOnCancel=True)
        context.setLocalProperty("callSite.short", f"crosscut: {self._name}")
        with python_of_this_program(context):
            # Here the RDDs are made in the JVM, and take note of the interpreter.
            jrdd = self._planned(orders)
        jvm: Any = context._jvm
        served = jvm.PythonRDD.collectAndServe(jrdd.rdd())
        with results_of(served, NoOpSerializer()) as results:
            yield from results

    def _planned(self, orders: Sequence[Sequence[StageOrder]]) -> Any:
        if self._seed is None:
            self._seed = self._context.parallelize(range(self._parallelism), self._parallelism)
        rdd: RDD[Routed] = self._seed.mapPartitionsWithIndex(self._first(orders[0]))
        for stage, of_stage in enumerate(orders[1:], 1):
            rdd.setName(f"{self._name}: {self._stages[stage - 1]}")
            rdd = rdd.partitionBy(self._parallelism, _same).mapPartitionsWithIndex(self._later(of_stage))
        # In the same stage of the Spark job.
        return bytes_of(rdd.mapPartitions(_encoded), f"{self._name}: {self._stages[-1]}")

    def _first(self, orders: Sequence[StageOrder]) -> Callable[[int, Iterable[Any]], Iterator[Routed]]:
        job, graph, tries = self._group, self._broadcast(), self._tries()

        def run(index: int, seed: Iterable[Any]) -> Iterator[Routed]:
            for _ in seed:
                """Spark's to read."""
            order = _ordered(orders[index], tries)
            outcome = run_partition(job, lambda: graph.value, order, ())
            return tried(outcome, order.vertices, _attempt_number(), tries)

        return run

    def _later(self, orders: Sequence[StageOrder]) -> Callable[[int, Iterable[Routed]], Iterator[Routed]]:
        job, graph, tries = self._group, self._broadcast(), self._tries()

        def run(index: int, routed: Iterable[Routed]) -> Iterator[Routed]:
            shuffle_blocks = (shuffle_block for _, shuffle_block in routed)
            order = _ordered(orders[index], tries)
            outcome = run_partition(job, lambda: graph.value, order, shuffle_blocks)
            return tried(outcome, order.vertices, _attempt_number(), tries)

        return run

    def _tries(self) -> int:
        return tries_of(self._context.master or "", self._context.getConf().get)

    def _broadcast(self) -> Broadcast[bytes]:
        if self._graph is None:
            self._graph = self._context.broadcast(self._packed)
        return self._graph

    def cancel(self, name: str) -> None:
        """Give a run up, best effort. Blocks."""
        # If Spark is gone already, so is the run.
        with suppress(Py4JError, OSError):
            if self._context._jsc is not None:
                # Its Spark job may not be submitted yet.
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(f"{self._group}-{name}")

    def end(self) -> None:
        """Give all runs up, best effort; no other follows. Blocks."""
        with self._lock:
            self._is_ended = True
            running = sorted(self._running)
        for name in running:
            self.cancel(name)

    def close(self) -> None:
        """Give back what is kept for the run. Blocks."""
        # If Spark is gone already, so are its files.
        with suppress(Py4JError, OSError):
            if self._graph is not None:
                self._graph.destroy()


def _encoded(routed: Iterable[Routed]) -> Iterator[bytes]:
    return (encoded_result(index, shuffle_block) for index, shuffle_block in routed)


def _same(target: int) -> int:
    return target


def _ordered(order: StageOrder, tries: int) -> StageOrder:
    return replace(order, deaths=deaths_before(_attempt_number(), tries))


def _attempt_number() -> int:
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0
