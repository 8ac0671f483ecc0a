"""Messages between coordinator and workers, and the entries of the job log.

All of it is data only: ids, numbers, text, and JSON. `crosscut.wire.control` turns these classes to
bytes and back by their field types; nothing here is ever pickled (rule S6). Every message of a
running job carries its epoch; a receiver drops and counts those of another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crosscut.ids import AttemptId, CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId, WorkerIndex
from crosscut.interfaces import JSON
from crosscut.protocol.job.identity import Claimant, FlowIdentity

# The parts of a checkpoint


@dataclass(frozen=True, slots=True)
class Part:
    """One immutable piece of a snapshot: a file in the store, or, when small, the bytes themselves.

    Attributes:
        path: Relative to the store's root, or "" if `inline` holds the content.
        size_bytes: Length of the content.
        sha256: Hex digest of the content.
        inline: The content in base64, or "". Small parts travel in the manifest, which saves a file
            and two fsyncs for each task and checkpoint.
        checkpoint_id: At whose barrier the content was frozen.
    """

    path: str
    size_bytes: int
    sha256: str
    inline: str = ""
    checkpoint_id: CheckpointId = CheckpointId(0)


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A staged sink transaction: prepared at barrier `checkpoint_id`, not known to be committed.

    Attributes:
        held: Its records, where the sink's system can't stage them. Each snapshot has a part of its own
            for them, even of a transaction that an older one holds too: so a part belongs to one
            checkpoint, and goes with it.
    """

    checkpoint_id: CheckpointId
    handle: JSON
    held: Part | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The snapshot of one task at barrier n, once durable: where its pieces are.

    Attributes:
        parts: Keyed state, oldest first: a full part and the changes since then.
        positions: For a source task, position by split id (unfinished splits only), with the split
            itself; else None.
        pending: For a sink task, every transaction that this checkpoint commits, oldest first.
        drained: In this epoch the task has had the end of all its inputs, and passed it on after all
            that it had to say; and it is at rest. Nothing comes out of it any more.
        ended: The operators of the task have been told of the end of input, and have said all that they say
            then (it is told once, whatever the epoch).
        said: How far they have come with it, if they have begun and have not said all.
        at_rest: No record is on its way to the task or in it: none in `log`, and none of `map_async` whose
            result has not gone on. What its operators say at the end of input, timers and windows too, is
            not meant: see `drained`.
        watermark: Of the inputs together; None: none has come yet, or the flow has no event time.
        assigned: The watermarks that operators of the task make themselves, by operator.
        now_ms: The processing time of the task, in milliseconds since 1970; 0: it has no use for it.
        log: Records that were on their way in channels, where the protocol logs any.
        in_flight: How many those are.
        records_in: Records that the task has taken since the job's beginning; for a source, read.
        records_out: Those that it has sent on or, with a sink, written.
        state_keys: Rows of its keyed state.
        forerunners: Only where a task takes over from those of another parallelism: how many of `parts` are
            of each, in order.
        floors: Likewise: the watermark of each task of the vertex then, by index, where keys are shuffled.
        freeze_us: How long the synchronous part of the snapshot stopped the task, in microseconds.
    """

    parts: tuple[Part, ...] = ()
    positions: JSON = None
    pending: tuple[PendingTransaction, ...] = ()
    drained: bool = False
    ended: bool = False
    said: JSON = None
    at_rest: bool = False
    watermark: int | None = None
    assigned: JSON = None
    now_ms: int = 0
    freeze_us: int = 0
    log: tuple[Part, ...] = ()
    in_flight: int = 0
    records_in: int = 0
    records_out: int = 0
    state_keys: int = 0
    forerunners: tuple[int, ...] = ()
    floors: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """A snapshot with the task it is of."""

    task: TaskId
    snapshot: Snapshot


# The job log

CHECKPOINT_IDS_LEAD_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A history that a job goes on from: `lineage`, up to `checkpoint_id`, in a savepoint."""

    lineage: Lineage
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """Output of sink task `task`, of checkpoint `checkpoint_id` or before, that may not be committed."""

    task: TaskId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """Epoch `epoch` belongs to `driver`; whoever holds an older one is a zombie.

    Attributes:
        driver: Unique token of the claiming driver process.
        fingerprint: Of the graph, so that a different graph is refused before any side effect.
        flow: Identity of the job, so that another flow is refused, with the differences.
        claimant: Which process has claimed it, and when, for people.
        first_checkpoint_id: The epoch uses ids from here on, at most `CHECKPOINT_IDS_LEAD_MAX` above
            this or the newest completed one; so a new driver can step over all that were ever used.
        writers: How many logical tasks of each sink may have left something, if they are more than there are
            now, as after a smaller parallelism was chosen; else 0.
        ancestors: The histories that this one goes on from, through savepoints; the newest last.
    """

    epoch: Epoch
    lineage: Lineage
    driver: str
    fingerprint: str
    parallelism: int
    max_parallelism: int
    first_checkpoint_id: CheckpointId
    flow: FlowIdentity = FlowIdentity("")
    claimant: Claimant = Claimant()
    writers: int = 0
    ancestors: tuple[Ancestor, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """Checkpoint n is complete. That this entry is durable *is* the completion (decision moment)."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    snapshots: tuple[TaskSnapshot, ...]
    is_final: bool = False
    duration_ms: int = 0
    wall_clock: str = ""
    """ISO time, for people only: no decision reads it."""


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The final checkpoint `checkpoint_id` is committed everywhere; there is nothing left to run."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class SegmentOpened:
    """The head of a segment of the log: from here on it is written by the driver of `claim`.

    It is a claim of its epoch where that is newer than what stands before; else the same driver goes on
    in a new segment, so that the older ones can be deleted.

    Attributes:
        claim: The newest claim.
        previous: The last entry of the segment before; None in the very first.
    """

    claim: EpochClaimed
    previous: LogIndex | None

    @property
    def epoch(self) -> Epoch:
        """The epoch whose driver writes the segment."""
        return self.claim.epoch


@dataclass(frozen=True, slots=True)
class SegmentClosed:
    """The last entry of a segment, written by the driver that is about to claim `epoch`.

    It stands where the driver before would append next: that one finds its index taken. Never deleted.
    """

    epoch: Epoch
    driver: str
    claimant: Claimant


JobEntry = EpochClaimed | CheckpointCompleted | JobFinished
"""Entries that a coordinator appends."""

LogEntry = JobEntry | SegmentOpened | SegmentClosed


# Worker -> coordinator


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Why a task or worker failed, as text: exceptions of workers are never unpickled by the driver.

    Attributes:
        kind: Name of the exception class, or "WorkerLost", "Timeout", ...
        message: What failed and what to do.
        operator: uid of the operator whose user code failed, or "".
        record: repr of the record to blame, shortened, or "".
        traceback: As text, or "".
        is_final: It will be the same after every restart, so there is no use in trying.
        is_first: The operator had taken no other record in this epoch.
        is_from_outside: The system or the network refused something (an OSError is among its causes).
    """

    kind: str
    message: str
    operator: str = ""
    record: str = ""
    traceback: str = ""
    is_final: bool = False
    is_first: bool = False
    is_from_outside: bool = False


@dataclass(frozen=True, slots=True)
class RegisterWorker:
    """First message of a worker: which Spark attempt it is and where its peers can reach it."""

    worker: WorkerIndex
    attempt: AttemptId
    host: str
    pid: int
    data_port: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """Instead of `RegisterWorker`: this attempt can't even start, for instance because the user's code
    can't be loaded there."""

    worker: WorkerIndex
    attempt: AttemptId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """All tasks are restored, replayed commits are done, all channels of this epoch are open."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class RecordsFlowing:
    """The first records since `StartTasks` have gone through a task of this worker."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TaskFailed:
    epoch: Epoch
    task: TaskId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class SnapshotAcknowledged:
    """The snapshot of `task` at barrier n is durable, its transaction prepared."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    task: TaskId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class SnapshotDeclined:
    """`task` can't take part in checkpoint n (superseded, or its snapshot could not be stored)."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    task: TaskId
    reason: str


@dataclass(frozen=True, slots=True)
class TaskQuiet:
    """`task` stands still for checkpoint n: it has processed all that was sent before barrier n, and
    takes nothing more (only where snapshots are taken halting)."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    task: TaskId


@dataclass(frozen=True, slots=True)
class SourceDrained:
    """Every split of source `task` has ended; the task stays and answers barriers."""

    epoch: Epoch
    task: TaskId


@dataclass(frozen=True, slots=True)
class TransactionsCommitted:
    """Sink `task` has committed everything pending at or below n."""

    epoch: Epoch
    checkpoint_id: CheckpointId
    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """Counters of one task, as in `Snapshot`, and its present contents.

    Attributes:
        queued_records: That wait in its inputs, in memory or on disk, now.
        spilled_bytes: What its inputs have written to disk.
        empty_split: Of a source: a split whose reader gives nothing but empty lists, "" if none does.
        watermark: That leaves the task, in milliseconds since 1970; None: there is none yet.
        held_up_by: The split, or the task before it, of which it has heard the lowest watermark, or none;
            "" if the task has no event time, or waits for nobody.
        late_records: That came too late for a window or join, in this epoch.
    """

    task: TaskId
    records_in: int = 0
    records_out: int = 0
    state_keys: int = 0
    queued_records: int = 0
    spilled_bytes: int = 0
    empty_split: str = ""
    watermark: int | None = None
    held_up_by: str = ""
    late_records: int = 0


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """Sent at an interval; silence is a failure.

    Attributes:
        dropped: Stale messages, by reason.
        refused: Connections to this worker that did not prove the secret, by reason.
    """

    epoch: Epoch
    tasks: tuple[TaskStatistics, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)


# Coordinator -> worker


@dataclass(frozen=True, slots=True)
class Peer:
    worker: WorkerIndex
    host: str
    data_port: int


@dataclass(frozen=True, slots=True)
class SplitAssignment:
    """The splits that a source task starts with, when there is no checkpoint to restore."""

    task: TaskId
    splits: JSON


@dataclass(frozen=True, slots=True)
class DeployTasks:
    """Go to epoch `epoch`: close every channel of older ones, restore, connect, answer WorkerReady.

    Attributes:
        peers: Where those workers with a higher index can be reached that this one has not been told of, by
            index: of two workers the lower one connects. After the loss of one that is the one in its place,
            or the messages to P workers would hold P * P addresses at each failover.
        restore: Checkpoint to go back to, 0 for the very beginning.
        snapshots: Of this worker's tasks at that checkpoint; empty if `restore` is 0.
        splits: Of this worker's source tasks; used only if `restore` is 0.
        driver: Token of the driver that claimed the epoch: sinks tell by it who else claims the same one.
        rescaled_from: The parallelism at which the checkpoint was taken, if it was another one: parts and
            logs of `snapshots` then hold more than what belongs to the task. 0: it was this one.
        retired: Logical tasks of sinks that are there no more: this worker recovers them, in their name.
    """

    epoch: Epoch
    lineage: Lineage
    peers: tuple[Peer, ...]
    restore: CheckpointId
    snapshots: tuple[TaskSnapshot, ...]
    splits: tuple[SplitAssignment, ...]
    driver: str = ""
    rescaled_from: int = 0
    retired: tuple[TaskSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Every worker is ready: the sources may read."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class HaltTasks:
    """Epoch `epoch` is over: stop its tasks and close its channels; a DeployTasks will follow."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CaptureSnapshots:
    """Every task stands still for checkpoint n: capture (only where snapshots are taken halting)."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ResumeSources:
    """Checkpoint n is complete: whoever stood still for it goes on."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Checkpoint n is complete: sinks commit everything pending at or below n."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CloseLoops:
    """No record can come to these loops any more: the back edges that lead to `heads` have ended.

    It may come again. A loop ends when all its back edges do, and it is named with all its heads.
    """

    epoch: Epoch
    heads: tuple[VertexId, ...]


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeat:
    """A worker that hears nothing for the timeout has lost its coordinator and stops by itself."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StandBy:
    """Another live attempt holds this worker's place: wait, it may be needed."""


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Stop and exit. `failed` makes the Spark task fail, so that Spark starts another attempt."""

    reason: str
    failed: bool = False


WorkerMessage = (
    RegisterWorker
    | WorkerFailed
    | WorkerReady
    | RecordsFlowing
    | TaskFailed
    | SnapshotAcknowledged
    | SnapshotDeclined
    | TaskQuiet
    | SourceDrained
    | TransactionsCommitted
    | WorkerHeartbeat
)
CoordinatorMessage = (
    DeployTasks
    | StartTasks
    | HaltTasks
    | TriggerCheckpoint
    | AbortCheckpoint
    | CaptureSnapshots
    | ResumeSources
    | CommitCheckpoint
    | CloseLoops
    | CoordinatorHeartbeat
    | StandBy
    | ShutDown
)
