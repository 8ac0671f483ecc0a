"""Everything that can happen to a protocol machine. Past participles: it has happened already."""

from __future__ import annotations

from typing import Literal

from crosscut.contracts.connectors import JSON, CommittedOutput
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
from crosscut.protocol.log.entries import LogEntry
from crosscut.protocol.messages import FailureCause, SplitAssignment, WorkerMessage
from crosscut.protocol.snapshots import PendingTransaction

# To the snapshot protocol of one task.


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """Barrier n came out of `channel`, after every record that was sent before it."""

    channel: ChannelId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class BarrierAnnounced:
    """Barrier n has come into the input queue of `channel`; it will be delivered in its turn."""

    channel: ChannelId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """The coordinator asks a source task for checkpoint n: barrier n on its virtual input Nil."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The coordinator has given checkpoint n up."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class AlignmentTimedOut:
    """The alignment of n has taken as long as the settings allow."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class BarrierDeparted:
    """Barrier n, which was forwarded, has left this process on every output."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class SnapshotStored:
    """Everything of this task's snapshot at barrier n is durable."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """This task's snapshot at barrier n could not be stored.

    Attributes:
        is_permanent: The state itself can't be stored, whatever the store says.
    """

    checkpoint_id: CheckpointId
    reason: str
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class CaptureAllowed:
    """Every task stands still for checkpoint n: this one is to capture its state."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class SourcesResumed:
    """Checkpoint n, for which every task stood still, is complete: go on."""

    checkpoint_id: CheckpointId


TaskEvent = (
    BarrierArrived | BarrierAnnounced | BarrierDeparted | CheckpointTriggered | CheckpointAborted
    | AlignmentTimedOut | SnapshotStored | SnapshotFailed | CaptureAllowed | SourcesResumed
)  # fmt: skip

# To the committer of one sink task.


@dataclass(frozen=True, slots=True)
class TransactionPrepared:
    """The transaction cut off at barrier n is durable."""

    checkpoint_id: CheckpointId
    handle: JSON


@dataclass(frozen=True, slots=True)
class CommitAuthorised:
    """Checkpoint n is complete, says the coordinator.

    Attributes:
        together: What the task has to commit, where tasks of its sink commit together; None: what it has
            staged.
    """

    checkpoint_id: CheckpointId
    together: tuple[PendingTransaction, ...] | None = None


@dataclass(frozen=True, slots=True)
class CommitSucceeded:
    """The transactions of the attempt in flight are visible."""


@dataclass(frozen=True, slots=True)
class CommitAttemptFailed:
    """The attempt in flight failed, or its outcome is unknown.

    Attributes:
        is_permanent: The sink knows that every attempt meets the same error.
        is_transient: A later attempt may succeed, as when a service is down.
    """

    reason: str
    is_permanent: bool = False
    is_transient: bool = False


CommitterEvent = TransactionPrepared | CommitAuthorised | CommitSucceeded | CommitAttemptFailed

# To the coordinator.

LinkId = int
"""One control connection; never reused by a driver."""

TimerKind = Literal[
    "trigger", "checkpoint-timeout", "gather", "restore", "liveness", "restart", "forget-failure",
    "retry-append", "stop", "finish", "pause", "read-log", "read-again", "discover", "log-call",
    "delete", "align", "find", "find-timeout",
]  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    """Name of a timer; starting it again replaces it. `number` tells timers of one kind apart."""

    kind: TimerKind
    epoch: Epoch = Epoch(0)
    number: int = 0


@dataclass(frozen=True, slots=True)
class ClockRead:
    """What time it is, for durations in the log that people read. No decision depends on it."""

    now_ms: int
    wall_clock: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    timer: Timer


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """The process at the other end of `link` has proven that it is `attempt` of `worker`."""

    link: LinkId
    worker: WorkerIndex
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """`message` came from an authenticated worker over `link`."""

    link: LinkId
    message: WorkerMessage


@dataclass(frozen=True, slots=True)
class LinkClosed:
    link: LinkId
    reason: str


