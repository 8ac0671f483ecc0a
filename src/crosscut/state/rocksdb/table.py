"""A table whose rows are in RocksDB, below the same layers that a table in memory has.

Changes since the last barrier are in a dict, as objects; so are values that user code may change in
place. Below it, frozen layers wait to be written into the database, and then it. What a batch is going to
need is read from there at once (`fetch`), and what a barrier froze is written at once.
"""

from __future__ import annotations

import pickle  # noqa: S403 - own state: from files whose SHA-256 is in the job log
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, filterfalse, islice, repeat
from operator import itemgetter
from typing import Any

from crosscut.errors import InternalError, StateError
from crosscut.foundation.ids import CheckpointId
from crosscut.state.encoding import DELETED, loaded, owned_copy, unstorable
from crosscut.state.expiry import ExpiryByScan
from crosscut.state.field_names import REFERENCE
from crosscut.state.given_keys import PLAIN, all_plain, is_plain, key_in
from crosscut.state.layers import Layer
from crosscut.state.memory import Held
from crosscut.state.named import NamedTable, in_order
from crosscut.state.rocksdb.database import Database
from crosscut.state.rocksdb.rows import HEAD_BYTES, RowIds, has_row, some_have_rows, with_row
from crosscut.state.table import Table

ROWS_PER_STEP = 250
"""Rows that are written in one step: about a millisecond."""
NEAR_ROWS_MAX = 50_000
NEAR_BYTES_MAX = 16 * 1024 * 1024
"""Of rows that a table keeps at hand, as bytes, once they have been read; one batch may need more."""
NAMES_AHEAD_MAX = 4
"""If the last batch has asked for no more names than that, they are read for all keys of the next one."""
SAMPLED_ROWS = 16
"""When there are so many and none has been written yet, they are measured."""

_ABSENT: Any = object()
_NONE = CheckpointId(0)


