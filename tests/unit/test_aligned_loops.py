"""One test for each sentence of the algorithm for cyclic graphs in `crosscut.protocol.snapshot.aligned`."""

import pytest
from tests.unit.barriers import N1, N2, A, B, L, M, after

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ForwardBarrier,
    StartLog,
    StoreSnapshot,
    UnblockChannels,
)
from crosscut.protocol.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    CheckpointAborted,
    SnapshotStored,
)
from crosscut.protocol.snapshot.aligned import AlignedBarriers


def head(*inputs: ChannelId) -> AlignedBarriers:
    return AlignedBarriers(inputs, frozenset((L, M)) & frozenset(inputs))


def test_the_capture_waits_for_the_regular_inputs_and_never_for_a_back_edge() -> None:
    machine = head(A, B, L)
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert machine.handle(BarrierArrived(A, N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        UnblockChannels((A, B)),
        StartLog(N1, (L,)),
    ]


def test_from_the_capture_on_the_back_edges_are_logged_and_the_regular_inputs_are_not() -> None:
    machine = head(A, L, M)
    machine.handle(BarrierArrived(A, N1))
    assert {one: machine.logging(one) for one in (A, L, M)} == {A: (), L: (N1,), M: (N1,)}


def test_a_back_edge_is_not_blocked_while_it_is_logged() -> None:
    machine = head(A, L)
    machine.handle(BarrierArrived(A, N1))
    assert not any(map(machine.is_blocked, (A, L)))
    assert machine.aligning is None


def test_the_log_of_a_back_edge_ends_when_the_barrier_comes_back_on_it() -> None:
    machine = head(A, L, M)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(M, N1)) == []
    assert (machine.logging(L), machine.logging(M)) == ((N1,), ())


def test_what_was_captured_and_logged_is_stored_when_the_barrier_has_come_back_on_every_back_edge() -> None:
    machine = head(A, L, M)
    after(machine, BarrierArrived(A, N1), BarrierArrived(M, N1))
    assert machine.handle(BarrierArrived(L, N1)) == [StoreSnapshot(N1)]
    assert machine.handle(SnapshotStored(N1)) == [AcknowledgeSnapshot(N1)]


def test_a_barrier_that_comes_back_counts_on_arrival_since_what_waits_before_it_is_in_the_log() -> None:
    machine = head(A, L)
    assert not machine.takes_on_arrival(L, N1)
    machine.handle(BarrierArrived(A, N1))
    assert machine.takes_on_arrival(L, N1)
    assert not machine.takes_on_arrival(L, N2)
    assert not machine.takes_on_arrival(A, N1)


def test_a_barrier_that_comes_back_before_the_capture_blocks_its_back_edge_until_then() -> None:
    """Else its later records, which belong to the next checkpoint, were in the captured state."""
    machine = head(A, L)
    assert machine.handle(BarrierArrived(L, N1)) == []
    assert machine.is_blocked(L)
    assert machine.handle(BarrierArrived(A, N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        UnblockChannels((A, L)),
        StoreSnapshot(N1),
    ]
    assert machine.logging(L) == ()


def test_only_the_back_edges_that_still_owe_the_barrier_at_the_capture_are_logged() -> None:
    machine = head(A, L, M)
    assert after(machine, BarrierArrived(M, N1), BarrierArrived(A, N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        UnblockChannels((A, M)),
        StartLog(N1, (L,)),
    ]


def test_a_back_edge_alone_never_captures() -> None:
    machine = head(A, L, M)
    assert after(machine, BarrierArrived(L, N1), BarrierArrived(M, N1)) == []
    assert machine.aligning == N1


def test_the_next_checkpoint_may_be_captured_while_the_barrier_of_this_one_is_still_going_round() -> None:
    machine = head(A, L)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(A, N2))[-1] == StartLog(N2, (L,))
    assert machine.logging(L) == (N1, N2)
    assert machine.handle(BarrierArrived(L, N1)) == [StoreSnapshot(N1)]
    assert machine.logging(L) == (N2,)
    assert machine.handle(BarrierArrived(L, N2)) == [StoreSnapshot(N2)]


def test_a_newer_barrier_on_a_back_edge_ends_the_log_of_an_older_one_for_nothing() -> None:
    machine = head(A, L)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(L, N2)) == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {L}"),
    ]
    assert machine.logging(L) == ()


def test_an_abort_while_logging_discards_and_the_barrier_that_comes_back_is_obsolete() -> None:
    machine = head(A, L)
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N1)) == [DiscardSnapshot(N1)]
    assert machine.logging(L) == ()
    assert machine.handle(BarrierArrived(L, N1)) == []
    assert not machine.is_blocked(L)
    assert machine.dropped == {"obsolete barrier": 1}


def test_an_abort_of_one_checkpoint_leaves_the_log_of_the_other() -> None:
    machine = head(A, L)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(A, N2), CheckpointAborted(N1)) == [
        DiscardSnapshot(N1)
    ]
    assert machine.logging(L) == (N2,)
    assert machine.handle(BarrierArrived(L, N1)) == []
    assert machine.handle(BarrierArrived(L, N2)) == [StoreSnapshot(N2)]


def test_an_abort_before_the_capture_unblocks_a_back_edge_too() -> None:
    machine = head(A, L)
    assert after(machine, BarrierArrived(L, N1), CheckpointAborted(N1)) == [UnblockChannels((L,))]


def test_a_barrier_does_not_come_back_twice() -> None:
    machine = head(A, L)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(L, N1), BarrierArrived(L, N1)) == []
    assert machine.dropped == {"obsolete barrier": 1}


def test_announcements_mean_nothing_and_no_alignment_times_out() -> None:
    machine = head(A, L)
    assert machine.handle(BarrierAnnounced(A, N1)) == []
    with pytest.raises(ProtocolError, match="no such timer"):
        machine.handle(AlignmentTimedOut(N1))
