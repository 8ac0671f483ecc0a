"""One test for each sentence of the algorithm in `crosscut.protocol.snapshot.stop_the_world`."""

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
    ReportQuiet,
    StartLog,
    StoreSnapshot,
    TaskEffect,
    UnblockChannels,
)
from crosscut.protocol.events import (
    BarrierArrived,
    CaptureAllowed,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotStored,
    SourcesResumed,
    TaskEvent,
)
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.stop_the_world import StopTheWorldBarriers


def task(*inputs: ChannelId) -> StopTheWorldBarriers:
    return StopTheWorldBarriers(inputs, frozenset((L, M)) & frozenset(inputs))


def test_a_source_that_is_triggered_stops_reading_sends_the_barrier_and_is_quiet() -> None:
    source = task()
    assert not source.is_halted
    assert source.handle(CheckpointTriggered(N1)) == [ForwardBarrier(N1), ReportQuiet(N1)]
    assert source.is_halted


def test_a_task_is_quiet_when_it_has_the_barrier_from_all_its_inputs_and_not_before() -> None:
    machine = task(A, B)
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert machine.aligning == N1
    assert not any(map(machine.is_blocked, (A, B)))
    assert machine.handle(BarrierArrived(A, N1)) == [ForwardBarrier(N1), ReportQuiet(N1)]
    assert machine.aligning is None
    assert all(map(machine.is_blocked, (A, B)))


def test_it_captures_when_it_is_let_and_not_before() -> None:
    machine = task(A)
    machine.handle(BarrierArrived(A, N1))
    assert machine.handle(CaptureAllowed(N1)) == [CaptureState(N1), StoreSnapshot(N1)]
    assert machine.handle(CaptureAllowed(N1)) == []
    assert machine.dropped == {"obsolete leave to capture": 1}


def test_the_snapshot_is_acknowledged_when_it_is_durable_and_everything_still_stands() -> None:
    machine = task(A)
    after(machine, BarrierArrived(A, N1), CaptureAllowed(N1))
    assert machine.handle(SnapshotStored(N1)) == [AcknowledgeSnapshot(N1)]
    assert machine.is_blocked(A)


def test_what_waits_in_a_back_edge_in_front_of_the_barrier_is_logged() -> None:
    machine = task(A, L)
    assert machine.handle(BarrierArrived(A, N1)) == [ForwardBarrier(N1), ReportQuiet(N1)]
    assert machine.is_blocked(L)
    assert machine.handle(CaptureAllowed(N1)) == [CaptureState(N1), StartLog(N1, (L,))]
    assert machine.takes_on_arrival(L, N1)
    assert machine.handle(BarrierArrived(L, N1)) == [StoreSnapshot(N1)]


def test_a_back_edge_that_delivered_the_barrier_earlier_owes_nothing() -> None:
    machine = task(A, L)
    assert after(machine, BarrierArrived(L, N1), BarrierArrived(A, N1)) == [
        ForwardBarrier(N1),
        ReportQuiet(N1),
    ]
    assert machine.handle(CaptureAllowed(N1)) == [CaptureState(N1), StoreSnapshot(N1)]


def test_when_the_checkpoint_is_complete_all_go_on() -> None:
    machine, source = task(A), task()
    after(machine, BarrierArrived(A, N1), CaptureAllowed(N1), SnapshotStored(N1))
    assert machine.handle(SourcesResumed(N1)) == [UnblockChannels((A,))]
    assert not machine.is_halted
    assert after(source, CheckpointTriggered(N1), CaptureAllowed(N1), SourcesResumed(N1)) == []
    assert not source.is_halted
    assert source.handle(SourcesResumed(N1)) == []
    assert source.dropped == {"obsolete resume": 1}


@pytest.mark.parametrize(
    ("before", "effects"),
    [
        ((), []),
        ((CaptureAllowed(N1),), [DiscardSnapshot(N1)]),
        ((CaptureAllowed(N1), SnapshotStored(N1)), []),
    ],
)
def test_when_it_is_given_up_all_go_on(before: tuple[TaskEvent, ...], effects: list[TaskEffect]) -> None:
    machine = task(A)
    after(machine, BarrierArrived(A, N1), *before)
    assert machine.handle(CheckpointAborted(N1)) == [*effects, UnblockChannels((A,))]
    assert not machine.is_halted
    assert machine.handle(CaptureAllowed(N1)) == []


def test_an_abort_while_logging_discards_and_goes_on() -> None:
    machine = task(A, L)
    after(machine, BarrierArrived(A, N1), CaptureAllowed(N1))
    assert machine.handle(CheckpointAborted(N1)) == [DiscardSnapshot(N1), UnblockChannels((A, L))]
    assert machine.handle(BarrierArrived(L, N1)) == []


def test_an_abort_while_draining_makes_the_rest_of_the_barriers_obsolete() -> None:
    machine = task(A, B)
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N1)) == []
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert not machine.is_halted


def test_a_source_that_was_aborted_early_does_not_stop() -> None:
    source = task()
    assert after(source, CheckpointAborted(N1), CheckpointTriggered(N1)) == []
    assert not source.is_halted


def test_a_newer_barrier_gives_an_older_one_up() -> None:
    machine = task(A, B)
    assert after(machine, BarrierArrived(A, N1), BarrierArrived(B, N2)) == [
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}")
    ]
    assert machine.handle(BarrierArrived(A, N2)) == [ForwardBarrier(N2), ReportQuiet(N2)]


def test_a_snapshot_that_could_not_be_stored_is_declined_and_the_abort_lets_it_go_on() -> None:
    machine = task(A)
    after(machine, BarrierArrived(A, N1), CaptureAllowed(N1))
    assert machine.handle(SnapshotFailed(N1, "disk full")) == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, "disk full"),
    ]
    assert machine.is_halted
    assert machine.handle(CheckpointAborted(N1)) == [UnblockChannels((A,))]


def test_a_trigger_at_a_task_that_is_no_source_is_impossible() -> None:
    with pytest.raises(ProtocolError, match="no source"):
        task(A).handle(CheckpointTriggered(N1))


@pytest.mark.parametrize("event", [CaptureAllowed(N1), SourcesResumed(N1)])
def test_the_other_protocols_neither_ask_for_leave_nor_halt(event: TaskEvent) -> None:
    with pytest.raises(ProtocolError):
        AlignedBarriers((A,)).handle(event)
