"""Flow control, of any graph with any credit: nothing gets stuck, and memory is bounded by the settings."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.examples import examples

from crosscut.errors import WireError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.task.flow_control import (
    BACK_EDGE_ITEMS_MAX,
    FIRST_ROWS,
    LOCAL_ITEMS_MAX,
    Credit,
    ReceivingEnd,
    SendingEnd,
)
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, Item, LoggedBatch
from crosscut.testing.simulator.spilling import VirtualSpace
from crosscut.wire.batches import encode_batch

BATCH_ROWS = 5
CHANNEL = ChannelId(0, TaskId(VertexId("from"), 0), TaskId(VertexId("to"), 0))


@dataclass
class Link:
    """A channel with both its ends, and what is between them."""

    source: int
    target: int
    is_local: bool
    is_back_edge: bool
    bytes_max: int
    name: ChannelId
    spills_blocked: bool
    wire: deque[tuple[Item, int]] = field(default_factory=deque)
    returning: deque[Credit] = field(default_factory=deque)
    is_blocked: bool = False
    largest_bytes: int = 0
    rows_max_ever: int = FIRST_ROWS

    def __post_init__(self) -> None:
        self.queue = InputQueue(self.name, VirtualSpace(), BATCH_ROWS)
        self.sending = SendingEnd(self.name, self.bytes_max)
        self.receiving = ReceivingEnd(
            self.queue,
            self.bytes_max,
            lambda: self.is_blocked and self.spills_blocked,
            is_back_edge=self.is_back_edge,
        )

    def take(self, item: Item) -> None:
        if self.is_local:
            self.queue.append(item)
            self.look()
        else:
            self.sending.waiting.append(item)
            self.send()

    def send(self) -> None:
        for item in self.sending.leaving():
            size_bytes = len(encode_batch(item)) if isinstance(item, Batch) else 0
            self.largest_bytes = max(self.largest_bytes, size_bytes)
            self.sending.sent(size_bytes, len(item) if isinstance(item, Batch) else 0)
            self.wire.append((item, size_bytes))

    def arrive(self) -> None:
        item, size_bytes = self.wire.popleft()
        if isinstance(item, Batch):
            self.receiving.arrived(len(item), size_bytes)
        self.queue.append(item)
        self.look()

    def look(self) -> None:
        if self.is_local:
            self.sending.is_paused = self.receiving.pauses_sender()
        elif credit := self.receiving.credit():
            self.returning.append(credit)

    def widen(self, rows_max: int) -> None:
        """The receiver takes so much at a time from now on."""
        if self.receiving.is_bounded:
            self.receiving.rows_max = rows_max
            self.rows_max_ever = max(self.rows_max_ever, rows_max)
        self.look()

    def check(self, slice_items: int) -> None:
        if self.is_local:
            items_max = BACK_EDGE_ITEMS_MAX if self.is_back_edge else LOCAL_ITEMS_MAX
            assert self.queue.in_memory <= items_max + slice_items
        else:
            bound = self.bytes_max + self.largest_bytes
            assert self.sending.under_way_bytes <= bound
            returning = sum(one.size_bytes for one in self.returning)
            assert self.receiving.uncredited_bytes + returning <= bound
            if self.receiving.is_bounded:
                assert self.sending.under_way_rows <= self.rows_max_ever * 5 // 4
            if not (self.queue.in_memory or self.wire or self.returning):
                assert not self.sending.is_used_up
                assert self.receiving.uncredited_bytes <= self.bytes_max // 4


class Job:
    """A random graph of tasks that align barriers, make none to three records of one, and go round."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.count = dice.randint(2, 5)
        self.links: list[Link] = []
        spills_blocked = dice.random() < 0.3
        for target in range(1, self.count):
            for source in {dice.randrange(target) for _ in range(dice.randint(1, 2))}:
                self.join(source, target, spills_blocked, is_back_edge=False)
        for _ in range(dice.choice((0, 1, 1, 2))):
            target = dice.randrange(1, self.count)
            self.join(dice.randrange(target, self.count), target, spills_blocked, is_back_edge=True)
        self.inputs = {task: [one for one in self.links if one.target == task] for task in range(self.count)}
        self.outputs = {task: [one for one in self.links if one.source == task] for task in range(self.count)}
        self.fan_out = {task: dice.choice((0, 1, 1, 2, 3)) for task in range(self.count)}
        self.unread = {task: dice.randint(5, 40) for task in range(self.count) if not self.regular(task)}
        self.barriers = dict.fromkeys(self.unread, 0)
        self.aligned = {task: set[ChannelId]() for task in range(self.count)}
        self.passed = dict.fromkeys(range(self.count), 0)
        self.rows_max = dice.choice((1, 3, BATCH_ROWS))

    def join(self, source: int, target: int, spills_blocked: bool, *, is_back_edge: bool) -> None:
        ends = (TaskId(VertexId(f"task-{task}"), 0) for task in (source, target))
        name = ChannelId(len(self.links), *ends)
        bytes_max = self.dice.choice((1, 50, 200, 5_000))
        is_local = self.dice.random() < 0.5
        self.links.append(Link(source, target, is_local, is_back_edge, bytes_max, name, spills_blocked))

    def regular(self, task: int) -> list[Link]:
        return [one for one in self.links if one.target == task and not one.is_back_edge]

    def can_run(self, task: int) -> bool:
        if any(one.sending.is_clogged for one in self.outputs[task]):
            return False
        return bool(self.unread.get(task)) or any(
            one.queue and not one.is_blocked for one in self.inputs[task]
        )

    def run(self, task: int) -> None:
        ready = [one for one in self.inputs[task] if one.queue and not one.is_blocked]
        if not ready or (self.unread.get(task) and self.dice.random() < 0.5):
            self.unread[task] -= 1
            if self.barriers[task] < 3 and (self.dice.random() < 0.2 or not self.unread[task]):
                self.barriers[task] += 1
                self.emit(task, Barrier(CheckpointId(self.barriers[task])))
            self.emit(task, Batch([self.dice.randrange(4) for _ in range(self.dice.randint(1, BATCH_ROWS))]))
            return
        link = self.dice.choice(ready)
        item = link.queue.take(self.rows_max)
        if isinstance(item, Batch):
            self.emit(task, item)
        elif not link.is_back_edge:
            self.aligned[task].add(link.name)
            link.is_blocked = True
            if len(self.aligned[task]) == len(self.regular(task)):
                self.aligned[task].clear()
                self.passed[task] += 1
                for one in self.regular(task):
                    one.is_blocked = False
                self.emit(task, item)
                for one in self.regular(task):
                    one.look()
        link.look()
        if self.dice.random() < 0.2:
            for one in self.inputs[task]:
                one.widen(self.dice.choice((1, 2, 7, 1_000)))

    def emit(self, task: int, item: Item) -> None:
        for link in self.outputs[task]:
            if isinstance(item, Batch):
                times = 1 if link.is_back_edge else self.fan_out[task]
                records = (
                    [n - 1 for n in item.records if n > 0] if link.is_back_edge else item.records * times
                )
                if records:
                    link.take(Batch(list(records)))
            else:
                link.take(item)

    def actions(self) -> list[tuple[str, int]]:
        found = [("run", task) for task in range(self.count) if self.can_run(task)]
        found += [("arrive", position) for position, one in enumerate(self.links) if one.wire]
        return found + [("credit", position) for position, one in enumerate(self.links) if one.returning]

    def step(self, action: str, position: int) -> None:
        if action == "run":
            self.run(position)
            return
        link = self.links[position]
        if action == "arrive":
            link.arrive()
        else:
            link.sending.credited(link.returning.popleft())
            link.send()


