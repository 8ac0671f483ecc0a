"""SQLite: a database in a file, which the driver and all workers share."""

from __future__ import annotations

import binascii
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from crosscut.connectors.files.local_paths import local_path
from crosscut.connectors.files.rows import checked_row, row_maker
from crosscut.connectors.tables.rows import Columns, Table, name_parts, quoted, table_of
from crosscut.connectors.tables.sqlite_values import Affinity, affinity_of, mapped_types, parameter, storer
from crosscut.connectors.tables.trial import Row, RowsRefused, Tried, check_key, tried
from crosscut.connectors.tables.writer import MARKER_COLUMNS, Database, Session, TableWriter, marker_of
from crosscut.contracts.connectors import CommittedOutput, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError, InternalError
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options

LOCK_TIMEOUT_S = 60.0
"""For another writer to end its transaction: there is one at a time in a file."""

MARKERS = "crosscut_markers"
_CREATE_MARKERS = f"""
    create table if not exists {MARKERS} (
        target text not null, lineage text not null, sink text not null, vertex text not null,
        task integer not null, epoch integer not null, driver text not null, checkpoint integer not null,
        primary key (target, lineage, sink, vertex, task))
"""
# Of a table, what its columns are: name, type, whether it takes NULL, has no default and is no rowid.
_COLUMNS = """
    select name, type, "notnull" and dflt_value is null and hidden = 0
    and not (pk and upper(type) = 'INTEGER') from pragma_table_xinfo(?) where hidden in (0, 2, 3)
"""


