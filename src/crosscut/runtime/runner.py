"""Runs the tasks of one worker in one epoch: the scheduler, and the background work of each task.

One thread, one event loop. A round runs each task that can run once, in topological order, so a
record goes through all local tasks of its way in one round; then the loop serves the sockets. What a
task wants done it leaves in its outlets; nothing is decided here but when.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar, assert_never

from crosscut.errors import (
    ConnectorError,
    CrosscutError,
    StateError,
    StoreError,
    UserCodeError,
    WorkersError,
)
from crosscut.ids import ChannelId, CheckpointId, Epoch, TaskId
from crosscut.interfaces import SinkWriter
from crosscut.protocol.effects import CommitTransactions
from crosscut.protocol.messages import FailureCause, Part, RecordsFlowing, TaskFailed, WorkerMessage
from crosscut.runtime.channel_log import encoded_log
from crosscut.runtime.channels import OutgoingChannel
from crosscut.runtime.failpoints import Failpoints
from crosscut.runtime.items import Barrier, Item
from crosscut.runtime.task import (
    CancelStore,
    CompleteState,
    FrozenTask,
    Job,
    PrepareTransaction,
    StoreFrozen,
    Task,
    WaitForAlignment,
)
from crosscut.state.keyed import KeyedState

_LOG = logging.getLogger("crosscut")

P = ParamSpec("P")
R = TypeVar("R")

SLICE_NS = 2_000_000
"""How long one `run` of a task should take at most: barriers and sockets wait meanwhile."""

WAIT_MS_MAX = 3_600_000.0

LOCAL_ITEMS_MAX = 4
"""Items that may wait in a channel inside a worker before its sender has to pause."""

THREADS_END_TIMEOUT_S = 2.0
"""How long calls in threads may go on behind the end of their epoch, before the process has to end."""


class SinkHungError(ConnectorError):
    """A sink's method has not returned for too long; the thread in it is still there."""


CAUSE_CHARS_MAX = 64_000
"""Of a message or traceback; a failure has to fit into one message to the coordinator."""


class PartWriter(Protocol):
    """Where snapshots are stored; called in threads."""

    def write_part(
        self, checkpoint_id: CheckpointId, task: TaskId, epoch: Epoch, chunks: list[bytes]
    ) -> Part: ...


def failure_cause(error: BaseException) -> FailureCause:
    """Return `error` as text that can be sent to the driver."""
    if isinstance(error, UserCodeError):
        return FailureCause(
            kind=type(error.__cause__).__name__ if error.__cause__ else "UserCodeError",
            message=error.message,
            operator=error.operator,
            record=error.record or "",
            traceback=error.traceback,
        )
    kind = type(error).__name__
    try:
        text = "" if isinstance(error, CrosscutError) else "".join(traceback.format_exception(error))
        message = str(error) or kind
        operator, record = str(getattr(error, "operator", "")), str(getattr(error, "record", ""))
    except BaseException as second:  # noqa: BLE001 - exceptions of user code may raise when looked at
        text = operator = record = ""
        message = f"{kind}, which can't be shown: looking at it raises {type(second).__name__}"
    return FailureCause(
        kind=kind,
        message=message[:CAUSE_CHARS_MAX],
        operator=operator,
        record=record[:CAUSE_CHARS_MAX],
        traceback=text[-CAUSE_CHARS_MAX:],
        is_final=bool(getattr(error, "damaged", False)),
    )


def _note_outcome(call: asyncio.Future[Any]) -> None:
    """Take what a call of an epoch that is over has raised: nobody else will."""
    if not call.cancelled():
        call.exception()


