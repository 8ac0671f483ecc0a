"""The committer: what it asks for, what it announces, what it refuses."""

from copy import deepcopy
from dataclasses import replace

import pytest

from crosscut.contracts.connectors import HAS_NO_RECORDS, CommitPermit
from crosscut.errors import ProtocolError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage
from crosscut.protocol.effects import AnnounceCommitted, CommitterEffect, CommitTransactions, FailTask
from crosscut.protocol.events import (
    CommitAttemptFailed,
    CommitAuthorised,
    CommitSucceeded,
    CommitterEvent,
    TransactionPrepared,
)
from crosscut.protocol.snapshot.commit import (
    RETRY_DELAY_MS,
    Committer,
    known_after,
    known_before,
    restore_permit,
)
from crosscut.protocol.snapshots import KnownCommitted, PendingTransaction, Snapshot

LINEAGE, EPOCH = Lineage("lineage"), Epoch(4)
N1, N2, N3 = CheckpointId(1), CheckpointId(2), CheckpointId(3)


def after(machine: Committer, *events: CommitterEvent) -> list[CommitterEffect]:
    effects: list[CommitterEffect] = []
    for event in events:
        effects = machine.handle(event)
    return effects


def committer(*prepared: CheckpointId, attempts_max: int = 3) -> Committer:
    machine = Committer(LINEAGE, EPOCH, attempts_max)
    for n in prepared:
        assert machine.handle(TransactionPrepared(n, f"t{n}")) == []
    return machine


def permit(n: CheckpointId, committed: CheckpointId = CheckpointId(0)) -> CommitPermit:
    return CommitPermit(LINEAGE, EPOCH, n, committed)


def test_a_completed_checkpoint_is_committed_then_announced() -> None:
    machine = committer(N1)
    assert machine.handle(CommitAuthorised(N1)) == [CommitTransactions(permit(N1), ("t1",))]
    assert machine.handle(CommitSucceeded()) == [AnnounceCommitted(N1)]


def test_completing_n_commits_everything_staged_at_or_below_n() -> None:
    """F2: the word about 1 was lost, or checkpoint 1 was aborted after its transaction was cut off."""
    machine = committer(N1, N2, N3)
    assert machine.handle(CommitAuthorised(N2)) == [CommitTransactions(permit(N2), ("t1", "t2"))]
    assert machine.pending(N3) == tuple(PendingTransaction(n, f"t{n}") for n in (N1, N2, N3))
    assert machine.handle(CommitSucceeded()) == [AnnounceCommitted(N2)]
    assert machine.pending(N3) == (PendingTransaction(N3, "t3"),)


def test_a_sink_that_is_behind_commits_one_checkpoint_at_a_time_in_order() -> None:
    """What it has answered for is known at once: after a failure only the rest is committed again."""
    machine = committer(N1, N2, N3)
    assert machine.handle(CommitAuthorised(N1)) == [CommitTransactions(permit(N1), ("t1",))]
    assert after(machine, CommitAuthorised(N2), CommitAuthorised(N3)) == []
    assert machine.handle(CommitSucceeded()) == [
        AnnounceCommitted(N1),
        CommitTransactions(replace(permit(N2), committed=N1), ("t2",)),
    ]
    assert machine.handle(CommitAttemptFailed("x")) == [
        CommitTransactions(replace(permit(N2), committed=N1), ("t2",), RETRY_DELAY_MS)
    ]
    assert machine.handle(CommitSucceeded()) == [
        AnnounceCommitted(N2),
        CommitTransactions(replace(permit(N3), committed=N2), ("t3",)),
    ]
    assert machine.handle(CommitSucceeded()) == [AnnounceCommitted(N3)]
    assert machine.pending(N3) == ()


def test_checkpoints_for_which_a_task_has_written_nothing_are_announced_with_those_it_commits() -> None:
    machine = committer(N2)
    machine.handle(CommitAuthorised(N2))
    assert after(machine, CommitAuthorised(N3)) == []
    assert machine.handle(CommitSucceeded()) == [AnnounceCommitted(N2), AnnounceCommitted(N3)]


