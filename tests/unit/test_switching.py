"""One test for each sentence of the algorithm in `crosscut.protocol.snapshot.switching`."""

import pytest
from tests.unit.barriers import N1, N2, A, B, L, M, after

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ExpediteBarrier,
    ForwardBarrier,
    OvertakeWithBarrier,
    StartAlignmentTimer,
    StartLog,
    StoreSnapshot,
    UnblockChannels,
)
from crosscut.protocol.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierDeparted,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotStored,
    TaskEvent,
)
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.switching import AlignedThenUnaligned


def join(*inputs: ChannelId) -> AlignedThenUnaligned:
    return AlignedThenUnaligned(inputs, frozenset((L, M)) & frozenset(inputs))


def test_each_checkpoint_starts_aligned() -> None:
    machine = join(A, B)
    after(machine, BarrierAnnounced(A, N1), BarrierAnnounced(B, N1))
    assert machine.handle(BarrierArrived(A, N1)) == []
    assert machine.is_blocked(A)
    assert not machine.takes_on_arrival(B, N1)
    assert machine.handle(BarrierArrived(B, N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        UnblockChannels((A, B)),
    ]


def test_the_clock_starts_when_the_barrier_is_first_seen_in_any_input_queue() -> None:
    machine = join(A, B)
    assert machine.announces_barriers
    assert machine.handle(BarrierAnnounced(B, N1)) == [StartAlignmentTimer(N1)]
    assert machine.handle(BarrierAnnounced(A, N1)) == []
    assert machine.handle(BarrierAnnounced(A, N2)) == [StartAlignmentTimer(N2)]


def test_no_clock_starts_for_a_barrier_that_is_obsolete() -> None:
    machine = join(A, B)
    machine.handle(CheckpointAborted(N1))
    assert machine.handle(BarrierAnnounced(B, N1)) == []


def test_a_timeout_during_alignment_captures_overtakes_unblocks_and_logs_the_rest() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), AlignmentTimedOut(N1)) == [
        CaptureState(N1),
        OvertakeWithBarrier(N1),
        UnblockChannels((A,)),
        StartLog(N1, (B,)),
    ]
    assert not machine.is_blocked(A)
    assert (machine.logging(A), machine.logging(B)) == ((), (N1,))
    assert machine.takes_on_arrival(B, N1)
    assert machine.handle(BarrierArrived(B, N1)) == [StoreSnapshot(N1)]


def test_a_timeout_before_any_barrier_was_delivered_logs_every_input() -> None:
    """What waits before the barrier can't be delivered: that is the very case to switch in."""
    machine = join(A, B)
    assert after(machine, BarrierAnnounced(A, N1), AlignmentTimedOut(N1)) == [
        CaptureState(N1),
        OvertakeWithBarrier(N1),
        StartLog(N1, (A, B)),
    ]


def test_a_back_edge_that_owes_the_barrier_is_logged_like_the_others() -> None:
    machine = join(A, L)
    assert after(machine, BarrierAnnounced(A, N1), AlignmentTimedOut(N1))[-1] == StartLog(N1, (A, L))


@pytest.mark.parametrize(
    "before",
    [
        (BarrierArrived(A, N1), BarrierArrived(B, N1), BarrierDeparted(N1)),
        (BarrierArrived(A, N1), CheckpointAborted(N1)),
        (CheckpointAborted(N1),),
        (BarrierArrived(A, N1), AlignmentTimedOut(N1)),
    ],
)
def test_a_timeout_after_the_alignment_means_nothing(before: tuple[TaskEvent, ...]) -> None:
    machine = join(A, B)
    after(machine, *before)
    assert machine.handle(AlignmentTimedOut(N1)) == []
    assert machine.dropped["alignment over before its timeout"] == 1


def test_a_timeout_of_a_later_checkpoint_ends_the_alignment_of_an_older_one() -> None:
    """The older one had no timer, since the newer barrier was seen first: an input has passed it over."""
    machine = join(A, B)
    after(machine, BarrierAnnounced(B, N2), BarrierAnnounced(A, N1), BarrierArrived(A, N1))
    assert machine.handle(AlignmentTimedOut(N2)) == [
        UnblockChannels((A,)),
        DeclineCheckpoint(N1, "superseded by the timeout of barrier 2"),
        CaptureState(N2),
        OvertakeWithBarrier(N2),
        StartLog(N2, (A, B)),
    ]


