"""What a worker may say depends on the link that it says it on: of itself, and of its own tasks only.

Whoever has the job's secret can say anything. What he says of others must not be believed.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest
from tests.simulation.conversation import (
    CAUSE,
    K0,
    K1,
    LINKS,
    S0,
    S1,
    Talk,
    coordinator_spec,
    messages,
    registration,
    snapshot,
    state_of,
    talk_in,
)

from crosscut.foundation.ids import AttemptId, CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.protocol.effects import CloseLink, JobEffect, SendMessage
from crosscut.protocol.events import LinkClosed, LinkOpened, MessageReceived
from crosscut.protocol.job import fencing as hearing
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec, Phase
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.messages import (
    FailureCause,
    RegisterWorker,
    ShutDown,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    SourceReached,
    SourcesReached,
    TaskFailed,
    TaskQuiet,
    TaskStatistics,
    TransactionsCommitted,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerMessage,
)

ANOTHERS = "message about another worker's task"
N1, E1 = CheckpointId(1), Epoch(1)
DEPLOYED = (Phase.RESTORING, Phase.RUNNING, Phase.STOPPING, Phase.FINISHING, Phase.WAITING)


def lies() -> tuple[WorkerMessage, ...]:
    """Return everything that worker 1 can say of the tasks of worker 0."""
    return (
        TaskFailed(E1, K0, CAUSE),
        SnapshotAcknowledged(E1, N1, K0, snapshot(K0, 1)),
        SnapshotDeclined(E1, N1, K0, "because"),
        TaskQuiet(E1, N1, K0),
        SourceDrained(E1, S0),
        TransactionsCommitted(E1, N1, K0),
        SourcesReached(E1, 1, (SourceReached(S1, 5), SourceReached(S0, 5))),
        WorkerHeartbeat(E1, (TaskStatistics(K1), TaskStatistics(K0))),
    )


def check_lies_change_nothing(make: Callable[[CoordinatorSpec], Coordinator]) -> None:
    for phase in DEPLOYED:
        for lie in lies():
            talk = talk_in(phase, make)
            if phase in (Phase.RUNNING, Phase.STOPPING):
                talk.fire("trigger")
            before = deepcopy(state_of(talk.coordinator))
            assert talk.message(1, lie) == [], f"{lie} in {phase}"
            assert state_of(talk.coordinator) == before, f"{lie} in {phase}"
            assert talk.coordinator.dropped[ANOTHERS] == 1, f"{lie} in {phase}"


def test_what_a_worker_says_of_the_tasks_of_another_changes_nothing() -> None:
    check_lies_change_nothing(Coordinator)


def test_what_a_worker_says_of_its_own_tasks_is_heard() -> None:
    for message in messages(E1):
        talk = talk_in(Phase.RUNNING)
        talk.message(0, message)
        assert talk.coordinator.dropped[ANOTHERS] == 0


def test_believing_every_word_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the message is not compared with the link it came on."""
    monkeypatch.setattr(hearing, "speaks_for_itself", lambda index, message, tasks: True)
    with pytest.raises(AssertionError):
        check_lies_change_nothing(Coordinator)


def test_a_checkpoint_is_not_complete_by_the_word_of_one_worker_for_all() -> None:
    """The harm that it would do: an entry in the log that nobody can restore."""
    talk = Talk()
    talk.running()
    talk.fire("trigger")
    for task in (S0, S1, K0, K1):
        assert talk.message(1, SnapshotAcknowledged(E1, N1, task, snapshot(task, 1))) == []
    assert talk.coordinator.dropped[ANOTHERS] == 2


def task_ids_in(hint: Any) -> bool:
    """Return whether a value of this type can hold a task id."""
    if hint is TaskId:
        return True
    if is_dataclass(hint):
        return any(task_ids_in(one) for one in get_type_hints(hint).values())
    return any(task_ids_in(one) for one in get_args(hint))


def test_every_message_that_can_name_a_task_is_among_the_lies() -> None:
    """A message added later is checked, too, or this fails."""
    able = {kind for kind in get_args(WorkerMessage) if task_ids_in(kind)}
    assert able == {type(lie) for lie in lies()}


def test_a_task_of_no_vertex_is_nobodys() -> None:
    """It is of the worker's own index, and of no task of the job."""
    talk = talk_in(Phase.RUNNING)
    nobody = TaskId(VertexId("nobody"), 1)
    for lie in lies():
        if any(field.name == "task" for field in fields(lie)):
            before = deepcopy(state_of(talk.coordinator))
            assert talk.message(1, replace(lie, task=nobody)) == []  # type: ignore[call-arg]
            assert state_of(talk.coordinator) == before, lie
    assert talk.coordinator.dropped[ANOTHERS] == 6


