"""Postgres, through psycopg 3: rows go in by COPY, in the transaction that moves the marker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crosscut.connectors.extras import required
from crosscut.connectors.postgres.shape import Shape, collisions, shape_of, temporary_table
from crosscut.connectors.postgres.text import lines_of, texter
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.rows import Table, quoted
from crosscut.connectors.tables.trial import Row, RowsRefused, Tried, check_key, tried
from crosscut.connectors.tables.writer import MARKER_COLUMNS, Database, Session, marker_of
from crosscut.contracts.connectors import CommittedOutput, SinkContext
from crosscut.errors import ConnectorError, InternalError
from crosscut.foundation.ids import CheckpointId

CONNECT_TIMEOUT_S = 15

SESSION = {"client_encoding": "UTF8"}
"""Of every connection: text is written as UTF-8, whatever the database has it in."""

_KEEPALIVES = {"keepalives_idle": "20", "keepalives_interval": "10", "keepalives_count": "4"}
"""Unless the connection string has others: so a host that is gone is noticed within a minute."""

LOCK_TIMEOUT_MS = 60_000
"""For a lock that somebody else holds on the table or the marker."""

MARKERS = "crosscut_markers"
_COLUMNS = f"target, {MARKER_COLUMNS}"
_CREATE_MARKERS = f"""
    create table if not exists {MARKERS} (
        target text not null, lineage text not null, sink text not null, vertex text not null,
        task bigint not null, epoch bigint not null, driver text not null, checkpoint bigint not null,
        primary key (target, lineage, sink, vertex, task))
"""
# Two sessions that make a table at the same moment collide in the catalogue, "if not exists" or not.
_MAKING = "select pg_advisory_xact_lock(hashtext('crosscut tables'))"

# Of values that the server refuses in any try: data, constraints, a view's check, limits of size, triggers.
_REFUSALS = ("22", "23", "44", "54", "P0")
_COLUMN = re.compile(r"^COPY .*?, line \d+, column ([^:]+?)(:|$)")


class PostgresDatabase(Database):
    """A table of one server, over one connection at a time."""

    def __init__(self, conninfo: str | Environment, table: Table, time_zone: str | None = None) -> None:
        self._conninfo = conninfo
        self._table = table
        self._location = f"Postgres table {table.name}"
        self._zone = None if time_zone is None else ZoneInfo(time_zone)
        self._connection: Any = None
        # Known as soon as there is a connection.
        self._shape = Shape((), (), (), is_tried_in_place=True)
        self._texters: list[Callable[[Any], str]] = []

    def another(self) -> PostgresDatabase:
        """Return the same table over a connection of its own."""
        return PostgresDatabase(self._conninfo, self._table, self._zone.key if self._zone else None)

    def tried(self, rows: Sequence[Row], *, only_first: bool) -> Tried:
        for is_last in (False, True):
            try:
                return self._tried_once(rows, only_first=only_first)
            except ConnectorError:
                # The server was restarted since the last checkpoint, perhaps; then the next connection works.
                if is_last or self._connection is not None:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _tried_once(self, rows: Sequence[Row], *, only_first: bool) -> Tried:
        with self._opened() as connection:
            is_in_place = self._shape.is_tried_in_place
            # The temporary table is emptied at the end of the transaction only if that is kept.
            with connection.transaction(force_rollback=is_in_place):
                session = PostgresSession(connection, self._table, self._location)
                if is_in_place:
                    # Those that are checked at the end of a transaction otherwise.
                    connection.execute("set constraints all immediate")
                    return tried(rows, self.encoded, session.attempt, only_first=only_first)
                if self._shape.unique:
                    # Of the rows that are tried nothing is known: whole tables must not be read for them.
                    for way in ("hashjoin", "mergejoin", "seqscan"):
                        connection.execute(f"set local enable_{way} = off")
                found = collisions(self._table, self._shape)
                return tried(
                    rows, self.encoded, lambda data: session.try_aside(data, found), only_first=only_first
                )

    def encoded(self, rows: Sequence[Row]) -> bytes:
        """Return rows, at least one, as COPY takes them.

        Raises:
            RowsRefused: A value can't be written as its column needs it.
        """
        check_key(self._table, rows)
        texters = self._texters
        try:
            lines = [
                "\t".join([text(value) for text, value in zip(texters, row, strict=True)]) for row in rows
            ]
            return ("\n".join(lines) + "\n").encode()
        except (ValueError, OverflowError) as error:
            raise RowsRefused(f"{error}, column {self._refusing_column(rows)}") from error

    def _refusing_column(self, rows: Sequence[Row]) -> str:
        """Return the column of the first value that can't be written."""
        for row in rows:
            for name, text, value in zip(self._table.columns, self._texters, row, strict=True):
                try:
                    text(value).encode()
                except (ValueError, OverflowError):
                    return name
        raise InternalError("a value was refused, and all are taken now")

    def decoded(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        for line in lines_of(data):
            yield dict(zip(self._table.columns, line, strict=True))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        psycopg = required("psycopg", "postgres")
        try:
            yield self._connected()
        except psycopg.Error as error:
            # Committed or not: the next attempt asks the marker, over a connection of its own.
            self.close()
            raise ConnectorError(f"{self._location}: {shown(error)}") from None

    @contextmanager
    def transaction(self) -> Iterator[PostgresSession]:
        with self._opened() as connection, connection.transaction():
            yield PostgresSession(connection, self._table, self._location)

    @contextmanager
    def outside_transactions(self) -> Iterator[PostgresSession]:
        """Give out the connection for statements that are each a transaction, or begin one themselves."""
        psycopg = required("psycopg", "postgres")
        try:
            yield PostgresSession(self._connected(), self._table, self._location)
        except BaseException as error:
            # With it goes a transaction that was begun.
            self.close()
            if isinstance(error, psycopg.Error):
                raise ConnectorError(f"{self._location}: {shown(error)}") from None
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            connection = connected(self._conninfo)
            try:
                # Not as `options`: those that conninfo names, a search path perhaps, would be lost.
                connection.execute(f"set lock_timeout = {LOCK_TIMEOUT_MS}")
                connection.execute("set synchronous_commit = on")
                with connection.transaction():
                    self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: Any) -> None:
        table = self._table
        made_if_missing(
            connection, {MARKERS: _CREATE_MARKERS, **({table.sql: table.making} if table.making else {})}
        )
        self._shape = shape = shape_of(connection, table, self._location)
        self._texters = [texter(kind, self._zone) for kind in shape.types]
        if table.key or not shape.is_tried_in_place:
            for statement in temporary_table(table, shape):
                connection.execute(statement)


