"""Messages between coordinator and workers.

All of it is data only: ids, numbers, text, and JSON. `crosscut.wire.control` turns these classes to
bytes and back by their field types; nothing here is ever pickled (rule S6). Every message of a
running job carries its epoch; a receiver drops and counts those of another one.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import (
    AttemptId,
    CheckpointId,
    Epoch,
    Lineage,
    TaskId,
    VertexId,
    WorkerIndex,
)
from crosscut.protocol.snapshots import KnownSplits, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.protocol.telemetry import HotKey, LogLine, MetricSample, ShownDeadLetter, SnapshotTimes

# The base class says what a message is about.


@dataclass(frozen=True, slots=True)
class EpochMessage:
    """A message of a running job; in another epoch it is dropped and counted."""

    epoch: Epoch


class TaskMessage(EpochMessage):
    """A message of a worker about one of its tasks."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def task(self) -> TaskId:
            """Which one."""


class ForTasks(EpochMessage):
    """A message to the tasks of an epoch, which their worker passes on."""

    __slots__ = ()


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
        is_certain: It comes again for certain: the function uses only its record, say.
        is_from_outside: The system or the network refused something (an OSError is among its causes).
        is_permanent: A source or sink knows that every attempt meets the same error.
        is_transient: The error says that trying again may help, as when a service is down.
        worker: The worker whose process has ended by itself; None for any other failure.
        may_heal: It looks like a mistake in the user's code, but a service that the code calls may be behind
            it.
    """

    kind: str
    message: str
    operator: str = ""
    record: str = ""
    traceback: str = ""
    is_final: bool = False
    is_first: bool = False
    is_certain: bool = False
    is_from_outside: bool = False
    is_permanent: bool = False
    is_transient: bool = False
    worker: WorkerIndex | None = None
    may_heal: bool = False


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
    can't be loaded there. It waits for a `ShutDown` before it fails."""

    worker: WorkerIndex
    attempt: AttemptId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class WorkerReady(EpochMessage):
    """All tasks are restored, replayed commits are done, all channels of this epoch are open."""


@dataclass(frozen=True, slots=True)
class UnitFinished(EpochMessage):
    """All output in the log of a worker is visible, and there will be no more in this epoch.

    Its tasks have come to the end of their input, which is true for ever; or `PauseSources` has stopped them.
    """


@dataclass(frozen=True, slots=True)
class UnitProgressed(EpochMessage):
    """The log of a worker holds another group of this epoch. Sent once a second at most."""


@dataclass(frozen=True, slots=True)
class RecordsFlowing(EpochMessage):
    """The first records since `StartTasks` have gone through a task of this worker."""


@dataclass(frozen=True, slots=True)
class TaskFailed(TaskMessage):
    task: TaskId
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class SnapshotAcknowledged(TaskMessage):
    """The snapshot of `task` at barrier n is durable, its transaction prepared.

    Attributes:
        unused: Paths of files that were stored for it and that it does not refer to: the records of a
            transaction that has been committed since.
    """

    checkpoint_id: CheckpointId
    task: TaskId
    snapshot: Snapshot
    # They tell no snapshot from another.
    times: SnapshotTimes = field(default=SnapshotTimes(), compare=False)
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotDeclined(TaskMessage):
    """`task` can't take part in checkpoint n (superseded, or its snapshot could not be stored).

    Attributes:
        is_permanent: The state itself can't be stored, whatever the store says.
    """

    checkpoint_id: CheckpointId
    task: TaskId
    reason: str
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class TaskQuiet(TaskMessage):
    """`task` stands still for checkpoint n: it has processed all that was sent before barrier n, and
    takes nothing more (only where snapshots are taken halting)."""

    checkpoint_id: CheckpointId
    task: TaskId


