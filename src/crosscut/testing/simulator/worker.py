"""A virtual process with the real worker in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from crosscut.driver.driver import Link
from crosscut.errors import WorkersError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import AttemptId, ChannelId, CheckpointId, Epoch, TaskId, WorkerIndex
from crosscut.host.failpoints import Failpoints
from crosscut.net.peer_links import AcceptingPeerLink
from crosscut.operators.operator import Operator
from crosscut.operators.probing import Tried
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    HaltTasks,
    RecordsFlowing,
    ResumeSources,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    StartTasks,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerMessage,
    WorkerReady,
)
from crosscut.task.items import REPLAYED, Barrier
from crosscut.testing.simulator.clock import Clock
from crosscut.testing.simulator.drawn_batch_sizer import DrawnBatchSizer
from crosscut.testing.simulator.options import Moment
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.spilling import VirtualSpaces
from crosscut.testing.simulator.violation import ensure, violate
from crosscut.wire.handshake import Proven, Verdict
from crosscut.worker.pool import TaskPool
from crosscut.worker.worker import Surroundings, Worker, WorkerPlan

if TYPE_CHECKING:
    from crosscut.testing.simulator.scheduler import Spark
    from crosscut.testing.simulator.world import World

WorkerMessageType = (
    DeployTasks
    | HaltTasks
    | StartTasks
    | TriggerCheckpoint
    | AbortCheckpoint
    | CommitCheckpoint
    | CaptureSnapshots
    | ResumeSources
    | CloseLoops
)
SLACK_US = 1_000
"""Between the moment when a barrier is seen to wait and the start of its timer."""

_OF_AN_EPOCH = (
    WorkerReady
    | RecordsFlowing
    | SourceDrained
    | TaskQuiet
    | SnapshotAcknowledged
    | SnapshotDeclined
    | TransactionsCommitted
)
HARMLESS = ("ConnectionLost", "CommitFailed")
"""Failures in which no task was in the middle of anything: a peer is gone, a commit is given up."""

_COPY_MS = 700
"""What a copy takes, if the worker asks."""

_MOMENT_OF: dict[str, Moment] = {one: one for one in get_args(Moment)}


class HalfWay:
    """Copies of a process that come half way: no record of a virtual world ends its process.

    They are slow, so their time is used up after a few batches.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ran_ms = 0

    def attempt(self, operator: Operator, batch: Batch) -> Tried:
        self._ran_ms += _COPY_MS
        return Tried((len(batch) + 1) // 2)

    def attempt_due(self, operator: Operator, watermark: int | None) -> Tried:
        self._ran_ms += _COPY_MS
        return Tried(1)

    def now_ms(self) -> int:
        return self._clock.now_us // 1_000 + self._ran_ms


class Moments(Failpoints):
    """The failpoints of one process: where faults wait for it."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(None, None)
        self.is_armed = True
        self._world = world
        self._process = process

    def __call__(self, name: str) -> None:
        moment = _MOMENT_OF.get(name)
        if moment is not None and self._process.is_alive:
            self._world.passed(self._process, moment)


class WatchedWorker(Worker):
    """The real one. What it decides about its peers is counted."""

    def __init__(self, process: WorkerProcess, plan: WorkerPlan, ports: Surroundings) -> None:
        super().__init__(plan, WorkerIndex(process.index), AttemptId(process.attempt), ports)
        mesh, seen = self._mesh, process.world.seen
        decide = mesh.peer_link_proven

        def decided(proven: Proven, end: AcceptingPeerLink) -> Verdict | None:
            verdict = decide(proven, end)
            if verdict is not None:
                seen[f"connection: {verdict.name}"] += 1
            ensure(
                verdict is not Verdict.ACCEPTED or proven.epoch == mesh.epoch,
                f"I7: {process} takes a connection of epoch {proven.epoch} in epoch {mesh.epoch}",
            )
            return verdict

        mesh.peer_link_proven = decided  # type: ignore[method-assign]
        expect = mesh.expect

        def expects(epoch: Epoch, channels: Iterable[ChannelId]) -> None:
            ensure(
                epoch > mesh.epoch,
                f"I7: {process} builds the tasks of epoch {epoch} after those of epoch {mesh.epoch}",
            )
            expect(epoch, channels)

        mesh.expect = expects  # type: ignore[method-assign]


class WorkerProcess(Process):
    """One attempt of one Spark task.

    Attributes:
        sent: What the driver has heard from it, to be said again.
        received: What it was told, by which link.
        repeated: What it says twice because of a fault.
    """

    may_raise = (WorkersError,)

    def __init__(self, world: World, spark: Spark, index: int, attempt: int) -> None:
        super().__init__(world, f"worker {index} (attempt {attempt})", f"host-{attempt}")
        self.world = world
        self.index = index
        self.attempt = attempt
        self.spark = spark
        self.driver = spark.driver
        self.worker: WatchedWorker | None = None
        self.sent: deque[WorkerMessage] = deque(maxlen=20)
        self.received: deque[tuple[Link, CoordinatorMessage]] = deque(maxlen=20)
        self.repeated: list[WorkerMessage] = []
        self._failed = Epoch(0)
        # Since when barriers wait in an output.
        self._held_up: dict[tuple[Epoch, TaskId, ChannelId, CheckpointId], int] = {}
        self.run(self._work)

    async def _work(self) -> None:
        world = self.world
        ports = Surroundings(
            self.spark.graph(),
            world.store_of(self),
            Moments(world, self),
            self,
            self,
            self.start_thread,
            lambda: DrawnBatchSizer(world.options.batch_rows, world.below),
            lambda: VirtualSpaces(world.options.spill_bytes),
            world.options.piece_bytes,
            # It would not be the same when the world is run again.
            weighs_state=False,
            copies=HalfWay(world.clock),
            has_lasting_threads=False,
        )
        self.worker = WatchedWorker(self, self.spark.plan(), ports)
        await self.worker.run()

    def idle(self) -> None:
        """All that was ready is done: is there a task that could go on, and nobody will wake it?"""
        pool = self.worker.pool if self.worker is not None else None
        if pool is None or not self.is_alive or not pool.is_asleep:
            return
        now_ns = self.monotonic_ns()
        if pool.wakes_at_ns is not None and pool.wakes_at_ns <= now_ns:
            return
        for runner in pool.runners:
            for channel, end in runner.task.output_buffers.ends.items():
                if end.waiting and isinstance(end.waiting[0], Barrier) and channel in pool.outgoing:
                    violate(f"I12: a barrier waits in front of {channel} in {self}: it needs no credit")
            if runner.can_run(now_ns):
                violate(f"I12: task {runner.task.task_id} of {self} could go on, and nobody wakes it")
        if self.world.options.snapshots == "switching":
            self._check_barriers(pool)

    def _check_barriers(self, pool: TaskPool) -> None:
        """Does a barrier wait in an output for longer than the time after which it overtakes?

        Whenever this is asked, all timers that are due have fired.
        """
        held_up = {
            (pool.epoch, runner.task.task_id, channel, item.checkpoint_id): self.world.clock.now_us
            for runner in pool.runners
            for channel, end in runner.task.output_buffers.ends.items()
            # What another parallelism has left goes before all barriers.
            if REPLAYED not in end.waiting
            for item in end.waiting
            if isinstance(item, Barrier)
        }
        self._held_up = {one: self._held_up.get(one, now_us) for one, now_us in held_up.items()}
        timeout_us = 1_000 * self.world.options.alignment_timeout_ms
        for (epoch, task, channel, n), since_us in self._held_up.items():
            waited_us = self.world.clock.now_us - since_us
            ensure(
                waited_us <= timeout_us + SLACK_US or not self.driver.is_under_way(epoch, n),
                f"I10: barrier {n} has waited in {channel} of {task} for {waited_us} us: it is to overtake "
                f"after {timeout_us} us",
            )

    def note_sent(self, message: WorkerMessage) -> None:
        """The driver has heard `message`: is it of an epoch that is over here?"""
        # Here no task is halfway: what it says until it is halted is as true as before.
        if isinstance(message, TaskFailed) and message.cause.kind not in HARMLESS:
            self._failed = max(self._failed, message.epoch)
        elif isinstance(message, _OF_AN_EPOCH):
            self._check_is_running(message, message.epoch)
        self.sent.append(message)

    def _check_is_running(self, message: WorkerMessage, epoch: Epoch) -> None:
        if epoch <= self._failed and message not in self.repeated:
            violate(
                f"I7: {self} says {type(message).__name__} of epoch {epoch}, in which a task of it had "
                f"failed: {message!r:.300}"
            )

    def resend(self, message: WorkerMessage) -> None:
        """Say what was said before: no TCP connection repeats anything, and the machines bear it."""
        link = self.worker.link if self.worker is not None else None
        if link is not None:
            self.repeated.append(message)
            self.do(lambda: link.send_message(message))
