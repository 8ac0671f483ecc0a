"""Reads tables, then their changes, in a thread of its own: the connection must be answered all the time."""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.postgres.changes.catalogue import PublishedTable, check_slot, published
from crosscut.connectors.postgres.changes.change import Change, ChangedTable, change_of
from crosscut.connectors.postgres.changes.parts import (
    Part,
    Position,
    Seen,
    key_hash_sql,
    position_of,
    rows_left,
)
from crosscut.connectors.postgres.changes.pgoutput import (
    Begin,
    ColumnType,
    Commit,
    Delete,
    Ignored,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
    lsn_number,
    lsn_text,
    parsed,
)
from crosscut.connectors.postgres.changes.stream import SESSION, Data, Keepalive, LogStream
from crosscut.connectors.postgres.changes.subscription import Subscription
from crosscut.connectors.postgres.values import (
    MalformedRecord,
    fetched,
    loaders_of,
    records_of,
    set_loaders,
)
from crosscut.connectors.postgres.writer import LOCK_TIMEOUT_MS, connected, shown
from crosscut.connectors.tables.rows import quoted, size_bytes
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.errors import ConnectorError

Record = Change | MalformedRecord

BUFFERED_MAX = 20_000
"""Changes that wait in Python; the others wait at the server."""

BUFFERED_BYTES_MAX = 32 << 20
"""What these changes may take, as the server has sent them, and one more: a row may have a gigabyte."""

FREE_TIMEOUT_S = 90.0
"""For a slot that a process of before still has: the server takes it for dead after a minute."""

_PAGE_ROWS_FIRST = 16
_PAGE_ROWS_MAX = 4_096
_PAGE_BYTES = 8 << 20
"""Pages of rows: the next one is as large as the rows of the last one allow, and at most twice as long."""

_log = logging.getLogger("crosscut.postgres")

_IDLE_MS = 2.0
_POLL_S = 1.0
_ASKING_S = 0.05


