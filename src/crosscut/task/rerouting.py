"""Who takes what was on its way in channels, when a job goes on at another parallelism.

What a sender had left and what a receiver had in its inputs are alike here: the receivers take all of it,
before anything new. Records that a shuffle distributes go to the new owner of their key; those of one key
that one task had sent stay in order. On other edges what was on its way to a task goes to the one that
takes it over. So each record has one owner, and each owner finds its own without asking anybody.

Of what is broadcast each task has a copy: those that one task had not come to are for the tasks that
have its state of it (`rescaling.copies_from`), be it several or none.

A record is processed at the watermark of the task that it was on its way to: so it is late, or not, as it
was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, assert_never

from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.foundation.ids import TaskId
from crosscut.graph.specs import Edge, JobGraph
from crosscut.protocol.splits.rescaling import copies_from, taken_over_by
from crosscut.task.items import LoggedBatch
from crosscut.wire.batches import decode_batch, encode_batch

OwnerOf = Callable[[Any], int]
"""Which task owns a key."""


def rerouted(
    logs: Iterable[list[LoggedBatch]],
    task: TaskId,
    graph: JobGraph,
    owner_of: OwnerOf,
    before: int,
    floors: Sequence[int | None] = (),
) -> Iterator[tuple[int | None, list[LoggedBatch]]]:
    """Yield what belongs to `task`, as (watermark at which it is to be processed, batches in order).

    Args:
        logs: Of all tasks of its vertex and of those that feed it, as they were.
        before: How many tasks of a vertex there were.
        floors: The watermark of each task that it was on its way to, by index; none: there are none.

    Raises:
        StateError: Something was on its way on an edge that the graph does not have.
    """
    edges = {edge.input: edge for edge in graph.edges if edge.target == task.vertex}
    by_target: dict[int, list[LoggedBatch]] = {}
    for log in logs:
        for logged in log:
            if logged.channel.target.vertex == task.vertex:
                by_target.setdefault(logged.channel.target.index, []).append(logged)

    def floor(index: int) -> int | None:
        return floors[index] if floors else None

    # A watermark never goes back: those come first who had heard of the lowest.
    for index in sorted(by_target, key=lambda one: (-1 if (low := floor(one)) is None else low, one)):
        # What a sender had left had not gone out when the receiver already had what is before it.
        log = sorted(by_target[index], key=lambda one: one.by_sender)
        mine = [own for one in log for own in _owned(one, task, edges, before, graph.parallelism, owner_of)]
        if mine:
            yield floor(index), mine


def _owned(
    logged: LoggedBatch,
    task: TaskId,
    edges: dict[int, Edge],
    before: int,
    parallelism: int,
    owner_of: OwnerOf,
) -> Iterator[LoggedBatch]:
    channel = logged.channel
    edge = edges.get(channel.input)
    if edge is None or edge.source != channel.source.vertex:
        raise StateError(
            f"{logged.rows} records were on their way in {channel}, which this graph does not have: the "
            f"checkpoint belongs to another graph"
        )
    match edge.partitioning:
        case "hash":
            pass
        case "broadcast":
            if copies_from(task.index, before) != channel.target.index:
                return
        case "forward" | "rebalance":
            if taken_over_by(channel.target.index, parallelism) != task.index:
                return
        case _:
            assert_never(edge.partitioning)
    batch = decode_batch(logged.data)
    mine = _with_keys_of(batch, task.index, owner_of) if edge.partitioning == "hash" else batch
    if not mine.records:
        return
    # What a sender promised holds for its channel, and that is not there any more.
    mine.take_news()
    yield LoggedBatch(channel, encode_batch(mine), len(mine), by_sender=False)


def _with_keys_of(batch: Batch, index: int, owner_of: OwnerOf) -> Batch:
    if isinstance(batch.records, FrameRows):
        divided = dict(batch.records.by_owner(lambda keys: list(map(owner_of, keys))))
        return Batch(divided.get(index, []))
    keys = batch.keys
    if keys is None:
        if not batch.records:
            return batch
        raise StateError(f"{len(batch)} records were on their way to the owners of their keys, without keys")
    mine = [position for position, key in enumerate(keys) if owner_of(key) == index]
    if len(mine) == len(keys):
        return batch
    records = [batch.records[position] for position in mine]
    own_keys = records if keys is batch.records else [keys[position] for position in mine]
    times = batch.timestamps
    return Batch(records, own_keys, None if times is None else [times[position] for position in mine])
