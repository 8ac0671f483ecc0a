"""Rows of a Postgres table that are written at once, and replaced when they come again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from typing import Any

from crosscut.connectors.rows import checked_row, row_maker
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.postgres import PostgresDatabase, checked_conninfo
from crosscut.connectors.tables.rows import Columns, Table, table_of
from crosscut.errors import ConnectorError
from crosscut.ids import CheckpointId
from crosscut.interfaces import JSON, CommitPermit, Guarantee, Sink, SinkContext, SinkWriter
from crosscut.protocol.job.history import check_history


def upsert(
    conninfo: str | Environment,
    table: str,
    columns: Columns,
    *,
    key: str | Sequence[str],
    row: Callable[[Any], Any] | None = None,
) -> Sink:
    """Return a sink that writes rows at once, each in the place of the one with the same key.

    Readers see a row milliseconds after its record, before its checkpoint is complete. After a failure rows
    are written again; a row that comes again replaces itself. So the table ends up as if nothing had failed,
    if the flow is deterministic; meanwhile readers may see a row go back to an older value. Records of
    one key must come from one task (`key_by` in front of the sink): the last one that is written stays.

    Args:
        conninfo: See `crosscut.postgres.sink`.
        table: Likewise.
        columns: Likewise.
        key: Columns that tell rows apart; there must be a unique index on them.
        row: Takes a record, returns a row. Default: the record itself.

    Raises:
        ConnectorError: An argument is not as described. Later: as with `crosscut.postgres.sink`.

    Examples:
        >>> import crosscut as cc
        >>> columns = {"word": "text", "count": "bigint"}
        >>> counts = cc.postgres.upsert("dbname=shop", "counts", columns, key="word")
    """
    checked_row(row)
    found = table_of(table, columns, key)
    if not found.key:
        raise ConnectorError("key=None: expected the columns that tell rows apart, such as key='id'")
    return PostgresUpsert(checked_conninfo(conninfo), found, row)


@dataclass(frozen=True, eq=False)
class PostgresUpsert(Sink):
    """See `upsert`."""

    conninfo: str | Environment
    table: Table
    row: Callable[[Any], Any] | None

    def __repr__(self) -> str:
        return f"crosscut.postgres.upsert({self.table.name!r})"

    @property
    def guarantee(self) -> Guarantee:
        """See `upsert`."""
        return "idempotent"

    def describe(self) -> str:
        """Say which table this is, and nothing of how it is reached."""
        return f"Postgres table {self.table.name}, written at once"

    def check(self) -> None:
        """Raise ConnectorError if the server can't be reached, or the table is another one."""
        database = PostgresDatabase(self.conninfo, self.table)
        try:
            with database.transaction():
                pass
        finally:
            database.close()

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        location = f"Postgres table {self.table.name}"
        to_row = row_maker(self.table.columns, self.row, f"table {self.table.name!r}")
        return UpsertWriter(PostgresDatabase(self.conninfo, self.table), to_row, context, location)


class UpsertWriter(SinkWriter):
    """Writes in a thread, one batch after the other; what has come meanwhile is the next batch.

    Each batch is a transaction that locks the marker of the task, as `TableWriter` does. The marker says no
    checkpoint, but it fences: a process that is believed dead can't put old values over new ones.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        to_row: Callable[[Any], tuple[Any, ...]],
        context: SinkContext,
        location: str,
    ) -> None:
        self._database = database
        self._to_row = to_row
        self._context = context
        self._location = location
        self._restored: CommitPermit | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-upsert")
        # All below is shared with the thread.
        self._changed = Condition()
        self._waiting: list[tuple[Any, ...]] = []
        self._is_writing = False
        self._taken_count = 0
        self._written_count = 0
        self._rotated_count = 0
        # Once a batch is lost no later checkpoint may be complete, whatever becomes of the next batch.
        self._failure: BaseException | None = None

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._restored = permit
        with self._database.transaction() as session:
            marker = session.marker(self._context)
            check_history(self._context, permit, [marker] if marker else [])
            session.mark(self._context, CheckpointId(0))

    def write(self, records: list[Any]) -> None:
        rows = list(map(self._to_row, records))
        with self._changed:
            self._raise_failure()
            self._waiting += rows
            self._taken_count += len(rows)
            if self._waiting and not self._is_writing:
                self._is_writing = True
                self._thread.submit(self._write_all)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        with self._changed:
            if self._taken_count == self._rotated_count:
                return None
            self._rotated_count = self._taken_count
            return checkpoint_id, self._rotated_count

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, count = transaction
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._written_count >= count)
            self._raise_failure()
        return {"checkpoint": checkpoint_id, "written": True}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        """Nothing is left to be done: it has been visible since it was written."""

    def close(self) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = ConnectorError(f"{self._location}: its writer has been closed")
            self._changed.notify_all()
        self._thread.submit(self._database.close)
        self._thread.shutdown(wait=False)

    def _write_all(self) -> None:
        """Write what waits until nothing does. Runs in the thread."""
        while True:
            with self._changed:
                if self._failure is not None or not self._waiting:
                    self._is_writing = False
                    return
                rows, self._waiting = self._waiting, []
            failure: BaseException | None = None
            try:
                self._write_batch(rows)
            except Exception as error:  # noqa: BLE001 - `write` and `prepare` raise it
                failure = error
            with self._changed:
                if failure is None:
                    self._written_count += len(rows)
                elif self._failure is None:
                    self._failure = failure
                self._changed.notify_all()

    def _write_batch(self, rows: list[tuple[Any, ...]]) -> None:
        data = self._database.encoded(rows)
        with self._database.transaction() as session:
            marker = session.marker(self._context)
            if marker is None:
                raise ConnectorError(
                    f"{self._location}: the marker of task {self._context.task} in crosscut_markers is "
                    f"gone; nothing was written. It is made anew when the job goes on"
                )
            check_history(self._context, self._restored, [marker])
            session.insert(data)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
