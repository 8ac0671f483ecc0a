"""Which completed checkpoints stay, the newest, and which parts and log entries may be deleted.

A part is deleted only after the newer log entry is durable, and only if no retained manifest refers
to it. When in doubt it stays: a leak is tidied later, a deletion is for ever. The decisions are pure, over
manifests; `Retention` has the manifests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex
from crosscut.protocol.effects import CancelTimer, DeleteParts, JobEffect, StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.job.pending_output import restored
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry, SegmentClosed, SegmentOpened
from crosscut.protocol.log.segments import written_before
from crosscut.protocol.snapshots import Snapshot
from crosscut.protocol.splits.staged import BEFORE_ALL, staged_files

PART_PATH = re.compile(r"parts/(?P<checkpoint>\d+)/[^/]+-(?P<epoch>\d+)-[0-9a-f]+")


def parts_of(checkpoint: CheckpointCompleted) -> frozenset[str]:
    """Return the paths of all files that the manifest refers to, staged input included."""
    return frozenset(path for one in checkpoint.snapshots for path in paths_of(one.snapshot)) | staged_of(
        checkpoint
    )


def staged_of(checkpoint: CheckpointCompleted) -> frozenset[str]:
    """Return the files of staged input that a job which goes on from `checkpoint` has still to read."""
    return frozenset(path for one in checkpoint.snapshots for path in staged_files(one.snapshot.positions))


def paths_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the paths of the files that one snapshot is in; inline parts have none."""
    held = (one.held for one in snapshot.pending if one.held is not None)
    return tuple(part.path for part in (*snapshot.parts, *snapshot.log, *held) if part.path)


