"""A worker: one process that hosts task i of every vertex, epoch after epoch.

It connects to the coordinator, proves the job's secret, and then obeys: deploy, start,
halt. It stops by itself when it loses the coordinator, when its parent process dies, or when user
code holds the event loop for longer than the heartbeat timeout. None of that is needed for safety,
which rests on epochs alone; it only keeps zombies from using up the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from crosscut.errors import WorkersError
from crosscut.foundation.ids import AttemptId, ChannelId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.channels import inputs_of, outputs_of
from crosscut.graph.specs import JobGraph
from crosscut.host.alarms import LoopAlarm, NewAlarm
from crosscut.host.calls import StartThread
from crosscut.host.clock import Clock
from crosscut.host.failpoints import Failpoints, Plan
from crosscut.host.interpreter_lock import hold_on
from crosscut.host.process import Process
from crosscut.net.causes import failure_cause
from crosscut.net.connections import Credentials, connect
from crosscut.net.control import HeartbeatSchedule, WorkerLink
from crosscut.net.listener import Listener
from crosscut.net.mesh import Mesh
from crosscut.operators.probing import Copies
from crosscut.protocol.messages import (
    AbortCheckpoint,
    AlignSources,
    AssignSplits,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    FailureCause,
    PauseSources,
    Peer,
    RegisterWorker,
    ResumeSources,
    StartTasks,
    TaskFailed,
    TaskOrder,
    TriggerCheckpoint,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.unit_log.spec import UnitLogSpec
from crosscut.protocol.worker.lifecycle import (
    BeginTasks,
    EndTasks,
    EndWorker,
    ForwardToTasks,
    LearnPeers,
    TasksEnded,
    WorkerEvent,
    WorkerLifecycle,
)
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.store.shared_directories import SharedDirectories
from crosscut.store.unit_log_format import UnitName
from crosscut.task.flow_control import Credit
from crosscut.task.items import Item
from crosscut.task.spilling import SpillSpaces
from crosscut.task.unit_restore import RestoredUnit
from crosscut.wire.frames import PIECE_BYTES_MAX
from crosscut.worker.backends import MEMORY, StateBackend
from crosscut.worker.batch_sizer import BatchSizer
from crosscut.worker.commit_progress import StoredProgress
from crosscut.worker.deployment import TaskSettings, build_tasks
from crosscut.worker.lines import SPEAKING, Lines, LogSettings, Speaking
from crosscut.worker.local_state_cache import LocalStateCache
from crosscut.worker.logged_unit import LoggedUnit, UnitPlace
from crosscut.worker.pool import TaskPool
from crosscut.worker.unit_deployment import deploy_from_log

CONNECTION_LOST_GRACE_S = 0.3
"""A dead peer is reported by its own control link; only if that stays, the connection is the failure."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """All that a worker must know before it can speak; travels inside the Spark task, as data.

    `packed_graph` is the only thing with code in it. Durations in milliseconds.

    Attributes:
        progress_key: See `StoredProgress`.
        shared: Directories that this host has to share with the driver; None: it is the same host.
    """

    credentials: Credentials
    coordinator_host: str
    coordinator_port: int
    bind_host: str | None
    packed_graph: bytes
    store_url: str = field(repr=False)
    terms: TaskSettings
    linger_ms: float
    marker_interval_ms: float
    heartbeat_timeout_ms: int
    failpoints: Plan | None
    log: LogSettings
    progress_key: bytes = field(default=b"", repr=False)
    shared: SharedDirectories | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a worker in its process, which a virtual world brings itself.

    Attributes:
        graph: The worker's own: its functions share nothing with those of another worker.
        start_thread: Starts the threads in which the store and sinks are called.
        new_batch_sizer: Makes the batch sizer of a task: how much it takes at a time.
        new_spaces: Makes the disk space of one epoch's tasks.
        piece_bytes: Of one channel, before it is another channel's turn on the same connection.
        backend: Where keyed state is kept.
        lines: What is logged here; None: it is not passed on.
        weighs_state: Whether to estimate how much memory states take. It differs from process to process.
        new_alarm: Makes the alarm that wakes the worker when a task is due.
        let_threads_run: Pauses for a moment, without the interpreter lock.
        copies: Makes copies of this process, to find a record that ends it; None: it can't.
        has_lasting_threads: See `LogThread`.
    """

    graph: JobGraph
    store: CheckpointStore
    failpoints: Failpoints
    clock: Clock
    process: Process
    start_thread: StartThread
    new_batch_sizer: Callable[[], BatchSizer]
    new_spaces: Callable[[], SpillSpaces]
    piece_bytes: int = PIECE_BYTES_MAX
    backend: StateBackend = MEMORY
    lines: Lines | None = None
    weighs_state: bool = True
    new_alarm: NewAlarm = LoopAlarm
    let_threads_run: Callable[[], None] = hold_on
    copies: Copies | None = None
    has_lasting_threads: bool = True


