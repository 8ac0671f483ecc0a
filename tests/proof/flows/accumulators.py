"""The values in which the aggregates of drawn flows gather records: some are changed, some replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, assert_never

from tests.proof.flows.functions import energy_of, mixed, number_of, record, weight
from tests.proof.flows.steps import Aggregate, AggregateName, KeyBy, KeyName, Step


class Folding(NamedTuple):
    """The arguments of an `aggregate`."""

    initial: Any
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None
    merge: Callable[[Any, Any], Any] | None = None


def folding(name: AggregateName, key_by: KeyBy) -> Folding:
    """Return the arguments of an `aggregate`."""
    match name:
        case "length":
            return Folding(list, _appended, len, _extended)
        case "last":
            return Folding(list, _appended, _last)
        case "both":
            return Folding(list, _appended, _length_and_last)
        case "cell":
            return Folding(_new_cell, _incremented, None, _cells_added)
        case "pair":
            return Folding((0, 0), partial(_counted, key_by.key, key_by.modulus), None, _pairs_added)
        case "numbers":
            return Folding(new_numbers, noted, numbers_of)
        case _:
            assert_never(name)


def _appended(values: list[Any], one: Any) -> list[Any]:
    values.append(one)
    return values


def _last(values: list[Any]) -> Any:
    return values[-1]


def _length_and_last(values: list[Any]) -> Any:
    return [len(values), values[-1]]


def separated(pair: Any) -> list[Any]:
    """Return apart what an aggregate "both" says: which record came as which is not determined."""
    key, (length, last) = pair
    return [(key, length), (key, last)]


def is_followed_by_separation(step: Step) -> bool:
    """Whether `step` says two things whose connection is not determined."""
    return isinstance(step, Aggregate) and step.function == "both"


def _new_cell() -> list[int]:
    return [0]


def _incremented(cell: list[int], one: Any) -> list[int]:
    cell[0] += 1
    return cell


def _extended(records: list[Any], more: list[Any]) -> list[Any]:
    records += more
    return records


def _cells_added(cell: list[int], other: list[int]) -> list[int]:
    cell[0] += other[0]
    return cell


def _pairs_added(pair: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return pair[0] + other[0], pair[1] + other[1]


def _counted(key: KeyName, modulus: int, pair: tuple[int, int], one: Any) -> tuple[int, int]:
    count, total = pair
    return count + 1, total + weight(key, modulus, one)


def new_numbers() -> dict[str, Any]:
    """Return what gathers the numbers of records."""
    return {"numbers": [], "energy": 0}


def noted(value: dict[str, Any], one: Any) -> dict[str, Any]:
    """Add a record to what gathers numbers."""
    value["numbers"].append(number_of(one))
    value["energy"] = max(value["energy"], energy_of(one))
    return value


def numbers_of(value: dict[str, Any]) -> Any:
    """Return a record for the numbers that were gathered."""
    return record(mixed(sorted(value["numbers"])), value["energy"])
