"""Which sink task has committed which checkpoint, and which completed checkpoints wait for that.

A sink that takes longer for a checkpoint than the sources take to fill the next one falls behind for ever. So
only some completed checkpoints may wait to be committed: with so many, no other starts, and sources wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshot.commit import moved
from crosscut.protocol.snapshots import TaskSnapshot

_SHOWN_MAX = 3


class Commits:
    """What the sinks of one job have committed, as far as this driver has heard.

    Args:
        sinks: Every sink task.
        waiting_max: Completed checkpoints that may wait to be committed.
        names: The uid of the sink at the end of each vertex that has one, for people.
    """

    def __init__(
        self, sinks: frozenset[TaskId], waiting_max: int, names: Mapping[VertexId, str] = MappingProxyType({})
    ) -> None:
        self._sinks = sinks
        self._names = names
        self._waiting_max = waiting_max
        # In all epochs: what a sink has answered for is not committed again after a failover.
        self._committed: dict[TaskId, CheckpointId] = {}
        # Completed in this epoch, in order, with the tasks that have not committed it.
        self._waiting: dict[CheckpointId, set[TaskId]] = {}
        # The next checkpoint has waited long for the oldest of them.
        self._is_delaying = False

    def begin(self) -> None:
        """Tasks are deployed: what they restore is committed before they run."""
        self._waiting.clear()
        self._is_delaying = False

    def completed(self, n: CheckpointId) -> None:
        """Note that n is complete, and is to be committed in this epoch."""
        if self._sinks:
            self._waiting[n] = set(self._sinks)

    def committed(self, task: TaskId, n: CheckpointId) -> None:
        """Note that `task` has committed everything at or below n."""
        self._committed[task] = max(self._committed.get(task, CheckpointId(0)), n)
        for one in [one for one in self._waiting if one <= n]:
            self._waiting[one].discard(task)
            if not self._waiting[one]:
                del self._waiting[one]
                self._is_delaying = False

    def note_delay(self) -> None:
        """Note that the next checkpoint has waited long for the oldest one that is not committed."""
        self._is_delaying = bool(self._waiting)

    def all_committed(self, n: CheckpointId, tasks: Iterable[TaskId] = ()) -> None:
        """Note that every sink has committed n: a task that is restored to n replays its commit.

        Args:
            tasks: Those of n, where these are others.
        """
        self._committed |= dict.fromkeys((*sorted(self._sinks), *tasks), n)

    def is_committed(self, n: CheckpointId) -> bool:
        """Whether everything at or below n is known to be committed."""
        return all(self._committed.get(task, 0) >= n for task in self._sinks)

    @property
    def waiting_count(self) -> int:
        """How many completed checkpoints of this epoch are not committed by all sinks."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no other checkpoint may start before one is committed."""
        return len(self._waiting) >= self._waiting_max

    @property
    def is_behind(self) -> bool:
        """Whether checkpoints wait for a sink: one that has to start, or one that it has to prepare."""
        return self.is_full or self._is_delaying

    @property
    def shown(self) -> str:
        """Which sink can't keep up, for people; "" if all can."""
        if not self.is_behind:
            return ""
        oldest = next(iter(self._waiting.values()))
        names = [self._name(task) for task in sorted(oldest)[:_SHOWN_MAX]]
        more = f" and {len(oldest) - _SHOWN_MAX} more" if len(oldest) > _SHOWN_MAX else ""
        several = "checkpoint is" if self.waiting_count == 1 else "checkpoints are"
        return (
            f"the sink can't keep up: {self.waiting_count} completed {several} uncommitted, "
            f"the oldest by {', '.join(names)}{more}"
        )

    def _name(self, task: TaskId) -> str:
        # A vertex is called after its first operator, which may be the source.
        uid = self._names.get(task.vertex, task.vertex)
        return str(task) if uid == task.vertex else f"{task} (sink {uid!r})"

    def left(self, entry: CheckpointCompleted | None) -> CheckpointCompleted | None:
        """Return `entry` without the transactions that are known to be committed."""
        if entry is None or not self._committed:
            return entry

        def without(one: TaskSnapshot) -> TaskSnapshot:
            done = self._committed.get(one.task, 0)
            confirmed = [each for each in one.snapshot.pending if each.checkpoint_id <= done]
            if not confirmed:
                return one
            pending = tuple(each for each in one.snapshot.pending if each.checkpoint_id > done)
            known = one.snapshot.committed
            known = moved(known, confirmed) if known is not None else None
            return TaskSnapshot(one.task, replace(one.snapshot, pending=pending, committed=known))

        return replace(entry, snapshots=tuple(map(without, entry.snapshots)))
