"""One attempt at one partition of a stage of a batch: the tasks of a worker, for as long as its input lasts.

The tasks are those of the continuous engine, in the same pool: they are restored from the checkpoint before,
get their records in shuffle blocks instead of over connections, then the barrier, and end when their
snapshots are durable. Keyed state is kept in the process for the next batch, and used if it is exactly that
of the checkpoint that the next batch begins with.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from crosscut.contracts.connectors import JSON, Source, Split
from crosscut.errors import InternalError
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId, WorkerIndex
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.channels import depths_of, outputs_of
from crosscut.graph.combining import combined
from crosscut.graph.specs import JobGraph
from crosscut.host.alarms import LoopAlarm, NewAlarm
from crosscut.host.calls import StartThread, start_thread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints, Plan
from crosscut.host.interpreter_lock import hold_on
from crosscut.microbatch.bounded_splits import READ_SHARE, BoundedSplits
from crosscut.microbatch.host_cache import HostCache
from crosscut.microbatch.shuffle import Failure, Outbox, Posted, ShuffleBlock, ShuffleInput
from crosscut.microbatch.state_cache import StateCache
from crosscut.net.causes import failure_cause
from crosscut.net.channels import OutgoingChannel
from crosscut.operators.probing import Copies
from crosscut.protocol.messages import (
    AssignSplits,
    DeployTasks,
    FailureCause,
    SnapshotAcknowledged,
    SnapshotDeclined,
    TaskFailed,
    WorkerMessage,
)
from crosscut.protocol.microbatch.attempts import Attempt, Partition
from crosscut.protocol.microbatch.retry_policy import dead
from crosscut.protocol.snapshots import Part, TaskSnapshot
from crosscut.task.items import REPLAYED, Barrier, EndOfInput, Item
from crosscut.task.spilling import SpillSpaces
from crosscut.wire.batches import decode_batch
from crosscut.wire.frames import FrameType, Payload, decode_barrier
from crosscut.worker.batch_sizer import AdaptiveBatchSizer, BatchSizer
from crosscut.worker.deployment import TaskSettings, build_tasks
from crosscut.worker.pool import TaskPool
from crosscut.worker.spill_files import DiskSpaces

_LINGER_MS = 3_600_000.0
"""Batches leave when they are full, or when the task has nothing else to do."""

_LOOK_S = 0.001

_NAME_BYTES = 8
_SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class StageOrder:
    """All that an attempt must know; travels inside the Spark task.

    Attributes:
        stages: The vertices of each stage.
        partition: Which partition of which stage.
        deploy: The shares of the tasks of this stage and index; `restore` is the checkpoint that the batch
            begins with.
        records_max: That one source task may read.
        combines: Folds are begun before their shuffle; the same for all attempts at a batch.
        found: Splits for its sources that are in no checkpoint yet.
        deaths: Attempts before this one whose processes have ended.
    """

    stages: tuple[tuple[str, ...], ...]
    partition: Partition
    checkpoint_id: CheckpointId
    deploy: DeployTasks
    terms: TaskSettings
    store_url: str
    records_max: int
    combines: bool
    found: tuple[AssignSplits, ...] = ()
    failpoints: Plan | None = None
    deaths: int = 0

    @property
    def vertices(self) -> tuple[str, ...]:
        """Those whose tasks run in this stage."""
        return self.stages[self.partition.stage]

    @property
    def is_last(self) -> bool:
        """Whether no stage follows."""
        return self.partition.stage == len(self.stages) - 1


def disk_spaces(terms: TaskSettings) -> DiskSpaces:
    """Return the disk space of one attempt."""
    return DiskSpaces(terms.spill_dir, terms.spill_bytes)


def random_name() -> str:
    """Return a name that no other attempt has."""
    return secrets.token_hex(_NAME_BYTES)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process has, for all attempts at the partitions of a job. A virtual world brings its own.

    Attributes:
        new_alarm: Makes the alarm that wakes tasks that are due.
        copies: Makes copies of this process, to find a record that ends it; None: it can't.
        let_threads_run: Pauses for a moment, without the interpreter lock.
        start_thread: Starts the threads in which the store and sinks are called.
        new_name: Makes the name of an attempt, which no other has, in any process.
        new_spaces: Makes the disk space of an attempt.
        failpoints: Makes those of an attempt, from what is armed and the index of its partition.
        weighs_state: Whether to estimate how much memory states take.
    """

    graph: JobGraph
    parts: HostCache
    states: StateCache
    batch_sizers: dict[TaskId, BatchSizer]
    new_alarm: NewAlarm = LoopAlarm
    copies: Copies | None = None
    let_threads_run: Callable[[], None] = hold_on
    clock: Clock = _SYSTEM_CLOCK
    start_thread: StartThread = start_thread
    new_batch_sizer: Callable[[int], BatchSizer] = AdaptiveBatchSizer
    new_name: Callable[[], str] = random_name
    new_spaces: Callable[[TaskSettings], SpillSpaces] = disk_spaces
    failpoints: Callable[[Plan | None, int], Failpoints] = Failpoints
    weighs_state: bool = True


