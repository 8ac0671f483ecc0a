"""Runs one task: when it may run, for how long, and where what it leaves in its task effects goes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVarTuple

from crosscut.contracts.connectors import SinkWriter
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId
from crosscut.host.watch import Slices
from crosscut.protocol.messages import TaskStatistics, WorkerMessage
from crosscut.protocol.telemetry import LOOK_EVERY_NS, MetricReporter, ShownDeadLetter
from crosscut.state.keyed import KeyedState
from crosscut.state.state_memory import StateMemory
from crosscut.task.flow_control import LOCAL_ITEMS_MAX, ROWS_MAX, Window
from crosscut.task.items import Item
from crosscut.task.task import Task
from crosscut.worker.background import BackgroundHost, BackgroundWork
from crosscut.worker.batch_sizer import BatchSizer
from crosscut.worker.latencies import Latencies
from crosscut.worker.lines import SPEAKING, Speaking

Ts = TypeVarTuple("Ts")

WAIT_MS_MAX = 3_600_000.0
REST_NS = 300_000
"""Between two reads of a source that had nothing to read a moment ago, at least. What comes meanwhile is read
together: a round costs some 100 us whatever it reads, and one for each record the better part of a core."""

RESTS_MAX = 8
"""Rests in a row. Then a read comes at once and finds out whether there is nothing to read again."""


class RunnerHost(BackgroundHost, Protocol):
    """The pool of a worker, as the runner of a task sees it."""

    is_settling: bool
    linger_ns: int
    marker_interval_ns: int
    weighs_state: bool
    slices: Slices
    sizer_of: Callable[[TaskId], BatchSizer]
    report: Callable[[WorkerMessage], None]

    def clock_ms(self, now_ns: int) -> int:
        """Return the milliseconds since 1970 at a reading of the clock."""

    def clock_us(self, now_ns: int) -> int:
        """Return the microseconds."""

    def send(self, sender: TaskRunner, channel: ChannelId, item: Item) -> None:
        """Send an item, to a task of this worker or another one."""

    def send_on(self, sender: TaskRunner, channel: ChannelId) -> None:
        """Send the waiting items that may leave."""

    def relieve(self, runner: TaskRunner, channel: ChannelId) -> None:
        """Let the sender of an input go on, or make it wait, as its receiving end says."""

    def schedule(self) -> None:
        """See soon which tasks can run."""

    def records_flowed(self) -> None:
        """Note that records have gone through a task."""

    def failed(self, task: TaskId, error: BaseException) -> None:
        """End the epoch, because of a failure in a task."""


class TaskRunner:
    """One task, its batch sizer and its background work."""

    def __init__(
        self, pool: RunnerHost, task: Task, state: KeyedState | None, writer: SinkWriter | None
    ) -> None:
        self.task = task
        self.state = state
        self.due_ns = 0
        # More waits in the channel that was read last than a sender in this worker would be let have there.
        self.is_behind = False
        # 0: none is set.
        self.alarm_ns = 0
        # By how much its outputs get for each record that it takes, of the newest slices.
        self._taken = self._made = 0.0
        # Since when it could have taken more than it has; 0: it has all that there is.
        self._fed_since_ns = 0
        self._window = Window(
            sum(end.is_bounded for end in task.input_gate.ends.values()),
            is_bounded=any(end.is_bounded for end in task.input_gate.ends.values()),
        )
        self.background = BackgroundWork(pool, task, state, writer, self.post)
        self._pool = pool
        self._speaking = Speaking(pool.epoch, task.task_id, task.snapshots)
        self._batch_sizer = pool.sizer_of(task.task_id)
        self._batch_sizer.widen(task.rows_max)
        # Since the task last took records, if it is not through with them.
        self._rows = 0
        self._busy_ns = 0
        self._now_ns = pool.now_ns
        task.rows_max = self._batch_sizer.rows
        task.chain.follow(self._batch_sizer.time_budget)
        self._buffered_since_ns = 0
        self._rests = 0
        self._newest_barrier = task.snapshots.newest_arrived
        self._spent_ns = 0
        self._blocked_ns = 0
        self._blocked_since_ns: int | None = None
        self._metric_reporter = MetricReporter()
        self._dead_letters_ns = -LOOK_EVERY_NS
        self._latencies = Latencies()
        self._memory = StateMemory(state if pool.weighs_state else None)
        self._marker_due_ns = 0 if task.is_source and pool.marker_interval_ns else sys.maxsize

    def can_run(self, now_ns: int) -> bool:
        """Whether a call of `run` is worthwhile."""
        task = self.task
        if self._pool.is_settling:
            # Also if its outputs take no more: the rest of one batch is bounded, and they may wait for this.
            return task.chain.is_halfway
        if task.output_buffers.clogged and not task.snapshots.are_awaited:
            return False
        return 0 < self.alarm_ns <= now_ns or (self.due_ns <= now_ns and task.has_work)

    def look(self, now_ns: int) -> bool:
        """Return whether the task can run now; note since when an output keeps it from that."""
        if self.task.output_buffers.clogged:
            if self._blocked_since_ns is None:
                self._blocked_since_ns = now_ns
        elif self._blocked_since_ns is not None:
            self._note_freed(now_ns)
        return self.can_run(now_ns)

    def _note_freed(self, now_ns: int) -> None:
        if self._blocked_since_ns is not None:
            self._blocked_ns += now_ns - self._blocked_since_ns
            self._blocked_since_ns = None

    def statistics(self, now_ns: int, running_ns: int) -> TaskStatistics:
        """Return the task's counters, and what it did with its time since the epoch began to run."""
        task, reporter = self.task, self._metric_reporter
        is_due = reporter.is_due(now_ns, is_over=task.is_over)
        since_ns = self._blocked_since_ns
        blocked_ns = self._blocked_ns + (now_ns - since_ns if since_ns is not None else 0)
        return replace(
            task.statistics(),
            running_us=running_ns // 1_000,
            busy_us=self._spent_ns // 1_000,
            blocked_us=blocked_ns // 1_000,
            readings=reporter.news(now_ns, task.chain.metric_samples) if is_due else None,
            letters=self._dead_letters(now_ns),
            latencies=self._latencies.news(now_ns, is_over=task.is_over),
            state_memory_bytes=self._memory.size_bytes(now_ns),
        )

    def _dead_letters(self, now_ns: int) -> tuple[ShownDeadLetter, ...]:
        if not self.task.is_over and now_ns - self._dead_letters_ns < LOOK_EVERY_NS:
            return ()
        self._dead_letters_ns = now_ns
        return self.task.chain.take_dead_letters()

    def set_alarm(self, now_ns: int) -> None:
        """Tell the task the time, and note when something is due by it."""
        task = self.task
        if task.uses_clock:
            task.set_clock(self._pool.clock_ms(now_ns))
            alarm_ms = task.alarm_in_ms
            self.alarm_ns = 0 if alarm_ms is None else now_ns + int(min(alarm_ms, WAIT_MS_MAX) * 1e6)

    def reach(self, action: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call `action`, which does something with the task. Everything that reaches the task does so here.

        Once the epoch is over nothing does: after a failure in the middle of a batch its state is half
        a batch, which no timer, answer or word may have captured. An exception of `action` ends the epoch.
        """
        if self._pool.is_over:
            return
        spoke = SPEAKING.set(self._speaking)
        try:
            action(*args)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this task's failure
            self._pool.failed(self.task.task_id, error)
        finally:
            SPEAKING.reset(spoke)

    def close(self) -> None:
        """Let go of what the task holds; the epoch is over."""
        spoke = SPEAKING.set(self._speaking)
        try:
            self.task.close()
        finally:
            SPEAKING.reset(spoke)

    def run(self, now_ns: int) -> None:
        """Let the task do one piece of work, and empty its outlets."""
        self.reach(self._run, now_ns)

    def _run(self, now_ns: int) -> None:
        task, pool, sizer = self.task, self._pool, self._batch_sizer
        if self._blocked_since_ns is not None:
            self._note_freed(now_ns)
        rows_before, made_before = task.records_in, task.sent_on
        rows_max = task.output_buffers.rows_max
        if rows_max < ROWS_MAX:
            task.rows_max = self._bounded_by(rows_max)
        wanted = task.rows_max
        if task.uses_clock:
            task.set_clock(pool.clock_ms(now_ns))
        is_marker_due = self._marker_due_ns <= now_ns
        if is_marker_due:
            task.markers.ask(pool.clock_us(now_ns))
        pool.slices.begin_slice(now_ns, sizer.patience_ns, sizer.time_budget)
        # To the user's functions no event loop runs here, so they may run one of their own (`asyncio.run`).
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            channel = task.run()
        except BaseException:
            sizer.start_over()
            raise
        finally:
            asyncio._set_running_loop(loop)
            pool.slices.end_slice()
        rows = task.records_in - rows_before
        ended_ns = self._now_ns()
        self._note(rows, ended_ns - now_ns)
        self._taken = self._taken / 2 + rows
        self._made = self._made / 2 + task.sent_on - made_before
        if not task.is_source:
            self._measure(rows, now_ns, ended_ns)
        if is_marker_due and not task.markers.is_awaited:
            self._marker_due_ns = now_ns + pool.marker_interval_ns
        if task.task_effects.markers:
            markers, task.task_effects.markers = task.task_effects.markers, []
            for marker in markers:
                self._latencies.note(marker, pool.clock_us(ended_ns))
        if task.is_source:
            self.due_ns = self._next_read_ns(now_ns, ended_ns, is_filled=rows >= wanted)
        if task.uses_clock:
            self.set_alarm(ended_ns)
        self.is_behind = False
        if channel is not None:
            self.is_behind = task.input_gate.ends[channel].queue.in_memory > LOCAL_ITEMS_MAX
            self._pool.relieve(self, channel)
            if self._pool.failpoints.is_armed and task.snapshots.are_aligning:
                self._pool.failpoints("align.partial")
        if task.output_buffers.has_buffered:
            self._flush_if_due(ended_ns)
        self.drain((ended_ns - now_ns) // 1_000)
        if rows:
            self._pool.records_flowed()
        # With what it took to send: most of that is pickling.
        self._spent_ns += self._now_ns() - now_ns

    def _bounded_by(self, rows_max: int) -> int:
        """Return how many records to take, so that the outputs get about `rows_max` at most."""
        rows = self._batch_sizer.rows
        if rows * self._made <= rows_max * self._taken:
            return rows
        return max(1, int(rows_max * self._taken / self._made)) if self._made else rows

    def _measure(self, rows: int, now_ns: int, ended_ns: int) -> None:
        """Note what the task takes by the clock, and let its senders know."""
        began_ns, self._fed_since_ns = self._fed_since_ns or now_ns, ended_ns if self.task.is_fed else 0
        if self._window.took(rows, ended_ns - began_ns, self.task.rows_max):
            for channel, end in self.task.input_gate.ends.items():
                if end.is_bounded:
                    end.rows_max = self._window.rows_max
                    self._pool.relieve(self, channel)

    def _next_read_ns(self, began_ns: int, ended_ns: int, *, is_filled: bool) -> int:
        """Return when a source may run again; 0: at once."""
        wait_ns = int(min(self.task.wait_ms, WAIT_MS_MAX) * 1e6)
        if wait_ns:
            self._rests = RESTS_MAX
            return ended_ns + max(wait_ns, REST_NS)
        # One that has read all ends at once: a micro-batch takes a source that rests for one that waits.
        if is_filled or not self._rests or self.task.chain.is_midway or self.task.is_drained:
            if is_filled:
                self._rests = 0
            return 0
        self._rests -= 1
        return began_ns + REST_NS

    def post(self, call: Callable[[Task], None]) -> None:
        """Tell the task something, and empty its outlets."""
        self.reach(self._apply, call)

    def _apply(self, call: Callable[[Task], None]) -> None:
        started_ns = self._now_ns()
        call(self.task)
        self._note_applied(started_ns)

    def offer(self, channel: ChannelId, item: Item) -> None:
        """Give the task what has come in, and empty its task effects; to be called by way of `reach`."""
        if isinstance(item, Batch):
            # It waits for its turn, and leaves nothing in the task effects.
            self.task.offer(channel, item)
            self._pool.schedule()
            return
        started_ns = self._now_ns()
        self.task.offer(channel, item)
        self._note_applied(started_ns)

    def _note_applied(self, started_ns: int) -> None:
        self.set_alarm(started_ns)
        self.drain((self._now_ns() - started_ns) // 1_000)
        # It may have unblocked an input, and then nothing else would wake the worker.
        self._pool.schedule()

    def _flush_if_due(self, now_ns: int) -> None:
        """Send partial batches: when nothing else is to be done, when they have lingered, or when a slow
        receiver has enough in them."""
        if not self._buffered_since_ns:
            self._buffered_since_ns = now_ns
        has_lingered = now_ns - self._buffered_since_ns >= self._pool.linger_ns
        if has_lingered or self.task.output_buffers.has_enough or not self.can_run(now_ns):
            self.task.output_buffers.flush()
        if not self.task.output_buffers.has_buffered:
            self._buffered_since_ns = 0

    def _note(self, rows: int, elapsed_ns: int) -> None:
        """Report the cost of the records, once the task is through with them."""
        task = self.task
        self._rows += rows
        self._busy_ns += elapsed_ns
        if not task.chain.is_midway:
            if self._rows:
                self._batch_sizer.took(self._rows, self._busy_ns)
                task.rows_max = self._batch_sizer.rows
            self._rows = self._busy_ns = 0

    def drain(self, elapsed_us: int = 0) -> None:
        """Empty the task's task effects: background work, then output, then messages.

        An item that the task sends to itself comes back here before the rest has been sent. So each item
        stays in its task effect until its turn: it has not left before.
        """
        task, pool, task_effects = self.task, self._pool, self.task.task_effects
        if (n := task.snapshots.newest_arrived) != self._newest_barrier:
            self._newest_barrier = n
            self.background.note_barrier(n)
        is_new = True
        while is_new and not pool.is_over:
            if task_effects.background_jobs:
                background_jobs, task_effects.background_jobs = task_effects.background_jobs, []
                for job in background_jobs:
                    self.background.start(job, elapsed_us)
            while task_effects.outbox and not pool.is_over:
                channel, item = task_effects.outbox.pop(0)
                pool.send(self, channel, item)
                is_last = pool.failpoints.is_armed and not task_effects.outbox
                if is_last and task.is_source and isinstance(item, Batch):
                    pool.failpoints("source.sent")
            if task.output_buffers.clogged:
                for channel in tuple(task.output_buffers.clogged):
                    # A barrier may have overtaken the items that wait there.
                    pool.send_on(self, channel)
            if task_effects.emptied:
                emptied, task_effects.emptied = task_effects.emptied, []
                for channel in emptied:
                    pool.relieve(self, channel)
            while task_effects.messages and not pool.is_over:
                pool.report(task_effects.messages.pop(0))
            is_new = not pool.is_over and task.snapshots.note_sent()