def test_the_snapshot_holds_what_is_pending_at_or_below_its_barrier() -> None:
    assert committer(N1, N3).pending(N2) == (PendingTransaction(N1, "t1"),)


def test_a_checkpoint_without_output_is_announced_at_once() -> None:
    """F8: an empty transaction is none."""
    assert committer().handle(CommitAuthorised(N1)) == [AnnounceCommitted(N1)]
    assert committer(N2).handle(CommitAuthorised(N1)) == [AnnounceCommitted(N1)]


def test_a_repeated_or_older_completion_changes_nothing() -> None:
    """B3, E3."""
    machine = committer(N2)
    after(machine, CommitAuthorised(N2), CommitSucceeded())
    assert machine.handle(CommitAuthorised(N2)) == []
    assert machine.handle(CommitAuthorised(N1)) == []
    assert machine.dropped == {"repeated completion": 2}


def test_one_attempt_at_a_time_and_the_next_completion_follows() -> None:
    machine = committer(N1, N2)
    after(machine, CommitAuthorised(N1))
    assert machine.handle(CommitAuthorised(N2)) == []
    assert machine.handle(CommitSucceeded()) == [
        AnnounceCommitted(N1),
        CommitTransactions(permit(N2, N1), ("t2",)),
    ]


def test_an_attempt_that_failed_or_whose_outcome_is_unknown_is_repeated_with_growing_delay() -> None:
    """F1: commits are idempotent, so unknown is simply tried again."""
    machine = committer(N1)
    machine.handle(CommitAuthorised(N1))
    delays = []
    for _ in range(2):
        (effect,) = machine.handle(CommitAttemptFailed("time out"))
        assert isinstance(effect, CommitTransactions)
        assert effect.handles == ("t1",)
        delays.append(effect.delay_ms)
    assert delays == [RETRY_DELAY_MS, 2 * RETRY_DELAY_MS]
    assert machine.handle(CommitSucceeded()) == [AnnounceCommitted(N1)]


def test_a_repeated_attempt_covers_what_its_permit_covers_and_no_more() -> None:
    machine = committer(N1, N2)
    after(machine, CommitAuthorised(N1), CommitAuthorised(N2))
    retry = CommitTransactions(permit(N1), ("t1",), RETRY_DELAY_MS)
    assert machine.handle(CommitAttemptFailed("time out")) == [retry]


def test_attempts_start_from_none_with_the_next_checkpoint() -> None:
    machine = committer(N1, N2, attempts_max=2)
    after(machine, CommitAuthorised(N1), CommitAttemptFailed("x"), CommitSucceeded(), CommitAuthorised(N2))
    assert machine.handle(CommitAttemptFailed("x")) == [
        CommitTransactions(permit(N2, N1), ("t2",), RETRY_DELAY_MS)
    ]


def test_a_refusal_for_good_is_not_tried_again_in_this_epoch() -> None:
    machine = committer(N1, attempts_max=5)
    (failed,) = after(machine, CommitAuthorised(N1), CommitAttemptFailed("not null", is_permanent=True))
    assert failed == FailTask(
        "the output of checkpoint 1 could not be committed in 1 attempts, the last one: not null",
        is_permanent=True,
    )


def test_after_the_last_attempt_the_task_fails_and_nothing_more_is_tried() -> None:
    """I12: a commit that does not work is never skipped; the restore commits again."""
    machine = committer(N1, attempts_max=2)
    failed = after(machine, CommitAuthorised(N1), CommitAttemptFailed("x"), CommitAttemptFailed("denied"))
    reason = "the output of checkpoint 1 could not be committed in 2 attempts, the last one: denied"
    assert failed == [FailTask(reason)]
    assert after(machine, TransactionPrepared(N2, "t2"), CommitAuthorised(N2)) == []
    assert [one.handle for one in machine.pending(N2)] == ["t1", "t2"]


def test_a_failed_commit_says_whether_a_later_attempt_may_succeed() -> None:
    machine = committer(N1, attempts_max=1)
    (failed,) = after(machine, CommitAuthorised(N1), CommitAttemptFailed("down", is_transient=True))
    assert isinstance(failed, FailTask)
    assert failed.is_transient and not failed.is_permanent


