"""From a snapshot to tasks: what a restore puts where."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

import crosscut as cc
from crosscut.contracts.connectors import JSON, CommitPermit, Sink, SinkContext, SinkWriter
from crosscut.driver.job_spec import batch_task_settings, task_settings
from crosscut.errors import ConnectorError
from crosscut.flow.flow import Flow
from crosscut.flow.stream import Stream
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import (
    ChannelId,
    CheckpointId,
    Epoch,
    Lineage,
    TaskId,
    VertexId,
    WorkerIndex,
)
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.channels import back_edges_of, inputs_of, outputs_of
from crosscut.graph.components import links_of
from crosscut.graph.specs import JobGraph
from crosscut.host.failpoints import Failpoints
from crosscut.operators.building import keyed_state
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import DeployTasks
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.protocol.splits.rescaling import state_assignment
from crosscut.state.keyed import KeyedState
from crosscut.state.slots import SlotTable
from crosscut.task.channel_log import encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.task.task import Task
from crosscut.wire.batches import encode_batch
from crosscut.worker import deployment
from crosscut.worker.backends import InMemory, OnDisk
from crosscut.worker.deployment import TaskSettings, build_tasks
from crosscut.worker.local_state_cache import LocalStateCache
from crosscut.worker.spill_files import DiskSpaces

DEADLINE_S = 100.0

P = ParamSpec("P")
R = TypeVar("R")


class Host:
    """Keeps the tasks that are built."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, Task] = {}

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    async def pause(self) -> None: ...

    def add(self, task: Task, *_: Any) -> None:
        self.tasks[task.task_id] = task


def loops(names: str) -> JobGraph:
    """Return independent loops, in the order of `names`."""
    flow = Flow("f")
    for name in names:

        def step(loop: Stream, name: str = name) -> tuple[Stream, Stream]:
            loop.named(f"{name}-head")
            return loop.map(abs).named(f"{name}-round"), loop.filter(bool).named(f"{name}-done")

        numbers = flow.source(cc.generate(lambda n: n, count=1)).named(f"{name}-in")
        numbers.rebalance().iterate(step).sink(cc.collect()).named(f"{name}-out")
    return flow.compile(1, 1)


def restored(
    graph: JobGraph, logs: dict[TaskId, list[LoggedBatch]], record_fields: JSON = None
) -> dict[TaskId, Task]:
    """Return the tasks of `graph`, restored from a checkpoint with `logs`."""
    host = Host()
    tasks = [TaskId(VertexId(vertex.vertex_id), 0) for vertex in graph.vertices]
    bytes_of = {str(task): b"".join(encoded_log(log)) for task, log in logs.items()}

    def snapshot_of(task: TaskId) -> Snapshot:
        log = (Part(str(task), 1, ""),) if task in logs else ()
        return Snapshot(log=log, positions=[], record_fields=record_fields)

    deploy = DeployTasks(
        Epoch(2),
        Lineage("lineage"),
        peers=(),
        restore=CheckpointId(1),
        snapshots=tuple(TaskSnapshot(task, snapshot_of(task)) for task in tasks),
        splits=(),
    )
    building = build_tasks(
        host,
        graph,
        WorkerIndex(0),
        deploy,
        LocalStateCache(),
        lambda part: bytes_of[part.path],
        KeyRouter(1, 1),
        TaskSettings(batch_rows=10, channel_bytes=1_000, commit_attempts=1, sink_timeout_ms=1_000),
        DiskSpaces(None, 0),
        Failpoints(None, None),
    )
    asyncio.run(building)
    return host.tasks


def records_of(task: Task, channel: ChannelId) -> list[Any]:
    return [
        n
        for item in task.input_gate.ends[channel].queue._head
        if isinstance(item, Batch)
        for n in item.records
    ]


