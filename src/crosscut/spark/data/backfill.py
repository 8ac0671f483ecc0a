"""A flow over a bounded DataFrame, in micro-batches, to a savepoint: see `crosscut.backfill`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from crosscut.contracts.engines import Auto, MicroBatch
from crosscut.contracts.settings import Settings
from crosscut.errors import FlowError, JobFailedError, SettingsError
from crosscut.events import JobEvent
from crosscut.flow.flow import Flow
from crosscut.foundation.timestamps import as_timestamp
from crosscut.foundation.urls import shown_url
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph, WatermarkHold
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.protocol.log.segments import claims_in
from crosscut.savepoints.folder import UNFINISHED, check_free, remove
from crosscut.savepoints.history import (
    has_event_time,
    history_source,
    over_history,
    unread_rows,
    without_input,
)
from crosscut.savepoints.manifest import found_at
from crosscut.savepoints.writing import write_savepoint
from crosscut.spark.cluster.job import Job
from crosscut.spark.cluster.partitions import with_partitions
from crosscut.spark.cluster.starting import start_job
from crosscut.spark.data.arrow_records import RecordKind
from crosscut.spark.data.dataframes import DataFrameSource, dataframe
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import log_key

DEFAULTS = Settings(engine=MicroBatch(records_max=32_000_000), checkpoint_timeout="5m")


def backfill(
    flow: Flow,
    df: DataFrame,
    savepoint: str,
    *,
    source: str | None,
    records: RecordKind,
    record: Callable[[Any], Any] | None,
    output: bool,
    watermark: Any,
    settings: Settings | None,
    spark: Any,
    on_event: Callable[[JobEvent], object] | None,
) -> str:
    """See `crosscut.backfill`."""
    rows = dataframe(df, records=records)
    session = spark if spark is not None else df.sparkSession
    chosen = with_partitions(_settings(flow, settings), session)
    live = flow.compile(chosen.parallelism, chosen.max_parallelism)
    uid = history_source(live, source)
    if not isinstance(output, bool):
        raise SettingsError(f"output={output!r}: expected True or False")
    closes_ms = _closing_time(live, watermark)
    assert isinstance(rows, DataFrameSource)
    # The directory of a backfill that is over would give the rows of that one.
    history = rows.without_end(f"savepoint {shown_url(savepoint)}")

    def graph(hold: WatermarkHold) -> JobGraph:
        return over_history(live, uid, history, record=record, writes=output, hold=hold)

    if _is_written(savepoint, chosen.store_of(flow.name)):
        LOGGER.warning(
            "backfill of %r: the savepoint %s already exists, from %s, so nothing is read; to run it again, "
            "choose another savepoint and another checkpoint_dir",
            flow.name,
            shown_url(savepoint),
            shown_url(chosen.store_of(flow.name)),
        )
        return savepoint
    check_free(savepoint, unless_of=_lineages(chosen.store_of(flow.name)))
    job = _ran(start_job(flow, chosen, session, graph(WatermarkHold(None))), on_event)
    if closes_ms is not None:
        # In a run of its own: the watermark must come after the last row, wherever that is read.
        job = _ran(start_job(flow, chosen, session, graph(WatermarkHold(closes_ms))), on_event)
    checkpoint, claim = job.last_checkpoint()
    if left := unread_rows(checkpoint):
        raise _cut_short(job, f"stopped, with {left} rows unread")
    write_savepoint(
        savepoint,
        without_input(checkpoint),
        replace(claim, flow=identity_of(live)),
        job.read_part,
        goes_on=True,
        write_files=job.write_files(savepoint),
    )
    return savepoint


def _settings(flow: Flow, given: Settings | None) -> Settings:
    if given is None:
        given = DEFAULTS
    elif not isinstance(given, Settings):
        raise SettingsError(f"settings={given!r:.200}: expected crosscut.Settings(...)")
    elif given.restore_from is not None:
        raise SettingsError(
            f"restore_from={given.restore_from!r}: a backfill starts without state; pass restore_from to "
            f"the job that continues from its savepoint"
        )
    directory = given.checkpoint_dir or f"checkpoints/{flow.name}.backfill"
    if given.micro_batch.trigger == "once":
        raise SettingsError(
            "trigger='once': a backfill reads all rows, in as many batches as they need; leave trigger out"
        )
    engine = replace(given.micro_batch, trigger="available_now")
    parallelism = given.parallelism
    if isinstance(auto := given.engine_settings, Auto) and auto.batch_parallelism is not None:
        parallelism = auto.batch_parallelism
    return replace(given, engine=engine, parallelism=parallelism, checkpoint_dir=directory)


def _closing_time(graph: JobGraph, watermark: Any) -> int | None:
    if watermark is None:
        return None
    if not has_event_time(graph):
        raise FlowError(
            f"flow {graph.name!r} has no event time (assign_timestamps), so watermark={watermark!r} has "
            f"no effect: remove it"
        )
    try:
        return as_timestamp(watermark)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"watermark={watermark!r}: {error}") from error


def _is_written(savepoint: str, checkpoint_dir: str) -> bool:
    """Tell whether the savepoint is what a backfill in this directory came to."""
    found = found_at(savepoint)
    if found is None or found.manifest.lineage not in _lineages(checkpoint_dir):
        return False
    # It may have died between the manifest, which is the savepoint, and this.
    remove(found.folder, [UNFINISHED])
    return True


def _lineages(checkpoint_dir: str) -> set[str]:
    """Return which jobs the directory is of: there is one, unless it is new."""
    if "://" not in checkpoint_dir and not os.path.isdir(checkpoint_dir):
        return set()
    tail = [entry for _, entry in open_store(checkpoint_dir, create=False, key=log_key()).tail(1)]
    return {one.lineage for one in claims_in(tail)}


def _ran(job: Job, on_event: Callable[[JobEvent], object] | None) -> Job:
    if on_event is not None:
        job.on_event(on_event)
    job.wait()
    if job.status != "stopped":
        raise _cut_short(job, job.status)
    return job


def _cut_short(job: Job, how: str) -> JobFailedError:
    return JobFailedError(
        f"the backfill of {job.name!r} ended before it had read everything ({how}), so no savepoint was "
        f"written; call it again to continue from its last checkpoint"
    )
