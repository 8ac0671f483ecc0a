"""The guard of all tests: what it takes for a trace that a test has left, and what not."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable

import pytest
from tests.left_behind import changes, shared_state

LOGGER = logging.getLogger("crosscut.left_behind")


def test_nothing_is_left_behind_by_nothing() -> None:
    assert changes(shared_state(), shared_state()) == {}


def propagate_no_more() -> None:
    LOGGER.propagate = False


def ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("leave", "names"),
    [
        (lambda: os.environ.update(CROSSCUT_LEFT_BEHIND="1"), ["$CROSSCUT_LEFT_BEHIND"]),
        (lambda: os.environ.update(OTHER_LEFT_BEHIND="1", PYSPARK_LEFT_BEHIND="1"), []),
        (lambda: os.environ.update(GIVEN="2"), ["$GIVEN"]),
        (lambda: os.environ.pop("GIVEN"), ["$GIVEN"]),
        (lambda: LOGGER.setLevel(logging.ERROR), ["logger crosscut.left_behind"]),
        (lambda: LOGGER.addHandler(logging.NullHandler()), ["logger crosscut.left_behind"]),
        (propagate_no_more, ["logger crosscut.left_behind"]),
        (lambda: logging.getLogger("crosscut.left_behind.below.it"), []),
        (ignore_ctrl_c, ["signal handlers"]),
        (lambda: os.chdir("/"), ["working directory"]),
    ],
)
def test_what_a_test_changes_for_others_is_found(leave: Callable[[], object], names: list[str]) -> None:
    directory, interrupt, level = os.getcwd(), signal.getsignal(signal.SIGINT), LOGGER.level
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "environ", {**os.environ, "GIVEN": "1"})
        before = shared_state()
        try:
            leave()
            found = changes(before, shared_state())
        finally:
            os.chdir(directory)
            signal.signal(signal.SIGINT, interrupt)
            LOGGER.setLevel(level)
            LOGGER.handlers.clear()
            LOGGER.propagate = True
    assert list(found) == names


def test_before_and_after_are_shown() -> None:
    assert changes({"$A": "1", "a": 1}, {"a": 2, "b": 3, "$CROSSCUT_X": "4", "$B": "5"}) == {
        "$A": ("1", None),
        "a": (1, 2),
        "b": (None, 3),
        "$CROSSCUT_X": (None, "4"),
    }