@dataclass(frozen=True, slots=True)
class SourceDrained(TaskMessage):
    """Every split of source `task` has ended; the task stays and answers barriers."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TransactionsCommitted(TaskMessage):
    """Sink `task` has committed everything pending at or below n."""

    checkpoint_id: CheckpointId
    task: TaskId


@dataclass(frozen=True, slots=True)
class SourceReached:
    """How far source `task` is: the lowest watermark of its splits that others wait for, if there is any."""

    task: TaskId
    watermark: int | None


@dataclass(frozen=True, slots=True)
class SourcesReached(EpochMessage):
    """What is news of source tasks that are in a group; see `crosscut.protocol.splits.alignment`.

    Attributes:
        number: Grows with each of a worker in an epoch: one that comes late takes nothing back.
    """

    number: int
    tasks: tuple[SourceReached, ...]


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """Counters of one task, as in `Snapshot`, and its present contents.

    Attributes:
        queued_records: That wait in its inputs, in memory or on disk, now.
        spilled_bytes: What its inputs have written to disk.
        empty_split: Of a source: a split whose reader gives nothing but empty lists, "" if none does.
        watermark: That leaves the task, in milliseconds since 1970; None: there is none yet.
        held_up_by: The split, or the task before it, of which it has heard the lowest watermark, or none;
            "" if the task has no event time, or waits for no input.
        late_records: That came too late for a window or join, since the job's beginning.
        dead_letters: Set aside, in this epoch.
        sent: Records that have left by each output, in this epoch; in the order of the graph's edges.
        timers: That are set.
        lag: Of a source: records that are known to wait in its open splits; None: it can't tell.
        running_us: For so long the tasks of this epoch have been running in the worker.
        busy_us: For so much of it this task ran. The tasks of a worker share one thread.
        blocked_us: For so much of it an output took no more.
        readings: Metrics of user code; None: as they were said last in this epoch, or none.
        held_splits: Of a source: splits that wait for slower ones (`align_within`).
        barrier: The newest checkpoint of which a barrier has come in this epoch, 0 if none has.
        captured: The newest that has the task's state, in this epoch, 0 if none has.
        latencies: By the name of each source, how long its records took to get here, in seconds; None: as
            they were said last in this epoch, or none.
        letters: Dead letters, the newest of those since some were said last.
        state_memory_bytes: Memory that its keyed state takes, as estimated by a sample of the rows.
        hot_keys: Keys that have much of its input of late, the most frequent first.
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
    dead_letters: int = 0
    sent: tuple[int, ...] = ()
    timers: int = 0
    lag: int | None = None
    running_us: int = 0
    busy_us: int = 0
    blocked_us: int = 0
    readings: tuple[MetricSample, ...] | None = None
    held_splits: int = 0
    barrier: CheckpointId = CheckpointId(0)
    captured: CheckpointId = CheckpointId(0)
    letters: tuple[ShownDeadLetter, ...] = ()
    latencies: tuple[MetricSample, ...] | None = None
    state_memory_bytes: int = 0
    hot_keys: tuple[HotKey, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat(EpochMessage):
    """Sent at an interval; silence is a failure.

    Attributes:
        dropped: Stale messages, by reason.
        refused: Connections to this worker that did not prove the secret, by reason.
        logged: What the process has logged since the last one.
    """

    tasks: tuple[TaskStatistics, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    logged: tuple[LogLine, ...] = ()


# Coordinator -> worker


@dataclass(frozen=True, slots=True)
class Peer:
    worker: WorkerIndex
    host: str
    data_port: int


@dataclass(frozen=True, slots=True)
class SplitAssignment:
    """The splits that a source task starts with, when there is no checkpoint to restore.

    Attributes:
        known: Of a dynamic source, said with those of one of its tasks.
        is_coming: As in `SplitsFound`.
    """

    task: TaskId
    splits: JSON
    known: KnownSplits | None = None
    is_coming: bool = False


@dataclass(frozen=True, slots=True)
class UnitKeys:
    """What a worker signs and reads its log with, if the job log is authenticated.

    Attributes:
        key_id: Of the key that they are derived from.
        keys: As hexadecimal text, those of epoch 1, 2, ... up to the epoch that begins.
    """

    key_id: str
    keys: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeployTasks(EpochMessage):
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
        deaths: Of this worker's predecessors, because of which it tries each batch in a copy of its process
            first; 0: it does not.
        unit_keys: Of the log of this worker. The driver adds them: the coordinator knows no secrets.
    """

    lineage: Lineage
    peers: tuple[Peer, ...]
    restore: CheckpointId
    snapshots: tuple[TaskSnapshot, ...]
    splits: tuple[SplitAssignment, ...]
    driver: str = ""
    rescaled_from: int = 0
    retired: tuple[TaskSnapshot, ...] = ()
    deaths: int = 0
    unit_keys: UnitKeys | None = None


@dataclass(frozen=True, slots=True)
class StartTasks(ForTasks):
    """Every worker is ready: the sources may read."""


@dataclass(frozen=True, slots=True)
class HaltTasks(EpochMessage):
    """Epoch `epoch` is over: stop its tasks and close its channels; a DeployTasks will follow."""


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint(ForTasks):
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class AbortCheckpoint(ForTasks):
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CaptureSnapshots(ForTasks):
    """Every task stands still for checkpoint n: capture (only where snapshots are taken halting)."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ResumeSources(ForTasks):
    """Checkpoint n is complete: tasks that stood still for it go on."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class GlobalCommit:
    """What a task of this sink has to commit, whatever it has staged itself.

    Attributes:
        pending: What all tasks have staged, for the first task; nothing for the others.
    """

    vertex: VertexId
    pending: tuple[PendingTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitCheckpoint(ForTasks):
    """Checkpoint n is complete: sinks commit everything pending at or below n.

    Attributes:
        together: The sinks of which the first task commits what all have staged.
    """

    checkpoint_id: CheckpointId
    together: tuple[GlobalCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseLoops(ForTasks):
    """No record can come to these loops any more: the back edges that lead to `heads` have ended.

    It may come again. A loop ends when all its back edges do, and it is named with all its heads.
    """

    heads: tuple[VertexId, ...]


@dataclass(frozen=True, slots=True)
class PauseSources(ForTasks):
    """Sources read nothing from now on, or read again. Barriers and splits reach them all the same.

    Where workers have logs it is the beginning of a stop: tasks take no more input, and each worker sends
    `UnitFinished` once the output in its log is visible.
    """

    is_paused: bool


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeat(EpochMessage):
    """A worker that hears nothing for the timeout has lost its coordinator and stops by itself."""


@dataclass(frozen=True, slots=True)
class SlowestSource:
    """How far a group of sources is.

    Attributes:
        task: The slowest; None: none counts.
        watermark: How far that one is.
        next_watermark: The lowest of all others; None: there is no other.
    """

    group: str
    task: TaskId | None = None
    watermark: int | None = None
    next_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class AlignSources(ForTasks):
    """What is news of groups of sources: splits that are far ahead wait.

    Attributes:
        number: Grows with each in an epoch.
    """

    number: int
    groups: tuple[SlowestSource, ...]


@dataclass(frozen=True, slots=True)
class AssignSplits(ForTasks):
    """More splits for source `task`, found while it runs.

    Attributes:
        since: They belong to checkpoints from this one on. The task may take the snapshot of an older one
            after they have come.
        splits: As in `SplitAssignment`; none: other tasks of the source have had some, which is told once.
        is_last: There will be no others.
    """

    task: TaskId
    since: CheckpointId
    splits: JSON
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class StandBy:
    """Another live attempt holds this worker's place: wait, it may be needed."""


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Stop and exit. `failed` makes the Spark task fail, so that Spark starts another attempt.

    Attributes:
        after_ms: In the answer to `WorkerFailed`, how long to wait before; else 0. Spark starts the next
            attempt at once, so the delay has to be in this one.
    """

    reason: str
    failed: bool = False
    after_ms: int = 0


WorkerMessage = (
    RegisterWorker
    | WorkerFailed
    | WorkerReady
    | RecordsFlowing
    | UnitFinished
    | UnitProgressed
    | TaskFailed
    | SnapshotAcknowledged
    | SnapshotDeclined
    | TaskQuiet
    | SourceDrained
    | TransactionsCommitted
    | SourcesReached
    | WorkerHeartbeat
)
TaskOrder = (
    StartTasks
    | TriggerCheckpoint
    | AbortCheckpoint
    | CaptureSnapshots
    | ResumeSources
    | CommitCheckpoint
    | CloseLoops
    | PauseSources
    | AlignSources
    | AssignSplits
)
CoordinatorMessage = DeployTasks | HaltTasks | TaskOrder | CoordinatorHeartbeat | StandBy | ShutDown
