"""A channel holds what its receiver takes in about a second, at any record size and any cost of user code.

The clock goes on only while user code works, so a barrier's way is measured by it exactly.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.test_slices import NoStore

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.host.failpoints import Failpoints
from crosscut.host.watch import LOOK_NS, Watch
from crosscut.net.channels import IncomingChannel, OutgoingChannel
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import FlatMap, Map
from crosscut.operators.time_budget import TimeBudget
from crosscut.protocol.messages import SnapshotDeclined, TaskFailed, WorkerMessage
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.task.flow_control import ROWS_MAX, WITHIN_NS, Credit, Window
from crosscut.task.inputs import InputQueue
from crosscut.task.outputs import build_output
from crosscut.task.plan import TaskPlan
from crosscut.task.splits import SplitQueue
from crosscut.task.task import Task
from crosscut.wire.frames import Frame, FrameType, Payload
from crosscut.worker.pool import TaskPool

US, MS, S = 1_000, 1_000_000, 1_000_000_000
BATCH_ROWS = 1_000
EPOCH = Epoch(1)

Cost = Callable[[int], int]
"""Nanoseconds that a record takes."""


# The rule.


def taking(window: Window, cost_ns: Cost, *, slices: int, fixed_ns: int = 0) -> Window:
    """Let a task take slices that fill its window, at that cost."""
    taken = 0
    for _ in range(slices):
        rows = min(BATCH_ROWS, window.rows_max)
        elapsed_ns = fixed_ns + sum(cost_ns(taken + row) for row in range(rows))
        window.took(rows, elapsed_ns, 1)
        taken += rows
    return window


@pytest.mark.parametrize("cost_ms", [1, 10, 50, 200])
def test_a_channel_holds_half_a_second_of_slow_records(cost_ms: int) -> None:
    window = taking(Window(1, is_bounded=True), lambda record: cost_ms * MS, slices=50)
    assert WITHIN_NS / 2 <= window.rows_max * cost_ms * MS <= 2 * WITHIN_NS


def test_records_that_take_longer_than_that_come_one_or_two_at_a_time() -> None:
    window = taking(Window(4, is_bounded=True), lambda record: 2 * S, slices=50)
    assert window.rows_max <= 4


def test_cheap_records_are_bounded_by_bytes_alone_soon() -> None:
    window = taking(Window(2, is_bounded=True), lambda record: 1 * US, slices=20)
    assert window.rows_max >= 100_000


def test_inputs_share_the_time() -> None:
    alone, shared = (taking(Window(n, is_bounded=True), lambda record: MS, slices=50) for n in (1, 10))
    assert alone.rows_max >= 5 * shared.rows_max


def test_a_fixed_cost_a_call_makes_no_window_small() -> None:
    """20 ms a call: with few records a call there would only be more calls."""
    window = taking(Window(2, is_bounded=True), lambda record: 0, slices=50, fixed_ns=20 * MS)
    assert window.rows_max >= BATCH_ROWS


def test_a_cost_that_is_all_in_the_first_call_is_forgotten() -> None:
    window = taking(Window(1, is_bounded=True), lambda record: 0 if record else 20 * S, slices=400)
    assert window.rows_max >= 10_000


def test_a_cost_that_jumps_is_noticed_within_the_time_that_a_channel_holds() -> None:
    window = taking(Window(1, is_bounded=True), lambda record: US, slices=50)
    assert window.rows_max > 20_000
    for _ in range(2 * WITHIN_NS // (10 * MS)):
        window.took(1, 10 * MS, 1)
    assert window.rows_max <= 100


def test_a_slice_that_takes_no_records_moves_nothing_and_divides_by_nothing() -> None:
    window = Window(1, is_bounded=True)
    assert not window.took(0, 0, 1)
    assert window.took(0, 20 * S, 1)
    assert window.rows_max == 2
    assert window.took(5, 0, 1)


def test_the_window_of_a_task_without_bounds_stays_open() -> None:
    window = Window(1, is_bounded=False)
    assert not window.took(1, 20 * S, 1)
    assert window.rows_max == ROWS_MAX


# A source, a channel inside a worker or between two, and a task that is slow.

INSIDE = ChannelId(0, TaskId(VertexId("source"), 0), TaskId(VertexId("slow"), 0))
BETWEEN = ChannelId(0, TaskId(VertexId("source"), 0), TaskId(VertexId("slow"), 1))


class Endless(cc.SplitReader[int]):
    def __init__(self) -> None:
        self._numbers = itertools.count()

    @property
    def position(self) -> cc.JSON:
        return 0

    def read(self, limit: int) -> list[int]:
        return list(itertools.islice(self._numbers, limit))


class EndlessSource(cc.Source[int]):
    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("all", 0)]

    def reader(self, split: cc.Split, position: cc.JSON) -> Endless:
        return Endless()


class Clock:
    """Goes on while user code works, and looks at slices as the signal of a real process does."""

    def __init__(self) -> None:
        self.now_ns = 1
        self._watch = Watch(10 * S)
        self._next_look_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def work(self, ns: int) -> None:
        self.now_ns += ns
        if self.now_ns >= self._next_look_ns:
            self._next_look_ns = self.now_ns + self._watch.look(self.now_ns)

    def begin_slice(self, now_ns: int, patience_ns: int, time_budget: TimeBudget) -> None:
        self._watch.begin_slice(now_ns, patience_ns, time_budget)
        self._next_look_ns = min(self._next_look_ns, now_ns + LOOK_NS)

    def end_slice(self) -> None:
        self._watch.end_slice()


class Line:
    """A source that is as fast as it can, and a slow task behind it, in one worker or in two."""

    def __init__(self, cost_ns: Cost, *, is_inside: bool, chain: Sequence[Operator] = ()) -> None:
        self.clock = Clock()
        self.cost_ns = cost_ns
        self.seen = 0
        self.captured_at_ns: list[int] = []
        self.said: list[WorkerMessage] = []
        self.channel = INSIDE if is_inside else BETWEEN
        self.near = self.pool()
        self.far = self.near if is_inside else self.pool()
        out = build_output(
            "hash" if is_inside else "forward",
            (self.channel,),
            batch_rows=BATCH_ROWS,
            router=KeyRouter(1, 1),
            key_by_uid="",
            task_index=0,
        )
        self.source = self.task(
            self.channel.source,
            chain=[*chain, KeyedByItself("key")],
            outputs=[out],
            splits=SplitQueue(EndlessSource(), [(cc.Split("all", 0), 0)]),
        )
        self.slow = self.task(self.channel.target, chain=[Map("slow", self.see)], inputs=(self.channel,))
        self.near.add(self.source, None, None)
        self.far.add(self.slow, None, None)
        if not is_inside:
            self.connect()
        for pool in {id(one): one for one in (self.near, self.far)}.values():
            if pool is not self.near or is_inside:
                pool.connect({})
            pool.start()

    def connect(self) -> None:
        def arrives(kind: FrameType, payload: Payload) -> None:
            incoming.received(Frame(kind, 0, bytes(payload)))

        def returns(kind: FrameType, payload: Payload) -> None:
            outgoing.received(Frame(kind, 0, bytes(payload)))

        outgoing = OutgoingChannel(self.channel, arrives, self.near.credited)
        incoming = IncomingChannel(self.channel, returns, self.far.received)
        self.give = incoming.give_credit
        self.near.connect({self.channel: outgoing})

    def pool(self) -> TaskPool:
        return TaskPool(
            epoch=EPOCH,
            store=NoStore(),
            batch_rows=BATCH_ROWS,
            linger_ms=1,
            alignment_timeout_ms=1,
            sink_timeout_ms=60_000,
            failpoints=Failpoints(None, None),
            report=self.said.append,
            give_credit=self.credit,
            clock=self.clock,
            slices=self.clock,
        )

    def credit(self, channel: ChannelId, credit: Credit) -> None:
        self.give(credit)

    def task(self, task_id: TaskId, *, inputs: tuple[ChannelId, ...] = (), **others: Any) -> Task:
        return Task(
            TaskPlan(
                task_id=task_id,
                epoch=EPOCH,
                protocol=AlignedBarriers(inputs),
                inputs={one: InputQueue(one, None, BATCH_ROWS) for one in inputs},
                outputs=others.pop("outputs", ()),
                batch_rows=BATCH_ROWS,
                channel_bytes=4 << 20,
                **others,
            )
        )

    def see(self, record: Any) -> Any:
        self.clock.work(self.cost_ns(self.seen))
        self.seen += 1
        return record

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert not any(isinstance(one, (TaskFailed, SnapshotDeclined)) for one in self.said), self.said
            await asyncio.sleep(0)

    async def ran(self, ns: int) -> None:
        """Let so much time go by."""
        ends_ns = self.clock.now_ns + ns
        await self.until(lambda: self.clock.now_ns >= ends_ns)

    async def barrier(self, n: int) -> int:
        """Return how long barrier n takes from the source to the snapshot of the slow task."""
        began_ns = self.clock.now_ns
        self.near.trigger(CheckpointId(n))
        await self.until(lambda: self.slow.snapshots.newest_captured >= n)
        return self.clock.now_ns - began_ns

    async def close(self) -> None:
        await self.near.close()
        if self.far is not self.near:
            await self.far.close()


class KeyedByItself(Operator):
    """The key of a record is the record."""

    def process(self, batch: Batch) -> Batch:
        return Batch(batch.records, batch.records)


def times_of(line: Callable[[], Line], *, first_ns: int, every_ns: int, count: int) -> list[int]:
    """Return how long the barriers of some checkpoints take."""

    async def scene() -> list[int]:
        played = line()
        await played.ran(first_ns)
        found = []
        for n in range(1, count + 1):
            found.append(await played.barrier(n))
            await played.ran(every_ns)
        await played.close()
        return found

    return asyncio.run(scene())


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("cost_ms", [1, 10, 50])
def test_a_barrier_passes_a_slow_function_behind_a_fast_source_in_about_a_second(
    cost_ms: int, *, is_inside: bool
) -> None:
    """K3, P4: from the very first checkpoint on."""
    times = times_of(
        lambda: Line(lambda record: cost_ms * MS, is_inside=is_inside), first_ns=1 * S, every_ns=S, count=8
    )
    assert max(times) <= 2 * S, [time / S for time in times]


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_barrier_passes_records_that_became_many_on_the_way(*, is_inside: bool) -> None:
    """What the source's task makes of a record counts, not what it reads."""

    def line() -> Line:
        many = FlatMap("many", lambda record: [record] * 20)
        return Line(lambda record: 10 * MS, is_inside=is_inside, chain=[many])

    times = times_of(line, first_ns=1 * S, every_ns=S, count=8)
    assert max(times) <= 2 * S, [time / S for time in times]


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_cost_that_begins_at_record_20_000_holds_up_one_checkpoint_at_most(*, is_inside: bool) -> None:
    """K3: what waits when the cost jumps was let in at the old one."""
    times = times_of(
        lambda: Line(lambda record: 10 * MS if record > 20_000 else US, is_inside=is_inside),
        first_ns=1 * S,
        every_ns=S,
        count=6,
    )
    assert max(times[1:]) <= 2 * S, [time / S for time in times]