@settings(max_examples=examples(150, few=50))
@given(st.integers(0, 2**32))
def test_nothing_gets_stuck_and_memory_is_bounded_whatever_the_graph_and_the_credit(seed: int) -> None:
    job = Job(seed)
    while actions := job.actions():
        job.step(*job.dice.choice(actions))
        for link in job.links:
            link.check(slice_items=2)
    for link in job.links:
        assert not link.queue and not link.sending.is_clogged, "stuck"
        assert not link.sending.is_used_up
        assert link.sending.under_way_bytes == link.receiving.uncredited_bytes
    assert not any(job.unread.values())


@dataclass
class Far:
    """The receiving end of a channel from another worker."""

    bytes_max: int
    restored_rows: int = 0
    may_spill: bool = False
    rows_max: int = 1_000

    def __post_init__(self) -> None:
        self.queue = InputQueue(CHANNEL, VirtualSpace(), BATCH_ROWS)
        if self.restored_rows:
            self.queue.append(Batch(list(range(self.restored_rows))))
        self.end = ReceivingEnd(self.queue, self.bytes_max, lambda: self.may_spill, is_back_edge=False)
        self.end.rows_max = self.rows_max

    def arrive(self, rows: int, size_bytes: int) -> None:
        self.end.arrived(rows, size_bytes)
        self.queue.append(Batch(list(range(rows))))

    def process(self, rows: int) -> int:
        """Return the bytes of credit that go back then."""
        while rows:
            item = self.queue.take(rows)
            assert isinstance(item, Batch)
            rows -= len(item)
        credit = self.end.credit()
        return credit.size_bytes if credit is not None else 0


