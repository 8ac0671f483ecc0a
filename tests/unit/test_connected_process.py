"""Processes with two inputs, or without keys: what they may declare, and what becomes of their states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connected_process import FROM_NOTHING, Begins
from crosscut.errors import FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.graph.specs import JobGraph
from crosscut.operators.building import build, keyed_state
from crosscut.operators.process import Process
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.protocol.splits.rescaling import rescaled
from crosscut.state.encoding import PartReader
from crosscut.state.keyed import KeyedState

N1, N2 = CheckpointId(1), CheckpointId(2)


class Limits(cc.ConnectedProcess[int, tuple[str, int], Any]):
    """Lets through so many records a key as the newest limit says."""

    limits = cc.BroadcastState[str, int]()
    seen = cc.ValueState(default=0)

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[Any]:
        self.seen.set(self.seen.get() + 1)
        if self.seen.get() <= self.limits.get("records", 0):
            yield ctx.key, record

    def on_other(self, record: tuple[str, int], ctx: cc.Context) -> None:
        name, limit = record
        self.limits[name] = limit


class Pairs(cc.ConnectedProcess[str, str, tuple[str, str]]):
    """All pairs of one record of each stream that have the same key."""

    left = cc.ListState[str]()
    right = cc.ListState[str]()

    def on_record(self, record: str, ctx: cc.Context) -> list[tuple[str, str]]:
        self.left.append(record)
        return [(record, other) for other in self.right]

    def on_other(self, record: str, ctx: cc.Context) -> list[tuple[str, str]]:
        self.right.append(record)
        return [(other, record) for other in self.left]


class Held(cc.StreamProcess[int, list[int]]):
    """Lists of three."""

    held = cc.SplitState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[list[int]]:
        self.held.append(record)
        if len(self.held) == 3:
            yield self.held.get()
            self.held.clear()


class Seen(cc.StreamProcess[int, int]):
    seen = cc.UnionState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[int]:
        self.seen.append(record)
        yield len(self.seen)


def numbers(flow: cc.Flow) -> Any:
    return flow.source(cc.generate(lambda n: n, count=1))


def keyed_by_itself(flow: cc.Flow) -> Any:
    return numbers(flow).key_by(lambda n: n)


def graph_of(make: Any) -> JobGraph:
    flow = cc.Flow("f")
    make(flow).named("it").sink(cc.collect())
    return flow.compile(2, 16)


class Running:
    """One task of an operator named "it", and its state."""

    def __init__(
        self, graph: JobGraph, begins: Begins = FROM_NOTHING, state: KeyedState | None = None
    ) -> None:
        (node,) = (node for vertex in graph.vertices for node in vertex.chain if node.uid == "it")
        self.node = node
        empty = keyed_state(node)
        assert empty is not None
        self.state = state or empty
        operator = build(node, self.state, None, (), begins)
        assert isinstance(operator, Process)
        self.operator = operator

    def take(self, records: list[Any], keys: list[Any] | None = None, source: int = 0) -> list[Any]:
        batch = Batch(records, keys)
        batch.input = source
        return self.operator.process(batch).records

    def part(self, n: CheckpointId) -> bytes:
        self.state.freeze(n)
        return b"".join(self.state.encoded(n, CheckpointId(0)))


def restored(graph: JobGraph, parts: list[bytes], n: CheckpointId, task: int, count: int) -> Running:
    """Return task `task` of `count`, restored from the parts of all tasks there were."""
    empty = Running(graph).node
    state = keyed_state(empty)
    assert state is not None
    blocks = (block for part in parts for block in PartReader().blocks(part))
    for _ in state.loading_rows(blocks, n, lambda key: hash(key) % count == task):
        pass
    return Running(graph, Begins(n, task), state)


def limits_graph() -> JobGraph:
    return graph_of(lambda flow: keyed_by_itself(flow).connect(numbers(flow).broadcast()).process(Limits()))


def test_records_of_the_broadcast_stream_change_what_records_with_keys_read() -> None:
    it = Running(limits_graph())
    assert it.take([1, 2], ["a", "a"]) == []
    it.take([("records", 3)], source=1)
    assert it.take([3, 4], ["a", "a"]) == [("a", 3)]
    assert it.take([5], ["b"]) == [("b", 5)]


def test_two_keyed_streams_share_the_states_of_a_key() -> None:
    graph = graph_of(lambda flow: keyed_by_itself(flow).connect(keyed_by_itself(flow)).process(Pairs()))
    it = Running(graph)
    assert it.take(["l1"], [7]) == []
    assert it.take(["r1", "r2"], [7, 8], source=1) == [("l1", "r1")]
    assert it.take(["l2", "l3"], [8, 7]) == [("l2", "r2"), ("l3", "r1")]
    assert [edge.partitioning for edge in graph.edges if edge.target == "it"] == ["hash", "hash"]


def test_a_process_without_keys_has_a_vertex_of_its_own_and_a_list_for_the_task() -> None:
    graph = graph_of(lambda flow: numbers(flow).process(Held()))
    assert [vertex.vertex_id for vertex in graph.vertices] == ["1-source", "it"]
    it = Running(graph)
    assert it.take([1, 2, 3, 4]) == [[1, 2, 3]]
    assert it.take([5, 6]) == [[4, 5, 6]]


def test_at_another_parallelism_each_item_of_a_split_state_goes_to_one_task() -> None:
    graph = graph_of(lambda flow: numbers(flow).process(Held()))
    tasks = [Running(graph, Begins(0, task)) for task in range(2)]
    for task, it in enumerate(tasks):
        it.take([10 * task + 1, 10 * task + 2])
    for n, count in enumerate((3, 1, 2), start=1):
        parts = [it.part(CheckpointId(n)) for it in tasks]
        tasks = [restored(graph, parts, CheckpointId(n), task, count) for task in range(count)]
        held = [item for it in tasks for item in items_of(it, "held")]
        assert sorted(held) == [1, 2, 11, 12]
    # Rows that are new after a restore are called otherwise than those that came from other tasks.
    before = {task: items_of(it, "held") for task, it in enumerate(tasks)}
    for task, it in enumerate(tasks):
        if not before[task]:
            it.take([100 + task])
    parts = [it.part(CheckpointId(4)) for it in tasks]
    (all_of_it,) = [restored(graph, parts, CheckpointId(4), 0, 1)]
    assert len(items_of(all_of_it, "held")) == sum(len(items_of(it, "held")) for it in tasks)


def items_of(it: Running, name: str) -> list[Any]:
    return [value for _, value in sorted(it.state.tables[name].items())]


def test_at_another_parallelism_each_task_gets_all_items_of_a_union_state_once() -> None:
    graph = graph_of(lambda flow: numbers(flow).process(Seen()))
    tasks = [Running(graph, Begins(0, task)) for task in range(2)]
    for task, it in enumerate(tasks):
        assert it.take([10 * task + 1, 10 * task + 2]) == [1, 2]
    for n, count in enumerate((3, 2), start=1):
        parts = [it.part(CheckpointId(n)) for it in tasks]
        tasks = [restored(graph, parts, CheckpointId(n), task, count) for task in range(count)]
        for it in tasks:
            assert items_of(it, "seen") == [1, 2, 11, 12]
    assert tasks[1].take([99]) == [5]


def test_at_another_parallelism_each_task_has_the_broadcast_state_and_keys_have_one_owner() -> None:
    graph = limits_graph()
    tasks = [Running(graph, Begins(0, task)) for task in range(2)]
    for task, it in enumerate(tasks):
        it.take([("records", 5), ("old", 1)], source=1)
        it.take([1, 1], [task, task])
    parts = [it.part(N1) for it in tasks]
    tasks = [restored(graph, parts, N1, task, 3) for task in range(3)]
    for it in tasks:
        assert {name: value for (_, name), value in it.state.tables["limits"].items()} == {
            "records": 5,
            "old": 1,
        }
    assert sorted(key for it in tasks for key, _ in it.state.tables["seen"].items()) == [0, 1]


@pytest.mark.parametrize("is_connected", [False, True], ids=["stream", "rules"])
def test_at_another_parallelism_a_task_with_states_of_its_own_reads_the_parts_of_all(
    is_connected: bool,
) -> None:
    """By keys alone it would read those of its own key groups, and other tasks' lists would be lost."""
    name, feeders = VertexId("it"), [VertexId("records"), VertexId("rules")]
    parts = [Part(f"parts/1/it-{task}", 1, "") for task in range(4)]
    snapshots = tuple(TaskSnapshot(TaskId(name, task), Snapshot((part,))) for task, part in enumerate(parts))
    others = tuple(TaskSnapshot(TaskId(one, task), Snapshot()) for one in feeders for task in range(4))
    edges = (
        [(feeders[0], name, True), (feeders[1], name, False)] if is_connected else [(feeders[0], name, False)]
    )
    before = CheckpointCompleted(Epoch(1), N1, (*snapshots, *others))
    found = [one.snapshot for one in rescaled(before, 3, 16, edges) if one.task.vertex == name]
    assert [one.parts for one in found] == [tuple(parts)] * 3


