"""What all tasks of a sink have staged, in one place: the first task commits it, in one call.

Each task acknowledges what it has staged. In the entry of a checkpoint it is all in the snapshot of the first
task, before anything is committed: so a restore of the checkpoint, under either engine, at any
parallelism, has it in one place, and commits all of it or nothing. The first task is told of it with the
word that the checkpoint is complete; the others hear with that word that they have nothing to commit.

Another task lets go of what it had staged as soon as it hears of the completion. The first may not have heard
of it then, or not have committed it yet, when the barrier of the next checkpoint comes by. So what was
completed, and is not known to be committed, is part of every entry that follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import GlobalCommit
from crosscut.protocol.snapshots import KnownCommitted, PendingTransaction, TaskSnapshot

BYTES_MAX = 32 << 20
"""Of what first tasks have to commit. It goes to one worker in one message, at the completion and at each
restore, and no message may be longer than twice that: so there is room for all else that is in it."""

_OTHER_BYTES = 100
"""Of a transaction in a message, beside its handle."""

_TO_TEXT = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class TooMuchStaged:
    """What first tasks have to commit fits into no message.

    Attributes:
        sink: The one that has staged most.
        size_bytes: What its share takes.
    """

    sink: VertexId
    size_bytes: int

    @property
    def shown(self) -> str:
        """What people are told."""
        return (
            f"what the tasks of sink {self.sink} have staged takes {self.size_bytes} bytes to say, and all "
            f"that is committed together may take {BYTES_MAX}: handles should name what was staged, and not "
            f"hold it; or commits are too slow for so many checkpoints, or batches too large"
        )


def too_much_staged(snapshots: Iterable[TaskSnapshot], vertices: frozenset[VertexId]) -> TooMuchStaged | None:
    """Return why a checkpoint with these snapshots must not be appended; None: it may.

    No worker could be told to commit what is too long, and a checkpoint in the log can't be taken back.

    Args:
        vertices: Those whose first tasks commit for all, and have been given what all have staged.
    """
    sizes = {
        one.task.vertex: sum(len(_TO_TEXT(each.handle)) + _OTHER_BYTES for each in one.snapshot.pending)
        for one in snapshots
        if one.task.vertex in vertices and one.task.index == 0
    }
    if sum(sizes.values()) <= BYTES_MAX:
        return None
    most = max(sizes, key=sizes.__getitem__)
    return TooMuchStaged(most, sizes[most])


class GlobalCommitter:
    """What the sinks of one job have staged and have to commit together, in one epoch at a time.

    Args:
        vertices: Those of which the first task commits for all.
    """

    def __init__(self, vertices: frozenset[VertexId]) -> None:
        self._vertices = vertices
        # Completed in this epoch and not known to be committed; the newest completed.
        self._kept: dict[VertexId, tuple[PendingTransaction, ...]] = {}
        self._completed = CheckpointId(0)
        # The newest transaction that is not kept any more, since the first task has committed it.
        self._committed: dict[VertexId, CheckpointId] = {}

    def begin(self) -> None:
        """Tasks are deployed: what they restore is committed before they run."""
        self._kept, self._completed, self._committed = {}, CheckpointId(0), {}

    def gathered(self, entry: CheckpointCompleted) -> CheckpointCompleted:
        """Return an entry that is to be appended with what was staged given to the first tasks."""
        if not self._vertices:
            return entry
        staged: dict[VertexId, list[PendingTransaction]] = {}
        for one in entry.snapshots:
            if one.task.vertex in self._vertices:
                # Of what was completed before, one task may have let go already, and another one not.
                newer = [each for each in one.snapshot.pending if each.checkpoint_id > self._completed]
                staged.setdefault(one.task.vertex, list(self._kept.get(one.task.vertex, ()))).extend(newer)

        def owned(one: TaskSnapshot) -> TaskSnapshot:
            if one.task.vertex not in self._vertices:
                return one
            of_all = sorted(staged[one.task.vertex], key=lambda each: each.checkpoint_id)
            if one.task.index:
                return TaskSnapshot(one.task, replace(one.snapshot, pending=(), committed=None))
            committed = self._known(one.task.vertex, one.snapshot.committed)
            return TaskSnapshot(one.task, replace(one.snapshot, pending=tuple(of_all), committed=committed))

        return replace(entry, snapshots=tuple(map(owned, entry.snapshots)))

    def _known(self, vertex: VertexId, reported: KnownCommitted | None) -> KnownCommitted | None:
        """Return what is known to be committed: the task may have said it after it took its snapshot."""
        if reported is None:
            return None
        newest = max(reported.checkpoint_id, self._committed.get(vertex, CheckpointId(0)))
        return replace(reported, checkpoint_id=newest)

    def problem(self, entry: CheckpointCompleted) -> TooMuchStaged | None:
        """Return why `entry`, as `gathered` returned it, must not be appended; None: it may."""
        return too_much_staged(entry.snapshots, self._vertices)

    def completed(self, entry: CheckpointCompleted) -> tuple[GlobalCommit, ...]:
        """Note that an entry of this epoch is durable; return what first tasks have to commit."""
        if not self._vertices:
            return ()
        self._completed = entry.checkpoint_id
        self._kept = {
            one.task.vertex: one.snapshot.pending
            for one in entry.snapshots
            if one.task.vertex in self._vertices and one.task.index == 0
        }
        return tuple(GlobalCommit(vertex, pending) for vertex, pending in sorted(self._kept.items()))

    def committed(self, task: TaskId, n: CheckpointId) -> None:
        """Note that `task` has committed everything at or below n."""
        if task.index == 0 and task.vertex in self._kept:
            done = [one.checkpoint_id for one in self._kept[task.vertex] if one.checkpoint_id <= n]
            if done:
                self._committed[task.vertex] = max(done)
            left = tuple(one for one in self._kept[task.vertex] if one.checkpoint_id > n)
            self._kept[task.vertex] = left
