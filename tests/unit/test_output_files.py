"""What is followed of the output of a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest

import crosscut as cc
from crosscut.contracts.connectors import CommitPermit, SinkContext
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed, SegmentOpened
from crosscut.protocol.log.identity import FlowIdentity, OperatorIdentity
from crosscut.protocol.snapshots import PendingTransaction, Snapshot, TaskSnapshot
from crosscut.spark.data.crosscut_format import CrosscutDataSource, OutputStreamReader
from crosscut.spark.data.output_files import OutputOf, schema_of
from crosscut.store.checkpoint_store import open_store

TASK = TaskId(VertexId("shown"), 0)


def output_of(url: Path, *completed: int, pending: Snapshot | None = None) -> OutputOf:
    store = open_store(str(url))
    claim = EpochClaimed(Epoch(1), Lineage("a1"), "d", "f", 1, 1, CheckpointId(1))
    store.append(LogIndex(1, 0), SegmentOpened(claim, None))
    for number, n in enumerate(completed, 1):
        store.append(
            LogIndex(1, number),
            CheckpointCompleted(Epoch(1), CheckpointId(n), (TaskSnapshot(TASK, pending or Snapshot()),)),
        )
    return OutputOf(str(url), "lines", str(url / "out"), "jsonl")


def reader_of(url: Path, *completed: int) -> OutputStreamReader:
    output = output_of(url, *completed)
    return OutputStreamReader(output, schema_of(output))


def test_a_follower_never_goes_back(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, 4, 7)
    for start in 0, 4, 7:
        assert reader.latestOffset({"checkpoint": start}, None) == {"checkpoint": 7}


def test_another_job_in_the_same_place_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="read up to checkpoint 8, and the newest one"):
        reader_of(tmp_path / "younger", 4, 7).latestOffset({"checkpoint": 8}, None)
    with pytest.raises(ConnectorError, match="is 0: another job has replaced it"):
        reader_of(tmp_path / "new").latestOffset({"checkpoint": 1}, None)


def test_a_query_waits_for_output_that_is_being_committed(tmp_path: Path) -> None:
    writer = cc.files.write_jsonl(tmp_path / "out").writer(
        SinkContext(Lineage("a1"), Epoch(1), TASK, "lines", driver="d")
    )
    writer.recover(None, [])
    writer.write(["a"])
    handle = writer.prepare(writer.rotate(CheckpointId(4)))
    pending = Snapshot(pending=(PendingTransaction(CheckpointId(4), handle),))
    output = output_of(tmp_path / "checkpoints", 4, pending=pending)
    output = replace(output, directory=str(tmp_path / "out"))
    assert output.newest() == 0
    with pytest.raises(ConnectorError, match="has not committed all output of checkpoint 4"):
        output.newest_there(timeout_s=0)
    permit = CommitPermit(Lineage("a1"), Epoch(1), CheckpointId(4))
    commit = Timer(0.2, writer.commit, (permit, [handle]))
    commit.start()
    assert output.newest_there() == 4
    commit.join()
    assert output_of(tmp_path / "new").newest_there() == 0


def test_output_is_read_up_to_any_checkpoint_that_has_some_and_no_further(tmp_path: Path) -> None:
    committed_as(tmp_path / "out", 4, 7)
    url = tmp_path / "job"
    store = open_store(str(url))
    flow = FlowIdentity(
        "f", (OperatorIdentity("lines", "sink", connector="JsonLines", details=str(tmp_path / "out")),)
    )
    claim = EpochClaimed(Epoch(1), Lineage("a1"), "d", "f", 1, 1, CheckpointId(1), flow=flow)
    store.append(LogIndex(1, 0), SegmentOpened(claim, None))
    for number, n in enumerate((4, 7), 1):
        completed = CheckpointCompleted(Epoch(1), CheckpointId(n), (TaskSnapshot(TASK, Snapshot()),))
        store.append(LogIndex(1, number), completed)

    def rows(**options: str) -> int:
        source = CrosscutDataSource({"path": str(url), "uid": "lines", **options})
        reader = source.reader(source.schema())
        return sum(1 for partition in reader.partitions() for _ in reader.read(partition))

    assert [rows(), rows(checkpoint="7"), rows(checkpoint="5"), rows(checkpoint="1")] == [2, 2, 1, 0]
    with pytest.raises(ConnectorError, match="whose output of sink 'lines' is completely visible is 7"):
        rows(checkpoint="8")
    for wrong in ("0", "-1", "x", "\u0663"):
        with pytest.raises(ConnectorError, match="expected the number of a checkpoint"):
            rows(checkpoint=wrong)
    source = CrosscutDataSource({"path": str(url), "uid": "lines", "checkpoint": "4"})
    with pytest.raises(ConnectorError, match=r"is for spark\.read: a stream follows all"):
        source.streamReader(source.schema())


def committed_as(directory: Path, *checkpoints: int) -> None:
    """Commit a record for each checkpoint."""
    writer = cc.files.write_jsonl(directory).writer(
        SinkContext(Lineage("a1"), Epoch(1), TASK, "lines", driver="d")
    )
    writer.recover(None, [])
    for n in checkpoints:
        writer.write([n])
        handle = writer.prepare(writer.rotate(CheckpointId(n)))
        writer.commit(CommitPermit(Lineage("a1"), Epoch(1), CheckpointId(n)), [handle])
    writer.close()
