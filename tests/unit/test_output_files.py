"""What is followed of the output of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosscut.errors import ConnectorError
from crosscut.ids import CheckpointId, Epoch, Lineage, LogIndex
from crosscut.protocol.job.entries import CheckpointCompleted, EpochClaimed, SegmentOpened
from crosscut.spark.crosscut_format import OutputStreamReader
from crosscut.spark.output_files import OutputOf, schema_of
from crosscut.store.checkpoint_store import open_store


def reader_of(url: Path, *completed: int) -> OutputStreamReader:
    store = open_store(str(url))
    claim = EpochClaimed(Epoch(1), Lineage("a1"), "d", "f", 1, 1, CheckpointId(1))
    store.append(LogIndex(1, 0), SegmentOpened(claim, None))
    for number, n in enumerate(completed, 1):
        store.append(LogIndex(1, number), CheckpointCompleted(Epoch(1), CheckpointId(n), ()))
    output = OutputOf(str(url), "lines", str(url / "out"), "jsonl")
    return OutputStreamReader(output, schema_of(output))


def test_a_follower_never_goes_back(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, 4, 7)
    for start in 0, 4, 7:
        assert reader.latestOffset({"checkpoint": start}, None) == {"checkpoint": 7}


def test_another_job_in_the_same_place_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="read up to checkpoint 8, and the newest one"):
        reader_of(tmp_path / "younger", 4, 7).latestOffset({"checkpoint": 8}, None)
    with pytest.raises(ConnectorError, match="is 0: another job has taken its place"):
        reader_of(tmp_path / "new").latestOffset({"checkpoint": 1}, None)
