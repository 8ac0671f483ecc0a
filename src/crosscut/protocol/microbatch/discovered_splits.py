"""Splits that were found while a job runs in batches, until a checkpoint has them.

The coordinator says who reads a split, and from which checkpoint on it counts (`protocol.job.finding`). Each
batch is given all that counts by then and is in no completed checkpoint yet. What was completed has it among
its positions, or has read it to its end; so it is never given again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.messages import AssignSplits


class DiscoveredSplits:
    """What was found in one epoch at a time.

    Attributes:
        epoch: The newest that has begun.
    """

    def __init__(self) -> None:
        self.epoch = Epoch(0)
        self._given: list[AssignSplits] = []
        self.dropped: Counter[str] = Counter()

    def begin(self, epoch: Epoch) -> None:
        """Tasks are deployed: a restore finds again what no checkpoint has."""
        self.epoch = epoch
        self._given = []

    def assigned(self, message: AssignSplits) -> None:
        """The coordinator has given splits to a task."""
        if message.epoch != self.epoch:
            self.dropped["splits of another epoch"] += 1
            return
        self._given.append(message)

    @property
    def have_come(self) -> bool:
        """Whether there are splits that no completed batch was given."""
        return any(one.splits for one in self._given)

    def of_batch(self, n: CheckpointId, vertices: Collection[str], index: int) -> tuple[AssignSplits, ...]:
        """Return what tasks `index` of these vertices are given in batch `n`, oldest first."""
        return tuple(
            one
            for one in self._given
            if one.since <= n and one.task.vertex in vertices and one.task.index == index
        )

    def completed(self, n: CheckpointId) -> None:
        """Checkpoint `n` is complete, with the splits that its batch was given."""
        # That the source has had splits, and that no others come, is part of no snapshot: each batch is told.
        assignments: dict[TaskId, AssignSplits] = {}
        for one in self._given:
            if one.since <= n:
                is_last = one.is_last or (one.task in assignments and assignments[one.task].is_last)
                assignments[one.task] = AssignSplits(one.epoch, one.task, one.since, [], is_last=is_last)
        self._given = [*assignments.values(), *(one for one in self._given if one.since > n)]
