"""Halting: the synchronous snapshot, which stops the world; the baseline that others are measured against.

Source: Murray, McSherry, Isaacs, Isard, Barham, Abadi, "Naiad: A Timely Dataflow System", SOSP 2013,
section 3.4: stop, wait until everything that was on its way is processed, checkpoint, go on. Here:

1. A source that is triggered stops reading, sends the barrier on all its outputs, and says that it is quiet.
2. A task that has the barrier from all its regular inputs sends it on all its outputs, takes nothing more
   from any input, and says that it is quiet.
3. When every task is quiet, the coordinator lets all of them capture.
4. Records before the barrier in a back edge are logged, as in `crosscut.protocol.snapshot.aligned`.
5. State and log are written, while everything stands still, and acknowledged when they are durable.
6. When the checkpoint is complete, or given up, all go on.

The barrier only tells where the input of the checkpoint ends: nothing follows it before the task that
sent it goes on, so nothing need be blocked before the task is quiet. A loop never runs empty by
itself; that is why its head stops as well, and what goes around is logged.
"""

from __future__ import annotations

from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import (
    CaptureState,
    DeclineCheckpoint,
    ReportQuiet,
    TaskEffect,
    UnblockChannels,
)
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol, SnapshotState


class StopTheWorldBarriers(SnapshotProtocol):
    """Naiad's synchronous snapshot."""

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        super().__init__(inputs, back_edges)
        self._regular = frozenset(inputs) - back_edges
        # The barrier that some regular inputs still owe, and who has delivered it.
        self._draining: CheckpointId | None = None
        self._delivered: set[ChannelId] = set()
        # The checkpoint that this task stands still for; which back edges owe its barrier.
        self._halted: CheckpointId | None = None
        self._owing: frozenset[ChannelId] = frozenset()
        self._is_captured = False

    def is_blocked(self, channel: ChannelId) -> bool:
        """Whether the task stands still."""
        return self._halted is not None

    @property
    def is_halted(self) -> bool:
        return self._halted is not None

    def state(self, checkpoint_id: CheckpointId) -> SnapshotState:
        state = super().state(checkpoint_id)
        if checkpoint_id != self._halted or state is not SnapshotState.PASSED:
            return state
        return SnapshotState.ANSWERED if self._is_captured else SnapshotState.HALTED

    @property
    def aligning(self) -> CheckpointId | None:
        return self._draining

    def _begin(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        return self._halt(checkpoint_id)

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        effects = self._give_up_logs(channel, checkpoint_id)
        if channel in self._logging.get(checkpoint_id, ()):
            return [*effects, *self._logged(channel, checkpoint_id)]
        if self._draining is not None and checkpoint_id > self._draining:
            reason = f"superseded by barrier {checkpoint_id} on {channel}"
            effects.append(DeclineCheckpoint(self._draining, reason))
            self._end_draining()
        if self._is_obsolete(checkpoint_id):
            self.dropped["obsolete barrier"] += 1
            return effects
        self._draining = checkpoint_id
        self._delivered.add(channel)
        return [*effects, *self._halt(checkpoint_id)] if self._regular <= self._delivered else effects

    def _halt(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        self._owing = self._back_edges - self._delivered
        self._draining = checkpoint_id
        self._end_draining()
        self._halted = checkpoint_id
        self._is_captured = False
        return [*self._forward(checkpoint_id), ReportQuiet(checkpoint_id)]

    def _capture_allowed(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id != self._halted or self._is_captured:
            self.dropped["obsolete leave to capture"] += 1
            return []
        self._is_captured = True
        owing = self._owing
        rest = self._log(checkpoint_id, owing) if owing else self._store(checkpoint_id)
        return [CaptureState(checkpoint_id), *rest]

    def _resumed(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id != self._halted:
            self.dropped["obsolete resume"] += 1
            return []
        return self._go_on()

    def _aborted(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id == self._draining:
            self._end_draining()
            return []
        if checkpoint_id != self._halted:
            return super()._aborted(checkpoint_id)
        is_void = checkpoint_id in self._logging or checkpoint_id in self._storing
        return [*(super()._aborted(checkpoint_id) if is_void else ()), *self._go_on()]

    def _is_obsolete(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id < (self._draining or 0) or super()._is_obsolete(checkpoint_id)

    def _end_draining(self) -> None:
        if self._draining is not None:
            self._pass(self._draining)
        self._draining = None
        self._delivered.clear()

    def _go_on(self) -> list[TaskEffect]:
        self._halted = None
        return [UnblockChannels(self._inputs)] if self._inputs else []
