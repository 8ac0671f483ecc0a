"""Workers as plain Spark tasks (not barrier mode): Spark places them, watches them, replaces them.

Measured: a killed Python worker is replaced in 0.3 to 0.4 s with the others still alive; in barrier
mode the whole stage would die with it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, TaskContext
from pyspark.serializers import BatchedSerializer, ChunkedStream, CPickleSerializer, NoOpSerializer
from pyspark.util import local_connect_and_auth

from crosscut.errors import WorkersError
from crosscut.foundation.ids import AttemptId, WorkerIndex
from crosscut.protocol.events import WorkersEnded
from crosscut.spark.cluster import gateway
from crosscut.spark.cluster.session import is_local
from crosscut.spark.cluster.versions import results_of
from crosscut.worker.worker import WorkerPlan
from crosscut.worker.worker_process import run_worker

if TYPE_CHECKING:
    # A worker loads this module, and nothing of the driver.
    from crosscut.driver.cluster import ClusterRun

GRAPH_BYTES_MAX = 256 * 1024
"""Of a graph that travels with the plan, once for each worker: Spark complains of tasks above 1,000 KiB."""

STOPPED = "the SparkContext has been stopped"

_CHUNK_BYTES = 8 * 1024


def run_workers(context: SparkContext, run: ClusterRun, plan: WorkerPlan) -> WorkersEnded:
    """Run the workers as one Spark job, with one Spark task each; return why it is over. Blocks."""
    ended = WorkersEnded("every worker returned")
    try:
        if not (lost := why_lost(context)):
            with _graph_apart(context, plan) as (rest, graph_of):
                _collect(context, run, rest, graph_of)
    except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator has to know
        ended = WorkersEnded(_shortened(str(error)))
        lost = why_lost(context)
    return WorkersEnded(lost, is_final=True) if lost else ended


@contextmanager
def _graph_apart(
    context: SparkContext, plan: WorkerPlan
) -> Iterator[tuple[WorkerPlan, Callable[[WorkerPlan], bytes]]]:
    """Take a large graph out of the plan: a broadcast brings it once to each machine.

    Spark writes broadcasts to files (S1): the graph alone may be there, and is deleted with the job.
    """
    if len(plan.packed_graph) <= GRAPH_BYTES_MAX:
        yield plan, lambda received: received.packed_graph
        return
    broadcast = context.broadcast(plan.packed_graph)
    try:
        yield replace(plan, packed_graph=b""), lambda _: broadcast.value
    finally:
        # If Spark is gone already, so are its files.
        with suppress(Py4JError, OSError):
            broadcast.destroy()


def _collect(
    context: SparkContext, run: ClusterRun, plan: WorkerPlan, graph_of: Callable[[WorkerPlan], bytes]
) -> None:
    def work(index: int, plans: Iterable[WorkerPlan]) -> Iterable[bytes]:
        (received,) = plans
        task = TaskContext.get()
        attempt = AttemptId(task.taskAttemptId() if task is not None else 0)
        run_worker(replace(received, packed_graph=graph_of(received)), WorkerIndex(index), attempt)
        return ()

    description = f"Crosscut: {run.name}, {run.parallelism} workers"
    context.setJobGroup(run.group, description, interruptOnCancel=True)
    workers = _one_for_each(context, plan, run.parallelism).mapPartitionsWithIndex(work)
    with python_of_this_program(context):
        # Here the RDD is made in the JVM, and takes note of the interpreter.
        jrdd = bytes_of(workers)
    # What RDD.collect does, but for the name of the stage: that would be a line of this file.
    context.setLocalProperty("callSite.short", f"crosscut: {run.name}")
    served = _java(context).PythonRDD.collectAndServe(jrdd.rdd())
    with results_of(served, NoOpSerializer()) as results:
        for _ in results:
            """Workers return nothing: this waits for their end."""


def bytes_of(rdd: RDD[bytes], name: str = "") -> Any:
    """Return the RDD of the JVM for a new RDD of bytes, to be read with `NoOpSerializer`.

    By default PySpark unpickles the results of tasks on the driver: an attacker who had taken over a
    worker could run code there (S6).
    """
    rdd._bypass_serializer = True  # type: ignore[attr-defined]
    return rdd.setName(name)._jrdd if name else rdd._jrdd


def why_lost(context: SparkContext) -> str:
    """Return why this Spark can run nothing any more, or ""."""
    if context._jsc is None:
        return f"{STOPPED}; a new start goes on from the newest checkpoint"
    if gateway.is_gone(context):
        return (
            f"{gateway.GONE}: it was killed, or has crashed or run out of memory (it may have said so on "
            f"standard error); a new start makes a new one and goes on from the newest checkpoint"
        )
    return ""


def _java(context: SparkContext) -> Any:
    if context._jvm is None or context._jsc is None:
        raise WorkersError(f"Spark can't run the workers: {STOPPED}")
    return context._jvm


def _one_for_each(context: SparkContext, plan: WorkerPlan, count: int) -> RDD[WorkerPlan]:
    """Return an RDD of `count` partitions with `plan` in each.

    The plan holds the job's secret and the key of its TLS (S1), so it must not be in the closure: py4j logs
    the closure at DEBUG, as every command, and PySpark writes it to a file beyond a size that is a setting.
    `SparkContext.parallelize` goes through a file, too, unless Spark's I/O encryption is on; this is the
    way that it takes then, a local socket that serves one connection. Spark brings the content of a
    partition to its executor inside the Spark task, never through a file or a broadcast.
    """
    server = _java(context).PythonParallelizeServer(context._jsc.sc(), count)
    serializer: Any = BatchedSerializer(CPickleSerializer(), 1)  # type: ignore[no-untyped-call]
    file, connection = local_connect_and_auth(server.connInfo(), server.secret())
    with closing(connection):
        stream: Any = ChunkedStream(file, _CHUNK_BYTES)  # type: ignore[no-untyped-call]
        serializer.dump_stream([plan] * count, stream)
        stream.close()
    return RDD(server.getResult(), context, serializer)


_choosing_python = threading.Lock()


@contextmanager
def python_of_this_program(context: SparkContext) -> Iterator[None]:
    """Have a local Spark run our workers with this very interpreter.

    PySpark's default is the `python3` of the PATH, which is rarely that of a virtual environment or a
    notebook. What the program itself has Spark run is none of our business.
    """
    if not is_local(context):
        yield
        return
    with _choosing_python:
        before = context.pythonExec
        context.pythonExec = sys.executable
        try:
            yield
        finally:
            context.pythonExec = before


def _shortened(text: str) -> str:
    """Return the first lines of a Java error: the rest is stack."""
    return "\n".join(line for line in text.splitlines()[:4] if line.strip())[:2_000]
