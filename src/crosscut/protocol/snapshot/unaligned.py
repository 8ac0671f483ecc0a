"""Unaligned barriers: the snapshot algorithm of Chandy and Lamport, for a dataflow.

Source: Chandy, Lamport, "Distributed Snapshots: Determining Global States of Distributed Systems",
ACM TOCS 3(1), 1985, section 3: the marker-sending and the marker-receiving rule. A task

1. captures its state on the first barrier n, at any input (a source: when it is triggered),
2. and forwards the barrier at once, ahead of everything that still waits in its output queues; what
   the barrier overtook is channel state, and logged by the sender, which still has it;
3. logs what every other input delivers until its own barrier n: records that were sent before their
   sender's capture and not processed before this task's;
4. writes state and logs when the last input has delivered the barrier.

No input is ever blocked, so the snapshot takes no longer under back pressure. It is larger instead.
Where the paper's processes record a channel when its marker *arrives*, so does this: the performer tells
of a barrier as soon as it is in user space, ahead of the records before it in the input queue; that is
logged as well.

A cycle needs nothing special: a back edge is an input like any other.
"""

from __future__ import annotations

from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import (
    CaptureState,
    OvertakeWithBarrier,
    TaskEffect,
)
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol


class UnalignedBarriers(SnapshotProtocol):
    """Chandy-Lamport. The performer tells of barriers when they arrive, not when they are delivered."""

    def takes_on_arrival(self, channel: ChannelId, checkpoint_id: CheckpointId) -> bool:
        return True

    def is_blocked(self, channel: ChannelId) -> bool:
        return False

    def _forward(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        return [OvertakeWithBarrier(checkpoint_id)]

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        effects = self._give_up_logs(channel, checkpoint_id)
        if channel in self._logging.get(checkpoint_id, ()):
            return [*effects, *self._logged(channel, checkpoint_id)]
        if self._is_obsolete(checkpoint_id):
            self.dropped["obsolete barrier"] += 1
            return effects
        # The first barrier n.
        self._pass(checkpoint_id)
        effects += [CaptureState(checkpoint_id), *self._forward(checkpoint_id)]
        effects += self._log(checkpoint_id, frozenset(self._inputs))
        return [*effects, *self._logged(channel, checkpoint_id)]
