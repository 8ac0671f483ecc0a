"""A coordinator of two workers, `numbers -> out`, taken to any of its phases; samples of every event."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from crosscut.foundation.ids import (
    AttemptId,
    CheckpointId,
    Epoch,
    Lineage,
    LogIndex,
    TaskId,
    VertexId,
    WorkerIndex,
)
from crosscut.protocol.checkpoint.termination import Component
from crosscut.protocol.effects import (
    AppendEntry,
    CancelTimer,
    DeleteParts,
    JobEffect,
    ReadEntry,
    SendMessage,
    StartTimer,
)
from crosscut.protocol.events import (
    BrokenInvariant,
    CancelRequested,
    CheckpointRequested,
    ClockRead,
    CutJudged,
    DiscoveryFailed,
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    JobEvent,
    LinkClosed,
    LinkOpened,
    LogTailRead,
    MessageReceived,
    PartsDeleted,
    PartsDiscarded,
    PartsListed,
    RestartRequested,
    SavepointWritten,
    SplitsDiscovered,
    SplitsFound,
    StopRequested,
    SweepRequested,
    Timer,
    TimerFired,
    TimerKind,
    WorkersEnded,
)
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec, Phase
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobEntry,
    SegmentClosed,
    SegmentOpened,
)
from crosscut.protocol.log.recovery import JobIdentity
from crosscut.protocol.messages import (
    CoordinatorMessage,
    FailureCause,
    Peer,
    RecordsFlowing,
    RegisterWorker,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    SourceReached,
    SourcesReached,
    SplitAssignment,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    UnitFinished,
    UnitProgressed,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot, TaskSnapshot

S0, S1 = (TaskId(VertexId("numbers"), index) for index in (0, 1))
K0, K1 = (TaskId(VertexId("out"), index) for index in (0, 1))
TASKS = (S0, S1, K0, K1)
LINEAGE = Lineage("lineage")
LINKS = (11, 12)
SPLITS = tuple(SplitAssignment(task, [[f"split {task.index}", 0, None, 1, 0]]) for task in (S0, S1))
CAUSE = FailureCause("ValueError", "bad record", "parse", "'x'", "Traceback ...")


def coordinator_spec(
    *,
    failures_max: int = 10,
    delay_ms: int = 0,
    checkpoint_failures_max: int | None = 2,
    outage_ms: int = 0,
    periodic: bool = True,
    retain: int = 2,
    slots: int | None = None,
    driver: str = "driver 1",
    awaits_verdict: bool = False,
    loops: tuple[Component, ...] = (),
    pause_ms: int = 0,
    in_flight_max: int = 1,
    interval_ms: int = 1_000,
    dynamic_sources: tuple[tuple[VertexId, int], ...] = (),
    are_batches: bool = False,
    uncommitted_max: int = 4,
) -> CoordinatorSpec:
    return CoordinatorSpec(
        identity=JobIdentity(driver, LINEAGE, "graph", 2, 8),
        tasks=frozenset(TASKS),
        sources=frozenset((S0, S1)),
        sinks=frozenset((K0, K1)),
        checkpoints=CheckpointSpec(
            periodic,
            interval_ms,
            60_000,
            checkpoint_failures_max,
            pause_ms,
            in_flight_max,
            are_batches,
            uncommitted_max,
            outage_ms=outage_ms,
        ),
        restart=RestartPolicy(failures_max, 300_000, delay_ms, 100, 1_000, 3),
        retain=retain,
        heartbeat_timeout_ms=4_000,
        start_timeout_ms=30_000,
        slots=slots,
        awaits_verdict=awaits_verdict,
        loops=loops,
        dynamic_sources=dynamic_sources,
    )


def claim(epoch: int = 1, first: int = 1, driver: str = "driver 1") -> EpochClaimed:
    return EpochClaimed(Epoch(epoch), LINEAGE, driver, "graph", 2, 8, CheckpointId(first))


def snapshot(task: TaskId, n: int, epoch: int = 1, *, drained: bool = False) -> Snapshot:
    if task.vertex == "numbers":
        return Snapshot(positions={"split": n}, drained=drained)
    part = Part(f"parts/{n}/out-{task.index}-{epoch}-ab", 1, "00")
    pending = (PendingTransaction(CheckpointId(n), f"{task}/{n}"),)
    return Snapshot(parts=(part,), pending=pending, drained=drained)


def completed(n: int, epoch: int = 1, *, final: bool = False) -> CheckpointCompleted:
    snapshots = tuple(TaskSnapshot(task, snapshot(task, n, epoch, drained=final)) for task in TASKS)
    return CheckpointCompleted(Epoch(epoch), CheckpointId(n), snapshots, final)


def paths(n: int, epoch: int = 1) -> tuple[str, ...]:
    return tuple(f"parts/{n}/out-{index}-{epoch}-ab" for index in (0, 1))


def registration(worker: int, attempt: int) -> RegisterWorker:
    return RegisterWorker(WorkerIndex(worker), AttemptId(attempt), "localhost", attempt, 9_000 + attempt)


def peers(*attempts: int) -> tuple[Peer, ...]:
    return tuple(Peer(WorkerIndex(i), "localhost", 9_000 + attempt) for i, attempt in enumerate(attempts))


def both(message: CoordinatorMessage) -> list[JobEffect]:
    return [SendMessage(link, message) for link in LINKS]


def at(index: int) -> LogIndex:
    """Return the place of entry `index`, from 1, of a log of one segment."""
    return LogIndex(1, index - 1)


def appends(index: int, entry: JobEntry, since: int = 0, *, step: int = 0) -> list[JobEffect]:
    """Entry `index` is appended; the store has as long for it as a checkpoint.

    Args:
        since: The entry that it is written as a change of; 0: none.
        step: How many entries this writer has asked for, with this one; default: all of them.
    """
    written = SegmentOpened(entry, None) if index == 1 and isinstance(entry, EpochClaimed) else entry
    call = AppendEntry(at(index), written, at(since) if since else None)
    return [call, StartTimer(Timer("log-call", number=step or index), 60_000)]


def takes_over(index: int, entry: EpochClaimed) -> list[JobEffect]:
    """The segment of another driver is closed, with entry `index`, so that `entry` can be claimed."""
    closed = SegmentClosed(entry.epoch, entry.driver, entry.claimant)
    return [AppendEntry(at(index), closed), StartTimer(Timer("log-call", number=1), 60_000)]


def opens(index: int, entry: EpochClaimed) -> list[JobEffect]:
    """The second segment is opened with a claim, after entry `index` has closed the first."""
    head = SegmentOpened(entry, at(index))
    return [AppendEntry(LogIndex(2, 0), head), StartTimer(Timer("log-call", number=2), 60_000)]


def reads(index: int, *, step: int = 0) -> list[JobEffect]:
    return [ReadEntry(at(index)), StartTimer(Timer("log-call", number=step or index), 60_000)]


def answered(index: int) -> list[JobEffect]:
    """The store has said something in time about what a writer has asked for as its `index`-th entry."""
    return [CancelTimer(Timer("log-call", number=index))]


def deletes(paths: tuple[str, ...]) -> list[JobEffect]:
    return [DeleteParts(paths), StartTimer(Timer("delete"), 60_000)]


class Talk:
    """A conversation with a coordinator; every method returns the effects of its last event."""

    def __init__(self, make: Callable[[CoordinatorSpec], Coordinator] = Coordinator, **terms: Any) -> None:
        self.coordinator = make(coordinator_spec(**terms))
        self.coordinator.start()

    def hear(self, *events: JobEvent) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for event in events:
            effects = self.coordinator.handle(event)
        return effects

    def fire(self, kind: TimerKind, epoch: int = 1, number: int = 0) -> list[JobEffect]:
        return self.hear(TimerFired(Timer(kind, Epoch(epoch), number)))

    def message(self, worker: int, message: WorkerMessage) -> list[JobEffect]:
        if isinstance(message, RegisterWorker):
            return self.comes(LINKS[worker], message)
        return self.hear(MessageReceived(LINKS[worker], message))

    def comes(self, link: int, said: RegisterWorker | WorkerFailed) -> list[JobEffect]:
        """A process proves who it is on `link`, and says the same."""
        return self.hear(LinkOpened(link, said.worker, said.attempt), MessageReceived(link, said))

    def register(self) -> list[JobEffect]:
        self.message(0, registration(0, 1))
        return self.message(1, registration(1, 2))

    def ready(self, epoch: int = 1) -> list[JobEffect]:
        self.message(0, WorkerReady(Epoch(epoch)))
        return self.message(1, WorkerReady(Epoch(epoch)))

    def gathering(self) -> list[JobEffect]:
        return self.hear(LogTailRead(()), SplitsDiscovered(SPLITS), EntryAppended(at(1)))

    def running(self) -> list[JobEffect]:
        self.gathering()
        self.register()
        return self.ready()

    def acknowledge(self, n: int, epoch: int = 1, *, drained: bool = False) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for task in TASKS:
            one = snapshot(task, n, epoch, drained=drained)
            effects = self.message(task.index, SnapshotAcknowledged(Epoch(epoch), CheckpointId(n), task, one))
        return effects

    def complete(self, n: int, index: int, epoch: int = 1, *, drained: bool = False) -> list[JobEffect]:
        """Trigger, acknowledge and append checkpoint n as log entry `index`."""
        self.fire("trigger", epoch)
        self.acknowledge(n, epoch, drained=drained)
        return self.hear(EntryAppended(at(index)))

    def committed(self, n: int, epoch: int = 1) -> list[JobEffect]:
        self.message(0, TransactionsCommitted(Epoch(epoch), CheckpointId(n), K0))
        return self.message(1, TransactionsCommitted(Epoch(epoch), CheckpointId(n), K1))

    def failed(self, epoch: int = 1, cause: FailureCause = CAUSE) -> list[JobEffect]:
        return self.message(0, TaskFailed(Epoch(epoch), K0, cause))


def talk_in(phase: Phase, make: Callable[[CoordinatorSpec], Coordinator] = Coordinator) -> Talk:
    """Return a conversation in epoch 1 that has come to `phase` (in CLAIMING: no epoch yet)."""
    talk = Talk(make, delay_ms=100)
    match phase:
        case Phase.CLAIMING:
            pass
        case Phase.GATHERING:
            talk.gathering()
        case Phase.RESTORING:
            talk.gathering()
            talk.register()
        case _:
            talk.running()
    match phase:
        case Phase.FINISHING:
            talk.complete(1, 2, drained=True)
        case Phase.STOPPING:
            talk.hear(StopRequested())
        case Phase.WAITING:
            talk.failed()
        case Phase.ENDED:
            talk.hear(CancelRequested())
        case _:
            pass
    assert talk.coordinator.phase is phase
    return talk


def messages(epoch: Epoch) -> tuple[WorkerMessage, ...]:
    """Return one message of every kind that carries an epoch."""
    n = CheckpointId(1)
    return (
        WorkerReady(epoch),
        RecordsFlowing(epoch),
        UnitFinished(epoch),
        UnitProgressed(epoch),
        TaskFailed(epoch, K0, CAUSE),
        SnapshotAcknowledged(epoch, n, K0, snapshot(K0, 1)),
        SnapshotDeclined(epoch, n, K0, "superseded"),
        TaskQuiet(epoch, n, K0),
        SourceDrained(epoch, S0),
        TransactionsCommitted(epoch, n, K0),
        SourcesReached(epoch, 1, (SourceReached(S0, 5),)),
        WorkerHeartbeat(epoch),
    )


TIMER_KINDS: tuple[TimerKind, ...] = (
    "trigger",
    "checkpoint-timeout",
    "gather",
    "restore",
    "liveness",
    "restart",
    "forget-failure",
    "retry-append",
    "stop",
    "pause",
    "finish",
    "read-log",
    "read-again",
    "discover",
    "log-call",
    "delete",
    "align",
    "find",
    "find-timeout",
)


def events() -> list[JobEvent]:
    """Return at least one event of every kind, with sensible and with senseless content."""
    timers = [
        Timer(kind, Epoch(epoch), number) for kind in TIMER_KINDS for epoch in (0, 1, 2) for number in (0, 1)
    ]
    sent = [*messages(Epoch(0)), *messages(Epoch(1)), *messages(Epoch(2))]
    sent += [WorkerFailed(WorkerIndex(1), AttemptId(6), CAUSE)]
    sent += [registration(0, 1), registration(0, 3), registration(1, 4), registration(7, 5)]
    return [
        ClockRead(5, "now"),
        *map(TimerFired, timers),
        *(LinkOpened(link, WorkerIndex(1), AttemptId(4)) for link in (*LINKS, 99)),
        *(MessageReceived(link, message) for link in (*LINKS, 99) for message in sent),
        *(LinkClosed(link, "reset") for link in (*LINKS, 99)),
        WorkersEnded("aborted"),
        LogTailRead(()),
        LogTailRead(((at(1), SegmentOpened(claim(), None)), (at(2), completed(1)))),
        SplitsDiscovered(SPLITS),
        *(SplitsFound(Epoch(epoch), S0.vertex, [["split 7", 0, None, 1, 0]], 7) for epoch in (1, 2)),
        *(DiscoveryFailed(Epoch(epoch), S0.vertex, CAUSE) for epoch in (1, 2)),
        *(EntryAppended(at(index)) for index in (1, 2, 3)),
        *(EntryTaken(at(index)) for index in (1, 2, 3)),
        *(EntryUncertain(at(index), "time out") for index in (1, 2, 3)),
        *(EntryRefused(at(index), "no space") for index in (1, 2, 3)),
        *(EntryRead(at(index), entry) for index in (1, 2, 3) for entry in (None, claim(2), completed(1))),
        PartsListed(("parts/1/out-0-0-ab",)),
        PartsDeleted(),
        PartsDiscarded(("parts/1/out-0-1-cd",)),
        SweepRequested(),
        StopRequested(),
        RestartRequested(),
        CheckpointRequested(1),
        CheckpointRequested(2, is_savepoint=True),
        SavepointWritten(2),
        CancelRequested(),
        CancelRequested(CAUSE),
        *(CutJudged(CheckpointId(n)) for n in (1, 2)),
        CutJudged(CheckpointId(1), (BrokenInvariant("total", "it is 99", stop=True),)),
    ]


def state_of(machine: Any) -> Any:
    """Return everything that a machine remembers, as a value that can be compared, but its counters."""
    if isinstance(machine, dict):
        return {key: state_of(value) for key, value in machine.items()}
    if not hasattr(machine, "__dict__") or isinstance(machine, type | Phase):
        return machine
    return {
        name: state_of(value)
        for name, value in vars(machine).items()
        if name not in ("dropped", "_silent_ticks", "_terms")
    }


def check_stale_epochs_change_nothing(make: Callable[[CoordinatorSpec], Coordinator]) -> None:
    """Send every message of an older and of a newer epoch in every phase; nothing may come of it."""
    for phase in Phase:
        if phase in (Phase.CLAIMING, Phase.GATHERING, Phase.ENDED):
            continue
        for epoch in (0, 2):
            for message in messages(Epoch(epoch)):
                talk = talk_in(phase, make)
                if phase in (Phase.RUNNING, Phase.STOPPING):
                    talk.fire("trigger")
                before = deepcopy(state_of(talk.coordinator))
                assert talk.message(0, message) == [], f"{message} in {phase}"
                assert state_of(talk.coordinator) == before, f"{message} in {phase}"
                counted = talk.coordinator.dropped["late message of another epoch"]
                assert counted == (not isinstance(message, WorkerHeartbeat))
