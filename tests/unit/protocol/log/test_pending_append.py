"""One entry on its way into a log: every answer of the store, after every other."""

import pytest

from crosscut.protocol.log.pending_append import Fate, PendingAppend


@pytest.mark.parametrize(
    ("found", "fate"), [("ours", Fate.WRITTEN), ("theirs", Fate.OVERTAKEN), (None, Fate.APPEND)]
)
def test_an_unknown_append_is_what_its_index_holds(found: str | None, fate: Fate) -> None:
    step = PendingAppend("ours")
    assert step.uncertain("no answer") is Fate.WAIT
    assert step.read(found, contradiction="") is fate


def test_a_refused_append_is_refused_unless_an_earlier_one_is_unknown() -> None:
    step = PendingAppend("ours")
    assert step.refused("full") is Fate.REFUSED
    step.uncertain("no answer")
    assert step.refused("full") is Fate.WAIT
    assert step.reason == "full"


def test_a_store_that_contradicts_itself_is_asked_later() -> None:
    step = PendingAppend("ours")
    assert step.taken() is Fate.READ
    assert step.read(None, contradiction="it is there, and it is not") is Fate.WAIT
    assert step.reason == "it is there, and it is not"
    assert step.read(None, contradiction="") is Fate.APPEND


def test_what_stays_unknown_is_undecided() -> None:
    step = PendingAppend("ours", attempts_max=3)
    assert [step.uncertain("") for _ in range(3)] == [Fate.WAIT, Fate.WAIT, Fate.UNDECIDED]
