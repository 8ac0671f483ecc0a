"""A task without a worker: how it is made, and what it has left in its task effects, which are then empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.unit.barriers import HERE, A, B, L

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.operators.operator import Operator
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.task.inputs import InputQueue
from crosscut.task.outputs import Output, build_output
from crosscut.task.plan import TaskPlan
from crosscut.task.requests import NotePause
from crosscut.task.spilling import SpillSpace
from crosscut.task.splits import SplitQueue
from crosscut.task.task import Task

X, Y = (ChannelId(2, HERE, TaskId(VertexId("after"), index)) for index in range(2))
Z = ChannelId(3, HERE, TaskId(VertexId("aside"), 0))
EPOCH = Epoch(4)


def output(*channels: ChannelId, rows: int = 100) -> Output:
    """Return an output that sends everything to every channel."""
    return build_output(
        "broadcast", channels, batch_rows=rows, router=KeyRouter(1, 1), key_by_uid="", task_index=0
    )


def unread(source: cc.Source[Any]) -> SplitQueue:
    """Return all splits of a source that one task reads."""
    return SplitQueue(source, [(split, split.start) for split in source.splits(1)])


def task_of(
    *chain: Operator,
    task_id: TaskId = HERE,
    inputs: Sequence[ChannelId] = (A, B),
    back_edges: frozenset[ChannelId] = frozenset({L}),
    queues: Mapping[ChannelId, InputQueue] | None = None,
    outputs: Sequence[Output] | None = None,
    protocol: Callable[..., SnapshotProtocol] = AlignedBarriers,
    rows: int = 100,
    space: SpillSpace | None = None,
    **others: Any,
) -> Task:
    """Return a task; without `outputs` it sends everything to X."""
    closing = back_edges & frozenset(inputs)
    return Task(
        TaskPlan(
            task_id=task_id,
            epoch=EPOCH,
            protocol=protocol(tuple(inputs), closing),
            inputs=queues or {channel: InputQueue(channel, space) for channel in inputs},
            back_edges=closing,
            chain=chain,
            outputs=[output(X, rows=rows)] if outputs is None else outputs,
            batch_rows=rows,
            channel_bytes=1 << 20,
            **others,
        )
    )


def offer(task: Task, channel: ChannelId, *items: Any) -> None:
    """Let items come; a list is a batch."""
    for item in items:
        task.offer(channel, Batch(item) if isinstance(item, list) else item)


def sent(task: Task) -> list[Any]:
    """Return (channel, records) for batches, (channel, item) for the rest."""
    items, task.task_effects.outbox = task.task_effects.outbox, []
    return [(channel, item.records if isinstance(item, Batch) else item) for channel, item in items]


def said(task: Task) -> list[Any]:
    """Return the messages to the coordinator."""
    messages, task.task_effects.messages = task.task_effects.messages, []
    return messages


def asked(task: Task) -> list[Any]:
    """Return the jobs, without that pauses are to be noted: each capture asks for that."""
    jobs, task.task_effects.background_jobs = task.task_effects.background_jobs, []
    return [job for job in jobs if not isinstance(job, NotePause)]
