"""cc.backfill: state of a DataFrame, by Spark jobs, which a continuous job goes on from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import crosscut as cc
from crosscut.errors import ConnectorError, FlowError, JobFailedError, SettingsError, StoreError
from crosscut.protocol.log.segments import claims_in
from crosscut.savepoints.folder import new_folder
from crosscut.spark.cluster.partitions import with_partitions
from crosscut.store.checkpoint_store import open_store

pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")

ROWS = 6_000
LIVE = [f"user-{number % 11}" for number in range(500)]


class Visits:
    """A flow of visits by user, whose first run over the history fails halfway."""

    def __init__(self, directory: Path) -> None:
        self.flow = cc.Flow("visits")
        self.out = cc.collect(directory / "out")
        self._mended = directory / "mended"
        mended = str(self._mended)

        def checked(user: str) -> str:
            if user == "user-bad" and not Path(mended).exists():
                raise ValueError("bad user")
            return user

        visits = self.flow.source(cc.items(LIVE)).named("clicks").map(checked).key_by(lambda user: user)
        visits.count().named("visits").sink(self.out)

    def mend(self) -> None:
        self._mended.touch()


def test_a_backfill_that_failed_halfway_goes_on_with_the_same_rows_and_a_continuous_job_with_its_state(
    spark: SparkContext, started: Any, tmp_path: Path
) -> None:
    session = SparkSession.builder.getOrCreate()
    # Another token at each time that Spark computes it. The bad user is read last, in a batch of its own.
    rows = f"SELECT id, uuid() AS token FROM range({ROWS}) UNION ALL SELECT {ROWS}, 'none'"
    clicks = session.sql(rows).coalesce(1)
    visits, past = Visits(tmp_path), str(tmp_path / "past")

    def user_of(row: tuple[int, str]) -> str:
        return "user-bad" if row[0] == ROWS else f"user-{row[0] % 7}"

    def backfill(**others: Any) -> str:
        chosen = {
            "checkpoint_dir": tmp_path / "past",
            "engine": cc.MicroBatch(records_max=2_000),
            "restart": cc.Restart(failures=0),
        }
        return cc.backfill(
            visits.flow,
            clicks,
            tmp_path / "savepoint",
            records="tuples",
            record=user_of,
            settings=cc.Settings(**chosen),
            **others,
        )

    with pytest.raises(JobFailedError, match="bad user"):
        backfill()
    assert not (tmp_path / "savepoint").exists()
    visits.mend()
    # As if it had been killed while it wrote the savepoint.
    (claim,) = {one.lineage: one for one in claims_in([one for _, one in open_store(past).tail(1)])}.values()
    new_folder(tmp_path / "savepoint", claim.lineage)[0].write_new("state/visits/7.parquet", (b"half",))
    events: list[Any] = []
    assert backfill(on_event=events.append) == str(tmp_path / "savepoint")
    # It has gone on, and not begun again.
    assert events[0].resumed_from is not None
    assert visits.out.records() == []
    expected = Counter(f"user-{number % 7}" for number in range(ROWS)) + Counter({"user-bad": 1})
    state = cc.read_state(tmp_path / "savepoint", "visits")
    assert dict(zip(state["key"], state["value"], strict=True)) == expected
    # It is there: nothing is done again, and nothing else is overwritten.
    assert backfill() == str(tmp_path / "savepoint")
    with pytest.raises(StoreError, match="savepoint"):
        cc.backfill(visits.flow, clicks, tmp_path / "savepoint", settings=cc.Settings())
    # Another history does not get the state of this one, whose rows the directory has.
    past = cc.Settings(checkpoint_dir=tmp_path / "past")
    with pytest.raises(StoreError, match=r"savepoint .*other.*choose another checkpoint_dir"):
        cc.backfill(visits.flow, clicks, tmp_path / "other", records="tuples", record=user_of, settings=past)
    assert not (tmp_path / "other").exists()

    live = cc.Settings(parallelism=3, checkpoint_dir=tmp_path / "live", restore_from=tmp_path / "savepoint")
    job = started.flow(visits.flow, live)
    started.finish(job)
    said = Counter()
    for user, count in visits.out.records():
        said[user] = max(said[user], count)
    for user, count in Counter(LIVE).items():
        assert said[user] == expected[user] + count
    assert len(visits.out.records()) == len(LIVE)


def test_what_a_backfill_cannot_be_asked_for_is_refused_at_once(spark: SparkContext, tmp_path: Path) -> None:
    df = SparkSession.builder.getOrCreate().range(3)
    flow = Visits(tmp_path).flow
    where = tmp_path / "savepoint"
    with pytest.raises(ConnectorError, match="DataFrame"):
        cc.backfill(flow, [1, 2, 3], where)
    with pytest.raises(FlowError, match="has no source 'orders'"):
        cc.backfill(flow, df, where, source="orders")
    with pytest.raises(FlowError, match="has no event time"):
        cc.backfill(flow, df, where, watermark=5)
    with pytest.raises(SettingsError, match="a backfill starts without state"):
        cc.backfill(flow, df, where, settings=cc.Settings(restore_from="savepoints/x"))
    assert not where.exists()


def test_batches_have_as_many_partitions_as_sparks_shuffles_where_nobody_says(spark: SparkContext) -> None:
    session = SparkSession.builder.getOrCreate().newSession()
    batches = cc.Settings(engine="micro-batch")
    # Spark's own default is 200.
    assert with_partitions(batches, session).parallelism == 2
    session.conf.set("spark.sql.shuffle.partitions", "5")
    assert with_partitions(batches, session).parallelism == 5
    assert with_partitions(cc.Settings(), session).parallelism == 2
    assert with_partitions(replace(batches, parallelism=2), session).parallelism == 2
    session.conf.set("spark.sql.shuffle.partitions", "300")
    assert with_partitions(batches, session).parallelism == batches.max_parallelism
