"""Postgres, through psycopg 3: rows go in by COPY, in the transaction that moves the marker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from reprlib import repr as shortened
from typing import Any
from uuid import UUID

from crosscut.connectors.extras import required
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.rows import Table, quoted
from crosscut.connectors.tables.writer import MARKER_COLUMNS, Database, Session, marker_of
from crosscut.errors import ConnectorError
from crosscut.ids import CheckpointId
from crosscut.interfaces import CommittedOutput, SinkContext

CONNECT_TIMEOUT_S = 15
LOCK_TIMEOUT_MS = 60_000
"""For a lock that somebody else holds on the table or the marker."""

_MARKERS = "crosscut_markers"
_COLUMNS = f"target, {MARKER_COLUMNS}"
_CREATE_MARKERS = f"""
    create table if not exists {_MARKERS} (
        target text not null, lineage text not null, sink text not null, vertex text not null,
        task bigint not null, epoch bigint not null, driver text not null, checkpoint bigint not null,
        primary key (target, lineage, sink, vertex, task))
"""
# Two sessions that make a table at the same moment collide in the catalogue, "if not exists" or not.
_MAKING = "select pg_advisory_xact_lock(hashtext('crosscut tables'))"

_ESCAPES = str.maketrans(
    {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
)


class PostgresDatabase(Database):
    """A table of one server, over one connection at a time."""

    def __init__(self, conninfo: str | Environment, table: Table) -> None:
        self._conninfo = conninfo
        self._table = table
        self._location = f"Postgres table {table.name}"
        self._connection: Any = None

    def encoded(self, rows: list[tuple[Any, ...]]) -> bytes:
        location = self._location
        lines = ["\t".join([_text(value, row, location) for value in row]) for row in rows]
        try:
            return ("\n".join(lines) + "\n").encode()
        except UnicodeEncodeError as error:
            raise ConnectorError(
                f"{location}: text that is no Unicode can't be stored: {error}", is_permanent=True
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[PostgresSession]:
        psycopg = required("psycopg", "postgres")
        try:
            connection = self._connected()
            with connection.transaction():
                yield PostgresSession(connection, self._table, self._location)
        except psycopg.Error as error:
            # Committed or not: the next attempt asks the marker, over a connection of its own.
            self.close()
            raise ConnectorError(f"{self._location}: {shown(error)}") from None

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
        connection.execute(_MAKING)
        connection.execute(_CREATE_MARKERS)
        if table.making:
            connection.execute(table.making)
        found = [
            name
            for (name,) in connection.execute(
                "select attname from pg_attribute where attrelid = to_regclass(%s) and attnum > 0 "
                "and not attisdropped order by attnum",
                (quoted(table.name),),
            )
        ]
        table.check_columns(found, self._location)
        if table.key:
            # Once a connection, not once a transaction: each would leave dead rows in the catalogue.
            connection.execute(
                f"create temporary table crosscut_rows on commit delete rows as "
                f"select {', '.join(map(quoted, table.columns))} from {quoted(table.name)} with no data"
            )
            connection.execute("alter table crosscut_rows add column crosscut_order bigserial")


class PostgresSession(Session):
    """See `Session`."""

    def __init__(self, connection: Any, table: Table, location: str) -> None:
        self._connection = connection
        self._table = table
        self._location = location

    def execute(self, statement: str, *parameters: Any) -> Any:
        """Execute a statement, and return the cursor."""
        return self._connection.execute(statement, parameters or None)

    def marker(self, context: SinkContext) -> CommittedOutput | None:
        task = context.task
        owner = (self._table.name, context.lineage, context.sink_uid, task.vertex, task.index)
        # There must be a row to lock: two who begin at once would both find none.
        made = self._connection.execute(
            f"insert into {_MARKERS} ({_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s, 0) "
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
        return self._markers("order by lineage, sink, vertex, task", (self._table.name,))

    def _markers(self, condition: str, parameters: tuple[Any, ...]) -> tuple[CommittedOutput, ...]:
        rows = self._connection.execute(
            f"select {MARKER_COLUMNS} from {_MARKERS} where target = %s {condition}",
            parameters,
        )
        return tuple(marker_of(self._location, row) for row in rows)

    def mark(self, context: SinkContext, checkpoint_id: CheckpointId) -> None:
        task = context.task
        self._connection.execute(
            f"update {_MARKERS} set epoch = %s, driver = %s, checkpoint = %s "
            "where target = %s and lineage = %s and sink = %s and vertex = %s and task = %s",
            (
                context.epoch,
                context.driver,
                checkpoint_id,
                self._table.name,
                context.lineage,
                context.sink_uid,
                task.vertex,
                task.index,
            ),
        )

    def insert(self, data: bytes) -> int:
        table = self._table
        target, columns = quoted(table.name), ", ".join(map(quoted, table.columns))
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

    def _copied(self, statement: str, data: bytes) -> int:
        cursor = self._connection.cursor()
        with cursor.copy(statement) as copy:
            copy.write(data)
        return int(cursor.rowcount)


def _text(value: Any, row: tuple[Any, ...], location: str) -> str:
    """Return `value` as COPY takes it in its text format."""
    if value is None:
        return "\\N"
    kind = type(value)
    if kind is str:
        if "\0" in value:
            raise ConnectorError(
                f"{location}: text in row {shortened(row)} holds a zero byte, which Postgres refuses"
            )
        return str(value.translate(_ESCAPES))
    if kind is bool:
        return "t" if value else "f"
    if isinstance(value, int | float | Decimal | UUID):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\\\x" + bytes(value).hex()
    if isinstance(value, dict | list | tuple):
        with suppress(TypeError, ValueError):
            return json.dumps(value, allow_nan=False).translate(_ESCAPES)
    raise ConnectorError(
        f"{location}: {shortened(value)} of type {kind.__name__} in row {shortened(row)} can't be stored: "
        "expected "
        f"None, bool, int, float, str, bytes, a date, time or duration, Decimal, UUID, or JSON",
        is_permanent=True,
    )


def checked_conninfo(conninfo: object) -> str | Environment:
    """Return `conninfo` if it can be one.

    Raises:
        ConnectorError: It can't; it is not shown, a password may be in it.
    """
    if isinstance(conninfo, Environment) or (isinstance(conninfo, str) and "\0" not in conninfo):
        return conninfo
    raise ConnectorError("conninfo: expected text as libpq takes it, such as 'host=db dbname=shop'")


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
        "'host=db password=...' a value with a blank stands in single quotes"
    ) from None


def connected(conninfo: str | Environment, **options: str) -> Any:
    """Return a new connection of psycopg, in its autocommit mode."""
    return required("psycopg", "postgres").connect(
        readable_conninfo(conninfo),
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        **{"application_name": "crosscut", **options},
    )


def shown(error: Any) -> str:
    """Return what the server says, without what stands in the connection string."""
    said = error.diag.message_primary or str(error)
    detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
    return f"{type(error).__name__}: {said}{detail}"
