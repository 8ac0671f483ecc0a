"""The checkpoints of one epoch: trigger, collect, complete, abort.

The status of a checkpoint is derived from what is known of it: which tasks have acknowledged, and
whether its log entry is durable. Tasks are remembered by id, never counted, so a repeated
acknowledgement changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from crosscut.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.messages import CheckpointCompleted, Snapshot, TaskSnapshot


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """When to take checkpoints, in milliseconds.

    Attributes:
        periodic: False: only on request and at the end (`snapshots="none"`).
        failures_max: Failed checkpoints in a row that are tolerated.
    """

    periodic: bool
    interval_ms: int
    timeout_ms: int
    failures_max: int


@dataclass(slots=True)
class _Pending:
    started_ms: int
    is_after_drain: bool
    snapshots: dict[TaskId, Snapshot] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Triggered:
    """Send TriggerCheckpoint n to every worker."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Whole:
    """Every task has acknowledged: append this entry. The checkpoint is not complete before that."""

    entry: CheckpointCompleted


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Checkpoint n will not complete; `paths` are the parts that its snapshots wrote."""

    checkpoint_id: CheckpointId
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a completed checkpoint shows of the job.

    Attributes:
        is_after_drain: It was triggered when every source was drained.
        in_flight: Records that were on their way in channels.
    """

    is_after_drain: bool
    in_flight: int

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way anywhere and nothing can come: a stable property."""
        return self.is_after_drain and self.in_flight == 0


class EpochCheckpoints:
    """Checkpoints under way in one epoch; one at a time.

    Args:
        tasks: Every task of the job: each has to acknowledge.
        sources: Those that must be drained before a final checkpoint is worth taking.
        next_id: First id to use. Ids grow and are never reused, so the next epoch goes on from
            this machine's `next_id`.
    """

    def __init__(
        self, epoch: Epoch, tasks: frozenset[TaskId], sources: frozenset[TaskId], next_id: CheckpointId
    ) -> None:
        self._epoch = epoch
        self._tasks = tasks
        self._sources = sources
        self._drained: set[TaskId] = set()
        self._pending: dict[CheckpointId, _Pending] = {}
        self._appending: CheckpointId | None = None
        self.next_id = next_id
        self.dropped: Counter[str] = Counter()

    @property
    def under_way(self) -> CheckpointId | None:
        """The checkpoint that waits for acknowledgements or for its log entry."""
        return next(iter(self._pending), None)

    @property
    def acknowledged(self) -> frozenset[TaskId]:
        """Tasks that have acknowledged the checkpoint under way."""
        return frozenset(task for one in self._pending.values() for task in one.snapshots)

    @property
    def is_drained(self) -> bool:
        """Whether every source has read all of its input."""
        return self._sources <= self._drained

    def source_drained(self, task: TaskId) -> bool:
        """Note that source `task` is drained; return whether that made all of them so."""
        if task not in self._sources or task in self._drained:
            self.dropped["repeated drained"] += 1
            return False
        self._drained.add(task)
        return self.is_drained

    def trigger(self, now_ms: int) -> Triggered | None:
        """Start the next checkpoint, unless one is under way."""
        if self._pending:
            return None
        checkpoint_id = self.next_id
        self.next_id = CheckpointId(checkpoint_id + 1)
        self._pending[checkpoint_id] = _Pending(now_ms, self.is_drained)
        return Triggered(checkpoint_id)

    def acknowledge(
        self, checkpoint_id: CheckpointId, task: TaskId, snapshot: Snapshot, now_ms: int, wall_clock: str
    ) -> Whole | None:
        """Note the snapshot of `task`; return the log entry once the last task is in."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or task not in self._tasks:
            self.dropped["late acknowledgement"] += 1
            return None
        if task in pending.snapshots:
            self.dropped["repeated acknowledgement"] += 1
            return None
        pending.snapshots[task] = snapshot
        if pending.snapshots.keys() != self._tasks or self._appending is not None:
            return None
        self._appending = checkpoint_id
        return Whole(
            CheckpointCompleted(
                epoch=self._epoch,
                checkpoint_id=checkpoint_id,
                snapshots=tuple(
                    TaskSnapshot(one, pending.snapshots[one]) for one in sorted(pending.snapshots)
                ),
                # Chandy and Lamport's stable property: a cut on which nothing is under way anywhere
                # and no source has more stays like that for ever.
                is_final=all(one.drained for one in pending.snapshots.values()),
                duration_ms=now_ms - pending.started_ms,
                wall_clock=wall_clock,
            )
        )

    def completed(self, checkpoint_id: CheckpointId) -> Completion:
        """Note that the log entry of `checkpoint_id` is durable; return what it shows."""
        pending = self._pending.pop(checkpoint_id)
        self._appending = None
        in_flight = sum(snapshot.in_flight for snapshot in pending.snapshots.values())
        return Completion(pending.is_after_drain, in_flight)

    def give_up(self, checkpoint_id: CheckpointId) -> GivenUp | None:
        """Abort `checkpoint_id` only.

        None if it is not under way, or if its entry is being appended: then only the store can tell
        what becomes of it.
        """
        if checkpoint_id not in self._pending or checkpoint_id == self._appending:
            self.dropped["abort of a checkpoint that is not waiting"] += 1
            return None
        return self._forget(checkpoint_id)

    def append_refused(self, checkpoint_id: CheckpointId) -> GivenUp:
        """Note that the log entry has certainly not been written: the checkpoint is void."""
        self._appending = None
        return self._forget(checkpoint_id)

    def _forget(self, checkpoint_id: CheckpointId) -> GivenUp:
        pending = self._pending.pop(checkpoint_id)
        return GivenUp(checkpoint_id, tuple(pending.snapshots[task] for task in sorted(pending.snapshots)))
