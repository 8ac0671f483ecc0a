"""Tumbling and sliding windows, of local days too: they begin at the same times for all keys.

The accumulator of a window is a row of its own, `(key, start)`. The rows are also what is still to be
said: in memory there is an index of the keys by window, and nothing else. A window that has said its last
punctual result leaves the table of open windows; with allowed lateness it then waits in the table of kept
ones. So wherever speaking is interrupted, the state says where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice, repeat
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.contracts.windows import Early, LocalDays, OnCount, Sliding, Trigger, Tumbling
from crosscut.foundation.batch import Batch
from crosscut.operators.timed import NO_TIME, Emitted
from crosscut.operators.windows.folding import Folding
from crosscut.operators.windows.operator import WindowOperator, time_of
from crosscut.state.encoding import DELETED
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable

OPEN, KEPT = "windows", "windows kept for late records"


def tables() -> list[NamedTable]:
    """Return the empty tables of such windows."""
    return [NamedTable(name, lists_names=False) for name in (OPEN, KEPT)]


class _Index:
    """The rows of a table, by window."""

    def __init__(self, table: NamedTable) -> None:
        self.table = table
        # A dict, not a set: results come in the order in which the keys have come.
        self.keys: dict[int, dict[Any, None]] = {}
        for (key, start), _ in table.items():
            self.keys.setdefault(start, {})[key] = None

    def add(self, row: Any, value: Any) -> bool:
        """Add a row; return whether it is the first of its window."""
        self.table.put(row, value)
        key, start = row
        keys = self.keys.get(start)
        if keys is None:
            self.keys[start] = {key: None}
            return True
        keys[key] = None
        return False

    def delete(self, row: Any) -> None:
        self.table.delete(row)
        key, start = row
        del self.keys[start][key]


class AlignedWindows(WindowOperator):
    """Tumbling or sliding windows.

    With a trigger, the row of an open window is a pair: the accumulator, and how many records have come
    since it last said something.

    Args:
        lateness_ms: How long after its end a window still takes records; each is followed by a new result.
    """

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        folding: Folding,
        window: Tumbling | LocalDays | Sliding,
        trigger: Trigger | None = None,
        lateness_ms: int = 0,
        emit_late: Callable[[Any, int], None] | None = None,
    ) -> None:
        super().__init__(uid, state, folding, emit_late)
        self._window = window
        self._end_of = window.end_of
        self._lateness_ms = lateness_ms
        self._trigger = trigger
        self._rows_between = trigger.rows if isinstance(trigger, OnCount) else 0
        self._every_ms = trigger.every_ms if isinstance(trigger, Early) else 0
        # The windows of `_take_punctual`.
        self._plain = window if trigger is None and isinstance(window, Tumbling) else None
        # Made when it is first needed: the state may be loaded after the operator was made.
        self._indexes: tuple[_Index, _Index] | None = None
        # When a window ends, or is given up: (time, whether it is given up, start).
        self._moments: list[tuple[int, bool, int]] = []
        # Rows that have something new to say early.
        self._fresh: dict[Any, None] = {}

    def _take_batch(self, batch: Batch) -> Batch:
        keys, times = self._keys_and_times(batch)
        if not times:
            return Batch([])
        self._open, self._kept = self._indexed()
        if self._open.table.reads_ahead:
            starts_of = self._window.starts
            rows = ((key, start) for key, time in zip(keys, times, strict=True) for start in starts_of(time))
            self._open.table.fetch(rows)
        earliest = self._window.starts(min(times))[-1]
        if self._plain is not None and self._end_of(earliest) > self.watermark:
            self._take_punctual(self._plain, batch, keys, times, earliest)
            emitted = Batch([])
        else:
            emitted = self._take(batch, keys, times)
        self.taken_count += len(batch.records)
        return emitted

    @property
    def comes_from(self) -> JSON:
        return self._emitted_up_to if self._every_ms else None

    def _due(self, before: int) -> Iterator[Batch]:
        """Yield what the windows say that end by then, in the order of their ends."""
        self._open, self._kept = self._indexed()
        watermark = self.watermark
        while self._moments and self._moments[0][0] <= watermark:
            _, is_given_up, start = self._moments[0]
            if is_given_up:
                self._give_up(start)
            else:
                yield from self._conclude(start)
            heappop(self._moments)
        if self._every_ms and before != NO_TIME and watermark // self._every_ms > before // self._every_ms:
            yield from self._emit_early()

    # Records.

    def _take_punctual(
        self, window: Tumbling, batch: Batch, keys: list[Any], times: list[int], first: int
    ) -> None:
        """Take records of open tumbling windows, of which the one at `first` is the earliest."""
        size_ms, offset_ms = window.size_ms, window.offset_ms
        is_one = max(times) < first + size_ms
        starts = repeat(first) if is_one else [time - (time - offset_ms) % size_ms for time in times]
        values = self._open.table.values
        self._open.table.record(zip(keys, starts))  # noqa: B905 - the starts may be endless
        get = values.get
        if self._folding.counts:
            for row in zip(keys, starts):  # noqa: B905 - the starts may be endless
                count = get(row, DELETED)
                if count is DELETED:
                    count = self._found_or_opened(row)
                values[row] = count + 1
            return
        add = self._folding.add
        remaining = self.time_budget.through(batch)
        try:
            for row, record in zip(zip(keys, starts), remaining):  # noqa: B905 - as above
                value = get(row, DELETED)
                if value is DELETED:
                    value = self._found_or_opened(row)
                values[row] = add(value, record)
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error

    def _found_or_opened(self, row: Any) -> Any:
        value = self._open.table.get(row, DELETED)
        if value is DELETED:
            value = self._folding.initial()
            self._opened(row, value)
        return value

    def _opened(self, row: Any, value: Any) -> None:
        if self._open.add(row, value):
            start = row[1]
            heappush(self._moments, (self._end_of(start), False, start))

    def _take(self, batch: Batch, keys: list[Any], times: list[int]) -> Batch:
        """Take any records, one by one."""
        emitted = Emitted()
        starts_of, end_of, watermark = self._window.starts, self._end_of, self.watermark
        remaining = self.time_budget.through(batch)
        try:
            for key, time, record in zip(keys, times, remaining, strict=True):
                is_late = True
                for start in reversed(starts_of(time)):
                    end = end_of(start)
                    if end > watermark:
                        self._add_to_open(key, start, record, emitted)
                    elif end + self._lateness_ms > watermark:
                        self._add_to_kept(key, start, record, emitted)
                    else:
                        continue
                    is_late = False
                if is_late:
                    self._late(record, time)
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error
        return emitted.batch()

    def _add_to_open(self, key: Any, start: int, record: Any, emitted: Emitted) -> None:
        row = (key, start)
        folding, table = self._folding, self._open.table
        found = table.get(row, DELETED)
        is_new = found is DELETED
        if self._trigger is None:
            value = stored = folding.add(folding.initial() if is_new else found, record)
        else:
            value, news = (folding.initial(), 0) if is_new else found
            value, news = folding.add(value, record), news + 1
            if news == self._rows_between:
                news = 0
            stored = (value, news)
        if is_new:
            self._opened(row, stored)
        else:
            table.put(row, stored)
        if self._rows_between and not news:
            end = self._end_of(start)
            emitted.add(self._results(key, start, end, value, is_last=False), time_of(end))
        elif self._every_ms:
            self._fresh[row] = None

    def _add_to_kept(self, key: Any, start: int, record: Any, emitted: Emitted) -> None:
        row = (key, start)
        folding, table = self._folding, self._kept.table
        found = table.get(row, DELETED)
        is_new = found is DELETED
        value = folding.add(folding.initial() if is_new else found, record)
        if is_new:
            self._keep(row, value)
        else:
            table.put(row, value)
        end = self._end_of(start)
        emitted.add(self._results(key, start, end, value, is_last=False), time_of(end))

    def _keep(self, row: Any, value: Any) -> None:
        if self._kept.add(row, value):
            start = row[1]
            heappush(self._moments, (self._end_of(start) + self._lateness_ms, True, start))

    # Results.

    def _conclude(self, start: int) -> Iterator[Batch]:
        """Say the last punctual results of the windows that begin at `start`."""
        keys = self._open.keys[start]
        while keys:
            yield self._emit_last(start, list(islice(keys, self.time_budget.rows_max)))
        del self._open.keys[start]

    def _emit_last(self, start: int, keys: list[Any]) -> Batch:
        emitted = Emitted()
        end = self._end_of(start)
        is_kept = self._lateness_ms > 0 and end + self._lateness_ms > self.watermark
        if self._open.table.reads_ahead:
            self._open.table.fetch((key, start) for key in keys)
        for key in self.time_budget.through(Batch(keys)):
            row = (key, start)
            value = self._open.table.get(row)
            if self._trigger is not None:
                value = value[0]
            try:
                emitted.add(self._results(key, start, end, value, is_last=not is_kept), time_of(end))
            except BaseException as error:
                raise self.result_failed(error, key, value) from error
            self._open.delete(row)
            self._fresh.pop(row, None)
            if is_kept:
                self._keep(row, value)
        # What has not been said is still in the state.
        self.time_budget.rest = None
        return emitted.batch()

    def _give_up(self, start: int) -> None:
        """Forget the windows that begin at `start`: what still comes is too late for them."""
        for key in list(self._kept.keys[start]):
            self._kept.delete((key, start))
        del self._kept.keys[start]

    def _emit_early(self) -> Iterator[Batch]:
        while self._fresh:
            emitted = Emitted()
            for row in self.time_budget.through(Batch(list(islice(self._fresh, self.time_budget.rows_max)))):
                key, start = row
                end = self._end_of(start)
                value, _ = self._open.table.get(row)
                try:
                    emitted.add(self._results(key, start, end, value, is_last=False), time_of(end))
                except BaseException as error:
                    raise self.result_failed(error, key, value) from error
                self._open.table.put(row, (value, 0))
                del self._fresh[row]
            self.time_budget.rest = None
            yield emitted.batch()

    def _indexed(self) -> tuple[_Index, _Index]:
        if self._indexes is None:
            state = self._state.named
            self._indexes = opened, kept = _Index(state[OPEN]), _Index(state[KEPT])
            for start in opened.keys:
                heappush(self._moments, (self._end_of(start), False, start))
            for start in kept.keys:
                heappush(self._moments, (self._end_of(start) + self._lateness_ms, True, start))
            if self._every_ms:
                self._fresh = {row: None for row, (_, news) in opened.table.items() if news}
        return self._indexes