class StoredRows:
    """What one table has in the database. It looks like the lowest layer of a table.

    Args:
        name: Of the table.
        database: Returns the database, which may become another one.
    """

    def __init__(self, name: str, ids: RowIds, database: Callable[[], Database]) -> None:
        self.name = name
        self.ids = ids
        self._database = database
        # Read before they are needed; None: there is no such row.
        self.near: dict[Any, bytes | None] = {}
        self._near_bytes = 0
        self.note: Callable[[bytes], None] | None = None
        """Takes values that refer to classes, as they are written."""
        self.row_bytes = 0
        """How long a row is with its value, about, by those that were written last; 0: none was."""
        self.note_unusual: Callable[[], None] = _nothing
        """Called when a row is seen whose own key is stored with it."""

    @property
    def memory_bytes(self) -> int:
        """How much memory the rows at hand take, without their keys."""
        return sys.getsizeof(self.near) + self._near_bytes

    def get(self, row: Any, default: Any = None) -> Any:
        """Return the value of a row, which is the caller's own, or `default`."""
        data = self.near.get(row, _ABSENT)
        if data is _ABSENT:
            data = self._database().get(self.ids.encoded(row))
        if data is None:
            return default
        if has_row(data):
            self.note_unusual()
        try:
            return pickle.loads(data)  # noqa: S301 - see above
        except Exception:  # noqa: BLE001 - it is raised again, with the key
            return loaded(data, f"state {self.name!r} of key {row!r:.120}")

    def given(self, row: Any) -> Any:
        """Return a row, which is stored, with the key that it was created with."""
        row_id = self.ids.encoded(row)
        data = self._database().get(row_id)
        return row if data is None else self.ids.given(row_id, data)

    def fetch(self, rows: list[Any], into: Layer | None = None) -> list[bytes]:
        """Read rows that are going to be asked for.

        Args:
            into: They are going to be changed as well: their values are put there at once.

        Returns:
            The bytes of the rows that were put there, in the order in which they were; none if one can't be
            read.
        """
        self.make_room(len(rows))
        # In the order of their bytes, as they are stored: what is read for one is in the processor's caches
        # for the next one.
        by_id = dict(zip(self.ids.encoded_many(rows), rows, strict=True))
        ids = sorted(by_id)
        rows = list(map(by_id.__getitem__, ids))
        stored = self._database().get_many(ids)
        if into is None:
            self.keep(dict(zip(rows, stored, strict=True)))
            return []
        found: list[bytes] = stored  # type: ignore[assignment]
        if None in stored:
            self.near.update((row, None) for row, data in zip(rows, stored, strict=True) if data is None)
            ids, rows = list(compress(ids, stored)), list(compress(rows, stored))
            found = list(filter(None, stored))
        loads = pickle.loads  # noqa: S301 - see above
        try:
            given = rows
            if some_have_rows(found):
                self.note_unusual()
                given = list(map(self.ids.given, ids, found))
            into.update(zip(given, map(loads, found), strict=True))
        except Exception:  # noqa: BLE001 - raised when the row is asked for, with its key
            self.keep(dict(zip(rows, found, strict=True)))
            return []
        return ids

    def make_room(self, count: int) -> None:
        """So many rows are to be kept at hand: forget others, if there are too many."""
        if len(self.near) + count > NEAR_ROWS_MAX or self._near_bytes > NEAR_BYTES_MAX:
            self.forget()

    def keep(self, rows: Mapping[Any, bytes | None]) -> None:
        """Have rows at hand, for which there is room."""
        self.near.update(rows)
        self._near_bytes += sum(map(len, filter(None, rows.values())))

    def forget(self) -> None:
        """Have none at hand."""
        self.near.clear()
        self._near_bytes = 0

    def ids_of(self, rows: list[Any], known: list[bytes]) -> list[bytes]:
        """Return the bytes of rows.

        Args:
            known: Those that are known already, and b"" for the others.
        """
        if b"" not in known:
            return known
        others = iter(self.ids.encoded_many([row for row, data in zip(rows, known, strict=True) if not data]))
        return [data or next(others) for data in known]

    def write(self, rows: list[tuple[bytes, Any, Any]]) -> None:
        """Set values, given as (bytes of the row, row, value); `DELETED` takes one away."""
        dumps = pickle.dumps
        try:
            encoded = [(row_id, None if value is DELETED else dumps(value, 5)) for row_id, _, value in rows]
        except Exception as error:  # A value's own __reduce__ may raise anything.
            raise self._unstorable(rows, error) from error
        if not all_plain([row for _, row, _ in rows]):
            self.note_unusual()
            encoded = [
                (row_id, data if data is None or is_plain(row) else with_row(data, row))
                for (row_id, data), (_, row, _) in zip(encoded, rows, strict=True)
            ]
        if self.note is not None:
            for _, data in encoded:
                if data is not None and REFERENCE in data:
                    self.note(data)
        self.row_bytes = 1 + self._database().write(self._changes(encoded)) // (len(encoded) or 1)
        if near := self.near:
            for _, row, _ in rows:
                self._near_bytes -= len(near.pop(row, None) or b"")

    def _changes(self, encoded: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
        """Return all that has to be written so that these rows are in the database."""
        return encoded

    def _unstorable(self, rows: list[tuple[bytes, Any, Any]], error: Exception) -> StateError:
        for _, row, value in rows:
            try:
                pickle.dumps(value, 5)
            except Exception as cause:  # noqa: BLE001 - as in `write`: the same value raises again
                return unstorable(self.name, row, value, cause)
        return StateError(f"state {self.name!r} can't be stored: {type(error).__name__}: {error}")

    def scan(self) -> Iterator[tuple[Any, Any]]:
        """Yield all rows with their values."""
        for data, value in self._database().scan(self.ids.table):
            row = self.ids.given(data, value)
            yield row, loaded(value, f"state {self.name!r} of key {row!r:.120}")

    def of_key(self, key: Any) -> list[Any]:
        """Return the rows of a key."""
        return [self.ids.given(data, value) for data, value in self._database().scan(self.ids.of_key(key))]


class StoredNamedRows(StoredRows):
    """The same of a table of named rows.

    Attributes:
        asked: Names that rows were asked for under, of late: about `NAMES_AHEAD_MAX`, or one more.
    """

    def __init__(self, name: str, ids: RowIds, database: Callable[[], Database]) -> None:
        super().__init__(name, ids, database)
        self.asked: set[Any] = set()

    def get(self, row: Any, default: Any = None) -> Any:
        if len(self.asked) <= NAMES_AHEAD_MAX:
            self.asked.add(row[1])
        return super().get(row, default)


class RocksTable(Table):
    """See `Table`. Several share one database, which the state of the task has.

    Args:
        stored: What it has there.
    """

    def __init__(self, name: str, initial: Callable[[], Any], stored: StoredRows) -> None:
        super().__init__(initial)
        self.name = name
        self._begin(stored)

    def _begin(self, stored: StoredRows) -> None:
        self.stored = stored
        stored.note_unusual = self._note_unusual
        # Of each layer, the oldest frozen one first, the newest last: the bytes of its rows, in the order in
        # which these came there, as far as they are known, and b"" for one that is not.
        self._ids: list[list[bytes]] = [[]]
        self._link_layers()

    @property
    def row_count(self) -> int:
        """How many rows are in the database."""
        return self._base_count

    @property
    def layer_bytes(self) -> int:
        """About how long the rows of the newest layer are, as they would be written."""
        if not self.stored.row_bytes and len(self.values) >= SAMPLED_ROWS:
            self.stored.row_bytes = self._sampled_bytes()
        return len(self.values) * self.stored.row_bytes

    def _sampled_bytes(self) -> int:
        rows = list(islice(self.values.items(), SAMPLED_ROWS))
        try:
            # One by one, as they are written: together they may share what they hold.
            return 1 + sum(len(pickle.dumps(row, protocol=5)) for row in rows) // len(rows)
        except Exception:  # noqa: BLE001 - the checkpoint says which value can't be stored
            return 1

    @property
    def is_free_to_write(self) -> bool:
        """Whether the layer that is next was frozen for no checkpoint, but because it was large."""
        return bool(self._frozen) and not self._frozen[0][0]

    reads_ahead = True

    def fetch(self, rows: Iterable[Any], *, to_change: bool = False) -> None:
        """Read the rows that are not at hand, at once."""
        if not self._base_count:
            return
        missing = list(dict.fromkeys(rows))
        if to_change and self._are_unusual(missing):
            self._bring_given(missing)
        for near in (self.values, self.stored.near, *(layer for _, layer in self._frozen)):
            if near:
                missing = list(filterfalse(near.__contains__, missing))
        if missing and to_change:
            known = self._ids[-1]
            known += [b""] * (len(self.values) - len(known))
            known += self.stored.fetch(missing, self.values)
        elif missing:
            self.stored.fetch(missing)

    def own(self, key: Any, default: Any = None) -> Any:
        """See `Table.own`."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            for layer in self.values.below:
                value = layer.get(key, _ABSENT)
                if value is not _ABSENT:
                    if layer is self.stored:
                        # It was decoded for the caller, so it is not shared.
                        if not (self._has_unusual or type(key) not in PLAIN) or not self._is_unusual(key):
                            self._present = key
                        return value
                    break
            if value is _ABSENT or value is DELETED:
                return default
            if (self._has_unusual or type(key) not in PLAIN) and self._is_unusual(key):
                return owned_copy(value)
        elif value is DELETED:
            return default
        self._present = key
        return owned_copy(value)

    def _note_unusual(self) -> None:
        self._has_unusual = True

    def _given(self, key: Any) -> Any:
        for layer in (self.values, *(layer for _, layer in reversed(self._frozen))):
            if key in layer:
                return key_in(layer, key)
        return self.stored.given(key) if self._base_count else key

    def _drop(self, key: Any) -> None:
        if key in self.values:
            super()._drop(key)
            # They are in the order of the rows.
            self._ids[-1] = []

    def items(self) -> Iterator[tuple[Any, Any]]:
        """See `Table.items`."""
        layers: list[Layer] = [self.values, *(layer for _, layer in reversed(self._frozen))]
        for position, layer in enumerate(layers):
            for row in list(layer):
                if not any(row in one for one in layers[:position]):
                    value = layer.get(row, DELETED)
                    if value is not DELETED:
                        yield row, value
        for row, value in self.stored.scan():
            if not any(row in layer for layer in layers):
                yield row, value

    def rows(self, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[tuple[list[Any], list[Any]]]:
        raise InternalError("what is in RocksDB is stored as its files")

    def complete(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        raise InternalError("layers over RocksDB are written by `writing`")

    def writing(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        """Write the layers of `checkpoint_id` and before it, some rows at a time.

        Look-ups are right between the steps too.

        Args:
            checkpoint_id: 0 for the layers in front of the first one that is frozen for a checkpoint.
        """
        for left in reversed(range(self._layers_up_to(checkpoint_id))):
            layer = self._frozen[0][1]
            newer = [one for _, one in self._frozen[1 : left + 1]]
            for some in self._in_order(layer, self._ids[0], newer):
                if some:
                    self.stored.write(some)
                yield
            self._base_count += layer.growth
            self._frozen.pop(0)
            self._ids.pop(0)
            self._layer_written(is_whole=not newer)
            self._link_layers()

    def _in_order(
        self, layer: Layer, ids: list[bytes], newer: list[Layer]
    ) -> Iterator[list[tuple[bytes, Any, Any]]]:
        """Yield the rows of `layer`, some at a time, as `StoredRows.write` takes them, in the order of their
        bytes: so they are written in a quarter of the time. First come empty lists, while they are sorted.

        Args:
            ids: As far as they are known.
            newer: What is in one of these is written over in the same go, and may be something that can't be
                stored.
        """
        # With the values, which stay as they are: to look each up again, in this order, waits for memory.
        by_group: dict[bytes, list[tuple[bytes, Any, Any]]] = defaultdict(list)
        rows, known = iter(layer.items()), chain(ids, repeat(b""))
        while block := dict(islice(rows, ROWS_PER_STEP)):
            row_ids = self.stored.ids_of(list(block), list(islice(known, len(block))))
            for one in zip(row_ids, block, block.values(), strict=True):
                by_group[one[0][:HEAD_BYTES]].append(one)
            yield []
        waiting: list[tuple[bytes, Any, Any]] = []
        for group in sorted(by_group):
            # By bytes alone: rows can't be compared. One group is a small share of all.
            waiting += sorted(by_group.pop(group), key=itemgetter(0))
            is_last = not by_group
            while len(waiting) >= ROWS_PER_STEP or (is_last and waiting):
                some, waiting = waiting[:ROWS_PER_STEP], waiting[ROWS_PER_STEP:]
                for above in newer:
                    some = [one for one in some if one[1] not in above]
                yield some

    def _layers_up_to(self, checkpoint_id: CheckpointId) -> int:
        ids = [n for n, _ in self._frozen]
        if checkpoint_id:
            return max((at + 1 for at, n in enumerate(ids) if 0 < n <= checkpoint_id), default=0)
        return next((at for at, n in enumerate(ids) if n), len(ids))

    @property
    def held(self) -> Held:
        """See `Table.held`: what is not on disk only."""
        held = super().held
        # One of a list stands for all: keys are about as long as each other.
        ids = sum(
            sys.getsizeof(known) + sum(map(sys.getsizeof, known[-1:])) * len(known) for known in self._ids
        )
        return held._replace(structure_bytes=held.structure_bytes + self.stored.memory_bytes + ids)

    def freeze(self, checkpoint_id: CheckpointId) -> None:
        """See `Table.freeze`."""
        super().freeze(checkpoint_id)
        self._ids.append([])

    def abandon(self, checkpoint_id: CheckpointId) -> None:
        """The layer of `checkpoint_id` need not be told from later changes any more."""
        self._frozen = [(_NONE if n == checkpoint_id else n, layer) for n, layer in self._frozen]

    def expire_after(self, ttl_ms: int) -> None:
        self.expiry = ExpiryByScan(ttl_ms, self.stored.scan)

    def reset(self, row_count: int) -> None:
        """The database is another one, with `row_count` rows of this table."""
        self._frozen.clear()
        self._base_count = row_count
        self._ids = [[]]
        self.stored.forget()
        if self.expiry is not None:
            self.expiry.reset()
        self._begin_layer()
        self.take_changed()

    def _layer_written(self, *, is_whole: bool) -> None:
        """Called when the oldest frozen layer is in the database, but for what the next ones write over."""

    def _link_layers(self) -> None:
        # Where nothing is stored, nothing is looked for: so many processes use some of their tables only.
        stored = (self.stored,) if self._base_count else ()
        self.values.below = (*(layer for _, layer in reversed(self._frozen)), *stored)


class RocksNamedTable(RocksTable, NamedTable):
    """See `NamedTable`. The names of a key are looked up in the database, and in the layers above it."""

    def __init__(self, name: str, stored: StoredNamedRows) -> None:
        NamedTable.__init__(self, name, lists_names=False)
        self._stored = stored
        # Names that came with the changes of each layer, the oldest frozen one first, the newest last.
        self._came: list[dict[Any, set[Any]]] = [{}]
        self._begin(stored)

    def fetch_names(self, keys: Sequence[Any]) -> None:
        """Read what `keys` have under the names that were asked for of late, if these are few."""
        asked, self._stored.asked = self._stored.asked, set()
        if len(asked) <= NAMES_AHEAD_MAX:
            self.fetch((key, name) for name in asked for key in keys)

    def names(self, key: Any) -> list[Any]:
        # The newest first: a row that was removed may have come again with another name that is equal.
        found: set[Any] = set()
        for came in reversed(self._came):
            found |= came.get(key, set())
        found.update(name for _, name in self.stored.of_key(key))
        return in_order(name for name in found if self.has((key, name)))

    def count(self, key: Any) -> int:
        return len(self.names(key))

    def freeze(self, checkpoint_id: CheckpointId) -> None:
        super().freeze(checkpoint_id)
        self._came.append({})

    def reset(self, row_count: int) -> None:
        super().reset(row_count)
        self._came = [{}]

    def _layer_written(self, *, is_whole: bool) -> None:
        came = self._came.pop(0)
        if not is_whole:
            # Rows that the next layers have too are in no database before those are written.
            for key, names in came.items():
                self._came[0].setdefault(key, set()).update(names)

    def _row_came(self, row: Any) -> None:
        key, name = row
        names = self._came[-1].setdefault(key, set())
        names.discard(name)
        names.add(name)


def _nothing() -> None:
    """Do nothing: a reader of rows gets each row with its key."""
