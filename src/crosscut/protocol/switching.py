"""Aligned barriers that become unaligned when alignment takes too long.

Small snapshots while records flow, and snapshots that don't wait while they are stuck (as Flink's
aligned checkpoint timeout). The clock starts when barrier n is first seen in any input queue, even if
what waits before it can't be delivered: that is the very case to switch in.
"""

from __future__ import annotations

from crosscut.ids import ChannelId, CheckpointId
from crosscut.protocol.aligned import AlignedBarriers
from crosscut.protocol.effects import (
    CaptureState,
    OvertakeWithBarrier,
    StartAlignmentTimer,
    TaskEffect,
)


class AlignedThenUnaligned(AlignedBarriers):
    """Starts each checkpoint aligned; switches it when told that its alignment timed out."""

    announces_barriers = True

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        super().__init__(inputs, back_edges)
        self._announced = CheckpointId(0)

    def _barrier_announced(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id <= self._announced or self._is_obsolete(checkpoint_id):
            return []
        self._announced = checkpoint_id
        return [StartAlignmentTimer(checkpoint_id)]

    def _timed_out(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if self._is_obsolete(checkpoint_id):
            self.dropped["alignment over before its timeout"] += 1
            return []
        if self._aligning is not None and self._aligning != checkpoint_id:
            self.dropped["timeout of another alignment"] += 1
            return []
        # Chandy and Lamport from here on: capture at once, overtake, log what the others still deliver.
        owing = frozenset(self._inputs) - self._delivered
        self._aligning = checkpoint_id
        effects: list[TaskEffect] = [CaptureState(checkpoint_id), OvertakeWithBarrier(checkpoint_id)]
        effects += self._end_alignment()
        return effects + (self._log(checkpoint_id, owing) if owing else self._store(checkpoint_id))
