"""Sketches of distinct values: exact while they are few, near enough when they are many."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from crosscut.flow.arguments import itself
from crosscut.graph import distinct
from crosscut.graph.distinct import (
    EXACT_MAX,
    STANDARD_ERROR,
    AddDistinct,
    Sketch,
    distinct_count,
    merge_distinct,
)

VALUES = some.lists(some.integers(0, 2 * EXACT_MAX) | some.text(max_size=2) | some.none(), max_size=400)


def sketch(values: Iterable[Any]) -> Sketch:
    return reduce(AddDistinct(itself), values, set())


@given(VALUES)
def test_few_values_are_counted_exactly(values: list[Any]) -> None:
    different = set(values)
    if len(different) <= EXACT_MAX:
        assert distinct_count(sketch(values)) == len(different)


@pytest.mark.parametrize("count", [EXACT_MAX + 1, 1_000, 10_000, 200_000])
def test_many_values_are_counted_within_three_standard_errors(count: int) -> None:
    found = distinct_count(sketch(f"user-{number}" for number in range(count)))
    assert found == pytest.approx(count, rel=3 * STANDARD_ERROR)


def test_an_estimate_that_is_asked_for_with_each_record_is_that_of_the_sketch() -> None:
    """How often each rank occurs is then kept from one record to the next, for those asked for last."""
    add = AddDistinct(itself)
    # More sketches than are kept, each with the same values as the one before it and some more.
    sketches: list[Sketch] = [sketch(range(300)) for _ in range(distinct._HISTOGRAMS_MAX + 20)]
    for value in range(200, 900, 7):
        for index in (0, 1, value % len(sketches)):
            sketches[index] = add(sketches[index], value)
            known = distinct_count(sketches[index])
            assert len(distinct._histograms) <= distinct._HISTOGRAMS_MAX
            kept = dict(distinct._histograms)
            distinct._histograms.clear()
            assert known == distinct_count(sketches[index])
            distinct._histograms.update(kept)


@given(VALUES, VALUES)
def test_merged_sketches_are_the_sketch_of_all_values(one: list[Any], other: list[Any]) -> None:
    merged = merge_distinct(sketch(one), sketch(other))
    assert merged == sketch([*one, *other]) == merge_distinct(sketch(other), sketch(one))


def test_merged_registers_are_those_of_all_values() -> None:
    one, other = range(3_000), range(2_000, 5_000)
    assert merge_distinct(sketch(one), sketch(other)) == sketch(range(5_000))
    assert merge_distinct(sketch(one), sketch([5])) == sketch(one)


def test_values_that_are_no_keys_are_refused() -> None:
    with pytest.raises(TypeError, match=r"0\.5"):
        sketch([0.5])
