"""Performs the coordinator's effects on the driver: sockets, timers, the store.

It decides nothing, not even how long a call may take. Everything happens on one event loop; the store
is called in threads and its answers come back as events, however late. How workers come to be is
somebody else's business (`WorkerSupply`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, assert_never

from crosscut.contracts.connectors import CommittedOutput
from crosscut.driver.asking import Asking, Find, nothing_to_find
from crosscut.driver.invariants import InvariantChecker
from crosscut.driver.requests import Requests
from crosscut.errors import CrosscutError
from crosscut.events import Ended
from crosscut.events import JobEvent as WatchedEvent
from crosscut.foundation.ids import AttemptId, Epoch, VertexId, WorkerIndex
from crosscut.graph.specs import JobGraph
from crosscut.host.calls import Calls, StartThread, call_on, start_thread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.monitoring.job_log_lines import LOGGER, Journal, Line
from crosscut.monitoring.metrics import JobMetrics, build_metrics
from crosscut.monitoring.observer import Watching
from crosscut.monitoring.status import (
    CheckpointStatus,
    JobStatus,
    Observations,
    build_status,
    checkpoint_status,
)
from crosscut.monitoring.worker_logs import WorkerLines
from crosscut.net.causes import failure_cause
from crosscut.net.connections import Credentials
from crosscut.net.control import CoordinatorLink
from crosscut.net.listener import Listener
from crosscut.protocol.effects import (
    AnswerRequest,
    AppendEntry,
    CancelTimer,
    CloseLink,
    DeleteParts,
    DiscoverSplits,
    EndJob,
    FindSplits,
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
    CheckpointRequested,
    ClockRead,
    EntryAppended,
    EntryRead,
    JobEvent,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    SavepointWritten,
    Timer,
    TimerFired,
)
from crosscut.protocol.job.coordinator import Coordinator, CoordinatorSpec
from crosscut.protocol.job.fencing import speaks_for_itself
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    CommitCheckpoint,
    CoordinatorMessage,
    DeployTasks,
    HaltTasks,
    RecordsFlowing,
    ShutDown,
    SnapshotAcknowledged,
    SplitAssignment,
    WorkerHeartbeat,
    WorkerMessage,
)
from crosscut.store.checkpoint_store import CheckpointStore

P = ParamSpec("P")
T = TypeVar("T")

BROKEN = "the coordinator has failed"
SAVEPOINT_LOOK_S = 0.05
WALL_CLOCK_EVERY_MS = 100


_SYSTEM_CLOCK = SystemClock()


class Link(Protocol):
    """The coordinator's end of a link to a worker.

    Attributes:
        number: It is called by, once it is open.
    """

    number: int

    def send_message(self, message: CoordinatorMessage) -> None:
        """Send a message, after those said before."""

    def close_gently(self, reason: str) -> None:
        """End the link, after all that was said."""


class WorkerSupply(Protocol):
    """Where workers come from. Called on the driver's loop; must not block."""

    def submit(self) -> None:
        """Start the workers; if all of them end, `CoordinatorDriver.post(WorkersEnded(...))`."""

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """End one attempt, best effort, so that another one starts."""


