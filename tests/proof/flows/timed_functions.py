"""The functions of drawn flows that have to do with time: of timestamps, windows and joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, assert_never

from tests.proof.flows.accumulators import new_numbers, noted, numbers_of
from tests.proof.flows.functions import (
    energy_of,
    mixed,
    most,
    number_of,
    of_key,
    rank_of,
    record,
)
from tests.proof.flows.steps import Counted, FoldName, JoinName, Times, Window, WithinName

import crosscut as cc

IDLE_AFTER = "5ms"


def within(name: WithinName) -> str | None:
    """Return for how long a `deduplicate` lets no other record of a key pass.

    That is longer than any world lives, or a millisecond: then only records of the same time are alike, so it
    does not depend on their order which of them pass.
    """
    match name:
        case "ever":
            return None
        case "for long":
            return "36500d"
        case "a moment":
            return "1ms"
        case _:
            assert_never(name)


def time_function(step: Times) -> Callable[[Any], int]:
    """Return the function of an `assign_timestamps`."""
    match step.function:
        case "in order" | "idle soon":
            return number_of
        case "scattered":
            return mixed
        case _:
            assert_never(step.function)


DISORDER_MS = 100
"""How much older than the newest record of its split another may be."""

_RECORDS_MAX = 100
_APART_MS = 40
SPREAD_MS = _APART_MS * _RECORDS_MAX + DISORDER_MS
"""How much older than the newest record of any split one of another may be: all begin at the same time."""


def time_of(one: Any) -> int:
    """Return when a record of a source happened: not in order, and not too far from it."""
    number = number_of(one)
    return _APART_MS * (number % _RECORDS_MAX) + mixed(number) % DISORDER_MS


def window_of(step: Window) -> Any:
    """Return the window of a `window`."""
    match step.window:
        case "tumbling":
            return cc.tumbling(f"{step.size}ms")
        case "sliding":
            return cc.sliding(f"{2 * step.size}ms", every=f"{step.size}ms")
        case "session":
            return cc.session(f"{step.size}ms")
        case _:
            assert_never(step.window)


def folded(windows: Any, name: FoldName) -> Any:
    """Return the stream of what windows come to."""
    match name:
        case "count":
            return windows.count()
        case "sum":
            return windows.sum(number_of)
        case "reduce":
            return windows.reduce(most)
        case "aggregate":
            return windows.aggregate(new_numbers, noted, numbers_of, _noted_together)
        case "process":
            return windows.process(_both_of)
        case _:
            assert_never(name)


def folds_to(name: FoldName, records: list[Any]) -> list[Any]:
    """Return the values that a window of these records says."""
    match name:
        case "count":
            return [len(records)]
        case "sum":
            return [sum(map(number_of, records))]
        case "reduce":
            return [max(records, key=rank_of)]
        case "aggregate":
            energy = max(map(energy_of, records))
            return [record(mixed(sorted(map(number_of, records))), energy)]
        case "process":
            return [len(records), mixed(sorted(map(number_of, records)))]
        case _:
            assert_never(name)


def _noted_together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        "numbers": one["numbers"] + other["numbers"],
        "energy": max(one["energy"], other["energy"]),
    }


def _both_of(window: Any) -> Iterator[Any]:
    yield len(window.value)
    yield mixed(sorted(map(number_of, window.value)))


def of_window(result: Any) -> Any:
    """Return a record for what a window says."""
    pair = (result.key, result.value)
    return record(mixed(result.key, result.start, result.end, number_of(pair)), energy_of(pair))


def counted_window(step: Counted) -> tuple[Any, Any]:
    """Return the window of a `counted`, and its trigger."""
    match step.window:
        case "count":
            return cc.count_window(step.rows), None
        case "global":
            return cc.global_window(), None
        case "global on count":
            return cc.global_window(), cc.on_count(step.rows)
        case _:
            assert_never(step.window)


def of_counted(result: Any) -> Any:
    """Return a record for what a `counted` says: how many they are, and not when they happened."""
    return of_key(result.key, result.value)


def listed(window: Any) -> list[Any]:
    """Return the records of a window, to be said each by itself."""
    return list(window.value)


def value_of(result: Any) -> Any:
    """Return the value of a window's result."""
    return result.value


def of_join(name: JoinName, result: Any) -> Any:
    """Return a record for what a join says."""
    if name == "window":
        key, (left, right) = (result.key, result.start, result.end), result.value
    else:
        key, (left, right) = result
    numbers = [None if one is None else number_of(one) for one in (left, right)]
    if name == "latest":
        numbers[1] = None if right is None else 1
    return record(mixed(key, *numbers), 0 if left is None else energy_of(left))
