"""DataFrames into the checkpoint store, by Spark jobs, before a job claims its first epoch.

Each attempt of a Spark task writes files of its own and says which; Spark gives the driver the word of one
attempt for each partition. What others have written, or a Spark job that died, nobody ever refers to: it is
swept like every part without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from crosscut.connectors.files.staged_rows import empty_split, split_of, staged
from crosscut.contracts.connectors import Split
from crosscut.driver.job_spec import assignments
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.snapshots import Part
from crosscut.protocol.splits.staged import BEFORE_ALL
from crosscut.spark.cluster.session import is_own
from crosscut.spark.cluster.workers import python_of_this_program
from crosscut.spark.data.dataframes import DataFrameSource

FAILURES_MAX = 4
"""Attempts of Spark tasks, all together."""

_LOOK_S = 0.5
STAGING_TIMEOUT_MS = 24 * 3_600 * 1_000
"""How long DataFrames may take to be staged: a job that hangs in Spark ends at last."""

COLUMNS = "number int, path string, size_bytes long, sha256 string, rows long"


def staging_timeout_ms(graph: JobGraph) -> int:
    """Return how long the sources of `graph` may take to say what there is to read; 0: as long as others."""
    stages = any(
        vertex.source is not None and isinstance(vertex.source.source, DataFrameSource)
        for vertex in graph.vertices
    )
    return STAGING_TIMEOUT_MS if stages else 0


class Staging:
    """The Spark jobs that stage the DataFrames of one job.

    Args:
        context: Where the job runs.
        name: Of the flow.
        group: Of Spark jobs; not shared.
        store_url: Of the checkpoint store, absolute.
    """

    def __init__(self, context: SparkContext, *, name: str, group: str, store_url: str) -> None:
        self._context = context
        self._name = name
        self._group = group
        self._store_url = store_url

    def assignments(self, graph: JobGraph, epoch: Epoch) -> tuple[SplitAssignment, ...]:
        """Deal out the splits of every source, having staged those that have to be. Blocks.

        Raises:
            ConnectorError: As of `crosscut.driver.job_spec.assignments`, or a DataFrame can't be
            staged.
        """

        def discover(vertex: Vertex, source: Any) -> Sequence[Split]:
            if isinstance(source, DataFrameSource):
                return self._staged(vertex.vertex_id, source.df, epoch)
            found: Sequence[Split] = source.splits(graph.parallelism)
            return found

        return assignments(graph, discover)

    def cancel(self) -> None:
        """End what is under way, or about to be; its result is not needed."""
        if self._context._jsc is not None:
            # If Spark is gone, so is its job. Its plan may still be made, or the next DataFrame's.
            with suppress(Py4JError, OSError):
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def _staged(self, uid: str, df: DataFrame, epoch: Epoch) -> list[Split]:
        store_url = self._store_url

        def stage(batches: Iterator[Any]) -> Iterator[Any]:
            return files_of(batches, store_url, VertexId(uid), epoch)

        LOGGER.info("job %r: stages the DataFrame of source %r", self._name, uid)
        try:
            self._context.setJobGroup(
                self._group, f"Crosscut: {self._name}, stages source {uid!r}", interruptOnCancel=True
            )
            with python_of_this_program(self._context):
                files = map_in_arrow(df, stage, COLUMNS)
            with _bounded(self._context, self._group):
                found = files.collect()
        except Exception as error:
            raise ConnectorError(
                f"source {uid!r}: the DataFrame can't be staged: {_first_lines(error)}", operator=uid
            ) from error
        finally:
            # The thread may be used for somebody else's Spark jobs.
            self._context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        rows = sum(row.rows for row in found)
        LOGGER.info("job %r: source %r: %s rows in %s files", self._name, uid, rows, len(found))
        splits = [
            split_of(number, Part(row.path, row.size_bytes, row.sha256, "", BEFORE_ALL), row.rows)
            for number, row in enumerate(sorted(found, key=lambda row: row.number))
        ]
        return splits or [empty_split()]


def files_of(
    batches: Iterator[Any],
    store_url: str,
    vertex: VertexId,
    epoch: Epoch,
    number: CheckpointId = BEFORE_ALL,
) -> Iterator[Any]:
    """Stage the partition of this Spark task; yield what was written, as batches of `COLUMNS`.

    Args:
        number: What the files are kept with.
    """
    import pyarrow

    context = TaskContext.get()
    task = TaskId(vertex, context.partitionId() if context is not None else 0)
    for part, rows in staged(batches, store_url=store_url, task=task, epoch=epoch, number=number):
        yield pyarrow.RecordBatch.from_pydict(
            {
                "number": pyarrow.array([task.index], pyarrow.int32()),
                "path": [part.path],
                "size_bytes": [part.size_bytes],
                "sha256": [part.sha256],
                "rows": [rows],
            }
        )


@contextmanager
def _bounded(context: SparkContext, group: str) -> Iterator[None]:
    """Give Spark jobs up whose Spark tasks fail again and again.

    A Spark that was started here replaces workers without end, and so every Spark task.
    """
    if not is_own(context):
        yield
        return
    over = Event()
    watch = Thread(target=_give_up, args=(context, group, over), daemon=True)
    watch.start()
    try:
        yield
    except Exception as error:
        if over.is_set():
            raise ConnectorError(
                f"{FAILURES_MAX} attempts of its Spark tasks have failed; see Spark's log and UI "
                f"({context.uiWebUrl or 'off'}) for the cause"
            ) from error
        raise
    finally:
        over.set()


def _give_up(context: SparkContext, group: str, over: Event) -> None:
    tracker = context.statusTracker()
    while not over.wait(_LOOK_S):
        jobs = [tracker.getJobInfo(one) for one in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(one) for job in jobs if job is not None for one in job.stageIds]
        if sum(stage.numFailedTasks for stage in stages if stage is not None) >= FAILURES_MAX:
            over.set()
            context.cancelJobGroup(group)


def map_in_arrow(df: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> DataFrame:
    """Do as `DataFrame.mapInArrow`, which asks for pandas on its way, and needs none."""
    call: Any = UserDefinedFunction(
        function,
        returnType=schema,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    )
    columns = call(*[df[f"`{name.replace('`', '``')}`"] for name in df.columns])
    java: Any = df
    return DataFrame(java._jdf.mapInArrow(columns._jc, False, None), df.sparkSession)


def _first_lines(error: Exception) -> str:
    """Return what Spark says, without the stack of Java."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    return f"{type(error).__name__}: {' '.join(lines[:6])[:1_000]}"