def made_if_missing(connection: Any, tables: Mapping[str, str]) -> None:
    """Make tables that are not there.

    A user that may make none uses those that are there: "if not exists" asks for the right in any case.

    Args:
        tables: By their name in SQL, the statements that make them.

    Raises:
        ConnectorError: One is missing, and can't be made.
    """
    for name, statement in tables.items():
        if connection.execute("select to_regclass(%s) is null", (name,)).fetchone() == (True,):
            errors = required("psycopg", "postgres").errors
            connection.execute(_MAKING)
            try:
                connection.execute(statement)
            except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
                raise ConnectorError(
                    f"table {name} does not exist, and this user can't create it: {shown(error)}. Create "
                    f"it, with privileges to select, insert and update: {' '.join(statement.split())}"
                ) from None


class PostgresSession(Session):
    """See `Session`."""

    def __init__(self, connection: Any, table: Table, location: str) -> None:
        self._connection = connection
        self._table = table
        self._location = location

    def execute(self, statement: str, *parameters: Any) -> Any:
        """Execute a statement, and return the cursor."""
        return self._connection.execute(statement, parameters or None)

    def make(self, tables: Mapping[str, str]) -> None:
        """See `made_if_missing`."""
        made_if_missing(self._connection, tables)

    def marker(self, context: SinkContext) -> CommittedOutput | None:
        task = context.task
        owner = (self._table.target, context.lineage, context.sink_uid, task.vertex, task.index)
        # There must be a row to lock: two who begin at once would both find none.
        made = self._connection.execute(
            f"insert into {MARKERS} ({_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s, 0) "
            "on conflict do nothing",
            (*owner, context.epoch, context.driver),
        ).rowcount
        if made:
            return None
        (found,) = self._markers(
            "and lineage = %s and sink = %s and vertex = %s and task = %s for update", owner
        )
        return found

    def markers(self) -> tuple[CommittedOutput, ...]:
        """Return the markers of all tasks that have ever written to the table."""
        return self._markers("order by lineage, sink, vertex, task", (self._table.target,))

    def _markers(self, condition: str, parameters: tuple[Any, ...]) -> tuple[CommittedOutput, ...]:
        rows = self._connection.execute(
            f"select {MARKER_COLUMNS} from {MARKERS} where target = %s {condition}",
            parameters,
        )
        return tuple(marker_of(self._location, row) for row in rows)

    def write_marker(self, context: SinkContext, checkpoint_id: CheckpointId) -> None:
        task = context.task
        self._connection.execute(
            f"update {MARKERS} set epoch = %s, driver = %s, checkpoint = %s "
            "where target = %s and lineage = %s and sink = %s and vertex = %s and task = %s",
            (
                context.epoch,
                context.driver,
                checkpoint_id,
                self._table.target,
                context.lineage,
                context.sink_uid,
                task.vertex,
                task.index,
            ),
        )

    def insert(self, data: bytes) -> int:
        if not data:
            return 0
        table = self._table
        target, columns = table.sql, ", ".join(map(quoted, table.columns))
        if not table.key:
            return self._copied(f"copy {target} ({columns}) from stdin", data)
        # A key may come more than once in a checkpoint: the order of arrival decides.
        count = self._copied(f"copy crosscut_rows ({columns}) from stdin", data)
        keys = ", ".join(map(quoted, table.key))
        self._connection.execute(
            f"insert into {target} ({columns}) select distinct on ({keys}) {columns} "
            f"from crosscut_rows order by {keys}, crosscut_order desc {table.replacing}"
        )
        self._connection.execute("truncate crosscut_rows")
        return count

    def attempt(self, data: bytes) -> int:
        """Add rows, or raise RowsRefused and add none."""
        with self._refusing():
            return self.insert(data)

    def try_aside(self, data: bytes, collisions: Sequence[tuple[str, str]]) -> None:
        """Add rows to the temporary table, or raise RowsRefused and add none.

        Args:
            collisions: Queries that find a row which is forbidden, with the reason.
        """
        columns = ", ".join(map(quoted, self._table.columns))
        with self._refusing():
            self._copied(f"copy crosscut_rows ({columns}) from stdin", data)
            for query, reason in collisions:
                if self._connection.execute(query).fetchone() is not None:
                    raise RowsRefused(reason)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        psycopg = required("psycopg", "postgres")
        try:
            with self._connection.transaction():
                yield
        except psycopg.Error as error:
            if error.sqlstate is None or not error.sqlstate.startswith(_REFUSALS):
                raise
            raise RowsRefused(_reason(error)) from error

    def _copied(self, statement: str, data: bytes) -> int:
        cursor = self._connection.cursor()
        with cursor.copy(statement) as copy:
            copy.write(data)
        return int(cursor.rowcount)


