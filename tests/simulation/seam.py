"""The seam of `engine="auto"`: drivers, each with one engine after the other, over one checkpoint directory.

What decides is what ships: `Engines`, one `Coordinator` for each stretch, `Batches` where it runs in batches,
the `Committer` of a sink task where tasks stay, and the job log in a store of files. What they ask for is
modelled here: one source of numbers, one sink that stages, Spark that tries a partition twice, and drivers
that die, or are only taken for dead. A call to the store or to the sink is carried out some time later,
perhaps after its driver has died.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from crosscut.contracts.connectors import CommitPermit
from crosscut.driver.asking import Asking
from crosscut.foundation.ids import (
    AttemptId,
    CheckpointId,
    Epoch,
    Lineage,
    TaskId,
    VertexId,
    WorkerIndex,
)
from crosscut.host.failpoints import Failpoints
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec, Phase
from crosscut.protocol.job.restarts import RestartPolicy
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.recovery import JobIdentity, Predecessor
from crosscut.protocol.messages import (
    CommitCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    HaltTasks,
    RegisterWorker,
    ShutDown,
    SnapshotAcknowledged,
    SplitAssignment,
    StartTasks,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.microbatch import effects as batch_do
from crosscut.protocol.microbatch import engine_switch as seam
from crosscut.protocol.microbatch import events as batch_on
from crosscut.protocol.microbatch.attempts import Attempt, Partition
from crosscut.protocol.microbatch.batches import Batches
from crosscut.protocol.microbatch.engine_switch import Engine, Engines, Switch
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshots import PendingTransaction, Snapshot, TaskSnapshot
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.testing.simulator.memory_files import MemoryFiles
from crosscut.testing.simulator.violation import ensure

SOURCE, SINK = TaskId(VertexId("numbers"), 0), TaskId(VertexId("out"), 0)
LINK = 11
FIRED = ("trigger", "restart", "retry-append", "read-again")
"""Timers that end a wait; the others bound calls, which do not hang here."""


def terms(driver: str, engine: Engine, follows: Predecessor | None) -> CoordinatorSpec:
    return CoordinatorSpec(
        identity=JobIdentity(driver, Lineage(driver), "graph", 1, 8, follows=follows),
        tasks=frozenset((SOURCE, SINK)),
        sources=frozenset((SOURCE,)),
        sinks=frozenset((SINK,)),
        checkpoints=CheckpointSpec(True, 10, 60_000, 10, 0, 1, are_batches=engine == "micro-batch"),
        restart=RestartPolicy(100, 300_000, 0, 0, 0, 3),
        retain=2,
        heartbeat_timeout_ms=4_000,
        start_timeout_ms=30_000,
    )


class Output:
    """Where the sink writes: outside of every driver."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.staged: dict[str, tuple[Epoch, list[int]]] = {}
        self.visible: dict[str, list[int]] = {}

    def stage(self, epoch: Epoch, n: CheckpointId, numbers: list[int]) -> str:
        handle = f"{epoch}/{n}/{self._world.dice.getrandbits(40):x}"
        self.staged[handle] = (epoch, numbers)
        return handle

    def commit(self, n: CheckpointId, handles: list[str]) -> None:
        for handle in handles:
            if handle in self.visible:
                continue
            ensure(handle in self.staged, f"{handle} is to be committed, and is not staged")
            is_durable = any(m <= n and handle in _pending(one) for m, one in self._world.durable.items())
            ensure(is_durable, f"{handle} becomes visible, and no durable entry has it")
            self.visible[handle] = self.staged.pop(handle)[1]
        shown = Counter(number for numbers in self.visible.values() for number in numbers)
        twice = [number for number, times in shown.items() if times > 1]
        ensure(not twice, f"{twice} are visible twice")

    def recover(self, epoch: Epoch, restore: CheckpointId, handles: list[str]) -> None:
        self.commit(restore, handles)
        self.staged = {handle: one for handle, one in self.staged.items() if one[0] >= epoch}

    def abort(self, handles: list[str]) -> None:
        for handle in handles:
            self.staged.pop(handle, None)

    def sweep(self, epoch: Epoch) -> None:
        self.staged = {handle: one for handle, one in self.staged.items() if one[0] != epoch}


