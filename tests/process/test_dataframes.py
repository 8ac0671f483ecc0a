"""DataFrames as sources: staged once, read exactly once, whatever the DataFrame would give the next time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, lose, until
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import crosscut as cc
from crosscut.errors import ConnectorError, StoreError
from crosscut.foundation.ids import Epoch, TaskId, VertexId
from crosscut.spark.data.staging import Staging
from crosscut.store.checkpoint_store import open_store

pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")

ROWS = 3_000


@pytest.fixture(scope="module")
def session(spark: SparkContext) -> SparkSession:
    return SparkSession.builder.getOrCreate()


def numbers(session: SparkSession, run: int) -> DataFrame:
    """Rows that are others each time that Spark computes them."""
    return session.range(ROWS, numPartitions=3).selectExpr("id", "uuid() AS token", f"{run} AS run")


def settings(directory: Path) -> cc.Settings:
    return cc.Settings(
        parallelism=2,
        checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_interval="100ms",
        restart=cc.Restart(delay="0s"),
        **PATIENT,
    )


def flow_of(df: DataFrame, out: cc.Sink, rate: int) -> cc.Flow:
    flow = cc.Flow("numbers")
    source = flow.source(cc.spark.dataframe(df)).named("numbers")
    source.rate_limit(rate).map(lambda row: [row.id, row.token, row.run]).named("shown").sink(out)
    return flow


def staged(directory: Path) -> list[Path]:
    return sorted((directory / "checkpoints" / "parts" / "0").glob("*"))


def test_a_resumed_job_reads_what_was_staged_and_leaves_nothing(
    session: SparkSession, started: Any, tmp_path: Path
) -> None:
    # What a driver left that died while it staged; it would have claimed the same epoch.
    store = open_store(str(tmp_path / "checkpoints"))
    task = TaskId(VertexId("numbers"), 7)
    store.write_part(0, task, 1, [b"half" * 2_000])  # type: ignore[arg-type]
    out = cc.collect()

    # So slowly that it is stopped in the middle on any machine.
    job = started.flow(flow_of(numbers(session, 1), out, 20), settings(tmp_path))
    job.checkpoint(DEADLINE_S)
    lose(job, started, 0)
    until(lambda: len(staged(tmp_path)) == 3, "the end of what the other driver left")
    until(lambda: job.checkpoint(DEADLINE_S) and out.records(), "the first committed records")
    assert job.stop(DEADLINE_S)
    before = len(out.records())
    assert 0 < before < ROWS

    job = started.flow(flow_of(numbers(session, 2), out, 100_000), settings(tmp_path))
    started.finish(job)
    rows = out.records()
    assert Counter(number for number, _, _ in rows) == Counter(range(ROWS))
    assert len({token for _, token, _ in rows}) == ROWS
    assert {run for _, _, run in rows} == {1}
    until(lambda: not staged(tmp_path), "the end of what was staged")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("(SELECT id FROM range(2))", "SCALAR_SUBQUERY_TOO_MANY_ROWS"),
        # Spark tasks of a Spark that was started here are retried for ever: not this one's.
        ("raise_error('no such order')", "attempts of its Spark tasks have failed"),
    ],
    ids=["on the driver", "in Spark tasks"],
)
def test_what_cannot_be_staged_is_said_at_the_start_and_does_not_stand_in_the_way(
    session: SparkSession, started: Any, tmp_path: Path, column: str, said: str
) -> None:
    def start(df: DataFrame) -> Any:
        flow = cc.Flow("orders")
        flow.source(cc.spark.dataframe(df, records="dicts")).named("orders").sink(out)
        return started.flow(flow, settings(tmp_path))

    out = cc.collect()
    with pytest.raises(ConnectorError, match=f"source 'orders': the DataFrame can't be staged: .*{said}"):
        start(session.range(2).selectExpr(f"{column} AS id"))
    started.finish(start(session.range(5)))
    assert sorted(row["id"] for row in out.records()) == list(range(5))


def test_a_job_that_has_ended_stages_nothing_more(session: SparkSession, tmp_path: Path) -> None:
    # Spark takes its time to plan: the job may end before there is anything to cancel.
    where = tmp_path / "checkpoints"
    staging = Staging(session.sparkContext, name="numbers", group="of-the-ended", store_url=str(where))
    staging.cancel()
    graph = flow_of(numbers(session, 1), cc.collect(), 100).compile(2, 128)
    with pytest.raises(ConnectorError, match=r"the DataFrame can't be staged: .*cancelled"):
        staging.assignments(graph, Epoch(1))
    assert staged(tmp_path) == []


def test_another_schema_than_that_of_the_checkpoint_is_refused_by_name(
    session: SparkSession, started: Any, tmp_path: Path
) -> None:
    out = cc.collect()
    job = started.flow(flow_of(numbers(session, 1), out, 20), settings(tmp_path))
    job.checkpoint(DEADLINE_S)
    assert job.stop(DEADLINE_S)
    other = numbers(session, 1).selectExpr("id", "token", "cast(run AS string) AS run")
    with pytest.raises(StoreError, match=r"source 'numbers' is 'DataFrame \(id bigint, .* run string\)'"):
        flow_of(other, out, 100).start(settings(tmp_path), spark=session)


def test_what_is_no_bounded_dataframe_is_refused_where_it_is_written(session: SparkSession) -> None:
    with pytest.raises(ConnectorError, match="this one is streaming"):
        cc.spark.dataframe(session.readStream.format("rate").load())
    with pytest.raises(ConnectorError, match="b interval"):
        cc.spark.dataframe(session.sql("SELECT 1 AS a, make_interval(1) AS b"))
    with pytest.raises(ConnectorError, match=r"records='pandas'"):
        cc.spark.dataframe(session.range(1), records="pandas")  # type: ignore[arg-type]
