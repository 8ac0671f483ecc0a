"""The background work of one task: it stores snapshots, prepares and commits transactions.

The encoding is done on the event loop, a slice at a time, between the records; what waits for a disk
or for somebody else is done in threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from typing import Any, ParamSpec, Protocol, TypeVar, TypeVarTuple, assert_never

from crosscut.contracts.connectors import SinkWriter
from crosscut.errors import ConnectorError, HistoryError, StateError, StoreError, WorkersError, invariant
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.host.calls import Calls, StartThread, name_of, start_thread
from crosscut.host.failpoints import Failpoints
from crosscut.net.causes import failure_cause
from crosscut.operators.async_map import StartCall
from crosscut.operators.connector_errors import name_connector, raise_named
from crosscut.protocol.effects import CommitTransactions
from crosscut.protocol.job.restarts import is_hopeless
from crosscut.protocol.snapshots import Part
from crosscut.state.field_names import FieldNames
from crosscut.state.keyed import KeyedState
from crosscut.state.rocksdb.database import FileContent
from crosscut.state.rocksdb.state import RocksState
from crosscut.task.channel_log import Logged, encoded_log, release_log
from crosscut.task.requests import (
    BackgroundJob,
    CancelStore,
    CompleteState,
    FrozenTask,
    NotePause,
    PrepareTransaction,
    StoreFrozen,
    WaitForAlignment,
)
from crosscut.task.task import Task
from crosscut.worker.async_calls import outcome_of
from crosscut.worker.snapshot_timer import SnapshotTimer

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

SLICE_NS = 1_000_000
"""How long background work keeps the records waiting at a time, give or take a step."""

SLICE_STEPS_MAX = 16

CALLS_SHOWN_MAX = 5
THREADS_END_TIMEOUT_S = 2.0
"""How long calls in threads may go on after the end of their epoch, before the process has to end."""


UNHEARD_CALLS_MAX = 1_000
"""How many abandoned calls of user functions may go on in threads of one process."""


class SinkHungError(ConnectorError):
    """A sink's method has not returned for too long; the thread in it is still there."""


class PartStore(Protocol):
    """Where snapshots are stored; called in threads."""

    def write_part(
        self, checkpoint_id: CheckpointId, task: TaskId, epoch: Epoch, chunks: Iterable[bytes]
    ) -> Part: ...

    def delete_parts(self, paths: Iterable[str]) -> list[str]: ...


