"""Flow control, of any graph with any credit: nothing gets stuck, and memory is bounded by the settings."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosscut.batch import Batch
from crosscut.errors import WireError
from crosscut.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.task.flow_control import (
    BACK_EDGE_ITEMS_MAX,
    LOCAL_ITEMS_MAX,
    Credit,
    LocalFlow,
    LocalReceiver,
    Receiver,
    leaving,
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
    waiting: deque[Item] = field(default_factory=deque)
    wire: deque[tuple[Item, int]] = field(default_factory=deque)
    returning: deque[int] = field(default_factory=deque)
    is_paused: bool = False
    is_blocked: bool = False
    largest_bytes: int = 0

    def __post_init__(self) -> None:
        self.queue = InputQueue(self.name, VirtualSpace(), BATCH_ROWS)
        self.credit = Credit(self.name, self.bytes_max)
        self.receiver = Receiver(self.bytes_max, 0, self.spill)
        self.local = LocalReceiver(self.spill, is_back_edge=self.is_back_edge)

    def spill(self) -> bool:
        may = self.is_back_edge or (self.is_blocked and self.spills_blocked)
        return may and self.queue.spill()

    @property
    def is_clogged(self) -> bool:
        return self.is_paused or bool(self.waiting)

    def send(self) -> None:
        for item in leaving(self.waiting, lambda: not self.is_local and self.credit.is_used_up):
            if self.is_local:
                self.queue.append(item)
                self.look()
                continue
            size_bytes = len(encode_batch(item)) if isinstance(item, Batch) else 0
            self.largest_bytes = max(self.largest_bytes, size_bytes)
            if isinstance(item, Batch):
                self.credit.take(size_bytes)
            self.wire.append((item, size_bytes))

    def arrive(self) -> None:
        item, size_bytes = self.wire.popleft()
        if isinstance(item, Batch):
            self.receiver.arrived(len(item), size_bytes)
        self.queue.append(item)
        self.look()

    def look(self) -> None:
        if self.is_local:
            match self.local.look(self.queue.in_memory, is_paused=self.is_paused):
                case LocalFlow.GO_ON:
                    self.is_paused = False
                case LocalFlow.PAUSE:
                    self.is_paused = True
                case LocalFlow.AS_IT_IS:
                    pass
        elif given_bytes := self.receiver.credit(self.queue.rows):
            self.returning.append(given_bytes)

    def check(self, slice_items: int) -> None:
        if self.is_local:
            items_max = BACK_EDGE_ITEMS_MAX if self.is_back_edge else LOCAL_ITEMS_MAX
            assert self.queue.in_memory <= items_max + slice_items
        else:
            bound = self.bytes_max + self.largest_bytes
            assert self.credit.under_way_bytes <= bound
            assert self.receiver.uncredited_bytes + sum(self.returning) <= bound
            if not self.queue.in_memory:
                assert not self.receiver.uncredited_bytes


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
        if any(one.is_clogged for one in self.outputs[task]):
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

    def emit(self, task: int, item: Item) -> None:
        for link in self.outputs[task]:
            if isinstance(item, Batch):
                times = 1 if link.is_back_edge else self.fan_out[task]
                records = (
                    [n - 1 for n in item.records if n > 0] if link.is_back_edge else item.records * times
                )
                if records:
                    link.waiting.append(Batch(list(records)))
            else:
                link.waiting.append(item)
            link.send()

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
            link.credit.give_back(link.returning.popleft())
            link.send()


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_nothing_gets_stuck_and_memory_is_bounded_whatever_the_graph_and_the_credit(seed: int) -> None:
    job = Job(seed)
    while actions := job.actions():
        job.step(*job.dice.choice(actions))
        for link in job.links:
            link.check(slice_items=2)
    for link in job.links:
        assert not link.waiting and not link.queue and not link.is_clogged, "stuck"
        assert link.credit.under_way_bytes == 0
    assert not any(job.unread.values())


def test_credit_comes_back_while_the_queue_is_never_empty() -> None:
    """A task that is a little slower than its sender: there is always something in memory."""
    receiver = Receiver(1_000, 0, lambda: False)
    queued, returned = 0, 0
    for _ in range(9):
        receiver.arrived(10, 100)
        queued += 10
    for _ in range(40):
        queued -= 5
        returned += receiver.credit(queued)
        if returned >= 200 and queued < 60:
            receiver.arrived(10, 100)
            queued += 10
    assert queued > 0
    assert returned >= 1_000


def test_a_batch_of_which_a_record_is_left_has_no_credit_yet() -> None:
    receiver = Receiver(400, 0, lambda: False)
    receiver.arrived(3, 200)
    receiver.arrived(1, 100)
    assert receiver.credit(2) == 0
    assert receiver.credit(1) == 200
    assert receiver.credit(0) == 100


def test_small_amounts_go_back_together() -> None:
    receiver = Receiver(4_000, 0, lambda: False)
    for _ in range(100):
        receiver.arrived(1, 10)
    given = [receiver.credit(rows) for rows in range(100, -1, -1)]
    assert [one for one in given if one] == [1_000]


def test_what_was_restored_or_is_on_disk_goes_first_and_no_credit_waits_for_it() -> None:
    may_spill = True
    receiver = Receiver(200, 5, lambda: may_spill)
    receiver.arrived(2, 99)
    assert receiver.credit(3) == 0, "four of those that were restored have been processed"
    receiver.arrived(2, 1)
    assert receiver.credit(5) == 100, "it is on disk"
    may_spill = False
    receiver.arrived(1, 10)
    assert [receiver.credit(rows) for rows in range(6, -1, -1)] == [0, 0, 0, 0, 0, 0, 10]


def test_more_credit_than_is_under_way_is_refused() -> None:
    credit = Credit(CHANNEL, 100)
    credit.take(150)
    assert credit.is_used_up
    with pytest.raises(WireError, match="credit for 151 of 150 bytes"):
        credit.give_back(151)
    assert credit.give_back(100)
    assert not credit.give_back(50)
    assert credit.under_way_bytes == 0


def test_a_restored_backlog_is_bounded_in_memory() -> None:
    """What is restored into an input with a disk goes there beyond a few megabytes."""
    space = VirtualSpace()
    queue = InputQueue(CHANNEL, space, BATCH_ROWS)
    for number in range(20):
        data = encode_batch(Batch([bytes([number]) * 500_000]))
        queue.restore(LoggedBatch(CHANNEL, data, 1, by_sender=False))
    assert space.taken_bytes > 5_000_000
    assert queue.in_memory < 10
