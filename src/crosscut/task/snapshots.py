"""How a task takes its snapshots: it tells its protocol of events, and carries out the effects.

A snapshot can't see records in the midst of the chain: half a batch is in the state, and the rest nowhere. So
an event that may end in one waits until the chain is through with the batch that it has begun.

Nor is one taken before all is processed that was on its way at another parallelism: a snapshot says nothing
of what is to come before what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import assert_never

from crosscut.batch import Batch
from crosscut.errors import ProtocolError
from crosscut.ids import ChannelId, CheckpointId, Epoch, TaskId
from crosscut.protocol.barriers.snapshotting import SnapshotProtocol
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ExpediteBarrier,
    ForwardBarrier,
    OvertakeWithBarrier,
    ReportQuiet,
    StartAlignmentTimer,
    StartLog,
    StoreSnapshot,
    TaskEffect,
    UnblockChannels,
)
from crosscut.protocol.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierDeparted,
    CheckpointTriggered,
    SnapshotStored,
    TaskEvent,
)
from crosscut.protocol.messages import SnapshotAcknowledged, SnapshotDeclined, TaskQuiet
from crosscut.protocol.snapshots import PendingTransaction
from crosscut.task.captures import Captures, Stored
from crosscut.task.chain import Chain
from crosscut.task.channel_log import SpilledBlocks
from crosscut.task.departures import Departures, Log
from crosscut.task.intake import Intake
from crosscut.task.items import Barrier
from crosscut.task.outlets import Outlets
from crosscut.task.requests import (
    CancelStore,
    FrozenTask,
    NotePause,
    StoreFrozen,
    WaitForAlignment,
)


class Snapshots:
    """The snapshot protocol of one task at work.

    Args:
        freeze: Returns the task as it is at barrier n.
        pending: Returns the sink's transactions that checkpoint n commits.

    Attributes:
        newest_arrived: The newest checkpoint of which a barrier has come on an input, 0 if none has.
        newest_captured: The newest checkpoint that has the task's state, 0 if none has.
    """

    def __init__(
        self,
        task_id: TaskId,
        epoch: Epoch,
        protocol: SnapshotProtocol,
        captures: Captures,
        intake: Intake,
        chain: Chain,
        departures: Departures,
        outlets: Outlets,
        freeze: Callable[[CheckpointId], FrozenTask],
        pending: Callable[[CheckpointId], tuple[PendingTransaction, ...]],
    ) -> None:
        self._task_id = task_id
        self._epoch = epoch
        self._protocol = protocol
        self._captures = captures
        self._intake = intake
        self._chain = chain
        self._departures = departures
        self._outlets = outlets
        self._freeze = freeze
        self._pending = pending
        # Events that may end in a snapshot, and came while the chain was halfway, in order.
        self._postponed: deque[TaskEvent] = deque()
        self.newest_arrived = CheckpointId(0)
        self.newest_captured = CheckpointId(0)

    @property
    def are_awaited(self) -> bool:
        """Whether one waits until the chain is through with the batch that it has begun."""
        return bool(self._postponed) and self._chain.is_halfway

    @property
    def _is_settled(self) -> bool:
        return not self._chain.is_halfway and not self._intake.is_replaying

    # Events.

    def handle(self, event: TaskEvent) -> None:
        """Tell the protocol, and carry out its effects."""
        if isinstance(event, BarrierArrived) and event.checkpoint_id > self.newest_arrived:
            self.newest_arrived = event.checkpoint_id
        self._perform(self._protocol.handle(event))

    def hold(self, event: CheckpointTriggered | AlignmentTimedOut) -> None:
        """Tell the protocol of something that it may take a snapshot for, as soon as one can be taken."""
        self._postponed.append(event)
        self.let_in()

    def let_in(self) -> None:
        """Tell the protocol of events that were held back, if a snapshot can be taken now."""
        while self._postponed and self._is_settled:
            event = self._postponed.popleft()
            if not isinstance(event, BarrierArrived):
                self.handle(event)
                continue
            barrier = Barrier(event.checkpoint_id)
            # The same barrier on another input may have had this one taken out already.
            if self._intake.waits(event.channel, barrier):
                self.handle(event)
            if self._intake.waits(event.channel, barrier):
                self._intake.take_out(event.channel, barrier)

    def batch_came(self, channel: ChannelId, batch: Batch) -> None:
        """Records have come in on `channel`: they belong to the snapshots that log it."""
        for n in self._protocol.logging(channel):
            self._log(n, channel, batch, by_sender=False)

    def barrier_came(self, channel: ChannelId, n: CheckpointId) -> bool:
        """Barrier n has come in on `channel`; return whether it is to wait there for its turn."""
        arrived = BarrierArrived(channel, n)
        is_logged = n in self._protocol.logging(channel)
        counts_now = self._protocol.takes_on_arrival(channel, n)
        if is_logged or (counts_now and self._is_settled):
            self.handle(arrived)
            return False
        if counts_now:
            # It takes its place among the records, and counts as soon as a snapshot can be taken.
            self._postponed.append(arrived)
        elif self._protocol.announces_barriers:
            self.handle(BarrierAnnounced(channel, n))
        return True

    def note_departures(self) -> bool:
        """Tell the protocol which barriers have left; return whether one has. The outbox must be empty."""
        departing = self._protocol.departing
        if not departing:
            return False
        departed = self._departures.gone(departing)
        for n in departed:
            self.handle(BarrierDeparted(n))
        return bool(departed)

    def stored(self, n: CheckpointId, stored: Stored) -> None:
        """Snapshot n is durable."""
        if self._captures.stored(n, stored):
            self.handle(SnapshotStored(n))

    def completed(self, n: CheckpointId) -> None:
        """Checkpoint n is complete: the next part builds on this one."""
        self._captures.completed(n)

    # Effects.

    def _perform(self, effects: list[TaskEffect]) -> None:
        outlets = self._outlets
        for effect in effects:
            match effect:
                case UnblockChannels():
                    self._intake.unblock()
                case CaptureState(n):
                    self.newest_captured = n
                    self._capture(n)
                case ForwardBarrier(n):
                    self._departures.send_to_all(Barrier(n))
                case OvertakeWithBarrier(n):
                    self._departures.overtake(n, self._overtaken_by(n))
                case ExpediteBarrier(n):
                    self._departures.expedite(n, self._overtaken_by(n))
                    outlets.errands.append(NotePause(n))
                case StartLog(n, channels):
                    self._start_log(n, channels)
                case StartAlignmentTimer(n):
                    outlets.errands.append(WaitForAlignment(n))
                case StoreSnapshot(n):
                    outlets.errands.append(StoreFrozen(self._captures.whole(n)))
                case DiscardSnapshot(n):
                    self._captures.discard(n)
                    outlets.errands.append(CancelStore(n))
                case AcknowledgeSnapshot(n):
                    times = self._captures.times(n)
                    snapshot = self._captures.acknowledge(n, self._pending(n))
                    outlets.messages.append(
                        SnapshotAcknowledged(self._epoch, n, self._task_id, snapshot, times)
                    )
                case DeclineCheckpoint(n, reason):
                    outlets.messages.append(SnapshotDeclined(self._epoch, n, self._task_id, reason))
                case ReportQuiet(n):
                    outlets.messages.append(TaskQuiet(self._epoch, n, self._task_id))
                case _:
                    assert_never(effect)

    def _capture(self, n: CheckpointId) -> None:
        if not self._is_settled:
            raise ProtocolError(f"task {self._task_id}: a snapshot of half a batch")
        self._captures.begin(self._freeze(n))
        self._outlets.errands.append(NotePause(n))

    def _log(self, n: CheckpointId, channel: ChannelId, batch: Batch, *, by_sender: bool) -> None:
        if batch.records or batch.has_news:
            self._captures.log(n, channel, batch, by_sender=by_sender)

    def _overtaken_by(self, n: CheckpointId) -> Log:
        return partial(self._log, n, by_sender=True)

    def _start_log(self, n: CheckpointId, channels: tuple[ChannelId, ...]) -> None:
        """Log the records that wait in `channels` before barrier n; a barrier n that waits has arrived."""
        barrier = Barrier(n)
        arrived = []
        for channel in channels:
            for waiting in self._intake.ends[channel].queue.in_front_of(barrier):
                if isinstance(waiting, SpilledBlocks):
                    self._captures.log_blocks(n, waiting)
                else:
                    self._log(n, channel, waiting, by_sender=False)
            if self._intake.waits(channel, barrier):
                self._intake.take_out(channel, barrier)
                arrived.append(channel)
        for channel in arrived:
            # Only after everything is logged: the last of them may have the snapshot stored. A channel that
            # is not logged brought the barrier that all this is for.
            if n in self._protocol.logging(channel):
                self.handle(BarrierArrived(channel, n))
