"""What an attempt at a part of a batch says of itself, and which attempts make a batch. Pure decisions.

A batch runs in stages, each with a partition for every task index; Spark may try a partition more than once,
and may read one partition of the next stage from one attempt and another from another: after it has lost what
an executor had written, for instance. So attempts are told apart by name, each says which ones of the stage
before it has read, and those that are taken together must have read each other, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.protocol.messages import TaskStatistics
from crosscut.protocol.snapshots import PendingTransaction, TaskSnapshot


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A partition of a stage."""

    stage: int
    index: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a partition, which came to its end.

    Attributes:
        name: Unique to this attempt.
        read: The names of the attempts at the stage before that it has read, by index; empty in the first.
        snapshots: Of its tasks, durable, with the transactions that it has staged.
        statistics: Of its tasks, for people.
        is_full: A source of it stopped because the batch may hold no more.
    """

    partition: Partition
    name: str
    read: tuple[str, ...] = ()
    snapshots: tuple[TaskSnapshot, ...] = ()
    statistics: tuple[TaskStatistics, ...] = ()
    is_full: bool = False


def chosen(
    last: Mapping[int, tuple[Attempt, ...]], stages: int, parallelism: int
) -> tuple[Attempt, ...] | None:
    """Return the attempts that are a batch together, in the order of stages and indices.

    Args:
        last: For each index what the taken attempt at the last stage has brought: itself, and those of the
            stages before with the same index that it has read, directly or by way of others.

    Returns:
        None: they don't fit together, or some are missing; the batch has to run again.
    """
    by_partition: dict[Partition, Attempt] = {}
    for brought in last.values():
        for attempt in brought:
            known = by_partition.setdefault(attempt.partition, attempt)
            if known.name != attempt.name:
                return None
    partitions = [Partition(stage, index) for stage in range(stages) for index in range(parallelism)]
    if any(partition not in by_partition for partition in partitions):
        return None
    for partition in partitions:
        if partition.stage == 0:
            continue
        before = tuple(
            by_partition[Partition(partition.stage - 1, index)].name for index in range(parallelism)
        )
        if by_partition[partition].read != before:
            return None
    return tuple(by_partition[partition] for partition in partitions)


def gathered(taken: Iterable[Attempt], vertices: frozenset[VertexId]) -> tuple[Attempt, ...]:
    """Return the attempts of a batch, with all that tasks of `vertices` have staged given to the first task.

    It commits what all of them have staged in one call. So it is part of one snapshot, in the entry of the
    checkpoint, before anything is committed: a restore of it, under either engine, at any parallelism,
    has all of it in one place.
    """
    found = list(taken)
    if not vertices:
        return tuple(found)
    staged: dict[VertexId, list[tuple[int, PendingTransaction]]] = {}
    for attempt in found:
        for one in attempt.snapshots:
            if one.task.vertex in vertices:
                mine = [(one.task.index, pending) for pending in one.snapshot.pending]
                staged.setdefault(one.task.vertex, []).extend(mine)

    def owned(one: TaskSnapshot) -> TaskSnapshot:
        if one.task.vertex not in vertices:
            return one
        of_all = sorted(staged[one.task.vertex], key=lambda each: (each[1].checkpoint_id, each[0]))
        pending = tuple(each for _, each in of_all) if one.task.index == 0 else ()
        return TaskSnapshot(one.task, replace(one.snapshot, pending=pending))

    return tuple(replace(one, snapshots=tuple(map(owned, one.snapshots))) for one in found)


def committer(task: TaskId, vertices: frozenset[VertexId]) -> TaskId:
    """Return the task that commits, or removes, what `task` has staged; see `gathered`."""
    return TaskId(task.vertex, 0) if task.vertex in vertices else task
