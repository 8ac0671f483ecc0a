"""Everything that a protocol machine can ask for. Imperatives, carried out by a performer in list order.

A performer carries out the effects of one `handle` call in order, before the next event (docs/protocol.md).
Each class states the rest of its contract:

* After: what is durable before it is carried out.
* Answer: the event, message or timer that answers it.
* Lost: what follows if the process dies before it is carried out.
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
    """Let these deliver again.

    After: -
    Answer: nothing
    Lost: with the task; a restored one blocks nothing
    """

    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Freeze the task's state as it is now, and cut the sink's open transaction off.

    After: -
    Answer: nothing
    Lost: with the task, and the checkpoint times out
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ForwardBarrier:
    """Send barrier n on every output, after everything emitted so far and before anything later.

    After: -
    Answer: nothing, or BarrierDeparted where `departing` names the barrier
    Lost: with the task, and the checkpoint times out
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class OvertakeWithBarrier:
    """Send barrier n on every output, ahead of all that waits there; log the records it overtook.

    After: -
    Answer: nothing
    Lost: with the task, and the checkpoint times out
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ExpediteBarrier:
    """Where barrier n, which was forwarded, still waits in an output, move it ahead of the records before
    it; log those.

    After: -
    Answer: nothing
    Lost: with the task, and the checkpoint times out
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class StartLog:
    """From the capture on, keep what `channels` hold and get for the snapshot of n, each until its log
    is stopped; a barrier n that already waits in one of them has arrived.

    After: -
    Answer: BarrierArrived, at once, for a barrier that waits there
    Lost: with the task, and the checkpoint times out
    """

    checkpoint_id: CheckpointId
    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class StartAlignmentTimer:
    """Wait as long as the settings allow an alignment to take.

    After: -
    Answer: AlignmentTimedOut
    Lost: with the task
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Write the frozen state in the background.

    After: -
    Answer: SnapshotStored or SnapshotFailed; neither while the store hangs
    Lost: the checkpoint times out
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DiscardSnapshot:
    """Stop writing the frozen state of n; its parts are of no use. The staged transaction is
    kept: its records come before every later barrier.

    After: -
    Answer: nothing
    Lost: the files stay until the next epoch sweeps them
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class AcknowledgeSnapshot:
    """Report the snapshot to the coordinator.

    After: the snapshot, and its transaction prepared
    Answer: nothing
    Lost: the checkpoint times out
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """Report to the coordinator that this task takes no part in checkpoint n.

    After: -
    Answer: nothing
    Lost: the checkpoint times out

    Attributes:
        is_permanent: As in `SnapshotFailed`.
    """

    checkpoint_id: CheckpointId
    reason: str
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class ReportQuiet:
    """Tell the coordinator that this task stands still for checkpoint n.

    After: -
    Answer: CaptureAllowed or CheckpointAborted
    Lost: the checkpoint times out
    """

    checkpoint_id: CheckpointId


TaskEffect = (
    UnblockChannels | CaptureState | ForwardBarrier | OvertakeWithBarrier | ExpediteBarrier
    | StartLog | StartAlignmentTimer | StoreSnapshot | DiscardSnapshot | AcknowledgeSnapshot
    | DeclineCheckpoint | ReportQuiet
)  # fmt: skip

# Of the committer of one sink task.


@dataclass(frozen=True, slots=True)
class CommitTransactions:
    """Make `handles` visible, after `delay_ms`, with a permit that only a durable entry yields.

    After: the entry of the checkpoint
    Answer: CommitSucceeded or CommitAttemptFailed; the task fails if the sink hangs
    Lost: the restore commits again
    """

    permit: CommitPermit
    handles: tuple[JSON, ...]
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class AnnounceCommitted:
    """Tell the coordinator that everything at or below n is committed.

    After: the output in the system of the sink
    Answer: nothing
    Lost: the restore commits again, which changes nothing
    """

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FailTask:
    """Report to the coordinator that the task has failed.

    After: -
    Answer: nothing
    Lost: with the process, whose silence says the same
    """

    reason: str
    is_permanent: bool = False
    is_transient: bool = False


CommitterEffect = CommitTransactions | AnnounceCommitted | FailTask

# Of the coordinator.


@dataclass(frozen=True, slots=True)
class ReadLogTail:
    """Ask the sinks for their committed output, then read the end of the log.

    In this order: the log then knows all output that was visible, unless it is another log.

    After: -
    Answer: LogTailRead or CancelRequested; timer read-log
    Lost: with the driver, which has claimed nothing

    Attributes:
        checkpoints: How many completed ones, the newest, besides the newest epoch claim.
    """

    checkpoints: int


@dataclass(frozen=True, slots=True)
class DiscoverSplits:
    """Ask the sources for their splits.

    After: -
    Answer: SplitsDiscovered or CancelRequested; timer discover
    Lost: with the driver, which has claimed nothing

    Attributes:
        epoch: That is claimed next, if no other driver claims it: what sources stage is named after it.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FindSplits:
    """Ask a dynamic source for splits that have come.

    One call at a time for each source: none is asked for until the one before has been answered.

    After: -
    Answer: SplitsFound or DiscoveryFailed; timer find-timeout
    Lost: the next epoch asks again with what its checkpoint knows

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
    """Create entry `index` if it does not exist.

    After: all snapshots that it names
    Answer: EntryAppended, EntryTaken, EntryRefused or EntryUncertain; timer log-call
    Lost: the next driver finds the log without it, or with it

    Attributes:
        since: An entry of the same segment, much like this one: only what differs from it need be written.
    """

    index: LogIndex
    entry: LogEntry
    since: LogIndex | None = None


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read entry `index` back.

    After: -
    Answer: EntryRead or EntryUncertain; timer log-call
    Lost: with the driver; the next one reads the log
    """

    index: LogIndex


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Wait; a running timer of this name is replaced.

    After: -
    Answer: TimerFired
    Lost: with the driver
    """

    timer: Timer
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget a timer.

    After: -
    Answer: nothing
    Lost: with the driver; one that fires all the same is stale
    """

    timer: Timer


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send on one link, after all that was sent there before.

    After: the facts that the message reveals
    Answer: nothing, or MessageReceived; LinkClosed if the worker is lost
    Lost: with the link, and the epoch fails
    """

    link: LinkId
    message: CoordinatorMessage


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close a link.

    After: -
    Answer: LinkClosed
    Lost: the worker hears no heartbeat, and exits
    """

    link: LinkId


