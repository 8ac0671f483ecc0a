"""A checkpoint under way: asked for, whole, complete, aborted; and how the scheduler treats it."""

from collections import Counter

import pytest
from tests.simulation.conversation import (
    K0,
    K1,
    LINKS,
    S0,
    S1,
    TASKS,
    Talk,
    at,
    both,
    registration,
    snapshot,
)

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.checkpoint.pending import PendingCheckpoint
from crosscut.protocol.effects import AppendEntry, CancelTimer, JobEffect, StartTimer
from crosscut.protocol.events import ClockRead, EntryRefused, Timer
from crosscut.protocol.job.workers import Identity, WorkerRegistry
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CommitCheckpoint,
    ResumeSources,
    SnapshotAcknowledged,
    SourceDrained,
    TaskQuiet,
    TriggerCheckpoint,
)
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot

E2, N5 = Epoch(2), CheckpointId(5)
TIMER = Timer("checkpoint-timeout", E2, N5)
NOW = ClockRead(250, "noon")


def pending() -> PendingCheckpoint:
    registry = WorkerRegistry(2, 1_000)
    for index, link in enumerate(LINKS):
        newcomer = registration(index, index)
        registry.opened(link, Identity(newcomer.worker, newcomer.attempt))
        registry.register(link, newcomer)
    return PendingCheckpoint(E2, N5, frozenset(TASKS), registry, Counter(), 100, is_after_drain=False)


def acknowledge(one: PendingCheckpoint, *tasks: TaskId, drained: bool = False) -> None:
    for task in tasks or TASKS:
        assert one.handle(SnapshotAcknowledged(E2, N5, task, Snapshot(drained=drained))) == []


def appended(effects: list[JobEffect]) -> list[int]:
    return [
        one.entry.checkpoint_id
        for one in effects
        if isinstance(one, AppendEntry) and isinstance(one.entry, CheckpointCompleted)
    ]


def test_it_starts_with_a_message_to_each_worker_and_a_timer() -> None:
    assert pending().start(60_000) == [*both(TriggerCheckpoint(E2, N5)), StartTimer(TIMER, 60_000)]


def test_it_is_whole_when_every_task_has_acknowledged() -> None:
    one = pending()
    acknowledge(one, K1, S1, K0)
    assert (one.is_whole, one.missing_shown) == (False, f"; no acknowledgement from {S0}")
    acknowledge(one, S0)
    assert (one.is_whole, one.missing_shown) == (True, "")
    snapshots = tuple(TaskSnapshot(task, Snapshot()) for task in (S0, S1, K0, K1))
    assert one.entry(NOW) == CheckpointCompleted(E2, N5, snapshots, duration_ms=150, wall_clock="noon")


def test_acknowledgements_are_remembered_by_task_and_never_counted() -> None:
    """A4."""
    one = pending()
    acknowledge(one, K0, K0, K0, K0, K0)
    assert one.dropped == {"repeated acknowledgement": 4}
    assert one.missing_shown == f"; no acknowledgement from {S0}, {S1}, {K1}"


def test_the_first_snapshot_of_a_task_counts() -> None:
    one = pending()
    acknowledge(one)
    one.handle(SnapshotAcknowledged(E2, N5, S0, snapshot(S0, 9)))
    assert one.entry(NOW).snapshots[0].snapshot == Snapshot()


def test_a_cut_is_final_if_every_task_says_that_nothing_is_to_come() -> None:
    """F5: what the sources say outside the cut does not matter."""
    one = pending()
    acknowledge(one, S0, S1, K0, drained=True)
    acknowledge(one, K1, drained=False)
    assert not one.entry(NOW).is_final
    one = pending()
    acknowledge(one, drained=True)
    assert one.entry(NOW).is_final


def test_when_it_is_complete_its_output_is_committed() -> None:
    one = pending()
    acknowledge(one)
    assert one.complete(()) == [CancelTimer(TIMER), *both(CommitCheckpoint(E2, N5))]


