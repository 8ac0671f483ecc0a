"""Operators over windows against plain loops over all records: late, out of order, restored anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.timed import WINDOWS, drawn_records, drawn_steps, part_of, restored

from crosscut.contracts.windows import (
    Early,
    GlobalWindow,
    OnCount,
    Session,
    Sliding,
    Trigger,
    Tumbling,
    Window,
    Windowed,
    count_window,
)
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.specs import SideOutput
from crosscut.graph.windows import AggregateFold, CountFold, Fold, ProcessFold, ReduceFold, SumFold
from crosscut.operators.time_budget import TimeBudget
from crosscut.operators.timed import NO_TIME
from crosscut.operators.windows.aligned import AlignedWindows
from crosscut.operators.windows.building import window_operator, window_state
from crosscut.operators.windows.folding import folding
from crosscut.operators.windows.operator import WindowOperator
from crosscut.state.encoding import PartReader
from crosscut.state.keyed import KeyedState
from crosscut.task.chain import Chain


class Case(NamedTuple):
    """A windowed stream."""

    window: Window
    fold: Fold
    trigger: Trigger | None
    lateness_ms: int


def appended(records: list[int], record: int) -> list[int]:
    records.append(record)
    return records


def joined(one: list[int], other: list[int]) -> list[int]:
    return [*one, *other]


def both(window: Windowed[Any, list[int]]) -> list[Any]:
    return [len(window.value), sorted(window.value)]


def of_list(records: list[int]) -> tuple[int, ...]:
    return tuple(sorted(records))


FOLDS: list[tuple[Fold, Callable[[list[int]], list[Any]]]] = [
    (CountFold(), lambda records: [len(records)]),
    (SumFold(abs), lambda records: [sum(map(abs, records))]),
    (ReduceFold(max), lambda records: [max(records)]),
    (AggregateFold(list, appended, of_list, joined), lambda records: [of_list(records)]),
    (ProcessFold(both), lambda records: both(Windowed("", 0, 0, records))),
]
EXPECTED = {type(fold): expected for fold, expected in FOLDS}
TRIGGERS = st.one_of(st.none(), st.builds(OnCount, st.integers(1, 4)), st.builds(Early, st.integers(1, 6)))
CASES = st.builds(
    Case, WINDOWS, st.sampled_from([fold for fold, _ in FOLDS]), TRIGGERS, st.sampled_from([0, 0, 1, 5, 20])
)
RECORDS = drawn_records(8)
STEPS = drawn_steps(RECORDS)


class Run:
    """An operator over its state, which may be stored and restored."""

    def __init__(self, case: Case, rows_max: int = 3) -> None:
        self.case = case
        self.rows_max = rows_max
        self.watermark = NO_TIME
        self.left: list[list[Any]] = []
        self.state = window_state(case.window)
        self.operator = self.made()
        self.checkpoint = 0
        self.checkpoint_id = CheckpointId(0)

    def made(self) -> WindowOperator:
        case = self.case
        operator = window_operator(
            "w", self.state, folding(case.fold), case.window, case.trigger, case.lateness_ms
        )
        operator.time_budget = TimeBudget()
        operator.time_budget.begin(self.rows_max)
        if self.watermark != NO_TIME:
            # As a restored chain does, before anything else.
            self.left = [pairs(batch) for batch in advanced(operator, self.watermark)]
        return operator

    def step(self, step: Any) -> list[list[Any]]:
        """Return the batches of results that a step gives."""
        left, self.left = self.left, []
        if isinstance(step, int):
            self.watermark = step
            return left + [pairs(batch) for batch in advanced(self.operator, step)]
        batch = Batch([r for _, _, r in step], [k for k, _, _ in step], [t for _, t, _ in step])
        return [*left, pairs(self.operator.process(batch))]

    def stored(self) -> bytes:
        self.checkpoint_id = CheckpointId(self.checkpoint_id + 1)
        return part_of(self.state, self.checkpoint_id)

    def crash_and_restore(self) -> None:
        """Go on from a part, in another process as it were."""
        part = self.stored()
        self.state = restored(window_state(self.case.window), self.checkpoint_id, part)
        self.operator = self.made()


def advanced(operator: WindowOperator, watermark: int) -> Iterator[Batch]:
    """Tell of a watermark as a chain does: until nothing is due."""
    while (said := operator.advance(watermark)) is not None:
        yield said


def pairs(batch: Batch) -> list[Any]:
    assert batch.timestamps is not None or not batch.records
    return list(zip(batch.records, batch.timestamps or [], strict=True))


def flat(batches: list[list[Any]]) -> list[Any]:
    return [pair for batch in batches for pair in batch]


def as_bag(results: list[Any]) -> list[str]:
    return sorted(map(repr, results))


class Naive:
    """What windows say: all records are kept, and every result is made from them anew."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.watermark = NO_TIME
        self.late = 0
        # [key, start, end, records, whether it has been said, records at the last early result]
        self.open: list[list[Any]] = []

    def step(self, step: Any) -> list[Any]:
        if not isinstance(step, int):
            return [one for record in step for one in self.record(*record)]
        before, self.watermark = self.watermark, step
        said = []
        for one in sorted(self.open, key=lambda one: one[2]):
            if one[2] <= step and not one[4]:
                one[4] = True
                said += self.said(one)
        self.open = [one for one in self.open if one[2] + self.case.lateness_ms > step]
        trigger = self.case.trigger
        if isinstance(trigger, Early) and before != NO_TIME:
            is_time = any(before < at <= step for at in range(0, min(step, 1_000) + 1, trigger.every_ms))
            for one in self.open if is_time else ():
                if len(one[3]) > one[5] and not one[4]:
                    said += self.said(one)
        return said

    def said(self, one: list[Any]) -> list[Any]:
        key, start, end, records, _, _ = one
        one[5] = len(records)
        results = EXPECTED[type(self.case.fold)](records)
        return [(Windowed(key, start, end, result), end - 1) for result in results]

    def record(self, key: Any, time: int, record: int) -> list[Any]:
        said = []
        found = self.session(key, time) if isinstance(self.case.window, Session) else self.aligned(key, time)
        for one in found:
            one[3].append(record)
            trigger = self.case.trigger
            one[4] = one[2] <= self.watermark
            if one[4] or (isinstance(trigger, OnCount) and len(one[3]) - one[5] >= trigger.rows):
                said += self.said(one)
        self.late += not found
        return said

    def aligned(self, key: Any, time: int) -> list[list[Any]]:
        window = self.case.window
        assert isinstance(window, Tumbling | Sliding)
        every = window.every_ms if isinstance(window, Sliding) else window.size_ms
        starts = [
            start
            for start in range(window.offset_ms - 20 * every, time + 1, every)
            if start <= time < start + window.size_ms
            and start + window.size_ms + self.case.lateness_ms > self.watermark
        ]
        found = []
        for start in starts:
            known = [one for one in self.open if one[:2] == [key, start]]
            if not known:
                self.open.append([key, start, start + window.size_ms, [], False, 0])
            found.append(known[0] if known else self.open[-1])
        return found

    def session(self, key: Any, time: int) -> list[list[Any]]:
        window = self.case.window
        assert isinstance(window, Session)
        end = time + window.gap_ms
        met = [one for one in self.open if one[0] == key and one[1] < end and time < one[2]]
        if not met and end + self.case.lateness_ms <= self.watermark:
            return []
        news = sum(len(one[3]) - one[5] for one in met)
        records = [record for one in met for record in one[3]]
        self.open = [one for one in self.open if one not in met]
        start, end = min([time, *(o[1] for o in met)]), max([end, *(o[2] for o in met)])
        self.open.append([key, start, end, records, False, len(records) - news])
        return [self.open[-1]]


