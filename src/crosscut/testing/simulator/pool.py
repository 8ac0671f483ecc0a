"""The tasks of one virtual worker in one epoch: what `crosscut.runtime.runner` does, in virtual time.

It decides nothing either, but is less orderly: which task runs next, how many records at a time, and
when a batch is flushed is left to chance, as far as the contract of `Task` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, assert_never

from crosscut.batch import Batch
from crosscut.errors import CrosscutError, StateError, StoreError
from crosscut.ids import ChannelId, CheckpointId, Epoch, TaskId
from crosscut.interfaces import SinkWriter
from crosscut.protocol.effects import CommitTransactions
from crosscut.protocol.messages import FailureCause, Part, RecordsFlowing, TaskFailed
from crosscut.runtime.background import SinkHungError
from crosscut.runtime.channel_log import encoded_log
from crosscut.runtime.items import Barrier, Item
from crosscut.runtime.jobs import (
    CancelStore,
    CompleteState,
    FrozenTask,
    Job,
    NotePause,
    PrepareTransaction,
    StoreFrozen,
    WaitForAlignment,
)
from crosscut.runtime.runner import LOCAL_ITEMS_MAX, failure_cause
from crosscut.runtime.task import Task
from crosscut.state.keyed import KeyedState
from crosscut.testing.simulator.courses import DrawnCourse
from crosscut.testing.simulator.outside import Answer, Place
from crosscut.testing.simulator.runners import EXPECTED_ERRORS, Call, OutgoingChannel, Runner

if TYPE_CHECKING:
    from crosscut.testing.simulator.worker import VirtualWorker

P = ParamSpec("P")
R = TypeVar("R")


class VirtualPool:
    """The tasks of one worker in one epoch."""

    def __init__(self, worker: VirtualWorker, epoch: Epoch) -> None:
        self.epoch = epoch
        self.is_over = False
        self.runners: list[Runner] = []
        self._worker = worker
        self._world = worker.world
        self._by_input: dict[ChannelId, Runner] = {}
        self._back_edges: frozenset[ChannelId] = frozenset()
        self._local_sender: dict[ChannelId, Runner] = {}
        self._outgoing: Mapping[ChannelId, OutgoingChannel] = {}
        self._is_running = self._is_scheduled = self._has_flowed = False
        self._calls = 0
        self._when_closed: Callable[[], None] | None = None

    # What builds tasks asks for.

    async def pause(self) -> None:
        """Loading state takes no virtual time."""

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function`, later, outside."""
        is_sink = isinstance(getattr(function, "__self__", None), SinkWriter)
        result: R = await Call(partial(function, *args, **kwargs), "sink" if is_sink else "store")
        return result

    def add(
        self,
        task: Task,
        inputs: tuple[ChannelId, ...],
        state: KeyedState | None,
        writer: SinkWriter | None,
        back_edges: frozenset[ChannelId] = frozenset(),
    ) -> None:
        """Add a task; in topological order."""
        self._back_edges |= back_edges
        task.follow(DrawnCourse(self._world.below))
        runner = Runner(task, state, writer)
        self.runners.append(runner)
        self._world.drops.watch(task._protocol, task._committer)
        self._by_input.update(dict.fromkeys(inputs, runner))

    # The life of the pool.

    def connect(self, outgoing: Mapping[ChannelId, OutgoingChannel]) -> None:
        """Say which outputs leave this worker; start the background work."""
        self._outgoing = outgoing
        for runner in self.runners:
            self._next_job(runner)

    def start(self) -> None:
        """Let the sources read."""
        self._is_running = True
        if any(runner.task.queued(channel) for channel, runner in self._by_input.items()):
            self._worker.passed("restore.replaying")
        for runner in self.runners:
            self.drain(runner)
        self.schedule()

    def close(self, then: Callable[[], None]) -> None:
        """End everything of this epoch; call `then` when no call is under way any more."""
        self.is_over = True
        self._when_closed = then
        self._worker.passed("close")
        self._close_if_idle()

    @property
    def calls_under_way(self) -> int:
        """Calls of sinks and of the store that have not returned."""
        return self._calls

    def _close_if_idle(self) -> None:
        if self._calls or self._when_closed is None:
            return
        then, self._when_closed = self._when_closed, None
        for runner in self.runners:
            runner.task.close()
        then()

    def close_files(self) -> None:
        """Close what the tasks have open, when the world is over."""
        for runner in self.runners:
            runner.task.close()

    def failed(self, task: TaskId, error: Exception) -> None:
        """A task has failed: nothing runs any more, the coordinator decides."""
        if not isinstance(error, EXPECTED_ERRORS):
            raise error
        if not self.is_over:
            self.is_over = True
            self._worker.say(TaskFailed(self.epoch, task, failure_cause(error)))

    def call(self, place: Place, work: Callable[[], Any], answer: Answer) -> None:
        """Call `work` in a thread; its answer is dropped if the epoch is over by then."""
        self._calls += 1

        def answered(result: Any, error: Exception | None) -> None:
            self._calls -= 1
            if self.is_over:
                self._close_if_idle()
            else:
                answer(result, error)

        self._world.outside.call(place, self._worker, work, answered)

    def _call_in_time(
        self, place: Place, work: Callable[[], Any], late: CrosscutError, answer: Answer
    ) -> None:
        """Call as `call` does; if there is no answer within the checkpoint timeout, `late` is the answer."""
        is_answered = False

        def once(result: Any, error: Exception | None) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                answer(result, error)

        def too_late() -> None:
            if not is_answered:
                self._world.seen[f"hung {place} answered for"] += 1
                once(None, late)

        self.call(place, work, once)
        self.later(self._world.options.checkpoint_timeout_ms * 1_000, too_late)

    def later(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do `action` after a while, unless the epoch is over."""
        self._worker.after(delay_us, lambda: None if self.is_over else action())

    # Items on their way.

    def send(self, sender: Runner, channel: ChannelId, item: Item) -> None:
        """Send an item: by reference inside the worker, else over the channel's connection."""
        target = self._by_input.get(channel)
        if target is None:
            waiting = sender.task.unsent[channel]
            waiting.append(item)
            self._send_waiting(sender, channel)
            return
        self._offer(target, channel, item)
        self._local_sender[channel] = sender
        is_much = target.task.queued(channel) > LOCAL_ITEMS_MAX and channel not in self._back_edges
        if is_much and not self._spill(target.task, channel):
            sender.clogged.add(channel)
        self.drain(target)
        self.schedule()

    def _send_waiting(self, sender: Runner, channel: ChannelId) -> None:
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
            self.schedule()

    def received(self, channel: ChannelId, item: Item) -> None:
        """An item came in from another worker."""
        runner = self._by_input[channel]
        self._offer(runner, channel, item)
        self.drain(runner)
        self.schedule()
        if self._spill(runner.task, channel):
            self._worker.emptied(channel)

    def _offer(self, runner: Runner, channel: ChannelId, item: Item) -> None:
        runner.task.offer(channel, item)
        if isinstance(item, Batch) and runner.task._protocol.logging(channel):
            self._worker.passed("snapshot.logging")

    def unclogged(self, channel: ChannelId) -> None:
        """The connection of an output takes more again."""
        for runner in self.runners:
            if channel in runner.clogged:
                self.drain(runner)

    def _consumed(self, task: Task, channel: ChannelId) -> None:
        queued = task.queued(channel)
        sender = self._local_sender.get(channel)
        if sender is not None:
            if queued <= LOCAL_ITEMS_MAX // 2 or self._spill(task, channel):
                sender.clogged.discard(channel)
        elif queued == 0 or self._spill(task, channel):
            self._worker.emptied(channel)

    def _spill(self, task: Task, channel: ChannelId) -> bool:
        is_done = channel not in self._back_edges and task.spill(channel)
        if is_done:
            self._world.seen["spilled"] += 1
        return is_done

    # The coordinator's words.

    def tell(self, word: Callable[[Task], None]) -> None:
        """Say something to every task."""
        for runner in self.runners:
            if self.is_over:
                return
            try:
                word(runner.task)
            except CrosscutError as error:
                self.failed(runner.task.task_id, error)
                return
            self.drain(runner)
        self.schedule()

    # The scheduler.

    def schedule(self) -> None:
        """Let a task run, soon."""
        if not self._is_scheduled and self._is_running and not self.is_over:
            self._is_scheduled = True
            self._worker.after(self._world.step_us(), self._step)

    def _can_run(self, runner: Runner) -> bool:
        task = runner.task
        is_free = not runner.clogged or task.is_awaited
        return is_free and runner.due_us <= self._world.clock.now_us and task.has_work

    def _step(self) -> None:
        self._is_scheduled = False
        if self.is_over:
            return
        ready = [one for one in self.runners if self._can_run(one)]
        if not ready:
            now_us = self._world.clock.now_us
            due = [
                one.due_us
                for one in self.runners
                if one.due_us > now_us and not one.clogged and one.task.has_work
            ]
            if due:
                self._worker.after(min(due) - now_us, self.schedule)
            return
        runner = ready[self._world.below(len(ready))]
        try:
            self._run(runner)
        except CrosscutError as error:
            self.failed(runner.task.task_id, error)
            return
        self.schedule()

    def _run(self, runner: Runner) -> None:
        task, dice = runner.task, self._world.dice
        task.rows_max = 1 + self._world.below(self._world.options.batch_rows)
        rows_before = task.records_in
        channel = task.run()
        if task.is_aligning:
            self._worker.passed("align.partial")
        if task.is_source:
            wait_us = int(task.wait_ms * 1_000)
            runner.due_us = self._world.clock.now_us + wait_us if wait_us else 0
        if channel is not None:
            self._consumed(task, channel)
        if task.has_buffered and (not self._can_run(runner) or dice.random() < 0.3):
            task.flush()
        self.drain(runner)
        if task.records_in > rows_before and not self._has_flowed:
            self._has_flowed = True
            self._worker.say(RecordsFlowing(self.epoch))

    def drain(self, runner: Runner) -> None:
        """Carry out what stands in the task's outlets: background work, then output, then words."""
        task = runner.task
        if task.jobs:
            jobs, task.jobs = task.jobs, []
            for job in jobs:
                self._start(runner, job)
        if task.outbox:
            outbox, task.outbox = task.outbox, []
            for channel, item in outbox:
                self.send(runner, channel, item)
            if task.is_source and isinstance(outbox[-1][1], Batch):
                self._worker.passed("source.sent")
        for channel in sorted(runner.clogged):
            self._send_waiting(runner, channel)
        if task.emptied:
            emptied, task.emptied = task.emptied, []
            for channel in emptied:
                self._consumed(task, channel)
        if task.messages:
            messages, task.messages = task.messages, []
            for message in messages:
                self._worker.say(message)
        if task.note_departures():
            self.drain(runner)

    # Background work.

    def _start(self, runner: Runner, job: Job) -> None:
        match job:
            case StoreFrozen() | PrepareTransaction() | CompleteState():
                runner.jobs.append(job)
                self._next_job(runner)
            case WaitForAlignment(n):
                delay_us = self._world.options.alignment_timeout_ms * 1_000
                self.later(delay_us, lambda: self._alignment_timed_out(runner, n))
            case NotePause():
                # A frozen task takes no virtual time.
                pass
            case CancelStore(n):
                runner.cancelled.add(n)
                if runner.writing is not None and runner.writing[0] == n:
                    self._world.seen["write given up"] += 1
                    runner.writing[1](None, None)
            case CommitTransactions():
                self.later(job.delay_ms * 1_000, lambda: self._commit(runner, job))
            case _:
                assert_never(job)

    def _alignment_timed_out(self, runner: Runner, n: CheckpointId) -> None:
        runner.task.alignment_timed_out(n)
        self.drain(runner)
        self.schedule()

    def _next_job(self, runner: Runner) -> None:
        if runner.is_busy or not runner.jobs or self.is_over:
            return
        runner.is_busy = True
        job = runner.jobs.popleft()
        self.later(self._world.step_us(), lambda: self._work(runner, job))

    def _job_done(self, runner: Runner) -> None:
        runner.is_busy = False
        self.drain(runner)
        self._next_job(runner)

    def _work(self, runner: Runner, job: PrepareTransaction | StoreFrozen | CompleteState) -> None:
        match job:
            case PrepareTransaction(n, transaction):

                def prepared(handle: Any, error: Exception | None) -> None:
                    if error is not None:
                        self.failed(runner.task.task_id, error)
                        return
                    runner.task.transaction_prepared(n, handle)
                    self._job_done(runner)

                writer = runner.writer
                self._use_writer(runner, lambda: writer.prepare(transaction) if writer else None, prepared)
            case StoreFrozen(frozen):
                self._worker.passed("snapshot.frozen")
                self._store(runner, frozen)
            case CompleteState(n):
                if runner.state is None:
                    self._job_done(runner)
                else:
                    self._fold(runner, runner.state.complete(n))
            case _:
                assert_never(job)

    def _fold(self, runner: Runner, steps: Iterator[None]) -> None:
        try:
            next(steps)
        except StopIteration:
            self._job_done(runner)
        else:
            self.later(self._world.step_us(), lambda: self._fold(runner, steps))

    def _store(self, runner: Runner, frozen: FrozenTask) -> None:
        if frozen.checkpoint_id in runner.cancelled or runner.state is None:
            self._store_log(runner, frozen, None)
            return
        self._encode(runner, frozen, runner.state.encoded(frozen.checkpoint_id, frozen.since), [])

    def _encode(
        self, runner: Runner, frozen: FrozenTask, encoding: Iterator[bytes], chunks: list[bytes]
    ) -> None:
        chunk = next(encoding, None)
        if frozen.checkpoint_id in runner.cancelled:
            self._store_log(runner, frozen, None)
        elif chunk is not None:
            chunks.append(chunk)
            self.later(self._world.step_us(), lambda: self._encode(runner, frozen, encoding, chunks))
        else:

            def written(part: Any, error: Exception | None) -> None:
                if error is not None:
                    self._stored(runner, frozen, None, None, error)
                else:
                    self._store_log(runner, frozen, part)

            self._worker.passed("snapshot.encoded")
            self._write(runner, frozen, chunks, written)

    def _store_log(self, runner: Runner, frozen: FrozenTask, part: Part | None) -> None:
        if not frozen.log or frozen.checkpoint_id in runner.cancelled:
            self._stored(runner, frozen, part, None, None)
            return
        chunks = encoded_log(frozen.log)
        self._write(runner, frozen, chunks, lambda log, error: self._stored(runner, frozen, part, log, error))

    def _write(self, runner: Runner, frozen: FrozenTask, chunks: list[bytes], answer: Answer) -> None:
        task, n = runner.task.task_id, frozen.checkpoint_id

        def once(part: Any, error: Exception | None) -> None:
            # The first of the two: the store's answer, or that n is given up.
            if runner.writing is writing:
                runner.writing = None
                answer(part, error)

        writing = runner.writing = n, once
        self.call("store", lambda: self._world.store.write_part(n, task, self.epoch, chunks), once)

    def _stored(
        self,
        runner: Runner,
        frozen: FrozenTask,
        part: Part | None,
        log: Part | None,
        error: Exception | None,
    ) -> None:
        n = frozen.checkpoint_id
        runner.cancelled = {one for one in runner.cancelled if one > n}
        if error is None:
            self._worker.passed("snapshot.stored")
            runner.task.snapshot_stored(n, part, 0, log)
        elif isinstance(error, StoreError | StateError):
            runner.task.snapshot_failed(n, str(error))
        else:
            raise error
        self._job_done(runner)

    def _commit(self, runner: Runner, commit: CommitTransactions) -> None:
        self._worker.passed("commit.before")

        def committed(_: Any, error: Exception | None) -> None:
            if error is None:
                self._worker.passed("commit.after")
                runner.task.commit_succeeded()
            elif isinstance(error, SinkHungError):
                # Not tried again: the first attempt is still at it.
                self.failed(runner.task.task_id, error)
                return
            else:
                runner.task.commit_failed(str(error))
            self.drain(runner)

        writer = runner.writer
        handles = list(commit.handles)
        self._use_writer(runner, lambda: writer.commit(commit.permit, handles) if writer else None, committed)

    def _use_writer(self, runner: Runner, work: Callable[[], Any], answer: Answer) -> None:
        """Call a writer's method: one at a time."""
        runner.writer_calls.append((work, answer))
        self._next_writer_call(runner)

    def _next_writer_call(self, runner: Runner) -> None:
        if runner.is_writer_busy or not runner.writer_calls or self.is_over:
            return
        runner.is_writer_busy = True
        work, answer = runner.writer_calls.popleft()

        def answered(result: Any, error: Exception | None) -> None:
            runner.is_writer_busy = False
            self._next_writer_call(runner)
            answer(result, error)

        self._call_in_time("sink", work, SinkHungError("the sink has not answered in time"), answered)


def channel_lost_cause(channel: ChannelId, reason: str) -> FailureCause:
    """Return the cause that a broken channel is reported with."""
    return FailureCause("ChannelLost", f"channel {channel} is lost: {reason}")
