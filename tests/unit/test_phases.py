"""The transitions of a job: the coordinator takes those of the table, on those events, and no others."""

from typing import get_args

import pytest
from tests.simulation.conversation import talk_in
from tests.simulation.coordinator_walk import walk

from crosscut.errors import InternalError
from crosscut.protocol.events import CancelRequested, JobEvent, MessageReceived, TimerFired, TimerKind
from crosscut.protocol.job.phases import MOVES, TRANSITIONS, Phase, Turn
from crosscut.protocol.messages import WorkerMessage

KINDS = (
    *(one.__name__ for one in get_args(JobEvent) if one not in (MessageReceived, TimerFired)),
    *(one.__name__ for one in get_args(WorkerMessage)),
    *(f"timer {one}" for one in get_args(TimerKind)),
)


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_every_event_in_every_phase_leads_where_the_table_says_and_nowhere_else(is_long: bool) -> None:
    found = walk(is_long=is_long)
    assert {kind for _, kind in found} == set(KINDS)
    for kind in KINDS:
        for phase in Phase:
            expected = MOVES.get(kind, {}).get(phase, frozenset())
            assert found.get((phase, kind), frozenset()) - {phase} == expected, f"{kind} in {phase.name}"


def test_the_events_of_the_table_take_the_turns_of_the_other_table() -> None:
    """Two turns may be taken at once: claimed, and all workers are there."""
    one_turn = {(before, after) for (before, _), after in TRANSITIONS.items()}
    at_once = {(Phase.CLAIMING, Phase.RESTORING)}
    for kind, moves in MOVES.items():
        for before, afters in moves.items():
            assert {(before, after) for after in afters} <= one_turn | at_once, kind


def test_every_turn_is_taken_from_some_phase_and_every_phase_but_the_first_is_come_to() -> None:
    assert {turn for _, turn in TRANSITIONS} == set(Turn)
    assert set(TRANSITIONS.values()) == set(Phase)


@pytest.mark.parametrize("phase", [one for one in Phase if one is not Phase.ENDED])
def test_a_job_can_be_cancelled_in_every_phase(phase: Phase) -> None:
    talk = talk_in(phase)
    talk.hear(CancelRequested())
    assert talk.coordinator.phase is Phase.ENDED


def test_a_transition_that_is_not_in_the_table_is_a_bug_of_ours() -> None:
    coordinator = talk_in(Phase.ENDED).coordinator
    with pytest.raises(InternalError, match="no way leads from ENDED at READY"):
        coordinator._go(Turn.READY)
    assert coordinator.phase is Phase.ENDED