def test_sources_resume_after_a_checkpoint_for_which_all_tasks_stood_still() -> None:
    one = pending()
    assert [one.handle(TaskQuiet(E2, N5, task)) for task in (S0, S1, K0, K0)] == [[], [], [], []]
    assert one.dropped == {"repeated quiet": 1}
    assert one.handle(TaskQuiet(E2, N5, K1)) == both(CaptureSnapshots(E2, N5))
    acknowledge(one)
    assert one.complete(())[-2:] == both(ResumeSources(E2, N5))


def test_the_files_of_one_that_is_aborted_are_those_of_its_snapshots() -> None:
    one = pending()
    for task in (K1, K0):
        one.handle(SnapshotAcknowledged(E2, N5, task, snapshot(task, 5, 2)))
    assert one.abort() == [CancelTimer(TIMER), *both(AbortCheckpoint(E2, N5))]
    assert one.paths == {"parts/5/out-0-2-ab", "parts/5/out-1-2-ab"}


# The scheduler.


def test_ids_grow_and_one_checkpoint_is_under_way_at_a_time() -> None:
    talk = Talk()
    talk.running()
    checkpoints = talk.coordinator.checkpoints
    talk.fire("trigger")
    talk.fire("trigger")
    assert (checkpoints.under_way, checkpoints.next_id) == (1, 2)
    talk.fire("checkpoint-timeout", number=1)
    assert checkpoints.under_way is None
    talk.fire("trigger")
    assert (checkpoints.under_way, checkpoints.next_id) == (2, 3)


def test_an_acknowledgement_of_a_checkpoint_that_is_not_under_way_is_dropped() -> None:
    talk = Talk()
    talk.running()
    assert appended(talk.acknowledge(1)) == []
    talk.fire("trigger")
    talk.fire("checkpoint-timeout", number=1)
    assert appended(talk.acknowledge(1)) == []
    assert talk.coordinator.dropped["late acknowledgement"] == 2 * len(TASKS)


def test_a_late_acknowledgement_costs_the_same_whatever_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task may send one after an abort: their time would be the square of the number of tasks."""
    paths_of, walked = retention.paths_of, 0

    def counted(snapshot: Snapshot) -> tuple[str, ...]:
        nonlocal walked
        walked += 1
        return paths_of(snapshot)

    def cost(late: Snapshot, task: TaskId) -> int:
        before = walked
        talk.message(0, SnapshotAcknowledged(Epoch(1), CheckpointId(1), task, late))
        return walked - before

    monkeypatch.setattr(retention, "paths_of", counted)
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    talk.fire("checkpoint-timeout", number=1)
    alone = cost(Snapshot(), S0)
    talk.fire("trigger")
    for link, task in ((0, S0), (0, K0), (1, S1)):
        talk.message(link, SnapshotAcknowledged(Epoch(1), CheckpointId(2), task, snapshot(task, 2)))
    assert cost(Snapshot(), S0) == alone
    cost(snapshot(K0, 1), K0)
    assert cost(snapshot(K0, 1), K0) == alone, "a deletion is under way"


def test_a_whole_checkpoint_is_appended_once() -> None:
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    assert appended(talk.acknowledge(1)) == [1]
    assert appended(talk.acknowledge(1)) == []


def test_a_checkpoint_whose_entry_is_being_appended_can_not_be_given_up() -> None:
    """B4: only the store can tell what becomes of it."""
    talk = Talk()
    talk.running()
    checkpoints = talk.coordinator.checkpoints
    talk.fire("trigger")
    talk.acknowledge(1)
    assert talk.fire("checkpoint-timeout", number=1) == []
    assert (checkpoints.under_way, checkpoints.failed.failed_count) == (1, 0)
    talk.hear(EntryRefused(at(2), "full"))
    assert (checkpoints.under_way, checkpoints.failed.failed_count) == (None, 1)


def test_the_last_source_to_drain_starts_a_checkpoint_and_the_others_do_not() -> None:
    talk = Talk()
    talk.running()
    started = [
        talk.coordinator.checkpoints.under_way
        for task in (S0, S0, S1, S1)
        for _ in [talk.message(task.index, SourceDrained(Epoch(1), task))]
    ]
    assert started == [None, None, 1, 1]
    assert talk.coordinator.dropped["repeated drained"] == 2
