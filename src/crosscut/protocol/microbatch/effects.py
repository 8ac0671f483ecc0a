"""What is to be done about batches: the effects of `crosscut.protocol.microbatch.batches`."""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Attempt


@dataclass(frozen=True, slots=True)
class RecoverOutput:
    """Commit what checkpoint `restore` commits, and remove what older epochs have staged.

    Answered by `OutputRecovered` or `RecoveryFailed`.
    """

    epoch: Epoch
    restore: CheckpointId


@dataclass(frozen=True, slots=True)
class ReportReady:
    """Tell the coordinator that batches can run."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Have Spark run batch n over checkpoint `base`. Answered by `PartitionReturned`s and `RunEnded`."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    run: int
    base: CheckpointId


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Have Spark give a run up, best effort."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    run: int


@dataclass(frozen=True, slots=True)
class AcknowledgeBatch:
    """Hand the snapshots of the taken attempts to the coordinator, as those of all its tasks."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    taken: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class AbortAttempts:
    """Remove what these attempts have staged, best effort: no checkpoint has it, or will have."""

    epoch: Epoch
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class DiscardParts:
    """Delete the files that snapshots of attempts are in which were not taken, best effort."""

    epoch: Epoch
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepParts:
    """Delete the files that nothing refers to, best effort.

    Attempts that died, or that Spark did not wait for, have told nobody what they had written.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SweepOutput:
    """Remove all that is staged, best effort: everything that any checkpoint has is visible.

    Only when the epoch is over; for the time before see `CommitBatch`. Attempts that died have told nobody
    what they had staged.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Make visible what checkpoint n commits, after `delay_ms`, with the permit that its entry yields.

    Answered by `OutputCommitted` or `CommitFailed`, and, if neither has come in time, by `CommitOverdue`.

    Attributes:
        sweeps: When it is visible, and before that is answered, remove all else that is staged, as
            `SweepOutput` does: the next batch stages where the sweep looks, and begins with the answer.
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    taken: tuple[Attempt, ...]
    delay_ms: int = 0
    sweeps: bool = False


@dataclass(frozen=True, slots=True)
class ReportCommitted:
    """Tell the coordinator that the sinks have committed all up to n."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FailEpoch:
    """Tell the coordinator that the epoch has failed, and where; it decides what follows.

    Attributes:
        task: None: no single one, but Spark, or all of them together.
    """

    epoch: Epoch
    task: TaskId | None
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class FailJob:
    """Tell the coordinator that the job can't go on in this process."""

    cause: FailureCause


BatchEffect = (
    RecoverOutput
    | ReportReady
    | RunBatch
    | CancelRun
    | AcknowledgeBatch
    | AbortAttempts
    | DiscardParts
    | SweepParts
    | SweepOutput
    | CommitBatch
    | ReportCommitted
    | FailEpoch
    | FailJob
)