@pytest.mark.parametrize("is_inside", [True, False])
def test_few_records_that_pass_a_filter_do_not_keep_the_source_from_reading(*, is_inside: bool) -> None:
    """One in a thousand goes on, at 10 ms: the source has to read 100,000 a second, in full batches."""

    async def scene() -> int:
        few = FlatMap("few", lambda record: [record] if record % 1_000 == 0 else [])
        line = Line(lambda record: 10 * MS, is_inside=is_inside, chain=[few])
        await line.ran(3 * S)
        before = line.source.statistics()
        slices = 0
        plain = line.source.run

        def run() -> Any:
            nonlocal slices
            slices += 1
            return plain()

        line.source.run = run  # type: ignore[method-assign]
        await line.ran(3 * S)
        read = line.source.statistics().records_in - before.records_in
        await line.close()
        return read // slices

    assert asyncio.run(scene()) > BATCH_ROWS // 4


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_fast_function_gets_full_batches(*, is_inside: bool) -> None:
    async def scene() -> float:
        line = Line(lambda record: 200, is_inside=is_inside)
        await line.until(lambda: line.seen >= 50_000)
        calls = []
        plain = line.slow.chain.process
        line.slow.chain.process = lambda batch: calls.append(len(batch)) or plain(batch)  # type: ignore
        await line.until(lambda: line.seen >= 150_000)
        await line.close()
        return sum(calls) / len(calls)

    assert asyncio.run(scene()) >= 0.75 * BATCH_ROWS
