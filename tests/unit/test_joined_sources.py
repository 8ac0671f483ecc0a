"""The sources of a join wait for each other, unasked, as long as all have something to read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit import bare_task
from tests.unit.bare_task import unread
from tests.unit.test_source_groups import Listed, said, work

import crosscut as cc
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.graph.source_groups import aligned_splits, joined_sources, source_groups
from crosscut.graph.specs import JobGraph
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.messages import SlowestSource, SourceReached, SourcesReached
from crosscut.protocol.splits.alignment import JoinedSplits, SourceGroups
from crosscut.task.items import Barrier

LEFT, RIGHT, THIRD = (VertexId(name) for name in ("left", "right", "third"))
L0, L1, R0, R1, T0 = (TaskId(*one) for one in ((LEFT, 0), (LEFT, 1), (RIGHT, 0), (RIGHT, 1), (THIRD, 0)))
JOIN = "join paid"
OUT = ChannelId(0, L0, TaskId(VertexId("after"), 0))


def groups_of(*vertices: VertexId) -> SourceGroups:
    groups = SourceGroups({}, dict.fromkeys(vertices, JOIN))
    groups.begin(Epoch(0))
    return groups


def note(groups: SourceGroups, number: int, **reached: int | None) -> Any:
    """The coordinator hears how far tasks are; return what it says."""
    names = {"l0": L0, "l1": L1, "r0": R0, "r1": R1, "t0": T0}
    tasks = tuple(SourceReached(names[one], at) for one, at in reached.items())
    assert groups.note(WorkerIndex(0), SourcesReached(Epoch(0), number, tasks))
    groups.pause_over()
    return groups.news()


def side(vertex: VertexId, *at: Any) -> SlowestSource:
    return SlowestSource(f"{JOIN}: {vertex}", *at)


def test_the_coordinator_says_of_each_source_where_it_is_and_where_the_slowest_of_the_others_is() -> None:
    groups = groups_of(LEFT, RIGHT, THIRD)
    news = note(groups, 1, l0=500, l1=40, r0=7, r1=9, t0=8)
    assert news.groups == (side(LEFT, L1, 40, 7), side(RIGHT, R0, 7, 8), side(THIRD, T0, 8, 7))
    assert note(groups, 2, r1=10) is None, "nothing that anybody goes by has changed"
    news = note(groups, 3, r0=None, r1=None)
    assert news.groups == (side(LEFT, L1, 40, 8), side(RIGHT, None, None, 8), side(THIRD, T0, 8, 40))


def splits(within_ms: int = 10, vertex: VertexId = LEFT) -> JoinedSplits:
    return JoinedSplits(JOIN, vertex, within_ms)


def test_all_splits_of_a_source_wait_while_it_is_ahead_of_another_one_by_more_than_the_join_reaches() -> None:
    one = splits()
    assert one.held({"a": 500}) == frozenset(), "nothing is known of others"
    one.apply(L0, said(1, side(LEFT, L1, 17, 7)))
    assert one.held({"a": 500, "b": 17}) == frozenset()
    one.apply(L0, said(2, side(LEFT, L1, 18, 7), side(RIGHT, R0, 7, 18)))
    assert one.held({"a": 500, "b": 18}) == {"a", "b"}
    one.apply(L0, said(3, side(LEFT, L1, 18, None)))
    assert one.held({"a": 500, "b": 18}) == frozenset(), "all others have ended, or caught up"


def test_splits_of_one_source_do_not_wait_for_each_other() -> None:
    """A file for each day, read at once: they are apart because the user's data are."""
    one = splits()
    one.apply(L0, said(1, side(LEFT, L1, 10, 10)))
    assert one.held({"monday": 10, "tuesday": 86_400_000}) == frozenset()


def test_a_source_that_is_slow_by_the_clock_lets_others_be_ahead_by_what_it_makes_in_a_second() -> None:
    """With a lead fixed in event time the fast one would stand still between two words."""
    one = splits(within_ms=0)
    for number, others in enumerate((0, 1_000, 2_000), 1):
        one.apply(L0, said(number, side(LEFT, L0, 7_000, others)))
    assert one.held({"a": 7_000}) == frozenset()
    one.apply(L0, said(4, side(LEFT, L0, 7_001, 2_000)))
    one.apply(L0, said(5, side(LEFT, L0, 7_001, 2_000)))
    assert one.held({"a": 7_001}) == {"a"}, "it has become slower"


def test_a_word_that_comes_again_counts_no_more() -> None:
    one = splits()
    one.apply(L0, said(2, side(LEFT, L0, 10, 10)))
    one.apply(L0, said(1, side(LEFT, L0, 900, 10)))
    assert one.held({"a": 900}) == frozenset()


