"""Keyed state that a process keeps from one batch to the next.

Spark gives a partition to any process. So what is kept here may be that of an older checkpoint, or of an
attempt that was not taken. It is used only if its parts are those of the checkpoint that a batch begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from crosscut.foundation.ids import CheckpointId, TaskId
from crosscut.protocol.messages import DeployTasks, SnapshotAcknowledged
from crosscut.protocol.snapshots import Part
from crosscut.state.reading import ReadPart
from crosscut.worker.backends import StateBackend
from crosscut.worker.local_state_cache import LocalStateCache

Known = dict[CheckpointId, tuple[Part, ...]]
"""By checkpoint, the parts that hold what a state was then."""


class StateCache:
    """The states of one job in this process.

    Args:
        backend: Where they are kept.
    """

    def __init__(self, backend: StateBackend) -> None:
        self._at_hand = LocalStateCache(backend)
        self._known: dict[TaskId, Known] = {}
        self.advanced_count = 0
        """How often only what had changed was read."""

    def at_hand(self, tasks: Iterable[TaskId], deploy: DeployTasks, read_part: ReadPart) -> LocalStateCache:
        """Return what is kept, after all is dropped that is not the state of these tasks in `deploy`.

        A process that had another partition for some batches has an older state of this one: it reads what
        has changed since, so that what a batch costs does not grow with the state. Blocks.
        """
        wanted = {one.task: one.snapshot.parts for one in deploy.snapshots}
        for task in tasks:
            known = self._known.get(task, {}).get(deploy.restore)
            if deploy.rescaled_from or known is None or known != wanted.get(task):
                self._catch_up(task, wanted.get(task, ()), deploy, read_part)
        return self._at_hand

    def _catch_up(
        self, task: TaskId, wanted: Sequence[Part], deploy: DeployTasks, read_part: ReadPart
    ) -> None:
        """Read what has changed since the state that is kept, if that is an older one of this history."""
        older = self._known.pop(task, {})
        if not deploy.rescaled_from:
            for n, parts in sorted(older.items(), reverse=True):
                newer = newer_parts(parts, wanted)
                if newer and self._at_hand.advance(task, n, newer, deploy.restore, read_part):
                    self.advanced_count += 1
                    return
        self._at_hand.forget(task)

    def keep(
        self, deploy: DeployTasks, n: CheckpointId, acknowledged: Mapping[TaskId, SnapshotAcknowledged]
    ) -> None:
        """The tasks have come to the end of batch n, which began with `deploy`."""
        began = {one.task: one.snapshot.parts for one in deploy.snapshots}
        for task, one in acknowledged.items():
            known: Known = {n: one.snapshot.parts}
            if not deploy.rescaled_from:
                known[deploy.restore] = began.get(task, ())
            self._known[task] = known

    def spoil(self, tasks: Iterable[TaskId]) -> None:
        """What is kept of these tasks is of no use."""
        for task in tasks:
            self._known.pop(task, None)
            self._at_hand.forget(task)

    def close(self) -> None:
        """Give back what the states take outside of memory."""
        self._at_hand.close()


def newer_parts(older: Sequence[Part], wanted: Sequence[Part]) -> Sequence[Part]:
    """Return those of `wanted` that come after the parts of an older checkpoint.

    None, if it does not go on from there. The first ones of the older parts may not be needed any more.
    """
    for first in range(len(older)):
        rest = older[first:]
        if tuple(wanted[: len(rest)]) == tuple(rest):
            return wanted[len(rest) :]
    return ()
