"""A small virtual world around the real protocol core.

The coordinator, the aligned barriers and the committers are the real ones. Everything that they ask
for is carried out by fakes that stay within their contracts and are nastier than the real things: a
log store with refused, uncertain and late appends, control links that break, workers that stop and
come back as zombies, a driver that dies between two effects, two drivers at once, a sink whose commits
fail after they were applied.

A job is `numbers -> out` on two workers, with a channel from every source task to every sink task.
Record (i, k) is the k-th of source task i; sink task k mod 2 gets it. What must hold is checked when
it could break first: at every entry of the log, every commit at the sink, every deletion. A world runs
in two phases: first the choices (of a seed, or of a tape that hypothesis shrinks) do what they like, then
all faults stop and the job has to finish.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from crosscut.ids import AttemptId, ChannelId, CheckpointId, Epoch, Lineage, TaskId, VertexId, WorkerIndex
from crosscut.interfaces import JSON, CommitPermit
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.barriers.aligned import AlignedBarriers
from crosscut.protocol.commit import Committer, restore_permit
from crosscut.protocol.job.checkpoints import CheckpointRules
from crosscut.protocol.job.coordinator import Coordinator, JobRules
from crosscut.protocol.job.recovery import JobIdentity, RestartPolicy
from crosscut.protocol.job.segments import claims_in
from crosscut.protocol.log import Appended
from crosscut.protocol.messages import (
    CHECKPOINT_IDS_LEAD_MAX,
    AbortCheckpoint,
    CheckpointCompleted,
    CommitCheckpoint,
    CoordinatorHeartbeat,
    CoordinatorMessage,
    DeployTasks,
    EpochClaimed,
    FailureCause,
    HaltTasks,
    JobFinished,
    LogEntry,
    Part,
    RegisterWorker,
    SegmentClosed,
    SegmentOpened,
    ShutDown,
    Snapshot,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    SplitAssignment,
    StandBy,
    StartTasks,
    TaskFailed,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.store.log import StoredLog
from crosscut.testing.simulator.history import LogHistory
from crosscut.testing.stores import MemoryFiles

PARALLELISM = 2
SOURCES = tuple(TaskId(VertexId("numbers"), index) for index in range(PARALLELISM))
SINKS = tuple(TaskId(VertexId("out"), index) for index in range(PARALLELISM))
TASKS = frozenset(SOURCES + SINKS)
LINEAGE = Lineage("lineage")
LIVE_STEPS_MAX = 10_000
SPARK_FAILURES_MAX = 4

Record = tuple[int, int]
Barrier = CheckpointId


class EndOfInput:
    """The source task will send no more records on this channel, only barriers."""


END = EndOfInput()


class Violation(AssertionError):
    """Something happened that must never happen. The message begins with the invariant's number."""


def ensure(condition: bool, message: str) -> None:
    if not condition:
        raise Violation(message)


def channel(source: int, sink: int) -> ChannelId:
    return ChannelId(0, SOURCES[source], SINKS[sink])


class Choices(Protocol):
    def below(self, count: int) -> int | None:
        """Return a number from 0 to `count` - 1, or None if there are no more choices."""


class Seeded:
    """Choices of a pseudo-random generator."""

    def __init__(self, seed: int, count: int) -> None:
        self._random = random.Random(seed)
        self._left = count

    def below(self, count: int) -> int | None:
        if self._left == 0:
            return None
        self._left -= 1
        return self._random.randrange(count)


class Tape:
    """Choices written down in advance, two bytes each: what hypothesis makes and shrinks."""

    def __init__(self, tape: bytes) -> None:
        self._numbers = [256 * high + low for high, low in zip(tape[::2], tape[1::2], strict=False)]
        self._numbers.reverse()

    def below(self, count: int) -> int | None:
        return self._numbers.pop() * count >> 16 if self._numbers else None


FAULTS = (
    "worker crash",
    "worker pause",
    "slow control",
    "driver crash",
    "second driver",
    "uncertain append",
    "refused append",
    "early timer",
    "failing snapshot",
    "failing commit",
    "repeated message",
    "second attempt",
    "workers ended",
    "task failure",
    "stop",
)


@dataclass(frozen=True)
class Make:
    """How the machines are made; a planted bug replaces one of them."""

    coordinator: Callable[[JobRules], Coordinator] = Coordinator
    barriers: Callable[[tuple[ChannelId, ...]], AlignedBarriers] = AlignedBarriers
    committer: Callable[[Lineage, Epoch, int], Committer] = Committer
    commits_on_restore: bool = True
    builds_on_completed: bool = True


