"""What a job has, as DataFrames: its state, its output, and a stream of that, while it runs and after."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, until
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import Row, StructType

import crosscut as cc
from crosscut.errors import ConnectorError, FlowError
from crosscut.store.log_key import VARIABLE

pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")

COUNT, KEYS = 4_000, 7


@pytest.fixture(scope="module")
def session(spark: Any) -> SparkSession:
    found = SparkSession.builder.getOrCreate()
    found.conf.set("spark.sql.shuffle.partitions", "2")
    cc.spark.register(found)
    return found


class Seen(cc.KeyedProcess[int, Row]):
    """A state with names, and one without."""

    last = cc.ValueState[int](default=0)
    parity = cc.MapState[str, int]()

    def on_record(self, record: int, ctx: Any) -> Any:
        self.last.set(record)
        self.parity[str(record % 2)] = record
        yield Row(number=record, word=ctx.key)


def settings(directory: Path) -> cc.Settings:
    return cc.Settings(
        parallelism=2, checkpoint_dir=str(directory / "checkpoints"), checkpoint_interval="100ms"
    )


class Running:
    """A job with all kinds of output, and its tables."""

    def __init__(self, directory: Path, rate: int) -> None:
        self.directory = directory
        self.flow = cc.Flow("tables")
        numbers = self.flow.source(cc.items(range(COUNT))).named("numbers").rate_limit(rate).named("rate")
        keyed = numbers.key_by(lambda number: f"k{number % KEYS}")
        keyed.count().named("counts").sink(cc.files.write_jsonl(directory / "counts")).named("lines")
        self.table = cc.spark.table(directory / "table", "word STRING, number BIGINT")
        seen = keyed.process(Seen()).named("seen")
        seen.sink(self.table).named("table")
        divided = cc.spark.table(directory / "divided", "word STRING, number BIGINT", partition_by="word")
        seen.sink(divided).named("divided")


def has_ended(query: DataStreamWriter) -> bool:
    """Run `query`. Spark gives a Python process ten seconds to start, which a busy machine may not have."""
    try:
        return bool(query.start().awaitTermination(DEADLINE_S))
    except StreamingQueryException as error:
        if "Python worker failed to connect back" not in str(error):
            raise
        return False


FIELDS = "word STRING, count BIGINT"


def test_state_and_output_of_a_job_are_dataframes_and_its_output_can_be_followed(
    session: SparkSession, started: Any, tmp_path: Path
) -> None:
    where = str(tmp_path / "checkpoints")
    output = session.read.format("crosscut").option("uid", "lines").schema(FIELDS)

    def follow() -> list[Row]:
        """Read what is new since the last time."""
        stream = session.readStream.format("crosscut").option("uid", "lines").schema(FIELDS).load(where)
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "followed"))
            .option("checkpointLocation", str(tmp_path / "follower"))
            .trigger(availableNow=True)
        )
        until(lambda: has_ended(query), "the end of what there is to follow")
        return session.read.parquet(str(tmp_path / "followed")).collect()

    running = Running(tmp_path, 10)
    job = started.flow(running.flow, settings(tmp_path))
    until(lambda: len(list((tmp_path / "counts").glob("*.jsonl"))) > 3, "output of some checkpoints")
    # While it runs, each key has been counted without a gap: a cut.
    rows = output.load(where).collect()
    for word, count in Counter(row.word for row in rows).items():
        assert sorted(row["count"] for row in rows if row.word == word) == list(range(1, count + 1))
    first = follow()
    assert job.stop(DEADLINE_S)

    resumed = Running(tmp_path, 1_000_000)
    job = started.flow(resumed.flow, settings(tmp_path))
    started.finish(job)
    everything = follow()
    assert 0 < len(first) < COUNT
    assert Counter(everything) == Counter(output.load(where).collect()), "each checkpoint once"
    assert len(everything) == COUNT

    counts = job.state("counts")
    assert counts.schema.simpleString() == "struct<key_group:int,key:string,value:bigint>"
    expected = Counter(f"k{number % KEYS}" for number in range(COUNT))
    assert {row.key: row.value for row in counts.collect()} == expected
    assert counts.rdd.getNumPartitions() == 2, "a partition for each task of the job"

    pruned = session.read.format("crosscut").options(uid="seen", state="parity").schema("name STRING")
    assert Counter(row.name for row in pruned.load(where).collect()) == {"0": KEYS, "1": KEYS}
    newest = job.checkpoints()[-1].checkpoint_id
    numbered = session.read.format("crosscut").options(uid="seen", state="last", checkpoint=str(newest))
    assert {row.value for row in numbered.load(where).collect()} == set(range(COUNT - KEYS, COUNT))

    table = session.read.parquet(str(tmp_path / "table"))
    assert table.schema.simpleString() == "struct<word:string,number:bigint>"
    assert sorted(row.number for row in table.collect()) == list(range(COUNT))
    assert job.result(resumed.table).count() == COUNT
    divided = session.read.parquet(str(tmp_path / "divided"))
    assert divided.schema.simpleString() == "struct<number:bigint,word:string>"
    expected_rows = sorted((row.number, row.word) for row in table.collect())
    assert sorted(divided.collect()) == expected_rows
    assert sorted(job.result("divided").collect()) == expected_rows
    assert job.result("lines").columns == ["value"]
    with pytest.raises(FlowError, match="has no sink 'nowhere'; it has 'lines', 'table', 'divided'"):
        job.result("nowhere")
    with pytest.raises(AnalysisException, match="without an operator 'nobody'; it has"):
        job.state("nobody")


def test_what_is_asked_for_wrongly_is_said_at_once(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="needs the option uid"):
        session.read.format("crosscut").load(str(tmp_path))
    with pytest.raises(AnalysisException, match="has no option uuid; it has checkpoint, path, state, uid"):
        session.read.format("crosscut").options(uuid="x", uid="y").load(str(tmp_path))
    with pytest.raises(ConnectorError, match="b interval year to month"):
        cc.spark.table(tmp_path, "a INT, b INTERVAL YEAR TO MONTH")
    with pytest.raises(ConnectorError, match="is not valid DDL"):
        cc.spark.table(tmp_path, "a INT INT")
    assert isinstance(cc.spark.table(tmp_path, StructType.fromDDL("a INT")), cc.Sink)


def test_what_a_job_with_a_key_has_is_read_by_spark_only_if_it_was_signed(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8: Spark's planner has no key; it asks the process that has registered the data source."""
    for name, key in (("unsigned", None), ("signed", "k" * 32), ("forged", "o" * 32)):
        if key is not None:
            monkeypatch.setenv(VARIABLE, key)
        flow = cc.Flow("signed")
        counts = flow.source(cc.items([1, 2, 1])).key_by(lambda one: one).count().named("counts")
        counts.sink(cc.files.write_jsonl(tmp_path / name / "out")).named("lines")
        flow.start(settings(tmp_path / name), spark=session).wait()
    monkeypatch.setenv(VARIABLE, "k" * 32)
    cc.spark.register(session)
    try:
        for uid, count in (("counts", 2), ("lines", 3)):
            reader = session.read.format("crosscut").option("uid", uid)
            assert reader.load(str(tmp_path / "signed" / "checkpoints")).count() == count
            for name in ("unsigned", "forged"):
                with pytest.raises(AnalysisException, match="key"):
                    reader.load(str(tmp_path / name / "checkpoints")).count()
    finally:
        monkeypatch.delenv(VARIABLE)
        cc.spark.register(session)
