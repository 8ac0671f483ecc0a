"""What the tests of the snapshot protocols have in common: a task's channels, checkpoints, a way to talk."""

from __future__ import annotations

from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.protocol.effects import TaskEffect
from crosscut.protocol.events import TaskEvent
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol

HERE = TaskId(VertexId("here"), 0)
A, B, C = (ChannelId(0, TaskId(VertexId("before"), index), HERE) for index in range(3))
L, M = (ChannelId(1, TaskId(VertexId("body"), index), HERE) for index in range(2))
"""Back edges, where a task has them."""
ELSEWHERE = ChannelId(1, HERE, HERE)
N1, N2, N3 = CheckpointId(1), CheckpointId(2), CheckpointId(3)


def after(machine: SnapshotProtocol, *events: TaskEvent) -> list[TaskEffect]:
    """Return the effects of the last of `events`."""
    effects: list[TaskEffect] = []
    for event in events:
        effects = machine.handle(event)
    return effects
