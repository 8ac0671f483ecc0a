"""How a task takes its snapshots: it tells its protocol of events, and carries out the effects.

A snapshot can't see records in the midst of the chain: half a batch is in the state, and the rest nowhere. So
an event that may end in one waits until the chain is through with the batch that it has begun.

Nor is one taken before the task has processed all channel records of another parallelism: a snapshot does not
say which records come before which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import assert_never

from crosscut.contracts.connectors import JSON
from crosscut.errors import ProtocolError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId
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
    CaptureAllowed,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotStored,
    SourcesResumed,
    TaskEvent,
)
from crosscut.protocol.messages import SnapshotAcknowledged, SnapshotDeclined, TaskQuiet
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshots import KnownCommitted, Part, PendingTransaction
from crosscut.protocol.telemetry import SnapshotTimes
from crosscut.task.captures import NO_TIMES, Captures, Stored
from crosscut.task.chain import Chain
from crosscut.task.channel_log import SpilledBlocks
from crosscut.task.input_gate import InputGate
from crosscut.task.items import Barrier
from crosscut.task.output_buffers import Log, OutputBuffers
from crosscut.task.requests import (
    CancelStore,
    FrozenTask,
    NotePause,
    StoreFrozen,
    WaitForAlignment,
)
from crosscut.task.task_effects import TaskEffects


class Snapshots:
    """The snapshot protocol of one task at work.

    Args:
        freeze: Returns the task as it is at barrier n.
        pending: Returns the sink's transactions that checkpoint n commits.
        committed: Returns what is known to be committed.
        is_source: The task is asked for checkpoints; others hear of them by barriers.

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
        input_gate: InputGate,
        chain: Chain,
        output_buffers: OutputBuffers,
        task_effects: TaskEffects,
        freeze: Callable[[CheckpointId], FrozenTask],
        pending: Callable[[CheckpointId], tuple[PendingTransaction, ...]],
        committed: Callable[[], KnownCommitted | None],
        *,
        is_source: bool,
    ) -> None:
        self._task_id = task_id
        self._epoch = epoch
        self._protocol = protocol
        self._captures = captures
        self._input_gate = input_gate
        self._chain = chain
        self._output_buffers = output_buffers
        self._task_effects = task_effects
        self._freeze = freeze
        self._pending = pending
        self._committed = committed
        self._is_source = is_source
        # Events that may end in a snapshot, and came while the chain was halfway, in order.
        self._postponed: deque[TaskEvent] = deque()
        self.newest_arrived = CheckpointId(0)
        self.newest_captured = CheckpointId(0)

    @property
    def are_awaited(self) -> bool:
        """Whether one waits until the chain is through with the batch that it has begun.

        It must run then, even if its outputs take no more: the rest of one batch is bounded.
        """
        return bool(self._postponed) and self._chain.is_halfway

    @property
    def is_postponing(self) -> bool:
        """Whether events are held back until a snapshot can be taken."""
        return bool(self._postponed)

    @property
    def are_aligning(self) -> bool:
        """Whether a barrier has come on some inputs and not yet on all."""
        return self._protocol.aligning is not None

    def are_logging(self, channel: ChannelId) -> bool:
        """Whether records that arrive there belong to one."""
        return bool(self._protocol.logging(channel))

    @property
    def _is_settled(self) -> bool:
        return not self._chain.is_halfway and not self._input_gate.is_replaying

    # Orders and news from the performer.

    def trigger(self, n: CheckpointId) -> None:
        """The coordinator asks a source for a checkpoint."""
        if self._is_source:
            self._hold(CheckpointTriggered(n))

    def abort(self, n: CheckpointId) -> None:
        """The coordinator has given a checkpoint up."""
        self.handle(CheckpointAborted(n))

    def capture(self, n: CheckpointId) -> None:
        """Every task stands still for checkpoint n."""
        self.handle(CaptureAllowed(n))

    def resume(self, n: CheckpointId) -> None:
        """Checkpoint n is complete: go on, if the task stands still for it."""
        self.handle(SourcesResumed(n))

    def alignment_timed_out(self, n: CheckpointId) -> None:
        """The alignment of n has taken as long as the settings allow."""
        self._hold(AlignmentTimedOut(n))

    def stored(
        self,
        n: CheckpointId,
        part: Part | None,
        freeze_us: int,
        log: Part | None = None,
        held: Mapping[CheckpointId, Part] | None = None,
        whole: tuple[Part, ...] | None = None,
        times: SnapshotTimes = NO_TIMES,
        record_fields: JSON = None,
    ) -> None:
        """Everything of frozen snapshot n is durable; `part` holds the keyed state, if any.

        Args:
            log: Holds the channel records, if there were any.
            freeze_us: How long the performer saw the task stopped while it froze.
            held: The records of pending transactions, by the checkpoint they were cut off at.
            whole: All parts of the keyed state, where it is kept in files of its own.
            times: How long it all took.
            record_fields: `Snapshot.record_fields`.
        """
        if self._captures.stored(n, Stored(part, freeze_us, log, held, whole, times, record_fields)):
            self.handle(SnapshotStored(n))

    def failed(self, n: CheckpointId, reason: str, *, is_permanent: bool = False) -> None:
        """Frozen snapshot n could not be stored."""
        self.handle(SnapshotFailed(n, reason, is_permanent))

    def completed(self, n: CheckpointId) -> None:
        """Checkpoint n is complete: the next part builds on this one."""
        self._captures.completed(n)

    def note_sent(self) -> bool:
        """Barriers may have left: to be called when the outbox is empty, or something that waited was sent.

        Returns:
            Whether one has: there may be something in the task effects again.
        """
        departing = self._protocol.departing
        if not departing:
            return False
        departed = self._output_buffers.gone(departing)
        for n in departed:
            self.handle(BarrierDeparted(n))
        return bool(departed)

    # Events.

    def handle(self, event: TaskEvent) -> None:
        """Tell the protocol, and carry out its effects."""
        if isinstance(event, BarrierArrived) and event.checkpoint_id > self.newest_arrived:
            self.newest_arrived = event.checkpoint_id
        self._perform(self._protocol.handle(event))

    def _hold(self, event: CheckpointTriggered | AlignmentTimedOut) -> None:
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
            if self._input_gate.waits(event.channel, barrier):
                self.handle(event)
            if self._input_gate.waits(event.channel, barrier):
                self._input_gate.take_out(event.channel, barrier)

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

    # Effects.

    def _perform(self, effects: list[TaskEffect]) -> None:
        task_effects = self._task_effects
        for effect in effects:
            match effect:
                case UnblockChannels():
                    self._input_gate.unblock()
                case CaptureState(n):
                    self.newest_captured = n
                    self._capture(n)
                case ForwardBarrier(n):
                    self._output_buffers.send_to_all(Barrier(n))
                case OvertakeWithBarrier(n):
                    self._output_buffers.overtake(n, self._overtaken_by(n))
                case ExpediteBarrier(n):
                    self._output_buffers.expedite(n, self._overtaken_by(n))
                    task_effects.background_jobs.append(NotePause(n))
                case StartLog(n, channels):
                    self._start_log(n, channels)
                case StartAlignmentTimer(n):
                    task_effects.background_jobs.append(WaitForAlignment(n))
                case StoreSnapshot(n):
                    task_effects.background_jobs.append(StoreFrozen(self._captures.whole(n)))
                case DiscardSnapshot(n):
                    self._captures.discard(n)
                    task_effects.background_jobs.append(CancelStore(n))
                case AcknowledgeSnapshot(n):
                    times, pending = self._captures.times(n), self._pending(n)
                    unused = self._captures.unused(n, pending)
                    snapshot = self._captures.acknowledge(n, pending, self._committed())
                    task_effects.messages.append(
                        SnapshotAcknowledged(self._epoch, n, self._task_id, snapshot, times, unused)
                    )
                case DeclineCheckpoint(n, reason, is_permanent):
                    declined = SnapshotDeclined(self._epoch, n, self._task_id, reason, is_permanent)
                    task_effects.messages.append(declined)
                case ReportQuiet(n):
                    task_effects.messages.append(TaskQuiet(self._epoch, n, self._task_id))
                case _:
                    assert_never(effect)

    def _capture(self, n: CheckpointId) -> None:
        if not self._is_settled:
            raise ProtocolError(f"task {self._task_id}: a snapshot of half a batch")
        self._captures.begin(self._freeze(n))
        self._task_effects.background_jobs.append(NotePause(n))

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
            for waiting in self._input_gate.ends[channel].queue.in_front_of(barrier):
                if isinstance(waiting, SpilledBlocks):
                    self._captures.log_blocks(n, waiting)
                else:
                    self._log(n, channel, waiting, by_sender=False)
            if self._input_gate.waits(channel, barrier):
                self._input_gate.take_out(channel, barrier)
                arrived.append(channel)
        for channel in arrived:
            # Only after everything is logged: the last of them may have the snapshot stored. A channel that
            # is not logged brought the barrier that all this is for.
            if n in self._protocol.logging(channel):
                self.handle(BarrierArrived(channel, n))