@given(CASES, STEPS)
@settings(max_examples=examples(150, few=50))
def test_windows_say_what_plain_loops_over_all_records_say(case: Case, steps: list[Any]) -> None:
    run, naive = Run(case), Naive(case)
    for step in steps:
        said = run.step(step)
        assert as_bag(flat(said)) == as_bag(naive.step(step))
        assert run.operator.late_count == naive.late
    assert len(run.state) == 0


@given(CASES, STEPS, st.data())
@settings(max_examples=examples(150, few=50))
def test_a_restored_operator_goes_on_as_if_nothing_had_happened(
    case: Case, steps: list[Any], data: st.DataObject
) -> None:
    run, naive = Run(case), Naive(case)
    for step in steps:
        if data.draw(st.booleans()):
            run.crash_and_restore()
        assert as_bag(flat(run.step(step))) == as_bag(naive.step(step))
    assert len(run.state) == 0


@given(CASES, STEPS, st.integers(0, 14))
@settings(max_examples=examples(100, few=40))
def test_two_tasks_that_take_over_from_one_say_together_what_that_would_have_said(
    case: Case, steps: list[Any], position: int
) -> None:
    run, naive = Run(case), Naive(case)
    for step in steps[:position]:
        assert as_bag(flat(run.step(step))) == as_bag(naive.step(step))
    part = run.stored()
    halves = [Run(case), Run(case)]
    for number, half in enumerate(halves):
        loading = half.state.loading_rows(
            PartReader().blocks(part),
            run.checkpoint_id,
            lambda key: is_of(number, key),  # noqa: B023 - at once
        )
        for _ in loading:
            pass
        half.watermark = run.watermark
        half.operator = half.made()
    for step in steps[position:]:
        said = []
        for number, half in enumerate(halves):
            is_news = isinstance(step, int)
            said += flat(half.step(step if is_news else [one for one in step if is_of(number, one[0])]))
        assert as_bag(said) == as_bag(naive.step(step))
    assert [len(half.state) for half in halves] == [0, 0]