# Who is who


def turned_away(link: int, attempt: int, worker: int) -> list[JobEffect]:
    reason = f"this link has not proven to be attempt {attempt} of worker {worker}"
    return [SendMessage(link, ShutDown(reason, failed=True)), CloseLink(link)]


def impostors() -> Iterator[tuple[LinkOpened | None, RegisterWorker]]:
    yield None, registration(1, 2)
    yield LinkOpened(21, WorkerIndex(0), AttemptId(2)), registration(1, 2)
    yield LinkOpened(21, WorkerIndex(1), AttemptId(3)), registration(1, 2)


def check_impostors_are_turned_away(make: Callable[[CoordinatorSpec], Coordinator]) -> None:
    for opened, said in impostors():
        talk = Talk(make)
        talk.gathering()
        talk.message(0, registration(0, 1))
        if opened is not None:
            talk.hear(opened)
        assert talk.hear(MessageReceived(21, said)) == turned_away(21, 2, 1)
        assert talk.coordinator.phase is Phase.GATHERING
        assert talk.coordinator.dropped["registration as somebody else"] == 1
        assert talk.hear(LinkClosed(21, "turned away")) == []


def test_a_worker_registers_as_the_one_that_its_link_has_proven_to_be() -> None:
    check_impostors_are_turned_away(Coordinator)


class BelievesNames(WorkerRegistry):
    """A planted bug: what the handshake has proven is not compared with what is said."""

    def is_proven(self, link: int, message: RegisterWorker | WorkerFailed) -> bool:
        return True


def without_proof(terms: CoordinatorSpec) -> Coordinator:
    coordinator = Coordinator(terms)
    coordinator.registry.__class__ = BelievesNames
    return coordinator


def test_believing_a_name_is_found() -> None:
    with pytest.raises(AssertionError):
        check_impostors_are_turned_away(without_proof)


def test_a_link_that_was_closed_has_proven_nothing() -> None:
    talk = Talk()
    talk.gathering()
    talk.hear(LinkOpened(21, WorkerIndex(1), AttemptId(2)), LinkClosed(21, "reset"))
    assert talk.hear(MessageReceived(21, registration(1, 2))) == turned_away(21, 2, 1)


def failed_start(worker: int, attempt: int) -> WorkerFailed:
    return WorkerFailed(WorkerIndex(worker), AttemptId(attempt), FailureCause("ImportError", "no module"))


def test_a_start_fails_by_the_word_of_the_attempt_that_has_failed() -> None:
    talk = Talk()
    talk.gathering()
    talk.hear(LinkOpened(21, WorkerIndex(0), AttemptId(7)))
    for somebody_else in (failed_start(1, 7), failed_start(0, 8)):
        assert talk.hear(MessageReceived(21, somebody_else)) == []
    assert talk.coordinator.dropped["failed start of somebody else"] == 2
    assert talk.coordinator.failures == ()


def test_a_start_fails_once() -> None:
    """A single link can't use up the failures that the restart strategy allows."""
    talk = Talk(failures_max=1)
    talk.gathering()
    talk.comes(21, failed_start(0, 7))
    for _ in range(5):
        assert talk.hear(MessageReceived(21, failed_start(0, 7))) == []
    assert len(talk.coordinator.failures) == 1


@pytest.mark.parametrize("link", [21, LINKS[1]], ids=["a new link", "the link of the other worker"])
def test_a_start_can_not_fail_for_a_place_that_somebody_holds(link: int) -> None:
    talk = Talk()
    talk.running()
    talk.hear(LinkOpened(link, WorkerIndex(0), AttemptId(1)))
    assert talk.hear(MessageReceived(link, failed_start(0, 1))) == []
    assert talk.coordinator.failures == ()


@pytest.mark.parametrize("worker", [2, 1 << 31])
def test_a_start_can_not_fail_for_a_place_that_the_job_does_not_have(worker: int) -> None:
    talk = Talk()
    talk.gathering()
    assert talk.comes(21, failed_start(worker, 7)) == []
    assert talk.coordinator.failures == ()


def test_a_worker_that_has_registered_can_not_fail_to_start() -> None:
    """It stands by for its own place, and that place has become free: it has it by now."""
    talk = Talk(delay_ms=100)
    talk.running()
    talk.comes(21, registration(1, 8))
    talk.hear(LinkClosed(LINKS[1], "reset"))
    known = talk.coordinator.failures
    assert talk.hear(MessageReceived(21, failed_start(1, 8))) == []
    assert talk.coordinator.failures == known


def test_the_job_of_the_conversation_has_two_workers() -> None:
    """The lies above are lies only as long as that is so."""
    assert coordinator_spec().identity.parallelism == 2
