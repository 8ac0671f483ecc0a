"""Snapshot protocols, each with one rule broken: explorer and oracle have to find it."""

from __future__ import annotations

from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers


class NeverBlocks(AlignedBarriers):
    def is_blocked(self, channel: ChannelId) -> bool:
        return False


class BlocksItsBackEdges(AlignedBarriers):
    """The capture waits for the back edges as well."""

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        super().__init__(inputs, frozenset())


class LogsNothing(AlignedBarriers):
    def _log(self, checkpoint_id: CheckpointId, owing: frozenset[ChannelId]) -> list[do.TaskEffect]:
        return self._store(checkpoint_id)


class CapturesWithoutWaiting(AlignedBarriers):
    """The early return on a back edge is taken for the barrier of a regular input."""

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[do.TaskEffect]:
        regular = self._regular
        if channel in self._back_edges and self._aligning is None and checkpoint_id > self._passed:
            self._regular = frozenset()
        effects = super()._barrier_arrived(channel, checkpoint_id)
        self._regular = regular
        return effects


class LetsEarlyReturnsThrough(AlignedBarriers):
    """Algorithm 2 of the paper to the letter: a back edge is never blocked."""

    def is_blocked(self, channel: ChannelId) -> bool:
        return super().is_blocked(channel) and channel not in self._back_edges


class ForgetsAborts(AlignedBarriers):
    """Stays blocked when the checkpoint that it aligns is aborted, and waits for its barriers only."""

    def handle(self, event: on.TaskEvent) -> list[do.TaskEffect]:
        match event:
            case on.CheckpointAborted(n) if n == self.aligning:
                return []
            case on.BarrierArrived(_, n) if self.aligning is not None and n != self.aligning:
                return []
            case _:
                return super().handle(event)


class IgnoresNewerBarriers(AlignedBarriers):
    """A newer barrier does not supersede an unfinished alignment; it is dropped."""

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[do.TaskEffect]:
        if self._aligning is not None and checkpoint_id > self._aligning:
            return []
        return super()._barrier_arrived(channel, checkpoint_id)


class CountsBarriers(AlignedBarriers):
    """Captures at so many barriers as there are inputs; an abort does not take one back."""

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        super().__init__(inputs, back_edges)
        self._count = 0

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[do.TaskEffect]:
        if not self._is_obsolete(checkpoint_id):
            self._count += 1
        if self._count == len(self._regular):
            self._count = 0
            self._delivered |= self._regular - {channel}
        return super()._barrier_arrived(channel, checkpoint_id)


class AcknowledgesAtOnce(AlignedBarriers):
    """Before the snapshot is durable."""

    def _store(self, checkpoint_id: CheckpointId) -> list[do.TaskEffect]:
        return [do.AcknowledgeSnapshot(checkpoint_id)]


class LogsOneChannelOnly(UnalignedBarriers):
    """Whatever comes on the others before their barriers is forgotten."""

    def logging(self, channel: ChannelId) -> tuple[CheckpointId, ...]:
        return super().logging(channel) if channel == self._inputs[0] else ()
