"""What the database says of a slot, a publication and its tables, before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crosscut.connectors.postgres.changes.pgoutput import lsn_number, lsn_text
from crosscut.errors import ConnectorError

MAKING_TIMEOUT_MS = 60_000
"""For a new slot, which waits for all transactions that are open then."""

# In text: the view has the columns "attnames" and "rowfilter" from Postgres 15 on.
_TABLES = "select to_jsonb(p) from pg_publication_tables p where pubname = %s order by schemaname, tablename"
_COLUMNS = """
    select a.attname, coalesce(a.attnum = any(i.indkey), false), a.attgenerated <> '', c.relreplident::text
    from pg_attribute a join pg_class c on c.oid = a.attrelid
    left join pg_index i on i.indrelid = c.oid and i.indisprimary
    where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped order by a.attnum
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of the publication.

    Attributes:
        name: With its schema, unquoted.
        sql: The same in SQL.
        columns: Those that are published, in SQL.
        names: The same, unquoted.
        key: Of the primary key, unquoted, in the order of the columns.
        condition: Which rows are published, in SQL; "" for all.
    """

    name: str
    sql: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    condition: str


def published(connection: Any, publication: str, *, with_rows: bool) -> list[PublishedTable]:
    """Return the tables of a publication.

    Args:
        with_rows: The rows that are there will be read, so each table needs a key.

    Raises:
        ConnectorError: It is not there, or has no table, or one without a key.
    """
    if not connection.execute("select 1 from pg_publication where pubname = %s", (publication,)).fetchone():
        raise ConnectorError(
            f"publication {publication!r} does not exist: create it, as with 'create publication "
            f"{publication} for "
            f"table orders', before the job starts for the first time"
        )
    rows = [row for (row,) in connection.execute(_TABLES, (publication,))]
    if not rows:
        raise ConnectorError(
            f"publication {publication!r} has no table: 'alter publication {publication} add table orders'"
        )
    return [_table(connection, publication, row, with_rows=with_rows) for row in rows]


def _table(connection: Any, publication: str, row: dict[str, Any], *, with_rows: bool) -> PublishedTable:
    schema, name = row["schemaname"], row["tablename"]
    (sql,) = connection.execute("select format('%%I.%%I', %s::text, %s::text)", (schema, name)).fetchone()
    columns = connection.execute(_COLUMNS, (sql,)).fetchall()
    chosen = row.get("attnames")
    names = [one for one, _, is_generated, _ in columns if not is_generated and one in (chosen or [one])]
    key = [one for one, is_key, _, _ in columns if is_key]
    identity = {one for _, _, _, one in columns}
    table = PublishedTable(f"{schema}.{name}", sql, tuple(names), tuple(key), row.get("rowfilter") or "")
    if with_rows and (not key or not set(key) <= set(names)):
        raise ConnectorError(
            f"table {table.name} of publication {publication!r} has no published primary key: add one, or "
            f"set snapshot=False, which reads changes only"
        )
    if with_rows and not identity <= {"d", "f"}:
        raise ConnectorError(
            f"table {table.name} of publication {publication!r} has a replica identity without its primary "
            f"key: 'alter table {table.name} replica identity default' (or full), or give snapshot=False"
        )
    return table


def made_slot(connection: Any, slot: str) -> int:
    """Return the place from which on a slot keeps the log; make it if it is not there.

    Raises:
        ConnectorError: The server does not allow that, or the slot is another one.
    """
    if connection.execute("select 1 from pg_replication_slots where slot_name = %s", (slot,)).fetchone():
        return slot_lsn(connection, slot)
    (level,) = connection.execute("show wal_level").fetchone()
    if level != "logical":
        raise ConnectorError(
            f"the server has wal_level={level}, but logical replication needs wal_level=logical: set it "
            f"in the configuration, and restart the server"
        )
    connection.execute(f"set statement_timeout = {MAKING_TIMEOUT_MS}")
    row = connection.execute(
        "select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
    ).fetchone()
    connection.execute("reset statement_timeout")
    return lsn_number(row[0])


def slot_lsn(connection: Any, slot: str) -> int:
    """Return the place from which on a slot keeps the log.

    Raises:
        ConnectorError: It is not there, has lost some of it, or is another one.
    """
    row = connection.execute(
        "select plugin, database = current_database(), wal_status, confirmed_flush_lsn::text "
        "from pg_replication_slots where slot_name = %s",
        (slot,),
    ).fetchone()
    if row is None:
        raise ConnectorError(
            f"replication slot {slot!r} no longer exists, and the changes that this job has not read are "
            f"lost; nothing was skipped. Start over with another checkpoint_dir: the job reads the tables "
            f"again",
            is_permanent=True,
        )
    plugin, is_here, status, lsn = row
    if plugin != "pgoutput" or not is_here:
        raise ConnectorError(
            f"replication slot {slot!r} is of plugin {plugin!r}, or of another database: expected one of "
            f"'pgoutput' of this database; choose another name",
            is_permanent=True,
        )
    if status == "lost":
        raise ConnectorError(
            f"replication slot {slot!r} has lost changes that this job has not read, because they "
            f"exceeded max_slot_wal_keep_size; nothing was skipped. Drop it ('select "
            f"pg_drop_replication_slot'), and start over with another checkpoint_dir",
            is_permanent=True,
        )
    return lsn_number(lsn)


def check_slot(connection: Any, slot: str, lsn: int) -> None:
    """Refuse a slot that does not have what is to be read from `lsn` on.

    Raises:
        ConnectorError: See `slot_lsn`; or somebody else has read on with it.
    """
    kept = slot_lsn(connection, slot)
    if kept > lsn:
        raise ConnectorError(
            f"replication slot {slot!r} keeps changes from {lsn_text(kept)} on, and this job has read up to "
            f"{lsn_text(lsn)}: those between are lost, and nothing was skipped. Does another program use "
            f"the slot, or is this an old checkpoint? Start over with another checkpoint_dir",
            is_permanent=True,
        )
