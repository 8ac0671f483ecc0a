"""What comes after a batch."""

from __future__ import annotations

from itertools import product

import pytest

from crosscut.protocol.microbatch.going_on import NextStep, next_step


@pytest.mark.parametrize(("stops", "come", "asked"), list(product((False, True), repeat=3)))
def test_after_a_full_batch_the_next_one_comes_at_once(stops: bool, come: bool, asked: bool) -> None:
    step = next_step(is_full=True, stops_when_read=stops, splits_have_come=come, is_asked=asked)
    assert step is NextStep.BATCH_AT_ONCE


@pytest.mark.parametrize(("come", "asked"), list(product((False, True), repeat=2)))
def test_a_job_that_does_not_stop_by_itself_waits_for_its_interval(come: bool, asked: bool) -> None:
    step = next_step(is_full=False, stops_when_read=False, splits_have_come=come, is_asked=asked)
    assert step is NextStep.WAIT_FOR_TIME


@pytest.mark.parametrize(
    ("come", "asked", "step"),
    [
        (False, False, NextStep.STOP),
        (False, True, NextStep.WAIT_FOR_ANSWERS),
        (True, False, NextStep.BATCH_AT_ONCE),
        (True, True, NextStep.BATCH_AT_ONCE),
    ],
)
def test_a_job_that_reads_what_is_there_stops_once_its_sources_have_answered(
    come: bool, asked: bool, step: NextStep
) -> None:
    assert next_step(is_full=False, stops_when_read=True, splits_have_come=come, is_asked=asked) is step
