"""User code that is slow, in a pool: the worker goes round often, and snapshots are whole all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from tests.unit import bare_task
from tests.unit.bare_task import X, output
from tests.unit.barriers import N1, N2, A, B

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId
from crosscut.host.failpoints import Failpoints
from crosscut.host.watch import LOOK_NS, Watch
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import FlatMap, Map
from crosscut.operators.time_budget import TimeBudget
from crosscut.protocol.messages import WorkerMessage
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers
from crosscut.protocol.snapshots import Part
from crosscut.task.items import Barrier
from crosscut.task.requests import NotePause, StoreFrozen
from crosscut.task.task import Task
from crosscut.wire.batches import decode_batch
from crosscut.worker.batch_sizer import AdaptiveBatchSizer, BatchSizer
from crosscut.worker.pool import TaskPool

MS = 1_000_000
TIMEOUT_NS = 10_000 * MS
BATCH_ROWS = 1_000


def task_of(*chain: Operator, inputs: Sequence[ChannelId] = (A, B)) -> Task:
    return bare_task.task_of(
        *chain, inputs=inputs, outputs=[output(X, rows=1)], protocol=UnalignedBarriers, rows=BATCH_ROWS
    )


class Machine:
    """A clock that goes on while user code works, and a signal that looks at it as the real one does."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.watch = Watch(TIMEOUT_NS)
        self.next_look_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def now(self) -> datetime:
        return datetime.now(UTC)

    def work(self, ns: int) -> None:
        self.now_ns += ns
        if self.now_ns >= self.next_look_ns:
            self.next_look_ns = self.now_ns + self.watch.look(self.now_ns)

    def begin_slice(self, now_ns: int, patience_ns: int, time_budget: TimeBudget) -> None:
        self.watch.begin_slice(now_ns, patience_ns, time_budget)
        self.next_look_ns = min(self.next_look_ns, now_ns + LOOK_NS)

    def end_slice(self) -> None:
        self.watch.end_slice()


class NoStore:
    def write_part(self, n: CheckpointId, task: TaskId, epoch: Epoch, chunks: list[bytes]) -> Part:
        raise AssertionError("nothing is stored here")

    def delete_parts(self, paths: Any) -> list[str]:
        return []


class Site:
    """One task behind a channel, whose function takes as long as it is told to."""

    def __init__(self, cost_ns: Callable[[Any], int], batch_sizer: BatchSizer | None = None) -> None:
        self.machine = Machine()
        self.cost_ns = cost_ns
        self.seen: list[Any] = []
        self.said: list[WorkerMessage] = []
        self.longest_ns = 0
        self.batch_sizer = batch_sizer or AdaptiveBatchSizer(BATCH_ROWS)
        self.pool = TaskPool(
            epoch=Epoch(1),
            store=NoStore(),
            batch_rows=BATCH_ROWS,
            linger_ms=0,
            alignment_timeout_ms=1,
            sink_timeout_ms=60_000,
            failpoints=Failpoints(None, None),
            report=self.said.append,
            give_credit=lambda channel, size_bytes: None,
            clock=self.machine,
            sizer_of=lambda task: self.batch_sizer,
            slices=self.machine,
        )
        self.task = task_of(Map("slow", self.see), inputs=(A,))
        self.task.output_buffers.outputs = ()
        self.task.output_buffers.measure()
        self.pool.add(self.task, None, None)
        self.pool.connect({})
        self.pool.start()

    def see(self, record: Any) -> Any:
        self.machine.work(self.cost_ns(record))
        self.seen.append(record)
        return record

    async def process(self, records: Sequence[Any]) -> None:
        """Let them through; note for how long the event loop did not go round."""
        for start in range(0, len(records), BATCH_ROWS):
            self.pool.received(A, Batch(list(records[start : start + BATCH_ROWS])), 1)
        while self.task.has_work:
            before_ns = self.machine.now_ns
            await asyncio.sleep(0)
            self.longest_ns = max(self.longest_ns, self.machine.now_ns - before_ns)
        assert not self.pool.is_over, self.said