@checks_options("sqlite.sink")
def sink(
    path: str | os.PathLike[str],
    table: str,
    columns: Columns,
    *,
    key: str | Sequence[str] | None = None,
    row: Callable[[Any], Any] | None = None,
) -> Sink:
    """Return a sink that writes records as rows of a table, exactly once.

    The rows of a checkpoint become visible together, in one transaction, once it is complete. Before
    that they are tried: a row that the table refuses, or whose value a column would change, is an error that
    names it.

    Args:
        path: The database file, on a local file system; made if it is not there.
        table: Its name; made if it is not there and `columns` has types.
        columns: Names, in the order of the values of a record, or a dict of names and types of SQLite.
            A column of text takes str; types that begin with "date", "time", "uuid" or "json" also take such
            values, which are written as text.
        key: Rows that are equal in these columns replace each other, the newest wins; there must be a unique
            index on them, and none of them is None. None: append.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.

    Raises:
        ConnectorError: An argument is not as described. Later: the table does not fit, a record is no
            row of it, or the file stays locked.

    Examples:
        >>> import crosscut as cc
        >>> counts = cc.sqlite.sink("counts.db", "counts", {"word": "text", "count": "integer"}, key="word")
    """
    checked_row(row)
    found = os.path.abspath(local_path(path, "path of the SQLite sink"))
    made = table_of(table, columns, key)
    if name_parts(made.name)[:-1] not in ((), ("main",)):
        raise ConnectorError(
            f"table={table!r}: an SQLite database has only the schema 'main'; put a name with a dot in "
            f"double quotes: '\"{table}\"'"
        )
    return SqliteSink(found, replace(made, types=mapped_types(made.types)), row)


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
        # Of the columns that are written, in order.
        self._storers: list[Callable[[Any], Any]] = []

    def tried(self, rows: Sequence[Row], *, only_first: bool) -> Tried:
        # The file is locked meanwhile, but nothing is written to the disk.
        with self.transaction(rolls_back=True) as session:
            return tried(rows, self._encoded, session.attempt, only_first=only_first)

    def _encoded(self, rows: Sequence[Row]) -> bytes:
        check_key(self._table, rows)
        storers = self._storers
        try:
            return orjson.dumps(
                [[store(value) for store, value in zip(storers, row, strict=True)] for row in rows]
            )
        except ValueError as error:
            raise RowsRefused(f"{error}, column {self._refusing_column(rows)}") from error

    def _refusing_column(self, rows: Sequence[Row]) -> str:
        """Return the column of the first value that can't be stored."""
        for row in rows:
            for name, store, value in zip(self._table.columns, self._storers, row, strict=True):
                try:
                    store(value)
                except ValueError:
                    return name
        raise InternalError("a value was refused, and all are taken now")

    def decoded(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        for row in _held(data, self._location):
            yield dict(zip(self._table.columns, row, strict=True))

    @contextmanager
    def transaction(self, *, rolls_back: bool = False) -> Iterator[_SqliteSession]:
        """See `Database.transaction`.

        Args:
            rolls_back: Nothing of it stays.
        """
        try:
            connection = self._connected()
            connection.execute("begin immediate")
            try:
                yield _SqliteSession(connection, self._table, self._location)
                connection.execute("rollback" if rolls_back else "commit")
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
        (name,) = name_parts(table.name)[-1:]
        found = {
            column: (kind, is_needed) for column, kind, is_needed in connection.execute(_COLUMNS, (name,))
        }
        table.check_columns(list(found), self._location)
        if needed := sorted(one for one in found.keys() - set(table.columns) if found[one][1]):
            raise ConnectorError(
                f"{self._location}: column {', '.join(needed)} must have a value and has no default; add "
                f"it to columns="
            )
        is_strict = connection.execute(
            "select strict from pragma_table_list where schema = 'main' and name = ?", (name,)
        ).fetchone()
        kinds = {column: found[column][0] for column in table.columns}
        self._storers = [
            storer(
                # In a strict table a column of this type takes everything as it is.
                Affinity.BLOB if is_strict == (1,) and kind.upper() == "ANY" else affinity_of(kind),
                # SQLite's own says less where the table was made by an earlier release, or is strict.
                table.types[column] or kind,
            )
            for column, kind in kinds.items()
        ]
        try:
            nothing = (None,) * len(table.columns)
            connection.execute(f"explain {insertion(table)}", nothing)
        except sqlite3.OperationalError as error:
            if "ON CONFLICT" not in str(error):
                raise
            columns = ", ".join(map(quoted, table.key))
            raise ConnectorError(
                f"{self._location} has no unique index on ({columns}), which key= needs: "
                f"'create unique index ... on {table.sql} ({columns})'"
            ) from error


class _SqliteSession(Session):
    def __init__(self, connection: sqlite3.Connection, table: Table, location: str) -> None:
        self._connection = connection
        self._table = table
        self._location = location
        self._insert = insertion(table)

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
            (self._table.target,),
        )
        return tuple(marker_of(self._location, row) for row in rows)

    def write_marker(self, context: SinkContext, checkpoint_id: CheckpointId) -> None:
        task = context.task
        self._connection.execute(
            f"insert or replace into {MARKERS} values (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._table.target,
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
        parameters = _held(data, self._location)
        self._connection.executemany(self._insert, parameters)
        return len(parameters)

    def attempt(self, data: bytes) -> None:
        """Add rows, or raise RowsRefused and add none."""
        self._connection.execute("savepoint crosscut")
        try:
            self.insert(data)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            self._connection.execute("rollback to crosscut")
            raise RowsRefused(str(error)) from error
        self._connection.execute("release crosscut")


def insertion(table: Table) -> str:
    """Return the statement that adds a row; identifiers are quoted, values are parameters."""
    columns = ", ".join(map(quoted, table.columns))
    placeholders = ", ".join("?" * len(table.columns))
    insert = f"insert into {table.sql} ({columns}) values ({placeholders})"
    return f"{insert} {table.replacing}" if table.key else insert


def _held(data: bytes, location: str) -> list[Row]:
    try:
        return [tuple([parameter(value) for value in row]) for row in orjson.loads(data)]
    except (orjson.JSONDecodeError, TypeError, KeyError, binascii.Error) as error:
        raise ConnectorError(f"{location}: {len(data)} bytes held for it can't be read: {error}") from error


def _advice(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return f"; another program has kept it locked for {LOCK_TIMEOUT_S:g} s"
    if "unable to open" in str(error):
        return "; its directory must be there, and writable for the user of the workers"
    return ""
