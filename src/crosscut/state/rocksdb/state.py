"""The keyed state of a task in RocksDB: frozen by layers, stored as table files that are not there yet.

A barrier puts the changes since the last one aside, as in memory. They are written into the database, a step
at a time, and when all of them are, hard links keep its table files. RocksDB never changes a table file, so a
checkpoint uploads those that the last completed one does not have; its parts are the head, which names the
table files, and those, in that order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

from crosscut.errors import StateError, invariant
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.snapshots import Part
from crosscut.state.encoding import Block
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.layers import ROWS_PER_BLOCK
from crosscut.state.named import NamedTable
from crosscut.state.rocksdb.database import Database, Options, copied, removed, small_files
from crosscut.state.rocksdb.head import Head, ReadPart, decoded_head, is_head, unpack
from crosscut.state.rocksdb.rows import INDEXES_END, TABLES_MAX, RowIds
from crosscut.state.rocksdb.table import (
    ROWS_PER_STEP,
    RocksNamedTable,
    RocksTable,
    StoredNamedRows,
    StoredRows,
)
from crosscut.state.rocksdb.timers import RocksTimerTable, StoredTimers
from crosscut.state.timers import TimerTable

if TYPE_CHECKING:
    from crosscut.state.predecessor_state import PredecessorState

LAYER_ROWS_MAX = 100_000
LAYER_BYTES_MAX = 32 * 1024 * 1024
"""What may change in a table before it is written into the database without a barrier."""
_END: Any = object()
_LOAD_ROWS = 1_000
_NONE = CheckpointId(0)


@dataclass(frozen=True, slots=True)
class Link:
    """What the database was at a checkpoint: hard links in a directory of their own.

    Attributes:
        files: The names of the table files, sorted.
        row_counts: By table.
        next_places: By table of timers; see `StoredTimers`.
    """

    directory: str
    files: tuple[str, ...]
    row_counts: Mapping[str, int]
    next_places: Mapping[str, int]


class RocksState(KeyedState):
    """See `KeyedState`.

    Args:
        directory: Its own, on the worker's disk.
    """

    is_in_memory = False

    def __init__(
        self,
        directory: str,
        options: Options,
        max_parallelism: int,
        initial: Callable[[], Any],
        others: Mapping[str, Callable[[], Any]] | None = None,
        named: Iterable[NamedTable] = (),
        shared: Iterable[str] = (),
        alike: Iterable[str] = (),
        *,
        keeps_keys: bool = False,
        is_often_frozen: bool = True,
    ) -> None:
        # Neither makes a difference here.
        super().__init__(initial, others, named, shared, alike)
        self._directory = directory
        self._options = options
        self._max_parallelism = max_parallelism
        self._database: Database | None = None
        self._numbers = count()
        self._links: dict[CheckpointId, Link] = {}
        self._completed = _NONE
        # Parts by the name of their table file: of the newest completed checkpoint, and of later ones.
        self._parts: dict[str, Part] = {}
        self._stored: dict[CheckpointId, dict[str, Part]] = {}
        # Until its files are linked, nothing newer may be written.
        self._is_storing = False
        # Writes frozen layers, a step at a time: between the batches, and along with each of them.
        self._writer: Iterator[None] | None = None
        self._failure: StateError | None = None
        makers = {MAIN: initial, **(others or {})}
        self._tables: dict[str, RocksTable] = {}
        self._timers: dict[str, StoredTimers] = {}
        invariant(len(self.tables) <= TABLES_MAX, "one task has too many states")
        # From the end, so that a table has the number that it had before there were indexes.
        for number, name in enumerate(sorted(self.tables)):
            ids = RowIds(number, max_parallelism, is_named=name in self.named)
            if isinstance(self.tables[name], TimerTable):
                index = bytes((INDEXES_END - number,))
                timers = self._timers[name] = StoredTimers(name, ids, index, self._opened)
                self._tables[name] = RocksTimerTable(name, timers)
            elif name in self.named:
                named_rows = StoredNamedRows(name, ids, self._opened)
                self._tables[name] = RocksNamedTable(name, named_rows)
            else:
                self._tables[name] = RocksTable(name, makers[name], StoredRows(name, ids, self._opened))
        for one in self._tables.values():
            one.stored.note = self.field_names.note
        maps = [name for name, table in self.named.items() if table.lists_names]
        self.tables = dict(self._tables)
        named_tables = {name: one for name, one in self._tables.items() if isinstance(one, RocksNamedTable)}
        self.named = dict(named_tables)
        self.main = self.tables[MAIN]
        self._plain = [one for name, one in self._tables.items() if name not in self.named]
        # Of the others, only who asks for a row knows its name.
        self._maps = [named_tables[name] for name in maps]

    @property
    def outside_bytes(self) -> int:
        """What RocksDB has in memory for this task: tables to be written, and what it knows of its files.

        Its cache is one for all tasks of the worker, and its size is a setting.
        """
        return self._database.memory_bytes if self._database is not None else 0

    # What operators do.

    def fetch(self, keys: Sequence[Any], *, to_change: bool = False) -> None:
        """Read all stored values of `keys`, which a batch is about, at once."""
        for table in self._plain:
            table.fetch(keys, to_change=to_change)
        for entries in self._maps:
            entries.fetch_names(keys)
        self._write_large_layers(len(keys))

    def replaying(self, changes: bytes, owns: Callable[[Any], bool] | None = None) -> Iterator[None]:
        for _ in super().replaying(changes, owns):
            self._write_large_layers(ROWS_PER_BLOCK)
            yield

    def _write_large_layers(self, row_count: int) -> None:
        """Write layers that have become large; `row_count` rows are going to be changed."""
        if not self._is_storing:
            for table in self._tables.values():
                if len(table.values) > LAYER_ROWS_MAX or table.layer_bytes > LAYER_BYTES_MAX:
                    table.freeze(_NONE)
                if self._writer is None and table.is_free_to_write:
                    self._writer = table.writing(_NONE)
        # As much as comes in, so that what waits is bounded however fast that is; each row takes part in two
        # steps.
        self._advance(2 * (row_count // ROWS_PER_STEP + 1))

    def _advance(self, steps: int) -> None:
        """Go on writing frozen layers. An error is for the checkpoint to tell."""
        try:
            for _ in range(steps):
                if self._writer is not None and next(self._writer, _END) is _END:
                    self._writer = None
        except StateError as error:
            self._writer = None
            self._failure = error

    # What the task does at barriers.

    @property
    def at_hand(self) -> tuple[CheckpointId, ...]:
        if self._database is not None and self._database.is_damaged:
            return ()
        return tuple(n for n in self._links if n >= self._completed)

    @property
    def part_rows(self) -> list[int] | None:
        return None

    def encoded(self, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[bytes]:
        raise StateError("keyed state in RocksDB is stored as its files")

    def writing(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        """Write the layer of `checkpoint_id` into the database, in steps of some rows.

        `link` or `abandon` has to follow.

        Raises:
            StateError: A value can't be stored, or the disk takes no more.
        """
        self._is_storing = True
        self._failure = None
        self._writer = chain.from_iterable(
            table.writing(checkpoint_id) for table in list(self._tables.values())
        )
        while self._writer is not None:
            self._advance(1)
            yield
        if self._failure is not None:
            raise self._failure

    def link(self, checkpoint_id: CheckpointId) -> list[str]:
        """Keep the files that the database has now, and return those that are not stored yet.

        Blocks; to be called in a thread, after `writing`.
        """
        directory = self._new_directory("link")
        # As long as nothing newer is written.
        counts = {name: table.row_count for name, table in self._tables.items()}
        places = {name: timers.next_place for name, timers in self._timers.items()}
        try:
            files = self._opened().link(directory)
        except StateError:
            removed(directory)
            raise
        finally:
            self._is_storing = False
        self._links[checkpoint_id] = Link(directory, tuple(files), counts, places)
        return [os.path.join(directory, name) for name in files if name not in self._parts]

    def head(self, checkpoint_id: CheckpointId) -> bytes:
        """Return the first part of `checkpoint_id`. Blocks."""
        link = self._links[checkpoint_id]
        return Head(
            link.files,
            small_files(link.directory),
            tuple(sorted(self.tables)),
            tuple(sorted(self.named)),
            link.row_counts,
            self._max_parallelism,
            link.next_places,
        ).encoded()

    def stored(self, checkpoint_id: CheckpointId, head: Part, parts: Mapping[str, Part]) -> tuple[Part, ...]:
        """The new files of `checkpoint_id` are stored: return all of its parts.

        Args:
            parts: By the path of the file.
        """
        new = {os.path.basename(path): part for path, part in parts.items()}
        by_name = {name: new.get(name) or self._parts[name] for name in self._links[checkpoint_id].files}
        self._stored[checkpoint_id] = by_name
        return (head, *by_name.values())

    def abandon(self, checkpoint_id: CheckpointId) -> None:
        self._is_storing = False
        self._writer = None
        for table in self._tables.values():
            table.abandon(checkpoint_id)
        self._stored.pop(checkpoint_id, None)
        self._drop_links(lambda n: n == checkpoint_id)

    def complete(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        if checkpoint_id > self._completed and checkpoint_id in self._stored:
            self._completed = checkpoint_id
            self._parts = self._stored[checkpoint_id]
            self._stored = {n: parts for n, parts in self._stored.items() if n > checkpoint_id}
            self._drop_links(lambda n: n < checkpoint_id)
        return iter(())

    def roll_back(self, checkpoint_id: CheckpointId) -> None:
        """Go back to `checkpoint_id`, which must be `at_hand`; reads nothing from the store. Blocks."""
        self.close_database()
        for _ in self.complete(checkpoint_id):
            pass
        self._drop_links(lambda n: n != checkpoint_id)
        self._stored.clear()
        self._is_storing = False
        self._writer = None
        link = self._links[checkpoint_id]
        directory = self._new_directory("live")
        try:
            copied(link.directory, directory)
            self._database = Database(directory, self._options)
        except (OSError, StateError) as error:
            # It is of no use, here or the next time: the store has it.
            self._drop_links(lambda n: True)
            raise StateError(f"can't go back to keyed state in {link.directory}: {error}") from error
        self._set_places(link.next_places)
        self._reset(link.row_counts)

    # What a restore does.

    def restore(
        self,
        parts: Sequence[Part],
        read: ReadPart,
        checkpoint_id: CheckpointId,
        blocks: Callable[[Sequence[Part], ReadPart, str], Iterator[Block]],
    ) -> None:
        """Take in what `parts` say; the state must be empty. Blocks.

        Args:
            blocks: Reads parts of another format as rows, with a path for what that takes on disk: there, or
                beside it under names that begin alike.

        Raises:
            StoreError: A part can't be read, or is damaged.
            StateError: It is no state, or holds one that is unknown here.
        """
        first = read(parts[0]) if parts else b""
        if is_head(first):
            self._take_files(decoded_head(first), parts[1:], read, checkpoint_id)
        else:
            with self._scratch() as scratch:
                self._take_rows(blocks(parts, read, scratch), checkpoint_id)
            self._count_rows()
        self._completed = checkpoint_id
        self.link(checkpoint_id)

    def inherit(
        self, predecessor_state: PredecessorState, read: ReadPart, checkpoint_id: CheckpointId
    ) -> None:
        """Take in what belongs to this task out of the parts of several; the state must be empty. Blocks.

        Raises:
            StoreError, StateError: As `restore`.
        """
        for position, (head, *parts) in enumerate(predecessor_state.chains):
            first = read(head)
            with self._scratch() as scratch:
                if is_head(first):
                    self._copy_rows(
                        decoded_head(first), parts, read, checkpoint_id, scratch, predecessor_state, position
                    )
                else:
                    rows = predecessor_state.blocks(position, self, read, scratch)
                    self._take_rows(rows, checkpoint_id)
        self._count_rows()
        self._completed = checkpoint_id
        self.link(checkpoint_id)

    def _copy_rows(
        self,
        head: Head,
        parts: Sequence[Part],
        read: ReadPart,
        checkpoint_id: CheckpointId,
        scratch: str,
        predecessor_state: PredecessorState,
        position: int,
    ) -> None:
        """Copy rows as they are: those of a key group stand together, so none is asked for its key."""
        self._check_tables(head, checkpoint_id)
        unpack(head, parts, read, scratch)
        source, target = Database(scratch, self._options), self._opened()
        try:
            for name, table in self._tables.items():
                if name in self.alike and position != predecessor_state.copies:
                    continue
                groups = (
                    range(self._max_parallelism) if name in self.shared else predecessor_state.owns.groups
                )
                rows = source.between(*table.stored.ids.bounds(groups))
                timers = self._timers.get(name)
                while some := list(islice(rows, _LOAD_ROWS)):
                    target.write(some if timers is None else [*some, *timers.index_rows(some)])
        finally:
            source.close()

    def _take_files(
        self, head: Head, parts: Sequence[Part], read: ReadPart, checkpoint_id: CheckpointId
    ) -> None:
        self._check_tables(head, checkpoint_id)
        directory = self._new_directory("live")
        unpack(head, parts, read, directory)
        self._database = Database(directory, self._options)
        self._parts = dict(zip(head.files, parts, strict=True))
        if head.next_places is None:
            for timers in self._timers.values():
                timers.build_index(_LOAD_ROWS)
        else:
            self._set_places(head.next_places)
        self._reset(head.row_counts)

    def _check_tables(self, head: Head, checkpoint_id: CheckpointId) -> None:
        expected = (tuple(sorted(self.tables)), tuple(sorted(self.named)), self._max_parallelism)
        found = (head.tables, head.named, head.max_parallelism)
        if found != expected:
            raise StateError(
                f"checkpoint {checkpoint_id} holds the states {list(head.tables)}, with named rows "
                f"{list(head.named)}, in {head.max_parallelism} key groups: expected {list(expected[0])}, "
                f"{list(expected[1])}, {self._max_parallelism}"
            )

    def _take_rows(self, blocks: Iterable[Block], checkpoint_id: CheckpointId) -> None:
        for block in blocks:
            self.check_block(block, checkpoint_id)
            stored = self._tables[block.table].stored
            rows = zip(block.keys, block.values, strict=True)
            while some := list(islice(rows, _LOAD_ROWS)):
                ids = stored.ids.encoded_many([row for row, _ in some])
                stored.write([(row_id, row, value) for row_id, (row, value) in zip(ids, some, strict=True)])

    def _count_rows(self) -> None:
        database = self._opened()
        self._reset({name: database.count(table.stored.ids.table) for name, table in self._tables.items()})

    def _set_places(self, next_places: Mapping[str, int]) -> None:
        for name, timers in self._timers.items():
            timers.next_place = next_places.get(name, 0)

    def _reset(self, row_counts: Mapping[str, int]) -> None:
        for name, table in self._tables.items():
            table.reset(row_counts.get(name, 0))

    # The directories.

    def _opened(self) -> Database:
        if self._database is None:
            self._database = Database(self._new_directory("live"), self._options)
        return self._database

    def _new_directory(self, kind: str) -> str:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        return os.path.join(self._directory, f"{kind}-{next(self._numbers)}")

    @contextmanager
    def _scratch(self) -> Iterator[str]:
        """Give a path for something that is read and not kept; nothing is there yet."""
        directory = self._new_directory("others")
        os.makedirs(directory, mode=0o700)
        try:
            yield os.path.join(directory, "database")
        finally:
            removed(directory)

    def _drop_links(self, which: Callable[[CheckpointId], bool]) -> None:
        for n in list(filter(which, self._links)):
            removed(self._links.pop(n).directory)

    def close_database(self) -> None:
        """Close the database and remove its directory; what links keep stays."""
        database, self._database = self._database, None
        if database is not None:
            database.close()
            removed(database.directory)

    def close(self) -> None:
        """Remove everything."""
        # First: whatever happens here, nothing is at hand any more.
        self._links.clear()
        self.close_database()
        removed(self._directory)
