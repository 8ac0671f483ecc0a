"""Finds the keys that make up much of a task's input, from a sample of its records.

The keys of the sample are counted as Misra and Gries do ("Finding repeated elements", 1982): with `CAPACITY`
counters, a key's count is never too high, and too low by at most 1 in `CAPACITY + 1` of the sample. Counts
are halved now and then, so that they follow what the input is like at present.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crosscut.operators.operator import shortened
from crosscut.protocol.telemetry import HotKey

CAPACITY = 32
GAP_ROWS = 64
"""On average one record in so many is looked at."""
SAMPLES_OF_BATCH = 4
"""So many at most of one batch, whatever its length."""
SAMPLE_MIN = 100
"""Keys are reported from so many samples on."""
SAMPLE_MAX = 2_000
"""The counts are halved at so many."""
SHARE_MIN = 0.2
SHOWN_MAX = 3


class HotKeys:
    """A sample of the keys of one task."""

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}
        self._total = 0
        self._random = 1
        self.rows_to_next = 0
        """Records that go by before the next one is looked at."""

    def look_at(self, keys: Sequence[Any], rows: int) -> None:
        """Look at some of the first `rows` keys of a batch, the first of them after `rows_to_next` others."""
        position = self.rows_to_next
        gap = max(GAP_ROWS, rows // SAMPLES_OF_BATCH)
        while position < rows:
            self._count(keys[position])
            # A linear congruential generator: steps of one length would meet only some of the keys of an
            # input that repeats itself.
            self._random = (self._random * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            position += 1 + (self._random >> 8) % (2 * gap)
        self.rows_to_next = position - rows

    def _count(self, key: Any) -> None:
        counts = self._counts
        self._total += 1
        if key in counts:
            counts[key] += 1
        elif len(counts) < CAPACITY:
            counts[key] = 1
        else:
            self._counts = {one: count - 1 for one, count in counts.items() if count > 1}
        if self._total >= SAMPLE_MAX:
            self._total //= 2
            self._counts = {one: count // 2 for one, count in self._counts.items() if count > 1}

    def shown(self) -> tuple[HotKey, ...]:
        """Return the keys with at least `SHARE_MIN` of the records, the most frequent first."""
        if self._total < SAMPLE_MIN:
            return ()
        found = [one for one in self._counts.items() if one[1] >= SHARE_MIN * self._total]
        found.sort(key=lambda one: -one[1])
        return tuple(HotKey(shortened(key), count / self._total) for key, count in found[:SHOWN_MAX])
