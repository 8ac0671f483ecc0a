"""One test for each sentence of the algorithm in `crosscut.protocol.snapshot.at_least_once`."""

from tests.unit.barriers import N1, N2, A, B, L, M, after

from crosscut.foundation.ids import ChannelId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    ForwardBarrier,
    StartLog,
    StoreSnapshot,
)
from crosscut.protocol.events import (
    BarrierArrived,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotStored,
)
from crosscut.protocol.snapshot.at_least_once import AtLeastOnceBarriers


def join(*inputs: ChannelId) -> AtLeastOnceBarriers:
    return AtLeastOnceBarriers(inputs, frozenset((L, M)) & frozenset(inputs))


def test_no_input_is_ever_blocked() -> None:
    machine = join(A, B, L)
    for event in (BarrierArrived(A, N1), BarrierArrived(L, N1), BarrierArrived(B, N1)):
        machine.handle(event)
        assert not any(map(machine.is_blocked, (A, B, L)))


def test_the_barrier_is_forwarded_and_the_state_captured_when_the_last_regular_input_delivered_it() -> None:
    machine = join(A, B)
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert machine.aligning == N1
    assert machine.handle(BarrierArrived(A, N1)) == [CaptureState(N1), ForwardBarrier(N1), StoreSnapshot(N1)]
    assert machine.handle(SnapshotStored(N1)) == [AcknowledgeSnapshot(N1)]


def test_a_source_captures_and_forwards_when_it_is_triggered() -> None:
    assert join().handle(CheckpointTriggered(N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        StoreSnapshot(N1),
    ]


def test_nothing_that_a_regular_input_delivers_is_logged() -> None:
    machine = join(A, B)
    machine.handle(BarrierArrived(A, N1))
    assert (machine.logging(A), machine.logging(B)) == ((), ())


def test_a_back_edge_is_logged_from_the_capture_until_the_barrier_comes_back() -> None:
    machine = join(A, L)
    assert machine.handle(BarrierArrived(A, N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        StartLog(N1, (L,)),
    ]
    assert machine.logging(L) == (N1,)
    assert machine.handle(BarrierArrived(L, N1)) == [StoreSnapshot(N1)]


def test_a_barrier_that_comes_back_early_is_not_waited_for_again() -> None:
    machine = join(A, L)
    assert machine.handle(BarrierArrived(L, N1)) == []
    assert machine.handle(BarrierArrived(A, N1)) == [CaptureState(N1), ForwardBarrier(N1), StoreSnapshot(N1)]


def test_the_next_barrier_on_an_input_that_delivered_this_one_leaves_this_one_waiting() -> None:
    """It was not blocked, so that may happen before the others have delivered this one."""
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(A, N2)) == []
    assert machine.aligning == N1
    assert machine.handle(BarrierArrived(B, N1)) == [CaptureState(N1), ForwardBarrier(N1), StoreSnapshot(N1)]
    assert machine.handle(BarrierArrived(B, N2)) == [CaptureState(N2), ForwardBarrier(N2), StoreSnapshot(N2)]


def test_a_barrier_that_was_never_sent_on_an_input_is_given_up_with_the_capture_of_a_newer_one() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N2), BarrierArrived(B, N1)) == []
    assert machine.handle(BarrierArrived(B, N2)) == [
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}"),
        CaptureState(N2),
        ForwardBarrier(N2),
        StoreSnapshot(N2),
    ]


def test_the_next_barrier_on_an_input_that_owes_this_one_gives_this_one_up() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(B, N2)) == [
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}")
    ]


def test_an_abort_while_waiting_leaves_no_trace() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N1)) == []
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert machine.aligning is None


def test_a_task_with_a_single_input_does_what_aligned_barriers_do() -> None:
    assert join(A).handle(BarrierArrived(A, N1)) == [CaptureState(N1), ForwardBarrier(N1), StoreSnapshot(N1)]
