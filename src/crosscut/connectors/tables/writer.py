"""The sink writer of all databases: the marker, the rows, and the fence in one transaction.

Nothing is staged in the database. The rows of a checkpoint are tried, and held in its snapshot; the commit
locks the marker of the logical task, sees who has written last and up to which checkpoint, adds the rows
that are not there yet, and moves the marker. Whatever happens to the answer, the next attempt reads the
marker and knows.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from crosscut.connectors.tables.trial import Row, Tried
from crosscut.contracts.connectors import JSON, CommitPermit, CommittedOutput, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.protocol.log.history import check_history, check_not_set_back

_ATTEMPTS = 50
_PAUSE_S = 0.05


MARKER_COLUMNS = "lineage, sink, vertex, task, epoch, driver, checkpoint"
"""Of the row that is the marker of a logical task, as `marker_of` takes them."""


def marker_of(location: str, row: Sequence[Any]) -> CommittedOutput:
    """Return a marker from its columns."""
    lineage, sink_uid, vertex, task, epoch, driver, n = row
    owner = TaskId(VertexId(vertex), task)
    return CommittedOutput(location, Lineage(lineage), sink_uid, owner, Epoch(epoch), driver, CheckpointId(n))


class Overtaken(ConnectorError):
    """A transaction has certainly not been made: another one came first. To be decided on anew."""


class Session(ABC):
    """One transaction of a database: all of it becomes visible at its end, or nothing does."""

    @abstractmethod
    def marker(self, context: SinkContext) -> CommittedOutput | None:
        """Return the marker of the logical task, and lock it until the end of the transaction."""

    @abstractmethod
    def write_marker(self, context: SinkContext, checkpoint_id: CheckpointId) -> None:
        """Set the marker: everything up to `checkpoint_id` is there, says this epoch of this driver."""

    @abstractmethod
    def insert(self, data: bytes) -> int:
        """Add the rows of `Tried.data`; return how many."""


class Database(ABC):
    """Where a sink's table is. Used by one thread at a time."""

    @abstractmethod
    def tried(self, rows: Sequence[Row], *, only_first: bool) -> Tried:
        """Find out which rows a commit would refuse, as far as that can be tried; nothing is changed.

        Args:
            only_first: The first one is enough.

        Raises:
            ConnectorError: The database can't be reached, or refuses for another reason.
        """

    @abstractmethod
    def decoded(self, data: bytes) -> Iterable[Mapping[str, Any]]:
        """Return the rows of `Tried.data`, by column, for people."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Session]:
        """Begin a transaction, over a connection that is made anew after any failure.

        Raises:
            Overtaken: At the end: another one came first, and nothing was written.
            ConnectorError: On entry or at the end: the database can't be reached, or it refuses. At the end
                the outcome is then unknown.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def accepted(writer: SinkWriter, database: Database, rows: list[Row], location: str) -> tuple[int, bytes]:
    """Return how many rows the database takes, and those as data; the writer refuses the others.

    Raises:
        RefusedRecordError: There are others, and the user did not ask for dead letters.
        ConnectorError: See `Database.tried`.
    """
    found = database.tried(rows, only_first=writer.set_aside is None)
    for one in found.refused:
        writer.refuse(rows[one.index], f"{location}: {one.reason}")
    return len(rows) - len(found.refused), found.data


class TableWriter(SinkWriter):
    """See the module.

    Args:
        to_row: Makes a row of a record.
        location: What errors call the table.
    """

    def __init__(
        self,
        database: Database,
        to_row: Callable[[Any], Row],
        context: SinkContext,
        location: str,
    ) -> None:
        self._database = database
        self._to_row = to_row
        self._context = context
        self._location = location
        self._restored: CommitPermit | None = None
        # Up to there the database has confirmed the commit to this writer.
        self._confirmed = CheckpointId(0)
        self._open: list[Row] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._restored = permit
        self._commit(permit, permit.checkpoint_id if permit else CheckpointId(0), handles)

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[Mapping[str, Any]]:
        for checkpoint_id, count in map(self._checked, handles):
            if count:
                yield from self._database.decoded(self._context.held.data(checkpoint_id))

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Nothing is staged but what the snapshot holds, so attempts don't see each other."""

    def write(self, records: list[Any]) -> None:
        self._open += map(self._to_row, records)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self._open:
            return None
        rows, self._open = self._open, []
        return checkpoint_id, rows

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, rows = transaction
        count, data = accepted(self, self._database, rows, self._location)
        self._context.held.keep(checkpoint_id, data)
        return {"checkpoint": checkpoint_id, "rows": count}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        pending = [n for n, _ in map(self._checked, handles)]
        if pending:
            self._commit(permit, max(pending), handles)

    def close(self) -> None:
        self._database.close()

    def _commit(self, permit: CommitPermit | None, up_to: CheckpointId, handles: Sequence[JSON]) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._commit_once(permit, up_to, handles)
            except Overtaken as error:
                if attempt == _ATTEMPTS:
                    raise ConnectorError(
                        f"{error}; tried {attempt} times: too many concurrent commits"
                    ) from error
                # One of all that want to be next is: so the more they are, the longer it takes.
                time.sleep(random.uniform(0, min(attempt, 10) * _PAUSE_S))

    def _commit_once(self, permit: CommitPermit | None, up_to: CheckpointId, handles: Sequence[JSON]) -> None:
        context = self._context
        pending = [self._checked(handle) for handle in handles]
        with self._database.transaction() as session:
            marker = session.marker(context)
            check_history(context, self._restored, [marker] if marker else [])
            there = marker.checkpoint_id if marker else CheckpointId(0)
            check_not_set_back(context, permit, there, self._location, confirmed=self._confirmed)
            if marker is None and pending:
                # The epoch that has made these has had one: what it said is not guessed at.
                raise ConnectorError(
                    f"{self._location}: checkpoint {pending[0][0]} is to be committed, and the marker of "
                    f"task {context.task} that records whether it is already committed is missing; "
                    f"nothing was written. Restore the markers from a backup, or start over with another "
                    f"checkpoint_dir and another location"
                )
            for checkpoint_id, expected in pending:
                if checkpoint_id <= there or not expected:
                    continue
                found = session.insert(context.held.data(checkpoint_id))
                if found != expected:
                    raise ConnectorError(
                        f"{self._location}: {found} rows are held for checkpoint {checkpoint_id}, expected "
                        f"{expected}"
                    )
            session.write_marker(context, max(up_to, there))
        self._confirmed = max(up_to, there)

    def _checked(self, handle: JSON) -> tuple[CheckpointId, int]:
        match handle:
            case {"checkpoint": int(n), "rows": int(rows), **rest} if not rest and n > 0:
                return CheckpointId(n), rows
            case _:
                raise ConnectorError(f"{self._location}: {handle!r:.200} is not a transaction of a table")