def test_credit_comes_back_while_the_queue_is_never_empty() -> None:
    """A task that is a little slower than its sender: there is always something in memory."""
    far = Far(1_000)
    returned = 0
    for _ in range(9):
        far.arrive(10, 100)
    for _ in range(40):
        returned += far.process(5)
        if returned >= 200 and far.queue.rows < 60:
            far.arrive(10, 100)
    assert far.queue.rows > 0
    assert returned >= 1_000


def test_a_batch_of_which_a_record_is_left_has_no_credit_yet() -> None:
    far = Far(400)
    far.arrive(3, 200)
    far.arrive(1, 100)
    assert [far.process(rows) for rows in (2, 1, 1)] == [0, 200, 100]


def test_credit_that_nobody_waits_for_makes_few_frames() -> None:
    """A paced source: each batch has been processed before the next one comes."""
    far = Far(4_000)
    given = []
    for _ in range(100):
        far.arrive(1, 10)
        given.append(far.process(1))
    # The sender knows of 16 records first, then of 1,000.
    assert given == [0, 0, 0, 40, *[0] * 96]


def test_small_amounts_go_back_together() -> None:
    far = Far(4_000)
    for _ in range(100):
        far.arrive(1, 10)
    given = [far.process(rows) for rows in (0, *[1] * 100)]
    # The sender knows of 16 records first, then of 1,000.
    assert [one for one in given if one] == [40]


def test_small_amounts_go_back_together_by_records_too() -> None:
    far = Far(4_000_000, rows_max=40)
    far.arrive(40, 400)
    given = [far.end.credit()]
    for _ in range(40):
        far.queue.take(1)
        given.append(far.end.credit())
    # The first by the 16 records that the sender knows of.
    assert [one for one in given if one] == [Credit(0, 4, 40), *[Credit(0, 10, 40)] * 3]


def test_a_sender_hears_at_once_that_its_channel_may_hold_far_less() -> None:
    """Else it would fill the larger window, and the next barrier would wait behind that."""
    far = Far(4_000, rows_max=16)
    far.arrive(10, 100)
    assert far.end.credit() is None
    far.end.rows_max = 9
    assert far.end.credit() is None, "not worth a frame of its own"
    far.end.rows_max = 2
    assert far.end.credit() == Credit(0, 0, 2)
    assert far.end.credit() is None
    far.end.rows_max = 400
    assert far.end.credit() is None, "it hears of that with the next credit"
    far.queue.take(10)
    assert far.end.credit() == Credit(100, 10, 400)


