"""What happens to the checkpoints of a job, beside what the coordinator hears itself: see `scheduler`."""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.events import (
    CheckpointRequested,
    PartsDeleted,
    PartsDiscarded,
    PartsListed,
    SavepointWritten,
    TimerFired,
)
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.ownership import NoCheckpoint
from crosscut.protocol.messages import (
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    TaskQuiet,
    TransactionsCommitted,
)


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """The tasks of the epoch are being deployed."""


@dataclass(frozen=True, slots=True)
class TasksReady:
    """All tasks are restored: records flow, unless the restored checkpoint is final."""


@dataclass(frozen=True, slots=True)
class StopBegan:
    """The job takes a last checkpoint, and then ends."""


@dataclass(frozen=True, slots=True)
class CheckpointDurable:
    """The entry of a checkpoint is in the log, perhaps after the end of its epoch."""

    entry: CheckpointCompleted
    log_index: LogIndex


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """The epoch is over: its checkpoints under way will not complete, except those in the log already."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobOver:
    """The job is over: no checkpoint follows."""

    reason: str


TaskReport = SnapshotAcknowledged | SnapshotDeclined | TaskQuiet | SourceDrained
"""What tasks say of a checkpoint under way, and of their input."""

SchedulerEvent = (
    EpochBegan | TasksReady | StopBegan | CheckpointDurable | NoCheckpoint | EpochEnded | JobOver
    | TaskReport | TransactionsCommitted | CheckpointRequested | SavepointWritten | TimerFired
    | PartsListed | PartsDiscarded | PartsDeleted
)  # fmt: skip
