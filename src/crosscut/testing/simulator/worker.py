"""A virtual worker: what `crosscut.runtime.worker` does, with virtual connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, assert_never

from crosscut.batch import Batch
from crosscut.graph.channels import back_edges_of, inputs_of, outputs_of
from crosscut.ids import AttemptId, ChannelId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.keys import KeyRouter
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorHeartbeat,
    CoordinatorMessage,
    DeployTasks,
    HaltTasks,
    RegisterWorker,
    ResumeSources,
    ShutDown,
    StandBy,
    StartTasks,
    TaskFailed,
    TriggerCheckpoint,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.runtime.background import THREADS_END_TIMEOUT_S
from crosscut.runtime.control import heartbeat_interval_s
from crosscut.runtime.deployment import StateAtHand, TaskRules, build_tasks
from crosscut.runtime.failpoints import Failpoints
from crosscut.runtime.items import Item
from crosscut.runtime.runner import failure_cause
from crosscut.runtime.worker import CHANNEL_LOST_GRACE_S
from crosscut.testing.simulator.network import Pipe, Process
from crosscut.testing.simulator.options import MOMENTS, Moment
from crosscut.testing.simulator.pool import VirtualPool, channel_lost_cause
from crosscut.testing.simulator.runners import EXPECTED_ERRORS, Call
from crosscut.testing.simulator.violation import ensure
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.wire.handshake import Verdict, verdict_on

if TYPE_CHECKING:
    from crosscut.testing.simulator.driver import ControlConnection, VirtualDriver
    from crosscut.testing.simulator.world import World


TaskWord = (
    StartTasks
    | TriggerCheckpoint
    | AbortCheckpoint
    | CommitCheckpoint
    | CaptureSnapshots
    | ResumeSources
    | CloseLoops
)


class DataChannel:
    """One connection between two workers, with credit, as `crosscut.runtime.channels` has it."""

    def __init__(
        self, world: World, channel: ChannelId, epoch: Epoch, sender: VirtualWorker, receiver: VirtualWorker
    ) -> None:
        self.channel = channel
        self.epoch = epoch
        self.sender = sender
        self.receiver = receiver
        self.forward = Pipe(
            world.clock,
            world.line(sender, receiver),
            world.latency_us,
            lambda message: receiver.do(lambda: self._received(message)),
            lambda reason: receiver.do(lambda: self._receiver_lost(reason)),
        )
        self.back = Pipe(
            world.clock,
            world.line(receiver, sender),
            world.latency_us,
            lambda message: sender.do(lambda: self._answered(message)),
            lambda reason: sender.do(lambda: self._sender_lost(reason)),
        )
        self._bytes_max = world.options.channel_bytes
        self._under_way_bytes = 0
        self._is_abandoned_by_sender = self._is_abandoned_by_receiver = False
        self.forward.send(None)

    @property
    def is_full(self) -> bool:
        """Whether records have to wait."""
        return self._under_way_bytes >= self._bytes_max

    def send_item(self, item: Item) -> None:
        """Send a batch, a barrier, or the end of input."""
        if isinstance(item, Batch):
            ensure(not self.is_full, f"I11: {item!r:.80} is sent on {self.channel} without credit")
            data = encode_batch(item)
            self._under_way_bytes += len(data)
            self.forward.send(data)
        else:
            self.forward.send(item)

    def give_credit(self, size_bytes: int) -> None:
        """Tell the sender that so much has been processed."""
        self.back.send(size_bytes)

    def give_verdict(self, *, is_accepted: bool) -> None:
        """Tell the sender whether the receiver wants it."""
        if is_accepted:
            self.back.send("accepted")
            self.receiver.channel_opened(self.channel)
        else:
            self.back.close("refused")
            self.forward.close("refused")

    def close(self, reason: str, *, loses: bool) -> None:
        """Break it, for both ends."""
        self.forward.close(reason, loses=loses)
        self.back.close(reason, loses=loses)

    def abandon(self, worker: VirtualWorker) -> None:
        """The epoch is over for one end: it closes, and reports nothing any more."""
        if worker is self.sender:
            self._is_abandoned_by_sender = True
        else:
            self._is_abandoned_by_receiver = True
        self.close("the epoch is over", loses=True)

    def _received(self, message: Any) -> None:
        if self._is_abandoned_by_receiver:
            return
        if message is None:
            self.receiver.channel_proven(self)
        elif isinstance(message, bytes):
            self.receiver.channel_received(self, decode_batch(message), len(message))
        else:
            self.receiver.channel_received(self, message, 0)

    def _answered(self, message: Any) -> None:
        if self._is_abandoned_by_sender:
            return
        if message == "accepted":
            self.sender.channel_opened(self.channel)
            return
        ensure(message <= self._under_way_bytes, f"channel {self.channel}: credit for more than was sent")
        was_full = self.is_full
        self._under_way_bytes -= message
        if was_full and not self.is_full:
            self.sender.channel_unclogged(self.channel)

    def _sender_lost(self, reason: str) -> None:
        if not self._is_abandoned_by_sender:
            self.sender.channel_lost(self.channel, self.channel.source, reason)

    def _receiver_lost(self, reason: str) -> None:
        if not self._is_abandoned_by_receiver:
            self.receiver.channel_lost(self.channel, self.channel.target, reason)


class _Moments(Failpoints):
    """The failpoints that tasks pass while they are built."""

    def __init__(self, worker: VirtualWorker) -> None:
        super().__init__(None, None)
        self._passing = worker

    def __call__(self, name: str) -> None:
        moment = _MOMENT_OF.get(name)
        if moment is not None:
            self._passing.passed(moment)


_MOMENT_OF: dict[str, Moment] = {one: one for one in MOMENTS}


class VirtualWorker(Process):
    """One attempt of one Spark task."""

    def __init__(self, world: World, driver: VirtualDriver, index: int, attempt: int) -> None:
        super().__init__(world.clock, f"worker {index} (attempt {attempt})")
        self.world = world
        self.index = index
        self.attempt = attempt
        self.driver = driver
        self.pool: VirtualPool | None = None
        self._pools: list[VirtualPool] = []
        # What may be repeated: the last messages in both directions.
        self.sent: deque[WorkerMessage] = deque(maxlen=20)
        self.heard: deque[TaskWord] = deque(maxlen=20)
        self.channels: list[DataChannel] = []
        self._graph = world.graph_of_process()
        self._router = KeyRouter(self._graph.max_parallelism, self._graph.parallelism)
        self._at_hand = StateAtHand()
        self._epoch = Epoch(0)
        self._newest_asked = Epoch(0)
        self._turns: deque[Callable[[], None]] = deque()
        self._is_turning = False
        self._building: Coroutine[Any, Any, None] | None = None
        self._is_built = False
        self._incoming: dict[ChannelId, DataChannel] = {}
        self._outgoing: dict[ChannelId, DataChannel] = {}
        self._incoming_bytes: dict[ChannelId, int] = {}
        self._expected: frozenset[ChannelId] = frozenset()
        self._early: list[DataChannel] = []
        self._missing: set[ChannelId] = set()
        self._heard_us = world.clock.now_us
        self.stale_dropped = 0
        self.link: ControlConnection = driver.accept(self)
        self._say_hello()
        self._beat()

    # The control link.

    def _say_hello(self) -> None:
        self.say(RegisterWorker(WorkerIndex(self.index), AttemptId(self.attempt), "host", 1, self.attempt))

    def say(self, message: WorkerMessage) -> None:
        """Send a message to the coordinator, behind those said before."""
        if not isinstance(message, WorkerHeartbeat):
            self.sent.append(message)
            self.world.note(f"{self.name} says {type(message).__name__}", message)
        self.link.up.send(message)

    def link_lost(self, reason: str) -> None:
        """The coordinator is gone: a worker without one stops."""
        self.die(f"lost the coordinator: {reason}")

    def told(self, message: CoordinatorMessage) -> None:
        """The coordinator said something."""
        self._heard_us = self.clock.now_us
        if not isinstance(message, CoordinatorHeartbeat):
            self.world.note(f"{self.name} is told {type(message).__name__}", message)
        match message:
            case DeployTasks():
                self._newest_asked = message.epoch
                self._turn(lambda: self._deploy(message))
            case HaltTasks():
                self._turn(lambda: None)
            case ShutDown(reason):
                self.die(f"told to: {reason}")
            case CoordinatorHeartbeat() | StandBy():
                pass
            case _:
                self.task_word(message)

    def task_word(self, message: TaskWord) -> None:
        """A word for the tasks of one epoch."""
        self.heard.append(message)
        pool = self.pool
        if pool is None or message.epoch != pool.epoch:
            self.stale_dropped += 1
            self.world.seen["drop: stale epoch (worker)"] += 1
            return
        match message:
            case StartTasks():
                pool.start()
            case TriggerCheckpoint(_, n):
                pool.tell(lambda task: task.trigger(n))
            case AbortCheckpoint(_, n):
                pool.tell(lambda task: task.abort(n))
            case CommitCheckpoint(_, n):
                self.passed("commit.told")
                pool.tell(lambda task: task.checkpoint_completed(n))
            case CaptureSnapshots(_, n):
                pool.tell(lambda task: task.capture(n))
            case ResumeSources(_, n):
                pool.tell(lambda task: task.resume(n))
            case CloseLoops():
                pool.tell(lambda task: task.close_loops())
            case _:
                assert_never(message)

    def _beat(self) -> None:
        timeout_us = self.world.options.heartbeat_timeout_ms * 1_000
        if self.clock.now_us - self._heard_us > timeout_us:
            self.die("nothing heard from the coordinator")
            return
        tasks = tuple(one.task.statistics() for one in self.pool.runners) if self.pool else ()
        self.say(WorkerHeartbeat(self.pool.epoch if self.pool else Epoch(0), tasks))
        self.after(int(heartbeat_interval_s(timeout_us / 1e6, self._graph.parallelism) * 1e6), self._beat)

    def resume(self) -> None:
        """Go on, like a zombie whose sockets still hold what was said to it meanwhile."""
        self._heard_us = self.clock.now_us
        super().resume()

    def passed(self, moment: Moment) -> None:
        """Come to a place where a fault may be waiting.

        Raises:
            Killed: It is the end.
        """
        self.world.passed(self, moment)

    def die(self, reason: str, *, loses: bool = False) -> None:
        """The process ends, of itself or by a signal."""
        if not self.is_alive:
            return
        self.world.note(f"{self.name} ends: {reason}")
        self.is_alive = False
        for channel in self.channels:
            channel.close("the process is gone", loses=loses)
        self.link.up.close("the process is gone", loses=loses)
        self.link.down.close("the process is gone", loses=True)
        if self._building is not None:
            self._building.close()
        self.driver.spark.exited(self)

    def close_files(self) -> None:
        """The operating system closes what a process leaves open."""
        for pool in self._pools:
            pool.close_files()

    # Epochs: one change after the other, in the order they were asked for.

    def _turn(self, then: Callable[[], None]) -> None:
        self._turns.append(then)
        if not self._is_turning:
            self._next_turn()

    def _next_turn(self) -> None:
        if not self._turns:
            self._is_turning = False
            return
        self._is_turning = True
        then = self._turns.popleft()

        def halted() -> None:
            then()
            self._next_turn()

        self._halt(halted)

    def _halt(self, then: Callable[[], None]) -> None:
        if self._building is not None:
            self._building.close()
            self._building = None
        self._is_built = False
        pool, self.pool = self.pool, None
        for channel in (*self._outgoing.values(), *self._incoming.values()):
            channel.abandon(self)
        self.channels = list(self._early)
        self._outgoing, self._incoming, self._expected = {}, {}, frozenset()
        self._incoming_bytes.clear()
        if pool is None:
            then()
            return
        pool.close(then)
        if pool.calls_under_way:
            self.after(
                int(THREADS_END_TIMEOUT_S * 1e6),
                lambda: self.die("a call hangs") if pool.calls_under_way else None,
            )

    def _deploy(self, deploy: DeployTasks) -> None:
        if deploy.epoch != self._newest_asked:
            return
        self._epoch = deploy.epoch
        options = self.world.options
        pool = self.pool = VirtualPool(self, deploy.epoch)
        self._pools.append(pool)
        self.passed("restore.begin")
        self._expect_channels(deploy)
        rules = TaskRules(
            batch_rows=options.batch_rows,
            commit_attempts=3,
            sink_timeout_ms=options.checkpoint_timeout_ms,
            snapshots=options.snapshots,
            alignment_timeout_ms=options.alignment_timeout_ms,
            spill_bytes=options.spill_bytes,
        )
        self._building = build_tasks(
            pool,
            self._graph,
            WorkerIndex(self.index),
            deploy,
            self._at_hand,
            self.world.store.read_part,
            self._router,
            rules,
            _Moments(self),
        )
        self._build_on(pool, None, None)

    def _build_on(self, pool: VirtualPool, result: Any, error: Exception | None) -> None:
        building = self._building
        if building is None or self.pool is not pool:
            return
        try:
            call = building.throw(error) if error is not None else building.send(result)
        except StopIteration:
            self._building = None
            self._is_built = True
            self._ready_if_whole()
        except EXPECTED_ERRORS as failure:
            self._building = None
            task = TaskId(VertexId(self._graph.vertices[0].vertex_id), self.index)
            self.say(TaskFailed(pool.epoch, task, failure_cause(failure)))
        else:
            ensure(isinstance(call, Call), f"deployment waits for {call!r}")
            pool.call(call.place, call.work, lambda found, failure: self._build_on(pool, found, failure))

    def _ready_if_whole(self) -> None:
        pool = self.pool
        if pool is not None and self._is_built and not self._missing:
            self._is_built = False
            pool.connect(self._outgoing)
            self.passed("restore.ready")
            self.say(WorkerReady(pool.epoch))

    # Channels.

    def _expect_channels(self, deploy: DeployTasks) -> None:
        tasks = [TaskId(VertexId(vertex.vertex_id), self.index) for vertex in self._graph.vertices]
        inputs = [
            one for task in tasks for one in inputs_of(self._graph, task) if one.source.index != self.index
        ]
        outputs = [
            one for task in tasks for one in outputs_of(self._graph, task) if one.target.index != self.index
        ]
        self._expected = frozenset(inputs)
        self._missing = {*inputs, *outputs}
        early, self._early = self._early, []
        for channel in early:
            self.channel_proven(channel)
        ports = {peer.worker: peer.data_port for peer in deploy.peers}
        for one in sorted(outputs):
            peer = self.world.workers[ports[WorkerIndex(one.target.index)]]
            channel = DataChannel(self.world, one, deploy.epoch, self, peer)
            self._outgoing[one] = channel
            self.channels.append(channel)
            if not peer.is_alive:
                channel.close("connection refused", loses=True)

    def channel_proven(self, channel: DataChannel) -> None:
        """Decide about a peer."""
        verdict = verdict_on(
            channel.epoch,
            self._epoch,
            is_expecting=bool(self._expected),
            is_wanted=channel.channel in self._expected and channel.channel not in self._incoming,
        )
        if verdict is None:
            self._early.append(channel)
            self.channels.append(channel)
            return
        if verdict is Verdict.ACCEPTED:
            self._incoming[channel.channel] = channel
            self.channels.append(channel)
        else:
            self.world.seen[f"channel: {verdict.name}"] += 1
        channel.give_verdict(is_accepted=verdict is Verdict.ACCEPTED)

    def channel_opened(self, channel: ChannelId) -> None:
        """Note that a channel is ready."""
        self._missing.discard(channel)
        self._ready_if_whole()

    def channel_received(self, connection: DataChannel, item: Item, size_bytes: int) -> None:
        """Pass an item on; its sender gets credit for it when it has been processed."""
        if self.pool is None:
            return
        ensure(
            connection.epoch == self.pool.epoch,
            f"I7: {self.name} takes {item!r} of epoch {connection.epoch} in epoch {self.pool.epoch}",
        )
        channel = connection.channel
        self.pool.received(channel, item)
        if isinstance(item, Batch):
            self._incoming_bytes[channel] = self._incoming_bytes.get(channel, 0) + size_bytes
            if channel in back_edges_of(self._graph, channel.target):
                self.emptied(channel)

    def emptied(self, channel: ChannelId) -> None:
        """A task has processed everything of an input."""
        size_bytes = self._incoming_bytes.pop(channel, 0)
        if size_bytes and channel in self._incoming:
            self._incoming[channel].give_credit(size_bytes)

    def channel_unclogged(self, channel: ChannelId) -> None:
        """Pass on that an output takes more again."""
        if self.pool is not None and not self.pool.is_over:
            self.pool.unclogged(channel)

    def channel_lost(self, channel: ChannelId, own_end: TaskId, reason: str) -> None:
        """A channel of the running epoch broke: a failure, unless its peer's death explains it."""
        pool = self.pool
        if pool is None:
            return

        def report() -> None:
            if self.pool is pool:
                self.say(TaskFailed(pool.epoch, own_end, channel_lost_cause(channel, reason)))

        self.after(int(CHANNEL_LOST_GRACE_S * 1e6), report)
