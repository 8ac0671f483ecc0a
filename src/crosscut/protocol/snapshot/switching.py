"""Aligned barriers that become unaligned when alignment takes too long.

Small snapshots while records flow, and snapshots that don't wait while they are stuck (as Flink's
aligned checkpoint timeout). The clock of a task starts when barrier n is first seen in any input queue,
even if the records before it can't be delivered: that is the very case to switch in. It runs until the
barrier has left the task's outputs, since a channel that takes no more holds it up just as well. So a
snapshot is whole, and stored, when its barrier has left, and no task keeps a barrier for longer.
"""

from __future__ import annotations

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import (
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ExpediteBarrier,
    OvertakeWithBarrier,
    StartAlignmentTimer,
    TaskEffect,
)
from crosscut.protocol.snapshot.aligned import AlignedBarriers


class AlignedThenUnaligned(AlignedBarriers):
    """Starts each checkpoint aligned; switches it when told that its time is over."""

    announces_barriers = True

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        super().__init__(inputs, back_edges)
        self._announced = CheckpointId(0)
        # Captured and forwarded after records, and not known to have left yet, in order.
        self._departing: list[CheckpointId] = []

    @property
    def departing(self) -> tuple[CheckpointId, ...]:
        return tuple(self._departing)

    def _barrier_announced(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if self._is_obsolete(checkpoint_id):
            return []
        return self._start_timer(checkpoint_id)

    def _start_timer(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id <= self._announced:
            return []
        self._announced = checkpoint_id
        return [StartAlignmentTimer(checkpoint_id)]

    def _forward(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        self._departing.append(checkpoint_id)
        # A source has no input to see the barrier in before.
        return [*super()._forward(checkpoint_id), *self._start_timer(checkpoint_id)]

    def _store(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        # Records that the barrier may still overtake belong to the snapshot.
        return [] if checkpoint_id in self._departing else super()._store(checkpoint_id)

    def _departed(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id not in self._departing:
            raise ProtocolError(f"barrier {checkpoint_id} departed: expected one of {self._departing}")
        self._departing.remove(checkpoint_id)
        return [] if checkpoint_id in self._logging else self._store(checkpoint_id)

    def _timed_out(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id in self._departing:
            return [ExpediteBarrier(checkpoint_id), *self._departed(checkpoint_id)]
        if self._is_obsolete(checkpoint_id):
            self.dropped["alignment over before its timeout"] += 1
            return []
        effects: list[TaskEffect] = []
        if self._aligning not in (None, checkpoint_id):
            # The older one has no timer, which would have fired: an input has passed it over for good.
            effects += self._end_alignment()
            reason = f"superseded by the timeout of barrier {checkpoint_id}"
            effects.append(DeclineCheckpoint(self._passed, reason))
        # Chandy and Lamport from here on: capture at once, overtake, log the others' records.
        owing = frozenset(self._inputs) - self._delivered
        self._aligning = checkpoint_id
        effects += [CaptureState(checkpoint_id), OvertakeWithBarrier(checkpoint_id)]
        effects += self._end_alignment()
        return effects + (self._log(checkpoint_id, owing) if owing else self._store(checkpoint_id))

    def _aborted(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id not in self._departing:
            return super()._aborted(checkpoint_id)
        self._departing.remove(checkpoint_id)
        self._logging.pop(checkpoint_id, None)
        return [DiscardSnapshot(checkpoint_id)]

    def _forget_log(self, checkpoint_id: CheckpointId) -> None:
        super()._forget_log(checkpoint_id)
        self._departing = [n for n in self._departing if n != checkpoint_id]
