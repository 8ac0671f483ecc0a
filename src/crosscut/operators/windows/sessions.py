"""Session windows: each key has its own, and records that lie between two of them make one of both.

A session is a row `(key, start)` of a table; its value is a `_Session` as a plain tuple. In memory there are
the starts by key, and for each key the moment at which it has to be looked at: no later than that at which
one of its sessions has something to say, or is given up. A session that goes on leaves it alone, so a record
costs nothing there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from crosscut.contracts.connectors import JSON
from crosscut.contracts.windows import Early, OnCount, Session, Trigger
from crosscut.errors import InternalError
from crosscut.foundation.batch import Batch
from crosscut.operators.timed import NO_TIME, Emitted
from crosscut.operators.windows.folding import Folding
from crosscut.operators.windows.operator import WindowOperator, time_of
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable

SESSIONS = "sessions"


def tables() -> list[NamedTable]:
    """Return the empty tables of such windows."""
    return [NamedTable(SESSIONS, lists_names=False)]


class _Session(NamedTuple):
    """A session, but for its start.

    Attributes:
        is_emitted: It has said its punctual result, and is kept for late records.
        news: How many records have come since it last said something early.
    """

    end: int
    is_emitted: bool
    news: int
    value: Any


class SessionWindows(WindowOperator):
    """Sessions. `lateness_ms`: how long after its end a session still takes records."""

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        folding: Folding,
        window: Session,
        trigger: Trigger | None = None,
        lateness_ms: int = 0,
        emit_late: Callable[[Any, int], None] | None = None,
    ) -> None:
        super().__init__(uid, state, folding, emit_late)
        if folding.merge is None:
            raise InternalError(f"operator {uid!r} has sessions and no merge")
        self._merge = folding.merge
        self._table = state.named[SESSIONS]
        self._gap_ms = window.gap_ms
        self._lateness_ms = lateness_ms
        self._rows_between = trigger.rows if isinstance(trigger, OnCount) else 0
        self._every_ms = trigger.every_ms if isinstance(trigger, Early) else 0
        # Made when they are first needed: the state may be loaded after the operator was made.
        self._starts: dict[Any, list[int]] | None = None
        # (moment, a number that decides between equal ones, key); the newest one of a key counts.
        self._moments: list[tuple[int, int, Any]] = []
        self._numbers = count()
        self._looked_at: dict[Any, int] = {}
        self._fresh: dict[Any, None] = {}

    def _take_batch(self, batch: Batch) -> Batch:
        keys, times = self._keys_and_times(batch)
        self._load()
        if self._table.reads_ahead:
            known = self._sessions
            self._table.fetch((key, start) for key in dict.fromkeys(keys) for start in known.get(key, ()))
        emitted = Emitted()
        with self.over(batch) as remaining:
            for key, time, record in zip(keys, times, remaining, strict=True):
                self._add(key, time, record, emitted)
        return emitted.batch()

    @property
    def comes_from(self) -> JSON:
        return self._emitted_up_to if self._every_ms else None

    def _due(self, before: int) -> Iterator[Batch]:
        """Yield what the sessions say that end by then, in the order of their ends."""
        self._load()
        watermark = self.watermark
        emitted = Emitted()
        while (row := self._next_due()) is not None:
            self._emit_punctual(row, emitted)
            if self._is_enough(emitted):
                yield emitted.batch()
                emitted = Emitted()
        if self._every_ms and before != NO_TIME and watermark // self._every_ms > before // self._every_ms:
            for row in iter(lambda: next(iter(self._fresh), None), None):
                self._emit_early(row, emitted)
                if self._is_enough(emitted):
                    yield emitted.batch()
                    emitted = Emitted()
        if emitted.records:
            yield emitted.batch()

    def _is_enough(self, emitted: Emitted) -> bool:
        return len(emitted.records) >= self.time_budget.rows_max or self.time_budget.is_over

    # Records.

    def _add(self, key: Any, time: int, record: Any, emitted: Emitted) -> None:
        end = time + self._gap_ms
        starts = self._sessions.get(key, [])
        first, last = self._touched(key, starts, time, end)
        folding = self._folding
        if first == last:
            if end + self._lateness_ms <= self.watermark:
                self._late(record, time)
                return
            start, news, value = time, 0, folding.initial()
        else:
            start, (found_end, _, news, value) = starts[first], self._row(key, starts[first])
            for other in starts[first + 1 : last]:
                found_end, _, other_news, other_value = self._row(key, other)
                value = self._merge(value, other_value)
                news += other_news
            start, end = min(start, time), max(found_end, end)
        value = folding.add(value, record)
        self._replace(key, starts[first:last], start)
        self._update(key, start, end, news + 1, value, emitted)

    def _touched(self, key: Any, starts: list[int], time: int, end: int) -> tuple[int, int]:
        """Return where the sessions that overlap with `[time, end)` begin and end among the key's."""
        last = bisect_left(starts, end)
        first = last
        while first and self._row(key, starts[first - 1]).end > time:
            first -= 1
        return first, last

    def _update(self, key: Any, start: int, end: int, news: int, value: Any, emitted: Emitted) -> None:
        """Store a session that has got a record, and say what it says at once."""
        row = (key, start)
        is_emitted = end <= self.watermark
        is_due = is_emitted or 0 < self._rows_between <= news
        if is_due:
            news = 0
        self._table.put(row, (end, is_emitted, news, value))
        self._look_at(key, end + self._lateness_ms if is_emitted else end)
        if is_due:
            emitted.add(self._results(key, start, end, value, is_last=False), time_of(end))
        elif self._every_ms:
            self._fresh[row] = None

    def _replace(self, key: Any, starts: list[int], start: int) -> None:
        """Put one session in the place of those that begin at `starts`."""
        if starts == [start]:
            return
        found = self._sessions.setdefault(key, [])
        for old in starts:
            found.remove(old)
            self._fresh.pop((key, old), None)
            if old != start:
                self._table.delete((key, old))
        insort(found, start)

    # What is due.

    def _next_due(self) -> Any | None:
        """Return the row of the next session that has something to say by now; give up those before it."""
        while self._moments and self._moments[0][0] <= self.watermark:
            moment, _, key = self._moments[0]
            if self._looked_at.get(key) != moment:
                heappop(self._moments)
                continue
            due, start, is_emitted = min(self._dues(key))
            if due == moment and not is_emitted:
                return key, start
            heappop(self._moments)
            del self._looked_at[key]
            if due == moment:
                self._forget(key, start)
            self._look_again(key)
        return None

    def _dues(self, key: Any) -> Iterator[tuple[int, int, bool]]:
        for start in self._sessions[key]:
            session = self._row(key, start)
            due = session.end + self._lateness_ms if session.is_emitted else session.end
            yield due, start, session.is_emitted

    def _emit_punctual(self, row: Any, emitted: Emitted) -> None:
        key, start = row
        end, _, _, value = self._row(key, start)
        is_kept = end + self._lateness_ms > self.watermark
        for _ in self.time_budget.through(Batch([key])):
            try:
                emitted.add(self._results(key, start, end, value, is_last=not is_kept), time_of(end))
            except BaseException as error:
                raise self.result_failed(error, key, value) from error
            self._fresh.pop(row, None)
            del self._looked_at[key]
            if is_kept:
                self._table.put(row, (end, True, 0, value))
            else:
                self._forget(key, start)
            self._look_again(key)
        # What has not been said is still in the state.
        self.time_budget.rest = None

    def _emit_early(self, row: Any, emitted: Emitted) -> None:
        key, start = row
        end, is_emitted, _, value = self._row(key, start)
        for _ in self.time_budget.through(Batch([key])):
            try:
                emitted.add(self._results(key, start, end, value, is_last=False), time_of(end))
            except BaseException as error:
                raise self.result_failed(error, key, value) from error
            del self._fresh[row]
            self._table.put(row, (end, is_emitted, 0, value))
        self.time_budget.rest = None

    def _forget(self, key: Any, start: int) -> None:
        self._table.delete((key, start))
        starts = self._sessions[key]
        starts.remove(start)
        if not starts:
            del self._sessions[key]

    def _look_again(self, key: Any) -> None:
        if key in self._sessions:
            self._look_at(key, min(self._dues(key))[0])

    def _look_at(self, key: Any, moment: int) -> None:
        """See to it that the key is looked at by `moment`."""
        known = self._looked_at.get(key)
        if known is None or moment < known:
            self._looked_at[key] = moment
            heappush(self._moments, (moment, next(self._numbers), key))

    # State.

    @property
    def _sessions(self) -> dict[Any, list[int]]:
        if self._starts is None:
            raise InternalError(f"operator {self.uid!r} has no index of its sessions")
        return self._starts

    def _row(self, key: Any, start: int) -> _Session:
        return _Session(*self._table.get((key, start)))

    def _load(self) -> None:
        if self._starts is not None:
            return
        self._starts = {}
        for (key, start), _ in self._table.items():
            insort(self._starts.setdefault(key, []), start)
        for key in self._starts:
            self._look_again(key)
        if self._every_ms:
            fresh = (row for row, (_, _, news, _) in self._table.items() if news)
            self._fresh = dict.fromkeys(fresh)
