"""The explorer of the unit log is able to fail: each planted bug breaks the invariant named with it."""

import pytest
from tests.proof.explorer.search import explore
from tests.proof.unit_log.graphs import SMALL, TWO_RECORDS
from tests.proof.unit_log.planted import BUGS, NOT_ASKED_AGAIN, Edit, edited
from tests.proof.unit_log.states import UnitStates, lines
from tests.proof.unit_log.walks import walk
from tests.proof.unit_log.world import NO_FAULTS, Faults, UnitWorld

from crosscut.protocol.unit_log.unit import Unit
from planted import must_break

WALKS_MAX, MORE_WALKS_MAX = 400, 6_000


def plant(edits: tuple[Edit, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for (owner, method), planted in edited(edits).items():
        monkeypatch.setattr(owner, method, planted)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_breaks_its_invariant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    plant(bug.edits, monkeypatch)
    must_break(bug.invariant, (walk(seed, bug.make, bug.habits).failure for seed in range(WALKS_MAX)))


@pytest.mark.proof
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_by_walks_of_any_habit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    plant(bug.edits, monkeypatch)
    must_break(bug.invariant, (walk(seed, bug.make).failure for seed in range(MORE_WALKS_MAX)))


def test_the_search_shows_the_shortest_way_to_a_planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(BUGS["outputs leave before the log"].edits, monkeypatch)
    found = explore(UnitStates(UnitWorld(SMALL, NO_FAULTS)), 10_000)
    assert lines(found).splitlines()[-1] == ("then: U3: ('S', 1) sends S[0]->K[0]#0 1, which is not logged")


def test_the_search_finds_a_receiver_that_was_refused_and_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(NOT_ASKED_AGAIN, monkeypatch)
    found = explore(UnitStates(UnitWorld(TWO_RECORDS, Faults(cuts=1))), 100_000)
    assert "then: U8: the output is of [100], expected [100, 101]" in lines(found)


def test_a_bug_whose_place_is_gone_is_a_mistake_of_the_list() -> None:
    with pytest.raises(ValueError, match="0 times"):
        edited((Edit(Unit, "start", "no such text", ""),))


def test_there_are_the_twenty_seven_of_the_design_and_six_more() -> None:
    """Four of news and input queues, two of older claimants."""
    assert len(BUGS) == 33
