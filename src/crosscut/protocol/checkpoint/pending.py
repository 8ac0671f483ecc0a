"""A checkpoint under way: which tasks were asked, which have acknowledged, whether it is whole.

Its status is derived from these facts and from whether its log entry is durable. Tasks are remembered by id,
never counted, so a repeated acknowledgement changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import assert_never

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.effects import CancelTimer, JobEffect, StartTimer
from crosscut.protocol.events import ClockRead, Timer
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CommitCheckpoint,
    GlobalCommit,
    ResumeSources,
    SnapshotAcknowledged,
    TaskQuiet,
    TriggerCheckpoint,
)
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot


class PendingCheckpoint:
    """One checkpoint, from the request to its tasks until it is complete or aborted.

    Args:
        tasks: Every task of the job: each has to acknowledge.
        registry: The workers that have the tasks.
        dropped: Counts repeated messages.
        started_ms: When it starts.
        is_after_drain: Every source is drained already.

    Attributes:
        is_appending: Its entry is on its way to the log. Then only the log can tell what becomes of it.
    """

    def __init__(
        self,
        epoch: Epoch,
        checkpoint_id: CheckpointId,
        tasks: frozenset[TaskId],
        registry: WorkerRegistry,
        dropped: Counter[str],
        started_ms: int,
        *,
        is_after_drain: bool,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.is_after_drain = is_after_drain
        self.is_appending = False
        self._epoch = epoch
        self._tasks = tasks
        self._registry = registry
        self.started_ms = started_ms
        self._snapshots: dict[TaskId, Snapshot] = {}
        self._quiet: set[TaskId] = set()
        self.dropped = dropped

    @property
    def is_whole(self) -> bool:
        """Whether every task has acknowledged. The checkpoint is not complete before its entry is durable."""
        return self._snapshots.keys() == self._tasks

    @property
    def missing_shown(self) -> str:
        """Which tasks have not acknowledged, for people; "" if all have."""
        missing = sorted(self._tasks - self._snapshots.keys())
        return "; no acknowledgement from " + ", ".join(map(str, missing[:5])) if missing else ""

    @property
    def paths(self) -> frozenset[str]:
        """The files that its snapshots are in."""
        return frozenset(path for one in self._snapshots.values() for path in retention.paths_of(one))

    def start(self, timeout_ms: int) -> list[JobEffect]:
        """Ask the tasks for their snapshots."""
        return [
            *self._registry.to_holders(TriggerCheckpoint(self._epoch, self.checkpoint_id)),
            StartTimer(self._timer, timeout_ms),
        ]

    def handle(self, message: SnapshotAcknowledged | TaskQuiet) -> list[JobEffect]:
        """Take a message of a task about this checkpoint."""
        match message:
            case SnapshotAcknowledged(task=task, snapshot=snapshot):
                if task in self._snapshots:
                    self.dropped["repeated acknowledgement"] += 1
                else:
                    self._snapshots[task] = snapshot
                return []
            case TaskQuiet(task=task):
                if task in self._quiet:
                    self.dropped["repeated quiet"] += 1
                    return []
                self._quiet.add(task)
                if not self._are_all_quiet:
                    return []
                return self._registry.to_holders(CaptureSnapshots(self._epoch, self.checkpoint_id))
            case _:
                assert_never(message)

    def entry(self, now: ClockRead) -> CheckpointCompleted:
        """Return the entry to append, once it is whole."""
        return CheckpointCompleted(
            epoch=self._epoch,
            checkpoint_id=self.checkpoint_id,
            snapshots=tuple(TaskSnapshot(one, self._snapshots[one]) for one in sorted(self._snapshots)),
            # Chandy and Lamport's stable property: a cut on which nothing is under way anywhere
            # and no source has more stays like that for ever.
            is_final=all(one.drained for one in self._snapshots.values()),
            duration_ms=now.now_ms - self.started_ms,
            wall_clock=now.wall_clock,
        )

    def complete(self, commits: tuple[GlobalCommit, ...]) -> list[JobEffect]:
        """Have its output committed: its entry is durable.

        Args:
            commits: What first tasks commit for all tasks of their sinks.
        """
        to_first = CommitCheckpoint(self._epoch, self.checkpoint_id, commits)
        to_others = replace(to_first, together=tuple(replace(one, pending=()) for one in commits))
        effects = [CancelTimer(self._timer), *self._registry.to_first_holder(to_first, to_others)]
        if self._are_all_quiet:
            effects += self._registry.to_holders(ResumeSources(self._epoch, self.checkpoint_id))
        return effects

    def abort(self) -> list[JobEffect]:
        """Have the tasks forget it: it will not be complete."""
        return [
            CancelTimer(self._timer),
            *self._registry.to_holders(AbortCheckpoint(self._epoch, self.checkpoint_id)),
        ]

    @property
    def _are_all_quiet(self) -> bool:
        return self._quiet == self._tasks

    @property
    def _timer(self) -> Timer:
        return Timer("checkpoint-timeout", self._epoch, self.checkpoint_id)