def is_of(number: int, key: Any) -> bool:
    """Whether a key belongs to the task of this number, of two."""
    return (key == "a") == (number == 0)


@given(CASES, STEPS, st.data())
@settings(max_examples=examples(100, few=40))
def test_what_has_been_said_before_a_snapshot_is_not_said_again(
    case: Case, steps: list[Any], data: st.DataObject
) -> None:
    """The snapshot is taken between two batches of what a watermark makes the windows say."""
    run, naive = Run(case._replace(trigger=None), rows_max=1), Naive(case._replace(trigger=None))
    for step in steps:
        said: list[Any] = []
        if isinstance(step, int):
            run.watermark = step
            for batch in advanced(run.operator, step):
                said += pairs(batch)
                if data.draw(st.booleans()):
                    run.crash_and_restore()
                    said += flat(run.step(step))
                    break
        else:
            said = flat(run.step(step))
        assert as_bag(said) == as_bag(naive.step(step))
    assert len(run.state) == 0


@given(CASES, STEPS, STEPS)
def test_state_that_is_rolled_back_gives_what_it_gave_before(
    case: Case, steps: list[Any], undone: list[Any]
) -> None:
    run, naive = Run(case), Naive(case)
    for step in steps[:-1]:
        run.step(step)
        naive.step(step)
    run.stored()
    for _ in run.state.complete(run.checkpoint_id):
        pass
    watermark = run.watermark
    for step in undone:
        run.step(step if isinstance(step, list) else max(step, watermark))
    run.state.roll_back(run.checkpoint_id)
    run.watermark = watermark
    run.operator = run.made()
    assert as_bag(flat(run.step(END_OF_TIME))) == as_bag(naive.step(END_OF_TIME))


@given(CASES, RECORDS)
def test_results_come_in_the_order_of_the_windows_ends(case: Case, records: list[Any]) -> None:
    run = Run(case._replace(trigger=None))
    run.step(records)
    ends = [window.end for window, _ in flat(run.step(END_OF_TIME))]
    assert ends == sorted(ends)


@given(
    st.integers(1, 5), st.sampled_from([fold for fold, _ in FOLDS]), st.lists(RECORDS, max_size=6), st.data()
)
def test_a_count_window_has_n_records_and_the_rest_comes_at_the_end(
    n: int, fold: Fold, batches: list[Any], data: st.DataObject
) -> None:
    run = Run(Case(count_window(n), fold, None, 0))
    said: list[Any] = []
    for batch in batches:
        if data.draw(st.booleans()):
            run.crash_and_restore()
        said += flat(run.step(batch))
    said += [(one, END_OF_TIME) for batch, _ in run.operator.end("") for one in batch.records]
    assert as_bag([one for one, _ in said]) == as_bag(list(cut_in_spans(batches, n, fold)))
    assert len(run.state) == 0


def cut_in_spans(batches: list[Any], n: int, fold: Fold) -> Iterator[Any]:
    records = [one for batch in batches for one in batch]
    for key in {key for key, _, _ in records}:
        own = [(time, record) for k, time, record in records if k == key]
        for first in range(0, len(own), n):
            times = [time for time, _ in own[first : first + n]]
            for result in EXPECTED[type(fold)]([record for _, record in own[first : first + n]]):
                yield Windowed(key, min(times), max(times) + 1, result)