class ChangesReader(SplitReader[Change]):
    """See `PostgresChanges`. The thread fills, `read` takes; each change comes with the position after it."""

    def __init__(self, source: Subscription, position: JSON, stop: int | None) -> None:
        self._source = source
        self._stop = stop
        self._position = position_of(position)
        self._filled = Condition()
        self._buffer: deque[tuple[Record | None, Position, int]] = deque()
        self._buffered_bytes = 0
        self._failure: ConnectorError | None = None
        self._has_ended = False
        # Whether all that was in the log when reading began has come.
        self._has_caught_up = False
        self._is_closed = False
        self._safe_lsn = 0
        self._woken, self._waking = socket.socketpair()
        self._waking.setblocking(False)
        self._thread = Thread(target=self._run, name="crosscut-changes", daemon=True)
        self._thread.start()

    @property
    def position(self) -> JSON:
        return self._position.as_json()

    def read(self, limit: int) -> list[Change] | Wait | EndOfSplit:
        found: list[Change] = []
        with self._filled:
            while self._buffer and len(found) < limit:
                change, position, size_bytes = self._buffer[0]
                if type(change) is Change:
                    found.append(change)
                elif change is not None:
                    try:
                        found += records_of(change, self._source.malformed, self._source.describe())
                    except ConnectorError:
                        # Those before it go out first.
                        if not found:
                            raise
                        break
                self._position = position
                self._buffered_bytes -= size_bytes
                self._buffer.popleft()
            self._filled.notify_all()
            if found:
                return found
            if self._failure is not None:
                raise self._failure
            return EndOfSplit() if self._has_ended else Wait(_IDLE_MS, is_coming=not self._has_caught_up)

    def acknowledge(self, position: JSON) -> None:
        self._safe_lsn = max(self._safe_lsn, position_of(position).lsn)
        self._wake()

    def close(self) -> None:
        with self._filled:
            self._is_closed = True
            self._filled.notify_all()
        self._wake()

    def _wake(self) -> None:
        # A full socket already has a wake-up in it, and a closed one has no reader.
        with suppress(OSError):
            self._waking.send(b".")

    # All below runs in the thread.

    def _run(self) -> None:
        failure: ConnectorError | None = None
        try:
            self._read_all()
        except ConnectorError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the last frame of the thread: `read` raises it
            psycopg = required("psycopg", "postgres")
            reason = shown(error) if isinstance(error, psycopg.Error) else f"{type(error).__name__}: {error}"
            failure = ConnectorError(f"{self._source.describe()}: {reason}")
        with self._filled:
            self._failure = failure
            self._has_ended = failure is None
        self._woken.close()
        self._waking.close()

    def _read_all(self) -> None:
        source, start = self._source, self._position
        at: Position | None = start
        connection = connected(source.conninfo)
        try:
            connection.execute(f"set lock_timeout = {LOCK_TIMEOUT_MS}")
            for setting in SESSION:
                connection.execute(setting)
            set_loaders(connection, source.infinity)
            check_slot(connection, source.slot, start.lsn)
            # What is flushed, since no more than that is sent.
            (end,) = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
            tables = published(
                connection, source.publication, with_rows=bool(start.parts) or start.is_reading_rows
            )
            if start.is_reading_rows:
                at = self._read_rows(connection, tables, start)
        finally:
            connection.close()
        if at is not None:
            self._read_changes(at, {table.name: table.key for table in tables}, lsn_number(end))

    def _put(self, change: Record | None, position: Position, size_bytes: int = 0) -> bool:
        """Hand on a change, and the position after it; return whether somebody still reads."""
        with self._filled:
            if change is None and self._buffer and self._buffer[-1][0] is None:
                self._buffered_bytes -= self._buffer.pop()[2]
            self._buffer.append((change, position, size_bytes))
            self._buffered_bytes += size_bytes
            return not self._is_closed

    def _read_rows(self, connection: Any, tables: list[PublishedTable], at: Position) -> Position | None:
        """Read what is left of the rows that the tables have, all of it in one transaction."""
        connection.execute("begin isolation level repeatable read read only")
        (snapshot,) = connection.execute("select pg_current_snapshot()::text").fetchone()
        by_name = {table.name: table for table in tables}
        parts = at.parts
        for name, after in rows_left(parts, sorted(by_name)):
            table = by_name[name]
            hashed = key_hash_sql(map(quoted, table.key))
            conditions = [f"({table.condition})"] if table.condition else []
            if after:
                conditions.append(f"{hashed} > {_literal(connection, after)}")
            where = f"where {' and '.join(conditions)}" if conditions else ""
            chosen = self._source.columns.get(name, table.names)
            names = [one for one in table.names if one in chosen]
            columns = ", ".join([hashed, *map(quoted, names)])
            connection.execute(
                f"declare crosscut_rows no scroll cursor for select {columns} from {table.sql} "
                f"{where} order by 1"
            )
            page_rows = _PAGE_ROWS_FIRST
            while rows := fetched(connection.execute(f"fetch {page_rows} from crosscut_rows")):
                page_bytes = 0
                for row, reason in rows:
                    row_bytes = size_bytes(row)
                    page_bytes += row_bytes
                    record: Record = Change("snapshot", name, dict(zip(names, row[1:], strict=True)))
                    record = MalformedRecord(record, reason) if reason else record
                    read = Position(at.lsn, 0, (*parts, Part(name, row[0], snapshot)), True)
                    if not self._put(record, read, row_bytes):
                        return None
                fitting = _PAGE_BYTES * len(rows) // page_bytes
                page_rows = max(1, min(fitting, 2 * page_rows, _PAGE_ROWS_MAX))
                if not self._has_room(lambda: None):
                    return None
            connection.execute("close crosscut_rows")
            parts = (*parts, Part(name, None, snapshot))
        (until,) = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
        connection.execute("commit")
        at = Position(at.lsn, 0, parts, False, lsn_number(until))
        return at if self._put(None, at) else None

    def _has_room(self, meanwhile: Callable[[], None]) -> bool:
        """Wait until there is room for more; return whether somebody still reads."""
        while True:
            with self._filled:
                is_full = len(self._buffer) >= BUFFERED_MAX or self._buffered_bytes >= BUFFERED_BYTES_MAX
                if not is_full or self._is_closed:
                    return not self._is_closed
                self._filled.wait(_POLL_S)
            meanwhile()

    def _read_changes(self, at: Position, keys: dict[str, tuple[str, ...]], end_lsn: int) -> None:
        stream = self._opened(at.lsn)
        if stream is None:
            return
        try:
            set_loaders(stream.connection, self._source.infinity)
            changes = _Changes(stream.connection, at, keys, self._source.columns)
            while self._has_room(stream.report) and not self._is_at_end(changes):
                self._has_caught_up = self._has_caught_up or changes.has_reached(end_lsn)
                is_asking = self._stop is not None or not self._has_caught_up
                found = stream.next(_ASKING_S if is_asking else _POLL_S)
                if found is not None:
                    self._take(changes, found)
                elif is_asking:
                    # It tells how far it has come only now and then, or if it is asked.
                    stream.report(asks=True)
            if self._is_at_end(changes):
                slot = self._source.slot
                _log.warning(
                    "all changes have been read; replication slot %r stays, and the server keeps its log "
                    "for it: call crosscut.postgres.drop_slot(conninfo, %r) when the job has finished",
                    slot,
                    slot,
                )
        finally:
            stream.close()

    def _take(self, changes: _Changes, found: Data | Keepalive) -> None:
        if isinstance(found, Keepalive):
            position = changes.kept_alive(found.lsn)
            if position is not None:
                self._put(None, position)
            return
        size_bytes = len(found.payload)
        for change, position in changes.received(parsed(found.payload)):
            self._put(change, position, size_bytes)

    def _is_at_end(self, changes: _Changes) -> bool:
        return self._stop is not None and changes.has_reached(self._stop)

    def _opened(self, lsn: int) -> LogStream | None:
        """Return the stream, as soon as the slot is free."""
        errors = required("psycopg", "postgres").errors
        source, deadline_s = self._source, time.monotonic() + FREE_TIMEOUT_S
        while not self._is_closed:
            try:
                return LogStream(
                    source.conninfo, source.slot, source.publication, lsn, lambda: self._safe_lsn, self._woken
                )
            except errors.ObjectInUse as error:
                if time.monotonic() > deadline_s:
                    raise ConnectorError(
                        f"{source.describe()}: {shown(error)} for {FREE_TIMEOUT_S:g} s: is it used by "
                        f"another job or program? Each needs its own slot"
                    ) from None
                with self._filled:
                    self._filled.wait(0.1)
        return None


