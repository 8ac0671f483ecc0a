"""What the cut of a job with drained sources says about its end: every case of the decision."""

import pytest

from crosscut.protocol.checkpoints import Completion
from crosscut.protocol.termination import (
    LOOP_WATCH_MS,
    CheckAgain,
    EndLoops,
    Termination,
    WatchLoops,
    after_drain,
    termination,
)


def test_without_loops_another_checkpoint_follows_at_once() -> None:
    for in_flight in (0, 5):
        shown = Completion(is_after_drain=True, in_flight=in_flight)
        assert after_drain(shown, has_open_loops=False, interval_ms=1_000) == CheckAgain()


def test_a_cut_from_before_the_drain_says_nothing_about_loops() -> None:
    """A source may have fed the loop behind the barrier."""
    shown = Completion(is_after_drain=False, in_flight=0)
    assert after_drain(shown, has_open_loops=True, interval_ms=1_000) == CheckAgain()


def test_loops_end_when_a_cut_after_the_drain_holds_no_record() -> None:
    """G4: the stable property."""
    shown = Completion(is_after_drain=True, in_flight=0)
    assert after_drain(shown, has_open_loops=True, interval_ms=1_000) == EndLoops()


@pytest.mark.parametrize(("interval_ms", "delay_ms"), [(20, 20), (60_000, LOOP_WATCH_MS)])
def test_a_loop_that_is_not_empty_is_watched(interval_ms: int, delay_ms: int) -> None:
    shown = Completion(is_after_drain=True, in_flight=1)
    assert after_drain(shown, has_open_loops=True, interval_ms=interval_ms) == WatchLoops(delay_ms)


@pytest.mark.parametrize(
    ("is_final", "is_drained", "are_loops_closed", "expected"),
    [
        (False, False, False, Termination.OPEN),
        (False, True, False, Termination.DRAINED),
        (False, True, True, Termination.QUIET),
        (True, True, True, Termination.FINAL),
        (True, False, False, Termination.FINAL),
    ],
)
def test_how_near_the_end_a_job_is(
    is_final: bool, is_drained: bool, are_loops_closed: bool, expected: Termination
) -> None:
    found = termination(is_final=is_final, is_drained=is_drained, are_loops_closed=are_loops_closed)
    assert found is expected
