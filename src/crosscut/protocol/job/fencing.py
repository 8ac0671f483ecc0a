"""Whose word counts: that of a worker which has its place, about this epoch, and about tasks of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import assert_never

from crosscut.foundation.ids import Epoch, TaskId, WorkerIndex
from crosscut.protocol.messages import (
    RecordsFlowing,
    RegisterWorker,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    SourcesReached,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)

Word = (
    RecordsFlowing
    | SnapshotAcknowledged
    | SnapshotDeclined
    | SourceDrained
    | SourcesReached
    | TaskFailed
    | TaskQuiet
    | TransactionsCommitted
    | WorkerHeartbeat
    | WorkerReady
)
"""What a worker says of an epoch."""


def sender(
    index: WorkerIndex | None, word: Word, epoch: Epoch, tasks: Set[TaskId], dropped: Counter[str]
) -> WorkerIndex | None:
    """Return who has said a word that counts; None: it does not, which is counted by its reason.

    Args:
        index: The place that its link holds; None: none.
        epoch: That of the job.
        tasks: All tasks of the job.
    """
    if index is None or word.epoch != epoch:
        # A heartbeat says that its sender is alive, of whichever epoch: nothing is dropped with it.
        if not isinstance(word, WorkerHeartbeat):
            dropped["message without a place" if index is None else "late message of another epoch"] += 1
        return None
    if not speaks_for_itself(index, word, tasks):
        dropped["word about another worker's task"] += 1
        return None
    return index


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
            told += [one.task for one in message.logged if one.task is not None]
        case SourcesReached():
            told = [one.task for one in message.tasks]
        case (
            TaskFailed()
            | SnapshotAcknowledged()
            | SnapshotDeclined()
            | TaskQuiet()
            | SourceDrained()
            | TransactionsCommitted()
        ):
            return message.task.index == index and message.task in tasks
        case RegisterWorker() | WorkerFailed() | WorkerReady() | RecordsFlowing():
            return True
        case _:
            assert_never(message)
    # Each heartbeat is asked of, twice: no generator is made for it.
    for task in told:  # noqa: SIM110
        if task.index != index or task not in tasks:
            return False
    return True
