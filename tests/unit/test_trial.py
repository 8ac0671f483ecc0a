"""Rows are tried by halves until those are known that a database refuses."""

from __future__ import annotations

import pytest

from crosscut.connectors.tables.trial import Refused, RowsRefused, Tried, tried

ROWS = [(number,) for number in range(8)]


def encoded(rows: list[tuple[int, ...]]) -> bytes:
    """Encode rows of even numbers, and refuse others, as a schema does."""
    odd = [row[0] for row in rows if row[0] % 2]
    if odd:
        raise RowsRefused(f"{odd[0]} is odd")
    return bytes(row[0] for row in rows)


@pytest.mark.parametrize("only_first", [True, False])
def test_more_than_one_row_may_be_refused(only_first: bool) -> None:
    found = tried(ROWS, encoded, lambda data: None, only_first=only_first)
    every = tuple(Refused(number, f"{number} is odd") for number in (1, 3, 5, 7))
    assert found == (Tried(every[:1], b"") if only_first else Tried(every, bytes([0, 2, 4, 6])))


def test_all_rows_are_tried_together_first() -> None:
    attempts: list[bytes] = []
    assert tried(ROWS[::2], encoded, attempts.append, only_first=True) == Tried((), bytes([0, 2, 4, 6]))
    assert attempts == [bytes([0, 2, 4, 6])]
