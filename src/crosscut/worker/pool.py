"""Runs the tasks of one worker in one epoch: the scheduler, and items on their way between tasks.

One thread, one event loop. A round runs each task that can run once, in topological order, so a
record goes through all local tasks of its way in one round; one that is behind with what other workers send
runs a few times. Then the loop serves the sockets. A task leaves
its wishes in its task effects; this module decides only when it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

from crosscut.contracts.connectors import JSON, SinkWriter
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId
from crosscut.host.alarms import LoopAlarm, NewAlarm
from crosscut.host.calls import StartThread, start_thread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.host.interpreter_lock import Sharing, hold_on
from crosscut.host.watch import Slices, Unwatched
from crosscut.net.causes import failure_cause
from crosscut.net.channels import OutgoingChannel
from crosscut.operators.probing import Copies, Probing, ProbingTime
from crosscut.protocol.job.deaths import checkpoints_to_probe
from crosscut.protocol.messages import (
    AlignSources,
    GlobalCommit,
    RecordsFlowing,
    SourceReached,
    SourcesReached,
    TaskFailed,
    TaskStatistics,
    WorkerMessage,
)
from crosscut.state.keyed import KeyedState
from crosscut.task.flow_control import Credit
from crosscut.task.items import Item
from crosscut.task.task import Task
from crosscut.worker.background import PartStore, Threads
from crosscut.worker.batch_sizer import SLICE_NS, AdaptiveBatchSizer, BatchSizer
from crosscut.worker.runner import TaskRunner

_LOG = logging.getLogger("crosscut")

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

TURNS_IF_BEHIND = 4
"""Slices a round of a task that is behind. With one, a source here that is as fast as those elsewhere would
keep it behind as far as credit goes: what waits is then in no cache, and in front of each barrier."""

_BEHIND_NS = TURNS_IF_BEHIND * SLICE_NS
"""After so long it gets no other one all the same: a call of user code may take most of the heartbeat
timeout, and after several in a row the worker would be taken for dead."""

REACHED_EVERY_S = 0.2
"""Sources that wait for slower ones hear of them as often, at most."""

_SYSTEM_CLOCK = SystemClock()
_UNWATCHED = Unwatched()


class TaskPool:
    """The tasks of one worker in one epoch.

    Args:
        report: Sends a message to the coordinator.
        give_credit: Lets the sender of an input channel send so much more.
        start_thread: Starts the threads in which the store and sinks are called.
        marker_interval_ms: That follow the records of a source, to tell how long they take; 0: none.
        sizer_of: How much a task takes at a time; one that was there before goes on as it did.
        slices: Is told of each slice of work.
        weighs_state: Whether to estimate how much memory states take.
        new_alarm: Makes the alarm that wakes the pool when a task is due.
        let_threads_run: Pauses for a moment, without the interpreter lock.
        copies: Makes copies of this process, in which batches are tried first; None: it can't.
        deaths: For which that is done, 0 if it is not; see `crosscut.protocol.job.deaths`.
    """

    def __init__(
        self,
        *,
        epoch: Epoch,
        store: PartStore,
        batch_rows: int,
        linger_ms: float,
        alignment_timeout_ms: float,
        sink_timeout_ms: int,
        failpoints: Failpoints,
        report: Callable[[WorkerMessage], None],
        give_credit: Callable[[ChannelId, Credit], None],
        clock: Clock = _SYSTEM_CLOCK,
        start_thread: StartThread = start_thread,
        marker_interval_ms: float = 0,
        sizer_of: Callable[[TaskId], BatchSizer] | None = None,
        slices: Slices = _UNWATCHED,
        weighs_state: bool = True,
        new_alarm: NewAlarm = LoopAlarm,
        let_threads_run: Callable[[], None] = hold_on,
        copies: Copies | None = None,
        deaths: int = 0,
    ) -> None:
        self.epoch = epoch
        self.store = store
        self.batch_rows = batch_rows
        self.linger_ns = int(linger_ms * 1e6)
        self.alignment_timeout_ms = alignment_timeout_ms
        self.threads = Threads(epoch, sink_timeout_ms, start_thread)
        self.now_ns = clock.monotonic_ns
        # The date is read once: setting the machine's clock moves no timer.
        self._began_us = int(clock.now().timestamp() * 1_000_000) - clock.monotonic_ns() // 1_000
        self.marker_interval_ns = int(marker_interval_ms * 1e6)
        self.sizer_of = sizer_of or (lambda task: AdaptiveBatchSizer(batch_rows))
        self.slices = slices
        self.weighs_state = weighs_state
        self.failpoints = failpoints
        self.report = report
        self.is_over = False
        self.is_settling = False
        self.after_round: Callable[[bool], None] | None = None
        """Called after each round of the scheduler, with whether a task can run at once; None: not called."""
        self.emit: Callable[[TaskRunner, ChannelId, Item], None] | None = None
        """Takes what leaves this worker if a log has to hold it first; None: it leaves at once."""
        self._give_credit = give_credit
        self._loop = asyncio.get_running_loop()
        self._runners: list[TaskRunner] = []
        self._by_input: dict[ChannelId, TaskRunner] = {}
        self._by_output: dict[ChannelId, TaskRunner] = {}
        self._outgoing: Mapping[ChannelId, OutgoingChannel] = {}
        self._background: dict[asyncio.Task[None], None] = {}
        self._is_scheduled = False
        self._alarm = new_alarm(self._wake)
        self.wakes_at_ns: int | None = None
        """When a round is to come by itself, None if never."""
        self._sharing = Sharing(let_threads_run)
        self._is_running = False
        self._running_since_ns = 0
        self._has_flowed = False
        self._reached: dict[TaskId, SourceReached] = {}
        self._reached_count = 0
        self._reaching: asyncio.TimerHandle | None = None
        self._reach_every_s = REACHED_EVERY_S / 100
        self._deaths = deaths
        self._checkpoints_to_probe = checkpoints_to_probe(deaths) if copies is not None else 0
        self._probing_time = ProbingTime(copies, deaths) if copies is not None else None

    def clock_ms(self, now_ns: int) -> int:
        """Return the milliseconds since 1970 at a reading of the clock; they never go back."""
        return self.clock_us(now_ns) // 1_000

    def clock_us(self, now_ns: int) -> int:
        """Return the microseconds since 1970, as above."""
        return self._began_us + now_ns // 1_000

    @property
    def tasks(self) -> list[Task]:
        """The tasks, in topological order."""
        return [runner.task for runner in self._runners]

    def statistics(self) -> tuple[TaskStatistics, ...]:
        """Return the counters of the tasks, as above."""
        now_ns = self.now_ns()
        running_ns = now_ns - self._running_since_ns if self._is_running else 0
        return tuple(runner.statistics(now_ns, running_ns) for runner in self._runners)

    @property
    def runners(self) -> tuple[TaskRunner, ...]:
        """What runs them, as above."""
        return tuple(self._runners)

    def sender_of(self, channel: ChannelId) -> TaskRunner:
        """Return the runner of the task that sends on `channel`."""
        return self._by_output[channel]

    @property
    def is_asleep(self) -> bool:
        """Whether the tasks have been started, and no round is to come unless something is heard."""
        return self._is_running and not self._is_scheduled and not self.is_over

    @property
    def outgoing(self) -> Mapping[ChannelId, OutgoingChannel]:
        """The outputs that leave this worker."""
        return self._outgoing

    def task_behind(self, channel: ChannelId) -> Task | None:
        """Return the task that `channel` leads to, if it is one of these."""
        runner = self._by_input.get(channel)
        return runner.task if runner is not None else None

    def add(self, task: Task, state: KeyedState | None, writer: SinkWriter | None) -> None:
        """Add a task; in topological order."""
        if self._probing_time is not None and self._checkpoints_to_probe:
            task.probe(Probing(self._probing_time, self._deaths))
        runner = TaskRunner(self, task, state, writer)
        self._runners.append(runner)
        task.wake_by(partial(self._wake_up, runner))
        self._by_input |= dict.fromkeys(task.input_gate.ends, runner)
        self._by_output |= dict.fromkeys(task.output_buffers.ends, runner)

    def connect(self, outgoing: Mapping[ChannelId, OutgoingChannel]) -> None:
        """Say which outputs leave this worker; start the background work."""
        self._outgoing = outgoing
        for runner in self._runners:
            self.spawn(runner.task.task_id, runner.background.run)

    def start(self) -> None:
        """Let the sources read."""
        self._is_running = True
        self._running_since_ns = self.now_ns()
        tasks = self.tasks
        waiting = (one.task_effects.outbox or (one.has_work and not one.is_source) for one in tasks)
        if self.failpoints.is_armed and any(waiting):
            self.failpoints("restore.replaying")
        for runner in self._runners:
            runner.set_alarm(self.now_ns())
            # A restored task may have items to send again.
            runner.reach(runner.drain)
        if any(task.reached is not None for task in tasks):
            self._send_reached()
        self.schedule()

    def _send_reached(self) -> None:
        """Say how far sources have come that others may wait for, as far as that is news."""
        news = []
        for task in self.tasks:
            reached = task.reached
            task.note_reached_sent()
            if reached is not None and reached != self._reached.get(task.task_id):
                self._reached[task.task_id] = reached
                news.append(reached)
        if news:
            self._reached_count += 1
            self.report(SourcesReached(self.epoch, self._reached_count, tuple(news)))
        # Soon at the beginning: until tasks have heard of each other, none waits for another.
        self._reach_every_s = min(REACHED_EVERY_S, 2 * self._reach_every_s)
        self._reaching = self._loop.call_later(self._reach_every_s, self._send_reached)

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function`, which may block, in a thread."""
        return await self.threads.call(function, *args, **kwargs)

    async def pause(self) -> None:
        """Let the event loop serve others."""
        await asyncio.sleep(0)

    def spawn(self, task: TaskId, work: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts) -> None:
        """Do `work(*args)` for a task until the epoch is over; if it raises, the task has failed."""
        background = self._loop.create_task(self._guarded(task, work, *args))
        self._background[background] = None
        background.add_done_callback(self._background.pop)

    async def _guarded(
        self, task: TaskId, work: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts
    ) -> None:
        try:
            # Made here: a coroutine that is made and never begun, because its epoch or process has ended, is
            # one that somebody would have to close.
            await work(*args)
        except BaseException as error:
            if self.is_over and isinstance(error, asyncio.CancelledError):
                raise
            self.failed(task, error)

    async def close(self) -> None:
        """End everything of this epoch.

        Raises:
            WorkersError: A thread hangs in user code. Only the end of the process will end it.
        """
        self.is_over = True
        self.failpoints("close")
        self._alarm.close()
        if self._reaching is not None:
            self._reaching.cancel()
        self._cancel_background()
        await asyncio.gather(*self._background, return_exceptions=True)
        # A writer is used by one thread at a time, and closed after the last call.
        await self.threads.close()
        for runner in self._runners:
            try:
                runner.close()
            except Exception:  # noqa: BLE001 - an error of one must not keep the others open
                _LOG.warning("closing task %s failed", runner.task.task_id, exc_info=True)

    def failed(self, task: TaskId, error: BaseException) -> None:
        """A task of this epoch has failed: nothing runs any more, the coordinator decides."""
        if not self.is_over:
            cause = failure_cause(error)
            self.is_over = True
            self.report(TaskFailed(self.epoch, task, cause))
            self._cancel_background()

    def _cancel_background(self) -> None:
        own = asyncio.current_task()
        for background in self._background:
            if background is not own:
                background.cancel()

    # Items on their way.

    def send(self, sender: TaskRunner, channel: ChannelId, item: Item) -> None:
        """Send an item: by reference inside the worker, else over the channel's connection."""
        target = self._by_input.get(channel)
        if target is not None:
            self._offer(target, channel, item)
            return
        if self.emit is not None:
            self.emit(sender, channel, item)
            return
        # It is kept while the channel takes no more: a barrier may overtake it.
        sender.task.output_buffers.ends[channel].waiting.append(item)
        self.send_on(sender, channel)

    def send_on(self, sender: TaskRunner, channel: ChannelId) -> None:
        """Send the waiting items that may leave."""
        connection = self._outgoing.get(channel)
        if connection is None:
            return
        output_buffers = sender.task.output_buffers
        end = output_buffers.ends[channel]
        for item in end.leaving():
            end.sent(connection.send_item(item), len(item) if isinstance(item, Batch) else 0)
        if output_buffers.look(channel):
            self.schedule()

    def received(self, channel: ChannelId, item: Item, size_bytes: int) -> None:
        """An item of `size_bytes` came in from another worker."""
        runner = self._by_input[channel]
        if isinstance(item, Batch):
            runner.task.input_gate.ends[channel].arrived(len(item), size_bytes)
        self._offer(runner, channel, item)

    def _offer(self, runner: TaskRunner, channel: ChannelId, item: Item) -> None:
        # It has the worker scheduled itself.
        runner.reach(self._offer_now, runner, channel, item)

    def _offer_now(self, runner: TaskRunner, channel: ChannelId, item: Item) -> None:
        runner.offer(channel, item)
        if (
            self.failpoints.is_armed
            and isinstance(item, Batch)
            and runner.task.snapshots.are_logging(channel)
        ):
            self.failpoints("snapshot.logging")
        if not self.is_over:
            self.relieve(runner, channel)

    def credited(self, channel: ChannelId, credit: Credit) -> None:
        """The receiver of an output, in another worker, gives credit back.

        Raises:
            WireError: It is more than is under way.
        """
        sender = self._by_output[channel]
        output_buffers = sender.task.output_buffers
        end = output_buffers.ends[channel]
        rows_max = end.rows_max
        end.credited(credit)
        if end.rows_max != rows_max:
            output_buffers.measure()
        if end.is_clogged and not end.is_used_up:
            sender.reach(sender.drain)

    def relieve(self, runner: TaskRunner, channel: ChannelId) -> None:
        """Let the sender of an input go on, or make it wait, as its receiving end says."""
        end = runner.task.input_gate.ends[channel]
        sender = self._by_output.get(channel)
        if sender is not None:
            output_buffers = sender.task.output_buffers
            sending = output_buffers.ends[channel]
            if sending.rows_max != end.rows_max:
                sending.rows_max = end.rows_max
                output_buffers.measure()
            sending.is_paused = end.pauses_sender()
            output_buffers.look(channel)
        elif (credit := end.credit()) is not None:
            self._give_credit(channel, credit)

    def records_flowed(self) -> None:
        """Tell the coordinator once that records go through this worker again."""
        if not self._has_flowed:
            self._has_flowed = True
            self.report(RecordsFlowing(self.epoch))

    # The coordinator's words.

    def close_loops(self, heads: Collection[VertexId]) -> None:
        """The loops that have these heads are exhausted."""
        self._post_all(lambda task: task.close_loops(heads))

    def pause_sources(self, *, is_paused: bool) -> None:
        """Sources are to read nothing, or to read again."""
        for runner in self._runners:
            if runner.task.is_source:
                runner.post(lambda task: task.pause(is_paused=is_paused))
        self.schedule()

    def align(self, news: AlignSources) -> None:
        """Groups of sources have come so far."""
        for runner in self._runners:
            if runner.task.align(news):
                runner.due_ns = 0
        self.schedule()

    def assign(self, task: TaskId, splits: JSON, since: CheckpointId, *, is_last: bool) -> None:
        """A source of this worker is given splits that have been found."""
        for runner in self._runners:
            if runner.task.task_id == task:
                runner.post(lambda one: one.assign(splits, since, is_last=is_last))
                runner.due_ns = 0
        self.schedule()

    def batch_ends(self, task: TaskId, empty: Collection[str]) -> None:
        """All records of a batch have been processed; these splits of the task have nothing to read."""
        for runner in self._runners:
            if runner.task.task_id == task:
                # It has to know how late it is.
                runner.set_alarm(self.now_ns())
                runner.post(lambda one: one.batch_ends(empty))
        self.schedule()

    def trigger(self, checkpoint_id: CheckpointId) -> None:
        """Start a checkpoint at the sources of this worker."""
        for runner in self._runners:
            if runner.task.is_source:
                runner.post(lambda task: task.snapshots.trigger(checkpoint_id))
        self.schedule()

    def abort(self, checkpoint_id: CheckpointId) -> None:
        """Give a checkpoint up."""
        self._post_all(lambda task: task.snapshots.abort(checkpoint_id))

    def capture(self, checkpoint_id: CheckpointId) -> None:
        """Every task of the job stands still."""
        self._post_all(lambda task: task.snapshots.capture(checkpoint_id))

    def resume(self, checkpoint_id: CheckpointId) -> None:
        """Go on after a checkpoint that every task stood still for."""
        self._post_all(lambda task: task.snapshots.resume(checkpoint_id))

    def completed(self, checkpoint_id: CheckpointId, together: Iterable[GlobalCommit] = ()) -> None:
        """A checkpoint is complete."""
        self.note_durable()
        instead = {one.vertex: one.pending for one in together}
        self._post_all(
            lambda task: task.checkpoint_completed(checkpoint_id, instead.get(task.task_id.vertex))
        )

    def note_durable(self) -> None:
        """What was processed before is not processed again: after some of that no more batches are tried."""
        if self._checkpoints_to_probe:
            self._checkpoints_to_probe -= 1
            if not self._checkpoints_to_probe:
                for task in self.tasks:
                    task.probe(None)

    def _post_all(self, call: Callable[[Task], None]) -> None:
        for runner in self._runners:
            runner.post(call)
        self.schedule()

    # Groups of a unit.

    @property
    def is_settled(self) -> bool:
        """Whether every task is between two batches."""
        return not any(runner.task.chain.is_halfway for runner in self._runners)

    def settle(self) -> None:
        """Run only tasks that are within a batch, until `go_on`: no task takes input, and no timer fires."""
        if not self.is_settling:
            self.is_settling = True
            self.schedule()

    def go_on(self) -> None:
        """Run all tasks again."""
        if self.is_settling:
            self.is_settling = False
            self.schedule()

    # The scheduler.

    def _wake_up(self, runner: TaskRunner) -> None:
        """Let a source read that has been told to wait. Called by any thread."""
        # The loop may have ended before the thread.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken, runner)

    def _woken(self, runner: TaskRunner) -> None:
        runner.due_ns = 0
        self.schedule()

    def schedule(self) -> None:
        """Let the tasks that can run do so, soon. A round that is under way looks for them at its end."""
        if not self._is_scheduled and self._is_running and not self.is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        try:
            if not self.is_over:
                self._run_tasks()
        except Exception as error:  # noqa: BLE001 - a mistake of ours: else nothing ran any more, and nobody knew why
            self.failed(self._runners[0].task.task_id, error)

    def _run_tasks(self) -> None:
        now_ns = self.now_ns()
        for runner in self._runners:
            began_ns = now_ns
            for _ in range(TURNS_IF_BEHIND):
                if not runner.look(now_ns):
                    break
                runner.run(now_ns)
                now_ns = self.now_ns()
                if not runner.is_behind or now_ns - began_ns >= _BEHIND_NS:
                    break
            self._sharing.held(began_ns, now_ns)
        self._is_scheduled = False
        if self.is_over:
            return
        # A round of its own that finds nothing would cost a paced source as much again as its records do.
        can_run = False
        for runner in self._runners:
            if runner.look(now_ns):
                can_run = True
                break
        if self.after_round is not None:
            self.after_round(can_run)
            if self.is_over:
                return
        if can_run:
            self._sharing.round_ended(now_ns, are_at_work=self.threads.are_at_work)
            self.schedule()
        else:
            self._sharing.slept(now_ns)
            self._sleep()

    def _sleep(self) -> None:
        """Nothing can run now: wake up when a waiting source is due. Sockets wake us as well."""
        if self.is_settling:
            # Their time may long have come.
            return
        due_ns: int | None = None
        for one in self._runners:
            # A clogged task is woken by its channel: its time may long have come.
            if (not one.due_ns and not one.alarm_ns) or one.task.output_buffers.clogged:
                continue
            if one.alarm_ns and (due_ns is None or one.alarm_ns < due_ns):
                due_ns = one.alarm_ns
            if one.due_ns and (due_ns is None or one.due_ns < due_ns) and one.task.has_work:
                due_ns = one.due_ns
        if due_ns is not None and self.wakes_at_ns != due_ns:
            self.wakes_at_ns = due_ns
            self._alarm.set(max(0, due_ns - self.now_ns()))

    def _wake(self) -> None:
        self.wakes_at_ns = None
        if self.is_asleep:
            # At once: by way of the loop's queue it would poll its sockets once more before.
            self._is_scheduled = True
            self._round()