def test_a_sender_in_the_same_worker_waits_for_records_as_well() -> None:
    far = Far(1, rows_max=100)
    far.queue.append(Batch(list(range(100))))
    assert not far.end.pauses_sender()
    far.queue.append(Batch([0]))
    assert far.end.pauses_sender()
    far.queue.take(50)
    assert far.end.pauses_sender()
    far.queue.take(1)
    assert not far.end.pauses_sender()


def test_a_batch_is_cut_where_the_receiver_is_slow_and_only_there() -> None:
    def left_after(rows: int, rows_max: int) -> tuple[list[int], int]:
        end = SendingEnd(CHANNEL, 1_000_000)
        end.rows_max = rows_max
        end.waiting.append(Batch(list(range(rows)), watermark=7))
        left = []
        for item in end.leaving():
            assert isinstance(item, Batch)
            assert item.watermark == (None if end.waiting else 7), "the news follows the last record"
            left.append(len(item))
            end.sent(1, len(item))
        return left, sum(len(one) for one in end.waiting if isinstance(one, Batch))

    assert left_after(1_000, 50) == ([50], 950)
    assert left_after(1_000, 1) == ([1], 999)
    assert left_after(1_000, 900) == ([1_000], 0)
    assert left_after(1_000, 1_000_000) == ([1_000], 0)


def test_what_was_restored_or_is_on_disk_goes_first_and_no_credit_waits_for_it() -> None:
    far = Far(200, restored_rows=5, may_spill=True)
    far.arrive(2, 99)
    assert far.process(4) == 0, "four of those that were restored have been processed"
    far.arrive(2, 1)
    assert far.process(0) == 100, "it is on disk"
    far.may_spill = False
    far.arrive(1, 10)
    far.arrive(1, 50)
    assert [far.process(rows) for rows in (0, *[1] * 7)] == [0, 0, 0, 0, 0, 0, 0, 60]


def test_a_sender_in_the_same_worker_goes_on_when_half_of_what_may_wait_is_left() -> None:
    far = Far(1)
    for _ in range(LOCAL_ITEMS_MAX):
        far.queue.append(Barrier(CheckpointId(1)))
    assert not far.end.pauses_sender()
    far.queue.append(Barrier(CheckpointId(1)))
    assert far.end.pauses_sender()
    while len(far.queue) > LOCAL_ITEMS_MAX // 2:
        assert far.end.pauses_sender()
        far.queue.popleft()
    assert not far.end.pauses_sender()


def test_more_credit_than_is_under_way_is_refused() -> None:
    end = SendingEnd(CHANNEL, 100)
    end.sent(150)
    assert end.is_used_up
    with pytest.raises(WireError, match="credit for 151 of 150 bytes"):
        end.credited(Credit(151, 0, 1))
    end.credited(Credit(100, 0, 1))
    assert not end.is_used_up
    end.credited(Credit(50, 0, 1))
    assert end.under_way_bytes == 0


def test_a_barrier_needs_no_credit_and_does_not_pass_records_that_wait_before_it() -> None:
    end = SendingEnd(CHANNEL, 100)
    end.waiting.extend([Barrier(CheckpointId(1)), Batch([1]), Barrier(CheckpointId(2))])
    end.sent(100)
    assert list(end.leaving()) == [Barrier(CheckpointId(1))]
    assert end.is_clogged
    end.credited(Credit(1, 0, 16))
    (batch,) = [item for item in [next(end.leaving())] if isinstance(item, Batch)]
    end.sent(10)
    assert batch.records == [1]
    assert list(end.leaving()) == [Barrier(CheckpointId(2))]
    assert not end.is_clogged


def test_a_restored_backlog_is_bounded_in_memory() -> None:
    """What is restored into an input with a disk goes there beyond a few megabytes."""
    space = VirtualSpace()
    queue = InputQueue(CHANNEL, space, BATCH_ROWS)
    for number in range(20):
        data = encode_batch(Batch([bytes([number]) * 500_000]))
        queue.restore(LoggedBatch(CHANNEL, data, 1, by_sender=False))
    assert space.taken_bytes > 5_000_000
    assert queue.in_memory < 10
