"""From a snapshot to tasks: what a restore puts where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import crosscut as cc
from crosscut.batch import Batch
from crosscut.flow.flow import Flow
from crosscut.flow.stream import Stream
from crosscut.graph.channels import back_edges_of, inputs_of, outputs_of
from crosscut.graph.specs import JobGraph
from crosscut.host.failpoints import Failpoints
from crosscut.ids import ChannelId, CheckpointId, Epoch, Lineage, TaskId, VertexId, WorkerIndex
from crosscut.keys import KeyRouter
from crosscut.protocol.messages import DeployTasks, Part, Snapshot, TaskSnapshot
from crosscut.task.channel_log import encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.task.task import Task
from crosscut.wire.batches import encode_batch
from crosscut.worker.deployment import StateAtHand, TaskTerms, build_tasks
from crosscut.worker.spill_files import DiskSpaces

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


def restored(graph: JobGraph, logs: dict[TaskId, list[LoggedBatch]]) -> dict[TaskId, Task]:
    """Return the tasks of `graph`, restored from a checkpoint with `logs`."""
    host = Host()
    tasks = [TaskId(VertexId(vertex.vertex_id), 0) for vertex in graph.vertices]
    bytes_of = {str(task): b"".join(encoded_log(log)) for task, log in logs.items()}

    def snapshot_of(task: TaskId) -> Snapshot:
        return Snapshot(log=(Part(str(task), 1, ""),) if task in logs else (), positions=[])

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
        StateAtHand(),
        lambda part: bytes_of[part.path],
        KeyRouter(1, 1),
        TaskTerms(batch_rows=10, channel_bytes=1_000, commit_attempts=1, sink_timeout_ms=1_000),
        DiskSpaces(None, 0),
        Failpoints(None, None),
    )
    asyncio.run(building)
    return host.tasks


def records_of(task: Task, channel: ChannelId) -> list[Any]:
    return [
        n for item in task.intake.ends[channel].queue._head if isinstance(item, Batch) for n in item.records
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
        sent = found[task].outlets.outbox
        outbox = {channel: item.records for channel, item in sent if isinstance(item, Batch)}
        assert outbox == {channel: unsent[channel] for channel in outputs_of(after, task)}
