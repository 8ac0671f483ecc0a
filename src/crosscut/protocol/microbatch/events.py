"""What happens to batches: the events of `crosscut.protocol.microbatch.batches`."""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Attempt


@dataclass(frozen=True, slots=True)
class TasksDeployed:
    """The coordinator has dealt out checkpoint `restore`, 0 for the beginning, in an epoch of its own."""

    epoch: Epoch
    restore: CheckpointId


@dataclass(frozen=True, slots=True)
class OutputRecovered:
    """What the restored checkpoint commits is committed, and what older epochs have staged is gone."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class BatchTriggered:
    """Batch n is due. It may be told more than once."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class PartitionReturned:
    """An attempt at partition `index` of the last stage has come to its end, in run `run` of batch n.

    Attributes:
        brought: See `attempts.chosen`.
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    run: int
    index: int
    brought: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """User code, a source, a sink or the store has failed in an attempt, which has said why."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    run: int
    task: TaskId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Spark has ended run `run` of batch n; nothing of it returns any more, but zombies.

    Attributes:
        cause: Why it has given up; None: every partition has returned.
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    run: int
    cause: FailureCause | None = None


@dataclass(frozen=True, slots=True)
class BatchAborted:
    """The coordinator has given checkpoint n up: it is not in the job log, and will not be."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class BatchCompleted:
    """The entry of checkpoint n is durable. It may be told more than once."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class OutputCommitted:
    """All that checkpoint n commits is visible."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """Not all of it could be made visible, or it is not known."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    task: TaskId
    reason: str
    operator: str = ""
    is_permanent: bool = False
    is_transient: bool = False


@dataclass(frozen=True, slots=True)
class CommitOverdue:
    """A commit of checkpoint n has been under way for as long as a sink may take."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """The output of the restored checkpoint could not be committed."""

    epoch: Epoch
    task: TaskId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class EpochHalted:
    """The epoch is over; another one is deployed, perhaps by another driver."""

    epoch: Epoch


BatchEvent = (
    TasksDeployed
    | OutputRecovered
    | RecoveryFailed
    | BatchTriggered
    | PartitionReturned
    | AttemptFailed
    | RunEnded
    | BatchAborted
    | BatchCompleted
    | OutputCommitted
    | CommitFailed
    | CommitOverdue
    | EpochHalted
)
