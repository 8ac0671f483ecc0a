"""The records of a key keep their order when a job goes on at another parallelism (I16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.unit.bare_task import X, offer, sent, task_of
from tests.unit.barriers import A, B, L

import crosscut as cc
from crosscut.contracts.connected_process import FROM_NOTHING
from crosscut.errors import ProtocolError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, VertexId, WorkerIndex
from crosscut.foundation.keys import OwnedKeys, groups_of_task
from crosscut.graph.channels import depths_of
from crosscut.graph.specs import AsyncMapSpec, OperatorNode
from crosscut.operators.building import build, keyed_state
from crosscut.operators.stateless import Map
from crosscut.protocol.replay_order import ReplayOrder
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers
from crosscut.protocol.snapshots import Part, Snapshot
from crosscut.task.inputs import InputQueue
from crosscut.task.items import REPLAYED, Barrier
from crosscut.task.output_buffers import OutputBuffers
from crosscut.task.task import Task
from crosscut.task.task_effects import TaskEffects
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.worker.deployment import _predecessor_state

N1 = CheckpointId(1)


# The machine.


def test_a_tasks_own_records_come_first_section_by_section() -> None:
    order = ReplayOrder({A: 2, B: 2}, 1, {A: 0, B: 0})
    for channel, other in ((A, B), (B, A), (A, B), (B, A)):
        assert order.may_deliver(channel) and not order.may_deliver(other)
        order.marked(channel)
    assert order.is_generation_taken and not order.may_deliver(A)
    order.begin_next()
    assert order.is_over and order.may_deliver(A) and order.may_deliver(B)


def test_a_generation_is_taken_when_each_sender_that_may_have_some_of_it_has_sent_its_mark() -> None:
    order = ReplayOrder({}, 3, {A: 2, B: 1})
    assert order.is_generation_taken
    order.begin_next()
    # Generation 2 can come only from a vertex that is so far down.
    assert order.may_deliver(A) and not order.may_deliver(B)
    order.marked(A)
    assert order.is_generation_taken and not order.may_deliver(A)
    order.begin_next()
    assert order.may_deliver(A) and order.may_deliver(B)
    order.marked(A)
    assert not order.may_deliver(A) and order.may_deliver(B) and not order.is_generation_taken
    order.marked(B)
    order.begin_next()
    assert order.is_over


def test_a_back_edge_waits_until_the_end() -> None:
    order = ReplayOrder({}, 2, {A: 1})
    order.begin_next()
    assert not order.may_deliver(L)
    order.marked(A)
    order.begin_next()
    assert order.may_deliver(L)


def test_a_source_neither_waits_nor_sends_a_mark() -> None:
    order = ReplayOrder({}, 0, {})
    assert order.is_over and not order.is_generation_taken


def test_a_mark_out_of_turn_is_refused() -> None:
    order = ReplayOrder({}, 2, {A: 1, B: 1})
    order.begin_next()
    order.marked(A)
    with pytest.raises(ProtocolError, match="out of turn"):
        order.marked(A)
    with pytest.raises(ProtocolError, match="has not been taken"):
        order.begin_next()
    with pytest.raises(ProtocolError, match="depth"):
        ReplayOrder({}, 1, {A: 1})


def test_depths_go_by_the_longest_way_from_a_source_without_back_edges() -> None:
    flow = cc.Flow("depths")
    left = flow.source(ReplayedSource({"a": [1]})).named("left")
    right = flow.source(ReplayedSource({"b": [2]})).named("right")
    counted = left.key_by(lambda record: record).count().named("counted")
    both = counted.map(lambda pair: pair[0]).named("mapped").union(right).named("both")

    def step(loop: cc.Stream[Any]) -> tuple[cc.Stream[Any], cc.Stream[Any]]:
        less = loop.map(lambda record: record - 1)
        return less.filter(lambda record: record > 0).named("again"), less.filter(lambda record: record <= 0)

    both.iterate(step).rebalance().sink(cc.collect())
    depths = depths_of(flow.compile(2, 128))
    assert [depths[VertexId(one)] for one in ("left", "right", "counted", "both")] == [0, 0, 1, 2]
    assert depths[VertexId("again")] > depths[VertexId("both")]


# A task.


def restored(
    order: ReplayOrder,
    own: Mapping[ChannelId, list[Any]],
    protocol: Callable[..., SnapshotProtocol] = AlignedBarriers,
) -> Task:
    queues = {channel: InputQueue(channel) for channel in (A, B)}
    for channel, records in own.items():
        queues[channel].append(Batch(records))
        queues[channel].append(REPLAYED)
    return task_of(Map("same", lambda record: record), queues=queues, replay=order, protocol=protocol)


def worked(task: Task) -> list[Any]:
    while task.has_work:
        task.run()
    task.output_buffers.flush()
    return sent(task)


def test_what_comes_after_a_mark_waits_for_the_marks_of_others() -> None:
    """I16: it may be newer than what they still have."""
    task = restored(ReplayOrder({A: 1}, 2, {A: 1, B: 1}), {A: ["own"]})
    offer(task, B, ["older of b"], REPLAYED, ["newer of b"])
    assert worked(task) == [(X, ["own"]), (X, REPLAYED), (X, ["older of b"])]
    offer(task, A, ["older of a"], REPLAYED, ["newer of a"])
    found = worked(task)
    assert found[:2] == [(X, ["older of a"]), (X, REPLAYED)]
    assert sorted(one for _, records in found[2:] for one in records) == ["newer of a", "newer of b"]


def test_a_task_without_channel_records_sends_its_mark_at_once() -> None:
    assert sent(restored(ReplayOrder({}, 2, {A: 1, B: 0}), {})) == [(X, REPLAYED)]


def test_no_snapshot_is_taken_before_the_last_generation_is_through() -> None:
    task = restored(ReplayOrder({}, 2, {A: 1, B: 1}), {}, UnalignedBarriers)
    sent(task)
    offer(task, B, REPLAYED, Barrier(N1))
    offer(task, A, ["older of a"])
    assert worked(task) == [(X, ["older of a"])] and task.snapshots.newest_captured == 0
    offer(task, A, REPLAYED)
    task.run()
    assert task.snapshots.newest_captured == N1
    assert sent(task) == [(X, REPLAYED), (X, Barrier(N1))]


def test_a_barrier_overtakes_only_what_comes_after_the_last_mark() -> None:
    """Its receiver takes no snapshot before, and what the mark follows is in no log."""
    task_effects, logged = TaskEffects(), []
    output_buffers = OutputBuffers([], task_effects, 1 << 20)
    output_buffers.ends = {X: task_of().output_buffers.ends[X]}
    waiting = output_buffers.ends[X].waiting
    waiting.extend([Batch(["older"]), REPLAYED, Batch(["newer"])])
    output_buffers.overtake(N1, lambda channel, batch: logged.append(batch.records))
    assert [getattr(one, "records", one) for one in waiting] == [["older"], REPLAYED, Barrier(N1), ["newer"]]
    assert logged == [["newer"]]


def test_a_mark_that_comes_around_a_loop_is_dropped() -> None:
    task = task_of(Map("same", lambda record: record), inputs=(A, L), replay=ReplayOrder({}, 1, {A: 0}))
    assert sent(task) == [(X, REPLAYED)]
    offer(task, L, REPLAYED, ["around"])
    assert worked(task) == [(X, ["around"])]


def test_a_mark_at_the_same_parallelism_is_an_error() -> None:
    task = task_of(Map("same", lambda record: record))
    offer(task, A, REPLAYED)
    with pytest.raises(ProtocolError, match="nothing is being replayed"):
        task.run()


def test_a_mark_follows_the_results_of_all_calls_before_it() -> None:
    """I16: of `map_async` too."""
    node = OperatorNode("calls", AsyncMapSpec(str, 5, 1_000, 0, ordered=True), ())
    state = keyed_state(node)
    assert state is not None
    call_id = (CheckpointId(1), 0, 1)
    state.main.put(call_id, ("restored", None))
    operator = build(node, state, None, (), FROM_NOTHING)
    assert operator is not None
    task = task_of(operator, replay=ReplayOrder({}, 1, {A: 0, B: 0}))
    offer(task, A, ["new"])
    assert worked(task) == []
    task.calls.returned(call_id, "answered")
    assert worked(task) == [(X, ["answered"]), (X, REPLAYED)]


@pytest.mark.parametrize(("index", "mine"), [(0, (0, 2)), (1, (1,))])
def test_calls_stay_with_the_channel_records_of_their_task(index: int, mine: tuple[int, ...]) -> None:
    """I16: those of a task stay in order with each other, and with what was on its way to it."""
    flow = cc.Flow("calls")
    flow.source(ReplayedSource({"a": [1]})).map_async(str).named("called").sink(cc.collect())
    graph = flow.compile(2, 128)
    vertex = next(one for one in graph.vertices if one.vertex_id == "called")
    parts = [Part(f"parts/1/{task}", 1, "") for task in range(3)]
    snapshot = Snapshot(parts=tuple(parts), predecessors=(1, 1, 1))
    owns = OwnedKeys(groups_of_task(index, 128, 2), 128)
    predecessor_state = _predecessor_state(graph, vertex, WorkerIndex(index), 3, snapshot, owns)
    assert predecessor_state.chains == tuple((parts[task],) for task in mine)
    assert all(predecessor_state.owns((CheckpointId(1), 0, number)) for number in range(200))
