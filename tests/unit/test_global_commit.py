"""What all tasks of a sink have staged, for the first one to commit: whatever each has let go of already."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulation.conversation import K0, Talk, both, deletes, paths

from crosscut.contracts.connectors import CommitPermit
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.protocol.checkpoint import global_committer as together_module
from crosscut.protocol.checkpoint.global_committer import GlobalCommitter
from crosscut.protocol.effects import AnnounceCommitted, CancelTimer, CommitTransactions
from crosscut.protocol.events import CommitAuthorised, CommitSucceeded, Timer, TransactionPrepared
from crosscut.protocol.job.coordinator import Coordinator, Phase
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import AbortCheckpoint, GlobalCommit
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshots import KnownCommitted, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.wire.frames import CONTROL_LIMITS, FrameType

OUT, OTHER = VertexId("out"), VertexId("other")
N1, N2, N3 = CheckpointId(1), CheckpointId(2), CheckpointId(3)
LINEAGE, E1 = Lineage("a"), Epoch(1)


def staged(n: CheckpointId, *handles: str) -> tuple[PendingTransaction, ...]:
    return tuple(PendingTransaction(n, handle) for handle in handles)


def entry(
    n: CheckpointId, *pending: tuple[PendingTransaction, ...], vertex: VertexId = OUT
) -> CheckpointCompleted:
    """As the tasks have acknowledged it, by index."""
    snapshots = tuple(
        TaskSnapshot(TaskId(vertex, index), Snapshot(pending=one)) for index, one in enumerate(pending)
    )
    return CheckpointCompleted(E1, n, snapshots, False, 1, "")


def pending_in(one: CheckpointCompleted) -> list[tuple[PendingTransaction, ...]]:
    return [each.snapshot.pending for each in one.snapshots]


def together() -> GlobalCommitter:
    found = GlobalCommitter(frozenset({OUT}))
    found.begin()
    return found


def test_in_the_entry_all_of_it_is_the_first_tasks_and_it_is_told_to_commit_it() -> None:
    machine = together()
    gathered = machine.gathered(
        entry(N2, staged(N1, "a1") + staged(N2, "a2"), staged(N2, "b2"), staged(N1, "c1"))
    )
    of_all = staged(N1, "a1", "c1") + staged(N2, "a2", "b2")
    assert pending_in(gathered) == [of_all, (), ()]
    assert machine.completed(gathered) == (GlobalCommit(OUT, of_all),)


def test_other_sinks_keep_what_they_have() -> None:
    machine = together()
    plain = entry(N1, staged(N1, "a"), staged(N1, "b"), vertex=OTHER)
    assert machine.gathered(plain) == plain
    assert machine.completed(plain) == ()
    assert GlobalCommitter(frozenset()).gathered(plain) is plain


def test_what_is_complete_and_not_known_to_be_committed_is_in_every_entry_that_follows() -> None:
    """Checkpoint 1 is complete. One task has heard of it and has nothing any more, the first has not yet."""
    machine = together()
    machine.completed(machine.gathered(entry(N1, staged(N1, "a"), staged(N1, "b"))))
    second = machine.gathered(entry(N2, staged(N1, "a") + staged(N2, "aa"), ()))
    assert pending_in(second) == [staged(N1, "a", "b") + staged(N2, "aa"), ()]
    machine.committed(TaskId(OUT, 1), N2)
    machine.committed(TaskId(OUT, 0), N1)
    third = machine.gathered(entry(N3, staged(N2, "aa"), staged(N3, "bbb")))
    assert pending_in(third) == [staged(N2, "aa") + staged(N3, "bbb"), ()]


def test_an_epoch_begins_with_all_committed_that_it_restores() -> None:
    machine = together()
    machine.completed(machine.gathered(entry(N1, staged(N1, "a"), ())))
    machine.begin()
    assert pending_in(machine.gathered(entry(N3, staged(N3, "x"), ()))) == [staged(N3, "x"), ()]


def test_the_first_task_commits_what_it_is_told_and_the_others_nothing() -> None:
    first, other = Committer(LINEAGE, E1, 3), Committer(LINEAGE, E1, 3)
    for machine, handle in ((first, "a"), (other, "b")):
        machine.handle(TransactionPrepared(N1, handle))
        machine.handle(TransactionPrepared(N2, handle * 2))
    told = CommitAuthorised(N1, staged(N1, "a", "b"))
    permit = CommitPermit(LINEAGE, E1, N1)
    assert first.handle(told) == [CommitTransactions(permit, ("a", "b"))]
    assert first.pending(N2) == staged(N1, "a", "b") + staged(N2, "aa")
    assert other.handle(replace(told, together=())) == [AnnounceCommitted(N1)]
    assert other.pending(N2) == staged(N2, "bb")


def test_what_has_been_committed_is_not_committed_again_because_the_coordinator_does_not_know_yet() -> None:
    machine = Committer(LINEAGE, E1, 3)
    machine.handle(CommitAuthorised(N1, staged(N1, "a", "b")))
    # While that is under way:
    assert machine.handle(CommitAuthorised(N2, staged(N1, "a", "b") + staged(N2, "bb"))) == []
    assert machine.handle(CommitSucceeded()) == [
        AnnounceCommitted(N1),
        CommitTransactions(CommitPermit(LINEAGE, E1, N2, committed=N1), ("bb",)),
    ]
    machine.handle(CommitSucceeded())
    assert machine.handle(CommitAuthorised(N3, staged(N1, "a", "b") + staged(N2, "bb"))) == [
        AnnounceCommitted(N3)
    ]


def test_what_no_message_could_hold_is_not_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be committed, nor restored, and a checkpoint in the log can't be taken back."""
    assert CONTROL_LIMITS[FrameType.CONTROL] // 2 >= together_module.BYTES_MAX
    monkeypatch.setattr(together_module, "BYTES_MAX", 2_000)
    machine = together()
    assert machine.problem(machine.gathered(entry(N1, staged(N1, "a" * 900), staged(N1, "b" * 800)))) is None
    too_long = machine.gathered(entry(N1, staged(N1, "a" * 900), staged(N1, "b" * 900)))
    problem = machine.problem(too_long)
    assert problem is not None and problem.shown.startswith(
        "what the tasks of sink out have staged takes 2004 bytes to say, and all that is committed together "
        "may take 2000"
    )
    plain = entry(N1, staged(N1, "a" * 3_000), vertex=OTHER)
    assert machine.problem(plain) == GlobalCommitter(frozenset()).problem(plain) is None