@pytest.mark.parametrize(
    ("history", "event", "message"),
    [
        ((), CommitSucceeded(), "not asked for"),
        ((), CommitAttemptFailed("x"), "not asked for"),
        ((TransactionPrepared(N2, "t"),), TransactionPrepared(N2, "t"), "out of order"),
        ((TransactionPrepared(N2, "t"),), TransactionPrepared(N1, "t"), "out of order"),
        ((CommitAuthorised(N2),), TransactionPrepared(N2, "t"), "completed before"),
        (
            (TransactionPrepared(N1, "t"), CommitAuthorised(N1), CommitAttemptFailed("x")),
            CommitSucceeded(),
            "not asked for",
        ),
    ],
)
def test_impossible_input_raises_and_changes_nothing(
    history: tuple[CommitterEvent, ...], event: CommitterEvent, message: str
) -> None:
    machine = committer(attempts_max=1)
    after(machine, *history)
    before = deepcopy(vars(machine))
    with pytest.raises(ProtocolError, match=message):
        machine.handle(event)
    assert vars(machine) == before


def test_a_restored_checkpoint_is_its_own_permit() -> None:
    """B2."""
    assert restore_permit(LINEAGE, EPOCH, N3) == permit(N3)
    assert restore_permit(LINEAGE, EPOCH, CheckpointId(0)) is None


# What is known to be committed (P7).


def test_what_the_sink_has_confirmed_is_known_and_goes_with_the_next_permit() -> None:
    """Not what is authorised, and not a checkpoint without a transaction: its marker may say less."""
    machine = committer(N1)
    machine.handle(CommitAuthorised(N2))
    assert machine.committed == KnownCommitted()
    machine.handle(CommitAttemptFailed("no answer"))
    assert machine.committed == KnownCommitted()
    machine.handle(CommitSucceeded())
    assert machine.committed == KnownCommitted(N1)
    machine.handle(TransactionPrepared(N3, "t3"))
    permit = CommitPermit(LINEAGE, EPOCH, N3, committed=N1)
    assert machine.handle(CommitAuthorised(N3)) == [CommitTransactions(permit, ("t3",))]


def test_an_epoch_begins_with_what_was_known_and_what_its_restore_has_committed() -> None:
    here = known_before(Snapshot(), "topic a")
    assert here.checkpoint_id == 0
    snapshot = Snapshot(committed=KnownCommitted(N1, here.location), pending=(PendingTransaction(N2, "t2"),))
    before = known_before(snapshot, "topic a")
    assert before.checkpoint_id == N1
    assert known_after(before, snapshot).checkpoint_id == N2
    assert known_after(before, Snapshot()).checkpoint_id == N1
    assert restore_permit(LINEAGE, EPOCH, N2, N1) == CommitPermit(LINEAGE, EPOCH, N2, N1)
    machine = Committer(LINEAGE, EPOCH, 3, known_after(before, snapshot))
    machine.handle(TransactionPrepared(N3, "t3"))
    permit = CommitPermit(LINEAGE, EPOCH, N3, committed=N2)
    assert machine.handle(CommitAuthorised(N3)) == [CommitTransactions(permit, ("t3",))]


def test_what_was_committed_elsewhere_says_nothing_of_where_a_sink_writes_now() -> None:
    there = known_before(Snapshot(), "topic a").location
    moved = known_before(Snapshot(committed=KnownCommitted(N3, there)), "topic b")
    assert moved.checkpoint_id == 0
    assert moved.location not in ("", there)


def test_a_transaction_without_records_moves_nothing_that_a_sink_remembers() -> None:
    """P7: of dead letters alone. The sink's marker stays where it was, and that is no loss."""
    machine = committer(N1)
    machine.handle(TransactionPrepared(N2, {HAS_NO_RECORDS: True}))
    after(machine, CommitAuthorised(N2), CommitSucceeded())
    assert machine.committed == KnownCommitted(N1)
    letters = PendingTransaction(N3, {HAS_NO_RECORDS: True})
    assert known_after(machine.committed, Snapshot(pending=(letters,))) == KnownCommitted(N1)
