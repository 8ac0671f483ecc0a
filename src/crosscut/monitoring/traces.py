"""What became of checkpoints and failovers, step by step, by the driver's clock.

Derived from the coordinator's events and effects; nothing is decided by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import Any, Literal

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.effects import AppendEntry, JobEffect, SendMessage
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed, SegmentOpened
from crosscut.protocol.messages import DeployTasks, FailureCause, StartTasks, TriggerCheckpoint
from crosscut.protocol.snapshots import Snapshot
from crosscut.protocol.telemetry import SnapshotTimes

TRACES_MAX = 100
TRACES_OF_TASKS_MAX = 5
"""So many checkpoints are remembered with every task: at 400 tasks each is 30 kB."""

Outcome = Literal["under way", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """The snapshot of one task; in milliseconds since the checkpoint was triggered.

    Attributes:
        barrier_ms: The first barrier came, or, at a source, the word of the coordinator.
        freeze_ms: The last one had come, and the task was frozen.
        acknowledged_ms: The driver heard that it is durable.
    """

    task: TaskId
    barrier_ms: float
    freeze_ms: float
    acknowledged_ms: float


@dataclass(frozen=True, slots=True)
class CheckpointTrace:
    """One checkpoint: where its time went. Each step is that of the task that took longest for it.

    Attributes:
        began_ms: When it was triggered, in milliseconds since 1970.
        duration_ms: Until it was complete, or so far.
        alignment_ms: From the first barrier of a task to its freeze.
        freeze_ms: A task stood still.
        store_ms: From the freeze until all of a task was durable: encoding, upload, the sink's transaction.
        append_ms: From the last acknowledgement until the entry of the job log was durable.
        commit_ms: From there until the last sink had committed; None: it has not yet, or there is none.
        last: The task that acknowledged last, None if none has.
        acknowledged: How many tasks have.
        reason: Why it has failed.
        tasks: Only of the newest.
    """

    checkpoint_id: CheckpointId
    epoch: Epoch
    began_ms: int
    outcome: Outcome = "under way"
    duration_ms: float = 0.0
    alignment_ms: float = 0.0
    freeze_ms: float = 0.0
    store_ms: float = 0.0
    append_ms: float = 0.0
    commit_ms: float | None = None
    state_bytes: int = 0
    new_bytes: int = 0
    is_final: bool = False
    last: TaskId | None = None
    acknowledged: int = 0
    reason: str = ""
    tasks: tuple[TaskTrace, ...] = ()


@dataclass(frozen=True, slots=True)
class FailoverTrace:
    """One failover; the steps in milliseconds since the failure was noticed, None if not there yet.

    Attributes:
        epoch: The one that failed.
        noticed_ms: In milliseconds since 1970.
        restores: The checkpoint that it goes back to, 0: to the beginning; None: that is not known yet.
        claimed_ms: The next epoch was about to be claimed in the job log.
        deployed_ms: The tasks were sent to the workers.
        started_ms: All workers were ready, and the sources were let go.
        flowing_ms: The first records went through a task.
    """

    epoch: Epoch
    noticed_ms: int
    cause: FailureCause
    restores: int | None = None
    claimed_ms: float | None = None
    deployed_ms: float | None = None
    started_ms: float | None = None
    flowing_ms: float | None = None


@dataclass(slots=True)
class _Steps:
    """When a checkpoint had come how far, by the monotonic clock.

    What tasks acknowledge is gathered here: a trace can't be changed, and there may be thousands of them.
    """

    began_ns: int
    acknowledged_ns: int = 0
    completed_ns: int = 0
    alignment_ms: float = 0.0
    freeze_ms: float = 0.0
    store_ms: float = 0.0
    tasks: list[TaskTrace] = field(default_factory=list)
    last: TaskId | None = None
    acknowledged: int = 0


class CheckpointTraces:
    """The newest checkpoints, those under way too."""

    def __init__(self) -> None:
        self._traces: dict[CheckpointId, CheckpointTrace] = {}
        self._steps: dict[CheckpointId, _Steps] = {}

    def all(self) -> tuple[CheckpointTrace, ...]:
        """Return them, oldest first; the last few with their tasks."""
        detailed = set(sorted(self._steps)[-TRACES_OF_TASKS_MAX:])
        found = ((n, self._shown(n)) for n in sorted(self._traces))
        return tuple(
            replace(one, tasks=tuple(self._steps[n].tasks)) if n in detailed else one for n, one in found
        )

    def _shown(self, n: CheckpointId) -> CheckpointTrace:
        """Return a trace with what tasks have acknowledged: one that is decided has it."""
        trace, steps = self._traces[n], self._steps[n]
        if trace.outcome != "under way" or not steps.acknowledged:
            return trace
        return replace(
            trace,
            duration_ms=(steps.acknowledged_ns - steps.began_ns) / 1e6,
            alignment_ms=steps.alignment_ms,
            freeze_ms=steps.freeze_ms,
            store_ms=steps.store_ms,
            last=steps.last,
            acknowledged=steps.acknowledged,
        )

    def performed(self, now_ns: int, wall_ms: Callable[[], int], effects: Iterable[JobEffect]) -> None:
        """The coordinator has asked for this."""
        for effect in effects:
            if isinstance(effect, SendMessage) and isinstance(effect.message, TriggerCheckpoint):
                self._triggered(now_ns, wall_ms(), effect.message)

    def acknowledged(
        self, now_ns: int, n: CheckpointId, task: TaskId, snapshot: Snapshot, times: SnapshotTimes
    ) -> None:
        """A task has acknowledged."""
        trace, steps = self._traces.get(n), self._steps.get(n)
        if trace is None or steps is None or trace.outcome != "under way":
            return
        since_ms = (now_ns - steps.began_ns) / 1e6
        freeze_ms = max(0.0, since_ms - times.store_us / 1e3)
        barrier_ms = max(0.0, freeze_ms - times.alignment_us / 1e3)
        steps.tasks.append(TaskTrace(task, barrier_ms, freeze_ms, since_ms))
        steps.acknowledged_ns, steps.last, steps.acknowledged = now_ns, task, len(steps.tasks)
        steps.alignment_ms = max(steps.alignment_ms, times.alignment_us / 1e3)
        steps.freeze_ms = max(steps.freeze_ms, snapshot.freeze_us / 1e3)
        steps.store_ms = max(steps.store_ms, times.store_us / 1e3)

    def completed(self, now_ns: int, entry: CheckpointCompleted, state_bytes: int, new_bytes: int) -> None:
        """Its entry is durable. Older ones that are under way are of no use any more."""
        trace, steps = self._traces.get(entry.checkpoint_id), self._steps.get(entry.checkpoint_id)
        if trace is None or steps is None:
            return
        steps.completed_ns = now_ns
        self._traces[entry.checkpoint_id] = replace(
            self._shown(entry.checkpoint_id),
            outcome="completed",
            # It may have been given up when its epoch was over, and its entry was durable all the same.
            reason="",
            duration_ms=(now_ns - steps.began_ns) / 1e6,
            append_ms=(now_ns - (steps.acknowledged_ns or now_ns)) / 1e6,
            state_bytes=state_bytes,
            new_bytes=new_bytes,
            is_final=entry.is_final,
        )
        for n in self.under_way:
            if n < entry.checkpoint_id:
                self.failed(now_ns, n, f"checkpoint {entry.checkpoint_id} was complete first")

    def committed(self, now_ns: int, n: CheckpointId) -> None:
        """A sink has committed everything up to `n`."""
        trace, steps = self._traces.get(n), self._steps.get(n)
        if trace is not None and steps is not None and steps.completed_ns:
            self._traces[n] = replace(trace, commit_ms=(now_ns - steps.completed_ns) / 1e6)

    def failed(self, now_ns: int, n: CheckpointId, reason: str) -> None:
        """It was given up."""
        trace, steps = self._traces.get(n), self._steps.get(n)
        if trace is not None and steps is not None and trace.outcome == "under way":
            duration_ms = (now_ns - steps.began_ns) / 1e6
            self._traces[n] = replace(
                self._shown(n), outcome="failed", reason=reason, duration_ms=duration_ms
            )

    def of(self, n: CheckpointId) -> CheckpointTrace | None:
        """Return what became of checkpoint `n`, None if it is not among the newest."""
        return self._shown(n) if n in self._traces else None

    @property
    def under_way(self) -> list[CheckpointId]:
        """Those that are not decided, oldest first."""
        return sorted(n for n, one in self._traces.items() if one.outcome == "under way")

    def _triggered(self, now_ns: int, wall_ms: int, message: TriggerCheckpoint) -> None:
        n = message.checkpoint_id
        if n in self._traces:
            # One message for each worker.
            return
        self._traces[n] = CheckpointTrace(n, message.epoch, wall_ms)
        self._steps[n] = _Steps(now_ns)
        while len(self._traces) > TRACES_MAX:
            oldest = next(iter(self._traces))
            del self._traces[oldest], self._steps[oldest]
        for old in sorted(self._steps)[:-TRACES_OF_TASKS_MAX]:
            self._steps[old].tasks.clear()


class FailoverTraces:
    """The newest failovers; the last one may be under way."""

    def __init__(self) -> None:
        self._traces: deque[FailoverTrace] = deque(maxlen=TRACES_MAX)
        self._noticed_ns = 0

    def all(self) -> tuple[FailoverTrace, ...]:
        """Return them, oldest first."""
        return tuple(self._traces)

    @property
    def under_way(self) -> FailoverTrace | None:
        """The one that no record has gone through a task after."""
        return self._traces[-1] if self._noticed_ns else None

    def begun(self, now_ns: int, wall_ms: int, epoch: Epoch, cause: FailureCause) -> None:
        """Epoch `epoch` has failed. What fails meanwhile belongs to the same failover."""
        if not self._noticed_ns:
            self._noticed_ns = now_ns
            self._traces.append(FailoverTrace(epoch, wall_ms, cause))

    def performed(self, now_ns: int, effects: Iterable[JobEffect]) -> None:
        """The coordinator has asked for this."""
        if not self._noticed_ns:
            return
        for effect in effects:
            match effect:
                case AppendEntry(_, EpochClaimed() | SegmentOpened()):
                    self._step(claimed_ms=self._since(now_ns))
                case SendMessage(_, DeployTasks() as deploy):
                    self._step(deployed_ms=self._since(now_ns), restores=int(deploy.restore))
                case SendMessage(_, StartTasks()):
                    self._step(started_ms=self._since(now_ns))
                case _:
                    pass

    def flowing(self, now_ns: int) -> FailoverTrace | None:
        """Records flow; return the failover that is over with it."""
        if not self._noticed_ns:
            return None
        self._step(flowing_ms=self._since(now_ns))
        self._noticed_ns = 0
        return self._traces[-1]

    def _since(self, now_ns: int) -> float:
        return (now_ns - self._noticed_ns) / 1e6

    def _step(self, **steps: Any) -> None:
        """Note steps of the failover under way; the last time counts."""
        self._traces[-1] = replace(self._traces[-1], **steps)
