"""Days of a time zone, in milliseconds since 1970 in UTC, by a table of its offsets."""

from __future__ import annotations

from bisect import bisect_right

DAY_MS = 86_400_000

Offsets = tuple[tuple[int, int], ...]
"""Since when the local time is so much ahead of UTC, both in milliseconds, in order. The first one holds
before it, too."""


class LocalPeriods:
    """Periods of whole days of local time. Where clocks change, a day has 23 or 25 hours.

    Args:
        days: Of a period. Periods are counted from 1 January 1970.
        shift_ms: A period begins so much later, by the local clock.
    """

    def __init__(self, offsets: Offsets, days: int, shift_ms: int) -> None:
        self._since = [since for since, _ in offsets]
        self._ahead = [ahead for _, ahead in offsets]
        # What the local clock shows when each offset ends.
        self._until = [until + ahead for until, ahead in zip(self._since[1:], self._ahead[:-1], strict=True)]
        self._size_ms = days * DAY_MS
        self._shift_ms = shift_ms
        self._newest = (0, 0)
        self._ends: dict[int, int] = {}

    def start_of(self, time: int) -> int:
        """Return where the period begins that holds `time`."""
        start, end = self._newest
        if not start <= time < end:
            start, _ = self._newest = self._bounds(time)
        return start

    def end_of(self, start: int) -> int:
        """Return where the period ends that begins at `start`."""
        end = self._ends.get(start)
        if end is None:
            if len(self._ends) >= 1_000:
                self._ends.clear()
            _, end = self._bounds(start)
            self._ends[start] = end
        return end

    def _bounds(self, time: int) -> tuple[int, int]:
        local = time + self._ahead[max(0, bisect_right(self._since, time) - 1)]
        number = (local - self._shift_ms) // self._size_ms
        # Where the clock goes back over a beginning, it shows times of the period before once more.
        while time >= (end := self._start(number + 1)):
            number += 1
        return self._start(number), end

    def _start(self, number: int) -> int:
        local = number * self._size_ms + self._shift_ms
        index = bisect_right(self._until, local)
        start = local - self._ahead[index]
        # A time that the clock skips is when it does so; of one that it shows twice, it is the first.
        return max(start, self._since[index]) if index else start
