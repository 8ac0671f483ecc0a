"""One test for each sentence of the algorithm in `crosscut.protocol.snapshot.aligned`."""

from copy import deepcopy

import pytest
from tests.unit.barriers import ELSEWHERE, N1, N2, N3, A, B, C, after

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ForwardBarrier,
    StoreSnapshot,
    UnblockChannels,
)
from crosscut.protocol.events import (
    BarrierArrived,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotStored,
    TaskEvent,
)
from crosscut.protocol.snapshot.aligned import AlignedBarriers


def blocked(machine: AlignedBarriers) -> list[ChannelId]:
    return [channel for channel in (A, B, C) if machine.is_blocked(channel)]


def test_a_source_that_is_triggered_captures_its_state_and_sends_the_barrier() -> None:
    assert AlignedBarriers(()).handle(CheckpointTriggered(N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        StoreSnapshot(N1),
    ]


def test_a_task_that_gets_the_barrier_on_an_input_blocks_that_input() -> None:
    machine = AlignedBarriers((A, B, C))
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert blocked(machine) == [B]
    assert machine.aligning == N1


def test_when_it_has_the_barrier_from_all_its_inputs_it_captures_forwards_and_unblocks() -> None:
    machine = AlignedBarriers((A, B))
    assert after(machine, BarrierArrived(B, N1), BarrierArrived(A, N1)) == [
        CaptureState(N1),
        ForwardBarrier(N1),
        UnblockChannels((A, B)),
        StoreSnapshot(N1),
    ]
    assert blocked(machine) == []
    assert machine.aligning is None


def test_the_snapshot_is_acknowledged_when_it_is_durable_and_not_before() -> None:
    """A3: death in between leaves checkpoint 1 without this acknowledgement, so it can't complete."""
    machine = AlignedBarriers((A,))
    captured = machine.handle(BarrierArrived(A, N1))
    assert not any(isinstance(effect, AcknowledgeSnapshot) for effect in captured)
    assert machine.handle(SnapshotStored(N1)) == [AcknowledgeSnapshot(N1)]


def test_a_snapshot_is_acknowledged_once() -> None:
    machine = AlignedBarriers((A,))
    assert after(machine, BarrierArrived(A, N1), SnapshotStored(N1), SnapshotStored(N1)) == []
    assert machine.dropped == {"stored after abort": 1}


def test_a_snapshot_that_could_not_be_stored_is_discarded_and_declined() -> None:
    machine = AlignedBarriers((A,))
    assert after(machine, BarrierArrived(A, N1), SnapshotFailed(N1, "disk full")) == [
        DiscardSnapshot(N1),
        DeclineCheckpoint(N1, "disk full"),
    ]
    assert machine.handle(SnapshotFailed(N1, "disk full")) == []
    assert machine.dropped == {"failed after abort": 1}


def test_two_snapshots_may_be_written_at_once() -> None:
    machine = AlignedBarriers((A,))
    after(machine, BarrierArrived(A, N1), BarrierArrived(A, N2))
    assert machine.handle(SnapshotStored(N2)) == [AcknowledgeSnapshot(N2)]
    assert machine.handle(SnapshotStored(N1)) == [AcknowledgeSnapshot(N1)]


def test_a_newer_barrier_supersedes_an_unfinished_alignment() -> None:
    machine = AlignedBarriers((A, B, C))
    assert after(machine, BarrierArrived(C, N1), BarrierArrived(A, N1), BarrierArrived(B, N2)) == [
        UnblockChannels((A, C)),
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}"),
    ]
    assert blocked(machine) == [B]
    assert machine.aligning == N2


def test_a_newer_barrier_on_the_only_input_supersedes_nothing_and_is_captured() -> None:
    machine = AlignedBarriers((A,))
    assert machine.handle(BarrierArrived(A, N3)) == [
        CaptureState(N3),
        ForwardBarrier(N3),
        UnblockChannels((A,)),
        StoreSnapshot(N3),
    ]


@pytest.mark.parametrize("obsolete", [N1, N2])
def test_a_barrier_that_is_captured_superseded_or_older_is_dropped(obsolete: CheckpointId) -> None:
    """E3."""
    machine = AlignedBarriers((A, B))
    after(machine, BarrierArrived(A, N1), BarrierArrived(B, N2), BarrierArrived(A, N2))
    assert machine.handle(BarrierArrived(A, obsolete)) == []
    assert machine.dropped == {"obsolete barrier": 1}


