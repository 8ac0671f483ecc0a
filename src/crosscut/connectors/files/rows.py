"""From records to rows, for what has columns: tables, CSV, Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import itemgetter
from reprlib import repr as shortened
from typing import Any

from crosscut.errors import ConnectorError
from crosscut.foundation.callables import function_problem


def row_maker(
    columns: Sequence[str], row: Callable[[Any], Any] | None, what: str
) -> Callable[[Any], tuple[Any, ...]]:
    """Return what makes a row of a record: by `row`, then by what the result is.

    A mapping and a dataclass by the names of the columns, a tuple or list by their order, anything else
    as the only column.

    Args:
        what: What errors call the place, such as "table 'counts'".
    """
    names = tuple(columns)
    known = frozenset(names)
    pick: Callable[[Any], tuple[Any, ...]] | None = itemgetter(*names) if len(names) > 1 else None

    def refused(record: Any, reason: str) -> ConnectorError:
        return ConnectorError(
            f"record {shortened(record)} is not a row of {what} with columns {', '.join(names)}: "
            f"{reason}; set "
            f"row= to a function that returns one"
        )

    def make(record: Any) -> tuple[Any, ...]:
        found = record if row is None else row(record)
        if pick is not None:
            # What rows mostly are; looking up what a Mapping is takes longer than all the rest.
            if type(found) is tuple and len(found) == len(names):
                return found
            if type(found) is dict and found.keys() >= known:
                return pick(found)
        if isinstance(found, Mapping):
            if missing := [name for name in names if name not in found]:
                raise refused(record, f"it has no {', '.join(missing)}")
            return tuple([found[name] for name in names])
        if is_dataclass(found) and not isinstance(found, type):
            if missing := sorted(set(names) - {one.name for one in fields(found)}):
                raise refused(record, f"it has no {', '.join(missing)}")
            return tuple([getattr(found, name) for name in names])
        values = tuple(found) if isinstance(found, tuple | list) else (found,)
        if len(values) != len(names):
            raise refused(record, f"it has {len(values)} values")
        return values

    return make


def checked_columns(columns: object) -> tuple[str, ...]:
    """Return the names of columns.

    Raises:
        ConnectorError: They are none, or one comes twice.
    """
    found = tuple(columns) if isinstance(columns, Sequence | Mapping) and not isinstance(columns, str) else ()
    if not found or not all(isinstance(one, str) and one and "\0" not in one for one in found):
        raise ConnectorError(f"columns={columns!r}: expected names, such as ['word', 'count']")
    if len(set(found)) < len(found):
        raise ConnectorError(f"columns={columns!r}: a name appears twice")
    return found


def checked_row(row: object) -> None:
    """Raise ConnectorError if `row` is neither a function nor None."""
    if row is not None and not callable(row):
        raise ConnectorError(f"row={row!r}: expected a function that takes a record, or None")
    if row is not None and (problem := function_problem(row, "record")):
        raise ConnectorError(f"row: {problem}")
