"""Aligned barriers: asynchronous barrier snapshotting for acyclic graphs.

Source: Carbone, Fora, Ewen, Haridi, Tzoumas, "Lightweight Asynchronous Snapshots for Distributed
Dataflows", 2015, section 4.2, algorithm 1. The sentences quoted below are the rules of
docs/protocol.md, which follow the paper's steps:

1. A source that is triggered captures its state and sends the barrier on all its outputs.
2. A task that gets the barrier on an input blocks that input.
3. When it has the barrier from all its inputs, it captures its state,
4. sends the barrier on all its outputs,
5. and unblocks its inputs.
6. The captured state is written in the background and acknowledged when it is durable.

Since a channel is FIFO, everything before the barrier is in the captured state and nothing after it:
the snapshot needs no channel records, and all snapshots together are a consistent cut.
"""

from __future__ import annotations

from collections import Counter
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    BlockChannel,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ForwardBarrier,
    StoreSnapshot,
    TaskEffect,
    UnblockChannels,
)
from crosscut.protocol.events import (
    BarrierArrived,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotStored,
    TaskEvent,
)


class AlignedBarriers:
    """The snapshot protocol of one task, in one epoch.

    A channel is blocked if and only if it delivered the barrier that is being aligned. The driver
    asks `is_blocked` once per batch and delivers nothing from a blocked channel.

    Args:
        inputs: The task's input channels; none for a source, whose only input is the virtual Nil.
    """

    def __init__(self, inputs: tuple[ChannelId, ...]) -> None:
        self._inputs = inputs
        self._aligning: CheckpointId | None = None
        self._delivered: set[ChannelId] = set()
        # Every barrier at or below this one is obsolete: captured, superseded or aborted.
        self._passed = CheckpointId(0)
        # Aborted before their first barrier arrived; all above `_passed`.
        self._aborted_early: set[CheckpointId] = set()
        self._storing: set[CheckpointId] = set()
        self.dropped: Counter[str] = Counter()

    def is_blocked(self, channel: ChannelId) -> bool:
        """Whether `channel` has delivered the barrier that is being aligned."""
        return channel in self._delivered

    @property
    def aligning(self) -> CheckpointId | None:
        """The checkpoint whose barrier has come on some inputs and not yet on all."""
        return self._aligning

    def handle(self, event: TaskEvent) -> list[TaskEffect]:
        """Take one event and return what has to be done, in order.

        Raises:
            ProtocolError: The event is impossible; nothing has changed.
        """
        match event:
            case BarrierArrived(channel, checkpoint_id):
                return self._barrier_arrived(channel, checkpoint_id)
            case CheckpointTriggered(checkpoint_id):
                return self._triggered(checkpoint_id)
            case CheckpointAborted(checkpoint_id):
                return self._aborted(checkpoint_id)
            case SnapshotStored(checkpoint_id):
                return self._stored(checkpoint_id)
            case SnapshotFailed(checkpoint_id, reason):
                return self._failed(checkpoint_id, reason)
            case _:
                assert_never(event)

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if channel not in self._inputs:
            raise ProtocolError(f"barrier {checkpoint_id} on {channel}, which is no input of this task")
        if channel in self._delivered:
            raise ProtocolError(
                f"barrier {checkpoint_id} on {channel}, which is blocked by barrier {self._aligning}: "
                f"the driver must not deliver from a blocked channel"
            )
        effects: list[TaskEffect] = []
        if self._aligning is not None and checkpoint_id > self._aligning:
            # FIFO: this channel will not deliver the older barrier any more, so its alignment would
            # never end. That holds even if the newer checkpoint is aborted already.
            reason = f"superseded by barrier {checkpoint_id} on {channel}"
            effects += [*self._end_alignment(), DeclineCheckpoint(self._passed, reason)]
        if self._is_obsolete(checkpoint_id):
            self.dropped["obsolete barrier"] += 1
            if self._aligning is None and checkpoint_id > self._passed:
                # Aborted early. FIFO again: no older alignment can end any more, so none may begin.
                self._pass(checkpoint_id)
            return effects
        self._aligning = checkpoint_id
        self._delivered.add(channel)
        effects.append(BlockChannel(channel))
        if len(self._delivered) == len(self._inputs):
            effects += [CaptureState(checkpoint_id), ForwardBarrier(checkpoint_id)]
            effects += [*self._end_alignment(), StoreSnapshot(checkpoint_id)]
            self._storing.add(checkpoint_id)
        return effects

    def _triggered(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if self._inputs:
            raise ProtocolError(f"checkpoint {checkpoint_id} triggered at a task that is no source")
        if self._is_obsolete(checkpoint_id):
            self.dropped["obsolete trigger"] += 1
            return []
        self._pass(checkpoint_id)
        self._storing.add(checkpoint_id)
        return [CaptureState(checkpoint_id), ForwardBarrier(checkpoint_id), StoreSnapshot(checkpoint_id)]

    def _aborted(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id in self._storing:
            self._storing.remove(checkpoint_id)
            return [DiscardSnapshot(checkpoint_id)]
        if checkpoint_id == self._aligning:
            return self._end_alignment()
        if self._is_obsolete(checkpoint_id):
            self.dropped["obsolete abort"] += 1
        else:
            self._aborted_early.add(checkpoint_id)
        return []

    def _stored(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id not in self._storing:
            self.dropped["stored after abort"] += 1
            return []
        self._storing.remove(checkpoint_id)
        return [AcknowledgeSnapshot(checkpoint_id)]

    def _failed(self, checkpoint_id: CheckpointId, reason: str) -> list[TaskEffect]:
        if checkpoint_id not in self._storing:
            self.dropped["failed after abort"] += 1
            return []
        self._storing.remove(checkpoint_id)
        return [DiscardSnapshot(checkpoint_id), DeclineCheckpoint(checkpoint_id, reason)]

    def _is_obsolete(self, checkpoint_id: CheckpointId) -> bool:
        return (
            checkpoint_id <= self._passed
            or checkpoint_id in self._aborted_early
            or (self._aligning is not None and checkpoint_id < self._aligning)
        )

    def _end_alignment(self) -> list[TaskEffect]:
        """Unblock what the current alignment blocked, in the order of the inputs."""
        delivered = tuple(channel for channel in self._inputs if channel in self._delivered)
        if self._aligning is not None:
            self._pass(self._aligning)
        self._aligning = None
        self._delivered.clear()
        return [UnblockChannels(delivered)] if delivered else []

    def _pass(self, checkpoint_id: CheckpointId) -> None:
        self._passed = checkpoint_id
        self._aborted_early = {n for n in self._aborted_early if n > checkpoint_id}