@dataclass(frozen=True, slots=True)
class WorkersEnded:
    """The Spark job that ran the workers is over.

    Attributes:
        is_final: So is Spark: it will never run others.
    """

    reason: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class LogTailRead:
    """The end of the job log: its newest entries in order, with the index of each.

    Attributes:
        outputs: The sinks' memory, asked for before the log was read.
    """

    entries: tuple[tuple[LogIndex, LogEntry], ...]
    outputs: tuple[CommittedOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class SplitsDiscovered:
    """The splits of all sources, each with the task that reads it."""

    assignments: tuple[SplitAssignment, ...]


@dataclass(frozen=True, slots=True)
class SplitsFound:
    """A dynamic source has been asked, in `epoch`, for splits that have come.

    Attributes:
        splits: As in `SplitAssignment`.
        known: What it is to be asked with next.
        is_last: There will be no others.
        is_coming: There will be others soon, as far as the source knows.
    """

    epoch: Epoch
    source: VertexId
    splits: JSON
    known: JSON
    is_last: bool = False
    is_coming: bool = False


@dataclass(frozen=True, slots=True)
class DiscoveryFailed:
    """A dynamic source that was asked in `epoch` has raised."""

    epoch: Epoch
    source: VertexId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class EntryAppended:
    """Entry `index` is durable."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class EntryTaken:
    """Entry `index` exists already."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class EntryUncertain:
    """The append of entry `index` may or may not have been applied, now or later."""

    index: LogIndex
    reason: str


@dataclass(frozen=True, slots=True)
class EntryRefused:
    """The append of entry `index` has certainly not been applied."""

    index: LogIndex
    reason: str


@dataclass(frozen=True, slots=True)
class EntryRead:
    """What entry `index` holds, or None if there is no such entry."""

    index: LogIndex
    entry: LogEntry | None


@dataclass(frozen=True, slots=True)
class PartsListed:
    """The files in the store, asked for in order to sweep those that nothing needs.

    Attributes:
        entries: Of the log, without the heads of its segments.
        unfinished: Paths of files of the log that are not whole. A driver that still writes one finds it
            gone, and writes it again.
    """

    paths: tuple[str, ...]
    entries: tuple[LogIndex, ...] = ()
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartsDiscarded:
    """No snapshot refers to these files, or will: attempts that were not taken have written them."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepRequested:
    """Attempts may have died since the last sweep, and it is unknown which files they have written."""


@dataclass(frozen=True, slots=True)
class PartsDeleted:
    """The deletion under way has been tried; whether each part is gone does not matter."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Take a last checkpoint, commit it, end; the next start resumes."""


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """The user wants the job to go back to its newest checkpoint, with all tasks made anew."""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """Somebody wants a checkpoint now; `request` names the wish and is never used again.

    Attributes:
        is_savepoint: It is to be written as a savepoint: the answer comes when its output is committed.
    """

    request: int
    is_savepoint: bool = False


@dataclass(frozen=True, slots=True)
class SavepointWritten:
    """The savepoint of `request` is written, or given up: the parts of its checkpoint are not needed."""

    request: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """End now; the next start resumes from the newest completed checkpoint.

    `cause`: something outside the protocol failed for good (no split found, the log can't be read),
    so the job has failed rather than been cancelled.
    """

    cause: FailureCause | None = None


@dataclass(frozen=True, slots=True)
class BrokenInvariant:
    """An invariant of the flow that does not hold on a cut; `stop`: the user wants the job to end then."""

    name: str
    message: str
    stop: bool


@dataclass(frozen=True, slots=True)
class CutJudged:
    """The invariants were evaluated on the cut of n, a completed checkpoint, as far as it could be read.

    Attributes:
        unjudged: Those that may end the job and could not be evaluated on it.
    """

    checkpoint_id: CheckpointId
    broken: tuple[BrokenInvariant, ...] = ()
    unjudged: tuple[str, ...] = ()


JobEvent = (
    ClockRead | TimerFired | LinkOpened | MessageReceived | LinkClosed | WorkersEnded | LogTailRead
    | SplitsDiscovered | SplitsFound | DiscoveryFailed | EntryAppended
    | EntryTaken | EntryUncertain | EntryRefused | EntryRead
    | PartsListed | PartsDiscarded | PartsDeleted | SweepRequested
    | StopRequested | RestartRequested | CancelRequested | CutJudged | CheckpointRequested | SavepointWritten
)  # fmt: skip
