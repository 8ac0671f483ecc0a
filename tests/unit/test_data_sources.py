"""Data sources of PySpark as sources and sinks: those of its documentation, and ones that misbehave."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    FloatType,
    IntegerType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from tests.proof.batches import FaultProfile, LocalJobs, run_batches
from tests.unit.pyspark_examples import (
    NAME_AND_STATE,
    NUMBERS,
    FakeDataSource,
    FakeSimpleDataSource,
    FakeStreamDataSource,
    PartitionedDataSource,
    SimpleCommitMessage,
)

import crosscut as cc
from crosscut.contracts.connectors import CommitPermit, EndOfSplit, SinkContext, Split, Wait
from crosscut.contracts.dynamic_source import Discovered
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.microbatch.output import Output, OutputError
from crosscut.protocol.log.entries import CHECKPOINT_IDS_LEAD_MAX
from crosscut.protocol.messages import DeployTasks
from crosscut.protocol.microbatch.attempts import Attempt, Partition
from crosscut.protocol.snapshots import PendingTransaction, Snapshot, TaskSnapshot
from crosscut.spark.data import planned_source
from crosscut.spark.data.batches import goes_back
from crosscut.spark.data.data_source import DataSourceOf
from crosscut.spark.data.planned_source import PlannedSource
from crosscut.testing.simulator.sources import ReplayedSource

NUMBER = StructType([StructField("number", IntegerType())])


def taken(reader: Any, count: int) -> list[Any]:
    """Read until there are `count` records, or the split has ended."""
    found: list[Any] = []
    while len(found) < count:
        some = reader.read(min(3, count - len(found)))
        if isinstance(some, EndOfSplit):
            break
        found += some if isinstance(some, list) else []
    return found


def only_split(source: Any) -> Split:
    (split,) = source.splits(2)
    return split


# Batch readers.


def test_a_batch_reader_without_partitions_is_one_split() -> None:
    source = cc.spark.source(FakeDataSource, {"NUMROWS": 5}, NAME_AND_STATE)
    split = only_split(source)
    rows = [Row(name=f"name {i}", state=f"state {i}") for i in range(5)]
    for position in range(6):
        reader = source.reader(split, position)
        assert taken(reader, 9) == rows[position:]
        assert reader.position == 5
        reader.close()
    assert rows[1].state == "state 1"


def test_the_partitions_of_a_batch_reader_are_splits_and_rows_go_by_name() -> None:
    source = cc.spark.source(PartitionedDataSource, None, NAME_AND_STATE, records="dicts")
    splits = source.splits(2)
    found = [taken(source.reader(split, split.start), 99) for split in splits]
    assert found == [[{"name": str(n), "state": str(k)} for n in range(10)] for k in range(3)]
    assert len({split.split_id for split in splits}) == 3


# Stream readers.


@pytest.mark.parametrize("kind", [FakeStreamDataSource, FakeSimpleDataSource])
def test_a_stream_goes_on_from_any_position(kind: type[DataSource]) -> None:
    source = cc.spark.source(kind, None, NUMBERS)
    split = only_split(source)
    first = source.reader(split, split.start)
    positions, found = [first.position], []
    for _ in range(9):
        found += taken(first, 1)
        positions.append(json.loads(json.dumps(first.position)))
    assert [(row.number, row.word) for row in found] == [(i, str(i)) for i in range(9)]
    for count, position in enumerate(positions[:3]):
        # Of the first batch: what a reader that begins again gives as its newest offset lies in it.
        again = source.reader(split, position)
        assert [row.number for row in taken(again, 2 - count)] == list(range(count, 2))
        again.close()
    first.close()


class Recorded(DataSourceStreamReader):
    """Two rows a partition; says what it is asked."""

    def __init__(self, events: list[Any], offsets: list[Any]) -> None:
        self.events = events
        self.offsets = offsets
        self.committed = threading.Event()

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        self.events.append(("latest", start, type(limit).__name__))
        return self.offsets.pop(0) if self.offsets else start  # type: ignore[no-any-return]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self.events.append(("partitions", start, end))
        return [InputPartition(n) for n in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter([(partition.value * 10,), (partition.value * 10 + 1,)])

    def commit(self, end: dict[str, Any]) -> None:
        self.events.append(("commit", end))
        self.committed.set()


def recorded(*offsets: Any) -> tuple[Any, Recorded, Any]:
    reader = Recorded([], list(offsets))

    class Source(DataSource):
        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return reader

    source = cc.spark.source(Source, None, NUMBER)
    return source, reader, only_split(source)


def test_batches_are_planned_when_the_last_is_read_and_committed_when_a_checkpoint_has_them() -> None:
    source, told, split = recorded({"n": 2}, {"n": 3})
    reader = source.reader(split, split.start)
    assert [row.number for row in taken(reader, 6)] == [0, 1, 10, 11, 20, 21]
    while told.events[-1] != ("latest", {"n": 3}, "ReadAllAvailable"):
        assert isinstance(reader.read(9), Wait)
    assert told.events == [
        ("latest", {"n": 0}, "ReadAllAvailable"),
        ("partitions", {"n": 0}, {"n": 2}),
        ("latest", {"n": 2}, "ReadAllAvailable"),
        ("partitions", {"n": 2}, {"n": 3}),
        ("latest", {"n": 3}, "ReadAllAvailable"),
    ]
    reader.acknowledge({"start": {"n": 0}, "end": {"n": 2}, "partition": 1, "rows": 0})
    reader.acknowledge({"start": {"n": 2}, "end": None, "partition": 0, "rows": 0})
    assert told.committed.wait(60)
    assert told.events[-1] == ("commit", {"n": 2}), "in the middle of a batch there is nothing to commit"
    reader.close()


def test_a_batch_that_was_planned_is_planned_the_same_after_a_failure() -> None:
    source, told, split = recorded({"n": 9})
    reader = source.reader(split, {"start": {"n": 0}, "end": {"n": 2}, "partition": 1, "rows": 1})
    assert [row.number for row in taken(reader, 1)] == [11]
    assert told.events == [("partitions", {"n": 0}, {"n": 2})]
    reader.close()


def test_a_commit_that_a_failure_has_swallowed_comes_after_the_next_checkpoint() -> None:
    source, told, split = recorded()
    reader = source.reader(split, {"start": {"n": 2}, "end": None, "partition": 0, "rows": 0})
    reader.acknowledge(reader.position)
    assert told.committed.wait(60)
    assert told.events == [("commit", {"n": 2})]
    reader.close()


# What they do wrong.


def fails(call: Callable[[], Any]) -> str:
    with pytest.raises(ConnectorError) as failure:
        while True:
            call()
    return str(failure.value)


@pytest.mark.parametrize("offset", [5, {"n": {1, 2}}, {1: 2}])
def test_an_offset_that_json_cannot_hold_is_refused(offset: Any) -> None:
    source, _, split = recorded(offset)
    reader = source.reader(split, split.start)
    assert "latestOffset() returned the offset" in fails(lambda: reader.read(1))


def test_an_offset_that_goes_back_is_refused() -> None:
    source, _, split = recorded({"n": 3}, {"n": 1})
    reader = source.reader(split, split.start)
    taken(reader, 6)
    said = fails(lambda: reader.read(1))
    assert 'latestOffset() returned the offset {"n": 1}, which lies before {"n": 3}' in said


def test_what_goes_back_is_known_by_its_numbers() -> None:
    assert goes_back({"a": 5, "b": [7]}, {"a": 5, "b": [6]})
    assert not goes_back({"file": 3, "row": 9}, {"file": 4, "row": 0})
    assert not goes_back({"a": "x"}, {"a": "b"})
    assert not goes_back({"a": 5}, {"b": 1})


class Unruly(DataSource):
    """Raises, or returns what it should not, where its options say."""

    def at(self, method: str) -> None:
        if self.options.get("at") == method:
            raise RuntimeError("the service is down")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self.at("streamReader")
        at, rows = self.at, self.options.get("rows", "[(1,)]")

        class Reader(DataSourceStreamReader):
            def initialOffset(self) -> dict[str, int]:
                at("initialOffset")
                return {"n": 0}

            def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
                at("latestOffset")
                return {"n": start["n"] + 1}

            def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
                at("partitions")
                return [InputPartition(1)]

            def read(self, partition: InputPartition) -> Iterator[Any]:
                at("read")
                return iter({"[(1,)]": [(1,)], "[(1, 2)]": [(1, 2)], "['x']": ["x"]}[rows])

            def commit(self, end: dict[str, int]) -> None:
                at("commit")

        return Reader()


@pytest.mark.parametrize("method", ["streamReader", "initialOffset"])
def test_a_reader_that_raises_when_the_job_starts_is_named(method: str) -> None:
    source = cc.spark.source(Unruly, {"at": method}, NUMBER)
    assert fails(lambda: source.splits(1)) == (
        f"data source Unruly: {method}() raised RuntimeError: the service is down"
    )


@pytest.mark.parametrize("method", ["latestOffset", "partitions", "read"])
def test_a_reader_that_raises_in_a_task_is_named(method: str) -> None:
    split = only_split(cc.spark.source(Unruly, None, NUMBER))
    reader = cc.spark.source(Unruly, {"at": method}, NUMBER).reader(split, split.start)
    assert fails(lambda: reader.read(1)) == (
        f"data source Unruly: {method}() raised RuntimeError: the service is down"
    )


def test_fewer_partitions_of_a_batch_than_were_read_before_are_refused() -> None:
    source, _, split = recorded()
    position = {"start": {"n": 0}, "end": {"n": 2}, "partition": 3, "rows": 1}
    assert "returned 2 partitions of a batch of which the job has read 3" in fails(
        partial(source.reader(split, position).read, 9)
    )


def test_fewer_rows_of_a_partition_than_were_read_before_are_refused() -> None:
    source, _, split = recorded()
    position = {"start": {"n": 0}, "end": {"n": 2}, "partition": 1, "rows": 3}
    said = "read() returned 2 rows of a partition of which the job has read 3 before"
    assert said in fails(partial(source.reader(split, position).read, 9))
    batch = cc.spark.source(FakeDataSource, {"NUMROWS": 5}, NAME_AND_STATE)
    assert "returned 5 rows" in fails(partial(batch.reader(only_split(batch), 6).read, 9))


def test_a_commit_that_raises_is_told_and_does_not_fail_the_job(caplog: pytest.LogCaptureFixture) -> None:
    source = cc.spark.source(Unruly, {"at": "commit"}, NUMBER)
    split = only_split(source)
    reader = source.reader(split, split.start)
    taken(reader, 2)
    reader.acknowledge(reader.position)
    assert len(taken(reader, 3)) == 3
    assert "commit() raised RuntimeError: the service is down" in caplog.text
    reader.close()


@pytest.mark.parametrize(
    ("rows", "said"), [("[(1, 2)]", "a row of 2 values: expected 1, for number"), ("['x']", "of type str")]
)
def test_rows_that_do_not_fit_are_refused(rows: str, said: str) -> None:
    source = cc.spark.source(Unruly, {"rows": rows}, NUMBER)
    split = only_split(source)
    reader = source.reader(split, split.start)
    assert said in fails(lambda: reader.read(1))


def test_a_partition_that_cannot_be_pickled_is_named() -> None:
    class Locked(PartitionedDataSource):
        def reader(self, schema: StructType) -> Any:
            reader = PartitionedDataSource.reader(self, schema)
            reader.partitions = lambda: [InputPartition(threading.Lock())]  # type: ignore[method-assign]
            return reader

    source = cc.spark.source(Locked, None, NAME_AND_STATE)
    assert "Locked: partition 0, InputPartition(value=<unlo" in fails(lambda: source.splits(1))


def test_arguments_are_checked_where_they_are_written() -> None:
    with pytest.raises(ConnectorError, match="expected a class of pyspark"):
        cc.spark.source("fake")  # type: ignore[arg-type]
    with pytest.raises(ConnectorError, match="FakeDataSource has no stream reader"):
        cc.spark.source(FakeDataSource, None, NUMBER, read="stream")
    with pytest.raises(ConnectorError, match="FakeDataSource has no stream writer"):
        cc.spark.sink(FakeDataSource, None, NUMBER)
    with pytest.raises(ConnectorError, match="schema=5"):
        cc.spark.source(FakeDataSource, None, 5)  # type: ignore[arg-type]


def test_what_is_read_is_described_without_secrets() -> None:
    options = {"url": "https://me:word@host/x", "apiKey": "abc", "Password": "abc", "rows": 5}
    said = cc.spark.source(FakeDataSource, options, NAME_AND_STATE).describe()
    assert said.startswith("FakeDataSource(rows=5, url=https://")
    assert "word" not in said
    assert "abc" not in said


def test_secrets_stand_in_the_environment_until_the_source_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """They travel to the workers by name."""
    source = cc.spark.source(
        FakeDataSource, {"apiKey": cc.environment("FAKE_KEY"), "rows": 5}, NAME_AND_STATE
    )
    assert source.describe() == "FakeDataSource(apiKey=$FAKE_KEY, rows=5)"
    options = (("apiKey", cc.environment("FAKE_KEY")), ("rows", "5"))
    of = DataSourceOf(FakeDataSource, options, NAME_AND_STATE)
    assert fails(of.made).startswith("the environment variable FAKE_KEY is not set")
    monkeypatch.setenv("FAKE_KEY", "abc")
    assert b"abc" not in pickle.dumps(source)
    assert of.made().options["apiKey"] == "abc"


# Writers.

LINEAGE = Lineage("a1")


def writer_of(sink: Any, epoch: int = 1, index: int = 0) -> Any:
    task = TaskId(VertexId("sink"), index)
    return sink.writer(SinkContext(LINEAGE, Epoch(epoch), task, "sink"))


def permit(n: int, epoch: int = 1) -> CommitPermit:
    return CommitPermit(LINEAGE, Epoch(epoch), CheckpointId(n))


def staged(writer: Any, n: int, *rows: Any) -> Any:
    writer.write(list(rows))
    return json.loads(json.dumps(writer.prepare(writer.rotate(CheckpointId(n)))))


def test_rows_are_written_at_a_checkpoint_and_committed_under_its_id(tmp_path: Path) -> None:
    sink = cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path)}, NUMBERS)
    writer = writer_of(sink)
    writer.recover(None, [])
    assert writer.rotate(CheckpointId(1)) is None
    first = staged(writer, 2, (1, "a"), {"number": 2, "word": "b"}, Row(number=3, word="c"))
    second = staged(writer, 3, (4, "d"))
    assert list(tmp_path.iterdir()) == []
    writer.commit(permit(3), [first, second])
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert found == {"2.json": {"num_partitions": 1, "rows": 3}, "3.json": {"num_partitions": 1, "rows": 1}}


def test_after_a_failure_the_restored_messages_are_committed_and_the_others_aborted(tmp_path: Path) -> None:
    sink = cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path)}, NUMBERS)
    writer = writer_of(sink, index=1)
    writer.recover(None, [])
    handles = [staged(writer, n, (n, "a")) for n in (2, 3)]
    writer.close()
    writer_of(sink, epoch=2, index=1).recover(permit(2, epoch=2), handles[:1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.json", "3.txt"]


def test_what_another_process_may_have_committed_is_not_aborted(tmp_path: Path) -> None:
    sink = cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path)}, NUMBERS)
    here = writer_of(sink, index=3)
    here.recover(None, [])
    (handle, _) = [staged(here, n, (n, "a")) for n in (2, 9)]
    # Epoch 2 runs in another process, restores checkpoint 2 and commits it; epoch 3 comes back to this one.
    elsewhere = writer_of(sink, epoch=2, index=4)
    elsewhere.commit(permit(2, epoch=2), [handle])
    writer_of(sink, epoch=3, index=3).recover(permit(5, epoch=3), [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.json", "9.txt"]


def test_a_task_that_never_commits_forgets_messages_that_nobody_will_abort(tmp_path: Path) -> None:
    """The first task commits for all of a parallel sink. No id goes further ahead of the completed ones."""
    sink = cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path)}, NUMBERS, parallel=True)
    other = writer_of(sink, index=8)
    other.recover(None, [])
    newest = 2 * CHECKPOINT_IDS_LEAD_MAX
    for n in range(1, newest + 1):
        staged(other, n, (n, "a"))
    assert len(other._prepared) == CHECKPOINT_IDS_LEAD_MAX + 1, "the lead, and the newest itself"
    writer_of(sink, epoch=2, index=8).recover(permit(newest - 1, epoch=2), [])
    assert [path.name for path in tmp_path.iterdir()] == [f"{newest}.txt"]


def test_a_batch_of_which_one_attempt_is_committed_is_not_aborted_for_another_one(tmp_path: Path) -> None:
    sink = cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path)}, NUMBERS)
    driver = writer_of(sink, index=6)
    driver.recover(None, [])

    def attempt(n: int) -> Any:
        writer = writer_of(sink, index=6)
        writer.begin_attempt([])
        return staged(writer, n, (n, "a"))

    driver.abort([attempt(1)])
    taken, lost = attempt(2), attempt(2)
    driver.abort([lost])
    assert list(tmp_path.iterdir()) == [], "another attempt may be taken"
    driver.commit(permit(2), [taken])
    driver.commit(permit(3), [attempt(3)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.txt", "2.json", "3.json"]


def test_a_batch_that_is_given_up_with_its_epoch_is_aborted_with_it(tmp_path: Path) -> None:
    sink = cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path)}, NUMBERS)
    driver = writer_of(sink, index=7)
    driver.recover(None, [])
    attempts = []
    for n in (2, 3, 3):
        attempts.append(writer_of(sink, index=7))
        attempts[-1].begin_attempt([])
        attempts[-1] = staged(attempts[-1], n, (n, "a"))
    driver.commit(permit(2), attempts[:1])
    driver.abort(attempts[1:])
    driver.sweep()
    driver.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.json", "3.txt"]


def test_no_message_is_committed_before_an_older_one(tmp_path: Path) -> None:
    committed: list[int] = []
    is_down = [True]

    class Down(FakeStreamDataSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            writer: Any = FakeStreamDataSource.streamWriter(self, schema, overwrite)

            def commit(messages: list[Any], batch: int) -> None:
                if is_down.pop() if is_down else False:
                    raise OSError("down")
                # As many do: what is not above the last one is a repetition.
                if batch > max(committed, default=0):
                    committed.append(batch)

            writer.commit = commit
            return writer

    writer = writer_of(cc.spark.sink(Down, {"path": str(tmp_path)}, NUMBERS), index=5)
    writer.recover(None, [])
    handles = [staged(writer, n, (n, "a")) for n in (2, 3)]
    with pytest.raises(ConnectorError, match="commit\\(\\) raised OSError: down"):
        writer.commit(permit(3), handles)
    writer.commit(permit(3), handles)
    assert committed == [2, 3]


def test_a_write_that_fails_is_aborted_and_named(tmp_path: Path) -> None:
    class Broken(FakeStreamDataSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            writer: Any = FakeStreamDataSource.streamWriter(self, schema, overwrite)
            message = {"raise": None, "pickle": SimpleCommitMessage(0, threading.Lock())}  # type: ignore[arg-type]
            kind = self.options["kind"]

            def write(rows: Any) -> Any:
                if kind == "raise":
                    raise OSError("no space")
                return message[kind]

            writer.write = write
            return writer

    for kind, said in {"raise": "write\\(\\) raised OSError: no space", "pickle": "can't be pickled"}.items():
        sink = cc.spark.sink(Broken, {"path": str(tmp_path), "kind": kind}, NUMBERS)
        writer = writer_of(sink, index=2)
        with pytest.raises(ConnectorError, match=said):
            staged(writer, 7, (1, "a"))
        (aborted,) = tmp_path.iterdir()
        assert aborted.name == "7.txt"
        aborted.unlink()


class Columns(DataSource):
    """One whose writer takes record batches, and keeps none."""

    written: ClassVar[list[Any]] = []

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return ColumnsWriter()


class ColumnsWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        Columns.written += [row for batch in iterator for row in batch.to_pylist()]
        return WriterCommitMessage()

    def abort(self, messages: Any, batchId: int) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (IntegerType(), 1, 1.5),
        (FloatType(), 0.5, 1e300),
        (TimestampType(), datetime(2026, 1, 1, tzinfo=UTC), 0.9),
        (TimestampNTZType(), datetime(2026, 1, 1), Decimal("1.9")),
        (StringType(), "a", b"a"),
        (ArrayType(IntegerType()), [1], [1.5]),
    ],
    ids=repr,
)
def test_a_value_that_a_column_would_change_is_refused(kind: Any, good: Any, bad: Any) -> None:
    """P10."""
    writer = writer_of(cc.spark.sink(Columns, {}, StructType([StructField("value", kind)])), index=7)
    Columns.written.clear()
    staged(writer, 1, (good,))
    assert Columns.written == [{"value": good}]
    with pytest.raises(ConnectorError, match=r"write\(\) raised ValueError: column value: .* is"):
        staged(writer, 2, (bad,))
    assert len(Columns.written) == 1


class PlainMessage(WriterCommitMessage):
    """Neither a data class nor anything else that says of itself that it holds data."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class Runs:
    """Pickles as a call, as a compromised worker may write it."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.witness),)


class Answering(DataSource):
    """Its write() returns what its class has, and its writer notes what it is called with."""

    answer: Any = None
    calls: list[tuple[str, list[Any], int]]

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        writer: Any = FakeStreamDataSource({"path": "x"}).streamWriter(schema, overwrite)
        writer.write = lambda rows: self.answer
        writer.commit = lambda messages, n: self.calls.append(("commit", messages, n))
        writer.abort = lambda messages, n: self.calls.append(("abort", messages, n))
        return writer


def answering(answer: Any) -> type[Answering]:
    return type("Answers", (Answering,), {"answer": answer, "calls": []})


def attempt_of(kind: type[Answering], n: int, index: int) -> Any:
    writer = writer_of(cc.spark.sink(kind, None, NUMBERS), index=index)
    writer.begin_attempt([])
    return staged(writer, n, (n, "a"))


def output_of(kind: type[Answering]) -> Output:
    flow = cc.Flow("one")
    flow.source(cc.items(range(5))).named("numbers").sink(cc.spark.sink(kind, None, NUMBERS)).named("sink")
    return Output(flow.compile(1, 128), LINEAGE, Epoch(2), "driver", lambda part: b"")


def snapshot_of(n: int, handle: Any) -> TaskSnapshot:
    task = TaskId(VertexId("sink"), 0)
    return TaskSnapshot(task, Snapshot(pending=(PendingTransaction(CheckpointId(n), handle),)))


def order(restore: int, *snapshots: TaskSnapshot) -> DeployTasks:
    return DeployTasks(Epoch(2), LINEAGE, (), CheckpointId(restore), snapshots, ())


@pytest.mark.parametrize("call", ["recover", "commit", "abort"])
def test_in_batches_the_driver_runs_no_code_of_a_message(tmp_path: Path, call: str) -> None:
    """It has the key of the job log, and the connection to Spark; workers write the messages."""
    witness, kind = tmp_path / "witness", answering(None)
    packed = base64.b64encode(pickle.dumps(Runs(witness))).decode()
    forged = snapshot_of(3, {"checkpoint": 3, "message": packed})
    output, attempt = output_of(kind), Attempt(Partition(0, 0), "a", (), (forged,))

    async def called() -> None:
        if call == "recover":
            await output.recover([order(3, forged)])
            return
        await output.recover([order(0)])
        await (output.commit(CheckpointId(3), [attempt]) if call == "commit" else output.abort([attempt]))

    with pytest.raises(OutputError) as failed:
        asyncio.run(called())
    assert isinstance(failed.value.__cause__, ConnectorError)
    assert "message of checkpoint 3: it holds posix.mkdir" in str(failed.value.__cause__)
    assert not witness.exists()
    assert kind.calls == []


@pytest.mark.parametrize(
    "message",
    [None, WriterCommitMessage(), SimpleCommitMessage(1, 2), PlainMessage(3), {"files": ["a"], "rows": 2}],
)
def test_in_batches_messages_that_hold_data_reach_the_writer(message: Any) -> None:
    kind = answering(message)
    output = output_of(kind)
    taken, lost = (
        Attempt(Partition(0, 0), name, (), (snapshot_of(n, attempt_of(kind, n, 20)),))
        for name, n in (("a", 4), ("b", 5))
    )

    async def called() -> None:
        await output.recover([order(3, snapshot_of(3, attempt_of(kind, 3, 20)))])
        await output.commit(CheckpointId(4), [taken])
        await output.abort([lost])
        await output.sweep()

    asyncio.run(called())
    assert [(call, n) for call, _, n in kind.calls] == [("commit", 3), ("commit", 4), ("abort", 5)]
    for _, (found,), _ in kind.calls:
        assert type(found) is type(message)
        assert vars(found) == vars(message) if isinstance(message, WriterCommitMessage) else found == message


def test_in_batches_a_message_that_the_driver_would_not_load_is_refused_before_it_is_kept() -> None:
    """Afterwards the checkpoint would be complete, and never be committed."""

    class Local(WriterCommitMessage):
        pass

    for message in (Local(), {"lock": threading.Event}):
        kind = answering(message)
        with pytest.raises(ConnectorError, match=r"write\(\).*the driver.*top level.*'continuous'"):
            attempt_of(kind, 3, 21)
    # Workers commit, and they load everything.
    kind = answering(Local())
    writer = writer_of(cc.spark.sink(kind, None, NUMBERS), index=22)
    writer.commit(permit(3), [staged(writer, 3, (1, "a"))])
    ((call, (found,), n),) = kind.calls
    assert (call, type(found), n) == ("commit", Local, 3)


def test_a_record_that_is_no_row_is_refused_by_name(tmp_path: Path) -> None:
    writer = writer_of(cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path)}, NUMBERS))
    with pytest.raises(ConnectorError, match="data source FakeStreamDataSource with columns number, word"):
        writer.write([(1, "a", "b")])


def test_one_task_writes_all_rows() -> None:
    flow = cc.Flow("one")
    numbers = flow.source(cc.items(range(5))).named("numbers")
    numbers.sink(cc.spark.sink(FakeStreamDataSource, {"path": "x"}, NUMBERS)).named("out")
    graph = flow.compile(4, 128)
    (edge,) = graph.edges
    assert (edge.source, edge.target, edge.partitioning) == ("numbers", "out", "hash")


@pytest.mark.parametrize("seed", range(2))
def test_in_batches_all_tasks_write_and_the_messages_of_one_are_committed_in_one_call(
    tmp_path: Path, seed: int
) -> None:
    (tmp_path / "out").mkdir()
    flow = cc.Flow("all")
    thirds = {f"s{split}": [(number, "a") for number in range(split, 300, 3)] for split in range(3)}
    sink = cc.spark.sink(FakeStreamDataSource, {"path": str(tmp_path / "out")}, NUMBERS, parallel=True)
    flow.source(ReplayedSource(thirds)).named("numbers").sink(sink).named("out")
    graph = flow.compile(2, 128)
    given = cc.Settings(
        engine=cc.MicroBatch(records_max=60),
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_interval="10ms",
    )
    storm = FaultProfile(doubled=0.3, torn=0.2, lost=0.1)
    left = 12

    def is_dead(driver: Any) -> bool:
        nonlocal left
        left -= driver.status().phase == "running"
        return left < 0

    def jobs(made: Any, url: str) -> LocalJobs:
        return LocalJobs(made, url, Random(seed), storm)

    run_batches(graph, given, jobs, is_dead)
    end, _ = run_batches(graph, given, jobs)
    assert end is not None
    assert end.outcome == "finished", end
    # After a failure a commit may come again, and then it is the same one.
    said = [set(path.read_text().splitlines()) for path in (tmp_path / "out").glob("*.json")]
    assert all(len(one) == 1 for one in said)
    found = [json.loads(one.pop()) for one in said]
    assert sum(one["rows"] for one in found) == 300
    assert {one["num_partitions"] for one in found} >= {2}


# Stream readers that all tasks read.


def test_a_planned_stream_finds_the_same_partitions_again_from_what_was_known() -> None:
    source = cc.spark.source(PartitionedStream, None, NUMBER, parallel=True)
    assert isinstance(source, PlannedSource)
    first = source.discover(None)
    assert [one.split_id[:16] for one in first.splits] == ["000000000-000000", "000000000-000001"]
    second = source.discover(first.known)
    assert [taken(source.reader(one, 1), 9) for one in second.splits] == [
        [Row(number=6), Row(number=7)],
        [Row(number=9), Row(number=10)],
    ]
    assert source.discover(second.known) == Discovered((), second.known)
    # In another process, after a failure.
    again: Any = pickle.loads(pickle.dumps(source))
    assert again.discover(first.known) == second


def test_many_partitions_of_a_batch_are_said_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = cc.spark.source(PartitionedStream, None, NUMBER, parallel=True)
    whole = [source.discover(None), source.discover(source.discover(None).known)]
    monkeypatch.setattr(planned_source, "FOUND_BYTES_MAX", 1)
    known, found = None, []
    for is_coming in (True, False, True, False):
        said = source.discover(known)
        assert (len(said.splits), said.is_coming) == (1, is_coming)
        known = said.known
        found += said.splits
    assert found == [split for one in whole for split in one.splits]
    assert known == whole[1].known


def test_a_planned_stream_is_committed_up_to_its_oldest_unread_partition() -> None:
    source: Any = cc.spark.source(PartitionedStream, None, NUMBER, parallel=True)
    first = source.discover(None)
    second = source.discover(first.known)
    details = [one.detail for one in (*first.splits, *second.splits)]
    reader = source._batches._reader
    for unread, committed in (
        (details, [0]),
        (details[1:], [0]),
        (details[2:], [0, 5]),
        (details[3:], [0, 5]),
        ([], [0, 5, 11]),
    ):
        source.completed(second.known, unread)
        assert reader.committed == committed
    source.stop()()
    assert reader.is_stopped


def test_what_has_no_partitions_is_refused_in_parallel() -> None:
    with pytest.raises(ConnectorError, match="is read with its batch reader"):
        cc.spark.source(FakeDataSource, None, NAME_AND_STATE, parallel=True)
    with pytest.raises(ConnectorError, match="is read with its simple reader"):
        cc.spark.source(FakeSimpleDataSource, None, NUMBERS, parallel=True)


class PartitionedStream(DataSource):
    """Two batches of two partitions."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return PartitionedReader()


class PartitionedReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self.committed: list[int] = []
        self.is_stopped = False

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": {0: 5, 5: 11, 11: 11}[start["at"]]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        middle = (start["at"] + end["at"]) // 2
        return [InputPartition((start["at"], middle)), InputPartition((middle, end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return ((number,) for number in range(*partition.value))

    def commit(self, end: dict[str, int]) -> None:
        self.committed.append(end["at"])

    def stop(self) -> None:
        self.is_stopped = True