def test_what_was_on_its_way_is_so_again_though_independent_parts_are_written_in_another_order() -> None:
    """The fingerprint is the same, so the checkpoint is taken: its logs have to find their channels."""
    before, after = loops("abc"), loops("cab")
    assert before.fingerprint == after.fingerprint
    tasks = [TaskId(VertexId(vertex.vertex_id), 0) for vertex in before.vertices]
    # Each input holds something else, and so does what each output has not sent yet.
    numbers = iter(range(1_000))
    held = {channel: [next(numbers), next(numbers)] for task in tasks for channel in inputs_of(before, task)}
    unsent = {channel: [next(numbers)] for task in tasks for channel in outputs_of(before, task)}

    def logged(channel: ChannelId, records: list[int], *, by_sender: bool) -> LoggedBatch:
        return LoggedBatch(channel, encode_batch(Batch(list(records))), len(records), by_sender)

    logs = {
        task: [logged(one, held[one], by_sender=False) for one in inputs_of(before, task)]
        + [logged(one, unsent[one], by_sender=True) for one in outputs_of(before, task)]
        for task in tasks
    }
    found = restored(after, logs)
    assert sum(len(back_edges_of(after, task)) for task in tasks) == 3
    for task in tasks:
        for channel in inputs_of(after, task):
            assert records_of(found[task], channel) == held[channel], channel
        sent = found[task].task_effects.outbox
        outbox = {channel: item.records for channel, item in sent if isinstance(item, Batch)}
        assert outbox == {channel: unsent[channel] for channel in outputs_of(after, task)}
    for one in found.values():
        one.close()


class Limits(cc.ConnectedProcess[int, int, int]):
    limits = cc.BroadcastState[str, int]()
    seen = cc.UnionState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> None: ...

    def on_other(self, record: int, ctx: cc.Context) -> None:
        self.limits["records"] = record


IT, NUMBERS, RULES = VertexId("it"), VertexId("numbers"), VertexId("rules")


def limits_flow() -> Flow:
    flow = Flow("f")
    numbers, rules = (
        flow.source(cc.generate(lambda n: n, count=1)).named(str(one)) for one in (NUMBERS, RULES)
    )
    process = numbers.key_by(lambda n: n).named("keys").connect(rules.broadcast()).process(Limits())
    process.named(IT).sink(cc.collect()).named("out")
    return flow