class SinkResource:
    """Where output goes: a stage that readers don't see, and what they see. Commits are idempotent.

    It does not refuse what a zombie stages: the protocol has to cope without.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.staged: dict[str, list[Record]] = {}
        self.committed: dict[str, list[Record]] = {}

    def recover(self, task: TaskId, epoch: Epoch, permit: CommitPermit | None, handles: list[JSON]) -> None:
        if permit is not None:
            self.commit(permit, handles)
        for handle in list(self.staged):
            _, staged_epoch, staged_task, _ = handle.split("/")
            if staged_task == str(task) and int(staged_epoch) < epoch:
                del self.staged[handle]
                self._world.seen["staged transaction aborted by a restore"] += 1

    def commit(self, permit: CommitPermit, handles: Iterable[JSON]) -> None:
        for handle in handles:
            assert isinstance(handle, str)
            if handle in self.committed:
                self._world.seen["transaction committed again"] += 1
                continue
            ensure(handle in self.staged, f"F3: transaction {handle} is gone, and has not been committed")
            self._world.check_visible(handle, permit)
            self.committed[handle] = self.staged.pop(handle)

    def records(self) -> list[Record]:
        return [record for records in self.committed.values() for record in records]


@dataclass
class SourceTask:
    """Reads one split of `end` records. `captured`: position at each barrier not yet stored."""

    barriers: AlignedBarriers
    position: int
    end: int
    has_ended: bool = False
    captured: dict[CheckpointId, tuple[int, bool]] = field(default_factory=dict)


@dataclass
class SinkTask:
    """Keeps every record as its state and writes it out."""

    barriers: AlignedBarriers
    committer: Committer
    state: list[Record]
    base: tuple[tuple[Part, ...], int]
    open: list[Record] = field(default_factory=list)
    rotated: deque[tuple[CheckpointId, list[Record]]] = field(default_factory=deque)
    ended: set[ChannelId] = field(default_factory=set)
    blocked: set[ChannelId] = field(default_factory=set)
    captured: dict[CheckpointId, tuple[int, bool]] = field(default_factory=dict)
    stored: dict[CheckpointId, tuple[tuple[Part, ...], int]] = field(default_factory=dict)
    in_flight: do.CommitTransactions | None = None


class Worker:
    """One process: task i of both vertices, a control link, and no idea of who else is alive."""

    def __init__(self, world: World, driver: Driver, index: int, number: int) -> None:
        self.world, self.driver, self.index, self.number = world, driver, index, number
        self.inbox: deque[CoordinatorMessage | None] = deque()
        self.outbox: deque[WorkerMessage] = deque()
        self.sent: list[WorkerMessage] = []
        self.is_alive = True
        self.is_paused = False
        self.is_deaf = False
        self.is_link_reported = False
        self.epoch = Epoch(0)
        self.is_started = False
        self.source: SourceTask | None = None
        self.sink: SinkTask | None = None
        driver.handle(on.LinkOpened(number, WorkerIndex(index), AttemptId(number)))
        self.send(RegisterWorker(WorkerIndex(index), AttemptId(number), "localhost", number, number))

    def send(self, message: WorkerMessage) -> None:
        self.outbox.append(message)
        self.sent.append(message)

    def queue(self, source: int, sink: int) -> deque[Record | Barrier | EndOfInput]:
        return self.world.channels.setdefault((self.driver.number, self.epoch, source, sink), deque())

    def exit(self) -> None:
        self.is_alive = False
        self.source = self.sink = None

    # Control messages

    def receive(self) -> None:
        message = self.inbox.popleft()
        match message:
            case None:
                self.exit()
            case DeployTasks():
                if message.epoch > self.epoch:
                    self._deploy(message)
            case CoordinatorHeartbeat():
                self.send(WorkerHeartbeat(self.epoch))
            case StandBy():
                self.world.seen["attempt held in reserve"] += 1
            case ShutDown(_, failed):
                self.exit()
                if failed:
                    self.driver.attempts_failed += 1
            case _ if message.epoch != self.epoch or self.source is None or self.sink is None:
                self.world.seen["worker dropped a stale message"] += 1
            case StartTasks():
                self.is_started = True
            case HaltTasks():
                self.source = self.sink = None
            case TriggerCheckpoint(_, n):
                self.world.trigger_noted(self, n)
                self._perform_source(self.source, self.source.barriers.handle(on.CheckpointTriggered(n)))
            case AbortCheckpoint(_, n):
                if self.sink.barriers.aligning == n:
                    self.world.seen["checkpoint aborted in the middle of its alignment"] += 1
                self._perform_source(self.source, self.source.barriers.handle(on.CheckpointAborted(n)))
                self._perform_sink(self.sink, self.sink.barriers.handle(on.CheckpointAborted(n)))
            case CommitCheckpoint(_, n):
                self.sink.base = self.sink.stored.get(n, self.sink.base)
                self._perform_sink(self.sink, self.sink.committer.handle(on.CommitAuthorised(n)))

    def _deploy(self, message: DeployTasks) -> None:
        self.epoch, self.is_started = message.epoch, False
        snapshots = {one.task: one.snapshot for one in message.snapshots}
        position, end = 0, self.world.records_per_source
        parts: tuple[Part, ...] = ()
        handles: list[JSON] = []
        if message.restore:
            ensure(
                snapshots.keys() == {SOURCES[self.index], SINKS[self.index]},
                f"I1: worker {self.index} restores {message.restore} from {sorted(map(str, snapshots))} only",
            )
            positions = snapshots[SOURCES[self.index]].positions
            assert isinstance(positions, int)
            position = positions
            parts = snapshots[SINKS[self.index]].parts
            handles = [one.handle for one in snapshots[SINKS[self.index]].pending]
            self.world.seen["restore of a checkpoint"] += 1
        else:
            ensure(
                [one.task for one in message.splits] == [SOURCES[self.index]],
                f"I1: worker {self.index} starts from the beginning without its splits",
            )
        claim = self.world.newest_claim()
        if claim is None or claim.epoch != message.epoch:
            # A zombie restores: what it needs may have been deleted since, which is an error it dies of.
            if not all(part.path in self.world.parts for part in parts):
                self.exit()
                return
            self.world.seen["zombie restored"] += 1
        state = self.world.content(parts)
        permit = restore_permit(message.lineage, message.epoch, message.restore)
        committed = handles if self.world.make.commits_on_restore else []
        self.world.resource.recover(SINKS[self.index], message.epoch, permit, committed)
        inputs = tuple(channel(source, self.index) for source in range(PARALLELISM))
        make = self.world.make
        self.source = SourceTask(make.barriers(()), position, end)
        self.sink = SinkTask(
            make.barriers(inputs),
            make.committer(message.lineage, message.epoch, 3),
            state,
            (parts, len(state)),
        )
        self.send(WorkerReady(self.epoch))

    # Data

    def read_source(self, task: SourceTask) -> None:
        if task.position < task.end:
            self.queue(self.index, task.position % PARALLELISM).append((self.index, task.position))
            task.position += 1
            return
        task.has_ended = True
        for sink in range(PARALLELISM):
            self.queue(self.index, sink).append(END)
        self.send(SourceDrained(self.epoch, SOURCES[self.index]))

    def readable(self, task: SinkTask) -> list[ChannelId]:
        return [
            one
            for one in (channel(source, self.index) for source in range(PARALLELISM))
            if self.queue(one.source.index, self.index) and not task.barriers.is_blocked(one)
        ]

    def read_channel(self, task: SinkTask, source: ChannelId) -> None:
        match self.queue(source.source.index, self.index).popleft():
            case EndOfInput():
                task.ended.add(source)
            case int() as n:
                effects = task.barriers.handle(on.BarrierArrived(source, CheckpointId(n)))
                self._perform_sink(task, effects)
            case record:
                task.state.append(record)
                task.open.append(record)

    def _perform_source(self, task: SourceTask, effects: list[do.TaskEffect]) -> None:
        for effect in effects:
            match effect:
                case do.CaptureState(n):
                    task.captured[n] = (task.position, task.has_ended)
                case do.ForwardBarrier(n):
                    for sink in range(PARALLELISM):
                        self.queue(self.index, sink).append(n)
                case do.DiscardSnapshot(n):
                    task.captured.pop(n, None)
                case do.AcknowledgeSnapshot(n):
                    position, has_ended = task.captured.pop(n)
                    snapshot = Snapshot(positions=position, drained=has_ended)
                    self.send(SnapshotAcknowledged(self.epoch, n, SOURCES[self.index], snapshot))
                case do.DeclineCheckpoint(n, reason):
                    self.send(SnapshotDeclined(self.epoch, n, SOURCES[self.index], reason))
                case do.StoreSnapshot():
                    pass
                case _:
                    raise Violation(f"a source was asked to {effect!r}")

    def _perform_sink(self, task: SinkTask, effects: Iterable[do.TaskEffect | do.CommitterEffect]) -> None:
        for effect in effects:
            match effect:
                case do.BlockChannel(blocked):
                    task.blocked.add(blocked)
                case do.UnblockChannels(channels):
                    task.blocked -= set(channels)
                case do.CaptureState(n):
                    is_drained = len(task.ended) == PARALLELISM
                    task.captured[n] = (len(task.state), is_drained)
                    if task.open:
                        task.rotated.append((n, task.open))
                        task.open = []
                case do.DiscardSnapshot(n):
                    task.captured.pop(n, None)
                    task.stored.pop(n, None)
                case do.AcknowledgeSnapshot(n):
                    self._acknowledge(task, n)
                case do.DeclineCheckpoint(n, reason):
                    if "superseded" in reason:
                        self.world.seen["alignment superseded by a newer barrier"] += 1
                    self.send(SnapshotDeclined(self.epoch, n, SINKS[self.index], reason))
                case do.CommitTransactions():
                    task.in_flight = effect
                    if len(effect.handles) > 1:
                        self.world.seen["several transactions committed at once"] += 1
                case do.AnnounceCommitted(n):
                    self.send(TransactionsCommitted(self.epoch, n, SINKS[self.index]))
                case do.FailTask(reason):
                    self.fail(reason)
                case do.StoreSnapshot() | do.ForwardBarrier():
                    pass
        inputs = [channel(source, self.index) for source in range(PARALLELISM)]
        expected = {one for one in inputs if task.barriers.is_blocked(one)}
        if type(task.barriers) is AlignedBarriers:
            ensure(task.blocked == expected, f"effects block {task.blocked}, is_blocked says {expected}")

    def _acknowledge(self, task: SinkTask, n: CheckpointId) -> None:
        length, is_drained = task.captured.pop(n)
        parts, _ = task.stored.get(n, ((Part(f"parts/{n}/unwritten-0-{self.epoch}-0", 0, ""),), 0))
        task.stored[n] = (parts, length)
        snapshot = Snapshot(parts=parts, pending=task.committer.pending(n), drained=is_drained)
        self.send(SnapshotAcknowledged(self.epoch, n, SINKS[self.index], snapshot))

    def fail(self, reason: str) -> None:
        self.world.seen["task failure"] += 1
        self.send(TaskFailed(self.epoch, SINKS[self.index], FailureCause("ConnectorError", reason)))
        self.source = self.sink = None

    # Background work

    def store_source(self, task: SourceTask, n: CheckpointId) -> None:
        self._perform_source(task, task.barriers.handle(on.SnapshotStored(n)))

    def prepare(self, task: SinkTask) -> None:
        """Prepare the oldest rotated transaction. They are prepared in order, one at a time."""
        n, records = task.rotated.popleft()
        handle = f"{LINEAGE}/{self.epoch}/{SINKS[self.index]}/{n}"
        self.world.resource.staged[handle] = records
        self._perform_sink(task, task.committer.handle(on.TransactionPrepared(n, handle)))

    def store_sink(self, task: SinkTask, n: CheckpointId) -> None:
        if self.world.happens("failing snapshot"):
            self.world.seen["snapshot could not be stored"] += 1
            self._perform_sink(task, task.barriers.handle(on.SnapshotFailed(n, "disk full")))
            return
        length, _ = task.captured[n]
        base, base_length = task.base
        if len(base) >= 2:
            base, base_length = (), 0
        path = f"parts/{n}/out-{self.index}-{self.epoch}-{self.number:x}"
        self.world.parts[path] = task.state[base_length:length]
        task.stored[n] = ((*base, Part(path, length - base_length, "")), length)
        if not self.world.make.builds_on_completed:
            task.base = task.stored[n]
        self._perform_sink(task, task.barriers.handle(on.SnapshotStored(n)))

    def commit(self, task: SinkTask) -> None:
        effect = task.in_flight
        assert effect is not None
        task.in_flight = None
        fails = self.world.happens("failing commit")
        if not fails or self.world.pick(2):
            self.world.resource.commit(effect.permit, effect.handles)
        if fails:
            self.world.seen["commit without an answer"] += 1
            self._perform_sink(task, task.committer.handle(on.CommitAttemptFailed("time out")))
        else:
            self._perform_sink(task, task.committer.handle(on.CommitSucceeded()))


Event = Callable[[], None]


class Driver:
    """One Spark driver: a coordinator, its timers and pending work, its workers."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.coordinator = world.make.coordinator(world.rules(number))
        self.store = StoredLog(world.files)
        self.effects: deque[do.JobEffect] = deque(self.coordinator.start())
        self.is_alive = True
        self.outcome: str | None = None
        self.timers: dict[on.Timer, int] = {}
        self.work: list[do.JobEffect] = []
        self.workers: list[Worker] = []
        self.launches: list[int] = []
        self.attempts_failed = 0
        # What Spark believes to be alive, by place; it starts an attempt when there is none.
        self.attempts: dict[int, set[int]] = {index: set() for index in range(PARALLELISM)}
        self.is_submitted = False

    @property
    def is_running(self) -> bool:
        return self.is_alive and self.outcome is None

    def handle(self, event: on.JobEvent) -> None:
        dropped = self.coordinator.dropped["late log answer"]
        self.effects.extend(self.coordinator.handle(event))
        self.world.seen["late answer of the store"] += self.coordinator.dropped["late log answer"] - dropped
        self.world.seen[f"phase {self.coordinator.phase.name}"] += 1

    def perform(self) -> None:
        effect = self.effects.popleft()
        match effect:
            case do.StartTimer(timer, delay_ms):
                self.timers[timer] = self.world.now_ms + delay_ms
            case do.CancelTimer(timer):
                self.timers.pop(timer, None)
            case do.SendMessage(link, message):
                self.world.workers[link].inbox.append(message)
            case do.CloseLink(link):
                self.world.workers[link].inbox.append(None)
            case do.SubmitWorkers():
                ensure(not self.is_submitted, "the workers were submitted twice")
                self.is_submitted = True
                self.launches = list(range(PARALLELISM))
            case do.ReplaceWorker(index, attempt):
                # Best effort: the zombie may live on.
                self.world.seen["worker replaced for its silence"] += 1
                self._attempt_ended(index, attempt)
            case do.EndJob(outcome, cause):
                self.world.seen[f"job {outcome}"] += 1
                self.outcome = outcome
                self._orphan_workers()
                if outcome == "finished":
                    ensure(isinstance(self.world.log[-1], JobFinished), "F5: finished, says only the driver")
                if outcome == "stopped" and cause is None:
                    self.world.check_committed(self.coordinator.completed)
            case _:
                self.work.append(effect)

    def _orphan_workers(self) -> None:
        """The process is gone: its control links break, its workers notice at some time."""
        for worker in self.workers:
            worker.inbox.append(None)

    def _attempt_ended(self, index: int, attempt: int) -> None:
        self.attempts[index].discard(attempt)
        if self.is_submitted and not self.attempts[index] and index not in self.launches:
            self.launches.append(index)

    def crash(self) -> None:
        self.world.seen[f"driver crash while {self.coordinator.phase.name}"] += 1
        self.is_alive = False
        for effect in self.work:
            if isinstance(effect, do.AppendEntry) and self.world.pick(2):
                # The request had left the process.
                self.world.late_appends.append((self, effect))
        self._orphan_workers()

    def launch(self) -> None:
        self.world.launch(self, self.launches.pop(0))

    def fire(self, timer: on.Timer) -> None:
        del self.timers[timer]
        for effect in self.work:
            # It fires although the call has not returned yet: the store hangs, and answers later.
            match effect:
                case do.AppendEntry(_, entry) if timer.kind == "log-call":
                    self.world.seen[f"store hangs at {type(entry).__name__}"] += 1
                case do.ReadEntry() if timer.kind == "log-call":
                    self.world.seen["store hangs at reading back"] += 1
                case do.DeleteParts() if timer.kind == "delete":
                    self.world.seen["store hangs at deleting"] += 1
                case _:
                    pass
        self.handle(on.ClockRead(self.world.now_ms, ""))
        self.handle(on.TimerFired(timer))

    def receive(self, worker: Worker) -> None:
        self.handle(on.MessageReceived(worker.number, worker.outbox.popleft()))

    def link_closed(self, worker: Worker) -> None:
        worker.is_link_reported = True
        self.handle(on.LinkClosed(worker.number, "reset by peer"))
        self._attempt_ended(worker.index, worker.number)

    def end_workers(self) -> None:
        """Spark gives its job up."""
        self.world.seen["Spark gave the workers up"] += 1
        self.is_submitted = False
        self.attempts_failed = 0
        self.launches = []
        self.attempts = {index: set() for index in range(PARALLELISM)}
        for worker in self.workers:
            worker.inbox.append(None)
        self.handle(on.WorkersEnded("too many failures"))

    def do_work(self, effect: do.JobEffect) -> None:
        self.work.remove(effect)
        world = self.world
        match effect:
            case do.ReadLogTail(count):
                self.handle(on.LogTailRead(tuple(self.store.tail(count))))
            case do.DiscoverSplits():
                assignments = tuple(SplitAssignment(task, "split") for task in SOURCES)
                self.handle(on.SplitsDiscovered(assignments))
            case do.AppendEntry():
                self._append(effect)
            case do.ReadEntry(index):
                if world.happens("uncertain append"):
                    self.handle(on.EntryUncertain(index, "the read timed out"))
                    return
                found = self.store.read(index)
                if found is not None and isinstance(found, CheckpointCompleted | EpochClaimed):
                    world.seen["uncertain or taken entry read back"] += 1
                self.handle(on.EntryRead(index, found))
            case do.ListParts():
                self.handle(on.PartsListed(tuple(sorted(world.parts)), tuple(self.store.listed()[0])))
            case do.DeleteParts(paths, entries):
                for path in paths:
                    if world.parts.pop(path, None) is not None:
                        world.seen["part deleted"] += 1
                world.seen["log entry deleted"] += len(entries)
                ensure(not self.store.delete(entries), "a deletion in memory fails")
                world.check_restorable()
                self.handle(on.PartsDeleted())
            case _:
                raise Violation(f"nobody does {effect!r}")

    def append(self, effect: do.AppendEntry) -> bool:
        outcome = self.store.append(effect.index, effect.entry, effect.since)
        if isinstance(outcome, Appended):
            self.world.appended()
        return isinstance(outcome, Appended)

    def _append(self, effect: do.AppendEntry) -> None:
        world, index = self.world, effect.index
        if world.happens("refused append"):
            world.seen["append refused"] += 1
            self.handle(on.EntryRefused(index, "no space left"))
        elif world.happens("uncertain append"):
            fate = world.pick(3)
            if fate == 0:
                self.append(effect)
            elif fate == 1:
                world.late_appends.append((self, effect))
            self.handle(on.EntryUncertain(index, "time out"))
        elif self.append(effect):
            self.handle(on.EntryAppended(index))
        else:
            self.handle(on.EntryTaken(index))


