"""Several tasks wired in memory: a keyed fold with random scheduling, barriers, aborts and failovers.

The oracle knows nothing of tasks: it has the records, and how many of each split had been read when the
barrier left its source. The parts of every completed checkpoint must say what those records fold to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.examples import examples

import crosscut.state.table as table_module
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import invariant
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.specs import AggregateSpec, CountSpec, Emit, Input, KeyBySpec, OperatorNode
from crosscut.operators.building import build, keyed_state
from crosscut.protocol.messages import SnapshotAcknowledged, SourceDrained
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshots import Part, Snapshot
from crosscut.state.encoding import contents
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.parts import PartChain
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Item
from crosscut.task.outputs import build_output
from crosscut.task.plan import TaskPlan
from crosscut.task.requests import CancelStore, CompleteState, StoreFrozen
from crosscut.task.splits import SplitQueue, splits_from_json
from crosscut.task.task import Task
from crosscut.testing.simulator.drawn_batch_sizer import DrawnTimeBudget

WIDTH = 2
WORKERS = range(WIDTH)
STEPS_MAX = 50_000
Record = tuple[str, int]
"""(key, number); numbers are unique."""


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "ROWS_PER_BLOCK", 2)
        yield


class Lists(Source):
    """Two splits per task, with pauses; tells how far each has been read."""

    def __init__(self, records: dict[str, list[Record]], dice: random.Random) -> None:
        self.records = records
        self.dice = dice
        self.read_counts = dict.fromkeys(records, 0)

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(name, 0) for name in self.records]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        assert isinstance(position, int)
        self.read_counts[split.split_id] = position
        return ListReader(self, split.split_id)


class ListReader(SplitReader):
    def __init__(self, source: Lists, name: str) -> None:
        self._source = source
        self._name = name

    @property
    def position(self) -> JSON:
        return self._source.read_counts[self._name]

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        at, records = self._source.read_counts[self._name], self._source.records[self._name]
        if at == len(records):
            return EndOfSplit()
        if self._source.dice.random() < 0.2:
            return Wait(1.0)
        found = records[at : at + self._source.dice.randint(1, limit)]
        self._source.read_counts[self._name] += len(found)
        return found


def appended(numbers: list[int], record: Record) -> list[int]:
    numbers.append(record[1])
    return numbers


def key_of(record: Record) -> str:
    return record[0]


class World:
    """Worker i has source i and fold i. Everything that could happen next is a list; the dice choose."""

    def __init__(self, seed: int, *, counts: bool, emit: Emit, sizes: list[int], aborts: bool) -> None:
        self.dice = random.Random(seed)
        number = iter(range(10_000))
        self.records = {
            f"split {name}": [(self.dice.choice("abcdefgh"), next(number)) for _ in range(size)]
            for name, size in enumerate(sizes)
        }
        self.counts = counts
        self.aborts = aborts
        spec = CountSpec(emit) if counts else AggregateSpec(list, appended, None, emit)
        self.fold = OperatorNode("fold", spec, (Input("by-key", "hash"),))
        self.key_by = OperatorNode("by-key", KeyBySpec(key_of, keys_only=counts), (Input("read", "forward"),))
        self.bytes_of: dict[str, bytes] = {}
        self.states: dict[int, KeyedState] = {}
        self.read_at: dict[int, dict[str, int]] = {}
        self.completed: dict[TaskId, Snapshot] = {}
        self.completed_id = CheckpointId(0)
        self.next_id = 1
        self.epoch = 0
        self.completed_count = self.failover_count = 0
        self.is_finished = False
        self.deploy()

    # An epoch.

    def deploy(self) -> None:
        self.epoch += 1
        sources = [TaskId(VertexId("read"), index) for index in WORKERS]
        folds = [TaskId(VertexId("fold"), index) for index in WORKERS]
        self.wires: dict[ChannelId, deque[Item]] = {
            ChannelId(0, source, fold): deque() for source in sources for fold in folds
        }
        self.tasks: dict[TaskId, Task] = {}
        self.jobs: dict[TaskId, deque[StoreFrozen | CompleteState]] = {}
        self.encoding: dict[TaskId, tuple[StoreFrozen, Iterator[bytes], list[bytes]]] = {}
        self.merging: dict[TaskId, Iterator[None]] = {}
        self.cancelled: set[CheckpointId] = set()
        # What the coordinator has said to each worker and the worker has not read yet.
        self.links: dict[int, deque[tuple[str, CheckpointId]]] = {index: deque() for index in WORKERS}
        self.under_way: CheckpointId | None = None
        self.acknowledged: dict[TaskId, Snapshot] = {}
        self.drained: set[TaskId] = set()
        self.sources: dict[int, Lists] = {}
        self.emitted: list[tuple[str, Any]] = []
        for task_id in sources:
            self.add_source(task_id)
        for task_id in folds:
            self.add_fold(task_id)

    def add_source(self, task_id: TaskId) -> None:
        snapshot = self.completed.get(task_id, Snapshot())
        names = sorted(self.records)[task_id.index :: WIDTH]
        source = Lists({name: self.records[name] for name in names}, self.dice)
        self.sources[task_id.index] = source
        unread = [(split, split.start) for split in source.splits(WIDTH)]
        if self.completed_id:
            unread = splits_from_json(snapshot.positions)
            source.read_counts = {name: len(self.records[name]) for name in names}
            source.read_counts |= {split.split_id: int(str(position)) for split, position in unread}
        channels = tuple(channel for channel in self.wires if channel.source == task_id)
        output = build_output(
            "hash",
            channels,
            batch_rows=3,
            router=KeyRouter(16, WIDTH),
            key_by_uid="by-key",
            task_index=task_id.index,
        )
        operator = build(self.key_by, None, None)
        assert operator is not None
        task = self.tasks[task_id] = Task(
            TaskPlan(
                task_id=task_id,
                epoch=Epoch(self.epoch),
                protocol=AlignedBarriers(()),
                inputs={},
                chain=[operator],
                outputs=[output],
                batch_rows=4,
                channel_bytes=1 << 20,
                splits=SplitQueue(source, unread),
                restored=snapshot,
            )
        )
        task.chain.follow(DrawnTimeBudget(self.dice.randrange))

    def add_fold(self, task_id: TaskId) -> None:
        snapshot = self.completed.get(task_id, Snapshot())
        state = self.states.get(task_id.index)
        if state is not None and self.completed_id in state.at_hand and self.dice.random() < 0.5:
            state.roll_back(self.completed_id)
        else:
            made = keyed_state(self.fold)
            assert made is not None
            state = made
            parts = [(part.checkpoint_id, self.bytes_of[part.path]) for part in snapshot.parts]
            for _ in state.loading(parts, self.completed_id):
                pass
        self.states[task_id.index] = state
        operator = build(self.fold, state, None)
        assert operator is not None
        inputs = tuple(channel for channel in self.wires if channel.target == task_id)
        after = ChannelId(1, task_id, TaskId(VertexId("after"), 0))
        output = build_output(
            "forward", (after,), batch_rows=3, router=KeyRouter(1, 1), key_by_uid="", task_index=0
        )
        task = self.tasks[task_id] = Task(
            TaskPlan(
                task_id=task_id,
                epoch=Epoch(self.epoch),
                protocol=AlignedBarriers(inputs),
                inputs={channel: InputQueue(channel) for channel in inputs},
                chain=[operator],
                outputs=[output],
                batch_rows=4,
                channel_bytes=1 << 20,
                state=state,
                parts=PartChain(self.completed_id, snapshot.parts),
                restored=snapshot,
            )
        )
        task.chain.follow(DrawnTimeBudget(self.dice.randrange))

    # What can happen next.

    def step(self) -> None:
        actions: list[Any] = [
            *((self.run, task) for task in self.tasks.values() if task.has_work),
            *((self.flush, task) for task in self.tasks.values() if task.output_buffers.has_buffered),
            *((self.deliver, channel) for channel, wire in self.wires.items() if wire),
            *((self.background, task_id) for task_id in self.tasks if self.has_background(task_id)),
            *((self.hear, index) for index, link in self.links.items() if link),
        ]
        if self.under_way is None and (self.dice.random() < 0.2 or not actions):
            actions = [(self.trigger, None)]
        elif self.aborts and self.under_way is not None and self.dice.random() < 0.01:
            actions = [(self.abort, None)]
        elif self.failover_count < 3 and self.dice.random() < 0.01:
            actions = [(self.fail_over, None)]
        act, subject = self.dice.choice(actions)
        act(subject)

    def run(self, task: Task) -> None:
        task.run()
        self.drain(task)

    def flush(self, task: Task) -> None:
        task.output_buffers.flush()
        self.drain(task)

    def deliver(self, channel: ChannelId) -> None:
        self.tasks[channel.target].offer(channel, self.wires[channel].popleft())

    def drain(self, task: Task) -> None:
        jobs, task.task_effects.background_jobs = task.task_effects.background_jobs, []
        for job in jobs:
            if isinstance(job, CancelStore):
                self.cancelled.add(job.checkpoint_id)
            elif isinstance(job, StoreFrozen | CompleteState):
                self.jobs.setdefault(task.task_id, deque()).append(job)
        outbox, task.task_effects.outbox = task.task_effects.outbox, []
        for channel, item in outbox:
            if channel in self.wires:
                self.wires[channel].append(item)
            else:
                self.emitted += getattr(item, "records", [])
        messages, task.task_effects.messages = task.task_effects.messages, []
        for message in messages:
            match message:
                case SnapshotAcknowledged(_, n, task_id, snapshot) if n == self.under_way:
                    self.acknowledged[task_id] = snapshot
                case SourceDrained(_, task_id):
                    self.drained.add(task_id)
        if len(self.acknowledged) == len(self.tasks):
            self.complete()

    def has_background(self, task_id: TaskId) -> bool:
        return bool(task_id in self.encoding or task_id in self.merging or self.jobs.get(task_id))

    def background(self, task_id: TaskId) -> None:
        """One step of storing or merging, in the order in which they were asked for."""
        if task_id in self.merging:
            if next(self.merging[task_id], self) is self:
                del self.merging[task_id]
            return
        if task_id not in self.encoding:
            job = self.jobs[task_id].popleft()
            state = self.states[task_id.index]
            if isinstance(job, CompleteState):
                self.merging[task_id] = state.complete(job.checkpoint_id)
                return
            is_keyed = task_id.vertex == "fold"
            chunks = state.encoded(job.frozen.checkpoint_id, job.frozen.since) if is_keyed else iter(())
            self.encoding[task_id] = (job, chunks, [])
            return
        job, steps, chunks_so_far = self.encoding[task_id]
        n, task = job.frozen.checkpoint_id, self.tasks[task_id]
        chunk = None if n in self.cancelled else next(steps, None)
        if chunk is not None:
            chunks_so_far.append(chunk)
            return
        del self.encoding[task_id]
        part = None
        if chunks_so_far and n not in self.cancelled:
            data = b"".join(chunks_so_far)
            part = Part(f"parts/{n}/{task_id}-{self.epoch}", len(data), "", "", n)
            self.bytes_of[part.path] = data
        task.snapshots.stored(n, part, 0)
        self.drain(task)

    # The coordinator.

    def trigger(self, _: None) -> None:
        n = self.under_way = CheckpointId(self.next_id)
        self.next_id += 1
        self.acknowledged = {}
        self.read_at[n] = {}
        self.say("trigger", n)

    def abort(self, _: None) -> None:
        assert self.under_way is not None
        self.say("abort", self.under_way)
        self.under_way = None
        self.acknowledged = {}

    def complete(self) -> None:
        n = self.under_way
        assert n is not None
        self.check(n)
        self.completed, self.completed_id = self.acknowledged, n
        self.acknowledged, self.under_way = {}, None
        self.completed_count += 1
        self.is_finished = all(one.drained for one in self.completed.values())
        self.say("completed", n)

    def say(self, word: str, n: CheckpointId) -> None:
        for link in self.links.values():
            link.append((word, n))

    def hear(self, index: int) -> None:
        word, n = self.links[index].popleft()
        for task in list(self.tasks.values()):
            if task.task_id.index != index:
                continue
            if word == "trigger" and task.is_source:
                # The cut at this source: all that it has read by now, and nothing later.
                self.read_at[n] |= self.sources[index].read_counts
            match word:
                case "trigger":
                    task.snapshots.trigger(n)
                case "abort":
                    task.snapshots.abort(n)
                case "completed":
                    task.checkpoint_completed(n)
            self.drain(task)

    def fail_over(self, _: None) -> None:
        self.failover_count += 1
        if not self.completed_id:
            self.states = {}
        self.deploy()

    # The oracle.

    def folded(self, read_counts: dict[str, int]) -> dict[str, Any]:
        folded: dict[str, Any] = {}
        for name in sorted(self.records):
            for key, number in self.records[name][: read_counts[name]]:
                if self.counts:
                    folded[key] = folded.get(key, 0) + 1
                else:
                    folded.setdefault(key, []).append(number)
        return folded

    def comparable(self, values: dict[str, Any]) -> dict[str, Any]:
        """Numbers by split, in order: between splits no order is promised."""
        if self.counts:
            return values
        home = {number: name for name, records in self.records.items() for _, number in records}
        return {
            key: {name: [n for n in numbers if home[n] == name] for name in map(home.get, numbers)}
            for key, numbers in values.items()
        }

    def check(self, n: CheckpointId) -> None:
        read_counts = self.read_at[n]
        found: dict[str, Any] = {}
        router = KeyRouter(16, WIDTH)
        for task_id, snapshot in self.acknowledged.items():
            if task_id.vertex == "read":
                unfinished = {split.split_id: at for split, at in splits_from_json(snapshot.positions)}
                for name in self.sources[task_id.index].records:
                    assert unfinished.get(name, len(self.records[name])) == read_counts[name]
                continue
            own = contents(self.bytes_of[one.path] for one in snapshot.parts).get(MAIN, {})
            assert all(router[key] == task_id.index for key in own)
            found |= own
        assert self.comparable(found) == self.comparable(self.folded(read_counts))


def run_world(world: World) -> None:
    for _ in range(STEPS_MAX):
        world.step()
        if world.is_finished:
            return
    raise AssertionError("the final checkpoint never came")


SIZES = st.lists(st.integers(0, 40), min_size=WIDTH, max_size=2 * WIDTH)


@settings(max_examples=examples(400, few=100))
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["updates", "final"]), SIZES, st.booleans())
def test_the_parts_of_each_completed_checkpoint_fold_exactly_the_records_before_its_barrier(
    seed: int, counts: bool, emit: Emit, sizes: list[int], aborts: bool
) -> None:
    """A1, A2, E3, I1, I2, I4, I5."""
    world = World(seed, counts=counts, emit=emit, sizes=sizes, aborts=aborts)
    run_world(world)
    # The final checkpoint was compared too; it holds everything.
    assert world.read_at[world.completed_id] == {name: len(one) for name, one in world.records.items()}


@settings(max_examples=examples(100, few=40))
@given(st.integers(0, 2**32), st.booleans(), SIZES)
def test_without_failures_final_values_leave_once_and_updates_are_every_value_of_the_key(
    seed: int, is_final: bool, sizes: list[int]
) -> None:
    world = World(seed, counts=True, emit="final" if is_final else "updates", sizes=sizes, aborts=True)
    world.failover_count = 3
    run_world(world)
    totals = world.folded({name: len(one) for name, one in world.records.items()})
    if is_final:
        assert sorted(world.emitted) == sorted(totals.items())
        return
    expected = [(key, n) for key, total in totals.items() for n in range(1, total + 1)]
    assert sorted(world.emitted) == sorted(expected)
    for key in totals:
        own = [n for one, n in world.emitted if one == key]
        assert own == sorted(own)


def test_the_worlds_have_checkpoints_and_failovers_in_the_middle_of_the_input() -> None:
    """A property that is only checked on worlds in which nothing happens would pass as well."""
    completed, failovers, partial = 0, 0, 0
    for seed in range(20):
        world = World(seed, counts=True, emit="updates", sizes=[40, 30, 20], aborts=True)
        run_world(world)
        completed += world.completed_count
        failovers += world.failover_count
        partial += sum(0 < sum(one.values()) < 90 for one in world.read_at.values())
        invariant(world.completed_id > 0, "the final checkpoint has an id")
    assert completed > 40
    assert failovers > 20
    assert partial > 20