def test_a_checkpoint_with_more_than_that_fails_and_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together_module, "BYTES_MAX", 10)
    talk = Talk(lambda terms: Coordinator(replace(terms, together=frozenset({K0.vertex}))))
    talk.running()
    talk.fire("trigger")
    effects = talk.acknowledge(1)
    assert effects == [
        CancelTimer(Timer("checkpoint-timeout", E1, N1)),
        *both(AbortCheckpoint(E1, N1)),
        *deletes(paths(1)),
    ]
    assert "what the tasks of sink out have staged takes" in talk.coordinator.checkpoints.failed.last_failure
    assert talk.coordinator.phase is Phase.RUNNING
    monkeypatch.undo()
    talk.complete(2, 2)
    assert talk.coordinator.completed is not None


def test_what_the_first_task_said_after_its_snapshot_is_known_to_be_committed() -> None:
    """P7: its snapshot says less than the coordinator has heard, and does not hold the transaction."""
    machine = together()
    machine.completed(machine.gathered(entry(N1, staged(N1, "a"), staged(N1, "b"))))
    machine.committed(TaskId(OUT, 0), N2)
    said = KnownCommitted(CheckpointId(0), "here")
    found = machine.gathered(
        CheckpointCompleted(
            E1,
            N3,
            (
                TaskSnapshot(TaskId(OUT, 0), Snapshot(pending=staged(N1, "a"), committed=said)),
                TaskSnapshot(TaskId(OUT, 1), Snapshot(pending=staged(N3, "c"), committed=said)),
            ),
        )
    )
    first, second = (one.snapshot for one in found.snapshots)
    assert (first.pending, first.committed) == (staged(N3, "c"), KnownCommitted(N1, "here"))
    assert (second.pending, second.committed) == ((), None)
    machine.begin()
    (first, _) = (one.snapshot for one in machine.gathered(found).snapshots)
    assert first.committed == KnownCommitted(N1, "here")