def run_stage(
    order: StageOrder, ports: Surroundings, shuffle_blocks: Iterable[ShuffleBlock]
) -> Iterator[tuple[int, ShuffleBlock]]:
    """Run one attempt in an event loop of its own; yield what it sends.

    That is for the partitions of the next stage, or, of the last stage, one shuffle block for the driver.
    """
    loop = asyncio.new_event_loop()
    attempt = StageAttempt(order, ports)
    try:
        try:
            loop.run_until_complete(attempt.begin())
            for shuffle_block in shuffle_blocks:
                loop.run_until_complete(attempt.take(shuffle_block))
                yield from attempt.sent()
        except Exception as error:  # noqa: BLE001 - of the reader of the blocks; the driver gets it
            attempt.failed(error)
        loop.run_until_complete(attempt.end())
        yield from attempt.sent()
    finally:
        loop.run_until_complete(attempt.close())
        loop.close()


class StageAttempt:
    """One attempt, step by step, on one event loop: `begin`, `take` each shuffle block, `end`, `close`.

    A failure is reported in the shuffle blocks: Spark would only retry the task, or lose the cause. After
    one, the steps do nothing.
    """

    def __init__(self, order: StageOrder, ports: Surroundings) -> None:
        self._order = order
        self._around = ports
        partition = order.partition
        self._name = f"{partition.stage}-{partition.index}-{ports.new_name()}"
        targets = [partition.index] if order.is_last else range(ports.graph.parallelism)
        self._outbox = Outbox(partition, self._name, targets)
        self._failpoints = ports.failpoints(order.failpoints, partition.index)
        graph = combined(ports.graph) if order.combines else ports.graph
        self._members = frozenset(order.vertices)
        self._later = frozenset(one for stage in order.stages[partition.stage + 1 :] for one in stage)
        self._graph = replace(
            graph, vertices=tuple(one for one in graph.vertices if one.vertex_id in self._members)
        )
        self._tasks = [TaskId(VertexId(one.vertex_id), partition.index) for one in self._graph.vertices]
        # The one to blame, if anything raises.
        self._task = self._tasks[0]
        self._shuffle_input = ShuffleInput(partition, graph.parallelism)
        self._brought: list[Attempt] = []
        self._barriers: list[ChannelId] = []
        self._splits: dict[TaskId, BoundedSplits] = {}
        self._acknowledged: dict[TaskId, SnapshotAcknowledged] = {}
        cause = dead(order.deaths, order.vertices, partition.index, order.checkpoint_id)
        self._failure: Failure | None = None if cause is None else Failure(self._task, cause)
        self._pool: TaskPool | None = None
        # Set whenever a task reports something.
        self._reports = asyncio.Event()
        self._spaces = ports.new_spaces(order.terms)

    async def begin(self) -> None:
        """Build the tasks, and let them run."""
        await self._step(self._begin)

    async def take(self, shuffle_block: ShuffleBlock) -> None:
        """Take a shuffle block in, and let the tasks process what is in it."""
        await self._step(partial(self._take, shuffle_block))

    async def end(self) -> None:
        """All input has come: process it, take the snapshots, and have the last shuffle blocks ready."""
        await self._step(self._end)
        if self._failure is None:
            self._outbox.end(self._result)
            return
        if self._failure.task.vertex in self._members:
            # Its own failure: perhaps because of something that it had of its state.
            for task, wanted in self._wanted().items():
                self._around.parts.distrust(task, wanted)
        self._outbox.fail(self._failure)

    def sent(self) -> Iterator[tuple[int, ShuffleBlock]]:
        """Yield the shuffle blocks that are full, each with its target; they are gone then."""
        return self._outbox.take()

    def failed(self, error: BaseException) -> None:
        """The attempt can't go on."""
        if self._failure is None:
            self._failure = Failure(self._task, failure_cause(error))

    async def close(self) -> None:
        """End the tasks."""
        if self._pool is not None:
            if self._failure is not None or len(self._acknowledged) < len(self._tasks):
                self._around.states.spoil(self._tasks)
            await self._pool.close()
        self._spaces.close()

    async def _step(self, step: Callable[[], Awaitable[None]]) -> None:
        if self._failure is not None:
            return
        try:
            await step()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of user code; the driver gets it
            self.failed(error)

    @property
    def _result(self) -> tuple[Attempt, ...]:
        """This attempt, which has come to its end, and those that it has heard of."""
        order = self._order
        snapshots = tuple(TaskSnapshot(one, self._acknowledged[one].snapshot) for one in self._tasks)
        own = Attempt(
            order.partition,
            self._name,
            self._shuffle_input.read if order.partition.stage else (),
            snapshots,
            self._running.statistics(),
            is_full=any(one.is_full for one in self._splits.values()),
        )
        return (own, *self._brought)

    @property
    def _running(self) -> TaskPool:
        if self._pool is None:
            raise InternalError(f"{self._order.partition} is used before it has begun")
        return self._pool

    async def _begin(self) -> None:
        order, around, graph = self._order, self._around, self._around.graph
        self._failpoints("batch.begin")
        self._pool = pool = TaskPool(
            epoch=order.deploy.epoch,
            store=around.parts,
            batch_rows=order.terms.batch_rows,
            linger_ms=_LINGER_MS,
            alignment_timeout_ms=0,
            sink_timeout_ms=order.terms.sink_timeout_ms,
            failpoints=self._failpoints,
            report=self._reported,
            give_credit=lambda channel, size_bytes: None,
            clock=around.clock,
            start_thread=around.start_thread,
            sizer_of=self._sizer_of,
            weighs_state=around.weighs_state,
            new_alarm=around.new_alarm,
            let_threads_run=around.let_threads_run,
            copies=around.copies if order.terms.tries_in_copies else None,
            deaths=max(order.deaths, order.deploy.deaths),
        )
        self._begin_parts()
        at_hand = around.states.at_hand(self._tasks, order.deploy, around.parts)
        await build_tasks(
            pool,
            self._graph,
            WorkerIndex(order.partition.index),
            order.deploy,
            at_hand,
            around.parts,
            KeyRouter(graph.max_parallelism, graph.parallelism),
            order.terms,
            self._spaces,
            self._failpoints,
            self._began,
            is_attempt=True,
            depths=depths_of(graph),
            new_splits=self._bounded,
        )
        pool.connect(
            {
                channel: OutgoingChannel(channel, self._sender(channel), lambda channel, size_bytes: None)
                for task in self._tasks
                for channel in outputs_of(graph, task)
                if channel.target.vertex not in self._members
            }
        )
        pool.start()
        for one in order.found:
            pool.assign(one.task, one.splits, order.checkpoint_id, is_last=one.is_last)

    def _sizer_of(self, task: TaskId) -> BatchSizer:
        batch_sizers = self._around.batch_sizers
        if task not in batch_sizers:
            batch_sizers[task] = self._around.new_batch_sizer(self._order.terms.batch_rows)
        return batch_sizers[task]

    def _begin_parts(self) -> None:
        deploy = self._order.deploy
        if deploy.rescaled_from:
            # Tasks that are no more have written what several of this batch may need.
            return
        for task, wanted in self._wanted().items():
            self._around.parts.begin(task, deploy.restore, wanted)

    def _wanted(self) -> dict[TaskId, tuple[Part, ...]]:
        """Return the parts that each of the tasks begins with."""
        found = {one.task: one.snapshot.parts for one in self._order.deploy.snapshots}
        return {task: found.get(task, ()) for task in self._tasks}

    def _began(self, task: TaskId) -> None:
        self._task = task

    def _bounded(
        self, source: Source, unread: Sequence[tuple[Split, JSON]], uid: str, *, is_open: bool
    ) -> BoundedSplits:
        read_s_max = READ_SHARE * self._order.terms.sink_timeout_ms / 1_000
        splits = BoundedSplits(
            source,
            unread,
            uid,
            self._order.records_max,
            is_open=is_open,
            read_s_max=read_s_max,
            clock=self._around.clock,
        )
        self._splits[self._task] = splits
        return splits

    def _sender(self, channel: ChannelId) -> _Post:
        return _Post(channel, self._outbox)

    def _reported(self, message: WorkerMessage) -> None:
        self._reports.set()
        match message:
            case SnapshotAcknowledged():
                self._acknowledged[message.task] = message
            case TaskFailed(_, task, cause):
                self._failure = Failure(task, cause)
            case SnapshotDeclined(task=task, reason=reason):
                # Usually the store refused the part; another attempt may succeed.
                self._failure = Failure(task, FailureCause("SnapshotDeclined", reason, is_transient=True))
            case _:
                """Of interest while a job runs on: how far sources are, that records flow."""

    async def _take(self, shuffle_block: ShuffleBlock) -> None:
        if shuffle_block.failure is not None:
            # At once: blocks before it may be missing, because the attempt that has failed did not send them.
            self._failure = shuffle_block.failure
            return
        for one in self._shuffle_input.put(shuffle_block):
            self._brought += one.brought
            for posted in one.items:
                self._deliver(posted)
            await self._settled()

    def _deliver(self, posted: Posted) -> None:
        channel, kind, payload = posted
        if channel.target.vertex in self._later:
            self._outbox.post(posted)
            return
        match kind:
            case FrameType.BATCH:
                item: Item = decode_batch(payload)
            case FrameType.BARRIER if _is_replay_marker(payload):
                item = REPLAYED
            case FrameType.BARRIER:
                if decode_barrier(payload) != self._order.checkpoint_id:
                    raise InternalError(f"{channel} has brought another barrier than that of this batch")
                # When all records are processed: what calls are under way for them, a snapshot would have
                # made again.
                self._barriers.append(channel)
                return
            case FrameType.END_OF_INPUT:
                item = EndOfInput()
            case _:
                raise InternalError(f"{channel} has brought a {kind.name} frame")
        self._running.received(channel, item, len(payload))

    async def _settled(self) -> None:
        """Wait until the tasks have processed what they have got, and nothing is due."""
        pool = self._running
        while self._failure is None and not pool.is_over:
            if not pool.is_asleep:
                await asyncio.sleep(0)
            elif any(task.calls.is_calling for task in pool.tasks):
                await asyncio.sleep(_LOOK_S)
            else:
                return

    async def _end(self) -> None:
        pool, n = self._running, self._order.checkpoint_id
        await self._settled()
        while self._failure is None and not all(one.is_enough for one in self._splits.values()):
            await asyncio.sleep(_LOOK_S)
            await self._settled()
        await self._settled()
        if self._failure is not None:
            return
        self._failpoints("batch.read")
        if self._order.partition.stage:
            self._check_barriers()
        for task in self._tasks:
            # In topological order: what one says of time, those after it hear before their turn.
            read = self._splits.get(task)
            pool.batch_ends(task, () if read is None else read.empty)
            await self._settled()
        pool.trigger(n)
        for channel in self._barriers:
            pool.received(channel, Barrier(n), 0)
        while self._failure is None and len(self._acknowledged) < len(self._tasks):
            self._reports.clear()
            await self._reports.wait()
        self._failpoints("batch.staged")
        if self._failure is None:
            self._around.states.keep(self._order.deploy, n, self._acknowledged)

    def _check_barriers(self) -> None:
        """Every input has brought all that there was: else a record is missing."""
        _ = self._shuffle_input.read


class _Post:
    """Sends the frames of one channel, the barrier of the batch last."""

    def __init__(self, channel: ChannelId, outbox: Outbox) -> None:
        self._channel = channel
        self._outbox = outbox
        self._is_over = False

    def __call__(self, kind: FrameType, payload: Payload) -> None:
        if self._is_over:
            # It would be in the output of this batch, and not in the snapshot of who sends it.
            raise InternalError(
                f"{self._channel} has sent a {kind.name} frame after the barrier of its batch"
            )
        self._is_over = kind is FrameType.BARRIER and not _is_replay_marker(payload)
        self._outbox.post((self._channel, kind, payload))


def _is_replay_marker(payload: Payload) -> bool:
    """Whether a barrier frame is a replay marker: it ends a generation of channel records."""
    return decode_barrier(payload) == REPLAYED.checkpoint_id
