"""Two checkpoints under way: the newer is complete first, or the entry of the older is refused (P11)."""

from __future__ import annotations

from conversation import Talk, answered, appends, at, both, completed, deletes, paths
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.protocol.effects import CancelTimer
from crosscut.protocol.events import EntryAppended, EntryRefused, Timer
from crosscut.protocol.messages import AbortCheckpoint, CommitCheckpoint

E1 = Epoch(1)
N1, N2 = CheckpointId(1), CheckpointId(2)


def under_way() -> Talk:
    talk = Talk(in_flight_max=2)
    talk.running()
    talk.fire("trigger")
    talk.fire("trigger")
    return talk


def timeout_of(n: CheckpointId) -> CancelTimer:
    return CancelTimer(Timer("checkpoint-timeout", E1, n))


def test_a_complete_checkpoint_aborts_the_older_ones_that_are_still_under_way() -> None:
    """I10, I11: their tasks would wait for the barrier, and their parts lie about, until the timeout."""
    talk = under_way()
    talk.acknowledge(2)
    effects = talk.hear(EntryAppended(at(2)))
    assert [timeout_of(N2), *both(CommitCheckpoint(E1, N2))] == [
        one for one in effects if one == timeout_of(N2) or one in both(CommitCheckpoint(E1, N2))
    ]
    assert [one for one in effects if one == timeout_of(N1) or one in both(AbortCheckpoint(E1, N1))] == [
        timeout_of(N1),
        *both(AbortCheckpoint(E1, N1)),
    ]
    assert talk.coordinator.completed == completed(2)
    assert talk.coordinator.checkpoints.failed.failed_count == 0, (
        "it was of no use any more, and has not failed"
    )


def test_an_older_entry_that_is_refused_makes_room_for_the_newer_one_behind_it() -> None:
    """B4, D4: one that was certainly not written is void; what waits takes its place in the log."""
    talk = under_way()
    assert talk.acknowledge(1) == appends(2, completed(1))
    assert talk.acknowledge(2) == [], "it waits for the verdict on the older one"
    effects = talk.hear(EntryRefused(at(2), "no space"))
    assert effects == [
        *answered(2),
        *appends(2, completed(2), step=3),
        timeout_of(N1),
        *both(AbortCheckpoint(E1, N1)),
    ], "its parts stay while the outcome of an append is not known"
    effects = talk.hear(EntryAppended(at(2)))
    assert [one for one in effects if one in (*both(CommitCheckpoint(E1, N2)), *deletes(paths(1)))] == [
        *both(CommitCheckpoint(E1, N2)),
        *deletes(paths(1)),
    ]
    assert talk.coordinator.completed == completed(2)
