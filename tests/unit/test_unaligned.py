"""One test for each sentence of the algorithm in `crosscut.protocol.snapshot.unaligned`."""

from tests.unit.barriers import N1, N2, A, B, L, M, after

from crosscut.foundation.ids import ChannelId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    OvertakeWithBarrier,
    StartLog,
    StoreSnapshot,
)
from crosscut.protocol.events import (
    BarrierArrived,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotStored,
)
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers


def join(*inputs: ChannelId) -> UnalignedBarriers:
    return UnalignedBarriers(inputs, frozenset((L, M)) & frozenset(inputs))


def test_a_source_captures_when_it_is_triggered_and_its_barrier_overtakes_what_waits() -> None:
    assert join().handle(CheckpointTriggered(N1)) == [
        CaptureState(N1),
        OvertakeWithBarrier(N1),
        StoreSnapshot(N1),
    ]


def test_the_first_barrier_at_any_input_captures_forwards_and_starts_the_logs() -> None:
    assert join(A, B).handle(BarrierArrived(B, N1)) == [
        CaptureState(N1),
        OvertakeWithBarrier(N1),
        StartLog(N1, (A, B)),
    ]


def test_every_other_input_is_logged_until_its_own_barrier() -> None:
    machine = join(A, B, L)
    machine.handle(BarrierArrived(B, N1))
    assert {one: machine.logging(one) for one in (A, B, L)} == {A: (N1,), B: (), L: (N1,)}
    assert machine.handle(BarrierArrived(A, N1)) == []
    assert {one: machine.logging(one) for one in (A, B, L)} == {A: (), B: (), L: (N1,)}


def test_state_and_logs_are_written_when_the_last_input_has_delivered_the_barrier() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(B, N1), BarrierArrived(A, N1)) == [
        StoreSnapshot(N1),
    ]
    assert machine.handle(SnapshotStored(N1)) == [AcknowledgeSnapshot(N1)]


def test_with_a_single_input_everything_happens_at_once() -> None:
    assert join(A).handle(BarrierArrived(A, N1)) == [
        CaptureState(N1),
        OvertakeWithBarrier(N1),
        StartLog(N1, (A,)),
        StoreSnapshot(N1),
    ]


def test_no_input_is_ever_blocked() -> None:
    machine = join(A, B, L)
    for event in (BarrierArrived(A, N1), BarrierArrived(L, N1), BarrierArrived(A, N2), BarrierArrived(B, N1)):
        machine.handle(event)
        assert not any(map(machine.is_blocked, (A, B, L)))
        assert machine.aligning is None


def test_every_barrier_counts_as_soon_as_it_is_in_user_space() -> None:
    machine = join(A, B)
    assert machine.takes_on_arrival(A, N1)
    machine.handle(BarrierArrived(A, N1))
    assert machine.takes_on_arrival(B, N1)
    assert machine.takes_on_arrival(B, N2)


def test_a_back_edge_is_an_input_like_any_other() -> None:
    machine = join(A, L)
    assert machine.handle(BarrierArrived(L, N1)) == [
        CaptureState(N1),
        OvertakeWithBarrier(N1),
        StartLog(N1, (A, L)),
    ]
    assert machine.handle(BarrierArrived(A, N1)) == [StoreSnapshot(N1)]


def test_two_checkpoints_may_be_logged_at_once() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(A, N2)) == [
        CaptureState(N2),
        OvertakeWithBarrier(N2),
        StartLog(N2, (A, B)),
    ]
    assert machine.logging(B) == (N1, N2)
    assert machine.handle(BarrierArrived(B, N1)) == [StoreSnapshot(N1)]
    assert machine.handle(BarrierArrived(B, N2)) == [StoreSnapshot(N2)]


def test_a_newer_barrier_on_a_channel_that_owes_an_older_one_gives_the_older_up() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(B, N2)) == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}"),
        CaptureState(N2),
        OvertakeWithBarrier(N2),
        StartLog(N2, (A, B)),
    ]


def test_a_newer_barrier_gives_the_older_up_even_if_its_own_checkpoint_was_aborted_early() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N2), BarrierArrived(B, N2)) == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}"),
    ]
    assert machine.dropped == {"obsolete barrier": 1}


def test_an_older_barrier_after_a_newer_capture_is_obsolete() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N2), BarrierArrived(B, N1)) == []
    assert machine.logging(B) == (N2,)


def test_an_abort_while_logging_discards_and_what_is_still_to_come_is_obsolete() -> None:
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N1)) == [DiscardSnapshot(N1)]
    assert machine.logging(B) == ()
    assert machine.handle(BarrierArrived(B, N1)) == []


def test_an_abort_while_the_snapshot_is_written_discards_it() -> None:
    machine = join(A)
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N1)) == [DiscardSnapshot(N1)]
    assert machine.handle(SnapshotStored(N1)) == []
    assert machine.dropped == {"stored after abort": 1}


def test_an_abort_before_the_first_barrier_makes_every_one_of_its_barriers_obsolete() -> None:
    machine = join(A, B)
    assert after(machine, CheckpointAborted(N1), BarrierArrived(A, N1)) == []
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert machine.handle(BarrierArrived(B, N2))[0] == CaptureState(N2)


def test_a_snapshot_that_could_not_be_stored_is_declined() -> None:
    assert after(join(A), BarrierArrived(A, N1), SnapshotFailed(N1, "disk full")) == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, "disk full"),
    ]


def test_a_repeated_trigger_or_barrier_is_dropped() -> None:
    source = join()
    assert after(source, CheckpointTriggered(N2), CheckpointTriggered(N2)) == []
    assert source.handle(CheckpointTriggered(N1)) == []
    machine = join(A, B)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(A, N1)) == []
    assert machine.logging(B) == (N1,)
