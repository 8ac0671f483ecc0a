"""One run of a batch as one Spark job: a stage of tasks, a shuffle of parcels, a stage, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

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
from crosscut.spark.cluster.workers import STOPPED, bytes_of, python_of_this_program, why_lost


class BatchJobs:
    """Runs batches of one job in Spark; see `Jobs`.

    Args:
        group: Begins the names of groups of Spark jobs, and names the job in the processes that Spark has.
        name: Of the flow, for Spark's own pages.
        stages: What to call each stage there.
    """

    def __init__(
        self,
        context: SparkContext,
        *,
        group: str,
        name: str,
        parallelism: int,
        packed_graph: bytes,
        stages: list[str],
    ) -> None:
        self._context = context
        self._group = group
        self._name = name
        self._parallelism = parallelism
        self._stages = stages
        conf = context.getConf()
        self._tries = tries_of(context.master or "", conf.get)
        self._packed = packed_graph
        # Made by the first batch: Spark needs some time for them.
        self._graph: Broadcast[bytes] | None = None
        self._seed: RDD[int] | None = None
        # By name; a dict, whose changes are one operation each.
        self._running: dict[str, None] = {}

    def run(self, name: str, orders: Sequence[Sequence[StageOrder]], description: str) -> Iterator[bytes]:
        """See `Jobs.run`. What it raises is PySpark's."""
        context = self._context
        if context._jvm is None or context._jsc is None:
            raise WorkersError(f"Spark can't run the batch: {STOPPED}")
        # One for each run: a run that is given up late must not take another one with it.
        context.setJobGroup(f"{self._group}-{name}", description, interruptOnCancel=True)
        context.setLocalProperty("callSite.short", f"crosscut: {self._name}")
        with python_of_this_program(context):
            # Here the RDDs are made in the JVM, and take note of the interpreter.
            jrdd = self._planned(orders)
        self._running[name] = None
        try:
            served = context._jvm.PythonRDD.collectAndServe(jrdd.rdd())
            with results_of(served, NoOpSerializer()) as results:
                yield from results
        finally:
            self._running.pop(name, None)

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
        job, graph, tries = self._group, self._broadcast(), self._tries

        def run(index: int, seed: Iterable[Any]) -> Iterator[Routed]:
            for _ in seed:
                """Spark's to read."""
            order = _ordered(orders[index], tries)
            said = run_partition(job, lambda: graph.value, order, ())
            return tried(said, order.vertices, _attempt_number(), tries)

        return run

    def _later(self, orders: Sequence[StageOrder]) -> Callable[[int, Iterable[Routed]], Iterator[Routed]]:
        job, graph, tries = self._group, self._broadcast(), self._tries

        def run(index: int, routed: Iterable[Routed]) -> Iterator[Routed]:
            parcels = (parcel for _, parcel in routed)
            order = _ordered(orders[index], tries)
            said = run_partition(job, lambda: graph.value, order, parcels)
            return tried(said, order.vertices, _attempt_number(), tries)

        return run

    def _broadcast(self) -> Broadcast[bytes]:
        if self._graph is None:
            self._graph = self._context.broadcast(self._packed)
        return self._graph

    def cancel(self, name: str = "") -> None:
        """See `Jobs.cancel`."""
        for one in [name] if name else list(self._running):
            # If Spark is gone already, so is the run.
            with suppress(Py4JError, OSError):
                if self._context._jsc is not None:
                    self._context.cancelJobGroup(f"{self._group}-{one}")

    def lost(self) -> str:
        """See `Jobs.lost`."""
        return why_lost(self._context)

    def close(self) -> None:
        """See `Jobs.close`."""
        # If Spark is gone already, so are its files.
        with suppress(Py4JError, OSError):
            if self._graph is not None:
                self._graph.destroy()


def _encoded(routed: Iterable[Routed]) -> Iterator[bytes]:
    return (encoded_result(index, parcel) for index, parcel in routed)


def _same(target: int) -> int:
    return target


def _ordered(order: StageOrder, tries: int) -> StageOrder:
    return replace(order, deaths=deaths_before(_attempt_number(), tries))


def _attempt_number() -> int:
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0
