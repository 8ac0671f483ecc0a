"""One run of a batch as one Spark job: a stage of tasks, a shuffle of parcels, a stage, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.core.broadcast import Broadcast
from pyspark.util import _load_from_socket

from crosscut.errors import WorkersError
from crosscut.spark.workers import STOPPED, python_of_this_program
from crosscut.worker.batch_process import run_partition
from crosscut.worker.parcels import Parcel
from crosscut.worker.stage import StageOrder

Routed = tuple[int, Parcel]


class BatchJobs:
    """Runs batches of one job in Spark.

    Args:
        job: Names this run of the job in the processes that Spark has.
        name: Of the flow, for Spark's own pages.
        stages: What to call each stage there.
    """

    def __init__(
        self,
        context: SparkContext,
        *,
        job: str,
        name: str,
        parallelism: int,
        packed_graph: bytes,
        stages: list[str],
    ) -> None:
        self._context = context
        self._job = job
        self._name = name
        self._parallelism = parallelism
        self._stages = stages
        self._graph: Broadcast[bytes] = context.broadcast(packed_graph)
        self._seed = context.parallelize(range(parallelism), parallelism)

    def run(self, orders: list[list[StageOrder]], group: str, description: str) -> Iterator[Routed]:
        """Run the orders, by stage and index; yield what each partition of the last stage says. Blocks.

        Raises:
            Exception: Of PySpark: the job has failed, or was cancelled.
        """
        context = self._context
        if context._jvm is None or context._jsc is None:
            raise WorkersError(f"Spark can't run the batch: {STOPPED}")
        context.setJobGroup(group, description, interruptOnCancel=True)
        context.setLocalProperty("callSite.short", f"crosscut: {self._name}")
        with python_of_this_program(context):
            # Here the RDDs are made in the JVM, and take note of the interpreter.
            last = self._planned(orders)
            jrdd = last._jrdd
        served = context._jvm.PythonRDD.collectAndServe(jrdd.rdd())
        with _load_from_socket(served, last._jrdd_deserializer) as results:
            yield from results

    def _planned(self, orders: list[list[StageOrder]]) -> RDD[Routed]:
        rdd: RDD[Routed] = self._seed.mapPartitionsWithIndex(self._first(orders[0]))
        rdd.setName(f"{self._name}: {self._stages[0]}")
        for stage, of_stage in enumerate(orders[1:], 1):
            rdd = rdd.partitionBy(self._parallelism, _same).mapPartitionsWithIndex(self._later(of_stage))
            rdd.setName(f"{self._name}: {self._stages[stage]}")
        return rdd

    def _first(self, orders: list[StageOrder]) -> Callable[[int, Iterable[Any]], Iterator[Routed]]:
        job, graph = self._job, self._graph

        def run(index: int, seed: Iterable[Any]) -> Iterator[Routed]:
            for _ in seed:
                """Spark's to read."""
            return run_partition(job, lambda: graph.value, orders[index], ())

        return run

    def _later(self, orders: list[StageOrder]) -> Callable[[int, Iterable[Routed]], Iterator[Routed]]:
        job, graph = self._job, self._graph

        def run(index: int, routed: Iterable[Routed]) -> Iterator[Routed]:
            parcels = (parcel for _, parcel in routed)
            return run_partition(job, lambda: graph.value, orders[index], parcels)

        return run

    def close(self) -> None:
        """Give back what Spark keeps for the job."""
        self._graph.destroy()


def _same(target: int) -> int:
    return target