class Tasks:
    """A worker whose tasks stay: a source, and a sink with the real committer."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch, self._world = stretch, stretch.world
        self.position = 0
        self._open: list[int] = []
        self._is_running = False
        self._epoch = Epoch(0)
        self._committer = Committer(Lineage(""), Epoch(0), 3)

    def told(self, message: CoordinatorMessage) -> None:
        match message:
            case DeployTasks(epoch, lineage, _, restore):
                self._epoch, self._is_running, self._open = epoch, False, []
                self._committer = Committer(lineage, epoch, 3)
                self.position, handles = _restored(message)
                self._stretch.call(
                    lambda: self._world.output.recover(epoch, restore, handles),
                    lambda: self._stretch.say(WorkerReady(epoch)),
                )
            case StartTasks(epoch):
                self._is_running = epoch == self._epoch
            case TriggerCheckpoint(epoch, n) if epoch == self._epoch:
                self._freeze(n)
            case CommitCheckpoint(epoch, n) if epoch == self._epoch:
                self._commit(self._committer.handle(on.CommitAuthorised(n)))
            case HaltTasks() | ShutDown():
                self._is_running = False
            case _:
                """About records on their way, or silence."""

    def _freeze(self, n: CheckpointId) -> None:
        numbers, self._open = self._open, []
        if numbers:
            handle = self._world.output.stage(self._epoch, n, numbers)
            self._committer.handle(on.TransactionPrepared(n, handle))
        self._stretch.acknowledge(self._epoch, n, self.position, self._committer.pending(n))

    def _commit(self, effects: list[do.CommitterEffect]) -> None:
        epoch, committer = self._epoch, self._committer
        for effect in effects:
            match effect:
                case do.CommitTransactions(permit, handles):
                    self._stretch.call(
                        lambda permit=permit, handles=handles: self._commit_now(permit, list(handles)),  # type: ignore[misc]
                        lambda: self._commit(committer.handle(on.CommitSucceeded())),
                    )
                case do.AnnounceCommitted(n):
                    self._stretch.say(TransactionsCommitted(epoch, n, SINK))
                case do.FailTask():
                    raise AssertionError("nothing fails here")

    def _commit_now(self, permit: CommitPermit, handles: list[Any]) -> None:
        self._world.output.commit(permit.checkpoint_id, handles)

    def moves(self) -> list[Callable[[], None]]:
        return [self._read] if self._is_running and self.position < self._world.written else []

    def _read(self) -> None:
        end = min(self._world.written, self.position + self._world.dice.randint(1, 4))
        self._open += range(self.position, end)
        self.position = end

    def news(self) -> seam.EngineEvent | None:
        if self._stretch.coordinator.phase is not Phase.RUNNING:
            return None
        return seam.LagSeen(self._world.now_ms, self._world.written - self.position)


class Batching:
    """What `BatchWorkers` does around the real batches: one stage of one partition."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch, self._world = stretch, stretch.world
        self._batches = Batches(1, 1, 3)
        self.position = 0
        self._restored: list[str] = []
        self._runs: list[tuple[Epoch, CheckpointId, int, int]] = []
        self._news: seam.EngineEvent | None = None

    def told(self, message: CoordinatorMessage) -> None:
        match message:
            case DeployTasks(epoch, _, _, restore):
                self.position, self._restored = _restored(message)
                self._handle(batch_on.TasksDeployed(epoch, restore))
            case TriggerCheckpoint(epoch, n):
                self._handle(batch_on.BatchTriggered(epoch, n))
            case CommitCheckpoint(epoch, n):
                self._handle(batch_on.BatchCompleted(epoch, n))
            case HaltTasks(epoch):
                self._handle(batch_on.EpochHalted(epoch))
            case ShutDown():
                self._handle(batch_on.EpochHalted(self._batches.epoch))
            case _:
                """Not for batches."""

    def _handle(self, event: batch_on.BatchEvent) -> None:
        for effect in self._batches.handle(event):
            self._perform(effect)

    def _perform(self, effect: batch_do.BatchEffect) -> None:
        output, call = self._world.output, self._stretch.call
        match effect:
            case batch_do.RecoverOutput(epoch, restore):
                handles = self._restored
                call(
                    lambda: output.recover(epoch, restore, handles),
                    lambda: self._handle(batch_on.OutputRecovered(epoch)),
                )
            case batch_do.ReportReady(epoch):
                self._stretch.say(WorkerReady(epoch))
            case batch_do.RunBatch(epoch, n, run):
                self._runs.append((epoch, n, run, self.position))
            case batch_do.CancelRun(epoch, n, run):
                self._runs = [one for one in self._runs if one[:3] != (epoch, n, run)]
            case batch_do.AcknowledgeBatch(epoch, n, (attempt,)):
                for one in attempt.snapshots:
                    self._stretch.say(SnapshotAcknowledged(epoch, n, one.task, one.snapshot))
            case batch_do.CommitBatch(epoch, n, (attempt,), _, sweeps):
                self.position = _position(attempt.snapshots)
                call(
                    lambda: self._commit_now(epoch, n, attempt, sweeps=sweeps),
                    lambda: self._handle(batch_on.OutputCommitted(epoch, n)),
                )
            case batch_do.ReportCommitted(epoch, n):
                self._news = seam.BatchVisible(n, self._world.written - self.position, is_drained=False)
                self._stretch.say(TransactionsCommitted(epoch, n, SINK))
            case batch_do.AbortAttempts(_, attempts):
                handles = [handle for one in attempts for handle in _handles(one.snapshots)]
                call(lambda: output.abort(handles), None)
            case batch_do.SweepOutput(epoch):
                call(lambda: output.sweep(epoch), None)
            case batch_do.DiscardParts() | batch_do.SweepParts():
                """Nothing is stored here that could be left over."""
            case _:
                raise AssertionError(f"nothing fails here: {effect}")

    def _commit_now(self, epoch: Epoch, n: CheckpointId, attempt: Attempt, *, sweeps: bool) -> None:
        self._world.output.commit(n, _handles(attempt.snapshots))
        if sweeps:
            self._world.output.sweep(epoch)

    def moves(self) -> list[Callable[[], None]]:
        return [self._run] if self._runs else []

    def _run(self) -> None:
        """One or two attempts come to their end, each after as many numbers as it likes."""
        epoch, n, run, position = self._runs.pop(0)
        for _ in range(self._world.dice.choice((1, 1, 2))):
            end = min(self._world.written, position + self._world.dice.randint(0, 6))
            numbers = list(range(position, end))
            pending = ()
            if numbers:
                pending = (PendingTransaction(n, self._world.output.stage(epoch, n, numbers)),)
            snapshots = _snapshots(end, pending)
            name = f"{n}-{run}-{self._world.dice.getrandbits(40):x}"
            brought = (Attempt(Partition(0, 0), name, (), snapshots),)
            self._handle(batch_on.PartitionReturned(epoch, n, run, 0, brought))
        self._handle(batch_on.RunEnded(epoch, n, run))

    def news(self) -> seam.EngineEvent | None:
        return self._news


