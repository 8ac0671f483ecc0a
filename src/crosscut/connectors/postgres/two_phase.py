"""Rows that wait at the server, as prepared transactions, until their checkpoint is complete.

Each prepared transaction carries a row that says which checkpoint it is of. So once it is committed, that
can be seen, whatever happened to the answer. The marker of the task, which fences, can't be in it: the lock
of one prepared transaction would hold up the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.postgres.writer import PostgresDatabase, PostgresSession
from crosscut.connectors.tables.trial import RowsRefused
from crosscut.connectors.tables.writer import accepted
from crosscut.contracts.connectors import JSON, CommitPermit, CommittedOutput, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.log.history import check_history, check_not_set_back

_PREPARED = "crosscut_prepared"
PREPARED = {
    _PREPARED: f"""
    create table if not exists {_PREPARED} (
        target text not null, lineage text not null, sink text not null, vertex text not null,
        task bigint not null, checkpoint bigint not null,
        primary key (target, lineage, sink, vertex, task, checkpoint))
"""
}
_OURS = "target = %s and lineage = %s and sink = %s and vertex = %s and task = %s"


def check_allowed(session: PostgresSession) -> None:
    """Raise ConnectorError if the server prepares no transactions."""
    (most,) = session.execute("show max_prepared_transactions").fetchone()
    if most == "0":
        raise ConnectorError(
            "two_phase=True: the server has max_prepared_transactions=0, so it can't prepare "
            "transactions. Set it to at least three for each task of the sink, and restart the server; or "
            "leave two_phase out: then the snapshot holds the rows, and the server needs no setting"
        )
    session.make(PREPARED)


def with_prepared(session: PostgresSession, table: str) -> tuple[CommittedOutput, ...]:
    """Return the markers of a table, each with what was committed after it was written last."""
    (is_there,) = session.execute("select to_regclass(%s) is not null", _PREPARED).fetchone()
    newest: dict[tuple[Any, ...], int] = {}
    if is_there:
        query = f"select lineage, sink, vertex, task, max(checkpoint) from {_PREPARED} where target = %s"
        for *owner, n in session.execute(f"{query} group by 1, 2, 3, 4", table):
            newest[tuple(owner)] = n
    return tuple(
        [
            replace(one, checkpoint_id=CheckpointId(max(one.checkpoint_id, newest.get(_owner_of(one), 0))))
            for one in session.markers()
        ]
    )


def _owner_of(one: CommittedOutput) -> tuple[Any, ...]:
    return one.lineage, one.sink_uid, one.task.vertex, one.task.index


class TwoPhaseWriter(SinkWriter):
    """See the module.

    Args:
        table: The name of the table that is written to, as markers have it.
        to_row: Makes a row of a record.
        location: What errors call the table.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        table: str,
        to_row: Callable[[Any], tuple[Any, ...]],
        context: SinkContext,
        location: str,
    ) -> None:
        self._database = database
        self._to_row = to_row
        self._context = context
        self._location = location
        task = context.task
        self._owner = (table, context.lineage, context.sink_uid, task.vertex, task.index)
        digest = blake2b(json.dumps(self._owner).encode(), digest_size=20).hexdigest()
        # Unique in all databases of the server, and the same for this task in all epochs.
        self._prefix = f"crosscut-{digest}-"
        self._restored: CommitPermit | None = None
        # Up to there the server has confirmed the commit to this writer.
        self._confirmed = CheckpointId(0)
        self._open: list[tuple[Any, ...]] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._restored = permit
        pending = [self._checked(handle) for handle in handles]
        with self._database.transaction() as session:
            session.make(PREPARED)
            marker = session.marker(self._context)
            there = max(marker.checkpoint_id if marker else 0, self._newest(session))
            if marker is not None:
                check_history(self._context, permit, [replace(marker, checkpoint_id=CheckpointId(there))])
            check_not_set_back(self._context, permit, CheckpointId(there), self._location)
            session.write_marker(self._context, CheckpointId(there))
        self._commit(permit, pending)
        self._sweep()

    def write(self, records: list[Any]) -> None:
        self._open += map(self._to_row, records)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self._open:
            return None
        rows, self._open = self._open, []
        return checkpoint_id, rows

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, rows = transaction
        name = f"{self._prefix}{self._context.epoch}-{checkpoint_id}"
        try:
            return self._prepared(checkpoint_id, name, len(rows), self._database.encoded(rows))
        except RowsRefused:
            # Rows are tried only then: to prepare them is a try, too.
            count, data = accepted(self, self._database, rows, self._location)
        try:
            return self._prepared(checkpoint_id, name, count, data)
        except RowsRefused as error:
            raise ConnectorError(f"{self._location}: {error.reason}") from error

    def _prepared(self, checkpoint_id: CheckpointId, name: str, count: int, data: bytes) -> JSON:
        with self._database.outside_transactions() as session:
            self._check_epoch(session)
            session.execute("begin")
            # While it can be told which row is refused, not at the end.
            session.execute("set constraints all immediate")
            session.attempt(data)
            session.execute(
                f"insert into {_PREPARED} values (%s, %s, %s, %s, %s, %s)", *self._owner, checkpoint_id
            )
            session.execute(f"prepare transaction '{name}'")
            # A newer epoch that began before this was prepared is seen now; one that begins later sees it.
            try:
                self._check_epoch(session)
            except ConnectorError:
                session.execute(f"rollback prepared '{name}'")
                raise
        return {"checkpoint": checkpoint_id, "prepared": name, "rows": count}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._commit(permit, [self._checked(handle) for handle in handles])

    def close(self) -> None:
        self._database.close()

    def _commit(self, permit: CommitPermit | None, pending: Sequence[tuple[CheckpointId, str]]) -> None:
        if not pending:
            return
        with self._database.transaction() as session:
            marker = session.marker(self._context)
            there = CheckpointId(max(marker.checkpoint_id if marker else 0, self._newest(session)))
            check_not_set_back(self._context, permit, there, self._location, confirmed=self._confirmed)
            self._checked_marker(marker)
        for checkpoint_id, name in pending:
            with self._database.outside_transactions() as session:
                self._commit_one(session, checkpoint_id, name)
        with self._database.transaction() as session:
            marker = self._check_epoch(session)
            up_to = max(pending)[0]
            session.write_marker(self._context, max(up_to, marker.checkpoint_id))
            # The marker says it from now on.
            session.execute(
                f"delete from {_PREPARED} where {_OURS} and checkpoint <= %s", *self._owner, up_to
            )
        self._confirmed = max(self._confirmed, up_to)
        # The server may have been at it still when `recover` looked, for a process that is dead.
        self._sweep()

    def _commit_one(self, session: PostgresSession, checkpoint_id: CheckpointId, name: str) -> None:
        errors = required("psycopg", "postgres").errors
        try:
            session.execute(f"commit prepared '{name}'")
        except errors.UndefinedObject:
            marker = session.marker(self._context)
            if checkpoint_id <= max(marker.checkpoint_id if marker else 0, self._newest(session)):
                return
            raise ConnectorError(
                f"{self._location}: the rows of checkpoint {checkpoint_id}, prepared as {name!r}, are "
                f"missing and not committed: they were rolled back, or the database was restored from an "
                f"old backup. They can't be recreated. Start over with another checkpoint_dir and another "
                f"table"
            ) from None

    def _check_epoch(self, session: PostgresSession) -> CommittedOutput:
        """Return the marker, if it is still ours."""
        return self._checked_marker(session.marker(self._context))

    def _checked_marker(self, marker: CommittedOutput | None) -> CommittedOutput:
        if marker is None:
            raise ConnectorError(
                f"{self._location}: the marker of task {self._context.task} in crosscut_markers is "
                f"missing; it is recreated when the job continues"
            )
        check_history(self._context, self._restored, [marker])
        return marker

    def _newest(self, session: PostgresSession) -> int:
        query = f"select coalesce(max(checkpoint), 0) from {_PREPARED} where {_OURS}"
        return int(session.execute(query, *self._owner).fetchone()[0])

    def _sweep(self) -> None:
        """Roll back what is still prepared of this task in older epochs: no complete checkpoint has it.

        What one had is committed since `recover`.
        """
        errors = required("psycopg", "postgres").errors
        with self._database.outside_transactions() as session:
            found = session.execute(
                "select gid from pg_prepared_xacts where database = current_database() "
                "and starts_with(gid, %s)",
                self._prefix,
            ).fetchall()
            for (name,) in found:
                epoch, _, _ = name.removeprefix(self._prefix).partition("-")
                if not epoch.isdecimal() or int(epoch) >= self._context.epoch:
                    continue
                # Its own process may have been faster.
                with suppress(errors.UndefinedObject):
                    session.execute(f"rollback prepared '{name}'")

    def _checked(self, handle: JSON) -> tuple[CheckpointId, str]:
        match handle:
            case {"checkpoint": int(n), "prepared": str(name), "rows": int(), **rest} if not rest and n > 0:
                epoch, _, last = name.removeprefix(self._prefix).partition("-")
                # It goes into a statement as it stands.
                if name.startswith(self._prefix) and epoch.isdecimal() and last == str(n):
                    return CheckpointId(n), name
            case _:
                pass
        raise ConnectorError(
            f"{self._location}: {handle!r:.200} is not a prepared transaction of task "
            f"{self._context.task}; was two_phase added or removed? Start with another checkpoint_dir"
        )