class Threads:
    """Calls of the store, of sinks and of the user's functions in one epoch, which may block.

    How many there are is bounded by the tasks, their checkpoints and the capacity for calls; those that
    have been given up and go on, by `UNHEARD_CALLS_MAX`.
    """

    def __init__(self, epoch: Epoch, sink_timeout_ms: int, start: StartThread = start_thread) -> None:
        self._is_closed = False
        self._sink_timeout_s = sink_timeout_ms / 1_000
        self._calls = Calls(f"crosscut-{epoch}", start)
        self._unheard: set[Future[Any]] = set()

    @property
    def are_at_work(self) -> bool:
        """Whether a call is under way."""
        return self._calls.are_under_way

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread."""
        return await asyncio.wrap_future(self._begun(function, *args, **kwargs))

    async def call_while_wanted(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for a call that may be given up as often as its caller likes.

        Raises:
            WorkersError: So many of those that were given up still hold a thread that something is wrong.
        """
        if len(self._unheard) >= UNHEARD_CALLS_MAX:
            raise WorkersError(
                f"{len(self._unheard)} calls have not returned long after their timeout, and each "
                f"occupies a thread: set a timeout in the function, as in requests.get(url, timeout=5), "
                f"shorter than that of map_async"
            )
        future = self._begun(function, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if not future.done():
                self._unheard.add(future)
                future.add_done_callback(self._unheard.discard)

    def _begun(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        def call() -> R:
            try:
                return function(*args, **kwargs)
            except (StopIteration, FutureCancelled, asyncio.CancelledError) as error:
                # asyncio can't hand the one on, and would take the others for its own.
                raise RuntimeError(f"{type(error).__name__} was raised") from error

        call.__qualname__ = name_of(function)
        return self.start(call)

    def start(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call `function` in a thread, and don't wait for it."""
        invariant(not self._is_closed, "a call is started after the end of its epoch")
        return self._calls.start(function, *args, **kwargs)

    async def call_sink(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of a sink's writer in a thread.

        Raises:
            SinkHungError: It has not returned within the checkpoint timeout.
        """
        try:
            async with asyncio.timeout(self._sink_timeout_s) as deadline:
                return await self.call(method, *args, **kwargs)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise SinkHungError(
                f"{method.__qualname__} of the sink has not returned within "
                f"checkpoint_timeout={self._sink_timeout_s:g} s"
            ) from error

    async def close(self) -> None:
        """Wait for the calls that are under way; none is started any more.

        Raises:
            WorkersError: One hangs in user code. Only the end of the process will end it.
        """
        self._is_closed = True
        calls = {asyncio.wrap_future(call): name for call, name in self._calls.under_way.items()}
        hung = (await asyncio.wait(calls, timeout=THREADS_END_TIMEOUT_S))[1] if calls else ()
        for call in calls:
            call.add_done_callback(_note_outcome)
        if hung:
            names = sorted({calls[call] for call in hung})
            shown = ", ".join(names[:CALLS_SHOWN_MAX]) + (", ..." if len(names) > CALLS_SHOWN_MAX else "")
            raise WorkersError(
                f"{len(hung)} calls of sinks, of the store or of map_async ({shown}) did not return within "
                f"{THREADS_END_TIMEOUT_S:g} s after the end of their epoch. A thread can't be ended and "
                f"must not act in the next epoch, so the process ends, and Spark starts another: set a "
                f"timeout in the called function"
            )


def _note_outcome(call: asyncio.Future[Any]) -> None:
    """Take the error of a call of a past epoch, so that it is not logged as never retrieved."""
    if not call.cancelled():
        call.exception()


class BackgroundHost(Protocol):
    """The pool of a worker, as background work sees it."""

    epoch: Epoch
    store: PartStore
    threads: Threads
    failpoints: Failpoints
    alignment_timeout_ms: float
    is_over: bool
    now_ns: Callable[[], int]

    def spawn(self, task: TaskId, work: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts) -> None:
        """Do `work(*args)` for a task until the epoch is over; if it raises, the task has failed."""


def _noted(data: bytes, names: FieldNames) -> Iterator[bytes]:
    """Yield what a sink holds, with its classes noted: in the thread that writes it, as it may be long."""
    names.note_any(data)
    yield data


class _Write:
    """One part, written in a thread by calling this; it may be given up at any moment.

    Args:
        log: The source of `chunks`, read in the thread; it is let go of when it will not be read any more.
    """

    def __init__(
        self,
        host: BackgroundHost,
        n: CheckpointId,
        task: TaskId,
        chunks: Iterable[bytes],
        log: tuple[Logged, ...] = (),
    ) -> None:
        self._host = host
        self._arguments = n, task, host.epoch, chunks
        self._log = log
        self._lock = threading.Lock()
        self._has_begun = False
        self._is_given_up = False
        self._written: Part | None = None

    def __call__(self) -> Part:
        with self._lock:
            if self._is_given_up:
                raise StoreError("a part was given up before it was written", damaged=False)
            self._has_begun = True
        try:
            self._host.failpoints("part.write")
            part = self._host.store.write_part(*self._arguments)
        finally:
            release_log(self._log)
        with self._lock:
            self._written = part
            is_given_up = self._is_given_up
        if is_given_up and part.path:
            self._host.store.delete_parts([part.path])
        return part

    def give_up(self) -> Part | None:
        """Have it deleted when it is written; return it if it has been, to be deleted by the caller."""
        with self._lock:
            is_log_mine = not self._has_begun and not self._is_given_up
            self._is_given_up = True
            written = self._written
        if is_log_mine:
            release_log(self._log)
        return written


class _Slice:
    """Background work on the event loop, between the records: a thread would hold the interpreter too."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._begun_ns = 0
        self._steps = 0

    async def pause(self) -> None:
        """A step is done: if it is enough for now, let the records go on."""
        self._steps += 1
        if self._steps >= SLICE_STEPS_MAX or self._now_ns() - self._begun_ns >= SLICE_NS:
            await asyncio.sleep(0)
            self._steps = 0
            self._begun_ns = self._now_ns()


class BackgroundWork:
    """The background work of one task.

    Args:
        post: Tells the task something, and empties its outlets.
    """

    def __init__(
        self,
        host: BackgroundHost,
        task: Task,
        state: KeyedState | None,
        writer: SinkWriter | None,
        post: Callable[[Callable[[Task], None]], None],
    ) -> None:
        self._host = host
        self._task_id = task.task_id
        self._held = task.held
        self._sink_uid = task.sink_uid
        self._state = state
        self._writer = writer
        self._post = post
        self._slice = _Slice(host.now_ns)
        self._writer_lock = asyncio.Lock()
        self._jobs: deque[PrepareTransaction | StoreFrozen | CompleteState] = deque()
        self._job_arrived = asyncio.Event()
        self._cancelled: set[CheckpointId] = set()
        self._writing: tuple[CheckpointId, asyncio.Task[Part]] | None = None
        self._pause_us: dict[CheckpointId, int] = {}
        self._began: dict[CheckpointId, SnapshotTimer] = {}

    def start(self, job: BackgroundJob, elapsed_us: int) -> None:
        """Start a job that the task asked for, in a call that stopped it for `elapsed_us`."""
        match job:
            case StoreFrozen() | PrepareTransaction() | CompleteState():
                self._jobs.append(job)
                self._job_arrived.set()
            case NotePause(checkpoint_id):
                begun = self._begun(checkpoint_id)
                if begun.freeze_ns is None:
                    begun.freeze_ns = self._host.now_ns()
                self._pause_us[checkpoint_id] = max(elapsed_us, self._pause_us.get(checkpoint_id, 0))
            case WaitForAlignment(checkpoint_id):
                self._host.spawn(self._task_id, self._wait_for_alignment, checkpoint_id)
            case CancelStore(checkpoint_id):
                self._cancelled.add(checkpoint_id)
                self._pause_us.pop(checkpoint_id, None)
                self._began.pop(checkpoint_id, None)
                if self._writing is not None and self._writing[0] == checkpoint_id:
                    self._writing[1].cancel()
            case CommitTransactions():
                self._host.spawn(self._task_id, self._commit, job)
            case StartCall():
                self._host.spawn(self._task_id, self._call, job)
            case _:
                assert_never(job)

    def note_barrier(self, n: CheckpointId) -> None:
        """The first barrier n has come on an input."""
        self._begun(n).barrier_ns = self._host.now_ns()

    async def run(self) -> None:
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
                            await self._slice.pause()

    def _begun(self, n: CheckpointId) -> SnapshotTimer:
        return self._began.setdefault(n, SnapshotTimer())

    async def _call(self, call: StartCall) -> None:
        outcome = await outcome_of(call, self._host.threads)
        error = outcome.error
        if error is None:
            self._post(lambda task: task.calls.returned(call.call_id, outcome.result))
        else:
            self._post(lambda task: task.calls.raised(call.call_id, error))

    async def _wait_for_alignment(self, checkpoint_id: CheckpointId) -> None:
        await asyncio.sleep(self._host.alignment_timeout_ms / 1_000)
        self._post(lambda task: task.snapshots.alignment_timed_out(checkpoint_id))

    async def _prepare(self, job: PrepareTransaction) -> None:
        if self._writer is None:
            return
        started_ns = self._host.now_ns()
        try:
            async with self._writer_lock:
                handle = await self._host.threads.call_sink(self._writer.prepare, job.transaction)
        except Exception as error:  # noqa: BLE001 - a sink may raise anything
            raise_named("sink", self._sink_uid, error)
        self._begun(job.checkpoint_id).prepare_ns = self._host.now_ns() - started_ns
        self._post(lambda task: task.transactions.prepared(job.checkpoint_id, handle))

    async def _store(self, frozen: FrozenTask) -> None:
        n = frozen.checkpoint_id
        self._host.failpoints("snapshot.frozen")
        reason = ""
        part = log = None
        whole: tuple[Part, ...] | None = None
        held: dict[CheckpointId, Part] = {}
        # Of this snapshot alone: a class whose records have all gone on may change as it likes.
        records = FieldNames()
        is_reported = is_log_taken = is_permanent = False
        try:
            try:
                if isinstance(self._state, RocksState):
                    whole = await self._store_files(self._state, n)
                elif self._state is not None and n not in self._cancelled:
                    part = await self._store_state(self._state, frozen)
                if frozen.log and n not in self._cancelled:
                    is_log_taken = True
                    log = await self._write_part(n, encoded_log(frozen.log, records.note), frozen.log)
                for cut_off_at, data in self._held.up_to(n):
                    chunks = _noted(data, records)
                    written = await self._write_part(n, chunks) if n not in self._cancelled else None
                    if written is not None:
                        held[cut_off_at] = written
            except (StoreError, StateError) as error:
                reason = str(error)
                is_permanent = isinstance(error, StateError)
            is_reported = not reason and n not in self._cancelled
        finally:
            if not is_reported:
                # No acknowledgement will name them, so nothing else would delete them in this epoch.
                self._delete(
                    part, log, *held.values(), *(one for one in whole or () if one.checkpoint_id == n)
                )
                if self._state is not None:
                    self._state.abandon(n)
            if not is_log_taken:
                release_log(frozen.log)
        self._cancelled = {one for one in self._cancelled if one > n}
        pause_us = self._pause_us.pop(n, 0)
        times = self._begun(n).times(self._host.now_ns())
        self._began = {one: begun for one, begun in self._began.items() if one > n}
        if reason:
            self._post(lambda task: task.snapshots.failed(n, reason, is_permanent=is_permanent))
        else:
            self._host.failpoints("snapshot.stored")
            fields = records.as_json()
            self._post(lambda task: task.snapshots.stored(n, part, pause_us, log, held, whole, times, fields))

    def _delete(self, *parts: Part | None) -> None:
        """Delete parts of no use, best effort: the next epoch sweeps the rest."""
        if paths := [part.path for part in parts if part is not None and part.path]:
            self._host.threads.start(self._host.store.delete_parts, paths)

    async def _store_state(self, state: KeyedState, frozen: FrozenTask) -> Part | None:
        n = frozen.checkpoint_id
        chunks: list[bytes] = []
        for chunk in state.encoded(n, frozen.since):
            chunks.append(chunk)
            await self._slice.pause()
            if n in self._cancelled:
                return None
        self._host.failpoints("snapshot.encoded")
        return await self._write_part(n, chunks)

    async def _store_files(self, state: RocksState, n: CheckpointId) -> tuple[Part, ...] | None:
        """Store the files that the database has now and had not at the last checkpoint.

        They are linked even if n is given up meanwhile: what comes after it waits for that.
        """
        for _ in state.writing(n):
            await self._slice.pause()
        files = await self._host.threads.call(state.link, n)
        self._host.failpoints("snapshot.encoded")
        stored: dict[str, Part] = {}
        try:
            for path in files:
                part = await self._write_part(n, FileContent(path)) if n not in self._cancelled else None
                if part is None:
                    break
                stored[path] = part
            else:
                head = await self._write_part(n, [await self._host.threads.call(state.head, n)])
                if head is not None:
                    return state.stored(n, head, stored)
        except BaseException:
            self._delete(*stored.values())
            raise
        self._delete(*stored.values())
        return None

    async def _write_part(
        self, n: CheckpointId, chunks: Iterable[bytes], log: tuple[Logged, ...] = ()
    ) -> Part | None:
        """Write a part of n; return None if n is given up before it is durable.

        A call that hangs in the store keeps its thread, and no later snapshot waits for it. If it
        returns in the end, it deletes its part.
        """
        host = self._host
        write = _Write(host, n, self._task_id, chunks, log)
        call = asyncio.ensure_future(host.threads.call(write))
        self._writing = n, call
        is_handed_over = False
        try:
            await asyncio.wait((call,))
            is_handed_over = not call.cancelled()
        finally:
            self._writing = None
            call.cancel()
            if not is_handed_over:
                self._delete(write.give_up())
        return None if call.cancelled() else call.result()

    async def _commit(self, commit: CommitTransactions) -> None:
        if self._writer is None:
            return
        if commit.delay_ms:
            await asyncio.sleep(commit.delay_ms / 1_000)
        self._host.failpoints("commit.before")
        try:
            async with self._writer_lock:
                await self._host.threads.call_sink(self._writer.commit, commit.permit, list(commit.handles))
        except (SinkHungError, HistoryError) as error:
            # Not tried again: the first attempt is still at it; or no attempt can succeed.
            raise_named("sink", self._sink_uid, error)
        except Exception as error:  # noqa: BLE001 - a sink may raise anything; the committer decides
            reason = f"{type(error).__name__}: {error}"
            cause = failure_cause(name_connector("sink", self._sink_uid, error))
            self._post(
                lambda task: task.transactions.commit_failed(
                    reason, is_permanent=is_hopeless(cause), is_transient=cause.is_transient
                )
            )
        else:
            self._host.failpoints("commit.after")
            n = commit.permit.checkpoint_id
            self._held.forget(n)
            # Groups of a log have no snapshot that would end their timers.
            self._began = {one: begun for one, begun in self._began.items() if one > n}
            self._post(lambda task: task.transactions.commit_succeeded())