def part_of(state: KeyedState, n: int, since: int = 0) -> tuple[CheckpointId, bytes]:
    state.freeze(CheckpointId(n))
    return CheckpointId(n), b"".join(state.encoded(CheckpointId(n), CheckpointId(since)))


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_another_parallelism_has_of_each_broadcast_rule_the_newest_whoever_had_heard_of_it(
    backend: str, parallelism: int, tmp_path: Path
) -> None:
    """H1: one task has heard of the rule, for the other it is on its way: else nobody hears of it."""
    graph = limits_flow().compile(parallelism, 16)
    (node,) = (vertex.chain[0] for vertex in graph.vertices if vertex.vertex_id == IT)
    content: dict[str, bytes] = {}

    def stored(name: str, part: tuple[CheckpointId, bytes]) -> Part:
        content[name] = part[1]
        return Part(name, 1, "", checkpoint_id=part[0])

    parts: list[tuple[Part, ...]] = []
    for index, limit in enumerate((2, 1)):
        state = keyed_state(node)
        assert state is not None
        state.tables["limits"].put((None, "records"), limit)
        for row in (0, 1):
            state.tables["seen"].put((0, 0, row), row)
        chain = [stored(f"{index} at 1", part_of(state, 1))]
        if index:
            # Only this task has deleted it: the other one still has it.
            state.tables["seen"].delete((0, 0, 0))
            chain.append(stored(f"{index} at 2", part_of(state, 2, 1)))
        parts.append(tuple(chain))
    channel = ChannelId(1, TaskId(RULES, 0), TaskId(IT, 1))
    log = b"".join(encoded_log([LoggedBatch(channel, encode_batch(Batch([2])), 1, by_sender=False)]))
    logged = stored("log", (CheckpointId(2), log))
    tasks = [TaskId(VertexId(vertex.vertex_id), index) for vertex in graph.vertices for index in range(2)]
    before = {task: Snapshot(positions=[] if task.vertex in (NUMBERS, RULES) else None) for task in tasks}
    before[TaskId(IT, 0)] = Snapshot(parts=parts[0])
    before[TaskId(IT, 1)] = Snapshot(parts=parts[1], log=(logged,), in_flight=1)
    checkpoint = CheckpointCompleted(
        Epoch(1), CheckpointId(2), tuple(TaskSnapshot(task, one) for task, one in before.items())
    )
    inherited = state_assignment(checkpoint, parallelism, 16, 0, (), links_of(graph.edges))
    for index in range(parallelism):
        host = Host()
        at_hand = LocalStateCache(OnDisk(str(tmp_path), 16) if backend == "rocksdb" else InMemory())
        deploy = DeployTasks(
            Epoch(2),
            Lineage("lineage"),
            peers=(),
            restore=inherited.checkpoint_id,
            snapshots=tuple(one for one in inherited.snapshots if one.task.index == index),
            splits=(),
            rescaled_from=inherited.rescaled_from,
        )
        asyncio.run(
            build_tasks(
                host,
                graph,
                WorkerIndex(index),
                deploy,
                at_hand,
                lambda part: content[part.path],
                KeyRouter(16, parallelism),
                TaskSettings(batch_rows=10, channel_bytes=1_000, commit_attempts=1, sink_timeout_ms=1_000),
                DiskSpaces(None, 0),
                Failpoints(None, None),
            )
        )
        task = host.tasks[TaskId(IT, index)]
        state = task._state
        assert state is not None
        had = dict(state.tables["limits"].items())[None, "records"]
        coming = [record for one in inputs_of(graph, task.task_id) for record in records_of(task, one)]
        assert [had, *coming][-1] == 2
        assert len(coming) == (had == 1)
        if parallelism != 2:
            assert sorted(item for _, item in state.tables["seen"].items()) == [0, 1]
        for one in host.tasks.values():
            one.close()
        at_hand.close()


def counted(terms: TaskSettings, part: bytes = b"") -> KeyedState:
    """Return the state of a count, restored from checkpoint 1 if there is a part of it."""
    flow = Flow("f")
    numbers = flow.source(cc.generate(lambda n: n, count=1)).named("numbers")
    numbers.key_by(abs).count().named("counts").sink(cc.collect()).named("out")
    graph = flow.compile(1, 1)
    host = Host()
    tasks = [TaskId(VertexId(vertex.vertex_id), 0) for vertex in graph.vertices]
    parts = (Part("part", len(part), "", checkpoint_id=CheckpointId(1)),)
    snapshots = tuple(
        TaskSnapshot(task, Snapshot(parts=parts if task.vertex == "counts" else (), positions=[]))
        for task in tasks
    )
    deploy = DeployTasks(
        Epoch(2),
        Lineage("lineage"),
        peers=(),
        restore=CheckpointId(1 if part else 0),
        snapshots=snapshots if part else (),
        splits=(),
    )
    asyncio.run(
        build_tasks(
            host,
            graph,
            WorkerIndex(0),
            deploy,
            LocalStateCache(),
            lambda _: part,
            KeyRouter(1, 1),
            terms,
            DiskSpaces(None, 0),
            Failpoints(None, None),
        )
    )
    (state,) = (one._state for one in host.tasks.values() if one._state is not None)
    return state


def test_keys_have_slots_only_where_checkpoints_come_by_themselves() -> None:
    periodic, on_request = task_settings(cc.Settings()), task_settings(cc.Settings(snapshots="none"))
    assert isinstance(counted(periodic).main, SlotTable)
    assert not isinstance(counted(on_request).main, SlotTable)
    # Each batch ends with a checkpoint, whatever the setting says.
    assert isinstance(counted(batch_task_settings(cc.Settings(snapshots="none"))).main, SlotTable)


