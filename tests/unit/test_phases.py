"""The transition table of a job, and its picture in the specification."""

import re
from pathlib import Path

import pytest
from tests.simulation.conversation import talk_in

from crosscut.errors import InternalError
from crosscut.protocol.events import CancelRequested
from crosscut.protocol.job.phases import NEXT_PHASES, Phase

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_picture_in_the_specification_shows_every_transition_and_no_other() -> None:
    drawn = {
        (Phase[before], Phase[after])
        for before, after in re.findall(r"^    (\w+) --> (\w+):", PROTOCOL.read_text(), re.M)
    }
    table = {(before, after) for before, afters in NEXT_PHASES.items() for after in afters}
    always = {(before, Phase.ENDED) for before in Phase if before is not Phase.ENDED}
    assert drawn | always == table, "ENDED can be reached from everywhere, which is said in words"


@pytest.mark.parametrize("phase", [one for one in Phase if one is not Phase.ENDED])
def test_a_job_can_be_cancelled_in_every_phase(phase: Phase) -> None:
    talk = talk_in(phase)
    talk.hear(CancelRequested())
    assert talk.coordinator.phase is Phase.ENDED


def test_a_transition_that_is_not_in_the_table_is_a_bug_of_ours() -> None:
    coordinator = talk_in(Phase.ENDED).coordinator
    with pytest.raises(InternalError, match="no way leads from ENDED to RUNNING"):
        coordinator._go(Phase.RUNNING)
    assert coordinator.phase is Phase.ENDED