class World:
    """Everything there is: drivers, workers, the log, the parts, the sink.

    Args:
        choices: Decide what happens in the first phase; also which faults there are.
    """

    def __init__(self, choices: Choices, make: Make | None = None) -> None:
        self._choices = choices
        self._calm = random.Random(7)
        self.is_calm = False
        self.make = make or Make()
        self.seen: Counter[str] = Counter()
        self.now_ms = 0
        self.log: list[LogEntry] = []
        self.files = MemoryFiles()
        self._history = LogHistory()
        self.late_appends: list[tuple[Driver, do.AppendEntry]] = []
        self.parts: dict[str, list[Record]] = {}
        self.resource = SinkResource(self)
        self.channels: dict[tuple[int, Epoch, int, int], deque[Record | Barrier | EndOfInput]] = {}
        self.drivers: list[Driver] = []
        self.workers: dict[int, Worker] = {}
        self._epoch_of_id: dict[CheckpointId, Epoch] = {}
        self._manifest_of: dict[str, CheckpointId] = {}
        self.faults = frozenset(fault for fault in FAULTS if self.pick(2))
        self._steps_per_fault = (6, 20, 60, 150)[self.pick(4)]
        self.records_per_source = 2 + self.pick(6)
        self.retain = 1 + self.pick(3)
        self.segment_entries_max = (1, 3, 1_000)[self.pick(3)]
        self.is_periodic = self.pick(5) > 0
        self.drivers.append(Driver(self, 1))

    def rules(self, driver: int) -> JobRules:
        return JobRules(
            identity=JobIdentity(f"driver {driver}", LINEAGE, "graph", PARALLELISM, 8),
            tasks=TASKS,
            sources=frozenset(SOURCES),
            sinks=frozenset(SINKS),
            checkpoints=CheckpointRules(self.is_periodic, 1_000, 10_000, 10_000),
            restart=RestartPolicy(10_000, 1_000_000, 0 if driver % 2 else 100, 100, 1_000, 3),
            retain=self.retain,
            segment_entries_max=self.segment_entries_max,
            heartbeat_timeout_ms=4_000,
            start_timeout_ms=30_000,
        )

    # Choices

    def pick(self, count: int) -> int:
        if self.is_calm:
            return self._calm.randrange(count)
        number = self._choices.below(count)
        if number is None:
            self.is_calm = True
            return 0
        return number

    def happens(self, fault: str) -> bool:
        return not self.is_calm and fault in self.faults and self.pick(4) == 0

    # The log

    def appended(self) -> None:
        """The newest file is an entry of the log."""
        entry = self._history.appended(*next(reversed(self.files.content.items())))
        if entry is None:
            self.seen["put where an entry was deleted"] += 1
            return
        self._check_entry(entry)
        self.log.append(entry)

    def claims(self) -> list[EpochClaimed]:
        return claims_in(self.log)

    def newest_claim(self) -> EpochClaimed | None:
        return next(reversed(self.claims()), None)

    def completed(self) -> list[CheckpointCompleted]:
        return [entry for entry in self.log if isinstance(entry, CheckpointCompleted)]

    def apply_late(self, late: tuple[Driver, do.AppendEntry]) -> None:
        self.late_appends.remove(late)
        driver, effect = late
        if driver.append(effect):
            self.seen["append applied after its time"] += 1

    # What must hold

    def _check_entry(self, entry: LogEntry) -> None:
        ensure(
            not self.log or not isinstance(self.log[-1], JobFinished), f"{entry!r:.80} after the job finished"
        )
        claim = self.newest_claim()
        completed = self.completed()
        match entry:
            case EpochClaimed():
                is_new = claim is None or entry.epoch > claim.epoch
                ensure(is_new, f"I6: epoch {entry.epoch} is claimed again")
            case SegmentOpened(opening):
                is_owner = claim is None or opening.epoch > claim.epoch or opening == claim
                ensure(is_owner, f"I7: a segment is opened by {opening} while {claim} owns the job")
            case SegmentClosed():
                pass
            case CheckpointCompleted():
                ensure(
                    claim is not None and claim.epoch == entry.epoch,
                    f"I7: checkpoint {entry.checkpoint_id} of epoch {entry.epoch} while {claim} owns the job",
                )
                ensure(
                    not completed or completed[-1].checkpoint_id < entry.checkpoint_id,
                    f"I6: checkpoint {entry.checkpoint_id} completes after {completed[-1:]}",
                )
                self._check_cut(entry)
            case JobFinished():
                is_final = bool(completed) and completed[-1].is_final
                ensure(is_final, "F5: the job finished without a final checkpoint")
                self.check_committed(completed[-1])

    def check_committed(self, checkpoint: CheckpointCompleted | None) -> None:
        for one in checkpoint.snapshots if checkpoint else ():
            for pending in one.snapshot.pending:
                is_committed = pending.handle in self.resource.committed
                ensure(is_committed, f"F5 F7: the job ends well, but {pending.handle} is not committed")

    def _check_cut(self, entry: CheckpointCompleted) -> None:
        """The snapshots of a checkpoint are a consistent cut, and it accounts for all the output."""
        snapshots = {one.task: one.snapshot for one in entry.snapshots}
        n = entry.checkpoint_id
        ensure(snapshots.keys() == TASKS, f"I4: checkpoint {n} is of {sorted(map(str, snapshots))} only")
        positions = [snapshots[task].positions for task in SOURCES]
        cut = sorted((i, k) for i, end in enumerate(positions) if isinstance(end, int) for k in range(end))
        state = sorted(record for task in SINKS for record in self.content(snapshots[task].parts))
        ensure(state == cut, f"I4: checkpoint {n} has state {state} at source positions {positions}")
        handles = {one.handle for task in SINKS for one in snapshots[task].pending}
        visible = self.resource.records()
        for handle in handles - self.resource.committed.keys():
            assert isinstance(handle, str)
            ensure(handle in self.resource.staged, f"I9: checkpoint {n} needs {handle}, which is not staged")
            visible += self.resource.staged[handle]
            self._manifest_of.setdefault(handle, n)
        ensure(
            sorted(visible) == cut,
            f"I1 I2: with checkpoint {n} output will be {sorted(visible)} for source positions {positions}",
        )
        if len(handles) > len(SINKS):
            self.seen["checkpoint with transactions of earlier barriers"] += 1
        if entry.is_final:
            complete = sorted((i, k) for i in range(PARALLELISM) for k in range(self.records_per_source))
            ensure(cut == complete, f"F5: checkpoint {n} is called final at source positions {positions}")

    def check_visible(self, handle: str, permit: CommitPermit) -> None:
        n = self._manifest_of.get(handle)
        ensure(
            n is not None and n <= permit.checkpoint_id,
            f"I3: {handle} becomes visible with a permit for {permit.checkpoint_id}, but it is in the "
            f"manifest of {n}",
        )
        ensure(
            permit.checkpoint_id in {one.checkpoint_id for one in self.completed()},
            f"I3: {handle} becomes visible, and checkpoint {permit.checkpoint_id} is not complete",
        )

    def check_restorable(self) -> None:
        for entry in self.completed()[-1:]:
            for one in entry.snapshots:
                self.content(one.snapshot.parts)

    def content(self, parts: tuple[Part, ...]) -> list[Record]:
        for part in parts:
            ensure(part.path in self.parts, f"I8: {part.path} is needed and does not exist")
        return [record for part in parts for record in self.parts[part.path]]

    def trigger_noted(self, worker: Worker, n: CheckpointId) -> None:
        epoch = self._epoch_of_id.setdefault(n, worker.epoch)
        ensure(epoch == worker.epoch, f"I6: id {n} is used in epoch {epoch} and again in {worker.epoch}")
        claims = [one for one in self.claims() if one.epoch == epoch]
        completed = [one.checkpoint_id for one in self.completed() if one.epoch == epoch]
        base = max([claims[-1].first_checkpoint_id, *completed])
        ensure(n <= base + CHECKPOINT_IDS_LEAD_MAX, f"id {n} is too far above {base}")

    # Steps

    def launch(self, driver: Driver, index: int) -> None:
        number = len(self.workers) + 1
        worker = self.workers[number] = Worker(self, driver, index, number)
        driver.workers.append(worker)
        driver.attempts[index].add(number)

    def new_driver(self) -> None:
        if any(driver.is_running for driver in self.drivers):
            self.seen["two drivers at once"] += 1
        self.drivers.append(Driver(self, len(self.drivers) + 1))

    def _repeat(self, worker: Worker) -> None:
        message = worker.sent[self.pick(len(worker.sent))]
        self.seen[f"repeated {type(message).__name__}"] += 1
        worker.outbox.append(message)

    def _set_paused(self, worker: Worker, is_paused: bool) -> None:
        worker.is_paused = is_paused
        self.seen["worker paused" if is_paused else "paused worker came back"] += 1

    def _set_deaf(self, worker: Worker, is_deaf: bool) -> None:
        worker.is_deaf = is_deaf

    def _crash(self, worker: Worker) -> None:
        self.seen[f"worker crash while {worker.driver.coordinator.phase.name}"] += 1
        for _ in range(self.pick(3)):
            if worker.outbox:
                worker.outbox.pop()
        worker.exit()

    def _steps(self) -> list[tuple[int, Event]]:
        """What can happen next without any fault, with weights."""
        steps: list[tuple[int, Event]] = []
        for driver in self.drivers:
            if driver.is_running:
                steps += self._driver_steps(driver)
        for worker in self.workers.values():
            if worker.is_alive and not worker.is_paused:
                steps += self._worker_steps(worker)
        steps += [(2, partial(self.apply_late, late)) for late in self.late_appends]
        if not any(driver.is_running for driver in self.drivers) and not self.is_finished:
            steps.append((1, self.new_driver))
        return steps

    def _driver_steps(self, driver: Driver) -> list[tuple[int, Event]]:
        if driver.effects:
            # An effect is performed before the next event, and a crash may come between two.
            return [(30, driver.perform)]
        steps: list[tuple[int, Event]] = [(6, partial(driver.do_work, effect)) for effect in driver.work]
        for worker in driver.workers:
            if worker.outbox:
                steps.append((8, partial(driver.receive, worker)))
            elif not worker.is_alive and not worker.is_link_reported:
                steps.append((4, partial(driver.link_closed, worker)))
        if driver.is_submitted and driver.attempts_failed > SPARK_FAILURES_MAX:
            return [(30, driver.end_workers)]
        if driver.launches:
            steps.append((6, driver.launch))
        if not self.is_calm:
            steps += [
                (2, partial(driver.fire, timer))
                for timer in driver.timers
                if timer.kind in ("trigger", "restart", "retry-append", "forget-failure")
            ]
            hung = [timer for timer in driver.timers if timer.kind in ("log-call", "delete")]
            steps += [(1, partial(driver.fire, timer)) for timer in hung]
        return steps

    def _worker_steps(self, worker: Worker) -> list[tuple[int, Event]]:
        steps: list[tuple[int, Event]] = []
        if worker.inbox and not (worker.is_deaf and not self.is_calm):
            steps.append((6, worker.receive))
        source, sink = worker.source, worker.sink
        if source is None or sink is None:
            return steps
        if worker.is_started and not source.has_ended:
            steps.append((2, partial(worker.read_source, source)))
        steps += [(6, partial(worker.store_source, source, n)) for n in source.captured]
        steps += [(5, partial(worker.read_channel, sink, one)) for one in worker.readable(sink)]
        if sink.rotated:
            steps.append((6, partial(worker.prepare, sink)))
        for n in sink.captured:
            # The snapshot is stored only when everything rotated at or below n is prepared.
            if n not in sink.stored and not (sink.rotated and sink.rotated[0][0] <= n):
                steps.append((6, partial(worker.store_sink, sink, n)))
        if sink.in_flight is not None:
            steps.append((6, partial(worker.commit, sink)))
        return steps

    def _fault_steps(self) -> list[list[Event]]:
        """What can go wrong now, by kind, of the kinds of fault that this world has."""
        faults: dict[str, list[Event]] = {name: [] for name in FAULTS}
        for driver in self.drivers:
            if not driver.is_running:
                continue
            faults["driver crash"].append(driver.crash)
            if not driver.effects:
                faults["early timer"] += [partial(driver.fire, timer) for timer in driver.timers]
                faults["stop"] += [partial(driver.handle, event) for event in (on.StopRequested(),) * 4]
                faults["stop"].append(partial(driver.handle, on.CancelRequested()))
                if driver.is_submitted:
                    faults["workers ended"].append(driver.end_workers)
            if driver.is_submitted:
                for index in range(PARALLELISM):
                    faults["second attempt"].append(partial(self.launch, driver, index))
        if len(self.drivers) < 8:
            faults["second driver"].append(self.new_driver)
        for worker in self.workers.values():
            if not worker.is_alive:
                continue
            faults["worker crash"].append(partial(self._crash, worker))
            faults["worker pause"].append(partial(self._set_paused, worker, not worker.is_paused))
            faults["slow control"].append(partial(self._set_deaf, worker, not worker.is_deaf))
            faults["repeated message"].append(partial(self._repeat, worker))
            if worker.sink is not None:
                faults["task failure"].append(partial(worker.fail, "division by zero"))
        return [steps for name, steps in faults.items() if steps and name in self.faults]

    def step(self) -> bool:
        """Do one thing. Return whether there was anything to do but wait."""
        if not self.is_calm and self.pick(self._steps_per_fault) == 1:
            faults = self._fault_steps()
            if faults:
                kind = faults[self.pick(len(faults))]
                kind[self.pick(len(kind))]()
                return True
        steps = self._steps()
        if not steps:
            return False
        chosen = self.pick(sum(weight for weight, _ in steps))
        for weight, action in steps:
            chosen -= weight
            if chosen < 0:
                action()
                break
        return True

    @property
    def is_finished(self) -> bool:
        return any(driver.outcome == "finished" for driver in self.drivers)

    def wait(self) -> None:
        """Nothing happens until the next timer fires."""
        waiting = [
            (due, driver.number, timer)
            for driver in self.drivers
            if driver.is_running
            for timer, due in driver.timers.items()
        ]
        ensure(bool(waiting), "I10: nothing will ever happen again, and the job has not finished")
        due, number, timer = min(waiting)
        self.now_ms = max(self.now_ms, due)
        self.drivers[number - 1].fire(timer)

    def run(self) -> Counter[str]:
        """Live through both phases; return what was seen.

        Raises:
            Violation: An invariant does not hold.
            ProtocolError: A machine was given something impossible.
        """
        while not self.is_calm and not self.is_finished:
            if not self.step():
                self.wait()
        self.is_calm = True
        steps = 0
        while not self.is_finished:
            steps += 1
            ensure(steps < LIVE_STEPS_MAX, "I10: the faults have stopped, and the job does not finish")
            if not self.step():
                self.wait()
        # Zombies go on for a while; they must not change anything any more.
        output = dict(self.resource.committed)
        for worker in self.workers.values():
            worker.is_paused = False
        for _ in range(200):
            self.step()
        ensure(output == self.resource.committed, "I7: the output changed after the job finished")
        self._check_end()
        return self.seen

    def _check_end(self) -> None:
        expected = sorted((i, k) for i in range(PARALLELISM) for k in range(self.records_per_source))
        found = self.resource.records()
        ensure(sorted(found) == expected, f"I1 I2: the output is {sorted(found)}")
        for source in range(PARALLELISM):
            for sink in range(PARALLELISM):
                order = [k for i, k in found if i == source and k % PARALLELISM == sink]
                ensure(order == sorted(order), f"I5: source {source} at sink {sink} in the order {order}")
        final = self.completed()[-1]
        ensure(final.is_final, "F5: the job finished without a final checkpoint")
        left = [one for one in self.resource.staged if one.split("/")[1] == str(final.epoch)]
        ensure(not left, f"I11: {left} is staged for ever")


def outcome_of(world: World) -> str:
    """Run `world` and say which invariant broke first, or "" if all held."""
    try:
        world.run()
    except Violation as violation:
        return str(violation)
    return ""
