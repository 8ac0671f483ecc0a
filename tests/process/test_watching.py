"""Whoever reads the output of a job while it runs sees what must not be there."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import Update, check_is_beginning

Files = dict[str, list[tuple[str, Update]]]

FIRST: Files = {"a": [("key", (1, 5, 5)), ("key", (2, 11, 6))]}


def judged(seen: Files, found: Files) -> None:
    check_is_beginning(*({Path(name): one for name, one in files.items()} for files in (seen, found)))


def test_the_beginning_of_the_right_output_is_right_though_some_of_it_came_while_it_was_listed() -> None:
    judged({}, {})
    judged(FIRST, FIRST)
    judged(FIRST, FIRST | {"c": [("key", (4, 20, 2))]})


@pytest.mark.parametrize(
    ("seen", "found", "said"),
    [
        (FIRST, FIRST | {"b": [("key", (2, 11, 6))]}, "visible twice"),
        (FIRST, {"a": [("key", (1, 5, 5)), ("key", (2, 10, 5))]}, "counted twice"),
        ({"b": [("key", (2, 11, 6))]}, {"b": [("key", (2, 11, 6))]}, "some are missing"),
        (FIRST, {"a": [("key", (1, 5, 5)), ("key", (2, 12, 6))]}, "the state does not belong to the output"),
    ],
)
def test_what_is_there_twice_or_missing_or_of_another_state_is_found(
    seen: Files, found: Files, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        judged(seen, found)