@dataclass(frozen=True, slots=True)
class SubmitWorkers:
    """Have Spark run the workers.

    After: the claim of the epoch
    Answer: RegisterWorker of each, or WorkersEnded; timer gather
    Lost: with the driver
    """


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """Have Spark end this attempt, best effort, so that it starts another one.

    After: -
    Answer: RegisterWorker of another attempt; timer gather
    Lost: Spark notices the end of the attempt later
    """

    worker: WorkerIndex
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class ListParts:
    """List the parts, and the entries of the log.

    After: -
    Answer: PartsListed, or nothing: it only serves tidiness
    Lost: the next epoch lists them
    """


@dataclass(frozen=True, slots=True)
class DeleteParts:
    """Delete what nothing refers to any more.

    After: the newer entry, which does not refer to them
    Answer: PartsDeleted, also if some could not be deleted; timer delete
    Lost: they stay until the next epoch lists them

    Attributes:
        entries: Of the log, in segments that hold nothing of the retained checkpoints.
    """

    paths: tuple[str, ...]
    entries: tuple[LogIndex, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Answer a request for a checkpoint with the one that was triggered for it, or a newer one.

    After: the entry of the checkpoint
    Answer: SavepointWritten, of a savepoint
    Lost: with the driver, and the request with it

    Attributes:
        completed: None if it has failed, for `reason`.
    """

    request: int
    completed: CheckpointCompleted | None
    reason: str = ""


Outcome = Literal["finished", "stopped", "cancelled", "failed", "fenced"]


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over for this driver.

    After: what the outcome says
    Answer: nothing
    Lost: the next start goes on from the log
    """

    outcome: Outcome
    cause: FailureCause | None = None


JobEffect = (
    ReadLogTail | DiscoverSplits | FindSplits | AppendEntry | ReadEntry | StartTimer | CancelTimer
    | SendMessage | CloseLink
    | SubmitWorkers | ReplaceWorker | ListParts | DeleteParts | AnswerRequest | EndJob
)  # fmt: skip
