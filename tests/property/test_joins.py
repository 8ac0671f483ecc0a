"""Joins against nested loops over all records: late, out of order, restored anywhere."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.timed import WINDOWS, drawn_records, drawn_steps, part_of, restored

from crosscut.contracts.windows import Session, Sliding, Tumbling, Window, Windowed
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.joins import (
    How,
    IntervalJoinSpec,
    LatestHow,
    LatestJoinSpec,
    WindowJoinSpec,
    keeps_left,
    keeps_right,
)
from crosscut.operators.joins.building import JoinSpec, join_operator, join_state
from crosscut.operators.time_budget import TimeBudget
from crosscut.operators.timed import NO_TIME, TimedOperator

HOWS = st.sampled_from(get_args(How))
RECORDS = drawn_records(6)
STEPS = drawn_steps(st.tuples(st.sampled_from([0, 1]), RECORDS))


class Run:
    """A join over its state, which may be stored and restored."""

    def __init__(self, spec: JoinSpec, *, is_timed: bool = True) -> None:
        self.spec = spec
        self.is_timed = is_timed
        self.watermark = NO_TIME
        self.state = join_state(spec)
        self.said: list[Any] = []
        self.operator = self.made()
        self.checkpoint_id = CheckpointId(0)

    def made(self) -> TimedOperator:
        operator = join_operator("j", self.state, self.spec)
        operator.time_budget = TimeBudget()
        operator.time_budget.begin(2)
        if self.watermark != NO_TIME:
            # As a restored chain does, before anything else.
            self.hear(operator, self.watermark)
        return operator

    def hear(self, operator: TimedOperator, watermark: int) -> None:
        while (said := operator.advance(watermark)) is not None:
            self.said += pairs(said)

    def step(self, step: Any) -> list[Any]:
        """Return what is said meanwhile, with its times."""
        if isinstance(step, int):
            self.watermark = step
            self.hear(self.operator, step)
        else:
            side, records = step
            times = [time for _, time, _ in records] if self.is_timed else None
            batch = Batch([record for _, _, record in records], [key for key, _, _ in records], times)
            batch.input = side
            self.said += pairs(self.operator.process(batch))
        said, self.said = self.said, []
        return said

    def crash_and_restore(self) -> None:
        self.checkpoint_id = CheckpointId(self.checkpoint_id + 1)
        part = part_of(self.state, self.checkpoint_id)
        self.state = restored(join_state(self.spec), self.checkpoint_id, part)
        self.operator = self.made()


def pairs(batch: Batch) -> list[Any]:
    if batch.timestamps is None:
        return [(record, None) for record in batch.records]
    return list(zip(batch.records, batch.timestamps, strict=True))


def run_of(
    spec: JoinSpec, steps: list[Any], data: st.DataObject | None, *, is_timed: bool = True
) -> tuple[list[Any], Run]:
    """Return all that a join says, with times, crashing at times."""
    run = Run(spec, is_timed=is_timed)
    said = []
    before = NO_TIME
    for step in steps:
        if data is not None and data.draw(st.booleans()):
            run.crash_and_restore()
        found = run.step(step)
        # Whatever is said is not late for those behind: it comes before the watermark goes on.
        assert all(time >= before for _, time in found if time is not None)
        before = run.watermark
        said += found
    return said, run


def accepted(steps: list[Any]) -> tuple[list[list[Any]], int]:
    """Return the records of each side that are not late, in order of arrival, and how many are."""
    sides: list[list[Any]] = [[], []]
    watermark, late = NO_TIME, 0
    for step in steps:
        if isinstance(step, int):
            watermark = step
            continue
        side, records = step
        sides[side] += [one for one in records if one[1] >= watermark]
        late += sum(one[1] < watermark for one in records)
    return sides, late


def bag(records: list[Any]) -> list[str]:
    return sorted(map(repr, records))


def alone(mine: list[Any], met: list[Any]) -> list[Any]:
    return [one for index, one in enumerate(mine) if index not in met]


@given(st.integers(-8, 8), st.integers(0, 8), HOWS, STEPS, st.data())
@settings(max_examples=examples(150, few=50))
def test_an_interval_join_says_what_nested_loops_say(
    lower: int, length: int, how: How, steps: list[Any], data: st.DataObject
) -> None:
    said, run = run_of(IntervalJoinSpec(lower, lower + length, how), steps, data)
    (lefts, rights), _ = accepted(steps)
    met = [
        (i, j)
        for i, (key, time, _) in enumerate(lefts)
        for j, (other_key, other_time, _) in enumerate(rights)
        if key == other_key and time + lower <= other_time <= time + lower + length
    ]
    expected = [(lefts[i][0], (lefts[i][2], rights[j][2])) for i, j in met]
    if keeps_left(how):
        expected += [(key, (one, None)) for key, _, one in alone(lefts, [i for i, _ in met])]
    if keeps_right(how):
        expected += [(key, (None, one)) for key, _, one in alone(rights, [j for _, j in met])]
    assert bag([record for record, _ in said]) == bag(expected)
    assert len(run.state) == 0


@given(st.integers(-8, 8), st.integers(0, 8), HOWS, STEPS)
def test_an_interval_join_counts_late_records_and_says_pairs_at_the_time_of_the_later_one(
    lower: int, length: int, how: How, steps: list[Any]
) -> None:
    said, run = run_of(IntervalJoinSpec(lower, lower + length, how), steps, None)
    (lefts, rights), late = accepted(steps)
    assert run.operator.late_count == late
    for (key, (left, right)), time in said:
        if left is not None and right is not None:
            assert any(
                (key, left, right) == (k, one, other) and k == other_key and time == max(at, other_at)
                for k, at, one in lefts
                for other_key, other_at, other in rights
            )


@given(st.sampled_from(get_args(LatestHow)), STEPS, st.data())
@settings(max_examples=examples(150, few=50))
def test_a_join_with_the_latest_finds_the_version_that_was_valid(
    how: LatestHow, steps: list[Any], data: st.DataObject
) -> None:
    # Late versions are taken where they are still the latest: that is not determined by the records alone.
    punctual = []
    watermark = NO_TIME
    for step in steps:
        if isinstance(step, int):
            watermark = step
            punctual.append(step)
        else:
            side, records = step
            punctual.append((side, [one for one in records if side == 0 or one[1] >= watermark]))
    said, run = run_of(LatestJoinSpec(how), punctual, data)
    (lefts, rights), _ = accepted(punctual)
    expected = []
    for key, time, record in lefts:
        versions = [(at, number) for number, (k, at, _) in enumerate(rights) if k == key and at <= time]
        if versions:
            expected.append(((key, (record, rights[max(versions)[1]][2])), time))
        elif how == "left":
            expected.append(((key, (record, None)), time))
    assert bag(said) == bag(expected)
    # Of each key nothing is left but its last version.
    assert len(run.state) == len({key for key, _, _ in rights})


@given(st.sampled_from(get_args(LatestHow)), STEPS, st.data())
def test_without_event_time_the_version_that_came_last_is_taken(
    how: LatestHow, steps: list[Any], data: st.DataObject
) -> None:
    batches = [step for step in steps if not isinstance(step, int)]
    said, _ = run_of(LatestJoinSpec(how), batches, data, is_timed=False)
    latest: dict[Any, Any] = {}
    expected = []
    for side, records in batches:
        for key, _, record in records:
            if side == 1:
                latest[key] = record
            elif key in latest or how == "left":
                expected.append((key, (record, latest.get(key))))
    assert [record for record, _ in said] == expected


@pytest.mark.parametrize(
    ("spec", "name"), [(LatestJoinSpec("left"), "waiting"), (IntervalJoinSpec(0, 5, "left"), "left")]
)
def test_records_of_one_key_and_time_wait_in_one_list_that_is_not_copied_for_each(
    spec: JoinSpec, name: str
) -> None:
    run = Run(spec)
    run.step((0, [("a", 12, 0)]))
    table = run.state.named[name]
    waiting = table.get(("a", 12))
    for number in range(1, 50):
        run.step((0, [("a", 12, number)]))
        assert table.get(("a", 12)) is waiting
    # A snapshot has what was there, and nothing that came afterwards.
    n = CheckpointId(1)
    run.state.freeze(n)
    run.step((0, [("a", 12, 50)]))
    again = restored(join_state(spec), n, b"".join(run.state.encoded(n, CheckpointId(0))))
    assert (len(again.named[name].get(("a", 12))), len(table.get(("a", 12)))) == (50, 51)


def test_versions_of_one_time_replace_each_other_and_leave_nothing_behind() -> None:
    run = Run(LatestJoinSpec("left"))
    for number in range(50):
        run.step((1, [("a", 3, number)]))
    operator: Any = run.operator
    assert len(operator._successors) == 1
    run.step((0, [("a", 12, 1)]))
    assert run.step(20) == [(("a", (1, 49)), 12)]
    assert not operator._successors


def test_a_late_version_is_taken_where_it_is_still_the_latest() -> None:
    run = Run(LatestJoinSpec("left"))
    run.step(10)
    run.step((1, [("a", 3, 33), ("b", 3, 33)]))
    run.step((1, [("b", 5, 55), ("b", 4, 44)]))
    run.step((0, [("a", 12, 1), ("b", 12, 2)]))
    assert run.step(20) == [(("a", (1, 33)), 12), (("b", (2, 55)), 12)]


@given(WINDOWS, HOWS, STEPS, st.data())
@settings(max_examples=examples(150, few=50))
def test_a_window_join_says_all_pairs_of_each_window(
    window: Window, how: How, steps: list[Any], data: st.DataObject
) -> None:
    # All watermarks at the end: nothing is late, so what is in a window depends on the records alone.
    batches = [step for step in steps if not isinstance(step, int)]
    said, run = run_of(WindowJoinSpec(window, how), [*batches, END_OF_TIME], data)
    records = [(key, time, side, one) for side, some in batches for key, time, one in some]
    expected = []
    for key, start, end in windows_of(window, records):
        lefts, rights = (
            [one for k, time, s, one in records if k == key and s == side and start <= time < end]
            for side in (0, 1)
        )
        found = [(left, right) for left in lefts for right in rights]
        if keeps_left(how) and not rights:
            found += [(left, None) for left in lefts]
        if keeps_right(how) and not lefts:
            found += [(None, right) for right in rights]
        expected += [Windowed(key, start, end, pair) for pair in found]
    assert bag([record for record, _ in said]) == bag(expected)
    assert len(run.state) == 0


def windows_of(window: Window, records: list[Any]) -> set[tuple[Any, int, int]]:
    """Return key, start and end of all windows that hold a record."""
    found = set()
    if isinstance(window, Session):
        for key in {one[0] for one in records}:
            times = sorted(one[1] for one in records if one[0] == key)
            first = times[0]
            for before, after in zip(times, [*times[1:], END_OF_TIME], strict=True):
                if after >= before + window.gap_ms:
                    found.add((key, first, before + window.gap_ms))
                    first = after
        return found
    assert isinstance(window, Tumbling | Sliding)
    every = window.every_ms if isinstance(window, Sliding) else window.size_ms
    for key, time, _, _ in records:
        for start in range(window.offset_ms - 10 * every, time + 1, every):
            if start <= time < start + window.size_ms:
                found.add((key, start, start + window.size_ms))
    return found
