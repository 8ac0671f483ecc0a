"""The checkpoints of one epoch: trigger, collect, complete, abort.

The status of a checkpoint is derived from two facts: which tasks have acknowledged, and
whether its log entry is durable. Tasks are remembered by id, never counted, so a repeated
acknowledgement changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot


@dataclass(slots=True)
class _Pending:
    started_ms: int
    is_after_drain: bool
    snapshots: dict[TaskId, Snapshot] = field(default_factory=dict)
    quiet: set[TaskId] = field(default_factory=set)


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
    """Checkpoint n will not complete.

    Attributes:
        snapshots: Those that were acknowledged.
        is_after_drain: It was triggered when every source was drained.
    """

    checkpoint_id: CheckpointId
    snapshots: tuple[Snapshot, ...]
    is_after_drain: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """The job, as a completed checkpoint shows it.

    Attributes:
        is_after_drain: It was triggered when every source was drained.
        is_halted: Every task stands still for it.
        subsumed: Older ones that were under way: there is no use in them any more.
    """

    is_after_drain: bool
    is_halted: bool = False
    subsumed: tuple[GivenUp, ...] = ()


class PendingCheckpoints:
    """Checkpoints under way in one epoch.

    Several may be, and they may become whole in any order. Log entries are in the order of ids all the
    same: one that becomes whole after a newer one is appended only if the newer one is refused;
    completing the newer one subsumes it.

    Args:
        tasks: Every task of the job: each has to acknowledge.
        sources: Those that must be drained before a final checkpoint is worth taking.
        next_id: First id to use. Ids grow and are never reused, so the next epoch goes on from
            this machine's `next_id`.
        in_flight_max: How many may be under way at once.
    """

    def __init__(
        self,
        epoch: Epoch,
        tasks: frozenset[TaskId],
        sources: frozenset[TaskId],
        next_id: CheckpointId,
        in_flight_max: int = 1,
    ) -> None:
        self._epoch = epoch
        self._tasks = tasks
        self._sources = sources
        self._drained: set[TaskId] = set()
        self._pending: dict[CheckpointId, _Pending] = {}
        self._appending: set[CheckpointId] = set()
        self._in_flight_max = in_flight_max
        self.next_id = next_id
        self.dropped: Counter[str] = Counter()

    @property
    def under_way(self) -> CheckpointId | None:
        """The oldest checkpoint that waits for acknowledgements or for its log entry."""
        return next(iter(self._pending), None)

    def is_under_way(self, checkpoint_id: CheckpointId) -> bool:
        """Whether `checkpoint_id` waits for acknowledgements or for its log entry."""
        return checkpoint_id in self._pending

    def missing(self, checkpoint_id: CheckpointId) -> frozenset[TaskId]:
        """Return the tasks that have not acknowledged `checkpoint_id`."""
        pending = self._pending.get(checkpoint_id)
        return self._tasks - pending.snapshots.keys() if pending else frozenset()

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return every snapshot that a checkpoint under way has, whose parts are therefore in use."""
        return tuple(one for pending in self._pending.values() for one in pending.snapshots.values())

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
        """Start the next checkpoint, unless enough are under way."""
        if len(self._pending) >= self._in_flight_max:
            return None
        checkpoint_id = self.next_id
        self.next_id = CheckpointId(checkpoint_id + 1)
        self._pending[checkpoint_id] = _Pending(now_ms, self.is_drained)
        return Triggered(checkpoint_id)

    def acknowledge(
        self, checkpoint_id: CheckpointId, task: TaskId, snapshot: Snapshot, now_ms: int, wall_clock: str
    ) -> Whole | None:
        """Note the snapshot of `task`; return the log entry once the last task is in.

        None also if a newer checkpoint's entry is being appended: see `next_whole`.
        """
        pending = self._pending.get(checkpoint_id)
        if pending is None or task not in self._tasks:
            self.dropped["late acknowledgement"] += 1
            return None
        if task in pending.snapshots:
            self.dropped["repeated acknowledgement"] += 1
            return None
        pending.snapshots[task] = snapshot
        return self._whole(checkpoint_id, now_ms, wall_clock)

    def next_whole(self, now_ms: int, wall_clock: str) -> Whole | None:
        """Return the oldest checkpoint that is whole and has waited for the verdict on a newer one."""
        found = (self._whole(n, now_ms, wall_clock) for n in sorted(self._pending))
        return next((whole for whole in found if whole is not None), None)

    def quiet(self, checkpoint_id: CheckpointId, task: TaskId) -> bool:
        """Note that `task` stands still for `checkpoint_id`; return whether now all of them do."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or task not in self._tasks:
            self.dropped["late quiet"] += 1
            return False
        if task in pending.quiet:
            self.dropped["repeated quiet"] += 1
            return False
        pending.quiet.add(task)
        return pending.quiet == self._tasks

    def _whole(self, checkpoint_id: CheckpointId, now_ms: int, wall_clock: str) -> Whole | None:
        pending = self._pending[checkpoint_id]
        if pending.snapshots.keys() != self._tasks or max(self._appending, default=0) >= checkpoint_id:
            return None
        self._appending.add(checkpoint_id)
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
        self._appending.discard(checkpoint_id)
        return Completion(
            is_after_drain=pending.is_after_drain,
            is_halted=pending.quiet == self._tasks,
            # The log decides in order: an older one that was being appended has been decided.
            subsumed=tuple(self._forget(n) for n in sorted(self._pending) if n < checkpoint_id),
        )

    def give_up(self, checkpoint_id: CheckpointId) -> GivenUp | None:
        """Abort `checkpoint_id` only.

        None if it is not under way, or if its entry is being appended: then only the store can tell
        what becomes of it.
        """
        if checkpoint_id not in self._pending or checkpoint_id in self._appending:
            self.dropped["abort of a checkpoint that is not waiting"] += 1
            return None
        return self._forget(checkpoint_id)

    def give_up_waiting(self) -> tuple[GivenUp, ...]:
        """Abort all but those whose entry is being appended."""
        return tuple(self._forget(n) for n in sorted(self._pending) if n not in self._appending)

    def append_refused(self, checkpoint_id: CheckpointId) -> GivenUp:
        """Note that the log entry has certainly not been written: the checkpoint is void."""
        self._appending.discard(checkpoint_id)
        return self._forget(checkpoint_id)

    def _forget(self, checkpoint_id: CheckpointId) -> GivenUp:
        pending = self._pending.pop(checkpoint_id)
        acknowledged = tuple(pending.snapshots[task] for task in sorted(pending.snapshots))
        return GivenUp(checkpoint_id, acknowledged, pending.is_after_drain)
