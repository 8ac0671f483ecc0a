"""Which rows a database takes: found out while their checkpoint can still fail. Without I/O of its own.

Once a checkpoint is complete its rows have to be committed. A row that the database refuses then would stop
the job for good, even after the flow is corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.tables.rows import Table

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that the database would refuse.

    Attributes:
        index: Among the rows that were tried, from 0.
        reason: In the database's words, with the column where it says which.
    """

    index: int
    reason: str


class RowsRefused(Exception):
    """The database takes at least one of some rows never, and has kept none of them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of rows that were tried.

    Attributes:
        refused: In order.
        data: All other rows, to be held in a snapshot; they have been taken together.
    """

    refused: tuple[Refused, ...]
    data: bytes


def tried(
    rows: Sequence[Row],
    encode: Callable[[Sequence[Row]], bytes],
    attempt: Callable[[bytes], object],
    *,
    only_first: bool,
) -> Tried:
    """Find out which rows are refused.

    All rows cost one attempt if all are taken; each refused one adds about two for each halving.

    Args:
        encode: Returns rows, at least one, as data, or raises RowsRefused.
        attempt: Adds such rows to those that it has taken before, or raises RowsRefused and takes none of
        them.
        only_first: The first that is refused is enough.
    """
    refused: list[Refused] = []
    data = b""
    # What is left to try, the first rows on top: a row may collide with one before it.
    left = [(0, len(rows))] if rows else []
    while left and not (refused and only_first):
        start, end = left.pop()
        try:
            data = encode(rows[start:end])
            attempt(data)
        except RowsRefused as error:
            if end - start == 1:
                refused.append(Refused(start, error.reason))
            else:
                middle = (start + end) // 2
                left += [(middle, end), (start, middle)]
    if refused and only_first:
        # The rows that are left have not been tried: others of them may be refused, too.
        return Tried(tuple(refused), b"")
    if refused:
        accepted = without(rows, refused)
        data = encode(accepted) if accepted else b""
    return Tried(tuple(refused), data)


def check_key(table: Table, rows: Sequence[Row]) -> None:
    """Refuse rows with None in a column of the key: they would be added, and never replaced.

    Raises:
        RowsRefused: There are such rows.
    """
    for name in table.key:
        index = table.columns.index(name)
        if any(row[index] is None for row in rows):
            raise RowsRefused(f"column {name} is of the key and has no value: NULL equals no other NULL")


def without(rows: Sequence[Row], refused: Sequence[Refused]) -> list[Row]:
    """Return the rows that are not refused."""
    indexes = {one.index for one in refused}
    return [row for index, row in enumerate(rows) if index not in indexes]