@pytest.mark.parametrize("speeds", [(1, 100), (100, 1), (1, 1), (3, 7)])
def test_two_sources_that_are_read_as_fast_as_they_can_stay_together_and_come_to_their_ends(
    speeds: tuple[int, int],
) -> None:
    ends = 20_000
    at = [0, 0]
    sides = [splits(5, LEFT), splits(5, RIGHT)]
    groups = groups_of(LEFT, RIGHT)
    apart = 0
    for step in range(100_000):
        if min(at) >= ends:
            break
        moved = False
        for index, one in enumerate(sides):
            if at[index] < ends and not one.held({"all": at[index]}):
                at[index] = min(ends, at[index] + speeds[index])
                moved = True
        assert moved, "none may wait for one that waits"
        if max(at) < ends:
            apart = max(apart, abs(at[0] - at[1]))
        if step % 10 == 0:
            names = ("l0", "r0")
            here = {name: where if where < ends else None for name, where in zip(names, at, strict=True)}
            if (news := note(groups, step // 10 + 1, **here)) is not None:
                for task, one in zip((L0, R0), sides, strict=True):
                    one.apply(task, news)
    assert min(at) == ends
    # Ten steps between two words, of the slower one five times, and what the faster one reads meanwhile.
    assert apart <= 5 + 6 * 10 * min(speeds) + 2 * 10 * max(speeds)


def task_of(source: Listed) -> Any:
    return bare_task.task_of(
        AssignTimestamps("times", lambda n: n, 0, None),
        task_id=L0,
        inputs=(),
        outputs=[bare_task.output(OUT)],
        splits=unread(source),
        source_uid="numbers",
        has_event_time=True,
        aligned=splits(),
    )


def test_a_source_that_had_nothing_to_read_since_it_said_how_far_it_is_keeps_nobody_waiting() -> None:
    task = task_of(Listed(all=[[1], [2], cc.Wait(1), [3], [4], [5]]))
    assert work(task) == [1, 2]
    assert task.reached == SourceReached(L0, None), "it has read all that there was"
    task.run()
    assert task.reached == SourceReached(L0, None)
    task.note_reached_sent()
    task.run()
    assert task.reached == SourceReached(L0, 4), "it has always had something since"


def test_a_source_that_waits_lets_barriers_through_and_reads_on_when_the_other_one_has_come_near() -> None:
    task = task_of(Listed(all=[[n * 10] for n in range(1, 6)]))
    task.run()
    task.align(said(1, side(LEFT, L0, 30, 5)))
    assert work(task) == [10]
    assert task.statistics().held_splits == 1
    task.snapshots.trigger(CheckpointId(1))
    assert work(task) == [Barrier(CheckpointId(1))]
    assert task.align(said(2, side(LEFT, L0, 30, 25)))
    assert [n for n in work(task) if isinstance(n, int)] == [20, 30, 40, 50]


# Which sources are joined.


def timed(flow: cc.Flow, name: str, **others: Any) -> Any:
    source = flow.source(cc.items([(1, 2)])).named(name)
    times = source.assign_timestamps(lambda one: one[1], **others).named(f"{name}-times")
    return times.key_by(lambda one: one[0]).named(f"{name}-keys")


def graph_of(flow: cc.Flow) -> JobGraph:
    return flow.compile(2, 8)


def names(graph: JobGraph) -> dict[str, str]:
    return {str(vertex): group for vertex, group in joined_sources(graph)}


def test_the_sources_of_a_join_wait_for_each_other_and_those_of_joins_that_share_one_together() -> None:
    flow = cc.Flow("joined")
    orders, paid, sent = (timed(flow, name) for name in ("orders", "paid", "sent"))
    one = orders.interval_join(paid, "-1s", "4s").named("bought")
    one.key_by(lambda pair: pair[0]).window_join(sent, cc.tumbling("1m")).named("shipped").sink(cc.printing())
    alone = timed(flow, "alone")
    alone.count().sink(cc.printing()).named("counted")
    graph = graph_of(flow)
    assert names(graph) == dict.fromkeys(("orders", "paid", "sent"), "join bought")
    assert source_groups(graph) == ()
    found = {one.vertex_id: aligned_splits(graph, one) for one in graph.vertices}
    assert {name for name, one in found.items() if one is not None} == {"orders", "paid", "sent"}
    assert found["orders"]._within_ms == 60_000  # type: ignore[union-attr]


def test_sources_wait_for_none_if_the_user_says_for_whom_without_times_and_joined_with_themselves() -> None:
    flow = cc.Flow("alone")
    asked = timed(flow, "asked", align_within="1m", idle_after="30s")
    other = timed(flow, "other")
    asked.interval_join(other, 0, "4s").named("first").sink(cc.printing()).named("out")
    itself = flow.source(cc.items([(1, 2)])).named("itself").assign_timestamps(lambda one: one[1])
    left, right = (itself.filter(bool).key_by(lambda one: one[0]) for _ in range(2))
    left.interval_join(right, 0, 1).sink(cc.printing())
    plain = flow.source(cc.items([1])).named("plain").key_by(lambda one: one)
    rates = flow.source(cc.items([2])).named("rates").key_by(lambda one: one)
    plain.latest_join(rates).sink(cc.printing()).named("last")
    graph = graph_of(flow)
    assert names(graph) == {}
    assert source_groups(graph) == (("asked", "source asked"),)