def test_the_states_go_back_to_a_checkpoint_with_all_else() -> None:
    it = Running(limits_graph())
    it.take([("records", 1)], source=1)
    it.part(N1)
    it.take([("records", 9), ("more", 2)], source=1)
    it.state.roll_back(N1)
    it = Running(limits_graph(), state=it.state)
    assert it.take([1, 2], ["a", "a"]) == [("a", 1)]


class WritesAnywhere(Limits):
    def on_record(self, record: int, ctx: cc.Context) -> Iterator[Any]:
        self.limits["records"] = record
        yield record


class ReadsWithoutKey(Limits):
    def on_other(self, record: tuple[str, int], ctx: cc.Context) -> None:
        self.seen.set(0)


@pytest.mark.parametrize(
    ("process", "source", "says"),
    [
        (WritesAnywhere(), 0, "state 'limits' is a BroadcastState"),
        (ReadsWithoutKey(), 1, "state 'seen' was used outside of a key"),
    ],
)
def test_a_state_that_is_used_where_it_would_be_wrong_says_so(process: Any, source: int, says: str) -> None:
    graph = graph_of(lambda flow: keyed_by_itself(flow).connect(numbers(flow).broadcast()).process(process))
    it = Running(graph)
    it.take([1], ["a"], 0) if source else None
    with pytest.raises(UserCodeError, match=says):
        it.take([("records", 1)], ["a"] if not source else None, source)


