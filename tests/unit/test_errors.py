"""The one exception tree: ids are attributes, and everything survives the way between processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

import crosscut.errors as errors
from crosscut.errors import CrosscutError, InternalError, invariant
from crosscut.protocol.messages import FailureCause


def all_classes(kind: type[CrosscutError] = CrosscutError) -> Iterator[type[CrosscutError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from all_classes(one)


KINDS = sorted(
    (kind for kind in all_classes() if kind.__module__ == errors.__name__), key=lambda kind: kind.__name__
)


def test_every_exception_of_the_module_is_in_the_tree() -> None:
    found = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, BaseException)}
    assert found == set(KINDS)
    assert len(KINDS) >= 12


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_exception_survives_pickling_with_its_ids(kind: type[CrosscutError]) -> None:
    ids = {"operator": "by-key", "record": None, "cause": FailureCause("kind", "message"), "damaged": True}
    error = kind("what failed and what to do", **ids)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == again.message == "what failed and what to do"
        assert again.args == error.args
        assert again.ids == ids
        assert {name: getattr(again, name) for name in ids} == ids


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_exception_without_ids_survives_pickling(kind: type[CrosscutError]) -> None:
    again = pickle.loads(pickle.dumps(kind("text")))
    assert (type(again), again.message, again.ids) == (kind, "text", {})


def test_an_invariant_that_holds_says_nothing_and_a_broken_one_is_a_bug_with_its_ids() -> None:
    invariant(True, "one and one is two")
    with pytest.raises(InternalError, match="one and one is three") as failure:
        invariant(False, "one and one is three", epoch=3)
    assert failure.value.ids == {"epoch": 3}
