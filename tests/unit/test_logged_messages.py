"""What is said to people about a job whose workers have logs of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.simulation.conversation import at, claim
from tests.unit.test_demo import STATUS

from crosscut.cli.commands import _ending
from crosscut.cli.transactions import unfinished
from crosscut.contracts.connectors import CommittedOutput
from crosscut.errors import StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.log.entries import SegmentOpened
from crosscut.protocol.log.history import NewerOutput, shown
from crosscut.protocol.unit_log.entries import commit_number, group_of
from crosscut.store import open_store

GROUP = LogIndex(2, 47)


def test_commit_numbers_are_told_from_checkpoints() -> None:
    assert group_of(commit_number(GROUP)) == GROUP
    assert group_of(CheckpointId(8_000)) is None


def test_output_that_is_newer_than_a_log_names_the_group_and_the_log() -> None:
    task = TaskId(VertexId("out"), 3)
    output = CommittedOutput("db", Lineage("l"), "out", task, Epoch(1), "d", commit_number(GROUP))
    text = shown(NewerOutput(output, CheckpointId(0)))
    assert f"up to group 2/47 (commit number {commit_number(GROUP)})" in text
    assert "The log of worker 3 (units/3) has lost entries" in text
    text = shown(NewerOutput(replace(output, checkpoint_id=CheckpointId(7)), CheckpointId(5)))
    assert "up to checkpoint 7" in text and "The job log has lost entries" in text


def test_transactions_in_logs_of_workers_are_refused_by_name(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "cp"))
    store.append(at(1), SegmentOpened(replace(claim(), unit_log="objects"), None))
    with pytest.raises(StoreError, match=r"logs of their own .*the next start commits it"):
        unfinished(store)


def test_the_end_of_a_job_says_where_the_next_start_goes_on() -> None:
    assert "logs of its workers" in _ending("stopped", STATUS, "cp", is_logged=True)
    assert _ending("finished", STATUS, "cp", is_logged=True).startswith("finished: everything")
