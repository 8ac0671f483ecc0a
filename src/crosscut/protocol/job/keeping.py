"""What is kept: the newest completed checkpoints, and what may be deleted besides them.

`crosscut.protocol.job.retention` decides; this machine remembers what it has to decide about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId, LogIndex
from crosscut.protocol.effects import CancelTimer, DeleteParts, JobEffect, StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.job import retention
from crosscut.protocol.messages import CheckpointCompleted, LogEntry, Snapshot

DELETING = Timer("delete")


def _deletion_order(index: LogIndex) -> tuple[int, int]:
    """Segments from the oldest on, each from its end: see `written_before`."""
    return index.segment, -index.number


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
        # In which segment of the log the entry of each retained checkpoint is, and what can be deleted of
        # older segments once none of them is in one.
        self._segments: tuple[int, ...] = ()
        self._ended: tuple[LogIndex, ...] = ()

    def found(self, tail: Sequence[tuple[LogIndex, LogEntry]]) -> None:
        """Start from what the end of the log holds."""
        completed = [(index, entry) for index, entry in tail if isinstance(entry, CheckpointCompleted)]
        self.retained = tuple(entry for _, entry in completed)
        self._segments = tuple(index.segment for index, _ in completed)
        self._kept_parts = retention.referenced(self.retained)
        self.completed = self.retained[-1] if completed else None
        self._ended = retention.ended(tail)

    def add(self, entry: CheckpointCompleted, segment: int, ended: tuple[LogIndex, ...]) -> None:
        """Keep a checkpoint that has just been completed, and its parts instead of the oldest one's.

        Args:
            segment: Which segment of the log its entry is in.
            ended: Entries of segments that have come to their end since.
        """
        self.waste(path for one in self.retained for path in retention.parts_of(one))
        self.completed = entry
        self.retained = retention.retained((*self.retained, entry), self._retain)
        self._segments = (*self._segments, segment)[-len(self.retained) :]
        self._kept_parts = retention.referenced(self.retained)
        self._ended += ended

    def dangling(self, snapshot: Snapshot, checkpoint_id: CheckpointId) -> tuple[str, ...]:
        """Return the parts that a new snapshot refers to but that nothing protects from deletion."""
        return retention.dangling(snapshot, checkpoint_id, self._kept_parts)

    def waste_entries(self, listed: Iterable[LogIndex]) -> None:
        """Remember what others have left of segments that hold nothing of the retained checkpoints."""
        if not self._is_overdue:
            left = retention.left_over(listed, self._oldest_segment)
            self._ended = tuple(sorted({*self._ended, *left}, key=_deletion_order))

    @property
    def _oldest_segment(self) -> int:
        """The oldest segment that is needed; 0 if that is not known."""
        return self._segments[0] if self._segments else 0

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
        entries = tuple(one for one in self._ended if one.segment < self._oldest_segment)
        if not gone and not entries:
            return []
        self._ended = self._ended[len(entries) :]
        self._is_deleting = True
        return [DeleteParts(gone, entries), StartTimer(DELETING, self._timeout_ms)]

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
            self._ended = ()
