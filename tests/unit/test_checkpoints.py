"""The checkpoints of one epoch: trigger, collect, complete, give up."""

from tests.simulation.conversation import K0, K1, S0, S1, TASKS, snapshot

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.checkpoint.pending import GivenUp, PendingCheckpoints, Triggered, Whole
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot

N5, N6 = CheckpointId(5), CheckpointId(6)


def checkpoints() -> PendingCheckpoints:
    return PendingCheckpoints(Epoch(2), frozenset(TASKS), frozenset((S0, S1)), N5)


def acknowledged(machine: PendingCheckpoints, *tasks: TaskId, drained: bool = False) -> Whole | None:
    whole = None
    for task in tasks or TASKS:
        whole = machine.acknowledge(N5, task, Snapshot(drained=drained), 250, "noon")
    return whole


def test_ids_grow_and_one_checkpoint_is_under_way_at_a_time() -> None:
    machine = checkpoints()
    assert machine.trigger(100) == Triggered(N5)
    assert machine.trigger(100) is None
    assert machine.under_way == N5
    machine.give_up(N5)
    assert machine.trigger(100) == Triggered(N6)
    assert machine.next_id == 7


def test_a_checkpoint_is_whole_when_every_task_has_acknowledged() -> None:
    machine = checkpoints()
    machine.trigger(100)
    assert acknowledged(machine, K1, S1, K0) is None
    assert machine.missing(N5) == {S0}
    snapshots = tuple(TaskSnapshot(task, Snapshot()) for task in (S0, S1, K0, K1))
    expected = CheckpointCompleted(Epoch(2), N5, snapshots, duration_ms=150, wall_clock="noon")
    assert acknowledged(machine, S0) == Whole(expected)


def test_acknowledgements_are_remembered_by_task_and_never_counted() -> None:
    """A4."""
    machine = checkpoints()
    machine.trigger(100)
    assert acknowledged(machine, K0, K0, K0, K0, K0) is None
    assert machine.dropped == {"repeated acknowledgement": 4}
    assert machine.missing(N5) == {S0, S1, K1}


def test_the_first_snapshot_of_a_task_counts() -> None:
    machine = checkpoints()
    machine.trigger(100)
    acknowledged(machine, S0, S1, K0)
    machine.acknowledge(N5, S0, snapshot(S0, 9), 0, "")
    whole = acknowledged(machine, K1)
    assert whole is not None
    assert whole.entry.snapshots[0].snapshot == Snapshot()


def test_a_checkpoint_is_whole_once() -> None:
    machine = checkpoints()
    machine.trigger(100)
    assert acknowledged(machine) is not None
    assert acknowledged(machine) is None


def test_an_acknowledgement_of_another_checkpoint_or_of_a_stranger_is_dropped() -> None:
    machine = checkpoints()
    assert acknowledged(machine, S0) is None
    machine.trigger(100)
    machine.give_up(N5)
    assert acknowledged(machine, S0) is None
    machine.trigger(100)
    stranger = type(S0)(S0.vertex, 7)
    assert machine.acknowledge(N6, stranger, Snapshot(), 0, "") is None
    assert machine.dropped == {"late acknowledgement": 3}


def test_a_cut_is_final_if_every_task_says_that_nothing_is_to_come() -> None:
    """F5: what the sources say outside the cut does not matter."""
    machine = checkpoints()
    machine.source_drained(S0)
    machine.source_drained(S1)
    machine.trigger(100)
    acknowledged(machine, S0, S1, K0, drained=True)
    whole = acknowledged(machine, K1, drained=False)
    assert whole is not None
    assert not whole.entry.is_final
    machine.completed(N5)
    machine.trigger(100)
    for task in TASKS:
        whole = machine.acknowledge(N6, task, Snapshot(drained=True), 0, "")
    assert whole is not None
    assert whole.entry.is_final


def test_the_last_source_to_drain_says_so_once() -> None:
    machine = checkpoints()
    assert [machine.source_drained(task) for task in (S0, S0, K0, S1, S1)] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert machine.is_drained
    assert machine.dropped == {"repeated drained": 3}


def test_a_checkpoint_that_is_given_up_returns_what_it_had() -> None:
    machine = checkpoints()
    machine.trigger(100)
    machine.acknowledge(N5, K1, snapshot(K1, 5), 0, "")
    machine.acknowledge(N5, K0, snapshot(K0, 5), 0, "")
    assert machine.give_up(N5) == GivenUp(N5, (snapshot(K0, 5), snapshot(K1, 5)), False)
    assert machine.give_up(N5) is None
    assert machine.under_way is None


def test_a_checkpoint_whose_entry_is_being_appended_can_not_be_given_up() -> None:
    """B4: only the store can tell what becomes of it."""
    machine = checkpoints()
    machine.trigger(100)
    acknowledged(machine)
    assert machine.give_up(N5) is None
    assert machine.under_way == N5
    given_up = machine.append_refused(N5)
    assert given_up.checkpoint_id == N5
    assert machine.under_way is None


def test_after_completion_the_next_may_be_triggered() -> None:
    machine = checkpoints()
    machine.trigger(100)
    acknowledged(machine)
    machine.completed(N5)
    assert machine.under_way is None
    assert machine.trigger(100) == Triggered(N6)