def _reason(error: Any) -> str:
    """Return why the server refuses rows, with the column if it says which."""
    of_copy = _COLUMN.match(error.diag.context or "")
    column = error.diag.column_name or (of_copy[1] if of_copy else None)
    return shown(error) + (f", column {column}" if column else "")


def checked_conninfo(conninfo: object) -> str | Environment:
    """Return `conninfo` if it can be one.

    Raises:
        ConnectorError: It can't; it is not shown, a password may be in it.
    """
    if isinstance(conninfo, Environment) or (isinstance(conninfo, str) and "\0" not in conninfo):
        return conninfo
    raise ConnectorError("conninfo: expected text as libpq takes it, such as 'host=db dbname=shop'")


def checked_zone(time_zone: object) -> str | None:
    """Return `time_zone` if it is one, or None.

    Raises:
        ConnectorError: It is not.
    """
    if time_zone is None:
        return None
    with suppress(ValueError, OSError, ZoneInfoNotFoundError):
        if isinstance(time_zone, str):
            return ZoneInfo(time_zone).key
    raise ConnectorError(
        f"time_zone={time_zone!r}: expected the name of a time zone, such as 'UTC' or 'Europe/Berlin'"
    )


def readable_conninfo(conninfo: str | Environment) -> str:
    """Return `conninfo` as libpq takes it.

    Raises:
        ConnectorError: libpq can't read it, or takes a part of the password for something else. It would say
            which part, so nothing of it is shown.
    """
    text = conninfo.value() if isinstance(conninfo, Environment) else conninfo
    try:
        found = required("psycopg.conninfo", "postgres").conninfo_to_dict(text)
    except required("psycopg", "postgres").ProgrammingError:
        found = None
    if found is not None:
        # "@" begins the name of an abstract socket, and is in no name of a host.
        hosts, ports = str(found.get("host", "")).split(","), str(found.get("port", "")).split(",")
        if not any("@" in one[1:] for one in hosts) and all(one.isdigit() for one in ports if one):
            return text
    raise ConnectorError(
        "conninfo can't be read (it is not shown, a password may be in it): expected text as libpq takes it. "
        "In a URL the characters @ : / and % of a password are written %40 %3A %2F and %25; in the form "
        "'host=db password=...' put a value with a blank in single quotes"
    ) from None


def connected(conninfo: str | Environment, **options: str) -> Any:
    """Return a new connection of psycopg, in its autocommit mode."""
    text = readable_conninfo(conninfo)
    return required("psycopg", "postgres").connect(
        text,
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        **{"application_name": "crosscut", **session_of(text), **options},
    )


def session_of(text: str) -> dict[str, str]:
    """Return the options of every connection with a connection string, as libpq takes them."""
    ours = required("psycopg.conninfo", "postgres").conninfo_to_dict(text)
    return {**{name: value for name, value in _KEEPALIVES.items() if name not in ours}, **SESSION}


def shown(error: Any) -> str:
    """Return what the server says, without what stands in the connection string."""
    message = error.diag.message_primary or str(error)
    detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
    return f"{type(error).__name__}: {message}{detail}"
