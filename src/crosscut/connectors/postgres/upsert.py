"""Rows of a Postgres table that are written at once, and replaced when they come again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any

from crosscut.connectors.files.rows import checked_row, row_maker
from crosscut.connectors.postgres.writer import PostgresDatabase, checked_conninfo, checked_zone
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.rows import Columns, Table, size_bytes, table_of
from crosscut.connectors.tables.trial import Refused, Row, tried
from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    CommittedOutput,
    Guarantee,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options
from crosscut.protocol.log.history import check_history, check_not_set_back

WAITING_BYTES_MAX = 16 << 20
"""Rows that wait to be written, or are being written; beyond that `write` waits."""

BATCH_BYTES = 4 << 20
"""In one transaction, and one call of `write` more: so `write` does not wait for long."""


@checks_options("postgres.upsert")
def upsert(
    conninfo: str | Environment,
    table: str,
    columns: Columns,
    *,
    key: str | Sequence[str],
    row: Callable[[Any], Any] | None = None,
    time_zone: str | None = None,
) -> Sink:
    """Return a sink that writes rows at once, each in the place of the one with the same key.

    Readers see a row milliseconds after its record, before its checkpoint is complete. After a failure rows
    are written again; a row that comes again replaces itself. So the table ends up as if nothing had failed,
    if the flow is deterministic; meanwhile readers may see a row go back to an older value. Records of
    one key must come from one task (`key_by` in front of the sink): the last one that is written stays.

    Args:
        conninfo: See `crosscut.postgres.sink`.
        table: As for `postgres.sink`.
        columns: As for `postgres.sink`.
        key: Columns that tell rows apart; there must be a unique index on them, and they must not be null.
        row: Takes a record, returns a row. Default: the record itself.
        time_zone: See `crosscut.postgres.sink`.

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
    return PostgresUpsert(checked_conninfo(conninfo), found, row, checked_zone(time_zone))


@dataclass(frozen=True, eq=False)
class PostgresUpsert(Sink):
    """See `upsert`."""

    conninfo: str | Environment
    table: Table
    row: Callable[[Any], Any] | None
    time_zone: str | None = None

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
        database = PostgresDatabase(self.conninfo, self.table, self.time_zone)
        return UpsertWriter(database, to_row, context, location)


class UpsertWriter(SinkWriter):
    """Writes in a thread, one batch after the other; what has come meanwhile is the next batch.

    Each batch is a transaction that locks the marker of the task, as `TableWriter` does. The marker fences: a
    process that is believed dead can't put old values over new ones. It also names the newest complete
    checkpoint that has its rows in the table.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        to_row: Callable[[Any], Row],
        context: SinkContext,
        location: str,
    ) -> None:
        self._database = database
        self._to_row = to_row
        self._context = context
        self._location = location
        self._restored: CommitPermit | None = None
        # For markers of complete checkpoints, and up to which the server has confirmed one to this writer.
        self._noting: PostgresDatabase | None = None
        self._confirmed = CheckpointId(0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-upsert")
        # All below is shared with the thread.
        self._changed = Condition()
        # What each call of `write` has given, with about its size.
        self._waiting: deque[tuple[list[Row], int]] = deque()
        self._waiting_bytes = 0
        self._is_writing = False
        self._taken_count = 0
        self._written_count = 0
        self._rotated_count = 0
        # Rows that the table does not take, with how many had been taken up to each, and why.
        self._refused: deque[tuple[int, Row, str]] = deque()
        # Once a batch is lost no later checkpoint may be complete, whatever becomes of the next batch.
        self._failure: BaseException | None = None

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._restored = permit
        with self._database.transaction() as session:
            marker = session.marker(self._context)
            there = marker.checkpoint_id if marker else CheckpointId(0)
            self._check_history([marker] if marker else [])
            check_not_set_back(self._context, permit, there, self._location)
            session.write_marker(self._context, there)

    def write(self, records: list[Any]) -> None:
        rows = list(map(self._to_row, records))
        rows_bytes = sum(map(size_bytes, rows))
        with self._changed:
            # The task stops meanwhile, and so do its sources.
            self._changed.wait_for(
                lambda: self._failure is not None or self._waiting_bytes < WAITING_BYTES_MAX
            )
            self._raise_failure()
            if not rows:
                return
            self._waiting.append((rows, rows_bytes))
            self._waiting_bytes += rows_bytes
            self._taken_count += len(rows)
            if not self._is_writing:
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
            refused = []
            while self._refused and self._refused[0][0] <= count:
                refused.append(self._refused.popleft())
        for _, row, reason in refused:
            self._refuse(row, reason)
        return {"checkpoint": checkpoint_id, "written": True}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        """Note that a complete checkpoint has the rows, so that it can be seen if they are lost again."""
        if not handles:
            return
        # The thread has the other connection.
        if self._noting is None:
            self._noting = self._database.another()
        with self._noting.transaction() as session:
            marker = session.marker(self._context)
            there = marker.checkpoint_id if marker else CheckpointId(0)
            self._check_history([marker] if marker else [])
            check_not_set_back(self._context, permit, there, self._location, confirmed=self._confirmed)
            session.write_marker(self._context, max(permit.checkpoint_id, there))
        self._confirmed = max(permit.checkpoint_id, there)

    def close(self) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = ConnectorError(f"{self._location}: its writer has been closed")
            self._changed.notify_all()
        if self._noting is not None:
            self._noting.close()
        self._thread.submit(self._database.close)
        self._thread.shutdown(wait=False)

    def _write_all(self) -> None:
        """Write what waits until nothing does. Runs in the thread."""
        while True:
            with self._changed:
                if self._failure is not None or not self._waiting:
                    self._is_writing = False
                    return
                rows: list[Row] = []
                batch_bytes = 0
                while self._waiting and batch_bytes < BATCH_BYTES:
                    some, some_bytes = self._waiting.popleft()
                    rows += some
                    batch_bytes += some_bytes
            failure: BaseException | None = None
            refused: tuple[Refused, ...] = ()
            try:
                refused = self._write_batch(rows)
            except Exception as error:  # noqa: BLE001 - `write` and `prepare` raise it
                failure = error
            with self._changed:
                # What is being written counts as waiting.
                self._waiting_bytes -= batch_bytes
                if failure is None:
                    self._refused += [
                        (self._written_count + one.index + 1, rows[one.index], one.reason) for one in refused
                    ]
                    self._written_count += len(rows)
                elif self._failure is None:
                    self._failure = failure
                self._changed.notify_all()

    def _write_batch(self, rows: list[Row]) -> tuple[Refused, ...]:
        """Write rows in one transaction; return those that become dead letters."""
        with self._database.transaction() as session:
            marker = session.marker(self._context)
            if marker is None:
                raise ConnectorError(
                    f"{self._location}: the marker of task {self._context.task} in crosscut_markers is "
                    f"missing; nothing was written. It is recreated when the job continues"
                )
            self._check_history([marker])
            only_first = self.set_aside is None
            found = tried(rows, self._database.encoded, session.attempt, only_first=only_first).refused
            for one in found if only_first else ():
                # Raises, and nothing of the batch is written.
                self._refuse(rows[one.index], one.reason)
        return found

    def _check_history(self, found: list[CommittedOutput]) -> None:
        # What is written again replaces itself, so an older checkpoint may well be gone on from.
        known = [replace(one, checkpoint_id=CheckpointId(0)) for one in found]
        check_history(self._context, self._restored, known)

    def _refuse(self, row: Row, reason: str) -> None:
        self.refuse(row, f"{self._location}: {reason}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