class _Changes:
    """Turns the messages of the log into changes, each with the position after it."""

    def __init__(
        self,
        connection: Any,
        at: Position,
        keys: dict[str, tuple[str, ...]],
        columns: Mapping[str, Sequence[str]],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._columns = columns
        self._relations: dict[int, Relation] = {}
        self._tables: dict[int, ChangedTable] = {}
        # Of domains: the type of their values, which are read as that.
        self._types: dict[int, int] = {}
        self.position = at
        self.is_between = True
        self._begin = Begin(0, 0, 0)
        self._count = 0

    def has_reached(self, lsn: int) -> bool:
        """Return whether all transactions that were committed before `lsn` have come."""
        return self.is_between and self.position.lsn >= lsn

    def kept_alive(self, lsn: int) -> Position | None:
        """Return the position that is reached, if it is a new one."""
        if not self.is_between or lsn <= self.position.lsn or self.position.skip:
            return None
        self.position = self._at(lsn)
        return self.position

    def received(self, message: Message) -> list[tuple[Record | None, Position]]:
        """Return the changes of one message."""
        match message:
            case Begin():
                self._begin, self._count, self.is_between = message, 0, False
                return []
            case Commit(_, end_lsn):
                self.is_between = True
                self.position = self._at(end_lsn)
                return [(None, self.position)]
            case ColumnType():
                self._types[message.oid] = self._of_the_server(message)
                return []
            case Relation():
                self._relations[message.oid] = message
                self._tables[message.oid] = self._table(message)
                return []
            case Truncate(oids):
                return [one for oid in oids for one in self._changed(Truncate((oid,)))]
            case Insert() | Update() | Delete():
                return self._changed(message)
            case Ignored():
                return []

    def _changed(self, message: Insert | Update | Delete | Truncate) -> list[tuple[Record | None, Position]]:
        self._count += 1
        at, begin = self.position, self._begin
        if self._count <= at.skip:
            return []
        self.position = Position(at.lsn, self._count, at.parts, False, at.until)
        lsn = lsn_text(begin.commit_lsn)
        found = change_of(message, self._tables, begin.xid, lsn, begin.time_ms)
        return [] if found is None else [(found, self.position)]

    def _at(self, lsn: int) -> Position:
        at = self.position
        if at.until is not None and lsn <= at.until:
            return Position(lsn, 0, at.parts, False, at.until)
        self.position = Position(lsn)
        if at.parts:
            # From here on, what was read before is not needed.
            self._tables = {oid: self._table(one) for oid, one in self._relations.items()}
        return self.position

    def _of_the_server(self, one: ColumnType) -> int:
        """Return the server's own type of that name, as which a query returns a domain; else its own."""
        name = f"{one.name[1:]}[]" if one.name.startswith("_") else one.name
        found = self._connection.adapters.types.get(name) if not one.schema else None
        if found is None:
            return one.oid
        return int(found.array_oid if one.name.startswith("_") else found.oid)

    def _table(self, relation: Relation) -> ChangedTable:
        name = f"{relation.schema}.{relation.name}"
        oids = [self._types.get(column.type_oid, column.type_oid) for column in relation.columns]
        loaders = loaders_of(self._connection, oids)
        seen = Seen(self.position.parts, name) if self.position.parts and name in self._keys else None
        return ChangedTable(relation, self._keys.get(name, ()), loaders, seen, self._columns.get(name))


def _literal(connection: Any, text: str) -> str:
    return str(required("psycopg", "postgres").sql.Literal(text).as_string(connection))
