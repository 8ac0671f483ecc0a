"""Timers: when to come back to a key. They are rows `(key, time)` of its state: one for each pair."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from crosscut.errors import InternalError
from crosscut.foundation.timestamps import BEFORE_ALL_TIME
from crosscut.state.named import NamedTable

ROWS_PER_STEP = 1_000
_STALE_MIN = 1_000
READ_AHEAD = 5_000
"""Timers that are read at once, where they are in order on a disk."""
HEAP_MAX = 4 * READ_AHEAD
"""More than that are not kept in memory there."""

Moment = tuple[int, int]
"""A time, and a place among the timers of that time."""
FIRST: Moment = (BEFORE_ALL_TIME, 0)
Entry = tuple[int, int, str, Any]
"""Time, place, what decides between timers of one place, and the key."""


class TimerTable(NamedTable):
    """The rows `(key, time)` of timers; see `Timers` for their values.

    Attributes:
        is_ordered: Whether it can tell them in the order of their time.
    """

    is_ordered = False

    @property
    def next_place(self) -> int:
        """Higher than the place of any timer in it, if it is ordered and fresh from a restore."""
        return 0

    def upcoming(self, start: Moment, count: int) -> tuple[list[Entry], Moment | None]:
        """Return timers in order, from `start` on, and up to which moment they are all.

        Args:
            count: About how many; there may be none of them any more.

        Returns:
            None for the moment, if no later ones are set.
        """
        raise InternalError(f"the timers {self.name!r} are in no order")


class Timers:
    """The timers of one table, in the order of their time; those of one time in the order they were set.

    The table is the truth, and what snapshots hold. The order is kept in memory beside it, and made again
    from the table in each epoch. Where the table itself has an order, on a disk, only the next ones are in
    memory.

    Args:
        table: Has the place of each timer among those of the same time; with it, in a pair, what `not_before`
            is, where that is later than the timer.

    Attributes:
        not_before: Nothing older may be said when the timer that `due` has yielded last is called.
    """

    def __init__(self, table: TimerTable) -> None:
        self._table = table
        # An entry is stale if its timer is gone, or was set again since. Timers of one place were set in
        # different tasks.
        self._heap: list[Entry] = []
        # Those before this moment are in the heap; None: all of them.
        self._horizon: Moment | None = None
        self._stale_count = 0
        self._next_place = 0
        self.not_before = BEFORE_ALL_TIME

    def __len__(self) -> int:
        return len(self._table)

    def loading(self) -> Iterator[None]:
        """Put the timers of the table in order, before anything else, with other things to do in between."""
        if self._table.is_ordered:
            self._horizon = FIRST
            self._next_place = self._table.next_place
            return
        for count, ((key, time), value) in enumerate(self._table.items(), start=1):
            place, _ = place_of(value)
            heappush(self._heap, (time, place, repr(key), key))
            self._next_place = max(self._next_place, place + 1)
            if not count % ROWS_PER_STEP:
                yield

    @property
    def next_time(self) -> int | None:
        """When the next one is due; None if there is none."""
        while True:
            heap = self._heap
            while heap:
                if self._is_set(heap[0]):
                    return heap[0][0]
                heappop(heap)
                self._stale_count -= 1
            if self._horizon is None:
                return None
            self._heap, self._horizon = self._table.upcoming(self._horizon, READ_AHEAD)
            self._stale_count = 0

    def next_keys(self, up_to: int, count: int) -> list[Any]:
        """Return keys that `due` is going to yield, most of the next ones and about so many at most."""
        # The first of a heap are not quite the least.
        return [key for time, _, _, key in self._heap[:count] if time <= up_to]

    def has(self, key: Any, time: int) -> bool:
        """Tell whether `key` has a timer at that time."""
        return self._table.has((key, time))

    def of_key(self, key: Any) -> list[int]:
        """Return the times at which `key` has timers, in order."""
        return sorted(self._table.names(key))

    def register(self, key: Any, time: int, not_before: int = BEFORE_ALL_TIME) -> bool:
        """Set a timer; return False, and change nothing, if `key` has one at that time.

        Args:
            not_before: The next operator has been told that nothing older will come.
        """
        row = (key, time)
        if self._table.has(row):
            return False
        place = self._next_place
        self._next_place += 1
        self._table.put(row, place if not_before <= time else (place, not_before))
        self._push((time, place, "", key))
        return True

    def delete(self, key: Any, time: int) -> Any:
        """Take a timer away; return what `put_back` takes, None if there was none."""
        row = (key, time)
        value = self._table.get(row)
        if value is None:
            return None
        self._table.delete(row)
        if self._horizon is not None and (time, place_of(value)[0]) >= self._horizon:
            return value
        self._stale_count += 1
        if self._stale_count > max(_STALE_MIN, len(self._heap) // 2):
            # Else timers that are always put off would stay here until their time has come.
            self._clear_stale()
        return value

    def put_back(self, key: Any, time: int, value: Any) -> None:
        """Let a timer that `delete` has taken away be as it was, in its old place."""
        self._table.put((key, time), value)
        self._push((time, place_of(value)[0], repr(key), key))

    def due(self, up_to: int) -> Iterator[tuple[int, Any]]:
        """Take out, one at a time, and yield as (time, key) those whose time is at most `up_to`.

        Timers may be set and deleted meanwhile; they take their place among the others.
        """
        while (time := self.next_time) is not None and time <= up_to:
            _, _, _, key = heappop(self._heap)
            _, self.not_before = place_of(self._table.get((key, time)))
            self._table.delete((key, time))
            yield time, key

    def _push(self, entry: Entry) -> None:
        if self._horizon is not None and entry[:2] >= self._horizon:
            # It is read when its time is near.
            return
        heappush(self._heap, entry)
        if self._table.is_ordered and len(self._heap) > HEAP_MAX:
            # The later half is read again; timers of one moment stay together.
            self._heap.sort()
            self._horizon = self._heap[len(self._heap) // 2][:2]
            self._heap = self._heap[: bisect_left(self._heap, self._horizon)]
            self._stale_count = min(self._stale_count, len(self._heap))

    def _clear_stale(self) -> None:
        if self._table.is_ordered and self._heap:
            # Whether they are set may take as many reads: they are read again, at once.
            self._horizon = self._heap[0][:2]
            self._heap = []
        else:
            self._heap = [entry for entry in self._heap if self._is_set(entry)]
            heapify(self._heap)
        self._stale_count = 0

    def _is_set(self, entry: Entry) -> bool:
        time, place, _, key = entry
        return place_of(self._table.get((key, time)))[0] == place


def place_of(value: Any) -> tuple[int, int]:
    """Return place and `not_before` of what the table has of a timer; a place that none has, if nothing."""
    if value is None:
        return -1, BEFORE_ALL_TIME
    return value if type(value) is tuple else (value, BEFORE_ALL_TIME)
