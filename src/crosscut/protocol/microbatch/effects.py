"""What is to be done about batches; each class states its contract as in `crosscut.protocol.effects`."""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Attempt


@dataclass(frozen=True, slots=True)
class RecoverOutput:
    """Commit what checkpoint `restore` commits, and remove what older epochs have staged.

    After: the claim of the epoch
    Answer: OutputRecovered or RecoveryFailed
    Lost: the next epoch recovers
    """

    epoch: Epoch
    restore: CheckpointId


@dataclass(frozen=True, slots=True)
class ReportReady:
    """Tell the coordinator that batches can run.

    After: what checkpoint `restore` commits, in the systems of the sinks
    Answer: nothing
    Lost: the epoch times out
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Have Spark run batch n over checkpoint `base`.

    After: checkpoint `base`, and its output visible
    Answer: PartitionReturned of each partition or AttemptFailed, and RunEnded
    Lost: the next epoch runs another batch over the same base
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    run: int
    base: CheckpointId


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Have Spark give a run up, best effort.

    After: -
    Answer: RunEnded, which is stale
    Lost: the run brings what is not taken
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    run: int


@dataclass(frozen=True, slots=True)
class AcknowledgeBatch:
    """Hand the snapshots of the taken attempts to the coordinator, as those of all its tasks.

    After: the snapshots of the taken attempts, and what they have staged
    Answer: BatchCompleted or BatchAborted
    Lost: the checkpoint times out
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    taken: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class AbortAttempts:
    """Remove what these attempts have staged, best effort: no checkpoint has it, or will have.

    After: -
    Answer: nothing
    Lost: a sweep removes it
    """

    epoch: Epoch
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class DiscardParts:
    """Delete the files that snapshots of attempts are in which were not taken, best effort.

    After: -
    Answer: nothing
    Lost: a sweep deletes them
    """

    epoch: Epoch
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepParts:
    """Delete the files that nothing refers to, best effort.

    Attempts that died, or that Spark did not wait for, have not reported what they had written.

    After: -
    Answer: nothing
    Lost: a later sweep deletes them
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SweepOutput:
    """Remove all that is staged, best effort: everything that any checkpoint has is visible.

    Only when the epoch is over; for the time before see `CommitBatch`. Attempts that died have told nobody
    what they had staged.

    After: the output of every completed checkpoint, in the systems of the sinks
    Answer: nothing
    Lost: the recovery of the next epoch removes it
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Make visible what checkpoint n commits, after `delay_ms`, with the permit that its entry yields.

    After: the entry of checkpoint n
    Answer: OutputCommitted or CommitFailed; CommitOverdue if neither has come in time
    Lost: the recovery of the next epoch commits it

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
    """Tell the coordinator that the sinks have committed all up to n.

    After: the output of n, in the systems of the sinks
    Answer: nothing
    Lost: the recovery of the next epoch commits it, which changes nothing
    """

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FailEpoch:
    """Tell the coordinator that the epoch has failed, and where; it decides what follows.

    After: -
    Answer: EpochHalted, or nothing if the job is over
    Lost: with the driver

    Attributes:
        task: None: no single one, but Spark, or all of them together.
    """

    epoch: Epoch
    task: TaskId | None
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class FailJob:
    """Tell the coordinator that the job can't go on in this process.

    After: -
    Answer: nothing
    Lost: with the driver
    """

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
