"""The join with the latest: a record of the left, and what the right has last said of its key.

In event time that is the version of the right that was valid when the record happened. So a record waits
until the watermark says that no version of its time can come any more; of the versions those are kept that a
record may still ask for. Without event time the version that has come last is taken, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from crosscut.foundation.batch import Batch
from crosscut.graph.joins import LEFT, LatestJoinSpec
from crosscut.operators.joins.times import TimedRows
from crosscut.operators.timed import Emitted, TimedOperator
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable

VERSIONS, WAITING = "versions", "waiting"
_ABSENT: Any = object()


def tables() -> list[NamedTable]:
    """Return the empty tables of a join with the latest."""
    return [NamedTable(name, lists_names=False) for name in (VERSIONS, WAITING)]


class LatestJoin(TimedOperator):
    """See `LatestJoinSpec`. Versions are rows `(key, time)`; without event time all are of time 0."""

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        spec: LatestJoinSpec,
        emit_late: Callable[[Any, int], None] | None = None,
    ) -> None:
        super().__init__(uid, state, emit_late)
        self._keeps_left = spec.how == "left"
        # Made when they are first needed: the state may be loaded after the operator was made.
        self._rows: tuple[TimedRows, TimedRows] | None = None
        # Versions, by time, that make older ones of their key useless once nothing asks for those any more.
        self._successors: list[tuple[int, int, Any]] = []
        self._numbers = count()

    def process(self, batch: Batch) -> Batch:
        keys = self._keys(batch)
        emitted = Emitted()
        records = self.time_budget.through(batch)
        if batch.timestamps is None:
            self._take_at_once(keys, records, batch.input, emitted)
        elif batch.input == LEFT:
            _, waiting = self._loaded()
            for key, time, record in zip(keys, batch.timestamps, records, strict=True):
                if time < self.watermark:
                    self._late(record, time)
                else:
                    # In place: many may have one key and time, and a copy for each would be their square.
                    others = waiting.get(key, time, [])
                    others.append(record)
                    waiting.put(key, time, others)
        else:
            for key, time, record in zip(keys, batch.timestamps, records, strict=True):
                self._take_version(key, time, record)
        self.taken_count += len(batch.records)
        return Batch(emitted.records) if batch.timestamps is None else emitted.batch()

    def _take_at_once(self, keys: list[Any], records: Iterator[Any], side: int, emitted: Emitted) -> None:
        versions, _ = self._loaded()
        for key, record in zip(keys, records, strict=True):
            if side == LEFT:
                self._join(key, record, versions.get(key, 0, _ABSENT), emitted, 0)
            else:
                versions.put(key, 0, record)

    def _take_version(self, key: Any, time: int, record: Any) -> None:
        versions, _ = self._loaded()
        latest = versions.latest(key, self.watermark)
        if latest is not None and time < min(latest, self.watermark):
            # All that happened before the watermark has been joined, and the rest asks for a later one.
            return
        if not versions.has(key, time):
            heappush(self._successors, (time, next(self._numbers), key))
        versions.put(key, time, record)

    def _due(self, before: int) -> Iterator[Batch]:
        """Say the records for which the right version is known; drop versions that nothing asks for."""
        versions, waiting = self._loaded()
        emitted = Emitted()
        while (earliest := waiting.earliest) is not None and earliest < self.watermark:
            time, key = waiting.first()
            version = versions.latest(key, time)
            found = _ABSENT if version is None else versions.get(key, version)
            for record in waiting.get(key, time):
                self._join(key, record, found, emitted, time)
            waiting.delete(key, time)
            if len(emitted.records) >= self.time_budget.rows_max:
                yield emitted.batch()
                emitted = Emitted()
        if emitted.records:
            yield emitted.batch()
        while self._successors and self._successors[0][0] <= self.watermark:
            time, _, key = heappop(self._successors)
            while (older := versions.latest(key, time - 1)) is not None:
                versions.delete(key, older)

    def _join(self, key: Any, record: Any, version: Any, emitted: Emitted, time: int) -> None:
        if version is not _ABSENT:
            emitted.add(((key, (record, version)),), time)
        elif self._keeps_left:
            emitted.add(((key, (record, None)),), time)

    def _loaded(self) -> tuple[TimedRows, TimedRows]:
        if self._rows is None:
            versions, waiting = (TimedRows(self._state.named[name]) for name in (VERSIONS, WAITING))
            for (key, time), _ in self._state.named[VERSIONS].items():
                heappush(self._successors, (time, next(self._numbers), key))
            self._rows = versions, waiting
        return self._rows
