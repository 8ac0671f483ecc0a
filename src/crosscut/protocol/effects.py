"""Everything that a protocol machine can ask for. Imperatives, carried out by a performer in list order.

The contract (docs/protocol.md): a performer carries out the effects of one `handle` call in order, before
the next event; a fact is durable before an effect reveals it; each effect that can fail is answered
by an event or covered by a timer; losing one in a crash is harmless.
"""

from __future__ import annotations

from typing import Literal

from crosscut.contracts.connectors import JSON, CommitPermit
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import (
    AttemptId,
    ChannelId,
    CheckpointId,
    Epoch,
    LogIndex,
    VertexId,
    WorkerIndex,
)
from crosscut.protocol.events import LinkId, Timer
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry
from crosscut.protocol.messages import CoordinatorMessage, FailureCause

# Of the snapshot protocol of one task.


@dataclass(frozen=True, slots=True)
class UnblockChannels:
    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Freeze the task's state as it is now, and cut the sink's open transaction off."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ForwardBarrier:
    """Send barrier n on every output, after everything emitted so far and before anything later."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class OvertakeWithBarrier:
    """Send barrier n on every output, ahead of all that waits there; log the records it overtook."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ExpediteBarrier:
    """Where barrier n, which was forwarded, still waits in an output, move it ahead of the records before
    it; log those."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class StartLog:
    """From the capture on, keep what `channels` hold and get for the snapshot of n, each until its log
    is stopped; a barrier n that already waits in one of them has arrived."""

    checkpoint_id: CheckpointId
    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class StartAlignmentTimer:
    """Answer AlignmentTimedOut when the alignment has taken as long as the settings allow."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Write the frozen state in the background; answer SnapshotStored or SnapshotFailed."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DiscardSnapshot:
    """Stop writing the frozen state of n; its parts are of no use. The staged transaction is
    kept: its records come before every later barrier."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class AcknowledgeSnapshot:
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    checkpoint_id: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class ReportQuiet:
    """Tell the coordinator that this task stands still for checkpoint n."""

    checkpoint_id: CheckpointId


TaskEffect = (
    UnblockChannels | CaptureState | ForwardBarrier | OvertakeWithBarrier | ExpediteBarrier
    | StartLog | StartAlignmentTimer | StoreSnapshot | DiscardSnapshot | AcknowledgeSnapshot
    | DeclineCheckpoint | ReportQuiet
)  # fmt: skip

# Of the committer of one sink task.


@dataclass(frozen=True, slots=True)
class CommitTransactions:
    """Make `handles` visible, after `delay_ms`; answer CommitSucceeded or CommitAttemptFailed."""

    permit: CommitPermit
    handles: tuple[JSON, ...]
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class AnnounceCommitted:
    """Tell the coordinator that everything at or below n is committed."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FailTask:
    reason: str
    is_permanent: bool = False
    is_transient: bool = False


CommitterEffect = CommitTransactions | AnnounceCommitted | FailTask

# Of the coordinator.


@dataclass(frozen=True, slots=True)
class ReadLogTail:
    """Ask the sinks for their committed output, then read the end of the log; answered by LogTailRead.

    In this order: the log then knows all output that was visible, unless it is another log.

    Attributes:
        checkpoints: How many completed ones, the newest, besides the newest epoch claim.
    """

    checkpoints: int


@dataclass(frozen=True, slots=True)
class DiscoverSplits:
    """Ask the sources for their splits; answered by SplitsDiscovered.

    Attributes:
        epoch: That is claimed next, if nobody else claims it: what sources stage is named after it.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FindSplits:
    """Ask a dynamic source for splits that have come; answered by SplitsFound or FindingFailed.

    One call at a time for each source: none is asked for until the one before has been answered.

    Attributes:
        restored: The splits that were restored from a checkpoint that says nothing of what is known: when it
            was taken, the source was not dynamic. None: it says so.
    """

    epoch: Epoch
    source: VertexId
    known: JSON
    restored: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class AppendEntry:
    """Create entry `index` if it does not exist; the store's answer is an event.

    Attributes:
        since: An entry of the same segment, much like this one: only what differs from it need be written.
    """

    index: LogIndex
    entry: LogEntry
    since: LogIndex | None = None


@dataclass(frozen=True, slots=True)
class ReadEntry:
    index: LogIndex


@dataclass(frozen=True, slots=True)
class StartTimer:
    timer: Timer
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    timer: Timer


@dataclass(frozen=True, slots=True)
class SendMessage:
    link: LinkId
    message: CoordinatorMessage


@dataclass(frozen=True, slots=True)
class CloseLink:
    link: LinkId


@dataclass(frozen=True, slots=True)
class SubmitWorkers:
    """Have Spark run the workers; answered by registrations, or by WorkersEnded."""


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """Have Spark end this attempt, best effort, so that it starts another one."""

    worker: WorkerIndex
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class ListParts:
    """List the parts, and the entries of the log; answered by PartsListed, or not at all: it only serves
    tidiness."""


@dataclass(frozen=True, slots=True)
class DeleteParts:
    """Nothing refers to them any more; answered by PartsDeleted, also if some could not be deleted.

    Attributes:
        entries: Of the log, in segments that hold nothing of the retained checkpoints.
    """

    paths: tuple[str, ...]
    entries: tuple[LogIndex, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Tell whoever asked for a checkpoint of the one that was triggered for it, or of a newer one.

    Attributes:
        completed: None if it has failed, for `reason`.
    """

    request: int
    completed: CheckpointCompleted | None
    reason: str = ""


Outcome = Literal["finished", "stopped", "cancelled", "failed", "fenced"]


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over for this driver."""

    outcome: Outcome
    cause: FailureCause | None = None


JobEffect = (
    ReadLogTail | DiscoverSplits | FindSplits | AppendEntry | ReadEntry | StartTimer | CancelTimer
    | SendMessage | CloseLink
    | SubmitWorkers | ReplaceWorker | ListParts | DeleteParts | AnswerRequest | EndJob
)  # fmt: skip
