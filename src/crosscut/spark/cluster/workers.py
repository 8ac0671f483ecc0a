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
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, TaskContext
from pyspark.serializers import BatchedSerializer, ChunkedStream, CPickleSerializer, NoOpSerializer
from pyspark.util import local_connect_and_auth

from crosscut.errors import InternalError, WorkersError
from crosscut.foundation.ids import AttemptId, WorkerIndex
from crosscut.protocol.events import WorkersEnded
from crosscut.spark.cluster import gateway
from crosscut.spark.cluster.session import is_local
from crosscut.spark.cluster.versions import results_of
from crosscut.worker.worker import WorkerPlan
from crosscut.worker.worker_process import run_worker

GRAPH_BYTES_MAX = 256 * 1024
"""Of a graph that travels with the plan, once for each worker: Spark complains of tasks above 1,000 KiB."""

STOPPED = "the SparkContext has been stopped"

_CHUNK_BYTES = 8 * 1024


class SparkWorkers:
    """The workers of one job, as one Spark job with one Spark task per worker.

    Args:
        name: Of the flow, for Spark's own pages.
        group: Of Spark jobs; nobody else's.
        post: Takes WorkersEnded when the Spark job is over; called from another thread.
    """

    def __init__(
        self,
        context: SparkContext,
        *,
        name: str,
        parallelism: int,
        group: str,
        description: str,
        post: Callable[[WorkersEnded], None],
    ) -> None:
        self._context = context
        self._name = name
        self._parallelism = parallelism
        self._group = group
        self._description = description
        self._post = post
        self._plan: WorkerPlan | None = None
        self._thread: threading.Thread | None = None

    def provide(self, plan: WorkerPlan) -> None:
        """Say what the workers are to run; before the first `submit`."""
        self._plan = plan

    def submit(self) -> None:
        """Have Spark run the workers, in a thread of its own."""
        if self._plan is None:
            raise InternalError("workers submitted before their plan was made")
        name = f"crosscut-spark-{self._group}"
        self._thread = threading.Thread(target=self._run, args=(self._plan,), name=name, daemon=True)
        self._thread.start()

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """Have Spark end this attempt; a killed attempt does not count as a failure of the Spark task."""
        threading.Thread(target=self._kill, args=(attempt,), daemon=True).start()

    def _kill(self, attempt: AttemptId) -> None:
        spark = self._context._jsc
        try:
            if spark is not None:
                spark.sc().killTaskAttempt(attempt, True, "Crosscut: the worker is silent")
        except (Py4JError, OSError):
            # Best effort by contract: the attempt is gone, or Spark is. Epochs keep it harmless.
            return

    def end(self, timeout_s: float) -> None:
        """Wait for the workers to end by themselves, then have Spark end them. Blocks."""
        thread = self._thread
        if thread is None:
            return
        thread.join(timeout_s)
        if thread.is_alive() and self._context._jsc is not None:
            try:
                self._context.cancelJobGroup(self._group)
            except (Py4JError, OSError):
                # Spark is gone already, and the workers with it.
                return
            thread.join(timeout_s)

    def _run(self, plan: WorkerPlan) -> None:
        ended = WorkersEnded("every worker returned")
        try:
            if not (lost := why_lost(self._context)):
                with self._graph_apart(plan) as (rest, graph_of):
                    self._collect(rest, graph_of)
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator has to know
            ended = WorkersEnded(_shortened(str(error)))
            lost = why_lost(self._context)
        self._post(WorkersEnded(lost, is_final=True) if lost else ended)

    @contextmanager
    def _graph_apart(self, plan: WorkerPlan) -> Iterator[tuple[WorkerPlan, Callable[[WorkerPlan], bytes]]]:
        """Take a large graph out of the plan: a broadcast brings it once to each machine.

        Spark writes broadcasts to files (S1): the graph alone may be there, and is deleted with the job.
        """
        if len(plan.packed_graph) <= GRAPH_BYTES_MAX:
            yield plan, lambda received: received.packed_graph
            return
        broadcast = self._context.broadcast(plan.packed_graph)
        try:
            yield replace(plan, packed_graph=b""), lambda _: broadcast.value
        finally:
            # If Spark is gone already, so are its files.
            with suppress(Py4JError, OSError):
                broadcast.destroy()

    def _collect(self, plan: WorkerPlan, graph_of: Callable[[WorkerPlan], bytes]) -> None:
        def work(index: int, plans: Iterable[WorkerPlan]) -> Iterable[bytes]:
            (received,) = plans
            task = TaskContext.get()
            attempt = AttemptId(task.taskAttemptId() if task is not None else 0)
            run_worker(replace(received, packed_graph=graph_of(received)), WorkerIndex(index), attempt)
            return ()

        self._context.setJobGroup(self._group, self._description, interruptOnCancel=True)
        workers = _one_for_each(self._context, plan, self._parallelism).mapPartitionsWithIndex(work)
        with python_of_this_program(self._context):
            # Here the RDD is made in the JVM, and takes note of the interpreter.
            jrdd = bytes_of(workers)
        # What RDD.collect does, but for the name of the stage: that would be a line of this file.
        self._context.setLocalProperty("callSite.short", f"crosscut: {self._name}")
        served = _java(self._context).PythonRDD.collectAndServe(jrdd.rdd())
        with results_of(served, NoOpSerializer()) as results:
            for _ in results:
                """Workers return nothing: this waits for their end."""


def bytes_of(rdd: RDD[bytes], name: str = "") -> Any:
    """Return the RDD of the JVM for a new RDD of bytes, to be read with `NoOpSerializer`.

    By default PySpark pickles what tasks return, and unpickles it on the driver: whoever had taken over a
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