class Stretch:
    """One engine of one driver, from its claim to its end."""

    def __init__(self, driver: Driver, engine: Engine, follows: Predecessor | None) -> None:
        self.world, self._driver, self.engine = driver.world, driver, engine
        self.name = f"driver {driver.number}.{self.world.dice.getrandbits(40):x}"
        self.coordinator = Coordinator(terms(self.name, engine, follows))
        self._store = Asking(
            CheckpointStore(self.world.files),
            lambda epoch: (SplitAssignment(SOURCE, [["numbers", 0, None, 1, 0]]),),
            tuple,
            Failpoints(None, None),
        )
        self._work: Tasks | Batching = Tasks(self) if engine == "continuous" else Batching(self)
        self._timers: dict[on.Timer, None] = {}
        self._heard: deque[on.JobEvent] = deque()
        self._said: deque[CoordinatorMessage] = deque()
        self.outcome = ""
        self._perform(self.coordinator.start())

    def post(self, event: on.JobEvent) -> None:
        self._heard.append(event)

    def say(self, message: WorkerMessage) -> None:
        self.post(on.MessageReceived(LINK, message))

    def acknowledge(
        self, epoch: Epoch, n: CheckpointId, position: int, pending: tuple[PendingTransaction, ...]
    ) -> None:
        for one in _snapshots(position, pending):
            self.say(SnapshotAcknowledged(epoch, n, one.task, one.snapshot))

    def call(self, work: Callable[[], None], then: Callable[[], None] | None) -> None:
        """Have something done outside; `then` is called here when it has been."""
        self._driver.calls.append((work, then))

    def _ask(self, question: Callable[..., on.JobEvent | None], *arguments: Any) -> None:
        answers: list[on.JobEvent] = []

        def work() -> None:
            answer = question(*arguments)
            if isinstance(answer, on.EntryAppended) and isinstance(arguments[0], do.AppendEntry):
                self.world.appended(arguments[0].entry)
            if answer is not None:
                answers.append(answer)

        self.call(work, lambda: self._heard.extend(answers))

    def _perform(self, effects: list[do.JobEffect]) -> None:
        for effect in effects:
            match effect:
                case do.SendMessage(_, message):
                    self._said.append(message)
                case do.StartTimer(timer):
                    self._timers[timer] = None
                case do.CancelTimer(timer):
                    self._timers.pop(timer, None)
                case do.ReadLogTail(checkpoints):
                    self._ask(self._store.read_tail, checkpoints)
                case do.DiscoverSplits(epoch):
                    self._ask(self._store.discover, epoch)
                case do.AppendEntry():
                    self._ask(self._store.append, effect)
                case do.ReadEntry(index):
                    self._ask(self._store.read, index)
                case do.ListParts():
                    self._ask(self._store.list_parts)
                case do.DeleteParts():
                    self._ask(self._store.delete, effect)
                case do.SubmitWorkers():
                    worker, attempt = WorkerIndex(0), AttemptId(1)
                    self.post(on.LinkOpened(LINK, worker, attempt))
                    self.say(RegisterWorker(worker, attempt, "localhost", 1, 1))
                case do.EndJob(outcome):
                    self.outcome = outcome
                case _:
                    """Links and processes, of which there is one that is well."""

    def moves(self) -> list[Callable[[], None]]:
        if self.outcome:
            return [self._driver.engine_ended]
        found = self._work.moves()
        if self._heard:
            found.append(self._hear)
        if self._said:
            found.append(lambda: self._work.told(self._said.popleft()))
        found += [lambda one=one: self._fire(one) for one in self._timers if one.kind in FIRED]  # type: ignore[misc]
        return found

    def _hear(self) -> None:
        self._take(self._heard.popleft())

    def _fire(self, timer: on.Timer) -> None:
        del self._timers[timer]
        self._take(on.TimerFired(timer))

    def _take(self, event: on.JobEvent) -> None:
        self.coordinator.handle(on.ClockRead(self.world.now_ms, "now"))
        self._perform(self.coordinator.handle(event))

    def news(self) -> seam.EngineEvent | None:
        return self._work.news()