def written_for(checkpoint_id: CheckpointId, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the paths of the files that were written for this snapshot, and not for an older one."""
    own = f"parts/{checkpoint_id}/"
    return tuple(path for path in paths_of(snapshot) if path.startswith(own))


def retained(completed: Sequence[CheckpointCompleted], keep: int) -> tuple[CheckpointCompleted, ...]:
    """Return the newest `keep` checkpoints, in order."""
    return tuple(completed[-keep:])


def referenced(kept: Iterable[CheckpointCompleted]) -> frozenset[str]:
    """Return the paths of all files that the `kept` manifests, oldest first, refer to.

    After a final checkpoint there is no way back: what older ones have still to read is needed no more.
    """
    manifests = list(kept)
    found = frozenset[str]().union(*map(parts_of, manifests))
    if manifests and manifests[-1].is_final:
        found -= frozenset[str]().union(*map(staged_of, manifests))
    return found


def unreferenced(paths: Iterable[str], kept: Iterable[CheckpointCompleted]) -> tuple[str, ...]:
    """Return those of `paths` that none of the `kept` manifests refers to, sorted."""
    return tuple(sorted(set(paths) - referenced(kept)))


def orphans(
    listed: Iterable[str],
    kept: Sequence[CheckpointCompleted],
    epoch: Epoch,
    input_files: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Return the listed parts that no checkpoint refers to, or will.

    Parts of the running epoch may belong to a checkpoint under way, unless a completed one is as new: a
    snapshot refers to its own parts and to those of retained checkpoints only. Input is staged before its
    epoch is claimed, as part of checkpoint 0: what nothing refers to was staged by a driver that has died,
    or has lost the claim and stages again. A path that does not look like one of ours is not ours to delete.

    Args:
        input_files: What the running epoch has staged, or found, and no checkpoint knows yet.
    """
    newest = max((one.checkpoint_id for one in kept), default=BEFORE_ALL)
    ours = (
        path
        for path in listed
        if path not in input_files
        and (match := PART_PATH.fullmatch(path))
        and (
            int(match["epoch"]) < epoch
            or (int(match["epoch"]) == epoch and int(match["checkpoint"]) <= newest)
        )
    )
    return unreferenced(ours, kept)


def dangling(snapshot: Snapshot, checkpoint_id: CheckpointId, kept_parts: frozenset[str]) -> tuple[str, ...]:
    """Return the parts that a new snapshot refers to but that nothing protects from deletion, sorted.

    A task that has not heard of the newest completions yet may build on parts that retention has
    deleted since. Its own new parts are protected by being newer than every sweep.

    Args:
        kept_parts: What `referenced` says of the kept manifests. It is asked for each acknowledgement, so
            going through the manifests here would cost the square of the number of tasks.
    """
    foreign = {*paths_of(snapshot)} - {*written_for(checkpoint_id, snapshot)}
    return tuple(sorted(foreign - kept_parts))


# The job log: `crosscut.protocol.log.segments` has the reasons.


def ended(tail: Sequence[tuple[LogIndex, LogEntry]]) -> tuple[LogIndex, ...]:
    """Return the entries of older segments in `tail` to delete once no retained checkpoint is in them."""
    entries = dict(tail)
    return tuple(
        index
        for _, head in tail
        if isinstance(head, SegmentOpened) and head.previous in entries
        for index in written_before(head, was_closed=isinstance(entries[head.previous], SegmentClosed))
    )


def left_over(listed: Iterable[LogIndex], oldest_segment: int) -> tuple[LogIndex, ...]:
    """Return the listed entries that a driver would have deleted that died before it could, sorted.

    Args:
        oldest_segment: The oldest one with a retained checkpoint: older ones hold nothing that is needed.
    """
    ours: dict[int, list[int]] = {}
    for index in listed:
        if index.segment < oldest_segment and index.number > 0:
            ours.setdefault(index.segment, []).append(index.number)
    # The newest entry of each may be what closed it. That it is kept where it is not costs one file.
    return tuple(
        LogIndex(segment, number)
        for segment, numbers in sorted(ours.items())
        for number in sorted(numbers, reverse=True)
        if number < max(numbers)
    )


DELETING = Timer("delete")


def _deletion_order(index: LogIndex) -> tuple[int, int]:
    """Segments from the oldest on, each from its end: see `written_before`."""
    return index.segment, -index.number


class Retention:
    """The retained checkpoints of a job, oldest first, and its garbage.

    One deletion is under way at a time. Once it has taken too long, garbage is not remembered any more
    until it is over: memory stays bounded, and the next epoch sweeps the rest.

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
        """Start from the end of the log."""
        completed = [(index, entry) for index, entry in tail if isinstance(entry, CheckpointCompleted)]
        self.retained = tuple(entry for _, entry in completed)
        self._segments = tuple(index.segment for index, _ in completed)
        self._kept_parts = referenced(self.retained)
        self.completed = restored(tail)
        self._ended = ended(tail)

    def add(self, entry: CheckpointCompleted, segment: int, ended: tuple[LogIndex, ...]) -> None:
        """Keep a checkpoint that has just been completed, and its parts instead of the oldest one's.

        Args:
            segment: Which segment of the log its entry is in.
            ended: Entries of segments that have come to their end since.
        """
        self.waste(path for one in self.retained for path in parts_of(one))
        self.completed = entry
        self.retained = retained((*self.retained, entry), self._retain)
        self._segments = (*self._segments, segment)[-len(self.retained) :]
        self._kept_parts = referenced(self.retained)
        self._ended += ended

    def dangling(self, snapshot: Snapshot, checkpoint_id: CheckpointId) -> tuple[str, ...]:
        """Return the parts that a new snapshot refers to but that nothing protects from deletion."""
        return dangling(snapshot, checkpoint_id, self._kept_parts)

    def waste_entries(self, listed: Iterable[LogIndex]) -> None:
        """Remember entries of others, in segments without a retained checkpoint."""
        if not self._is_overdue:
            left = left_over(listed, self._oldest_segment)
            self._ended = tuple(sorted({*self._ended, *left}, key=_deletion_order))

    @property
    def _oldest_segment(self) -> int:
        """The oldest segment that is needed; 0 if that is not known."""
        return self._segments[0] if self._segments else 0

    def waste(self, paths: Iterable[str]) -> None:
        """Remember parts that may be of no use any more."""
        if not self._is_overdue:
            self._garbage.update(paths)

    @property
    def is_due(self) -> bool:
        """Whether there may be something to delete, and no deletion is under way."""
        return not self._is_deleting and bool(self._garbage or self._entries_to_delete)

    @property
    def _entries_to_delete(self) -> tuple[LogIndex, ...]:
        return tuple(one for one in self._ended if one.segment < self._oldest_segment)

    def delete(self, in_use: frozenset[str]) -> list[JobEffect]:
        """Delete the garbage that is not `in_use` and that no retained checkpoint refers to."""
        if not self.is_due:
            return []
        gone = unreferenced(self._garbage - in_use, self.retained)
        self._garbage &= in_use
        entries = self._entries_to_delete
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
