"""At-least-once barriers: no input is ever blocked.

The barrier is forwarded and the state captured when the last regular input delivered it, as in
`crosscut.protocol.aligned`; but the inputs that delivered it earlier have gone on meanwhile. What they
delivered is in the captured state although it belongs to a later checkpoint, so after a restore it
comes again: it counts twice. Nothing is ever lost, and a task with a single input never sees a
duplicate. Flink's mode of the same name does the same.
"""

from __future__ import annotations

from crosscut.ids import ChannelId, CheckpointId
from crosscut.protocol.aligned import AlignedBarriers
from crosscut.protocol.effects import (
    BlockChannel,
    DeclineCheckpoint,
    TaskEffect,
    UnblockChannels,
)


class AtLeastOnceBarriers(AlignedBarriers):
    """As aligned barriers, without the blocking that makes them exactly-once."""

    def is_blocked(self, channel: ChannelId) -> bool:
        return False

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        effects: list[TaskEffect] = []
        if channel in self._delivered and self._aligning is not None and checkpoint_id > self._aligning:
            # Not blocked, so the next barrier may come while others still owe this one.
            reason = f"superseded by barrier {checkpoint_id} on {channel}"
            effects += [*self._end_alignment(), DeclineCheckpoint(self._passed, reason)]
        effects += super()._barrier_arrived(channel, checkpoint_id)
        return [one for one in effects if not isinstance(one, BlockChannel)]

    def _end_alignment(self) -> list[TaskEffect]:
        return [one for one in super()._end_alignment() if not isinstance(one, UnblockChannels)]