class Worker:
    """One worker process. `run` returns when the coordinator says so, or raises."""

    def __init__(self, plan: WorkerPlan, index: WorkerIndex, attempt: AttemptId, ports: Surroundings) -> None:
        self._plan = plan
        self._index = index
        self._attempt = attempt
        self._ports = ports
        self._process = ports.process
        self._now_ns = ports.clock.monotonic_ns
        self._graph = ports.graph
        self._store = ports.store
        self._router = KeyRouter(self._graph.max_parallelism, self._graph.parallelism)
        self._at_hand = LocalStateCache(ports.backend)
        # A lesson of one epoch holds in the next.
        self._batch_sizers: dict[TaskId, BatchSizer] = {}
        self._failpoints = ports.failpoints
        self._pool: TaskPool | None = None
        self._spaces = ports.new_spaces()
        self._deploying: asyncio.Task[None] | None = None
        self.lifecycle = WorkerLifecycle()
        """Decides which words count here."""
        # The worker may come to its end while tasks are being ended.
        self._turns = asyncio.Lock()
        self._listener = Listener(f"worker {index}")
        self._place = UnitPlace(self._send_message)
        unit_host = self._place if plan.terms.unit_log is not None else None
        self._mesh = Mesh(index, self, self._listener, plan.credentials, ports.piece_bytes, unit_host)
        self._link: WorkerLink | None = None
        self._peers: dict[WorkerIndex, Peer] = {}
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received_ns = self._now_ns()
        self._chores: set[asyncio.Task[None]] = set()
        self._lines = ports.lines
        self._heartbeats = HeartbeatSchedule(plan.heartbeat_timeout_ms / 1_000, self._graph.parallelism)

    @property
    def pool(self) -> TaskPool | None:
        """The tasks of the newest epoch, if it has begun here."""
        return self._pool

    @property
    def link(self) -> WorkerLink | None:
        """The link to the coordinator, once it is sought."""
        return self._link

    async def run(self) -> None:
        """Serve until the coordinator ends it.

        Raises:
            WorkersError: Told to fail, or the coordinator is lost.
        """
        plan = self._plan
        self._link = WorkerLink(
            plan.credentials, self._index, self._attempt, self._register, self._receive, self._link_lost
        )
        link = self._link
        try:
            await connect(link, plan.coordinator_host, plan.coordinator_port)
        except OSError as error:
            raise WorkersError(
                f"worker {self._index} can't reach the coordinator at "
                f"{plan.coordinator_host}:{plan.coordinator_port}: {error}"
            ) from error
        loop = asyncio.get_running_loop()
        try:
            if self._lines is not None:
                self._lines.follow(partial(loop.call_soon_threadsafe, self._unless_it_raises, self._report))
            self._beat()
            await self._over
        finally:
            if self._lines is not None:
                # Those who wait for the end hear what has been said before it.
                self._unless_it_raises(self._report)
                self._lines.follow(None)
            self._process.watch(None)
            self._listener.close()
            link.close_gently("the worker ends")
            # After a change of epoch that is under way: its calls use what is closed here.
            await self._halt()
            self._at_hand.close()

    def _register(self) -> None:
        self._start_chore(self._listen_and_register())

    async def _listen_and_register(self) -> None:
        if self._link is None:
            return
        # The address that reaches the coordinator is the one that peers can reach.
        host = self._plan.bind_host or self._link.local_address
        port = await self._listener.listen(host, self._mesh.accept)
        self._link.send_message(RegisterWorker(self._index, self._attempt, host, self._process.pid, port))

    def _start_chore(self, work: Coroutine[None, None, None]) -> None:
        chore = asyncio.get_running_loop().create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chore_done)

    def _chore_done(self, chore: asyncio.Task[None]) -> None:
        self._chores.discard(chore)
        if not chore.cancelled() and (error := chore.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if not self._over.done():
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)

    # The coordinator's words.

    def _receive(self, message: CoordinatorMessage) -> None:
        self._received_ns = self._now_ns()
        self._obey(message)

    def _obey(self, event: WorkerEvent) -> None:
        for effect in self.lifecycle.handle(event):
            match effect:
                case LearnPeers(peers):
                    self._peers |= {peer.worker: peer for peer in peers}
                case EndTasks():
                    self._start_chore(self._end_tasks())
                case BeginTasks(deploy):
                    self._begin(deploy)
                case ForwardToTasks(order):
                    # Unless the worker itself is coming to its end.
                    if self._pool is not None:
                        self._deliver(self._pool, order)
                case EndWorker(reason, failed):
                    self._end(
                        WorkersError(f"worker {self._index} was told to exit: {reason}") if failed else None
                    )
                case _:
                    assert_never(effect)

    def _deliver(self, pool: TaskPool, order: TaskOrder) -> None:
        match order:
            case StartTasks():
                pool.start()
                self._process.settle()
            case TriggerCheckpoint(_, checkpoint_id):
                pool.trigger(checkpoint_id)
            case AbortCheckpoint(_, checkpoint_id):
                pool.abort(checkpoint_id)
            case CaptureSnapshots(_, checkpoint_id):
                pool.capture(checkpoint_id)
            case ResumeSources(_, checkpoint_id):
                pool.resume(checkpoint_id)
            case CommitCheckpoint(_, checkpoint_id, together):
                self._failpoints("commit.told")
                pool.completed(checkpoint_id, together)
            case CloseLoops(_, heads):
                pool.close_loops(heads)
            case PauseSources(_, is_paused):
                pool.pause_sources(is_paused=is_paused)
                if is_paused and self._place.unit is not None:
                    self._place.unit.stop()
            case AlignSources():
                pool.align(order)
            case AssignSplits(_, task, since, splits, is_last):
                self._failpoints("splits.assigned")
                pool.assign(task, splits, since, is_last=is_last)
            case _:
                assert_never(order)

    def _link_lost(self, reason: str) -> None:
        self._end(WorkersError(f"worker {self._index} has lost the coordinator: {reason}"))

    def _beat(self) -> None:
        # Tasks of the last epoch may still be halting: the watch must not be armed again, since Spark reuses
        # the process.
        if not self._over.done():
            self._unless_it_raises(self._beat_once)

    def _unless_it_raises(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - else it would be silent from now on, and nobody knew why
            self._end(error)
            if self._pool is not None:
                self._pool.failed(self._task_ids()[0], error)

    def _beat_once(self) -> None:
        timeout_s = self._plan.heartbeat_timeout_ms / 1_000
        silent_s = (self._now_ns() - self._received_ns) / 1e9
        if silent_s > timeout_s:
            self._link_lost(f"nothing heard for {silent_s:.1f} s")
            return
        if self._process.is_orphaned():
            self._end(WorkersError(f"worker {self._index}: the process that started it has ended"))
            return
        self._process.watch(timeout_s)
        began_ns = self._process.processor_ns()
        self._report()
        interval_s = self._heartbeats.next_s(self._now_ns(), began_ns, self._process.processor_ns())
        asyncio.get_running_loop().call_later(interval_s, self._beat)

    def _report(self) -> None:
        """Say what is counted here, and what has been logged."""
        pool = self._pool
        if self._link is None or not self._link.is_open:
            return
        tasks = pool.statistics() if pool else ()
        dropped = dict(self.lifecycle.dropped)
        refused = dict(self._listener.refusals)
        logged = self._lines.take() if self._lines is not None else ()
        self._link.send_message(
            WorkerHeartbeat(pool.epoch if pool else Epoch(0), tasks, dropped, refused, logged)
        )

    # Epochs.

    async def _end_tasks(self) -> None:
        await self._halt()
        self._obey(TasksEnded())
        self._process.tidy()

    async def _halt(self) -> None:
        async with self._turns:
            if self._deploying is not None:
                self._deploying.cancel()
                await asyncio.gather(self._deploying, return_exceptions=True)
                self._deploying = None
            pool, self._pool = self._pool, None
            self._mesh.close()
            self._place.close()
            if pool is not None:
                await pool.close()
                self._spaces.close()

    def _begin(self, deploy: DeployTasks) -> None:
        link = self._link
        if link is None:
            return
        pool = TaskPool(
            epoch=deploy.epoch,
            store=self._store,
            batch_rows=self._plan.terms.batch_rows,
            linger_ms=self._plan.linger_ms,
            marker_interval_ms=self._plan.marker_interval_ms,
            alignment_timeout_ms=self._plan.terms.alignment_timeout_ms,
            sink_timeout_ms=self._plan.terms.sink_timeout_ms,
            failpoints=self._failpoints,
            report=self._place.report,
            give_credit=self._mesh.give_credit,
            clock=self._ports.clock,
            start_thread=self._ports.start_thread,
            sizer_of=self._sizer_of,
            slices=self._process,
            weighs_state=self._ports.weighs_state,
            new_alarm=self._ports.new_alarm,
            let_threads_run=self._ports.let_threads_run,
            copies=self._ports.copies,
            deaths=deploy.deaths,
        )
        self._pool = pool
        self._process.load()
        self._spaces = self._ports.new_spaces()
        self._deploying = asyncio.get_running_loop().create_task(self._build_and_connect(pool, deploy))

    def _sizer_of(self, task: TaskId) -> BatchSizer:
        if task not in self._batch_sizers:
            self._batch_sizers[task] = self._ports.new_batch_sizer()
        return self._batch_sizers[task]

    async def _build_and_connect(self, pool: TaskPool, deploy: DeployTasks) -> None:
        to_blame = TaskId(VertexId(self._graph.vertices[0].vertex_id), self._index)

        def began(task: TaskId) -> None:
            nonlocal to_blame
            to_blame = task
            if self._lines is not None:
                SPEAKING.set(Speaking(deploy.epoch, task))

        try:
            self._failpoints("restore.begin")
            sections: RestoredUnit | None = None
            if self._plan.terms.unit_log is not None:
                unit = self._place.unit = await self._open_unit(self._plan.terms.unit_log, pool, deploy)
                sections = await unit.claim(pool, self._store.read_part)
                deploy = deploy_from_log(deploy, sections, unit.parts)
                self._failpoints("restore.claimed")
            self._mesh.expect(deploy.epoch, self._channels_between_workers())
            connecting = asyncio.ensure_future(self._mesh.connect(self._peers))
            try:
                await build_tasks(
                    pool,
                    self._graph,
                    self._index,
                    deploy,
                    self._at_hand,
                    self._store.read_part,
                    self._router,
                    self._plan.terms,
                    self._spaces,
                    self._failpoints,
                    began,
                    progress_of=lambda task: StoredProgress(self._store, task, self._plan.progress_key),
                    unit=sections if sections is not None and sections.number else None,
                )
                await connecting
            finally:
                connecting.cancel()
            await self._mesh.all_open.wait()
            pool.connect(self._mesh.outgoing)
            if self._place.unit is not None:
                self._place.unit.begin(pool)
            self._failpoints("restore.ready")
            if self._link is not None:
                self._link.send_message(WorkerReady(deploy.epoch))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - connectors may raise anything
            if isinstance(error, WorkersError) and self._place.unit is not None:
                # A newer worker has this place.
                self._end(error)
            elif self._link is not None:
                self._link.send_message(TaskFailed(deploy.epoch, to_blame, failure_cause(error)))

    # The unit of logging.

    async def _open_unit(self, spec: UnitLogSpec, pool: TaskPool, deploy: DeployTasks) -> LoggedUnit:
        terms = self._plan.terms
        name = UnitName(deploy.lineage, self._index)
        log = await pool.in_thread(self._store.unit_log, name, spec.kind, deploy.unit_keys)
        return LoggedUnit(
            spec,
            log,
            self._index,
            deploy.epoch,
            self._channels_between_workers(),
            channel_bytes=terms.channel_bytes,
            commit_attempts=terms.commit_attempts,
            timeout_ms=terms.sink_timeout_ms,
            connections=self._mesh,
            report=self._send_message,
            ended=partial(self._unit_ended, pool),
            failpoints=self._failpoints,
            clock=self._ports.clock,
            start_thread=self._ports.start_thread,
            has_lasting_threads=self._ports.has_lasting_threads,
        )

    def _unit_ended(self, pool: TaskPool, error: Exception) -> None:
        if isinstance(error, WorkersError):
            self._end(error)
        else:
            # Nothing leaves this unit any more; the next epoch claims the log anew.
            pool.failed(self._task_ids()[0], error)

    def _send_message(self, message: WorkerMessage) -> None:
        if self._link is not None:
            self._link.send_message(message)

    # Channels.

    def _task_ids(self) -> list[TaskId]:
        return [TaskId(VertexId(vertex.vertex_id), self._index) for vertex in self._graph.vertices]

    def _channels_between_workers(self) -> list[ChannelId]:
        """Return the channels of this worker's tasks that have another worker's task at their other end."""
        graph, tasks = self._graph, self._task_ids()
        channels = (one for task in tasks for one in (*inputs_of(graph, task), *outputs_of(graph, task)))
        return [one for one in channels if one.source.index != one.target.index]

    def channel_received(self, channel: ChannelId, item: Item, size_bytes: int) -> None:
        """Pass an item on; its sender gets credit for it when it is out of memory again."""
        if self._pool is not None:
            self._pool.received(channel, item, size_bytes)

    def channel_credited(self, channel: ChannelId, credit: Credit) -> None:
        """Pass on that an output may send so much more."""
        if self._pool is not None:
            self._pool.credited(channel, credit)

    def connection_lost(self, task: TaskId, cause: FailureCause) -> None:
        """A connection of the running epoch broke: a failure, unless its peer's death explains it."""
        pool = self._pool
        if pool is None or self._over.done():
            return

        def report() -> None:
            if self._pool is pool and self._link is not None:
                self._link.send_message(TaskFailed(pool.epoch, task, cause))

        asyncio.get_running_loop().call_later(CONNECTION_LOST_GRACE_S, report)
