"""The common part of all snapshot protocols of a task: the events, the queries, the book-keeping.

A protocol is a machine per task and epoch. It is told of barriers, triggers and aborts, and of what
became of the snapshot; it answers with effects. Records are none of its business, except that the
performer asks two questions per batch: may this channel deliver (`is_blocked`), and does a snapshot have
to hold what it delivers (`logging`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from enum import Enum
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ForwardBarrier,
    StartLog,
    StoreSnapshot,
    TaskEffect,
)
from crosscut.protocol.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierDeparted,
    CaptureAllowed,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotStored,
    SourcesResumed,
    TaskEvent,
)


class SnapshotState(Enum):
    """The state of checkpoint n in one task."""

    UNSEEN = "no barrier or request for it has arrived"
    ALIGNING = "its barrier has arrived on some inputs, not on all"
    HALTED = "the task is stopped for it, before the capture"
    LOGGING = "captured; records of some inputs are logged until its barrier arrives"
    DEPARTING = "captured; its barrier has not left on all outputs"
    LOGGING_AND_DEPARTING = "captured; both"
    STORING = "its snapshot is being stored"
    ANSWERED = "acknowledged or declined; the task is stopped until the checkpoint is decided"
    PASSED = "acknowledged, declined, superseded or aborted"


class SnapshotProtocol(ABC):
    """The snapshot protocol of one task, in one epoch.

    Args:
        inputs: The task's input channels; none for a source, whose only input is the virtual Nil.
        back_edges: Those of `inputs` that close a cycle.
    """

    def __init__(self, inputs: tuple[ChannelId, ...], back_edges: frozenset[ChannelId] = frozenset()) -> None:
        self._inputs = inputs
        # The same to look one up in: each barrier asks, and there may be thousands of inputs.
        self._known = frozenset(inputs)
        self._back_edges = back_edges
        # Every barrier at or below this one is obsolete: captured, superseded or aborted.
        self._passed = CheckpointId(0)
        # Aborted before their first barrier arrived; all above `_passed`.
        self._aborted_early: set[CheckpointId] = set()
        # Captured; which inputs still owe the barrier, so that their records are logged.
        self._logging: dict[CheckpointId, set[ChannelId]] = {}
        self._storing: set[CheckpointId] = set()
        self.dropped: Counter[str] = Counter()

    announces_barriers = False
    """Whether the protocol wants to be told of barriers that wait in an input queue."""

    def takes_on_arrival(self, channel: ChannelId, checkpoint_id: CheckpointId) -> bool:
        """Whether barrier n counts as arrived as soon as it is in the input queue.

        It does where the channel is being logged for n: the records before it are in the log already.
        """
        return channel in self._logging.get(checkpoint_id, ())

    @abstractmethod
    def is_blocked(self, channel: ChannelId) -> bool:
        """Whether `channel` may deliver nothing for now."""

    @property
    def is_halted(self) -> bool:
        """Whether the task stands still; a source then reads nothing."""
        return False

    @property
    def aligning(self) -> CheckpointId | None:
        """The checkpoint whose barrier has come on some inputs and for which nothing is captured yet."""
        return None

    @property
    def departing(self) -> tuple[CheckpointId, ...]:
        """The forwarded barriers of which it must be told when they have left on every output."""
        return ()

    def state(self, checkpoint_id: CheckpointId) -> SnapshotState:
        """Return what checkpoint n is for this task; `transitions` has the table of what may follow."""
        if checkpoint_id in self._storing:
            return SnapshotState.STORING
        if checkpoint_id in self._logging:
            is_departing = checkpoint_id in self.departing
            return SnapshotState.LOGGING_AND_DEPARTING if is_departing else SnapshotState.LOGGING
        if checkpoint_id in self.departing:
            return SnapshotState.DEPARTING
        if self._is_aligning(checkpoint_id):
            return SnapshotState.ALIGNING
        return SnapshotState.PASSED if self._is_obsolete(checkpoint_id) else SnapshotState.UNSEEN

    def _is_aligning(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id == self.aligning

    def logging(self, channel: ChannelId) -> tuple[CheckpointId, ...]:
        """Return the checkpoints whose snapshot has to hold what `channel` delivers now."""
        if not self._logging:
            return ()
        return tuple(n for n, owing in self._logging.items() if channel in owing)

    def handle(self, event: TaskEvent) -> list[TaskEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            ProtocolError: The event is impossible; nothing has changed.
        """
        match event:
            case BarrierArrived(channel, checkpoint_id):
                if channel not in self._known:
                    raise ProtocolError(
                        f"barrier {checkpoint_id} on {channel}, which is no input of this task"
                    )
                return self._barrier_arrived(channel, checkpoint_id)
            case BarrierAnnounced(channel, checkpoint_id):
                return self._barrier_announced(channel, checkpoint_id)
            case BarrierDeparted(checkpoint_id):
                return self._departed(checkpoint_id)
            case CheckpointTriggered(checkpoint_id):
                return self._triggered(checkpoint_id)
            case CheckpointAborted(checkpoint_id):
                return self._aborted(checkpoint_id)
            case AlignmentTimedOut(checkpoint_id):
                return self._timed_out(checkpoint_id)
            case SnapshotStored(checkpoint_id):
                return self._stored(checkpoint_id)
            case SnapshotFailed(checkpoint_id, reason, is_permanent):
                return self._failed(checkpoint_id, reason, is_permanent=is_permanent)
            case CaptureAllowed(checkpoint_id):
                return self._capture_allowed(checkpoint_id)
            case SourcesResumed(checkpoint_id):
                return self._resumed(checkpoint_id)
            case _:
                assert_never(event)

    @abstractmethod
    def _barrier_arrived(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]: ...

    def _barrier_announced(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        return []

    def _departed(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        raise ProtocolError(f"barrier {checkpoint_id} departed, which nobody waits for")

    def _timed_out(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        raise ProtocolError(f"alignment {checkpoint_id} timed out in a protocol that has no such timer")

    def _capture_allowed(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        raise ProtocolError(f"capture {checkpoint_id} was allowed in a protocol that asks for no leave")

    def _resumed(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        raise ProtocolError(f"sources resumed after {checkpoint_id} in a protocol that halts none")

    def _triggered(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if self._inputs:
            raise ProtocolError(f"checkpoint {checkpoint_id} triggered at a task that is no source")
        if self._is_obsolete(checkpoint_id):
            self.dropped["obsolete trigger"] += 1
            return []
        return self._begin(checkpoint_id)

    def _begin(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        self._pass(checkpoint_id)
        effects: list[TaskEffect] = [CaptureState(checkpoint_id), *self._forward(checkpoint_id)]
        return [*effects, *self._store(checkpoint_id)]

    def _forward(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        return [ForwardBarrier(checkpoint_id)]

    def _aborted(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        if checkpoint_id in self._storing or checkpoint_id in self._logging:
            self._storing.discard(checkpoint_id)
            self._logging.pop(checkpoint_id, None)
            return [DiscardSnapshot(checkpoint_id)]
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

    def _failed(self, checkpoint_id: CheckpointId, reason: str, *, is_permanent: bool) -> list[TaskEffect]:
        if checkpoint_id not in self._storing:
            self.dropped["failed after abort"] += 1
            return []
        self._storing.remove(checkpoint_id)
        declined = DeclineCheckpoint(checkpoint_id, reason, is_permanent)
        return [DiscardSnapshot(checkpoint_id), declined]

    def _is_obsolete(self, checkpoint_id: CheckpointId) -> bool:
        return checkpoint_id <= self._passed or checkpoint_id in self._aborted_early

    def _pass(self, checkpoint_id: CheckpointId) -> None:
        self._passed = checkpoint_id
        self._aborted_early = {n for n in self._aborted_early if n > checkpoint_id}

    def _store(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        """Everything the snapshot has to hold is there."""
        self._storing.add(checkpoint_id)
        return [StoreSnapshot(checkpoint_id)]

    def _log(self, checkpoint_id: CheckpointId, owing: frozenset[ChannelId]) -> list[TaskEffect]:
        """Log what `owing` deliver, each until its barrier."""
        self._logging[checkpoint_id] = set(owing)
        return [StartLog(checkpoint_id, tuple(one for one in self._inputs if one in owing))]

    def _logged(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        """The barrier has come on a channel that owed it: the log of that channel is whole."""
        owing = self._logging[checkpoint_id]
        owing.remove(channel)
        if owing:
            return []
        del self._logging[checkpoint_id]
        return self._store(checkpoint_id)

    def _forget_log(self, checkpoint_id: CheckpointId) -> None:
        del self._logging[checkpoint_id]

    def _give_up_logs(self, channel: ChannelId, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        """A newer barrier came first: FIFO, so `channel` will not deliver the older ones any more."""
        effects: list[TaskEffect] = []
        for n in [n for n, owing in self._logging.items() if n < checkpoint_id and channel in owing]:
            self._forget_log(n)
            reason = f"superseded by barrier {checkpoint_id} on {channel}"
            effects += [DiscardSnapshot(n), DeclineCheckpoint(n, reason)]
        return effects
