"""Aggregates that have a method of their own, as accumulators: what `aggregate` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from crosscut.graph.distinct import AddDistinct, distinct_count, merge_distinct


class ReadyFold(NamedTuple):
    """The four functions of an aggregate, see `KeyedStream.aggregate`, and the name of its method."""

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any]
    kind: str


def extreme_of(choose: Callable[..., Any], function: Callable[[Any], Any]) -> ReadyFold:
    """Return the fold of the `function(record)` that `choose`, which is `min` or `max`, prefers.

    Its accumulator is an empty tuple before the first record, then a tuple of one value.
    """
    return ReadyFold(tuple, AddToExtreme(choose, function), extreme, MergeExtremes(choose), choose.__name__)


def mean_of(function: Callable[[Any], Any]) -> ReadyFold:
    """Return the fold of the mean of `function(record)`. Its accumulator is the count and the sum."""
    return ReadyFold(partial(tuple, (0, 0)), AddToMean(function), mean, merge_means, "mean")


def list_of(function: Callable[[Any], Any]) -> ReadyFold:
    """Return the fold of the list of all `function(record)`. It emits a copy: the list goes on growing."""
    return ReadyFold(list, AddToList(function), list, merge_lists, "collect_list")


def distinct_of(function: Callable[[Any], Any]) -> ReadyFold:
    """Return the fold of how many distinct `function(record)` there are, about."""
    return ReadyFold(set, AddDistinct(function), distinct_count, merge_distinct, "approx_distinct")


@dataclass(frozen=True, slots=True)
class AddToList:
    """Appends `function(record)`."""

    function: Callable[[Any], Any]

    def __call__(self, accumulator: list[Any], record: Any) -> list[Any]:
        accumulator.append(self.function(record))
        return accumulator


def merge_lists(one: list[Any], other: list[Any]) -> list[Any]:
    """Return the list of the records of both."""
    return one + other


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
