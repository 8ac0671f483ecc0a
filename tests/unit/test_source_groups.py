"""Fast sources wait for slow ones: which splits are not read, and what tasks and coordinator say of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.conversation import S0, S1, Talk, both
from tests.unit import bare_task
from tests.unit.bare_task import unread

import crosscut as cc
from crosscut.errors import FlowError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.graph.source_groups import aligned_splits, source_groups
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.effects import StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.messages import AlignSources, SlowestSource, SourceReached, SourcesReached
from crosscut.protocol.snapshots import Snapshot
from crosscut.protocol.splits.alignment import AlignedSplits, SourceGroups
from crosscut.task.items import Barrier, EndOfInput
from crosscut.task.requests import StoreFrozen
from crosscut.task.splits import SplitQueue
from crosscut.task.task import Task
from crosscut.wire.control import COORDINATOR_MESSAGES, WORKER_MESSAGES, decode_control, encode_control

GROUP = "source numbers"
ONE, OTHER, FAR = (TaskId(VertexId("numbers"), index) for index in range(3))
OUT = ChannelId(0, ONE, TaskId(VertexId("after"), 0))
E1 = Epoch(1)


def said(number: int, *groups: SlowestSource) -> AlignSources:
    return AlignSources(Epoch(0), number, groups)


def reached(number: int, *tasks: SourceReached) -> SourcesReached:
    return SourcesReached(Epoch(0), number, tasks)


def test_a_split_waits_while_it_is_further_ahead_of_the_slowest_than_the_limit() -> None:
    splits = AlignedSplits(GROUP, 10)
    assert splits.held({}) == frozenset()
    assert splits.held({"a": 5, "b": 15, "c": 16}) == {"c"}
    splits.apply(ONE, said(1, SlowestSource(GROUP, OTHER, 0, 5)))
    assert splits.held({"a": 5, "b": 15, "c": 10}) == {"b"}
    # It is the slowest itself: others are the next ones, and it knows better how far it is.
    splits.apply(ONE, said(2, SlowestSource("group of others", FAR, 100), SlowestSource(GROUP, ONE, 0, 30)))
    assert splits.held({"a": 25, "b": 35, "c": 36}) == {"c"}
    splits.apply(ONE, said(3, SlowestSource(GROUP)))
    assert splits.held({"a": 100}) == frozenset()


def test_a_word_that_comes_again_after_a_newer_one_makes_nobody_wait() -> None:
    splits = AlignedSplits(GROUP, 10)
    splits.apply(ONE, said(1, SlowestSource(GROUP, OTHER, 5)))
    splits.apply(ONE, said(2, SlowestSource(GROUP, OTHER, 95)))
    splits.apply(ONE, said(1, SlowestSource(GROUP, OTHER, 5)))
    assert splits.held({"a": 100}) == frozenset()
    groups = SourceGroups({ONE.vertex: GROUP})
    assert groups.note(WorkerIndex(0), reached(1, SourceReached(ONE, 5)))
    assert groups.note(WorkerIndex(1), reached(1, SourceReached(OTHER, 5)))
    assert groups.note(WorkerIndex(0), reached(2, SourceReached(ONE, 95)))
    assert not groups.note(WorkerIndex(0), reached(1, SourceReached(ONE, 5)))
    assert not groups.note(WorkerIndex(0), reached(2, SourceReached(ONE, 5)))
    assert groups.note(WorkerIndex(1), reached(2, SourceReached(OTHER, None)))
    assert groups.news() == said(1, SlowestSource(GROUP, ONE, 95))


def test_the_coordinator_says_who_is_slowest_and_who_comes_next_when_that_is_news() -> None:
    groups = SourceGroups({ONE.vertex: GROUP, VertexId("names"): "group all", VertexId("words"): "group all"})
    names, words = TaskId(VertexId("names"), 0), TaskId(VertexId("words"), 0)
    count = 0

    def news(*some: SourceReached) -> tuple[SlowestSource, ...]:
        nonlocal count
        count += 1
        groups.note(WorkerIndex(0), reached(count, *some))
        groups.pause_over()
        found = groups.news()
        return found.groups if found is not None else ()

    assert news(SourceReached(ONE, 5)) == (SlowestSource(GROUP, ONE, 5),)
    assert news(SourceReached(OTHER, 9), SourceReached(names, 1)) == (
        SlowestSource(GROUP, ONE, 5, 9),
        SlowestSource("group all", names, 1),
    )
    assert news(SourceReached(FAR, 20)) == ()
    assert news(SourceReached(words, 7)) == (SlowestSource("group all", names, 1, 7),)
    assert news(SourceReached(ONE, None)) == (SlowestSource(GROUP, OTHER, 9, 20),)
    assert news(SourceReached(OTHER, None), SourceReached(FAR, None)) == (SlowestSource(GROUP),)
    assert news(SourceReached(TaskId(VertexId("alone"), 0), 3)) == ()
    groups.begin(Epoch(2))
    groups.note(WorkerIndex(0), reached(1, SourceReached(FAR, 20)))
    assert groups.news() == AlignSources(Epoch(2), 1, (SlowestSource(GROUP, FAR, 20),))


def test_what_is_news_within_a_pause_is_said_once_after_it() -> None:
    groups = SourceGroups({ONE.vertex: GROUP})
    pauses = []
    for number in range(1, 12):
        for worker, watermark in enumerate((50, 40, 30)):
            at = SourceReached(TaskId(ONE.vertex, worker), watermark + number)
            groups.note(WorkerIndex(worker), reached(number, at))
            # Nothing is said while the pause lasts, however much there is.
            assert (groups.news() is None) == (number > 1 or worker > 0)
        groups.pause_over()
        assert groups.news() == said(number + 1, SlowestSource(GROUP, FAR, 30 + number, 40 + number))
        pauses.append(groups.pause_ms)
    assert pauses == [4, 8, 16, 32, 64, 128, 200, 200, 200, 200, 200]
    groups.pause_over()
    assert groups.news() is None


def test_the_coordinator_says_it_to_all_and_pauses_then() -> None:
    talk = Talk(lambda terms: Coordinator(replace(terms, source_groups=((S0.vertex, GROUP),))))
    talk.running()
    first = AlignSources(E1, 1, (SlowestSource(GROUP, S0, 5),))
    assert talk.message(0, SourcesReached(E1, 1, (SourceReached(S0, 5),))) == [
        StartTimer(Timer("align", E1), 2),
        *both(first),
    ]
    assert talk.message(1, SourcesReached(E1, 1, (SourceReached(S1, 9),))) == []
    second = AlignSources(E1, 2, (SlowestSource(GROUP, S0, 5, 9),))
    assert talk.fire("align") == [
        StartTimer(Timer("align", E1), 4),
        *both(second),
    ]
    assert talk.message(1, SourcesReached(E1, 1, (SourceReached(S1, 1),))) == []
    assert talk.coordinator.dropped["late message of how far sources are"] == 1
    # There was no news: nobody needs to come back.
    assert talk.fire("align") == []


def test_their_words_are_the_same_after_the_wire() -> None:
    word = SourcesReached(Epoch(3), 7, (SourceReached(ONE, 5), SourceReached(OTHER, None)))
    assert decode_control(encode_control(word), WORKER_MESSAGES) == word
    answer = AlignSources(Epoch(3), 2, (SlowestSource(GROUP, ONE, 5, None), SlowestSource("group all")))
    assert decode_control(encode_control(answer), COORDINATOR_MESSAGES) == answer


# Tasks.


class Listed(cc.Source[Any]):
    """Splits that give what is listed, step by step: lists of records, or Wait."""

    open_splits_max = 2

    def __init__(self, **steps: list[Any]) -> None:
        self.steps = {name: list(some) for name, some in steps.items()}

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split(name, 0) for name in self.steps]

    def reader(self, split: cc.Split, position: Any) -> ListedReader:
        return ListedReader(self.steps[split.split_id])


class ListedReader(cc.SplitReader):
    position = 0

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def read(self, limit: int) -> Any:
        return self.steps.pop(0) if self.steps else cc.EndOfSplit()

    def close(self) -> None:
        pass


def task_of(
    source: Listed, *, within_ms: int = 10, idle_after_ms: int | None = None, restored: Snapshot | None = None
) -> Task:
    return bare_task.task_of(
        AssignTimestamps("times", lambda n: n, 0, idle_after_ms),
        task_id=ONE,
        inputs=(),
        outputs=[bare_task.output(OUT)],
        splits=unread(source),
        source_uid="numbers",
        has_event_time=True,
        aligned=AlignedSplits(GROUP, within_ms),
        restored=restored,
    )


def work(task: Task, now_ms: int = 0) -> list[Any]:
    """Run as long as there is something to read now; return what was sent."""
    task.set_clock(now_ms)
    while task.has_work:
        task.run()
        if task.wait_ms:
            break
    task.output_buffers.flush()
    items, task.task_effects.outbox = task.task_effects.outbox, []
    found: list[Any] = []
    for _, item in items:
        found += item.records if isinstance(item, Batch) else [item]
    return found


def test_a_task_reads_its_splits_abreast() -> None:
    task = task_of(Listed(fast=[[n * 10] for n in range(1, 6)], slow=[[n] for n in range(12, 60, 12)]))
    said = work(task)
    assert said == [10, 12, 20, 24, 30, 36, 40, 48, 50, EndOfInput()]
    task = task_of(Listed(fast=[[n * 100] for n in range(1, 4)], slow=[[n] for n in range(5)]))
    assert work(task) == [100, *range(5), 200, 300, EndOfInput()]


def test_a_task_waits_for_slower_ones_and_a_barrier_does_not_wait_for_anybody() -> None:
    task = task_of(Listed(fast=[[n * 10] for n in range(1, 6)]))
    task.align(said(1, SlowestSource(GROUP, OTHER, 5, 10)))
    assert work(task) == [10, 20]
    assert task.reached == SourceReached(ONE, 20)
    assert (task.statistics().held_splits, task.wait_ms > 0) == (1, True)
    task.snapshots.trigger(CheckpointId(1))
    assert work(task) == [Barrier(CheckpointId(1))]
    assert any(isinstance(one, StoreFrozen) for one in task.task_effects.background_jobs)
    assert not task.align(said(2, SlowestSource("group of others", FAR, 100, None)))
    # As no split is freed by it, it is asked no sooner than it would be.
    assert not task.align(said(3, SlowestSource(GROUP, OTHER, 6, 10)))
    assert task.align(said(4, SlowestSource(GROUP, OTHER, 25, 30)))
    assert work(task) == [30, 40]
    task.align(said(5, SlowestSource(GROUP, ONE, 40, None)))
    assert work(task) == [50, EndOfInput()]
    assert task.reached == SourceReached(ONE, None)


def test_who_is_idle_or_has_not_begun_or_has_ended_keeps_nobody_waiting() -> None:
    waits = cc.Wait(1)
    source = Listed(fast=[[n * 100] for n in range(1, 4)], quiet=[[1], *[waits] * 9], unread=[[0], [500]])
    task = task_of(source, idle_after_ms=50)
    # While one has nothing to read, another is begun; it goes ahead like the first.
    assert work(task, 1_000) == [100, 1, 0, 500]
    assert work(task, 1_010) == []
    said: list[Any] = []
    for now_ms in range(1_020, 1_200, 10):
        said += work(task, now_ms)
    assert said == [200, 300, EndOfInput()]


def test_a_split_that_waits_beside_others_that_are_held_is_asked_once_and_has_one_more_begun() -> None:
    steps: dict[str, list[Any]] = {"fast": [[100]] * 5, "quiet": [[1], *[cc.Wait(1)] * 100]}
    steps |= {f"more {n}": [[500], [600]] for n in range(50)}
    source = Listed(**steps)
    queue = SplitQueue(source, [(split, split.start) for split in source.splits(1)])
    assert [queue.read(10), queue.read(10)] == [[100], [1]]
    assert queue.read(10, {"fast"}) == [500]
    for times in range(2, 12):
        assert queue.read(10, {"fast", "more 0"}) == cc.Wait(1)
        assert len(source.steps["quiet"]) == 100 - times
    assert len(queue.open_ids) == 3


def test_a_restored_task_knows_how_far_its_splits_were() -> None:
    assigned = {"times": [5, {"fast": 40, "slow": 5}]}
    restored = Snapshot(watermark=None, assigned=assigned)
    task = task_of(Listed(fast=[[50]], slow=[[6], [45]]), restored=restored)
    assert work(task)[:1] == [50]
    task = task_of(Listed(slow=[[6], [45]], fast=[[50]]), restored=restored)
    assert work(task) == [6, 45, 50, EndOfInput()]


# Flows.


def test_sources_are_in_a_group_of_their_own_or_in_one_that_has_a_name() -> None:
    flow = cc.Flow("groups")
    one, two, three = (flow.source(cc.items([1])).named(name) for name in ("one", "two", "three"))
    one.assign_timestamps(int, align_within="1m", idle_after="1m").sink(cc.printing())
    two.assign_timestamps(int, align_within="1m", idle_after="1m", align_group="both").sink(cc.printing())
    three.assign_timestamps(int, align_within=5, align_group="both", idle_after="1m").sink(cc.printing())
    flow.source(cc.items([1])).named("four").assign_timestamps(int).sink(cc.printing())
    graph = flow.compile(2, 8)
    assert source_groups(graph) == (("one", "source one"), ("two", "group both"), ("three", "group both"))
    splits = aligned_splits(graph, graph.vertices[0])
    assert splits is not None
    assert splits.held({"a": 0, "b": 60_000, "c": 60_001}) == {"c"}


def test_it_is_refused_where_it_would_do_nothing() -> None:
    far = cc.Flow("far")
    far.source(cc.items([1])).rebalance().assign_timestamps(int, align_within=1, idle_after="1m").named(
        "times"
    ).sink(cc.printing())
    with pytest.raises(
        FlowError, match="'times': align_within makes splits of a source wait, and they are mixed"
    ):
        far.compile(1, 8)
    again = cc.Flow("again")
    first = again.source(cc.items([1])).assign_timestamps(int, align_within=1, idle_after="1m").named("first")
    first.assign_timestamps(int).named("second").sink(cc.printing())
    with pytest.raises(FlowError, match="'first': 'second' assigns timestamps again: say align_within there"):
        again.compile(1, 8)
    with pytest.raises(
        FlowError, match="align_group='both' of type str: expected a name, together with align_within"
    ):
        cc.Flow("alone").source(cc.items([1])).assign_timestamps(int, align_group="both")
    with pytest.raises(FlowError, match="align_within='soon'"):
        cc.Flow("when").source(cc.items([1])).assign_timestamps(int, align_within="soon", idle_after="1m")
    with pytest.raises(FlowError, match="align_within needs idle_after"):
        cc.Flow("for-ever").source(cc.items([1])).assign_timestamps(int, align_within="1m")
