"""Count windows and the global one: which records are together depends on their order alone.

The window of a key is one row, a `_Span` as a plain tuple.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

from crosscut.contracts.connectors import JSON
from crosscut.contracts.windows import CountWindow, Early, GlobalWindow, OnCount, Trigger
from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import TIMESTAMP_MAX
from crosscut.operators.timed import NO_TIME, Emitted
from crosscut.operators.windows.folding import Folding
from crosscut.operators.windows.operator import WindowOperator
from crosscut.state.keyed import KeyedState

_NEVER = 0


class _Span(NamedTuple):
    """What a key's records have come to so far.

    Attributes:
        news: How many have come since something was said.
        start: The time of the earliest; 0, and `end` too, if they have none.
        end: One more than that of the latest.
    """

    news: int
    start: int
    end: int
    value: Any


class CountedWindows(WindowOperator):
    """Count windows and the global window."""

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        folding: Folding,
        window: CountWindow | GlobalWindow,
        trigger: Trigger | None = None,
    ) -> None:
        super().__init__(uid, state, folding)
        self._is_count = isinstance(window, CountWindow)
        self._rows = _NEVER
        if isinstance(window, CountWindow):
            self._rows = window.rows
        elif isinstance(trigger, OnCount):
            self._rows = trigger.rows
        self._every_ms = trigger.every_ms if isinstance(trigger, Early) else 0
        self._fresh: dict[Any, None] | None = None

    def _take_batch(self, batch: Batch) -> Batch:
        keys = self._keys_and_times(batch)[0] if self._every_ms else self._keys(batch)
        emitted = Emitted()
        table, folding, rows = self._state.main, self._folding, self._rows
        times = repeat(None) if batch.timestamps is None else batch.timestamps
        fresh = self._loaded() if self._every_ms else None
        with self.over(batch) as remaining:
            for key, time, record in zip(keys, times, remaining):  # noqa: B905 - there may be no times
                news, start, end, value = table.get(key) or (0, 0, 0, folding.initial())
                value = folding.add(value, record)
                news += 1
                if time is not None:
                    is_first = start == end
                    start, end = (time, time + 1) if is_first else (min(start, time), max(end, time + 1))
                is_due = news == rows
                if is_due:
                    results = self._results(key, start, end, value, is_last=self._is_count)
                    emitted.add(results, time or 0)
                    news = 0
                if is_due and self._is_count:
                    table.delete(key)
                    continue
                table.put(key, (news, start, end, value))
                if fresh is not None:
                    fresh[key] = None
        return emitted.batch() if batch.timestamps is not None else Batch(emitted.records)

    @property
    def comes_from(self) -> JSON:
        return self._emitted_up_to if self._every_ms else None

    def _due(self, before: int) -> Iterator[Batch]:
        """Yield what the global window says early."""
        watermark = self.watermark
        if not self._every_ms or before == NO_TIME or watermark // self._every_ms <= before // self._every_ms:
            return
        fresh = self._loaded()
        while fresh:
            emitted = Emitted()
            for key in self.time_budget.through(Batch(list(islice(fresh, self.time_budget.rows_max)))):
                self._emit(key, emitted, min(watermark, TIMESTAMP_MAX), is_last=False)
                del fresh[key]
            self.time_budget.rest = None
            yield emitted.batch()

    def end(self, after: str) -> Iterator[tuple[Batch, str]]:
        # Whatever has been said has left the state, so that is where it goes on: not after an ordinal.
        items = self._state.main.items()
        while keys := [key for key, _ in islice(items, self.time_budget.rows_max)]:
            while keys:
                emitted = Emitted()
                taken = 0
                for key in self.time_budget.through(Batch(list(keys))):
                    self._emit(key, emitted, TIMESTAMP_MAX, is_last=True)
                    self._state.main.delete(key)
                    taken += 1
                del keys[:taken]
                self.time_budget.rest = None
                # Their time is that of all final results, if records have one here: the chain knows.
                yield Batch(emitted.records), after

    def _emit(self, key: Any, emitted: Emitted, timestamp: int, *, is_last: bool) -> None:
        span = _Span(*self._state.main.get(key))
        try:
            results = self._results(key, span.start, span.end, span.value, is_last=is_last)
            emitted.add(results, timestamp)
        except BaseException as error:
            raise self.result_failed(error, key, span.value) from error
        if not is_last:
            self._state.main.put(key, span._replace(news=0))

    def _loaded(self) -> dict[Any, None]:
        """Return the keys that have something new to say."""
        if self._fresh is None:
            self._fresh = {key: None for key, span in self._state.main.items() if span[0]}
        return self._fresh