def test_an_older_barrier_during_an_alignment_is_dropped() -> None:
    """E3."""
    machine = AlignedBarriers((A, B))
    assert after(machine, BarrierArrived(A, N2), BarrierArrived(B, N1)) == []
    assert blocked(machine) == [A]


def test_an_abort_during_alignment_unblocks_and_nothing_is_captured() -> None:
    machine = AlignedBarriers((A, B))
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N1)) == [UnblockChannels((A,))]
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert blocked(machine) == []


def test_an_abort_while_the_snapshot_is_written_discards_it() -> None:
    machine = AlignedBarriers((A,))
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N1)) == [DiscardSnapshot(N1)]
    assert machine.handle(SnapshotStored(N1)) == []
    assert machine.dropped == {"stored after abort": 1}


def test_an_abort_after_the_acknowledgement_is_obsolete() -> None:
    machine = AlignedBarriers((A,))
    assert after(machine, BarrierArrived(A, N1), SnapshotStored(N1), CheckpointAborted(N1)) == []
    assert machine.dropped == {"obsolete abort": 1}


def test_an_abort_before_the_first_barrier_makes_the_barrier_obsolete() -> None:
    """E3."""
    machine = AlignedBarriers((A, B))
    assert after(machine, CheckpointAborted(N1), BarrierArrived(A, N1)) == []
    assert machine.handle(BarrierArrived(B, N1)) == []
    assert machine.handle(BarrierArrived(A, N2)) == []


def test_an_abort_of_the_next_checkpoint_does_not_touch_the_alignment_of_this_one() -> None:
    machine = AlignedBarriers((A, B))
    assert after(machine, BarrierArrived(A, N1), CheckpointAborted(N2)) == []
    assert blocked(machine) == [A]


def test_a_newer_barrier_supersedes_even_if_its_checkpoint_was_aborted_early() -> None:
    """E3: the channel will not deliver barrier 1 any more, so its alignment could never end."""
    machine = AlignedBarriers((A, B))
    after(machine, BarrierArrived(A, N1), CheckpointAborted(N2))
    assert machine.handle(BarrierArrived(B, N2)) == [
        UnblockChannels((A,)),
        DeclineCheckpoint(N1, f"superseded by barrier 2 on {B}"),
    ]


def test_no_older_alignment_begins_after_a_barrier_that_was_aborted_early() -> None:
    """E3: the same the other way round."""
    machine = AlignedBarriers((A, B))
    after(machine, CheckpointAborted(N2), BarrierArrived(B, N2))
    assert machine.handle(BarrierArrived(A, N1)) == []
    assert blocked(machine) == []


def test_a_source_drops_the_trigger_of_an_aborted_or_repeated_checkpoint() -> None:
    machine = AlignedBarriers(())
    assert after(machine, CheckpointAborted(N1), CheckpointTriggered(N1)) == []
    after(machine, CheckpointTriggered(N2))
    assert machine.handle(CheckpointTriggered(N2)) == []
    assert machine.handle(CheckpointTriggered(N1)) == []
    assert machine.dropped == {"obsolete trigger": 3}


def test_what_was_aborted_early_is_forgotten_once_it_is_passed() -> None:
    machine = AlignedBarriers(())
    after(machine, CheckpointAborted(N1), CheckpointAborted(N3), CheckpointTriggered(N2))
    assert vars(machine)["_aborted_early"] == {N3}


@pytest.mark.parametrize(
    ("inputs", "event", "message"),
    [
        ((A, B), BarrierArrived(ELSEWHERE, N2), "no input of this task"),
        ((A, B), BarrierArrived(A, N2), "must not deliver from a blocked channel"),
        ((A, B), CheckpointTriggered(N2), "no source"),
        ((), BarrierArrived(A, N2), "no input of this task"),
    ],
)
def test_impossible_input_raises_and_changes_nothing(
    inputs: tuple[ChannelId, ...], event: TaskEvent, message: str
) -> None:
    machine = AlignedBarriers(inputs)
    machine.handle(BarrierArrived(A, N1) if inputs else CheckpointTriggered(N1))
    before = deepcopy(vars(machine))
    with pytest.raises(ProtocolError, match=message):
        machine.handle(event)
    assert vars(machine) == before