def test_an_error_in_on_other_names_its_record() -> None:
    it = Running(limits_graph())
    with pytest.raises(UserCodeError, match="cannot unpack"):
        it.take([7], source=1)


class KeyedWithList(cc.KeyedProcess[int, int]):
    held = cc.SplitState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> None:
        self.held.append(record)


class Shared(cc.ConnectedProcess[int, int, int]):
    rules = cc.BroadcastState[int, int]()

    def on_record(self, record: int, ctx: cc.Context) -> None: ...

    def on_other(self, record: int, ctx: cc.Context) -> None: ...


class Alarm(cc.StreamProcess[int, int]):
    def on_record(self, record: int, ctx: cc.Context) -> list[int]:
        return [ctx.now()]

    def on_timer(self, time: int, ctx: cc.Context) -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (lambda flow: keyed_by_itself(flow).process(KeyedWithList()), "KeyedWithList.held belongs to a task"),
    (lambda flow: keyed_by_itself(flow).connect(numbers(flow)), "the other stream has no keys"),
    (lambda flow: numbers(flow).connect(keyed_by_itself(flow)), "the other stream has keys and this one has"),
    (lambda flow: numbers(flow).connect(numbers(cc.Flow("g"))), "belongs to flow 'g'"),
    (lambda flow: numbers(flow).connect("rules"), "expected a stream, found 'rules'"),
    (
        lambda flow: keyed_by_itself(flow).connect(keyed_by_itself(flow)).process(Limits()),
        "Limits.limits belongs to a task, and two streams with keys have states of keys alone",
    ),
    (
        lambda flow: numbers(flow).connect(numbers(flow).broadcast()).process(Limits()),
        "Limits.seen has a value for each key, and these records have none",
    ),
    (
        lambda flow: keyed_by_itself(flow).connect(keyed_by_itself(flow)).process(Pairs),
        "as in Pairs()",
    ),
    (lambda flow: keyed_by_itself(flow).process(Pairs()), "a ConnectedProcess reads two streams"),
    (lambda flow: keyed_by_itself(flow).process(Held()), "a StreamProcess knows none"),
    (lambda flow: numbers(flow).process(Pairs()), "a ConnectedProcess reads two streams"),
    (lambda flow: numbers(flow).process(len), "expected a crosscut.StreamProcess"),
    (lambda flow: numbers(flow).connect(numbers(flow)).process(Shared()), "Shared.rules is a BroadcastState"),
    (lambda flow: numbers(flow).process(Alarm()), "Alarm.event timers has a value for each key"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_can_not_be_connected_is_refused_at_once(make: Any, says: str) -> None:
    with pytest.raises(FlowError, match=says):
        make(cc.Flow("f"))


def test_a_state_outside_of_a_job_says_so() -> None:
    with pytest.raises(FlowError, match="state 'held' was used outside of a running job"):
        Held().held.append(1)
