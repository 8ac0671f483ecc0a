"""Pending output that an operator gives up: which claim drops it, and what is restored then (P6)."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import crosscut as cc
from crosscut.cli.commands import program
from crosscut.cli.transactions import Pending, Unfinished, listing
from crosscut.contracts.connectors import CommitPermit, SinkContext
from crosscut.driver.dropping import drop_output
from crosscut.errors import StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.checkpoint.retention import Retention
from crosscut.protocol.job.dropping import NothingToDrop, dropping
from crosscut.protocol.job.pending_output import restored
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
    OpenOutput,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.identity import Claimant, FlowIdentity
from crosscut.protocol.log.recovery import Claim, JobIdentity, claim
from crosscut.protocol.snapshots import PendingTransaction, Snapshot, TaskSnapshot
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.files import LocalFiles

OWNER = EpochClaimed(
    Epoch(3),
    Lineage("a"),
    "driver 1",
    "graph",
    1,
    8,
    CheckpointId(1),
    FlowIdentity("orders"),
    Claimant("host", 0),
)
OPERATOR = Claimant("ann@host", 77, "2026-01-01T00:00:00")
JOB = JobIdentity("driver 2", Lineage("new"), "graph", 1, 8, FlowIdentity("orders"), "host", 22)


def task(index: int) -> TaskId:
    return TaskId(VertexId("orders"), index)


def output(index: int, n: int) -> OpenOutput:
    return OpenOutput(task(index), CheckpointId(n))


def completed(n: int, *pending: Sequence[int], epoch: int = 3) -> CheckpointCompleted:
    """Checkpoint n, with the transactions that each task has pending, by checkpoint."""
    snapshots = tuple(
        TaskSnapshot(
            task(index),
            Snapshot(pending=tuple(PendingTransaction(CheckpointId(m), {"checkpoint": m}) for m in of_task)),
        )
        for index, of_task in enumerate(pending)
    )
    return CheckpointCompleted(Epoch(epoch), CheckpointId(n), snapshots)


def pending_of(entry: CheckpointCompleted | None) -> list[list[int]]:
    assert entry is not None
    return [[one.checkpoint_id for one in each.snapshot.pending] for each in entry.snapshots]


def tail(*entries: LogEntry) -> tuple[tuple[LogIndex, LogEntry], ...]:
    return tuple((LogIndex(1, number), entry) for number, entry in enumerate(entries, 1))


def dropped(log: Sequence[tuple[LogIndex, LogEntry]], *wanted: OpenOutput) -> EpochClaimed:
    found = dropping(log, wanted, OPERATOR, "tool", "the column is too short")
    assert isinstance(found, Claim), found
    return found.entry


def test_a_drop_is_a_claim_of_the_next_epoch_that_says_what_who_and_why() -> None:
    found = dropped(tail(OWNER, completed(5, [4, 5], [5])), output(0, 5))
    assert found == replace(
        OWNER,
        epoch=Epoch(4),
        driver="tool",
        claimant=OPERATOR,
        first_checkpoint_id=CheckpointId(2_001),
        dropped=(output(0, 5),),
        reason="the column is too short",
    )


def test_the_next_driver_restores_the_checkpoint_without_what_was_dropped() -> None:
    log = tail(OWNER, completed(5, [4, 5], [5]))
    after = (*log, (LogIndex(1, 3), dropped(log, output(0, 4))))
    found = claim(after, JOB)
    assert isinstance(found, Claim)
    assert pending_of(found.restored) == [[5], [5]]
    assert found.entry.dropped == ()
    assert found.entry.epoch == 5


def test_drops_add_up_until_the_next_checkpoint_is_complete() -> None:
    log = tail(OWNER, completed(5, [4, 5], [5]))
    first = dropped(log, output(0, 4))
    second = dropped((*log, (LogIndex(1, 3), first)), output(1, 5))
    # The claim of a new segment says it again in its head.
    log = (*log, (LogIndex(1, 3), first), (LogIndex(2, 0), SegmentOpened(second, LogIndex(1, 3))))
    assert pending_of(restored(log)) == [[5], []]
    newer = completed(2_001, [5, 2_001], [2_001], epoch=6)
    assert pending_of(restored((*log, (LogIndex(2, 1), newer)))) == [[5, 2_001], [2_001]]


def test_what_is_not_pending_any_more_is_not_dropped() -> None:
    log = tail(OWNER, completed(5, [4, 5]))
    again = (*log, (LogIndex(1, 3), dropped(log, output(0, 4))))
    for entries, wanted in ((log, output(0, 3)), (log, output(1, 5)), (again, output(0, 4))):
        found = dropping(entries, [wanted], OPERATOR, "tool", "why")
        assert isinstance(found, NothingToDrop)
        assert "has no pending transaction" in found.reason


def test_a_job_that_has_finished_or_completed_nothing_has_nothing_to_drop() -> None:
    for log in ((), tail(OWNER), tail(OWNER, completed(5, [5]), JobFinished(Epoch(3), CheckpointId(5)))):
        assert isinstance(dropping(log, [output(0, 5)], OPERATOR, "tool", "why"), NothingToDrop)


# In a store.


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    found = open_store(str(tmp_path / "checkpoints"))
    found.append(LogIndex(1, 0), SegmentOpened(OWNER, None))
    found.append(LogIndex(1, 1), completed(5, [4, 5], [5]))
    return found


def test_the_driver_that_still_runs_finds_its_entry_taken(store: CheckpointStore) -> None:
    """B5: it is fenced, and nothing that it does afterwards counts."""
    drop_output(store, [output(0, 4)], OPERATOR, "why")
    assert isinstance(store.read(LogIndex(1, 2)), SegmentClosed)
    assert pending_of(restored(store.tail(1))) == [[5], [5]]


def test_of_two_drops_at_once_the_slower_one_drops_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    class Overtaken(CheckpointStore):
        def append(self, index: LogIndex, entry: LogEntry, since: LogIndex | None = None) -> Any:
            if index == LogIndex(1, 2):
                drop_output(store, [output(1, 5)], OPERATOR, "faster")
            return super().append(index, entry, since)

    slower = Overtaken(LocalFiles(str(tmp_path / "checkpoints")))
    with pytest.raises(StoreError, match="nothing was dropped: another process"):
        drop_output(slower, [output(0, 4)], OPERATOR, "slower")
    assert pending_of(restored(store.tail(1))) == [[4, 5], []]


def run(*arguments: str, typed: str | None = None) -> Any:
    return CliRunner().invoke(program, ["transactions", *arguments], input=typed)


def test_the_command_lists_drops_and_says_who_dropped_what(store: CheckpointStore, tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")
    listed = run("ls", directory)
    assert listed.exit_code == 0, listed.output
    assert "3 prepared transactions" in listed.output
    refused = run("drop", directory, "--sink", "orders[0]", "--reason", "too long", typed="n\n")
    assert refused.exit_code == 1
    assert pending_of(restored(store.tail(1))) == [[4, 5], [5]], "nothing is dropped without the word"
    done = run("drop", directory, "--sink", "orders[0]", "--reason", "too long", "--yes")
    assert done.exit_code == 0, done.output
    listed = run("ls", directory)
    assert "1 prepared transactions" in listed.output
    assert "too long" in listed.output
    assert "orders[0] of checkpoint 4" in " ".join(listed.output.split())


def test_a_sink_without_pending_output_and_an_empty_reason_are_refused_by_name(
    store: CheckpointStore, tmp_path: Path
) -> None:
    directory = str(tmp_path / "checkpoints")
    unknown = run("drop", directory, "--sink", "order", "--reason", "why", "--yes")
    assert unknown.exit_code == 2
    assert "no pending transaction of 'order'; tasks with pending transactions: orders[0], orders[1]" in (
        unknown.output
    )
    empty = run("drop", directory, "--sink", "orders", "--reason", " ", "--yes")
    assert empty.exit_code == 2
    assert "--reason" in empty.output
    assert json.dumps(pending_of(restored(store.tail(1)))) == "[[4, 5], [5]]"


def test_letters_that_are_committed_are_listed_so_also_without_records(tmp_path: Path) -> None:
    """An operator who takes them for pending would drop what everybody sees."""
    flow = cc.Flow("orders")
    letters = cc.files.write_jsonl(tmp_path / "bad")
    flow.source(cc.items([1])).sink(cc.files.write_jsonl(tmp_path / "good"), dead_letters=letters)
    (vertex,) = [one for one in flow.compile(1, 8).vertices if one.sink is not None]
    assert vertex.sink is not None
    uid, one_task = vertex.chain[-1].uid, TaskId(vertex.vertex_id, 0)
    context = SinkContext(OWNER.lineage, OWNER.epoch, one_task, uid, driver="driver-1")
    writer = vertex.sink.sink.writer(context)
    writer.recover(None, [])
    handles = []
    for n, record in ((1, object()), (2, object()), (3, "taken")):
        writer.write([record])
        handles.append(writer.prepare(writer.rotate(CheckpointId(n))))
    writer.commit(CommitPermit(OWNER.lineage, OWNER.epoch, CheckpointId(1)), handles[:1])
    writer.close()
    pending = tuple(PendingTransaction(CheckpointId(n), one) for n, one in enumerate(handles, 1))
    entry = CheckpointCompleted(
        OWNER.epoch, CheckpointId(3), (TaskSnapshot(one_task, Snapshot(pending=pending)),)
    )
    found = Unfinished((OWNER,), entry, [Pending(one_task, one) for one in pending])
    shown = io.StringIO()
    Console(file=shown, width=200).print(listing(found, flow))
    states = re.findall(r" (\d) +(committed|pending) ", shown.getvalue())
    assert states == [("1", "committed"), ("2", "pending"), ("3", "pending")], shown.getvalue()


# In the coordinator.


def test_a_driver_that_starts_deploys_its_sinks_without_what_was_dropped() -> None:
    """It is not enough that the claim knows: what is restored is what the tasks are sent."""
    found = Retention(2, 1_000)
    log = tail(OWNER, completed(5, [4, 5], [5]))
    found.found((*log, (LogIndex(1, 3), dropped(log, output(0, 4)))))
    assert pending_of(found.completed) == [[5], [5]]
