"""Backfill: the state that a flow has after its history, for a continuous job to begin with."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from crosscut.contracts.settings import Settings
from crosscut.events import JobEvent
from crosscut.foundation.urls import path_text

if TYPE_CHECKING:
    from crosscut.flow.flow import Flow


def backfill(
    flow: Flow,
    df: Any,
    savepoint: str | os.PathLike[str],
    *,
    source: str | None = None,
    records: Literal["rows", "dicts", "tuples", "values", "arrow"] = "rows",
    record: Callable[[Any], Any] | None = None,
    output: bool = False,
    watermark: Any = None,
    settings: Settings | None = None,
    spark: Any = None,
    on_event: Callable[[JobEvent], object] | None = None,
) -> str:
    """Run `flow` over a bounded DataFrame, as Spark jobs, and write its state as a savepoint.

    The continuous job begins with it: `Settings(restore_from=savepoint)`. The rows take the place of one
    source; its other sources have nothing, and none comes to its end: no final result is said, no window or
    timer of event time fires, since the live input may still add to them. The job that begins with the
    savepoint reads all its sources from where they begin by themselves. Returns when the savepoint is
    complete.

    If the program dies meanwhile, call it again with the same arguments: it goes on from its last checkpoint,
    with the rows as they were staged, and returns at once if the savepoint is there. What is there of a
    savepoint that it died writing has to be removed first.

    Args:
        df: A bounded DataFrame; see `crosscut.spark.dataframe`.
        savepoint: A directory that is not there yet, or is empty, or a URL that fsspec knows.
        source: The name (uid) of the source that the rows stand for. Default: the only one.
        records: What becomes of a row, as in `crosscut.spark.dataframe`.
        record: Makes of that what the source gives. Default: it is that already.
        output: False: sinks write nothing, and functions of `for_each` are not called. True: they get what
            the history gives, exactly once, and the job that follows adds to it.
        watermark: No record of the live input is older: windows that end before are closed, and timers
            called, once all rows are read; what they say goes where other output goes. Milliseconds since
            1970, or a `datetime` with a time zone. None: all stay open, for the live job.
        settings: `engine` and `trigger` are chosen here. Its checkpoint_dir is the backfill's own; default:
            checkpoints/, the flow's name and ".backfill". The savepoint can be restored at any parallelism.
        spark: Default: that of the DataFrame.
        on_event: See `Job.on_event`.

    Returns:
        The savepoint.

    Raises:
        FlowError: There is no such source, or several and none is named, or the flow can't run in batches.
        ConnectorError: The DataFrame can't be staged.
        StoreError: There is something else at `savepoint`, or it can't be written.
        JobFailedError: The flow has failed.

    Examples:
        >>> import crosscut as cc
        >>> cc.backfill(visits, spark.table("clicks"), "savepoints/history")  # doctest: +SKIP
        >>> visits.start(cc.Settings(restore_from="savepoints/history"))  # doctest: +SKIP
    """
    # Only here is pyspark needed.
    from crosscut.spark.data.backfill import backfill as run

    return run(
        flow,
        df,
        path_text(savepoint, "savepoint"),
        source=source,
        records=records,
        record=record,
        output=output,
        watermark=watermark,
        settings=settings,
        spark=spark,
        on_event=on_event,
    )
