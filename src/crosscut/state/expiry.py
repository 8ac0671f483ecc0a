"""Rows whose time is over: which ones to look at, without looking at all of them.

A row is remembered under the time at which it was written, coarsely: a row that is written again is
remembered again, and what is found under the older time then is not due.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Protocol

_SLOTS_PER_TTL = 4
"""An expired row is due after a quarter of its time to live more, at most."""


UNDATED = -(1 << 53)
"""Stands for "written at" where no time was known yet: the life of such a row begins with the first that is.

It is before all times, so such rows are due at once. JSON holds it as it is."""


class Expiry(Protocol):
    """What a table with a time to live remembers of its rows. Each value is a pair (written at, value).

    Attributes:
        looks_per_put: How many rows to look at for each one that is written, at least: with fewer, rows that
            are written faster than that would never all be removed.
    """

    ttl_ms: int
    looks_per_put: int

    def note(self, row: Any, written_ms: int) -> None:
        """A row was written."""

    def due(self, now_ms: int, count: int) -> list[Any]:
        """Return some rows, at most `count`, that may have expired; each is returned once for each time."""

    @property
    def next_ms(self) -> int | None:
        """From what time on `due` may return some; None: not before a row is written."""

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, without the rows themselves."""

    def reset(self) -> None:
        """The table has other rows now, or none: `note` will be called for them, or is not needed."""


class ExpiryInMemory:
    """See `Expiry`."""

    looks_per_put = 2

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self._width_ms = max(1, ttl_ms // _SLOTS_PER_TTL)
        self._slots: dict[int, set[Any]] = {}
        self._order: list[int] = []

    def note(self, row: Any, written_ms: int) -> None:
        slot = written_ms // self._width_ms
        rows = self._slots.get(slot)
        if rows is None:
            self._slots[slot] = {row}
            heappush(self._order, slot)
        else:
            rows.add(row)

    def due(self, now_ms: int, count: int) -> list[Any]:
        found: list[Any] = []
        while self._order and len(found) < count:
            if self._over_ms(self._order[0]) > now_ms:
                break
            rows = self._slots[slot := self._order[0]]
            while rows and len(found) < count:
                found.append(rows.pop())
            if not rows:
                del self._slots[slot]
                heappop(self._order)
        return found

    @property
    def next_ms(self) -> int | None:
        return self._over_ms(self._order[0]) if self._order else None

    def _over_ms(self, slot: int) -> int:
        return (slot + 1) * self._width_ms + self.ttl_ms

    @property
    def size_bytes(self) -> int:
        return sum(map(sys.getsizeof, self._slots.values()))

    def reset(self) -> None:
        self._slots.clear()
        self._order.clear()


class ExpiryByScan:
    """See `Expiry`. For rows that are on disk: nothing is remembered, all are looked at, some at a time.

    Args:
        rows: Yields the stored rows with their values; they may change meanwhile.
    """

    # While all rows are looked at once, a quarter more than live for one time to live are written.
    looks_per_put = _SLOTS_PER_TTL + 1

    def __init__(self, ttl_ms: int, rows: Callable[[], Iterator[tuple[Any, Any]]]) -> None:
        self.ttl_ms = ttl_ms
        self._rows = rows
        self._scan: Iterator[tuple[Any, Any]] | None = None
        self._next_ms: int | None = None

    def note(self, row: Any, written_ms: int) -> None:
        """The scan will find it."""

    def due(self, now_ms: int, count: int) -> list[Any]:
        if self._scan is None:
            if self._next_ms is not None and now_ms < self._next_ms:
                return []
            self._scan = self._rows()
            self._next_ms = now_ms + max(1, self.ttl_ms // _SLOTS_PER_TTL)
        some = list(islice(self._scan, count))
        if len(some) < count:
            self._scan = None
        return [row for row, (written_ms, _) in some if written_ms + self.ttl_ms <= now_ms]

    @property
    def next_ms(self) -> int | None:
        return UNDATED if self._scan is not None or self._next_ms is None else self._next_ms

    size_bytes = 0

    def reset(self) -> None:
        self._scan = self._next_ms = None