class CoordinatorDriver:
    """The coordinator of one job with its surroundings.

    Args:
        discover: Asks the sources for their splits, and has them stage what they have to, for the epoch that
            is claimed next; called in a thread, again only if another driver was faster.
        look: Asks the sinks for their committed output; as above.
        find: Asks a dynamic source for splits that have come since it said what is given; as above.
        invariants: Is offered every completed checkpoint; its verdicts come back through `post`.
        start_thread: What calls of the store run in.
        notify: Takes the events for listeners; must not block.
        lines: Takes what workers log.
        progress_of: The graph of a job whose progress is told at each checkpoint; None: the supply tells it,
            or nobody.
        seen: What was seen of the job before, by another driver in this process.
        completed: Takes each checkpoint that is complete, with all that it has; must not block.
    """

    def __init__(
        self,
        *,
        name: str,
        terms: CoordinatorSpec,
        store: CheckpointStore,
        credentials: Credentials,
        supply: WorkerSupply,
        discover: Callable[[Epoch], tuple[SplitAssignment, ...]],
        look: Callable[[], tuple[CommittedOutput, ...]],
        failpoints: Failpoints,
        invariants: InvariantChecker | None = None,
        clock: Clock = _SYSTEM_CLOCK,
        start_thread: StartThread = start_thread,
        find: Find = nothing_to_find,
        notify: Callable[[WatchedEvent], None] = lambda event: None,
        lines: WorkerLines | None = None,
        progress_of: JobGraph | None = None,
        seen: Observations | None = None,
        completed: Callable[[CheckpointCompleted], None] = lambda entry: None,
    ) -> None:
        self._on_completed = completed
        self._name = name
        self._terms = terms
        self._store = Asking(store, discover, look, failpoints, find)
        self._unit_keys = store.unit_keys
        self._credentials = credentials
        self._supply = supply
        self._failpoints = failpoints
        self._invariants = invariants
        self._clock = clock
        self._calls = Calls("crosscut-store", start_thread)
        self._offered: CheckpointCompleted | None = None
        self._coordinator = Coordinator(terms)
        self._journal = Journal(terms)
        self._loop = asyncio.get_running_loop()
        self._listener = Listener(f"job {name!r}")
        self._links: dict[int, Link] = {}
        self._link_count = 0
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._seen = seen or Observations()
        identity = terms.identity
        self._watching = Watching(
            name, identity.parallelism, self._wall_ms, notify, identity.driver, progress_of
        )
        self._lines = lines or WorkerLines(name, are_seen=False)
        self._requests = Requests(name)
        self._is_handling = False
        self._is_broken = False
        self._time_sent_ms = -1
        self._wall_clock, self._wall_clock_until_ms = "", -1
        self._waiting: list[JobEvent] = []
        self.claimed: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[EndJob] = self._loop.create_future()
        self.error: CrosscutError | None = None
        """The exception itself, where it was raised in this process."""

    async def listen(self, host: str) -> int:
        """Listen for workers on `host`; return the port."""
        return await self._listener.listen(
            host, lambda: CoordinatorLink(self, self._listener, self._credentials)
        )

    def start(self) -> None:
        """Begin: read the log, claim the epoch, ask for workers."""
        self._perform(self._coordinator.start())

    def post(self, event: JobEvent) -> None:
        """Hand an event in, from any thread."""
        call_on(self._loop, self._handle, event)

    def status(self) -> JobStatus:
        """Return the present status of the job."""
        if self._invariants is not None:
            self._seen.invariants = self._invariants.status()
        self._seen.refused[None] = dict(self._listener.refusals)
        end = self.ended.result() if self.ended.done() else None
        return build_status(self._name, self._coordinator, self._seen, self._terms.sources, end)

    def looked_at(self, graph: JobGraph, settings: Mapping[str, str]) -> Callable[[], JobMetrics]:
        """Look at the job, which runs `graph`; return what makes numbers of that, off the loop."""
        status = self.status()
        phase = self.ended.result().outcome if self.ended.done() else status.phase
        completed = self._coordinator.completed
        return partial(
            build_metrics,
            graph,
            status,
            phase,
            self._watching.seen(),
            completed,
            settings,
            self._wall_ms(),
            tuple(self._lines.kept),
        )

    @property
    def asked(self) -> frozenset[tuple[VertexId, int]]:
        """The sources that are being asked for splits that have come, and by which call. On the loop."""
        return frozenset((one.source, one.call) for one in self._coordinator.searches if one.call)

    @property
    def awaits_splits(self) -> bool:
        """Whether a source says that others are on their way. On the loop."""
        return any(one.is_coming for one in self._coordinator.searches)

    def progressed(self, epoch: Epoch, progress: dict[str, Any]) -> None:
        """Note what a batch came to. On the loop."""
        self._watching.progressed(epoch, progress)

    def progress(self) -> list[dict[str, Any]]:
        """Return the newest that is known of the job's progress, oldest first. On the loop."""
        return list(self._watching.progress)

    def end_event(self, end: EndJob) -> Ended:
        """Return the last event of the job, if it ends like this now. On the loop."""
        return self._watching.end_event(self._coordinator, end)

    def _wall_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1_000)

    async def checkpoint(self) -> CheckpointStatus:
        """Have a checkpoint taken now; return it, or a newer one, once it is complete.

        Raises:
            CheckpointError: It has failed.
        """
        with self._requests.opened() as (request, answer):
            self._handle(CheckpointRequested(request))
            return checkpoint_status(await answer)

    async def savepoint(self, write: Callable[[CheckpointCompleted], T]) -> T:
        """Have a checkpoint taken now, and written as a savepoint once its output is committed.

        Args:
            write: Writes it; called in a thread. Until it returns the parts stay.

        Raises:
            CheckpointError: There is no such checkpoint.
        """
        with self._requests.opened() as (request, answer):
            try:
                self._handle(CheckpointRequested(request, is_savepoint=True))
                checkpoint = await answer
                return await asyncio.wrap_future(self._calls.start(lambda: write(checkpoint)))
            finally:
                self._handle(SavepointWritten(request))

    async def savepoints_written(self, timeout_s: float) -> None:
        """Wait until no savepoint is being written, but no longer than this."""
        ends_s = self._loop.time() + timeout_s
        while self._requests.are_open and self._loop.time() < ends_s:
            await asyncio.sleep(SAVEPOINT_LOOK_S)

    def carried_on(self) -> Observations:
        """Return what was seen of the job, for another driver that goes on with it."""
        return self._seen.carried_on(self.status().restarts)

    async def close(self) -> None:
        """Close all sockets, stop all timers."""
        for handle in self._timers.values():
            handle.cancel()
        self._listener.close()
        for link in list(self._links.values()):
            link.close_gently("the job is over")
        await asyncio.sleep(0)

    # Events in.

    def _handle(self, event: JobEvent) -> None:
        # An effect may cause an event at once; it waits its turn.
        if self._is_broken:
            return
        self._waiting.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._waiting:
                self._send_time()
                next_event = self._waiting.pop(0)
                completed = self._coordinator.completed
                effects = self._coordinator.handle(next_event)
                self._observe(next_event, effects, completed)
                if lines := self._journal.note(self._coordinator, effects):
                    self._log_lines(lines)
                self._perform(effects)
        except Exception as error:
            # The protocol core found something impossible: the job must end, loudly, and do no more.
            self._break(error)
            raise
        finally:
            self._is_handling = False

    def _send_time(self) -> None:
        now_ms = self._clock.monotonic_ns() // 1_000_000
        if now_ms != self._time_sent_ms:
            self._time_sent_ms = now_ms
            if now_ms >= self._wall_clock_until_ms:
                # For people, who are told the second: writing it down takes as long as handling an event.
                self._wall_clock_until_ms = now_ms + WALL_CLOCK_EVERY_MS
                self._wall_clock = self._clock.now().isoformat()
            self._coordinator.handle(ClockRead(now_ms, self._wall_clock))

    def _break(self, error: Exception) -> None:
        self._is_broken = True
        self._waiting.clear()
        for link in list(self._links.values()):
            link.send_message(ShutDown(BROKEN))
        self._requests.refuse_all(BROKEN)
        self._finish(EndJob("failed", failure_cause(error)))

    def _have_judged(self, completed: CheckpointCompleted) -> None:
        """Have the invariants evaluated on a cut, once."""
        if self._invariants is not None and completed is not self._offered:
            self._offered = completed
            self._invariants.offer(completed)

    def _observe(
        self, event: JobEvent, effects: list[JobEffect], completed_before: CheckpointCompleted | None
    ) -> None:
        seen, now_ns = self._seen, self._clock.monotonic_ns()
        completed = self._coordinator.completed
        is_new = completed is not None and completed is not completed_before
        if completed is not None and is_new and isinstance(event, EntryAppended | EntryRead):
            self._failpoints("driver.completed")
            one = seen.note_completed(completed)
            self._watching.completed(now_ns, self._coordinator, completed, one.state_bytes, one.new_bytes)
            self._have_judged(completed)
            self._on_completed(completed)
        elif self._coordinator.phase is Phase.FINISHING and completed is not None:
            # Restored, to be finished: no newer cut will be judged in its place.
            self._have_judged(completed)
        if (
            effects
            and not seen.failed_ns
            and any(isinstance(one, SendMessage) and isinstance(one.message, HaltTasks) for one in effects)
        ):
            seen.note_failure(now_ns, self._coordinator.failures[-1].message)
        self._watching.handled(now_ns, self._coordinator, effects)
        if not isinstance(event, MessageReceived):
            return
        message = event.message
        if isinstance(message, SnapshotAcknowledged):
            self._failpoints("driver.acknowledged")
        worker = self._coordinator.registry.index_of(event.link)
        if worker is None or not speaks_for_itself(worker, message, self._terms.tasks):
            return
        self._watching.note_message(now_ns, self._coordinator.epoch, message)
        if isinstance(message, WorkerHeartbeat):
            self._lines.note(worker, message.logged)
            for text in seen.note_message(worker, message, now_ns, self._coordinator, self._terms.sources):
                self._warn(text)
        elif isinstance(message, RecordsFlowing) and message.epoch == self._coordinator.epoch:
            seen.note_flow(now_ns, message.epoch)

    # Effects out.

    def _perform(self, effects: list[JobEffect]) -> None:
        for effect in effects:
            match effect:
                case SendMessage(number, message):
                    if isinstance(message, CommitCheckpoint):
                        self._failpoints("driver.commit")
                    if (link := self._links.get(number)) is not None:
                        link.send_message(self._with_keys(number, message))
                case CloseLink(number):
                    if (link := self._links.get(number)) is not None:
                        link.close_gently("closed by the coordinator")
                case StartTimer(timer, delay_ms):
                    self._cancel_timer(timer)
                    self._timers[timer] = self._loop.call_later(delay_ms / 1_000, self._fired, timer)
                case CancelTimer(timer):
                    self._cancel_timer(timer)
                case ReadLogTail(checkpoints):
                    self._in_thread(self._store.read_tail, checkpoints)
                case DiscoverSplits(epoch):
                    self._in_thread(self._store.discover, epoch)
                case FindSplits():
                    self._in_thread(self._store.find, effect)
                case AppendEntry():
                    self._in_thread(self._store.append, effect)
                case ReadEntry(index):
                    self._in_thread(self._store.read, index)
                case ListParts():
                    self._in_thread(self._store.list_parts)
                case DeleteParts():
                    self._in_thread(self._store.delete, effect)
                case SubmitWorkers():
                    self._claimed()
                    self._supply.submit()
                case ReplaceWorker(worker, attempt):
                    self._supply.replace(worker, attempt)
                case AnswerRequest(request, completed, reason):
                    self._requests.answer(request, completed, reason)
                case EndJob():
                    self._finish(effect)
                case _:
                    assert_never(effect)

    def _claimed(self) -> None:
        if not self.claimed.done():
            self.claimed.set_result(None)

    def _finish(self, end: EndJob) -> None:
        self._claimed()
        if not self.ended.done():
            self._log_lines(self._journal.ended(self._coordinator, end))
            self.ended.set_result(end)
            self._watching.ended(self._coordinator, end)

    def _log_lines(self, lines: Iterable[Line]) -> None:
        coordinator = self._coordinator
        n = coordinator.completed.checkpoint_id if coordinator.completed is not None else 0
        about = {"job": self._name, "epoch": int(coordinator.epoch), "checkpoint": int(n)}
        for line in lines:
            extra = {**about, "code": line.code}
            LOGGER.log(line.level, "job %r: %s", self._name, line.text, extra=extra)

    def _warn(self, text: str) -> None:
        self._log_lines([Line(logging.WARNING, text, "job.warning")])

    def _fired(self, timer: Timer) -> None:
        self._timers.pop(timer, None)
        self._handle(TimerFired(timer))

    def _cancel_timer(self, timer: Timer) -> None:
        handle = self._timers.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def _with_keys(self, link: int, message: CoordinatorMessage) -> CoordinatorMessage:
        """Return `message` with what its receiver needs to sign its log, if that is what it begins with."""
        if not isinstance(message, DeployTasks) or not self._coordinator.has_unit_logs:
            return message
        index = next(one for one, place in self._coordinator.registry.held.items() if place.link == link)
        return replace(message, unit_keys=self._unit_keys(message.lineage, index, message.epoch))

    # The store, in threads.

    def _in_thread(self, work: Callable[P, JobEvent | None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Ask what may block; the answer is an event. The coordinator bounds how many calls there are."""
        self._calls.start(work, *args, **kwargs).add_done_callback(self._called)

    def _called(self, call: Future[JobEvent | None]) -> None:
        error = call.exception()
        if error is not None:
            self._answer_later(self._call_failed, error)
        elif (answer := call.result()) is not None:
            self._answer_later(self._handle, answer)

    def _answer_later(self, take: Callable[[T], None], answer: T) -> None:
        try:
            self._loop.call_soon_threadsafe(take, answer)
        except RuntimeError:
            # The loop has ended, and so has the job.
            return

    def _call_failed(self, error: BaseException) -> None:
        if isinstance(error, CrosscutError):
            self.error = error
        self._handle(CancelRequested(failure_cause(error)))

    # Links.

    def link_opened(self, link: Link, worker: WorkerIndex, attempt: AttemptId) -> int:
        """A worker has proven who it is; return the number of its link."""
        self._link_count += 1
        self._links[self._link_count] = link
        self._handle(LinkOpened(self._link_count, worker, attempt))
        return self._link_count

    def link_message(self, link: Link, message: WorkerMessage) -> None:
        """A worker said something."""
        self._handle(MessageReceived(link.number, message))

    def link_lost(self, link: Link, reason: str) -> None:
        """A link is over."""
        self._links.pop(link.number, None)
        self._handle(LinkClosed(link.number, reason))