class TaskRunner:
    """One task with what it needs around it: where its output goes, and its background work."""

    def __init__(
        self, pool: TaskPool, task: Task, state: KeyedState | None, writer: SinkWriter | None
    ) -> None:
        self.task = task
        self.clogged: set[ChannelId] = set()
        self.due_ns = 0
        self._pool = pool
        self._state = state
        self._writer = writer
        self._writer_lock = asyncio.Lock()
        self._jobs: deque[PrepareTransaction | StoreFrozen | CompleteState] = deque()
        self._job_arrived = asyncio.Event()
        self._cancelled: set[CheckpointId] = set()
        self._freeze_us: dict[CheckpointId, int] = {}
        self._buffered_since_ns = 0

    # The scheduler's side.

    def can_run(self, now_ns: int) -> bool:
        """Whether a call of `run` is worthwhile."""
        return not self.clogged and self.due_ns <= now_ns and self.task.has_work

    def run(self, now_ns: int) -> None:
        """Let the task do one piece of work and carry out what it asks for."""
        task = self.task
        rows_before = task.records_in
        channel = task.run()
        rows = task.records_in - rows_before
        ended_ns = time.monotonic_ns()
        self._adapt(rows, ended_ns - now_ns)
        if task.is_source:
            self.due_ns = ended_ns + int(min(task.wait_ms, WAIT_MS_MAX) * 1e6) if task.wait_ms else 0
        if channel is not None:
            self._pool.consumed(task, channel)
            if self._pool.failpoints.is_armed and task.is_aligning:
                self._pool.failpoints("align.partial")
        if task.has_buffered:
            self._flush_if_due(ended_ns)
        self.drain((ended_ns - now_ns) // 1_000)
        if rows:
            self._pool.records_flowed()

    def _flush_if_due(self, now_ns: int) -> None:
        """Send partial batches: when nothing else is to be done, or when they have lingered."""
        if not self._buffered_since_ns:
            self._buffered_since_ns = now_ns
        if now_ns - self._buffered_since_ns >= self._pool.linger_ns or not self.can_run(now_ns):
            self.task.flush()
        if not self.task.has_buffered:
            self._buffered_since_ns = 0

    def _adapt(self, rows: int, elapsed_ns: int) -> None:
        """Give slow operators fewer records at a time, so that a barrier never waits for long."""
        task = self.task
        if elapsed_ns > 2 * SLICE_NS and rows > 1:
            task.rows_max = max(1, rows * SLICE_NS // elapsed_ns)
        elif elapsed_ns < SLICE_NS // 2 and rows >= task.rows_max < self._pool.batch_rows:
            task.rows_max = min(self._pool.batch_rows, task.rows_max * 2)

    def drain(self, elapsed_us: int = 0) -> None:
        """Carry out what stands in the task's outlets: background work, then output, then words."""
        task = self.task
        if task.jobs:
            jobs, task.jobs = task.jobs, []
            for job in jobs:
                self._start(job, elapsed_us)
        if task.outbox:
            outbox, task.outbox = task.outbox, []
            for channel, item in outbox:
                self._pool.send(self, channel, item)
        for channel in tuple(self.clogged):
            # A barrier may have overtaken what waits there.
            self._pool.unclog(self, channel)
        if task.messages:
            messages, task.messages = task.messages, []
            for message in messages:
                self._pool.report(message)

    # Background work.

    def _start(self, job: Job, elapsed_us: int) -> None:
        match job:
            case StoreFrozen(frozen):
                self._freeze_us[frozen.checkpoint_id] = elapsed_us
                self._jobs.append(job)
                self._job_arrived.set()
            case PrepareTransaction() | CompleteState():
                self._jobs.append(job)
                self._job_arrived.set()
            case WaitForAlignment(checkpoint_id):
                self._pool.spawn(self, self._wait_for_alignment(checkpoint_id))
            case CancelStore(checkpoint_id):
                self._cancelled.add(checkpoint_id)
            case CommitTransactions():
                self._pool.spawn(self, self._commit(job))
            case _:
                assert_never(job)

    async def work(self) -> None:
        """Store snapshots and fold completed ones in, one after the other, for the whole epoch."""
        while True:
            await self._job_arrived.wait()
            self._job_arrived.clear()
            while self._jobs:
                job = self._jobs.popleft()
                match job:
                    case PrepareTransaction():
                        await self._prepare(job)
                    case StoreFrozen(frozen):
                        await self._store(frozen)
                    case CompleteState(checkpoint_id):
                        for _ in self._state.complete(checkpoint_id) if self._state else ():
                            await asyncio.sleep(0)

    async def _wait_for_alignment(self, checkpoint_id: CheckpointId) -> None:
        await asyncio.sleep(self._pool.alignment_timeout_ms / 1_000)
        self.task.alignment_timed_out(checkpoint_id)
        self.drain()

    async def _prepare(self, job: PrepareTransaction) -> None:
        if self._writer is None:
            return
        async with self._writer_lock:
            handle = await self._pool.call_sink(self._writer.prepare, job.transaction)
        self.task.transaction_prepared(job.checkpoint_id, handle)
        self.drain()

    async def _store(self, frozen: FrozenTask) -> None:
        n = frozen.checkpoint_id
        self._pool.failpoints("snapshot.frozen")
        reason = ""
        part = log = None
        if n not in self._cancelled:
            try:
                if self._state is not None:
                    part = await self._store_state(self._state, frozen)
                if frozen.log:
                    log = await self._write_part(n, encoded_log(frozen.log))
            except (StoreError, StateError) as error:
                reason = str(error)
        self._cancelled = {one for one in self._cancelled if one > n}
        freeze_us = self._freeze_us.pop(n, 0)
        if reason:
            self.task.snapshot_failed(n, reason)
        else:
            self._pool.failpoints("snapshot.stored")
            self.task.snapshot_stored(n, part, freeze_us, log)
        self.drain()

    async def _store_state(self, state: KeyedState, frozen: FrozenTask) -> Part | None:
        n = frozen.checkpoint_id
        chunks: list[bytes] = []
        for chunk in state.encoded(n, frozen.since):
            chunks.append(chunk)
            # One slice, then the records: a thread would hold the interpreter for as long.
            await asyncio.sleep(0)
            if n in self._cancelled:
                return None
        self._pool.failpoints("snapshot.encoded")
        return await self._write_part(n, chunks)

    async def _write_part(self, n: CheckpointId, chunks: list[bytes]) -> Part:
        task, epoch = self.task.task_id, self._pool.epoch
        return await self._pool.in_thread(self._pool.store.write_part, n, task, epoch, chunks)

    async def _commit(self, commit: CommitTransactions) -> None:
        if self._writer is None:
            return
        if commit.delay_ms:
            await asyncio.sleep(commit.delay_ms / 1_000)
        self._pool.failpoints("commit.before")
        try:
            async with self._writer_lock:
                await self._pool.call_sink(self._writer.commit, commit.permit, list(commit.handles))
        except SinkHungError:
            # Not tried again: the first attempt is still at it.
            raise
        except Exception as error:  # noqa: BLE001 - a sink may raise anything; the committer decides
            self.task.commit_failed(f"{type(error).__name__}: {error}")
        else:
            self._pool.failpoints("commit.after")
            self.task.commit_succeeded()
        self.drain()


class TaskPool:
    """The tasks of one worker in one epoch.

    Args:
        report: Sends a message to the coordinator.
        fresh_bytes: Called with an input channel that the task has emptied.
    """

    def __init__(
        self,
        *,
        epoch: Epoch,
        store: PartWriter,
        batch_rows: int,
        linger_ms: float,
        alignment_timeout_ms: float,
        sink_timeout_ms: int,
        failpoints: Failpoints,
        report: Callable[[WorkerMessage], None],
        emptied: Callable[[ChannelId], None],
    ) -> None:
        self.epoch = epoch
        self.store = store
        self.batch_rows = batch_rows
        self.linger_ns = int(linger_ms * 1e6)
        self.alignment_timeout_ms = alignment_timeout_ms
        self._sink_timeout_s = sink_timeout_ms / 1_000
        self.failpoints = failpoints
        self.report = report
        self._emptied = emptied
        self._loop = asyncio.get_running_loop()
        self._runners: list[TaskRunner] = []
        self._by_input: dict[ChannelId, TaskRunner] = {}
        self._back_edges: frozenset[ChannelId] = frozenset()
        self._local_sender: dict[ChannelId, TaskRunner] = {}
        self._outgoing: Mapping[ChannelId, OutgoingChannel] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(thread_name_prefix=f"crosscut-{epoch}")
        self._calls: set[Future[Any]] = set()
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._is_running = False
        self._is_over = False
        self._has_flowed = False

    @property
    def tasks(self) -> list[Task]:
        """The tasks, in topological order."""
        return [runner.task for runner in self._runners]

    def add(
        self,
        task: Task,
        inputs: tuple[ChannelId, ...],
        state: KeyedState | None,
        writer: SinkWriter | None,
        back_edges: frozenset[ChannelId] = frozenset(),
    ) -> None:
        """Add a task; in topological order. Its back edges never make their sender wait."""
        self._back_edges |= back_edges
        runner = TaskRunner(self, task, state, writer)
        self._runners.append(runner)
        for channel in inputs:
            self._by_input[channel] = runner

    def connect(self, outgoing: Mapping[ChannelId, OutgoingChannel]) -> None:
        """Say which outputs leave this worker; start the background work."""
        self._outgoing = outgoing
        for runner in self._runners:
            self.spawn(runner, runner.work())

    def start(self) -> None:
        """Let the sources read."""
        self._is_running = True
        for runner in self._runners:
            # What a restored task has to send again.
            runner.drain()
        self._schedule()

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function`, which may block, in a thread of this pool."""

        def call() -> R:
            try:
                return function(*args, **kwargs)
            except (StopIteration, FutureCancelled, asyncio.CancelledError) as error:
                # asyncio can't hand the one on, and would take the others for its own.
                raise RuntimeError(f"{type(error).__name__} was raised") from error

        future = self._threads.submit(call)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(future)

    async def pause(self) -> None:
        """Let the event loop serve others."""
        await asyncio.sleep(0)

    async def call_sink(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of a sink's writer in a thread.

        Raises:
            SinkHungError: It has not returned within the checkpoint timeout.
        """
        try:
            async with asyncio.timeout(self._sink_timeout_s) as deadline:
                return await self.in_thread(method, *args, **kwargs)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise SinkHungError(
                f"{method.__qualname__} of the sink has not returned within "
                f"checkpoint_timeout={self._sink_timeout_s:g} s"
            ) from error

    def spawn(self, runner: TaskRunner, work: Coroutine[None, None, None]) -> None:
        """Run background work of a task; if it raises, the task has failed."""
        task = self._loop.create_task(self._guarded(runner, work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _guarded(self, runner: TaskRunner, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except BaseException as error:
            if self._is_over and isinstance(error, asyncio.CancelledError):
                raise
            self.failed(runner.task.task_id, error)

    async def close(self) -> None:
        """End everything of this epoch.

        Raises:
            WorkersError: A thread hangs in user code. Only the end of the process will end it.
        """
        self._is_over = True
        self.failpoints("close")
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        # A writer is used by one thread at a time, and closed behind the last call.
        calls = [asyncio.wrap_future(call) for call in tuple(self._calls)]
        hung = (await asyncio.wait(calls, timeout=THREADS_END_TIMEOUT_S))[1] if calls else ()
        for call in calls:
            call.add_done_callback(_note_outcome)
        if hung:
            raise WorkersError(
                f"{len(hung)} calls of sinks or of the store did not return within "
                f"{THREADS_END_TIMEOUT_S:g} s after the end of their epoch: the process ends"
            )
        for runner in self._runners:
            try:
                runner.task.close()
            except Exception:  # noqa: BLE001 - what one raises must not keep the rest open
                _LOG.warning("closing task %s failed", runner.task.task_id, exc_info=True)

    def failed(self, task: TaskId, error: BaseException) -> None:
        """A task of this epoch has failed: nothing runs any more, the coordinator decides."""
        if not self._is_over:
            cause = failure_cause(error)
            self._is_over = True
            self.report(TaskFailed(self.epoch, task, cause))

    # Items on their way.

    def send(self, sender: TaskRunner, channel: ChannelId, item: Item) -> None:
        """Send an item: by reference inside the worker, else over the channel's connection."""
        target = self._by_input.get(channel)
        if target is None:
            self._send_out(sender, channel, item)
            return
        target.task.offer(channel, item)
        self._local_sender[channel] = sender
        if target.task.queued(channel) > LOCAL_ITEMS_MAX and channel not in self._back_edges:
            sender.clogged.add(channel)
        target.drain()
        self._schedule()

    def _send_out(self, sender: TaskRunner, channel: ChannelId, item: Item) -> None:
        """Send over the connection, or keep it while that takes no more: a barrier may overtake it."""
        sender.task.unsent[channel].append(item)
        self.unclog(sender, channel)

    def unclog(self, sender: TaskRunner, channel: ChannelId) -> None:
        """Send what the connection takes of what waits for it: barriers always, they need no credit."""
        connection = self._outgoing.get(channel)
        if connection is None:
            return
        waiting = sender.task.unsent[channel]
        while waiting and (isinstance(waiting[0], Barrier) or not connection.is_full):
            connection.send_item(waiting.popleft())
        if waiting:
            sender.clogged.add(channel)
        elif channel in sender.clogged:
            sender.clogged.remove(channel)
            self._schedule()

    def received(self, channel: ChannelId, item: Item) -> int:
        """An item came in from another worker; return how many now wait in that channel."""
        runner = self._by_input[channel]
        runner.task.offer(channel, item)
        runner.drain()
        self._schedule()
        return runner.task.queued(channel)

    def unclogged(self, channel: ChannelId) -> None:
        """The connection of an output takes more again."""
        for runner in self._runners:
            if channel in runner.clogged:
                self.unclog(runner, channel)

    def consumed(self, task: Task, channel: ChannelId) -> None:
        """A task has read from an input channel."""
        queued = task.queued(channel)
        sender = self._local_sender.get(channel)
        if sender is not None:
            if queued <= LOCAL_ITEMS_MAX // 2:
                sender.clogged.discard(channel)
        elif queued == 0:
            self._emptied(channel)

    def records_flowed(self) -> None:
        """Tell the coordinator once that records go through this worker again."""
        if not self._has_flowed:
            self._has_flowed = True
            self.report(RecordsFlowing(self.epoch))

    # The coordinator's words.

    def close_loops(self) -> None:
        """Every loop is empty, for good."""
        self._tell(lambda task: task.close_loops())

    def trigger(self, checkpoint_id: CheckpointId) -> None:
        """Start a checkpoint at the sources of this worker."""
        self._tell(lambda task: task.trigger(checkpoint_id))

    def abort(self, checkpoint_id: CheckpointId) -> None:
        """Give a checkpoint up."""
        self._tell(lambda task: task.abort(checkpoint_id))

    def capture(self, checkpoint_id: CheckpointId) -> None:
        """Every task of the job stands still."""
        self._tell(lambda task: task.capture(checkpoint_id))

    def resume(self, checkpoint_id: CheckpointId) -> None:
        """Go on after a checkpoint that every task stood still for."""
        self._tell(lambda task: task.resume(checkpoint_id))

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """A checkpoint is complete."""
        self._tell(lambda task: task.checkpoint_completed(checkpoint_id))

    def _tell(self, word: Callable[[Task], None]) -> None:
        for runner in self._runners:
            if self._is_over:
                return
            started_ns = time.monotonic_ns()
            try:
                word(runner.task)
                runner.drain((time.monotonic_ns() - started_ns) // 1_000)
            except BaseException as error:  # noqa: BLE001 - connectors may raise anything
                self.failed(runner.task.task_id, error)
        self._schedule()

    # The scheduler.

    def _schedule(self) -> None:
        if not self._is_scheduled and self._is_running and not self._is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._is_scheduled = False
        if self._is_over:
            return
        has_run = False
        for runner in self._runners:
            now_ns = time.monotonic_ns()
            if not runner.can_run(now_ns):
                continue
            has_run = True
            try:
                runner.run(now_ns)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is this task's failure
                self.failed(runner.task.task_id, error)
                return
        if has_run:
            self._schedule()
        else:
            self._sleep()

    def _sleep(self) -> None:
        """Nothing can run now: wake up when a waiting source is due. Sockets wake us as well."""
        # A clogged task is woken by its channel: its time may long have come.
        waiting = [
            one.due_ns for one in self._runners if one.due_ns and not one.clogged and one.task.has_work
        ]
        if not waiting:
            return
        due_ns = min(waiting)
        if self._timer is not None:
            if not self._timer.cancelled() and self._timer_due_ns == due_ns:
                return
            self._timer.cancel()
        self._timer_due_ns = due_ns
        delay_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._schedule()
