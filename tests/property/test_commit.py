"""The committer against an oracle: sets of prepared and visible transactions, nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from crosscut.foundation.ids import CheckpointId, Epoch, Lineage
from crosscut.protocol.effects import AnnounceCommitted, CommitterEffect, CommitTransactions, FailTask
from crosscut.protocol.events import (
    CommitAttemptFailed,
    CommitAuthorised,
    CommitSucceeded,
    TransactionPrepared,
)
from crosscut.protocol.snapshot.commit import Committer

ATTEMPTS_MAX = 3


@settings(max_examples=500)
@given(st.lists(st.sampled_from(["prepare", "skip", "complete", "repeat", "succeed", "fail"]), max_size=60))
def test_everything_at_or_below_a_completed_checkpoint_is_committed_and_nothing_else(
    steps: list[str],
) -> None:
    """F1, F2."""
    machine = Committer(Lineage("lineage"), Epoch(4), ATTEMPTS_MAX)
    barrier = CheckpointId(0)
    complete = CheckpointId(0)
    prepared: set[CheckpointId] = set()
    visible: set[CheckpointId] = set()
    asked: CommitTransactions | None = None
    attempts = 0
    announced = CheckpointId(0)
    is_failed = False

    def perform(effects: list[CommitterEffect]) -> None:
        nonlocal asked, attempts, announced, is_failed
        for effect in effects:
            match effect:
                case CommitTransactions(permit, handles, delay_ms):
                    assert not is_failed
                    assert asked is None, "two attempts in flight"
                    assert permit.checkpoint_id <= complete
                    assert list(handles) == sorted(n for n in prepared - visible if n <= permit.checkpoint_id)
                    attempts += 1
                    assert (delay_ms > 0) == (attempts > 1)
                    asked = effect
                case AnnounceCommitted(n):
                    assert announced < n <= complete
                    assert {one for one in prepared if one <= n} <= visible
                    announced = n
                case FailTask():
                    assert attempts == ATTEMPTS_MAX
                    is_failed = True

    for step in steps:
        match step:
            case "prepare":
                barrier = CheckpointId(barrier + 1)
                prepared.add(barrier)
                perform(machine.handle(TransactionPrepared(barrier, barrier)))
            case "skip":
                # A barrier at which nothing had been written, or whose checkpoint was aborted.
                barrier = CheckpointId(barrier + 1)
            case "complete" if barrier > complete:
                complete = barrier
                perform(machine.handle(CommitAuthorised(complete)))
            case "repeat" if complete:
                assert machine.handle(CommitAuthorised(complete)) == []
            case "succeed" if asked:
                visible |= {one for one in prepared if one <= asked.permit.checkpoint_id}
                asked, attempts = None, 0
                perform(machine.handle(CommitSucceeded()))
            case "fail" if asked:
                asked = None
                perform(machine.handle(CommitAttemptFailed("time out")))
            case _:
                pass
        pending = [one.checkpoint_id for one in machine.pending(barrier)]
        assert pending == sorted(prepared - visible), "the snapshot holds what is not known to be committed"
    while asked is not None:
        visible |= {one for one in prepared if one <= asked.permit.checkpoint_id}
        asked, attempts = None, 0
        perform(machine.handle(CommitSucceeded()))
    if not is_failed:
        assert announced == complete
        assert {one for one in prepared if one <= complete} == visible
