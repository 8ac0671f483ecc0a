"""Keyed state that a process keeps from one batch to the next.

Spark gives a partition to any process. So what is kept here may be that of an older checkpoint, or of an
attempt that was not taken. It is used only if its parts are those of the checkpoint that a batch begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from crosscut.ids import CheckpointId, TaskId
from crosscut.protocol.messages import DeployTasks, SnapshotAcknowledged
from crosscut.protocol.snapshots import Part
from crosscut.worker.backends import StateBackend
from crosscut.worker.deployment import StateAtHand

Known = dict[CheckpointId, tuple[Part, ...]]
"""By checkpoint, the parts that hold what a state was then."""


class KeptStates:
    """The states of one job in this process.

    Args:
        backend: Where they are kept.
    """

    def __init__(self, backend: StateBackend) -> None:
        self._at_hand = StateAtHand(backend)
        self._known: dict[TaskId, Known] = {}

    def at_hand(self, tasks: Iterable[TaskId], deploy: DeployTasks) -> StateAtHand:
        """Return what is kept, after all is dropped that is not the state of these tasks in `deploy`."""
        wanted = {one.task: one.snapshot.parts for one in deploy.snapshots}
        for task in tasks:
            known = self._known.get(task, {}).get(deploy.restore)
            if deploy.rescaled_from or known is None or known != wanted.get(task):
                self.spoil([task])
        return self._at_hand

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