def test_the_next_checkpoint_starts_aligned_again() -> None:
    machine = join(A, B)
    after(machine, BarrierArrived(A, N1), AlignmentTimedOut(N1), BarrierArrived(B, N1))
    assert machine.handle(BarrierArrived(A, N2)) == []


def test_a_newer_barrier_gives_a_log_up_and_aligns() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), AlignmentTimedOut(N1), BarrierArrived(B, N2)) == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}"),
    ]


def test_an_abort_after_the_switch_discards() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), AlignmentTimedOut(N1), CheckpointAborted(N1)) == [
        DiscardSnapshot(N1)
    ]
    assert machine.handle(BarrierArrived(B, N1)) == []


# Until the barrier has left.


def captured(*inputs: ChannelId) -> AlignedThenUnaligned:
    """Return a machine that has captured for 1 in its turn, and whose barrier has not left yet."""
    machine = join(*inputs)
    for one in inputs:
        if one != L:
            machine.handle(BarrierAnnounced(one, N1))
            machine.handle(BarrierArrived(one, N1))
    assert machine.departing == (N1,)
    return machine


def test_the_snapshot_is_stored_when_its_barrier_has_left() -> None:
    machine = captured(A, B)
    assert machine.handle(BarrierDeparted(N1)) == [StoreSnapshot(N1)]
    assert machine.departing == ()


def test_a_barrier_that_has_not_left_in_time_is_expedited_and_then_the_snapshot_is_whole() -> None:
    machine = captured(A, B)
    assert machine.handle(AlignmentTimedOut(N1)) == [ExpediteBarrier(N1), StoreSnapshot(N1)]
    assert machine.departing == ()
    assert machine.handle(SnapshotStored(N1)) == [AcknowledgeSnapshot(N1)]


def test_the_clock_of_a_source_starts_at_its_trigger() -> None:
    machine = join()
    assert machine.handle(CheckpointTriggered(N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        StartAlignmentTimer(N1),
    ]
    assert machine.handle(AlignmentTimedOut(N1)) == [ExpediteBarrier(N1), StoreSnapshot(N1)]


def test_a_log_and_the_departure_are_both_waited_for_in_either_order() -> None:
    machine = captured(A, L)
    assert machine.handle(BarrierDeparted(N1)) == []
    assert machine.handle(BarrierArrived(L, N1)) == [StoreSnapshot(N1)]
    machine = captured(A, L)
    assert machine.handle(BarrierArrived(L, N1)) == []
    assert machine.handle(BarrierDeparted(N1)) == [StoreSnapshot(N1)]
    machine = captured(A, L)
    assert machine.handle(AlignmentTimedOut(N1)) == [ExpediteBarrier(N1)]
    assert machine.handle(BarrierArrived(L, N1)) == [StoreSnapshot(N1)]


def test_a_barrier_that_overtook_has_left() -> None:
    machine = join(A, B)
    after(machine, BarrierArrived(A, N1), AlignmentTimedOut(N1))
    assert machine.departing == ()


def test_an_abort_before_the_departure_discards() -> None:
    machine = captured(A, L)
    assert machine.handle(CheckpointAborted(N1)) == [DiscardSnapshot(N1)]
    assert (machine.departing, machine.logging(L)) == ((), ())
    assert machine.handle(AlignmentTimedOut(N1)) == []
    assert machine.handle(BarrierArrived(L, N1)) == []


def test_a_log_that_is_given_up_waits_for_no_departure() -> None:
    machine = captured(A, L)
    assert machine.handle(BarrierArrived(L, N2))[:2] == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {L}"),
    ]
    assert machine.departing == ()


def test_several_barriers_may_be_on_their_way_out() -> None:
    machine = captured(A, B)
    after(machine, BarrierArrived(A, N2), BarrierArrived(B, N2))
    assert machine.departing == (N1, N2)
    assert machine.handle(BarrierDeparted(N2)) == [StoreSnapshot(N2)]
    assert machine.handle(BarrierDeparted(N1)) == [StoreSnapshot(N1)]


def test_a_departure_that_nobody_waits_for_is_impossible() -> None:
    machine = join(A, B)
    with pytest.raises(ProtocolError):
        machine.handle(BarrierDeparted(N1))
    with pytest.raises(ProtocolError):
        AlignedBarriers((A, B)).handle(BarrierDeparted(N1))
