"""What becomes of the records of a window: an accumulator, and in the end some results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from crosscut.contracts.windows import Windowed
from crosscut.foundation.callables import several
from crosscut.graph.windows import AggregateFold, CountFold, Fold, ProcessFold, ReduceFold, SumFold
from crosscut.operators.keyed import nothing_yet, reducing, summing


@dataclass(frozen=True, slots=True)
class Folding:
    """What an operator does with the records of a window.

    Attributes:
        initial: Makes the accumulator of a new window.
        add: `add(accumulator, record)` returns the next one, which may be the same object.
        merge: `merge(accumulator, accumulator)` returns that of the records of both; the first is that of
            the window that begins earlier.
        results: `results(key, start, end, accumulator)` returns what the window says.
        counts: It only counts: no function of the user is called before the results.
        note_input: Told before each batch which input it comes from, for joins.
    """

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None
    results: Callable[[Any, int, int, Any], Iterable[Any]]
    counts: bool = False
    note_input: Callable[[int], None] | None = None


def folding(fold: Fold) -> Folding:
    """Return what `fold` stands for."""
    match fold:
        case CountFold():
            return Folding(int, _counted, _added, _one_result(None), counts=True)
        case SumFold(function):
            return Folding(int, summing(function), _added, _one_result(None))
        case ReduceFold(function):
            return Folding(nothing_yet, reducing(function), function, _one_result(None))
        case AggregateFold(initial, add, result, merge):
            return Folding(initial, add, merge, _one_result(result))
        case ProcessFold(function):
            return Folding(list, _appended, _joined, _several_results(function))
        case _:
            assert_never(fold)


def _one_result(result: Callable[[Any], Any] | None) -> Callable[[Any, int, int, Any], Iterable[Any]]:
    def results(key: Any, start: int, end: int, value: Any) -> Iterable[Any]:
        return (Windowed(key, start, end, value if result is None else result(value)),)

    return results


def _several_results(
    function: Callable[[Windowed[Any, Any]], Iterable[Any] | None],
) -> Callable[[Any, int, int, Any], Iterable[Any]]:
    def results(key: Any, start: int, end: int, value: Any) -> Iterable[Any]:
        found = function(Windowed(key, start, end, value))
        if found is None:
            return ()
        return [Windowed(key, start, end, one) for one in several(found, function)]

    return results


def _counted(count: int, record: Any) -> int:
    return count + 1


def _added(one: Any, other: Any) -> Any:
    return one + other


def _appended(records: list[Any], record: Any) -> list[Any]:
    records.append(record)
    return records


def _joined(one: list[Any], other: list[Any]) -> list[Any]:
    return one + other
