"""The changes of Postgres tables, in the order of their commits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crosscut.connectors.extras import required
from crosscut.connectors.files.rows import checked_columns
from crosscut.connectors.postgres.changes.catalogue import made_slot, published
from crosscut.connectors.postgres.changes.change import Change
from crosscut.connectors.postgres.changes.parts import Position
from crosscut.connectors.postgres.changes.pgoutput import lsn_number, lsn_text
from crosscut.connectors.postgres.changes.reader import ChangesReader
from crosscut.connectors.postgres.changes.subscription import Subscription
from crosscut.connectors.postgres.values import Infinity, Malformed, checked_options
from crosscut.connectors.postgres.writer import checked_conninfo, connected, shown
from crosscut.connectors.secrets import Environment
from crosscut.contracts.connectors import JSON, Source, Split, SplitReader
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options

_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@checks_options("postgres.changes")
def changes(
    conninfo: str | Environment,
    publication: str,
    slot: str,
    *,
    snapshot: bool = True,
    stop: str | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    malformed: Malformed = "fail",
    infinity: Infinity = "malformed",
) -> Source[Change]:
    """Return a source of the rows of published tables, and then of all that becomes of them, each once.

    The changes are read by logical replication, in the order of commits, as one split. The *slot* keeps them
    at the server until a checkpoint with them is complete; it is made when the job starts with no checkpoint.
    **The server keeps its log for as long as the slot is there**: drop the slot when the job is given up,
    `select pg_drop_replication_slot('...')`, and set `max_slot_wal_keep_size`.

    The server needs `wal_level=logical`, the user the right to replicate, and each table a primary key.

    Args:
        conninfo: See `crosscut.postgres.sink`.
        publication: Says which tables: `create publication orders_out for table orders`. It must be there
            before the job starts for the first time.
        slot: Its name: small letters, digits and underscores. Each job needs one of its own.
        snapshot: Whether the rows that are there at first come, too, each as a change of the kind "snapshot".
        stop: "latest": end where the log ends when the job starts for the first time; or a place in it, such
            as "16/B374D848". None: never.
        columns: By table, with its schema ("public.orders"): which columns records have. Other tables: all.
        malformed: What becomes of a record with a value that Python has none for, such as a year before 1:
            "fail" the job, "skip" it with a warning, or a function. The function takes the record, with the
            texts of such values, and the error, and returns another record.
        infinity: Infinite dates and times are "malformed", or the first and last ones of Python ("limits").

    Raises:
        ConnectorError: An argument is not as described. Later: the server can't be reached or does not allow
            it, the publication is missing, or the slot is gone or no longer has what is to be read.

    Examples:
        >>> import crosscut as cc
        >>> orders = cc.postgres.changes("dbname=shop", "orders_out", "crosscut_orders")
    """
    if not isinstance(publication, str) or not publication or "\0" in publication:
        raise ConnectorError(f"publication={publication!r}: expected the name of a publication")
    if not isinstance(slot, str) or _SLOT.fullmatch(slot) is None:
        raise ConnectorError(
            f"slot={slot!r}: expected up to 63 lowercase letters, digits and underscores, such as 'orders'"
        )
    if stop not in (None, "latest"):
        lsn_number(stop)
    checked_options(malformed, infinity)
    if not isinstance(columns, Mapping | None) or not all("." in one for one in columns or ()):
        raise ConnectorError(
            f"columns={columns!r}: expected columns by table with its schema, such as "
            f"{{'public.orders': ['id']}}"
        )
    chosen = {table: checked_columns(names) for table, names in (columns or {}).items()}
    return PostgresChanges(
        checked_conninfo(conninfo),
        publication,
        slot,
        bool(snapshot),
        stop,
        chosen,
        malformed,
        infinity,
    )


@checks_options("postgres.drop_slot", asks_a_service=True)
def drop_slot(conninfo: str | Environment, slot: str) -> bool:
    """Drop the slot of a job that is over for good, and with it the log that the server keeps for the job.

    Return whether there was one.

    Args:
        conninfo: See `crosscut.postgres.sink`.
        slot: See `changes`.

    Raises:
        ConnectorError: The server can't be reached, or somebody reads with the slot.
    """
    psycopg = required("psycopg", "postgres")
    try:
        connection = connected(checked_conninfo(conninfo))
        try:
            query = (
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s"
            )
            return connection.execute(query, (slot,)).fetchone() is not None
        finally:
            connection.close()
    except psycopg.Error as error:
        raise ConnectorError(f"replication slot {slot!r} can't be dropped: {shown(error)}") from None


@dataclass(frozen=True, eq=False)
class PostgresChanges(Subscription, Source[Change]):
    """See `changes`."""

    def __repr__(self) -> str:
        return f"crosscut.postgres.changes({self.publication!r}, {self.slot!r})"

    @property
    def is_repeatable(self) -> bool:
        """Not while the first rows are read: after a failure another transaction reads the rest of them, and
        a row that was deleted meanwhile comes neither again nor as a change."""
        return not self.snapshot

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Make the slot, if it is not there."""
        psycopg = required("psycopg", "postgres")
        try:
            connection = connected(self.conninfo)
            try:
                published(connection, self.publication, with_rows=self.snapshot)
                lsn = made_slot(connection, self.slot)
                stop = self.stop
                if stop == "latest":
                    (stop,) = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
                    # The log must go on after it, or the reader would never see that the place is reached.
                    connection.execute("select pg_logical_emit_message(true, 'crosscut', 'stop')")
            finally:
                connection.close()
        except psycopg.errors.QueryCanceled as error:
            raise ConnectorError(
                f"{self.describe()}: the slot could not be created: {shown(error)}; creation waits for "
                f"open transactions: look for old ones in pg_stat_activity"
            ) from None
        except psycopg.Error as error:
            raise ConnectorError(f"{self.describe()}: {shown(error)}") from None
        start = Position(lsn, is_reading_rows=self.snapshot).as_json()
        return [Split(self.slot, start, None if stop is None else {"stop": lsn_text(lsn_number(stop))})]

    def reader(self, split: Split, position: JSON) -> SplitReader[Change]:
        """Go on after the last change that was read."""
        match split.detail:
            case None:
                return ChangesReader(self, position, None)
            case {"stop": str(stop)}:
                return ChangesReader(self, position, lsn_number(stop))
            case _:
                pass
        raise ConnectorError(
            f"split {split.split_id!r} is not of changes of Postgres; is the checkpoint of another source?",
            split_id=split.split_id,
        )
