"""Joins where the watermark is just the time of a record: nothing older comes, but its own time may (P11)."""

from __future__ import annotations

from typing import Any

from crosscut.foundation.batch import Batch
from crosscut.graph.joins import LEFT, IntervalJoinSpec, LatestJoinSpec
from crosscut.operators.joins.building import JoinSpec, join_operator, join_state
from crosscut.operators.time_budget import TimeBudget

RIGHT = 1


class Join:
    """A join of records with the key "k"."""

    def __init__(self, spec: JoinSpec) -> None:
        self.state = join_state(spec)
        self.operator = join_operator("join", self.state, spec)
        self.operator.time_budget = TimeBudget()
        self.operator.time_budget.begin(100)

    def record(self, side: int, time: int, value: str) -> list[Any]:
        batch = Batch([value], ["k"], [time])
        batch.input = side
        return [pair for _, pair in self.operator.process(batch).records]

    def watermark(self, time: int) -> list[Any]:
        said: list[Any] = []
        while (batch := self.operator.advance(time)) is not None:
            said += [pair for _, pair in batch.records]
        return said

    def rows(self, table: str) -> int:
        return len(list(self.state.named[table].items()))


def test_a_partner_at_the_end_of_the_interval_meets_a_record_that_waited_until_the_watermark_was_there() -> (
    None
):
    join = Join(IntervalJoinSpec(0, 5, "left"))
    assert join.record(LEFT, 10, "l") == []
    assert join.watermark(15) == [], "a partner at 15 is not late yet"
    assert join.record(RIGHT, 15, "r") == [("l", "r")]
    assert join.watermark(16) == []
    assert join.rows("left") == 0


def test_a_record_whose_interval_ends_at_the_watermark_waits_for_a_partner_there() -> None:
    join = Join(IntervalJoinSpec(-5, 0, "left"))
    join.watermark(15)
    assert join.record(LEFT, 15, "l") == []
    assert join.record(RIGHT, 15, "r") == [("l", "r")]


def test_a_record_of_the_time_of_the_watermark_is_not_late() -> None:
    for spec in (IntervalJoinSpec(0, 5, "inner"), LatestJoinSpec("left")):
        join = Join(spec)
        join.watermark(10)
        join.record(LEFT, 10, "l")
        assert join.operator.late_count == 0
        join.record(LEFT, 9, "late")
        assert join.operator.late_count == 1


def test_a_version_of_the_time_of_the_watermark_is_the_one_that_a_record_of_that_time_gets() -> None:
    join = Join(LatestJoinSpec("left"))
    join.record(RIGHT, 5, "old")
    join.record(LEFT, 10, "l")
    assert join.watermark(10) == [], "a version of 10 may still come"
    join.record(RIGHT, 10, "new")
    assert join.watermark(11) == [("l", "new")]


def test_the_newest_of_two_versions_of_one_time_counts_also_if_the_watermark_has_passed_it() -> None:
    join = Join(LatestJoinSpec("left"))
    join.record(RIGHT, 5, "first")
    join.watermark(10)
    join.record(RIGHT, 5, "second")
    join.record(LEFT, 12, "l")
    assert join.watermark(13) == [("l", "second")]


def test_a_version_is_dropped_as_soon_as_nothing_can_ask_for_it() -> None:
    join = Join(LatestJoinSpec("left"))
    join.record(RIGHT, 5, "old")
    join.record(RIGHT, 10, "new")
    join.watermark(9)
    assert join.rows("versions") == 2
    join.watermark(10)
    assert join.rows("versions") == 1
