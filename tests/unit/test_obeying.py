"""Which of the coordinator's words a worker obeys: what comes late, or twice, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId, WorkerIndex
from crosscut.protocol.messages import (
    AbortCheckpoint,
    AlignSources,
    AssignSplits,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorHeartbeat,
    DeployTasks,
    HaltTasks,
    PauseSources,
    Peer,
    ResumeSources,
    ShutDown,
    StandBy,
    StartTasks,
    TaskOrder,
    TriggerCheckpoint,
)
from crosscut.protocol.worker.lifecycle import (
    BeginTasks,
    EndTasks,
    EndWorker,
    ForwardToTasks,
    LearnPeers,
    TasksEnded,
    WorkerEffect,
    WorkerEvent,
    WorkerLifecycle,
)

E1, E2, E3 = Epoch(1), Epoch(2), Epoch(3)
N1 = CheckpointId(1)


def deploy(epoch: Epoch, *peers: Peer) -> DeployTasks:
    return DeployTasks(epoch, Lineage("a"), peers, CheckpointId(0), (), ())


def words(epoch: Epoch) -> list[TaskOrder]:
    return [
        StartTasks(epoch),
        TriggerCheckpoint(epoch, N1),
        AbortCheckpoint(epoch, N1),
        CaptureSnapshots(epoch, N1),
        ResumeSources(epoch, N1),
        CommitCheckpoint(epoch, N1),
        CloseLoops(epoch, (VertexId("head"),)),
        PauseSources(epoch, is_paused=True),
        AlignSources(epoch, 1, ()),
        AssignSplits(epoch, TaskId(VertexId("source"), 0), N1, []),
    ]


def after(*events: WorkerEvent) -> WorkerLifecycle:
    machine = WorkerLifecycle()
    for event in events:
        machine.handle(event)
    return machine


def dropped_by(machine: WorkerLifecycle, events: Sequence[WorkerEvent]) -> bool:
    """Return whether each of them has no effect, and is counted."""
    before = machine.dropped["stale epoch"]
    effects: list[WorkerEffect] = []
    for event in events:
        effects += machine.handle(event)
    return not effects and machine.dropped == {"stale epoch": before + len(events)}


def test_tasks_begin_once_none_of_an_older_epoch_is_here() -> None:
    machine = WorkerLifecycle()
    assert machine.handle(deploy(E1)) == [LearnPeers(()), EndTasks()]
    assert machine.handle(TasksEnded()) == [BeginTasks(deploy(E1))]
    assert machine.handle(deploy(E2)) == [LearnPeers(()), EndTasks()]
    assert machine.handle(TasksEnded()) == [BeginTasks(deploy(E2))]
    assert not machine.dropped


def test_the_tasks_hear_what_is_said_of_their_epoch() -> None:
    machine = after(deploy(E1), TasksEnded())
    for word in words(E1):
        assert machine.handle(word) == [ForwardToTasks(word)]
    assert not machine.dropped


def test_they_hear_nothing_of_another_epoch() -> None:
    assert dropped_by(after(deploy(E2), TasksEnded()), words(E1) + words(E3))


def test_nobody_hears_a_word_while_no_task_is_here() -> None:
    assert dropped_by(after(), words(Epoch(0)) + words(E1))
    assert dropped_by(after(deploy(E1)), words(E1))
    assert dropped_by(after(deploy(E1), TasksEnded(), deploy(E2)), words(E1) + words(E2))
    assert dropped_by(after(deploy(E1), TasksEnded(), HaltTasks(E1)), words(E1))
    assert dropped_by(after(deploy(E1), TasksEnded(), HaltTasks(E1), TasksEnded()), words(E1))


@pytest.mark.parametrize("is_over", [False, True])
def test_a_deployment_that_comes_again_or_late_changes_nothing(*, is_over: bool) -> None:
    machine = after(deploy(E2, Peer(WorkerIndex(1), "new", 1)), TasksEnded())
    if is_over:
        machine.handle(HaltTasks(E2))
    assert dropped_by(machine, [deploy(E2), deploy(E1, Peer(WorkerIndex(1), "old", 1))])


def test_a_halt_of_an_older_epoch_changes_nothing() -> None:
    machine = after(deploy(E2))
    assert dropped_by(machine, [HaltTasks(E1)])
    assert machine.handle(TasksEnded()) == [BeginTasks(deploy(E2))]
    assert dropped_by(machine, [HaltTasks(E1)])
    assert machine.handle(StartTasks(E2)) == [ForwardToTasks(StartTasks(E2))]


def test_a_halt_ends_the_tasks_and_none_follow() -> None:
    machine = after(deploy(E1), TasksEnded())
    assert machine.handle(HaltTasks(E1)) == [EndTasks()]
    assert machine.handle(TasksEnded()) == []


def test_an_epoch_that_is_over_before_it_begins_never_begins() -> None:
    machine = after(deploy(E1))
    assert machine.handle(HaltTasks(E1)) == []
    assert machine.handle(TasksEnded()) == []


def test_of_two_deployments_that_wait_for_the_end_of_older_tasks_the_newer_one_begins() -> None:
    machine = after(deploy(E1), TasksEnded(), deploy(E2))
    # The tasks of E1 are being ended already.
    assert machine.handle(deploy(E3)) == [LearnPeers(())]
    assert machine.handle(TasksEnded()) == [BeginTasks(deploy(E3))]


def test_the_next_epoch_follows_a_halt_that_is_under_way() -> None:
    machine = after(deploy(E1), TasksEnded(), HaltTasks(E1))
    assert machine.handle(deploy(E2)) == [LearnPeers(())]
    assert machine.handle(TasksEnded()) == [BeginTasks(deploy(E2))]


def test_a_worker_that_never_had_tasks_obeys_a_halt_of_any_epoch() -> None:
    """It is told with the others, for an epoch of which it has heard nothing."""
    machine = after(HaltTasks(E2))
    assert machine.handle(TasksEnded()) == []
    assert machine.handle(deploy(E3)) == [LearnPeers(()), EndTasks()]


def test_peers_are_learnt_even_if_their_epoch_never_begins() -> None:
    """They are not said again for the next one."""
    peer = Peer(WorkerIndex(1), "host", 1)
    machine = after(deploy(E1), TasksEnded(), HaltTasks(E1))
    assert machine.handle(deploy(E2, peer)) == [LearnPeers((peer,))]
    assert machine.handle(HaltTasks(E2)) == []


@pytest.mark.parametrize("events", [(), (deploy(E1),), (deploy(E1), TasksEnded()), (HaltTasks(E1),)])
def test_whatever_goes_on_here_the_worker_exits_when_it_is_told_to(events: Sequence[WorkerEvent]) -> None:
    assert after(*events).handle(ShutDown("over", failed=True)) == [EndWorker("over", True)]


def test_signs_of_life_change_nothing() -> None:
    machine = after(deploy(E1), TasksEnded())
    assert machine.handle(CoordinatorHeartbeat(Epoch(0))) == machine.handle(StandBy()) == []
    assert not machine.dropped


def test_an_end_that_nobody_asked_for_is_an_error() -> None:
    machine = after(deploy(E1), TasksEnded())
    with pytest.raises(ProtocolError, match="nobody has asked"):
        machine.handle(TasksEnded())
    assert machine.handle(StartTasks(E1)) == [ForwardToTasks(StartTasks(E1))]