def test_state_goes_from_checkpoints_by_themselves_to_those_on_request_and_back() -> None:
    periodic, on_request = task_settings(cc.Settings()), task_settings(cc.Settings(snapshots="none"))
    for before in periodic, on_request:
        state = counted(before)
        rows, counts = state.to_change([1, 2])
        for row in rows:
            counts[row] = 7
        _, part = part_of(state, 1)
        for after in periodic, on_request:
            assert dict(counted(after, part).items()) == {1: 7, 2: 7}


class HoldingWriter(SinkWriter):
    """Stages nothing: what is written is in the snapshot."""

    def __init__(self, context: SinkContext) -> None:
        self._held = context.held

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None: ...

    def write(self, records: list[Any]) -> None: ...

    def rotate(self, checkpoint_id: CheckpointId) -> CheckpointId:
        return checkpoint_id

    def prepare(self, transaction: Any) -> JSON:
        self._held.keep(transaction, b"records")
        return int(transaction)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None: ...


class HoldingSink(Sink[Any]):
    def __init__(self, *, together: bool) -> None:
        self._together = together

    @property
    def commits_together(self) -> bool:
        return self._together

    def writer(self, context: SinkContext) -> SinkWriter:
        return HoldingWriter(context)


def test_records_of_a_sink_that_commits_together_are_not_held_in_snapshots() -> None:
    """The first task has no records but its own: under handles of other tasks it would commit those."""

    def prepared(*, together: bool) -> JSON:
        flow = Flow("f")
        numbers = flow.source(cc.generate(lambda n: n, count=1)).named("in")
        numbers.rebalance().sink(HoldingSink(together=together)).named("out")
        (task,) = (one for one in restored(flow.compile(1, 1), {}).values() if one._sink is not None)
        assert task._sink is not None
        writer = task._sink.writer
        return writer.prepare(writer.rotate(CheckpointId(2)))

    assert prepared(together=False) == 2
    with pytest.raises(ConnectorError, match=r"sink 'out' \(HoldingSink\) commits together"):
        prepared(together=True)


class Recovering(cc.Sink[Any]):
    """Recovers when it is told to."""

    go_on = threading.Event()

    def writer(self, context: SinkContext) -> SinkWriter:
        return RecoveringWriter(self.go_on)


class RecoveringWriter(SinkWriter):
    def __init__(self, go_on: threading.Event) -> None:
        self._go_on = go_on

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        assert self._go_on.wait(DEADLINE_S)

    def write(self, records: list[Any]) -> None: ...

    def rotate(self, checkpoint_id: CheckpointId) -> None: ...

    def prepare(self, transaction: Any) -> None: ...

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None: ...


class Threaded(Host):
    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(function, *args, **kwargs)


class Heard(logging.Handler):
    """Ends the recovery when something is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        Recovering.go_on.set()


def test_a_sink_that_recovers_for_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8, I14: its system may be silent, and the job has not begun."""
    monkeypatch.setattr(deployment, "SLOW_S", 0.0)
    flow = Flow("f")
    flow.source(cc.items([1])).named("numbers").sink(Recovering()).named("rows")
    heard = Heard()
    logging.getLogger("crosscut").addHandler(heard)
    try:
        asyncio.run(
            build_tasks(
                Threaded(),
                flow.compile(1, 1),
                WorkerIndex(0),
                DeployTasks(Epoch(1), Lineage("lineage"), (), CheckpointId(0), (), ()),
                LocalStateCache(),
                lambda part: b"",
                KeyRouter(1, 1),
                TaskSettings(batch_rows=10, channel_bytes=1_000, commit_attempts=1, sink_timeout_ms=1_000),
                DiskSpaces(None, 0),
                Failpoints(None, None),
            )
        )
    finally:
        logging.getLogger("crosscut").removeHandler(heard)
    assert heard.lines == [
        "sink 'rows' has been recovering for 0 s, with nothing to commit first; the job starts afterwards"
    ]
