"""A virtual Spark driver: what `crosscut.runtime.driver` does, with virtual links, timers and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

from crosscut.errors import StoreError
from crosscut.ids import AttemptId, WorkerIndex
from crosscut.protocol.effects import (
    AnswerRequest,
    AppendEntry,
    CancelTimer,
    CloseLink,
    DeleteParts,
    DiscoverSplits,
    EndJob,
    JobEffect,
    ListParts,
    ReadEntry,
    ReadLogTail,
    ReplaceWorker,
    SendMessage,
    StartTimer,
    SubmitWorkers,
)
from crosscut.protocol.events import (
    CancelRequested,
    ClockRead,
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
    PartsListed,
    SplitsDiscovered,
    Timer,
    TimerFired,
)
from crosscut.protocol.job import Coordinator, Phase
from crosscut.protocol.log import Appended, Taken, Unknown
from crosscut.protocol.messages import (
    CheckpointCompleted,
    CommitCheckpoint,
    CoordinatorMessage,
    JobFinished,
    LogEntry,
    SnapshotAcknowledged,
    WorkerHeartbeat,
    WorkerMessage,
)
from crosscut.runtime.runner import failure_cause
from crosscut.testing.simulator.network import Killed, Pipe, Process
from crosscut.testing.simulator.options import Moment
from crosscut.testing.simulator.scheduler import Spark
from crosscut.wire.control import COORDINATOR_MESSAGES, WORKER_MESSAGES, decode_control, encode_control

if TYPE_CHECKING:
    from crosscut.testing.simulator.worker import VirtualWorker
    from crosscut.testing.simulator.world import World


class ControlConnection:
    """The control link of one worker: `up` to the driver, `down` to the worker. Messages travel as bytes."""

    def __init__(self, world: World, driver: VirtualDriver, worker: VirtualWorker, number: int) -> None:
        self.number = number
        self.worker = worker
        self.up = Pipe(
            world.clock,
            world.line(worker, driver),
            world.latency_us,
            lambda message: driver.do(lambda: driver.link_message(self, message)),
            lambda reason: driver.do(lambda: driver.link_lost(self, reason)),
        )
        self.down = Pipe(
            world.clock,
            world.line(driver, worker),
            world.latency_us,
            lambda message: worker.do(lambda: worker.told(message)),
            lambda reason: worker.do(lambda: worker.link_lost(reason)),
        )

    def say(self, message: CoordinatorMessage) -> None:
        """Send to the worker."""
        self.down.send(decode_control(encode_control(message), COORDINATOR_MESSAGES))

    def close(self, reason: str, *, loses: bool) -> None:
        """Close both directions."""
        self.up.close(reason, loses=loses)
        self.down.close(reason, loses=loses)


class VirtualDriver(Process):
    """The process with the coordinator."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world.clock, f"driver {number}")
        self.world = world
        self.number = number
        self.coordinator = Coordinator(world.rules(number))
        self.spark = Spark(world, self)
        self.end: EndJob | None = None
        self.links: dict[int, ControlConnection] = {}
        self.dies_after: int | None = None
        """Effects until a crash, if one is planned: it may come between any two."""
        self._link_count = 0
        self._timers: dict[Timer, object] = {}
        self._waiting: deque[JobEvent] = deque()
        self._is_handling = False
        self._perform(self.coordinator.start())

    @property
    def is_running(self) -> bool:
        """Whether this driver still drives the job."""
        return self.is_alive and self.end is None

    def accept(self, worker: VirtualWorker) -> ControlConnection:
        """A worker connects."""
        self._link_count += 1
        connection = ControlConnection(self.world, self, worker, self._link_count)
        if self.is_running:
            self.links[connection.number] = connection
            self.handle(LinkOpened(connection.number, WorkerIndex(worker.index), AttemptId(worker.attempt)))
        else:
            connection.close("connection refused", loses=True)
        return connection

    def link_message(self, connection: ControlConnection, message: WorkerMessage) -> None:
        """A worker said something."""
        received: Any = message
        if not isinstance(message, WorkerHeartbeat):
            received = decode_control(encode_control(message), WORKER_MESSAGES)
        self.heard(received, connection)

    def heard(self, message: WorkerMessage, connection: ControlConnection) -> None:
        """What a worker said has come in."""
        self.handle(MessageReceived(connection.number, message))

    def link_lost(self, connection: ControlConnection, reason: str) -> None:
        """A link is over."""
        if self.links.pop(connection.number, None) is not None:
            self.handle(LinkClosed(connection.number, reason))

    def handle(self, event: JobEvent) -> None:
        """Take an event, behind those that are being handled."""
        if not self.is_running:
            return
        self._waiting.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._waiting and self.is_running:
                self._take(self._waiting.popleft())
        finally:
            self._is_handling = False

    def _take(self, event: JobEvent) -> None:
        world = self.world
        phase, completed = self.coordinator.phase, self.coordinator.completed
        wall_clock = f"second {world.wall_clock_s + self.clock.now_us // 1_000_000}"
        self.coordinator.handle(ClockRead(self.clock.now_us // 1_000, wall_clock))
        effects = self.coordinator.handle(event)
        if self.coordinator.phase is not phase:
            world.seen[f"phase: {self.coordinator.phase.name}"] += 1
            if self.coordinator.phase in (Phase.RESTORING, Phase.ENDED):
                # The machines of another epoch.
                world.drops.watch(self.coordinator)
        if self.coordinator.completed is not completed and not isinstance(event, LogTailRead):
            world.passed(self, "driver.completed")
        if isinstance(event, MessageReceived) and isinstance(event.message, SnapshotAcknowledged):
            world.passed(self, "driver.acknowledged")
        self._perform(effects)

    def die(self, reason: str, *, loses: bool = False) -> None:
        """The process is gone."""
        if not self.is_alive:
            return
        self.world.note(f"{self.name} ends: {reason}")
        self.is_alive = False
        for link in list(self.links.values()):
            link.close(reason, loses=self.world.coin())
        self.world.driver_gone(self)

    # Effects.

    def _perform(self, effects: list[JobEffect]) -> None:
        for effect in effects:
            if self.dies_after is not None:
                if self.dies_after == 0:
                    raise Killed("killed between two effects")
                self.dies_after -= 1
            self.world.seen[f"effect: {type(effect).__name__}"] += 1
            self._perform_one(effect)

    def _perform_one(self, effect: JobEffect) -> None:
        store = self.world.store
        match effect:
            case SendMessage(number, message):
                if isinstance(message, CommitCheckpoint):
                    self.world.passed(self, "driver.commit")
                if (link := self.links.get(number)) is not None:
                    link.say(message)
            case CloseLink(number):
                if (link := self.links.get(number)) is not None:
                    link.close("closed by the coordinator", loses=False)
            case StartTimer(timer, delay_ms):
                token = self._timers[timer] = object()
                self.after(delay_ms * 1_000, lambda: self._fired(timer, token))
            case CancelTimer(timer):
                self._timers.pop(timer, None)
            case ReadLogTail(checkpoints):
                self._in_thread(lambda: LogTailRead(tuple(store.tail(checkpoints))))
            case DiscoverSplits():
                self._in_thread(lambda: SplitsDiscovered(self.world.assignments()))
            case AppendEntry(index, entry):
                self._append_in_thread(index, entry)
            case ReadEntry(index):
                self._in_thread(lambda: self._read(index))
            case ListParts():
                self._in_thread(lambda: PartsListed(tuple(store.list_parts())))
            case DeleteParts(paths):
                self.world.passed(self, "driver.delete")
                self._in_thread(lambda: self._delete(paths))
            case SubmitWorkers():
                self.spark.submit()
            case ReplaceWorker(worker, attempt):
                self.spark.replace(worker, attempt)
            case AnswerRequest():
                pass
            case EndJob():
                self._finish(effect)
            case _:
                assert_never(effect)

    def _finish(self, end: EndJob) -> None:
        self.end = end
        self.world.note(f"{self.name}: the job has {end.outcome}", end)
        self.spark.stop()
        for link in list(self.links.values()):
            link.close("the job is over", loses=False)
        self.world.driver_ended(self, end)

    def _fired(self, timer: Timer, token: object) -> None:
        if self._timers.get(timer) is token:
            del self._timers[timer]
            self.handle(TimerFired(timer))

    # The store.

    def _in_thread(self, work: Callable[[], JobEvent | None], then: Moment | None = None) -> None:
        """Call the store; the answer is an event, however late it is, or never there is one (D3).

        Args:
            then: What the driver passes before it hears of the answer.
        """

        def answered(event: Any, error: Exception | None) -> None:
            if then is not None:
                self.world.passed(self, then)
            if error is not None:
                if not isinstance(error, StoreError):
                    raise error
                self.handle(CancelRequested(failure_cause(error)))
            elif event is not None:
                self.handle(event)

        self.world.outside.call("store", self, work, answered)

    def _append_in_thread(self, index: int, entry: LogEntry) -> None:
        is_checkpoint = isinstance(entry, CheckpointCompleted)
        if is_checkpoint:
            self.world.passed(self, "driver.append")
        elif isinstance(entry, JobFinished):
            self.world.passed(self, "driver.finish")
        then: Moment | None = "driver.appended" if is_checkpoint else None
        self._in_thread(lambda: self._append(index, entry), then)

    def _append(self, index: int, entry: LogEntry) -> JobEvent:
        try:
            outcome = self.world.store.append(index, entry)
        except StoreError as error:
            return EntryRefused(index, str(error))
        match outcome:
            case Appended():
                return EntryAppended(index)
            case Taken():
                return EntryTaken(index)
            case Unknown(_, reason):
                return EntryUncertain(index, reason)
            case _:
                assert_never(outcome)

    def _read(self, index: int) -> JobEvent:
        try:
            return EntryRead(index, self.world.store.read(index))
        except StoreError as error:
            if getattr(error, "damaged", False):
                raise
            return EntryUncertain(index, str(error))

    def _delete(self, paths: tuple[str, ...]) -> JobEvent:
        self.world.store.delete_parts(paths)
        self.world.checkers.check_restorable()
        return PartsDeleted()