def scene(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def played() -> None:
        asyncio.run(test())

    return played


@scene
async def test_the_first_batch_of_an_epoch_does_not_hold_the_worker_however_slow_the_function_is() -> None:
    """K3: 1,000 records of 10 ms."""
    site = Site(lambda record: 10 * MS)
    await site.process(range(1_000))
    assert site.seen == list(range(1_000))
    assert site.longest_ns <= 40 * MS
    await site.pool.close()


@scene
async def test_a_function_that_becomes_slow_in_the_middle_of_a_batch_does_not_hold_the_worker() -> None:
    """K3: 15 ms a record after 20,500 fast ones."""
    site = Site(lambda record: 15 * MS if record >= 20_500 else 1_000)
    await site.process(range(22_000))
    assert site.seen == list(range(22_000))
    assert site.longest_ns <= 2 * LOOK_NS
    await site.pool.close()


@scene
async def test_records_that_take_seconds_each_are_let_through_one_by_one() -> None:
    site = Site(lambda record: 5_000 * MS)
    await site.process(range(20))
    assert site.seen == list(range(20))
    assert site.longest_ns == 5_000 * MS
    await site.pool.close()


@scene
async def test_what_was_learnt_in_one_epoch_holds_in_the_next() -> None:
    first = Site(lambda record: 1_000)
    await first.process(range(10_000))
    assert first.batch_sizer.rows == BATCH_ROWS
    await first.pool.close()
    second = Site(lambda record: 1_000, first.batch_sizer)
    assert second.task.rows_max == BATCH_ROWS
    await asyncio.sleep(0)
    await second.pool.close()


@scene
async def test_after_a_slice_that_failed_the_next_epoch_begins_with_one_record() -> None:
    def fails(record: int) -> int:
        if record == 5_000:
            raise ValueError("no")
        return 1_000

    site = Site(fails)
    for start in range(0, 6_000, BATCH_ROWS):
        site.pool.received(A, Batch(list(range(start, start + BATCH_ROWS))), 1)
    while not site.pool.is_over:
        await asyncio.sleep(0)
    assert site.batch_sizer.rows == 1
    await site.pool.close()


# Barriers, while records are between two operators.


class Halfway:
    """A task, under unaligned barriers, that has just begun with [1, 2, 3] and has [4] waiting on A."""

    def __init__(self) -> None:
        self.time_budget = TimeBudget()
        self.task = task_of(
            FlatMap("expand", lambda n: [n, n]),
            Map("slow", self.stop_at_first),
        )
        self.task.chain.follow(self.time_budget)
        self.task.offer(A, Batch([1, 2, 3]))
        self.task.run()
        assert self.task.chain.is_midway
        self.task.offer(A, Batch([4]))

    def stop_at_first(self, n: int) -> int:
        if n == 1:
            self.time_budget.stop()
        return n

    def work(self) -> None:
        while self.task.chain.is_midway:
            self.task.run()

    def sent(self) -> list[Any]:
        items, self.task.task_effects.outbox = self.task.task_effects.outbox, []
        return [item.records if isinstance(item, Batch) else item for _, item in items]

    def stored(self) -> list[StoreFrozen]:
        jobs, self.task.task_effects.background_jobs = self.task.task_effects.background_jobs, []
        return [job for job in jobs if isinstance(job, StoreFrozen)]

    def captured(self) -> bool:
        jobs, self.task.task_effects.background_jobs = self.task.task_effects.background_jobs, []
        return any(isinstance(job, NotePause) for job in jobs)


def received(job: StoreFrozen) -> list[tuple[ChannelId, list[Any]]]:
    """Return what the snapshot holds of the inputs."""
    return [(one.channel, decode_batch(one.data).records) for one in job.frozen.log if not one.by_sender]


def test_a_barrier_that_comes_while_a_batch_is_halfway_counts_as_soon_as_it_is_through() -> None:
    at = Halfway()
    at.task.offer(A, Barrier(N1))
    at.task.offer(A, Batch([5]))
    assert at.task.snapshots.are_awaited
    assert not at.captured()
    at.work()
    assert at.captured()
    assert not at.task.snapshots.are_awaited
    at.task.offer(B, Barrier(N1))
    (stored,) = at.stored()
    # What waited in front of the barrier, and was in no operator; what came behind it is not in there.
    assert received(stored) == [(A, [4])]
    assert Barrier(N1) in at.sent()
    while at.task.has_work:
        at.task.run()
    at.task.output_buffers.flush()
    assert [n for records in at.sent() if isinstance(records, list) for n in records] == [4, 4, 5, 5]


def test_a_barrier_that_waits_is_taken_once_though_the_same_one_comes_on_another_input() -> None:
    at = Halfway()
    at.task.offer(A, Barrier(N1))
    at.task.offer(B, Batch([7]))
    at.task.offer(B, Barrier(N1))
    at.work()
    (stored,) = at.stored()
    assert received(stored) == [(A, [4]), (B, [7])]
    assert at.sent().count(Barrier(N1)) == 1
    assert at.task.statistics().queued_records == 2
    assert at.task.input_gate.ends[A].queue.in_memory == at.task.input_gate.ends[B].queue.in_memory == 1


def test_a_snapshot_is_not_stored_before_all_inputs_are_logged_whose_barriers_have_waited() -> None:
    """The second barrier completes the snapshot while the records in front of the first one still wait."""
    at = Halfway()
    at.task.offer(B, Batch([7]))
    at.task.offer(B, Barrier(N1))
    at.task.offer(A, Barrier(N1))
    at.work()
    (stored,) = at.stored()
    assert received(stored) == [(A, [4]), (B, [7])]


def test_a_barrier_that_is_aborted_while_it_waits_is_taken_out() -> None:
    at = Halfway()
    at.task.offer(A, Barrier(N1))
    at.task.snapshots.abort(N1)
    at.work()
    assert at.stored() == []
    assert Barrier(N1) not in at.sent()
    assert at.task.input_gate.ends[A].queue.in_memory == 1


def test_a_newer_barrier_that_waits_behind_another_one_gives_that_one_up() -> None:
    at = Halfway()
    at.task.offer(A, Barrier(N1))
    at.task.offer(A, Barrier(N2))
    at.work()
    at.task.offer(B, Barrier(N2))
    (stored,) = at.stored()
    assert (stored.frozen.checkpoint_id, received(stored)) == (N2, [(A, [4])])


@scene
async def test_a_task_that_a_snapshot_waits_for_runs_though_its_output_takes_no_more() -> None:
    """Else the barrier would wait for as long as the channel is full, which it is to overtake."""
    site = Site(lambda record: 0)
    at = Halfway()
    site.pool.add(at.task, None, None)
    runner = site.pool._runners[-1]
    at.task.chain.follow(at.time_budget)
    at.task.output_buffers.clogged[X] = None
    assert not runner.can_run(0)
    at.task.offer(A, Barrier(N1))
    assert runner.can_run(0)
    at.work()
    assert at.captured()
    assert not runner.can_run(0)
    await asyncio.sleep(0)
    await site.pool.close()
