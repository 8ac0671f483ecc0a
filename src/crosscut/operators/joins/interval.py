"""The interval join: records of two streams whose times are near to each other.

The records of each side wait in rows `(key, time)` of a table until the watermark says that no partner can
come any more. A row is a list of pairs: the record, and whether it has met a partner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import TIMESTAMP_MAX
from crosscut.graph.joins import LEFT, IntervalJoinSpec, keeps_left, keeps_right
from crosscut.operators.joins.times import TimedRows
from crosscut.operators.timed import Emitted, TimedOperator
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable

_TABLES = ("left", "right")


def tables() -> list[NamedTable]:
    """Return the empty tables of an interval join."""
    return [NamedTable(name, lists_names=False) for name in _TABLES]


class IntervalJoin(TimedOperator):
    """See `IntervalJoinSpec`."""

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        spec: IntervalJoinSpec,
        emit_late: Callable[[Any, int], None] | None = None,
    ) -> None:
        super().__init__(uid, state, emit_late)
        # Partners of a record of each side at t are from t + first to t + last.
        self._reach = ((spec.lower_ms, spec.upper_ms), (-spec.upper_ms, -spec.lower_ms))
        self._keeps = (keeps_left(spec.how), keeps_right(spec.how))
        # Made when they are first needed: the state may be loaded after the operator was made.
        self._rows: tuple[TimedRows, TimedRows] | None = None

    def process(self, batch: Batch) -> Batch:
        keys, times = self._keys_and_times(batch)
        own = batch.input
        mine, theirs = self._loaded()[own], self._loaded()[1 - own]
        first, last = self._reach[own]
        emitted = Emitted()
        for key, time, record in zip(keys, times, self.time_budget.through(batch), strict=True):
            if time < self.watermark:
                self._late(record, time)
                continue
            has_met = False
            for at in theirs.between(key, time + first, time + last):
                self._meet(theirs, key, at, 1 - own)
                partners = theirs.get(key, at)
                emitted.add((_pair(key, own, record, one) for one, _ in partners), max(time, at))
                has_met = True
            if time + last >= self.watermark:
                # In place: many records may have one key and time, and a copy for each would be their square.
                waiting = mine.get(key, time, [])
                waiting.append((record, has_met))
                mine.put(key, time, waiting)
            elif self._keeps[own] and not has_met:
                emitted.add((_pair(key, own, record, None),), time)
        self.taken_count += len(batch.records)
        return emitted.batch()

    def _meet(self, rows: TimedRows, key: Any, time: int, side: int) -> None:
        """Note that the records of a row have met a partner, where anybody will ask."""
        if self._keeps[side]:
            found = rows.get(key, time)
            if not all(has_met for _, has_met in found):
                rows.put(key, time, [(record, True) for record, _ in found])

    def _due(self, before: int) -> Iterator[Batch]:
        """Give up the records that no partner can come for; those that met none may be sent alone."""
        emitted = Emitted()
        while (side := self._next_side()) is not None:
            rows, (_, last) = self._loaded()[side], self._reach[side]
            time, key = rows.first()
            if self._keeps[side]:
                alone = [record for record, has_met in rows.get(key, time) if not has_met]
                # Not its own time: the watermark may have passed that.
                settled = min(max(time, time + last), TIMESTAMP_MAX)
                emitted.add((_pair(key, side, record, None) for record in alone), settled)
            rows.delete(key, time)
            if len(emitted.records) >= self.time_budget.rows_max:
                yield emitted.batch()
                emitted = Emitted()
        if emitted.records:
            yield emitted.batch()

    def _next_side(self) -> int | None:
        """Return the side of which a record is to be given up next: the one that was settled first."""
        settled = [
            (earliest + last, side)
            for side, (rows, (_, last)) in enumerate(zip(self._loaded(), self._reach, strict=True))
            if (earliest := rows.earliest) is not None and earliest + last < self.watermark
        ]
        return min(settled)[1] if settled else None

    def _loaded(self) -> tuple[TimedRows, TimedRows]:
        if self._rows is None:
            left, right = (TimedRows(self._state.named[name]) for name in _TABLES)
            self._rows = left, right
        return self._rows


def _pair(key: Any, side: int, own: Any, other: Any) -> Any:
    return (key, (own, other)) if side == LEFT else (key, (other, own))