class Driver:
    """A program: the real choice of engines, and one stretch after the other."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self._engines = Engines(caught_up_at=6, behind_at=12, behind_for_ms=5)
        self.calls: list[tuple[Callable[[], None], Callable[[], None] | None]] = []
        self.is_over = False
        self.stretch: Stretch | None = None
        self._begin(self._engines.engine, None)

    def _begin(self, engine: Engine, follows: Predecessor | None) -> None:
        ensure(
            self.stretch is None or bool(self.stretch.outcome),
            f"{engine} begins in driver {self.number}, and what ran before has not ended",
        )
        self._follows = follows is not None
        self.stretch = Stretch(self, engine, follows)

    @property
    def is_at_seam(self) -> bool:
        """Whether an engine is to end, or the one that follows has not come as far as to run."""
        if self.stretch is None or self._engines.phase is not Switch.RUNNING:
            return True
        return self._follows and self.stretch.coordinator.phase is not Phase.RUNNING

    def engine_ended(self) -> None:
        assert self.stretch is not None
        ended = self.stretch
        ensure(ended.outcome in ("stopped", "fenced"), f"driver {self.number} has ended: {ended.outcome}")
        for effect in self._engines.handle(seam.EngineEnded(ended.outcome)):
            self._perform(effect, Predecessor(ended.name, ended.coordinator.epoch))
        self.is_over = self._engines.phase is Switch.OVER

    def _perform(self, effect: seam.EngineEffect, follows: Predecessor | None) -> None:
        match effect:
            case seam.StopEngine():
                assert self.stretch is not None
                self.stretch.post(on.StopRequested())
            case seam.StartEngine(engine):
                self.world.seen[f"over to {engine}"] += 1
                self._begin(engine, follows)

    def _look(self) -> None:
        assert self.stretch is not None
        news = self.stretch.news()
        for effect in [] if news is None else self._engines.handle(news):
            self._perform(effect, None)

    def _return(self) -> None:
        work, then = self.calls.pop(self.world.dice.randrange(len(self.calls)))
        work()
        if then is not None:
            then()

    def moves(self) -> list[Callable[[], None]]:
        if self.is_over or self.stretch is None:
            return []
        found = self.stretch.moves()
        if not self.stretch.outcome:
            found.append(self._look)
        return [*found, self._return] if self.calls else found


class World:
    """See the module. All of it follows from the seed.

    Attributes:
        written: How many numbers there are to read so far.
        durable: The checkpoints whose entry is in the log.
    """

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"seam {seed}")
        self.files = MemoryFiles()
        self.output = Output(self)
        self.durable: dict[CheckpointId, CheckpointCompleted] = {}
        self.written = self.dice.randint(0, 40)
        self.now_ms = 0
        self.seen: Counter[str] = Counter()
        self._late: list[Callable[[], None]] = []
        self._drivers: list[Driver] = []
        self._driver_count = 0

    def appended(self, entry: Any) -> None:
        if isinstance(entry, CheckpointCompleted):
            self.durable[entry.checkpoint_id] = entry

    def run(self, steps: int, faults: int) -> None:
        """Live `steps` steps with faults, and then without, until all is visible."""
        at = sorted((self.dice.randrange(steps), self.dice.random() < 0.6) for _ in range(faults))
        for step in range(steps):
            # Most of them wait until one engine is to follow the other.
            if at and step >= at[0][0] and (self._is_at_seam or not at[0][1]):
                at.pop(0)
                self.dice.choice((self._kill, self._kill, self._replace))()
            if self.dice.random() < 0.02:
                self.written += self.dice.choice((1, 2, 30))
            self._step()
        for _ in range(20_000):
            shown = sum(map(len, self.output.visible.values()))
            if shown == self.written:
                return
            self._step()
        ensure(False, f"{shown} of {self.written} numbers are visible, and no other is")

    @property
    def _is_at_seam(self) -> bool:
        return bool(self._drivers) and self._drivers[-1].is_at_seam

    def _step(self) -> None:
        self.now_ms += 1
        self._drivers = [one for one in self._drivers if not one.is_over]
        if not self._drivers:
            self._start()
        moves = [move for one in self._drivers for move in one.moves()]
        if self._late:
            moves.append(self._arrive)
        self.dice.choice(moves)()

    def _start(self) -> None:
        self._driver_count += 1
        self._drivers.append(Driver(self, self._driver_count))

    def _kill(self) -> None:
        """The newest driver dies; what it had asked for may be done all the same, later."""
        if self._drivers:
            died = self._drivers.pop()
            assert died.stretch is not None
            self.seen[f"killed in {died.stretch.engine}, {died.stretch.coordinator.phase.name}"] += 1
            self._late += [work for work, _ in died.calls if self.dice.random() < 0.5]

    def _replace(self) -> None:
        """The newest driver is taken for dead: it goes on beside another one."""
        self.seen["taken for dead"] += 1
        self._start()

    def _arrive(self) -> None:
        self._late.pop(self.dice.randrange(len(self._late)))()


def _snapshots(position: int, pending: tuple[PendingTransaction, ...]) -> tuple[TaskSnapshot, ...]:
    return (
        TaskSnapshot(SOURCE, Snapshot(positions={"numbers": position})),
        TaskSnapshot(SINK, Snapshot(pending=pending)),
    )


def _position(snapshots: tuple[TaskSnapshot, ...]) -> int:
    found: Any = next((one.snapshot.positions for one in snapshots if one.task == SOURCE), None)
    return 0 if found is None else int(found["numbers"])


def _handles(snapshots: tuple[TaskSnapshot, ...]) -> list[str]:
    return [str(each.handle) for one in snapshots for each in one.snapshot.pending]


def _pending(entry: CheckpointCompleted) -> list[str]:
    return _handles(entry.snapshots)


def _restored(message: DeployTasks) -> tuple[int, list[str]]:
    return _position(message.snapshots), _handles(message.snapshots)
