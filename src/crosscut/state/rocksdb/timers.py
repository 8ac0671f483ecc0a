"""Timers in RocksDB: beside its row, each has one in an index that is in the order of their time.

    index (1 byte) | time (8 bytes) | place (8 bytes) | the row's own bytes

The index says the same as the rows do, always: both are written together. It is not in the parts of other
backends, and is made from the rows wherever these are taken over without it.
"""

from __future__ import annotations

import pickle  # noqa: S403 - own state: from files whose SHA-256 is in the job log
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from crosscut.state.encoding import DELETED
from crosscut.state.rocksdb.database import Database, after
from crosscut.state.rocksdb.rows import RowIds
from crosscut.state.rocksdb.table import RocksNamedTable, StoredNamedRows
from crosscut.state.timers import Entry, Moment, TimerTable, place_of

_MOMENT = struct.Struct(">qQ")
_NEGATIVE = b"\x80"
"""The first byte of the times before 1970, as complements; they stand after all others."""
_ROW_AT = 1 + _MOMENT.size

Change = tuple[bytes, bytes | None]


class StoredTimers(StoredNamedRows):
    """What a table of timers has in the database, and the index to it.

    Args:
        index: What all rows of the index begin with: a byte.

    Attributes:
        next_place: Higher than that of any timer that was written.
    """

    def __init__(self, name: str, ids: RowIds, index: bytes, database: Callable[[], Database]) -> None:
        super().__init__(name, ids, database)
        self.index = index
        self.next_place = 0

    def _changes(self, encoded: list[Change]) -> list[Change]:
        old = self._database().get_many([row_id for row_id, _ in encoded])
        gone = [
            (self._index_of(row_id, data), None)
            for (row_id, _), data in zip(encoded, old, strict=True)
            if data is not None
        ]
        # In this order: a timer that is as it was is in both.
        return [*encoded, *gone, *self.index_rows(encoded)]

    def index_rows(self, rows: Iterable[Change]) -> list[Change]:
        """Return the rows of the index that belong to rows of timers, which are new."""
        return [(self._index_of(row_id, data), data) for row_id, data in rows if data is not None]

    def _index_of(self, row_id: bytes, data: bytes) -> bytes:
        time = self.ids.decoded(row_id)[1]
        place, _ = place_of(pickle.loads(data))  # noqa: S301 - see above
        self.next_place = max(self.next_place, place + 1)
        return self.index + _MOMENT.pack(time, place) + row_id

    def build_index(self, rows_at_once: int) -> None:
        """Make the index of rows that came without one. Blocks."""
        database = self._database()
        rows = database.scan(self.ids.table)
        while some := list(islice(rows, rows_at_once)):
            database.write(self.index_rows(some))

    def upcoming(self, start: Moment) -> Iterator[tuple[Moment, Any, bytes]]:
        """Yield timers in order, with row and value, as they are now."""
        first, negative = self.index + _MOMENT.pack(*start), self.index + _NEGATIVE
        ranges = [(first, negative)]
        if start[0] < 0:
            ranges = [(first, after(self.index)), (self.index, negative)]
        for begin, end in ranges:
            for data, value in self._database().between(begin, end):
                time, place = _MOMENT.unpack_from(data, 1)
                yield (time, place), self.ids.given(data[_ROW_AT:], value), value

    def remember(self, values: dict[Any, bytes]) -> None:
        """Keep at hand what was read of the index: timers are asked for when their time has come."""
        self.make_room(len(values))
        self.keep(values)


class RocksTimerTable(RocksNamedTable, TimerTable):
    """See `TimerTable`."""

    is_ordered = True

    def __init__(self, name: str, stored: StoredTimers) -> None:
        super().__init__(name, stored)
        self._timers = stored

    @property
    def next_place(self) -> int:
        """See `TimerTable.next_place`."""
        # Timers of a log that was replayed have not been written yet.
        layers = [self.values, *(layer for _, layer in self._frozen)]
        places = [place_of(value)[0] for layer in layers for value in layer.values() if value is not DELETED]
        return max([self._timers.next_place, *(place + 1 for place in places)])

    def upcoming(self, start: Moment, count: int) -> tuple[list[Entry], Moment | None]:
        """See `TimerTable.upcoming`."""
        layers = [self.values, *(layer for _, layer in reversed(self._frozen))]
        near: dict[Any, bytes] = {}
        found: list[Entry] = []
        end = last = None
        for moment, row, data in self._timers.upcoming(start) if self._base_count else ():
            if len(near) >= count and moment != last:
                end = moment
                break
            near[row] = data
            last = moment
            if not any(row in layer for layer in layers):
                found.append(_entry(moment, row))
        self._timers.remember(near)
        for position, layer in enumerate(layers):
            newer = layers[:position]
            for row, value in layer.items():
                if value is DELETED or any(row in one for one in newer):
                    continue
                moment = row[1], place_of(value)[0]
                if start <= moment and (end is None or moment < end):
                    found.append(_entry(moment, row))
        found.sort(key=_order)
        return found, end


def _entry(moment: Moment, row: Any) -> Entry:
    time, place = moment
    return time, place, repr(row[0]), row[0]


def _order(entry: Entry) -> tuple[int, int, str]:
    return entry[:3]
