"""Aligned barriers: asynchronous barrier snapshotting, for acyclic and for cyclic graphs.

Source: Carbone, Fora, Ewen, Haridi, Tzoumas, "Lightweight Asynchronous Snapshots for Distributed
Dataflows", 2015, section 4.2, algorithm 1 (acyclic), and section 4.3, algorithm 2 (cyclic). The steps
below are the rules of docs/protocol.md, which follow the paper's:

1. A source that is triggered captures its state and sends the barrier on all its outputs.
2. A task that gets the barrier on an input blocks that input.
3. When it has the barrier from all its regular inputs, it captures its state,
4. sends the barrier on all its outputs,
5. and unblocks its inputs.
6. From then on it logs what arrives on a back edge, until the barrier comes back on it.
7. State and log are written in the background, and acknowledged when they are durable.

Since a channel is FIFO, everything before the barrier is in the captured state and nothing after it.
In an acyclic graph the snapshot needs no channel records; in a cycle, the log holds what was on its
way around when the barrier passed. All snapshots together are a consistent cut.

The capture never waits for a back edge: that would be a deadlock, since its barrier comes only after
the capture. With parallel instances, though, the barrier may come back from a loop body that another
head has triggered, before this task's own capture. Then the back edge is blocked until the capture
like any other input (the paper's algorithm 2, made for one instance, would let its later records into
the captured state). It is still read, and spilled, so the cycle can't deadlock either way.
"""

from __future__ import annotations

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import (
    CaptureState,
    DeclineCheckpoint,
    TaskEffect,
    UnblockChannels,
)
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol


class AlignedBarriers(SnapshotProtocol):
    """ABS. A channel is blocked if and only if it delivered the barrier that is being aligned.

    Args:
        inputs: The task's input channels; none for a source, whose only input is the virtual Nil.
        back_edges: Those of `inputs` that close a cycle.
    """

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        super().__init__(inputs, back_edges)
        self._regular = frozenset(inputs) - back_edges
        self._aligning: CheckpointId | None = None
        self._delivered: set[ChannelId] = set()

    def is_blocked(self, channel: ChannelId) -> bool:
        """Whether `channel` has delivered the barrier that is being aligned."""
        return channel in self._delivered

    @property
    def aligning(self) -> CheckpointId | None:
        """The checkpoint whose barrier has come on some inputs and not yet on all regular ones."""
        return self._aligning

    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if channel in self._delivered:
            raise ProtocolError(
                f"barrier {checkpoint_id} on {channel}, which is blocked by barrier {self._aligning}: "
                f"the performer must not deliver from a blocked channel"
            )
        effects = self._give_up_logs(channel, checkpoint_id)
        if channel in self._logging.get(checkpoint_id, ()):
            return [*effects, *self._logged(channel, checkpoint_id)]
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
        if self._regular <= self._delivered:
            effects += [CaptureState(checkpoint_id), *self._forward(checkpoint_id)]
            owing = self._back_edges - self._delivered
            effects += self._end_alignment()
            effects += self._log(checkpoint_id, owing) if owing else self._store(checkpoint_id)
        return effects

    def _aborted(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id == self._aligning:
            return self._end_alignment()
        return super()._aborted(checkpoint_id)

    def _is_obsolete(self, checkpoint_id: CheckpointId) -> bool:
        is_older = self._aligning is not None and checkpoint_id < self._aligning
        return is_older or super()._is_obsolete(checkpoint_id)

    def _end_alignment(self) -> list[TaskEffect]:
        """Unblock the channels of the current alignment, in the order of the inputs."""
        delivered = tuple(channel for channel in self._inputs if channel in self._delivered)
        if self._aligning is not None:
            self._pass(self._aligning)
        self._aligning = None
        self._delivered.clear()
        return [UnblockChannels(delivered)] if delivered else []
