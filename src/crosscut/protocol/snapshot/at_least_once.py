"""At-least-once barriers: no input is ever blocked.

The barrier is forwarded and the state captured when the last regular input delivered it, as in
`crosscut.protocol.snapshot.aligned`; but the inputs that delivered it earlier have gone on
meanwhile. Their records are in the captured state although they belong to a later checkpoint,
so after a restore it comes again: it counts twice. Nothing is ever lost, and a task with a single
input never sees a duplicate. Flink's mode of the same name does the same.

Since no input waits, the next barrier may come on one input before this one has come on all. Both are
waited for: if the newer one gave the older one up, checkpoints that start more often than the inputs
are apart would give each other up for ever.
"""

from __future__ import annotations

from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import CaptureState, DeclineCheckpoint, TaskEffect
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol


class AtLeastOnceBarriers(SnapshotProtocol):
    """As aligned barriers, without the blocking that makes them exactly-once."""

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        super().__init__(inputs, back_edges)
        self._regular = frozenset(inputs) - back_edges
        # Who has delivered the barriers that some regular input still owes.
        self._delivered: dict[CheckpointId, set[ChannelId]] = {}

    def is_blocked(self, channel: ChannelId) -> bool:
        return False

    @property
    def aligning(self) -> CheckpointId | None:
        """The oldest checkpoint whose barrier has come on some inputs and not yet on all regular ones."""
        return min(self._delivered, default=None)

    def _is_aligning(self, checkpoint_id: CheckpointId) -> bool:
        # Several may be at once.
        return checkpoint_id in self._delivered

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        effects = self._give_up_logs(channel, checkpoint_id)
        if channel in self._logging.get(checkpoint_id, ()):
            return [*effects, *self._logged(channel, checkpoint_id)]
        # FIFO: `channel` will not deliver those any more that it owes.
        owed = [
            n for n, delivered in self._delivered.items() if n < checkpoint_id and channel not in delivered
        ]
        effects += self._give_up(owed, channel, checkpoint_id)
        if self._is_obsolete(checkpoint_id):
            self.dropped["obsolete barrier"] += 1
            return effects
        delivered = self._delivered.setdefault(checkpoint_id, set())
        delivered.add(channel)
        if not self._regular <= delivered:
            return effects
        # Those that are left were never sent on an input that had gone on by then.
        older = [n for n in self._delivered if n < checkpoint_id]
        effects += self._give_up(older, channel, checkpoint_id)
        del self._delivered[checkpoint_id]
        self._pass(checkpoint_id)
        effects += [CaptureState(checkpoint_id), *self._forward(checkpoint_id)]
        owing = self._back_edges - delivered
        return effects + (self._log(checkpoint_id, owing) if owing else self._store(checkpoint_id))

    def _give_up(
        self, older: list[CheckpointId], channel: ChannelId, newer: CheckpointId
    ) -> list[TaskEffect]:
        effects: list[TaskEffect] = []
        for n in sorted(older):
            del self._delivered[n]
            self._aborted_early.add(n)
            effects.append(DeclineCheckpoint(n, f"superseded by barrier {newer} on {channel}"))
        return effects

    def _aborted(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        self._delivered.pop(checkpoint_id, None)
        return super()._aborted(checkpoint_id)