@given(st.lists(RECORDS, max_size=6), st.integers(1, 4), st.data())
def test_the_global_window_says_every_nth_value_and_the_last_one(
    batches: list[Any], n: int, data: st.DataObject
) -> None:
    run = Run(Case(GlobalWindow(), SumFold(abs), OnCount(n), 0))
    said: list[Any] = []
    for batch in batches:
        if data.draw(st.booleans()):
            run.crash_and_restore()
        said += [one for one, _ in flat(run.step(batch))]
    last = [one for batch, _ in run.operator.end("") for one in batch.records]
    records = [one for batch in batches for one in batch]
    for key in {key for key, _, _ in records}:
        own = [abs(record) for k, _, record in records if k == key]
        assert [one.value for one in said if one.key == key] == [
            sum(own[:m]) for m in range(n, len(own) + 1, n)
        ]
        assert [one.value for one in last if one.key == key] == [sum(own)]
    assert len(run.state) == 0


def test_all_paths_of_tumbling_windows_are_taken() -> None:
    """Guards the tests above: a batch of one window, of several, and one with late records."""
    state = window_state(Tumbling(10))
    operator = AlignedWindows("w", state, folding(CountFold()), Tumbling(10))
    operator.process(Batch([1, 2], ["a", "a"], [3, 4]))
    operator.process(Batch([1, 2], ["a", "a"], [13, 4]))
    assert state.named["windows"].get(("a", 0)) == 3
    (said,) = advanced(operator, 10)
    assert said.records == [Windowed("a", 0, 10, 3)]
    assert operator.process(Batch([1, 2], ["a", "a"], [3, 14])).records == []
    assert operator.late_count == 1
    assert state.named["windows"].get(("a", 10)) == 2


def test_state_is_gone_with_its_window() -> None:
    state: KeyedState = window_state(Tumbling(10))
    operator = AlignedWindows("w", state, folding(CountFold()), Tumbling(10), lateness_ms=5)
    operator.process(Batch([1] * 3, ["a", "b", "a"], [3, 4, 15]))
    assert len(state) == 3
    list(advanced(operator, 14))
    assert len(state) == 3
    list(advanced(operator, 15))
    assert len(state) == 1
    list(advanced(operator, 25))
    assert len(state) == 0


@pytest.mark.parametrize("window", [Tumbling(1_000), Session(1_000), GlobalWindow()], ids=str)
@pytest.mark.parametrize("slices", range(5))
def test_an_early_result_that_was_due_at_a_snapshot_is_said_after_a_restore(
    window: Window, slices: int
) -> None:
    """B16: a period later it would be another result, or one that is too late for whoever waits for it."""
    case = Case(window, CountFold(), Early(10), 0)
    records = [[(key, time, 1)] for time in (1, 4) for key in "abcd"]

    found: list[Any] = []

    def made(run: Run) -> Chain:
        def nobody(batch: Batch, side: SideOutput) -> None:
            raise AssertionError(side)

        return Chain([run.operator], lambda one: found.extend(pairs(one)), nobody, has_event_time=True)

    def said(*, is_restored: bool) -> list[str]:
        found.clear()
        run = Run(case, rows_max=2)
        chain = made(run)
        chain.begin(2)
        for step in [*records, 5]:
            if isinstance(step, int):
                chain.forward_news(Batch([], watermark=step))
            else:
                run.operator.process(
                    Batch([r for _, _, r in step], [k for k, _, _ in step], [t for _, t, _ in step])
                )
        # Half of what the watermark makes due may be said; or none, as it waits for its turn.
        chain.begin(1)
        chain.forward_news(Batch([], watermark=25))
        for _ in range(slices):
            if chain.is_midway and not chain.is_halfway:
                chain.begin(1)
                chain.go_on()
        if is_restored:
            assigned = chain.assigned
            run.checkpoint_id = CheckpointId(1)
            run.state = restored(window_state(window), CheckpointId(1), part_of(run.state, CheckpointId(1)))
            run.operator = run.made()
            chain = made(run)
            chain.restore(25, assigned, [], is_new=False)
        while chain.is_midway:
            chain.begin(1)
            chain.go_on()
        return as_bag(found)

    assert said(is_restored=True) == said(is_restored=False)
    assert len(said(is_restored=False)) == 4
