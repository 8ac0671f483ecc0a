"""Minimum, maximum and mean as accumulators: what `aggregate` takes as `add`, `result` and `merge`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NO_VALUE: tuple[()] = ()
"""The accumulator of an extreme before the first record; later it is a tuple of one value."""

NO_MEAN = (0, 0)
"""The accumulator of a mean before the first record: how many, and their sum."""


@dataclass(frozen=True, slots=True)
class AddToExtreme:
    """Keeps the least or the greatest `function(record)`; of equal ones the first."""

    choose: Callable[..., Any]
    function: Callable[[Any], Any]

    def __call__(self, accumulator: tuple[Any, ...], record: Any) -> tuple[Any, ...]:
        value = self.function(record)
        return (self.choose(accumulator[0], value),) if accumulator else (value,)


@dataclass(frozen=True, slots=True)
class MergeExtremes:
    """Keeps the least or the greatest of two."""

    choose: Callable[..., Any]

    def __call__(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.choose(one[0], other[0]),) if one and other else one or other


def extreme(accumulator: tuple[Any, ...]) -> Any:
    """Return the value of an accumulator that is not empty."""
    return accumulator[0]


@dataclass(frozen=True, slots=True)
class AddToMean:
    """Counts records and adds up `function(record)`."""

    function: Callable[[Any], Any]

    def __call__(self, accumulator: tuple[int, Any], record: Any) -> tuple[int, Any]:
        count, total = accumulator
        return count + 1, total + self.function(record)


def merge_means(one: tuple[int, Any], other: tuple[int, Any]) -> tuple[int, Any]:
    """Return the accumulator of the records of both."""
    return one[0] + other[0], one[1] + other[1]


def mean(accumulator: tuple[int, Any]) -> Any:
    """Return the mean of an accumulator that is not empty."""
    count, total = accumulator
    return total / count
