"""Rows of a Postgres table, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.files.rows import checked_row, row_maker
from crosscut.connectors.postgres.two_phase import TwoPhaseWriter, check_allowed, with_prepared
from crosscut.connectors.postgres.writer import PostgresDatabase, checked_conninfo, checked_zone
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.rows import Columns, Table, table_of
from crosscut.connectors.tables.writer import TableWriter
from crosscut.contracts.connectors import CommittedOutput, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options


@checks_options("postgres.sink")
def sink(
    conninfo: str | Environment,
    table: str,
    columns: Columns,
    *,
    key: str | Sequence[str] | None = None,
    row: Callable[[Any], Any] | None = None,
    two_phase: bool = False,
    time_zone: str | None = None,
) -> Sink:
    """Return a sink that writes records as rows of a table, exactly once.

    The rows of a checkpoint become visible together, in one transaction, once it is complete. Nothing is
    prepared or open between two checkpoints, so no orphan can hold locks or hold VACUUM back. Before its
    checkpoint is complete a row is tried: if the table refuses it, or a column would change one of its values
    (round it, or drop a time of day or a zone), that is an error which names it.

    Args:
        conninfo: As libpq takes it: "host=db dbname=shop user=me", or a URL. Keep the password out of it: in
            ~/.pgpass or PGPASSWORD of driver and workers, or give the whole as `crosscut.environment("DSN")`.
        table: Its name, in the first schema of the search path, or with its schema: "app.counts". A part
            with a dot stands in double quotes. Made if it is not there and `columns` has types.
        columns: Names, in the order of the values of a record, or a dict of names and SQL types.
        key: Rows that are equal in these columns replace each other, the newest wins; there must be a unique
            index on them, and they must not be null. None: append.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.
        two_phase: Rows go to the server at each barrier, as a prepared transaction, instead of into the
            snapshot: for output that is large. The server must allow it (`max_prepared_transactions`, at
            least three for each task of the sink), and there is no `key`. A prepared transaction holds
            its locks, and VACUUM back, until the job commits it, or rolls it back at its next start.
        time_zone: Such as "Europe/Berlin": where times without a zone are that go into a column with one
            (`timestamptz`); and in which a column without a zone gets times that have one. None: such times
            are refused; a column without a zone takes times in UTC.

    Raises:
        ConnectorError: An argument is not as described. Later: the server can't be reached, the table
            does not fit, or it refuses a row.

    Examples:
        >>> import crosscut as cc
        >>> columns = {"word": "text", "count": "bigint"}
        >>> counts = cc.postgres.sink("dbname=shop", "counts", columns, key="word")
    """
    checked_row(row)
    if two_phase and key is not None:
        raise ConnectorError(
            "two_phase=True and key=: a prepared transaction locks the rows that it replaces, and the next "
            "one would wait for it for ever; leave one of them out"
        )
    return PostgresSink(
        checked_conninfo(conninfo),
        table_of(table, columns, key),
        row,
        bool(two_phase),
        checked_zone(time_zone),
    )


@dataclass(frozen=True, eq=False)
class PostgresSink(Sink):
    """See `sink`."""

    conninfo: str | Environment
    table: Table
    row: Callable[[Any], Any] | None
    two_phase: bool = False
    time_zone: str | None = None

    def __repr__(self) -> str:
        return f"crosscut.postgres.sink({self.table.name!r})"

    def describe(self) -> str:
        """Say which table this is, and nothing of how it is reached."""
        return f"Postgres table {self.table.name}"

    def check(self) -> None:
        """Raise ConnectorError if the server can't be reached, or the table is another one."""
        database = PostgresDatabase(self.conninfo, self.table)
        try:
            with database.transaction() as session:
                if self.two_phase:
                    check_allowed(session)
        finally:
            database.close()

    def committed(self) -> Sequence[CommittedOutput]:
        """Return all markers of this table."""
        database = PostgresDatabase(self.conninfo, self.table)
        try:
            with database.transaction() as session:
                return with_prepared(session, self.table.target) if self.two_phase else session.markers()
        finally:
            database.close()

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        to_row = row_maker(self.table.columns, self.row, f"table {self.table.name!r}")
        database = PostgresDatabase(self.conninfo, self.table, self.time_zone)
        if self.two_phase:
            return TwoPhaseWriter(database, self.table.target, to_row, context, self.describe())
        return TableWriter(database, to_row, context, self.describe())
