"""Sources that wait for slower ones: none is read too far ahead, and all come to their end, come what may."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.bare_task import output, task_of

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.messages import AlignSources, SourceReached, SourcesReached
from crosscut.protocol.splits.alignment import AlignedSplits, SourceGroups
from crosscut.task.splits import SplitQueue

NUMBERS = VertexId("numbers")
WITHIN_MS = 10
IDLE_AFTER_MS = 3
STEPS = st.lists(st.integers(0, 100) | st.just(cc.Wait(1)), max_size=8)
SPLITS = st.lists(STEPS, min_size=1, max_size=4)
CHANCES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=60)


class Listed(cc.Source[Any]):
    def __init__(self, splits: list[list[Any]], open_splits_max: int) -> None:
        self.steps = {f"s{number}": list(steps) for number, steps in enumerate(splits)}
        self.open_splits_max = open_splits_max

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split(name, 0) for name in self.steps]

    def reader(self, split: cc.Split, position: Any) -> Reader:
        return Reader(self.steps[split.split_id])


class Reader(cc.SplitReader):
    position = 0

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def read(self, limit: int) -> Any:
        if not self.steps:
            return cc.EndOfSplit()
        step = self.steps.pop(0)
        return step if isinstance(step, cc.Wait) else [step]

    def close(self) -> None:
        pass


class Member:
    """A source task, and the words between it and the coordinator."""

    def __init__(self, index: int, splits: list[list[Any]], open_splits_max: int, *, may_idle: bool) -> None:
        here = TaskId(NUMBERS, index)
        out = ChannelId(0, here, TaskId(VertexId("after"), 0))
        self.queue = SplitQueue(
            source := Listed(splits, open_splits_max), [(split, 0) for split in source.splits(1)]
        )
        self.times = AssignTimestamps("times", lambda n: n, 0, IDLE_AFTER_MS if may_idle else None)
        self.task = task_of(
            self.times,
            task_id=here,
            inputs=(),
            outputs=[output(out, rows=9)],
            rows=9,
            splits=self.queue,
            source_uid="numbers",
            has_event_time=True,
            aligned=AlignedSplits("group", WITHIN_MS),
        )
        self.index = WorkerIndex(index)
        self.said: SourceReached | None = None
        self.said_count = 0
        self.up: deque[SourcesReached] = deque()
        self.down: deque[AlignSources] = deque()
        self.heard: list[SourcesReached] = []
        self.told: list[AlignSources] = []

    @property
    def reached(self) -> int | None:
        found = self.task.reached
        assert found is not None
        return found.watermark

    def says(self) -> None:
        if (reached := self.task.reached) is not None and reached != self.said:
            self.said = reached
            self.said_count += 1
            self.up.append(SourcesReached(Epoch(1), self.said_count, (reached,)))

    def reads(self, now_ms: int) -> list[int]:
        """Read once; return what has been read, of the split that is named by `times.origin`."""
        if not self.task.has_work:
            return []
        self.task.set_clock(now_ms)
        self.task.run()
        self.task.output_buffers.flush()
        items, self.task.task_effects.outbox = self.task.task_effects.outbox, []
        return [n for _, item in items if isinstance(item, Batch) for n in item.records]


class Job:
    def __init__(self, tasks: list[list[list[Any]]], open_splits_max: int, *, may_idle: bool) -> None:
        self.members = [
            Member(index, splits, open_splits_max, may_idle=may_idle) for index, splits in enumerate(tasks)
        ]
        self.groups = SourceGroups({NUMBERS: "group"})
        self.now_ms = 1_000

    def hears(self, member: Member) -> None:
        """The coordinator takes one word of a task."""
        if member.up:
            member.heard.append(member.up.popleft())
            self.groups.note(member.index, member.heard[-1])
            self.says()

    def says(self) -> None:
        """The coordinator says what is news, unless it pauses."""
        if (news := self.groups.news()) is not None:
            for one in self.members:
                one.down.append(news)

    def is_told(self, member: Member) -> None:
        if member.down:
            member.told.append(member.down.popleft())
            member.task.align(member.told[-1])

    def repeat(self, member: Member, which: int) -> None:
        """Words that have come already come again."""
        if member.heard:
            self.groups.note(member.index, member.heard[which % len(member.heard)])
            self.says()
        if member.told:
            member.task.align(member.told[which % len(member.told)])

    def exchange(self) -> None:
        """All is said and heard that there is to say."""
        for member in self.members:
            member.says()
            while member.up:
                self.hears(member)
        self.groups.pause_over()
        self.says()
        for member in self.members:
            while member.down:
                self.is_told(member)

    @property
    def is_over(self) -> bool:
        return all(member.queue.is_drained for member in self.members)


@given(st.lists(SPLITS, min_size=1, max_size=3), st.integers(1, 3), CHANCES, st.booleans())
def test_all_splits_come_to_their_end_whenever_words_arrive(
    tasks: list[list[list[Any]]], open_splits_max: int, chances: list[tuple[int, int]], may_idle: bool
) -> None:
    job = Job(tasks, open_splits_max, may_idle=may_idle)
    read = 0
    for what, who in chances:
        member = job.members[who % len(job.members)]
        job.now_ms += 1
        match what:
            case 0:
                read += len(member.reads(job.now_ms))
            case 1:
                member.says()
            case 2:
                job.hears(member)
            case 3:
                job.is_told(member)
            case _:
                job.repeat(member, who)
    for turn in range(200):
        job.now_ms += 1
        job.exchange()
        for what, who in chances[turn : turn + 1]:
            job.repeat(job.members[who % len(job.members)], what)
        read += sum(len(member.reads(job.now_ms)) for member in job.members)
    assert job.is_over
    assert read == sum(isinstance(step, int) for splits in tasks for steps in splits for step in steps)


@given(st.lists(SPLITS, min_size=1, max_size=3), st.integers(1, 3), st.lists(st.integers(0, 2), max_size=60))
def test_where_all_words_have_arrived_no_split_is_read_that_is_too_far_ahead(
    tasks: list[list[list[Any]]], open_splits_max: int, turns: list[int]
) -> None:
    job = Job(tasks, open_splits_max, may_idle=False)
    for turn in turns:
        member = job.members[turn % len(job.members)]
        job.exchange()
        before = dict(member.times.awaited(member.queue.open_ids))
        lowest = min((one.reached for one in job.members if one.reached is not None), default=None)
        if member.reads(job.now_ms) and lowest is not None:
            # The limit is for what it was at before: nobody knows what comes next.
            assert before.get(member.times.origin, 0) <= lowest + WITHIN_MS
