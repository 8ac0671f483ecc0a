"""How many records a slice takes, against costs that are out to deceive: fixed, jumping, all in one call."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.examples import examples

from crosscut.worker.batch_sizer import HOLD_NS_MAX, ROWS_PER_FIXED, SLICE_NS, AdaptiveBatchSizer, hold_ns_max

MS = 1_000_000
ROWS_MAX = 1_000

fixed_costs = st.one_of(st.just(0), st.integers(0, 2 * MS), st.integers(0, 20 * MS))
record_costs = st.one_of(st.integers(100, 10_000), st.integers(100, MS), st.integers(100, 20 * MS))

Cost = Callable[[int], float]
"""What a slice of so many records takes, in nanoseconds."""


def costing(fixed_ns: float, record_ns: float) -> Cost:
    return lambda rows: fixed_ns + record_ns * rows


@dataclass
class Slices:
    """Takes slices of an endless input with a batch sizer, and keeps how large and how long they were."""

    batch_sizer: AdaptiveBatchSizer = field(default_factory=lambda: AdaptiveBatchSizer(ROWS_MAX))
    taken: list[tuple[int, float]] = field(default_factory=list)

    def take(self, count: int, cost: Cost) -> Slices:
        self.taken = []
        for _ in range(count):
            rows = self.batch_sizer.rows
            assert 1 <= rows <= ROWS_MAX
            elapsed_ns = cost(rows)
            self.batch_sizer.took(rows, int(elapsed_ns))
            self.taken.append((rows, elapsed_ns))
        return self

    @property
    def records_per_ns(self) -> float:
        return sum(rows for rows, _ in self.taken) / sum(ns for _, ns in self.taken)

    @property
    def longest_ns(self) -> float:
        return max(ns for _, ns in self.taken)


def possible(fixed_ns: float, record_ns: float) -> float:
    """Return the best rate: full batches."""
    return ROWS_MAX / (fixed_ns + record_ns * ROWS_MAX)


def bearable_ns(fixed_ns: float, record_ns: float) -> float:
    """Return how long a slice may take: it is tried now and then whether twice as many records are better."""
    with_its_fixed_cost_ns = min(2 * (1 + ROWS_PER_FIXED) * fixed_ns, HOLD_NS_MAX)
    return max(3 * SLICE_NS, with_its_fixed_cost_ns, 2 * (fixed_ns + record_ns)) + record_ns


@settings(max_examples=examples(200, few=60))
@given(fixed_costs, record_costs)
def test_most_of_what_is_possible_is_reached_and_no_slice_is_longer_than_that_takes(
    fixed_ns: int, record_ns: int
) -> None:
    """K3, K4."""
    slices = Slices().take(40, costing(fixed_ns, record_ns)).take(300, costing(fixed_ns, record_ns))
    assert slices.records_per_ns >= 0.8 * possible(fixed_ns, record_ns)
    assert slices.longest_ns <= bearable_ns(fixed_ns, record_ns)


@settings(max_examples=examples(200, few=60))
@given(fixed_costs, record_costs, st.integers(0, 2**32))
def test_noise_does_not_deceive_it_for_long(fixed_ns: int, record_ns: int, seed: int) -> None:
    """Each slice takes up to 30 % more or less, and one in a hundred is held up for 50 ms by others."""
    dice = random.Random(seed)
    slices = Slices()
    lost_ns = 0.0

    def noisy(rows: int) -> float:
        nonlocal lost_ns
        hiccup_ns = 50 * MS * (dice.random() < 0.01)
        lost_ns += hiccup_ns
        return (fixed_ns + record_ns * rows) * dice.uniform(0.7, 1.3) + hiccup_ns

    slices.take(40, noisy)
    lost_ns = 0.0
    slices.take(1_000, noisy)
    rows, busy_ns = sum(rows for rows, _ in slices.taken), sum(ns for _, ns in slices.taken)
    assert rows / (busy_ns - lost_ns) >= 0.65 * possible(fixed_ns, record_ns)


@settings(max_examples=examples(100, few=40))
@given(st.integers(MS // 2, 20 * MS), st.integers(100, 2_000), st.floats(0, 0.5), st.integers(0, 2**32))
def test_a_machine_with_too_much_to_do_is_not_taken_for_a_dear_record(
    fixed_ns: int, record_ns: int, share: float, seed: int
) -> None:
    """K4: up to half of all slices wait for other processes, 4 ms in the mean."""
    dice = random.Random(seed)

    def loaded(rows: int) -> float:
        waits_ns = dice.expovariate(1 / (4 * MS)) if dice.random() < share else 0.0
        return fixed_ns + record_ns * rows + waits_ns

    slices = Slices().take(200, loaded).take(2_000, loaded)
    full_ns = fixed_ns + record_ns * ROWS_MAX + share * 4 * MS
    assert slices.records_per_ns >= 0.8 * ROWS_MAX / full_ns


@settings(max_examples=examples(100, few=40))
@given(st.integers(10 * MS, 500 * MS), st.integers(100, 10_000), st.floats(0.5, 1.5), st.integers(0, 2**32))
def test_a_fixed_cost_that_varies_much_is_not_taken_for_that_of_the_records(
    fixed_ns: int, record_ns: int, spread: float, seed: int
) -> None:
    """A busy disk, a service far away: slices stayed at two records, 20 a second."""
    dice = random.Random(seed)
    drawn: list[float] = []

    def varying(rows: int) -> float:
        drawn.append(fixed_ns * dice.lognormvariate(0, spread))
        return drawn[-1] + record_ns * rows

    slices = Slices().take(2_000, varying)
    assert slices.records_per_ns >= 0.1 * possible(fmean(drawn), record_ns)


@settings(max_examples=examples(50, few=15))
@given(st.integers(MS // 20, MS), st.integers(10 * MS, 50 * MS), st.floats(0.01, 0.1), st.integers(0, 2**32))
def test_records_of_which_some_take_long_do_not_make_slices_long(
    short_ns: int, long_ns: int, share: float, seed: int
) -> None:
    """K3: nothing of it is a fixed cost, however much slices differ."""
    dice = random.Random(seed)
    pace = AdaptiveBatchSizer(ROWS_MAX)
    slices_ns = []
    for _ in range(3_000):
        rows, elapsed_ns = 0, 0
        while rows < pace.rows and elapsed_ns < pace.patience_ns:
            elapsed_ns += long_ns if dice.random() < share else short_ns
            rows += 1
        pace.took(rows, elapsed_ns)
        slices_ns.append(elapsed_ns)
    # The slice in which a barrier comes at a moment that nobody chooses.
    assert sum(one * one for one in slices_ns) / sum(slices_ns) <= 1.5 * HOLD_NS_MAX


@settings(max_examples=examples(200, few=60))
@given(fixed_costs, record_costs, fixed_costs, record_costs, st.integers(1, 100))
def test_a_jump_of_the_costs_is_followed_within_few_slices(
    fixed_ns: int, record_ns: int, later_fixed_ns: int, later_record_ns: int, calm: int
) -> None:
    slices = Slices().take(calm, costing(fixed_ns, record_ns))
    slices.take(100, costing(later_fixed_ns, later_record_ns))
    bearable = bearable_ns(later_fixed_ns, later_record_ns)
    assert sum(ns > 2 * bearable for _, ns in slices.taken) <= 8
    slices.take(300, costing(later_fixed_ns, later_record_ns))
    assert slices.records_per_ns >= 0.8 * possible(later_fixed_ns, later_record_ns)
    assert slices.longest_ns <= bearable


@settings(max_examples=examples(100, few=40))
@given(st.integers(0, 60_000 * MS), st.integers(100, 1_000))
def test_what_the_first_call_costs_is_forgotten(first_ns: int, record_ns: int) -> None:
    """A connection that is made, a module that is imported."""
    slices = Slices().take(1, costing(first_ns, record_ns)).take(12, costing(0, record_ns))
    assert slices.batch_sizer.rows == ROWS_MAX


def test_a_function_that_becomes_slow_is_given_one_record_at_a_time_from_the_next_slice_on() -> None:
    """K3: 15 ms a record after 20,000 fast ones, like a service in trouble; then it is well again."""
    slices = Slices().take(30, costing(0, 1_000))
    assert slices.batch_sizer.rows == ROWS_MAX
    slices.take(1, costing(0, 15 * MS))
    assert slices.batch_sizer.rows == 1
    slices.take(100, costing(0, 15 * MS))
    assert max(rows for rows, _ in slices.taken) <= 2
    slices.take(12, costing(0, 1_000))
    assert slices.batch_sizer.rows == ROWS_MAX


def test_a_fixed_cost_that_becomes_one_of_the_records_is_noticed_though_no_slice_takes_longer() -> None:
    slices = Slices().take(100, costing(20 * MS, 0))
    assert slices.batch_sizer.rows == ROWS_MAX
    slices.take(100, costing(0, 20 * MS / ROWS_MAX))
    assert slices.longest_ns < 21 * MS
    assert slices.batch_sizer.rows <= 2 * SLICE_NS / (20 * MS / ROWS_MAX)


def test_few_records_that_are_waited_for_do_not_make_later_slices_small() -> None:
    """A source that gives few at a time is not made to give fewer, however long a read takes."""
    pace = AdaptiveBatchSizer(ROWS_MAX)
    for _ in range(1_000):
        pace.took(min(10, pace.rows), 5 * MS)
    assert pace.rows >= 20
    for _ in range(20):
        pace.took(pace.rows, 5 * MS)
    assert pace.rows == ROWS_MAX


def test_after_a_slice_that_failed_one_record_is_taken() -> None:
    """It may have failed because it had a thousand: the next epoch must not begin with a thousand again."""
    slices = Slices().take(30, costing(0, 1_000))
    slices.batch_sizer.start_over()
    assert slices.batch_sizer.rows == 1


def test_where_heartbeats_are_frequent_no_slice_is_long() -> None:
    assert hold_ns_max(10_000) == HOLD_NS_MAX
    pace = AdaptiveBatchSizer(ROWS_MAX, hold_ns_max(200))
    slices = Slices(pace).take(100, costing(3 * MS, MS)).take(100, costing(3 * MS, MS))
    assert slices.longest_ns <= 2 * 10 * MS
