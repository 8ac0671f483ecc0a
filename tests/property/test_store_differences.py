"""What has changed between two values makes the one of the other, and says little of what has not."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from crosscut.errors import StoreError
from crosscut.store.differences import applied, difference

SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2, width=16) | st.text("ab", max_size=2)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text("abc", max_size=1), inner, max_size=4)
    ),
    max_leaves=25,
)


def text(value: Any) -> str:
    """JSON that tells 1 from 1.0 and true, and does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True)


@given(VALUES, VALUES)
@example([1], [True])
@example([1, 2, 3], [1.0, 2, 3])
@example({"a": [0.0]}, {"a": [-0.0]})
def test_a_change_makes_the_new_value_of_the_old_one(old: Any, new: Any) -> None:
    before = text(old)
    change = json.loads(json.dumps(difference(old, new)))
    assert text(applied(old, change)) == text(new)
    assert text(old) == before, "it is not touched"


@given(VALUES)
def test_of_what_is_the_same_hardly_anything_is_said(value: Any) -> None:
    change = difference(value, json.loads(json.dumps(value)))
    if isinstance(value, dict | list):
        assert len(text(change)) < 20


@given(VALUES, VALUES)
def test_any_value_is_a_change_or_the_named_error(old: Any, change: Any) -> None:
    with suppress(StoreError):
        applied(old, change)


def rows(count: int) -> list[Any]:
    return [[f"split-{index}", 0, {"path": f"/data/{index}"}, 1, 0] for index in range(count)]


def test_one_position_of_many_that_advances_is_said_alone() -> None:
    old, new = rows(20_000), rows(20_000)
    new[7_000][4] = 5
    assert difference(old, new) == ["~", 7_000, 12_999, [["~", 4, 0, [["=", 5]]]]]


def test_a_split_that_ends_does_not_make_all_the_others_new() -> None:
    old = rows(20_000)
    new = [*rows(4)[1:], *rows(20_000)[4:]]
    new[0][4] = 9
    change: Any = difference(old, new)
    assert len(text(change)) < 400
    assert applied(old, change) == new
