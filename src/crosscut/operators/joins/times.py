"""Rows `(key, time)` of a table, found by key in the order of their times, and by the time alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heappop, heappush
from typing import Any

from crosscut.errors import InternalError
from crosscut.state.named import NamedTable


class TimedRows:
    """A table whose rows are called `(key, time)`, and the index of them that is kept in memory.

    Args:
        table: Holds the rows; it may have some already.
    """

    def __init__(self, table: NamedTable) -> None:
        self._table = table
        self._times: dict[Any, list[int]] = {}
        self._keys: dict[int, dict[Any, None]] = {}
        self._earliest: list[int] = []
        for (key, time), _ in table.items():
            self._note(key, time)

    def get(self, key: Any, time: int, default: Any = None) -> Any:
        """Return the value of a row, which may be changed in place and put back, or `default`."""
        return self._table.get((key, time), default)

    def has(self, key: Any, time: int) -> bool:
        """Tell whether there is such a row."""
        return self._table.has((key, time))

    def put(self, key: Any, time: int, value: Any) -> None:
        """Set the value of a row."""
        row = (key, time)
        if not self._table.has(row):
            self._note(key, time)
        self._table.put(row, value)

    def delete(self, key: Any, time: int) -> None:
        """Take a row away, which must be there."""
        self._table.delete((key, time))
        times = self._times[key]
        # Mostly the first one: then it is found at once.
        del times[bisect_left(times, time)]
        if not times:
            del self._times[key]
        keys = self._keys[time]
        del keys[key]
        if not keys:
            del self._keys[time]

    def between(self, key: Any, first: int, last: int) -> list[int]:
        """Return the times of the key's rows from `first` to `last`, both included, in order."""
        times = self._times.get(key)
        if times is None:
            return []
        return times[bisect_left(times, first) : bisect_right(times, last)]

    def latest(self, key: Any, time: int) -> int | None:
        """Return the time of the key's latest row that is not after `time`."""
        times = self._times.get(key)
        position = bisect_right(times, time) if times is not None else 0
        return times[position - 1] if times is not None and position else None

    @property
    def earliest(self) -> int | None:
        """The time of the earliest row of all."""
        while self._earliest and self._earliest[0] not in self._keys:
            heappop(self._earliest)
        return self._earliest[0] if self._earliest else None

    def first(self) -> tuple[int, Any]:
        """Return time and key of a row that is the earliest; there must be one."""
        earliest = self.earliest
        if earliest is None:
            raise InternalError("the earliest row of none was asked for")
        return earliest, next(iter(self._keys[earliest]))

    def _note(self, key: Any, time: int) -> None:
        insort(self._times.setdefault(key, []), time)
        keys = self._keys.get(time)
        if keys is None:
            keys = self._keys[time] = {}
            heappush(self._earliest, time)
        keys[key] = None
