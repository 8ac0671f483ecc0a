"""SQLite: a database in a file, which the driver and all workers share."""

from __future__ import annotations

import base64
import binascii
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from reprlib import repr as shortened
from typing import Any
from uuid import UUID

import orjson

from crosscut.connectors.local_paths import local_path
from crosscut.connectors.rows import row_maker
from crosscut.connectors.tables.rows import Columns, Table, quoted, table_of
from crosscut.connectors.tables.writer import MARKER_COLUMNS, Database, Session, TableWriter, marker_of
from crosscut.errors import ConnectorError
from crosscut.ids import CheckpointId
from crosscut.interfaces import CommittedOutput, Sink, SinkContext, SinkWriter

LOCK_TIMEOUT_S = 60.0
"""For another writer to end its transaction: there is one at a time in a file."""

MARKERS = "crosscut_markers"
_CREATE_MARKERS = f"""
    create table if not exists {MARKERS} (
        target text not null, lineage text not null, sink text not null, vertex text not null,
        task integer not null, epoch integer not null, driver text not null, checkpoint integer not null,
        primary key (target, lineage, sink, vertex, task))
"""
_BYTES = "$bytes"


def sink(
    path: str | os.PathLike[str],
    table: str,
    columns: Columns,
    *,
    key: str | Sequence[str] | None = None,
    row: Callable[[Any], Any] | None = None,
) -> Sink:
    """Return a sink that writes records as rows of a table, exactly once.

    The rows of a checkpoint become visible together, in one transaction, once it is complete.

    Args:
        path: The database file, on a local file system; made if it is not there.
        table: Its name; made if it is not there and `columns` has types.
        columns: Names, in the order of the values of a record, or a dict of names and SQL types.
        key: Rows that are equal in these columns replace each other, the newest wins. None: append.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.

    Raises:
        ConnectorError: An argument is not as described. Later: the table does not fit, a record is no
            row of it, or the file stays locked.

    Examples:
        >>> import crosscut as cc
        >>> counts = cc.sqlite.sink("counts.db", "counts", {"word": "text", "count": "integer"}, key="word")
    """
    if row is not None and not callable(row):
        raise ConnectorError(f"row={row!r}: expected a function that takes a record, or None")
    found = os.path.abspath(local_path(path, "path of the SQLite sink"))
    return SqliteSink(found, table_of(table, columns, key), row)


@dataclass(frozen=True, eq=False)
class SqliteSink(Sink):
    """See `sink`."""

    path: str
    table: Table
    row: Callable[[Any], Any] | None

    def describe(self) -> str:
        """Say which table this is."""
        return f"table {self.table.name} in {self.path}"

    def check(self) -> None:
        """Raise ConnectorError if the file can't be opened, or the table is another one."""
        database = _Sqlite(self.path, self.table)
        try:
            with database.transaction():
                pass
        finally:
            database.close()

    def committed(self) -> Sequence[CommittedOutput]:
        """Return all markers of this table."""
        if not os.path.exists(self.path):
            return ()
        database = _Sqlite(self.path, self.table)
        try:
            with database.transaction() as session:
                return session.markers()
        finally:
            database.close()

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        to_row = row_maker(self.table.columns, self.row, f"table {self.table.name!r}")
        return TableWriter(_Sqlite(self.path, self.table), to_row, context, self.describe())


class _Sqlite(Database):
    def __init__(self, path: str, table: Table) -> None:
        self._path = path
        self._table = table
        self._location = f"table {table.name} in {path}"
        self._connection: sqlite3.Connection | None = None

    def encoded(self, rows: list[tuple[Any, ...]]) -> bytes:
        return orjson.dumps([[_plain(value, row, self._location) for value in row] for row in rows])

    @contextmanager
    def transaction(self) -> Iterator[_SqliteSession]:
        try:
            connection = self._connected()
            connection.execute("begin immediate")
            try:
                yield _SqliteSession(connection, self._table, self._location)
                connection.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("rollback")
                raise
        except sqlite3.Error as error:
            self.close()
            raise ConnectorError(f"{self._location}: {error}{_advice(error)}") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            # One thread at a time uses it, not always the same one.
            connection = sqlite3.connect(
                self._path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                # Readers go on while a checkpoint is committed; each commit is on disk when it returns.
                connection.execute("pragma journal_mode = wal")
                connection.execute("pragma synchronous = full")
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        table = self._table
        connection.execute(_CREATE_MARKERS)
        if table.making:
            connection.execute(table.making)
        found = [row[1] for row in connection.execute(f"pragma table_info({quoted(table.name)})")]
        table.check_columns(found, self._location)


class _SqliteSession(Session):
    def __init__(self, connection: sqlite3.Connection, table: Table, location: str) -> None:
        self._connection = connection
        self._table = table
        self._location = location
        columns = ", ".join(map(quoted, table.columns))
        marks = ", ".join("?" * len(table.columns))
        # Identifiers are quoted, values are parameters.
        self._insert = f"insert into {quoted(table.name)} ({columns}) values ({marks})"
        if table.key:
            self._insert += f" {table.replacing}"

    def marker(self, context: SinkContext) -> CommittedOutput | None:
        task = context.task
        return next(
            (
                one
                for one in self.markers()
                if (one.lineage, one.sink_uid, one.task) == (context.lineage, context.sink_uid, task)
            ),
            None,
        )

    def markers(self) -> tuple[CommittedOutput, ...]:
        """Return the markers of all tasks that have ever written to the table."""
        rows = self._connection.execute(
            f"select {MARKER_COLUMNS} from {MARKERS} where target = ? order by lineage, sink, vertex, task",
            (self._table.name,),
        )
        return tuple(marker_of(self._location, row) for row in rows)

    def mark(self, context: SinkContext, checkpoint_id: CheckpointId) -> None:
        task = context.task
        self._connection.execute(
            f"insert or replace into {MARKERS} values (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._table.name,
                context.lineage,
                context.sink_uid,
                task.vertex,
                task.index,
                context.epoch,
                context.driver,
                checkpoint_id,
            ),
        )

    def insert(self, data: bytes) -> int:
        try:
            rows = orjson.loads(data)
            parameters = [tuple([_stored(value) for value in row]) for row in rows]
        except (orjson.JSONDecodeError, TypeError, ValueError, KeyError, binascii.Error) as error:
            raise ConnectorError(
                f"{self._location}: {len(data)} bytes held for it can't be read: {error}"
            ) from error
        self._connection.executemany(self._insert, parameters)
        return len(parameters)


def _plain(value: Any, row: tuple[Any, ...], location: str) -> Any:
    """Return `value` as JSON that says which SQLite value it is."""
    kind = type(value)
    if value is None or kind in (str, bool) or (kind is int and -(2**63) <= value < 2**63):
        return value
    if kind is float and value == value and abs(value) != float("inf"):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, dict | list | tuple):
        with suppress(orjson.JSONEncodeError):
            return orjson.dumps(value).decode()
    raise ConnectorError(
        f"{location}: {shortened(value)} of type {kind.__name__} in row {shortened(row)} can't be stored: "
        "expected "
        f"None, bool, int of 64 bits, finite float, str, bytes, a date or time, Decimal, UUID, or JSON",
        is_permanent=True,
    )


def _stored(value: Any) -> Any:
    return base64.b64decode(value[_BYTES], validate=True) if isinstance(value, dict) else value


def _advice(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return f"; another program has kept it locked for {LOCK_TIMEOUT_S:g} s"
    if "unable to open" in str(error):
        return "; its directory must be there, and writable for the user of the workers"
    return ""
