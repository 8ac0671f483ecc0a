"""What is kept: the newest completed checkpoints, and the parts that may be deleted besides them.

`crosscut.protocol.job.retention` decides; this machine remembers what it has to decide about.
"""

from __future__ import annotations

from collections.abc import Iterable

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId
from crosscut.protocol.effects import CancelTimer, DeleteParts, JobEffect, StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.job import retention
from crosscut.protocol.messages import CheckpointCompleted, Snapshot

DELETING = Timer("delete")


class Keeping:
    """The retained checkpoints of a job, oldest first, and its garbage.

    One deletion is under way at a time. Once it has taken too long, garbage is not remembered any more
    until it is over: memory stays bounded, and the next epoch sweeps what is left.

    Args:
        retain: How many completed checkpoints to keep.
        timeout_ms: How long one deletion may take.
    """

    def __init__(self, retain: int, timeout_ms: int) -> None:
        self._retain = retain
        self._timeout_ms = timeout_ms
        self._is_deleting = False
        self._is_overdue = False
        self.completed: CheckpointCompleted | None = None
        self.retained: tuple[CheckpointCompleted, ...] = ()
        self._kept_parts = frozenset[str]()
        # Parts that may be deleted once no append is undecided.
        self._garbage: set[str] = set()

    def found(self, retained: tuple[CheckpointCompleted, ...]) -> None:
        """Start from what the log holds."""
        self.retained = retained
        self._kept_parts = retention.referenced(retained)
        self.completed = retained[-1] if retained else None

    def add(self, entry: CheckpointCompleted) -> None:
        """Keep a checkpoint that has just been completed, and its parts instead of the oldest one's."""
        self.waste(path for one in self.retained for path in retention.parts_of(one))
        self.completed = entry
        self.retained = retention.retained((*self.retained, entry), self._retain)
        self._kept_parts = retention.referenced(self.retained)

    def dangling(self, snapshot: Snapshot, checkpoint_id: CheckpointId) -> tuple[str, ...]:
        """Return the parts that a new snapshot refers to but that nothing protects from deletion."""
        return retention.dangling(snapshot, checkpoint_id, self._kept_parts)

    def waste(self, paths: Iterable[str]) -> None:
        """Remember parts that may be of no use any more."""
        if not self._is_overdue:
            self._garbage.update(paths)

    def delete(self, in_use: frozenset[str]) -> list[JobEffect]:
        """Delete the garbage that no retained checkpoint refers to, but what is `in_use`."""
        if self._is_deleting:
            return []
        gone = retention.unreferenced(self._garbage - in_use, self.retained)
        self._garbage &= in_use
        if not gone:
            return []
        self._is_deleting = True
        return [DeleteParts(gone), StartTimer(DELETING, self._timeout_ms)]

    def deleted(self) -> list[JobEffect]:
        """Note the end of the deletion under way."""
        if not self._is_deleting:
            raise ProtocolError("parts were deleted, unasked")
        was_overdue, self._is_deleting, self._is_overdue = self._is_overdue, False, False
        return [] if was_overdue else [CancelTimer(DELETING)]

    def overdue(self) -> None:
        """Note that the deletion under way, if one is, has taken too long."""
        if self._is_deleting:
            self._is_overdue = True
            self._garbage.clear()
