"""Which messages of workers count: of a worker that has a slot, of this epoch, and about tasks of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from crosscut.foundation.ids import Epoch, TaskId, WorkerIndex
from crosscut.protocol.messages import (
    EpochMessage,
    SourcesReached,
    TaskMessage,
    WorkerHeartbeat,
    WorkerMessage,
)


def sender(
    index: WorkerIndex | None,
    message: EpochMessage,
    epoch: Epoch,
    tasks: Set[TaskId],
    dropped: Counter[str],
) -> WorkerIndex | None:
    """Return who has sent a message that counts; None: it does not, which is counted by its reason.

    Args:
        index: The slot that its link holds; None: none.
        epoch: That of the job.
        tasks: All tasks of the job.
    """
    if index is None or message.epoch != epoch:
        # A heartbeat says that its sender is alive, of whichever epoch: nothing is dropped with it.
        if not isinstance(message, WorkerHeartbeat):
            dropped["message without a place" if index is None else "late message of another epoch"] += 1
        return None
    if not speaks_for_itself(index, message, tasks):
        dropped["message about another worker's task"] += 1
        return None
    return index


def speaks_for_itself(index: WorkerIndex, message: WorkerMessage | EpochMessage, tasks: Set[TaskId]) -> bool:
    """Return whether everything that `message` tells of is a task of worker `index`.

    A worker knows nothing of the tasks of others: one that acknowledges, commits or fails for them is broken
    or lies, and being believed would complete a checkpoint that can't be restored.

    Args:
        tasks: All tasks of the job.
    """
    if isinstance(message, TaskMessage):
        return message.task.index == index and message.task in tasks
    if isinstance(message, WorkerHeartbeat):
        reported = [one.task for one in message.tasks]
        reported += [one.task for one in message.logged if one.task is not None]
    elif isinstance(message, SourcesReached):
        reported = [one.task for one in message.tasks]
    else:
        return True
    # Each heartbeat is asked of, twice: no generator is made for it.
    for task in reported:  # noqa: SIM110
        if task.index != index or task not in tasks:
            return False
    return True
