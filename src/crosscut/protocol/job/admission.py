"""Who is worker i, and what may it speak of?

Spark supplies zombies: its kills are best effort, its attempt numbers repeat, and speculation makes two
live attempts of one Spark task. One attempt is admitted for each place; its identity is the control link
that it proved the secret on, never a number that Spark reuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import assert_never

from crosscut.ids import AttemptId, TaskId, WorkerIndex
from crosscut.protocol.events import LinkId
from crosscut.protocol.messages import (
    RecordsFlowing,
    RegisterWorker,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which attempt of which worker a link has proven to be."""

    worker: WorkerIndex
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Place:
    """An attempt that registered, and the link it speaks on."""

    link: LinkId
    registration: RegisterWorker


@dataclass(frozen=True, slots=True)
class Admit:
    """The place is free: the newcomer has it."""


@dataclass(frozen=True, slots=True)
class KeepInReserve:
    """Somebody alive has the place. The newcomer waits: if the holder is a zombie that Spark has
    given up, its silence or its closed link will show, and refusing the newcomer meanwhile would use
    up Spark's attempts."""


@dataclass(frozen=True, slots=True)
class TurnAway:
    """The newcomer has no business here; it is told to exit."""

    reason: str


def admission(
    newcomer: RegisterWorker,
    parallelism: int,
    held: Mapping[WorkerIndex, Place],
    reserve: Mapping[WorkerIndex, Place],
) -> Admit | KeepInReserve | TurnAway:
    """Decide what happens to a worker that registers."""
    index = newcomer.worker
    if not 0 <= index < parallelism:
        return TurnAway(f"worker {index} of a job that has workers 0 to {parallelism - 1}")
    if index not in held:
        return Admit()
    if held[index].registration.attempt == newcomer.attempt:
        return TurnAway(f"attempt {newcomer.attempt} of worker {index} is registered already")
    if index in reserve:
        return TurnAway(f"worker {index} is held by one live attempt, and a second one waits already")
    return KeepInReserve()


def speaks_for_itself(index: WorkerIndex, message: WorkerMessage, tasks: Set[TaskId]) -> bool:
    """Return whether everything that `message` tells of is a task of worker `index`.

    A worker knows nothing of the tasks of others: whoever acknowledges, commits or fails for them is broken
    or lies, and being believed would complete a checkpoint that nobody can restore.

    Args:
        tasks: All tasks of the job.
    """
    match message:
        case WorkerHeartbeat():
            told = [one.task for one in message.tasks]
        case (
            TaskFailed()
            | SnapshotAcknowledged()
            | SnapshotDeclined()
            | TaskQuiet()
            | SourceDrained()
            | TransactionsCommitted()
        ):
            told = [message.task]
        case RegisterWorker() | WorkerFailed() | WorkerReady() | RecordsFlowing():
            return True
        case _:
            assert_never(message)
    return all(task.index == index and task in tasks for task in told)
