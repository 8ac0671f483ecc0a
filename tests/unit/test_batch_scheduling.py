"""What comes after a batch."""

from __future__ import annotations

from itertools import product

import pytest

from crosscut.protocol.microbatch.batch_scheduling import NextStep, next_step

BOOLS = (False, True)


def step(stops: bool, come: bool, asked: bool, coming: bool, *, is_full: bool = False) -> NextStep:
    return next_step(
        is_full=is_full,
        stops_when_read=stops,
        splits_have_come=come,
        is_asked=asked,
        splits_are_coming=coming,
    )


@pytest.mark.parametrize(("stops", "come", "asked", "coming"), list(product(BOOLS, repeat=4)))
def test_after_a_full_batch_the_next_one_comes_at_once(
    stops: bool, come: bool, asked: bool, coming: bool
) -> None:
    assert step(stops, come, asked, coming, is_full=True) is NextStep.BATCH_AT_ONCE


@pytest.mark.parametrize(("come", "asked", "coming"), list(product(BOOLS, repeat=3)))
def test_a_job_that_does_not_stop_by_itself_waits_for_its_interval(
    come: bool, asked: bool, coming: bool
) -> None:
    assert step(False, come, asked, coming) is NextStep.WAIT_FOR_TIME


@pytest.mark.parametrize(
    ("come", "asked", "coming", "expected"),
    [
        (False, False, False, NextStep.STOP),
        (False, True, False, NextStep.WAIT_FOR_ANSWERS),
        (False, False, True, NextStep.WAIT_FOR_ANSWERS),
        (False, True, True, NextStep.WAIT_FOR_ANSWERS),
        *((True, asked, coming, NextStep.BATCH_AT_ONCE) for asked, coming in product(BOOLS, repeat=2)),
    ],
)
def test_a_job_that_reads_what_is_there_stops_once_its_sources_say_that_it_is_all(
    come: bool, asked: bool, coming: bool, expected: NextStep
) -> None:
    assert step(True, come, asked, coming) is expected
