"""One task: its snapshot protocol, its operators, its state. No I/O, no clock, no thread.

A driver (the asyncio worker, or the simulator's virtual world) offers what arrives on the inputs,
calls `run` when the task has something to do, and empties four outlets after each call, in this
order: `jobs` (work for the background), `outbox` (what goes to other tasks), `emptied` (inputs whose
senders may go on), `messages` (what goes to the coordinator). The task decides what happens; the driver
decides nothing but when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import assert_never

from crosscut.batch import Batch
from crosscut.errors import CrosscutError, ProtocolError
from crosscut.graph.specs import SideOutput
from crosscut.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId
from crosscut.interfaces import JSON, HeldData, Wait
from crosscut.operators.course import Course
from crosscut.operators.operator import Operator, user_code_error
from crosscut.operators.sink import SinkOperator
from crosscut.operators.watermarks import CombinedWatermark
from crosscut.protocol.barriers.snapshotting import SnapshotProtocol
from crosscut.protocol.commit import Committer
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    AnnounceCommitted,
    CaptureState,
    CommitterEffect,
    CommitTransactions,
    DeclineCheckpoint,
    DiscardSnapshot,
    ExpediteBarrier,
    FailTask,
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
    CommitAttemptFailed,
    CommitAuthorised,
    CommitSucceeded,
    SnapshotFailed,
    SnapshotStored,
    SourcesResumed,
    TaskEvent,
    TransactionPrepared,
)
from crosscut.protocol.messages import (
    FailureCause,
    Part,
    Snapshot,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    TaskFailed,
    TaskQuiet,
    TaskStatistics,
    TransactionsCommitted,
    WorkerMessage,
)
from crosscut.state.keyed import KeyedState
from crosscut.state.parts import PartChain
from crosscut.task.captures import Captures, Stored
from crosscut.task.chain import Chain, said_from_json
from crosscut.task.channel_log import SpilledBlocks
from crosscut.task.departures import Departures, Log
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, EndOfInput, Item, LoggedBatch
from crosscut.task.outputs import Output
from crosscut.task.requests import (
    CancelStore,
    CompleteState,
    FrozenTask,
    Job,
    NotePause,
    PrepareTransaction,
    StoreFrozen,
    WaitForAlignment,
)
from crosscut.task.spilling import SpillSpace
from crosscut.task.splits import SplitQueue
from crosscut.wire.batches import decode_batch


class Task:
    """One parallel instance of a vertex, in one epoch.

    Args:
        chain: The operators, in order; a sink's is the last.
        spills_blocked: An input that is blocked may be spilled to disk; a back edge always may.
        log_space: Takes the logs of snapshots that are too long for memory.
        splits: For a source task.
        state: For a task with keyed state.
        committer: For a sink task.
        held: What its writer keeps in the snapshot.
        ended: The restored snapshot says that the operators have been told of the end of input, and said all.
        said: What they had said of it, if not all.
        restored: The snapshot that the task goes on from, for what concerns event time; None: from none.
        records_in: The restored snapshot's count.
        records_out: Likewise.
        parts: Those of the restored checkpoint.
        unsent: What the restored snapshot holds of the outputs: it is sent again.
    """

    def __init__(
        self,
        *,
        task_id: TaskId,
        epoch: Epoch,
        protocol: SnapshotProtocol,
        inputs: Mapping[ChannelId, InputQueue],
        back_edges: frozenset[ChannelId] = frozenset(),
        spills_blocked: bool = False,
        chain: Sequence[Operator],
        outputs: Sequence[Output],
        batch_rows: int,
        splits: SplitQueue | None = None,
        source_uid: str = "",
        state: KeyedState | None = None,
        committer: Committer | None = None,
        held: HeldData | None = None,
        parts: PartChain | None = None,
        ended: bool = False,
        said: JSON = None,
        restored: Snapshot | None = None,
        has_event_time: bool = False,
        records_in: int = 0,
        records_out: int = 0,
        unsent: Sequence[LoggedBatch] = (),
        log_space: SpillSpace | None = None,
    ) -> None:
        self.task_id = task_id
        self.jobs: list[Job] = []
        # Inputs in which nothing waits any more, though `run` has not read them empty.
        self.emptied: list[ChannelId] = []
        self.messages: list[WorkerMessage] = []
        self.rows_max = batch_rows
        self.records_in = self._records_before = records_in
        self._sent_on = records_out
        self._epoch = epoch
        self._protocol = protocol
        self._back_edges = back_edges
        self._spills_blocked = spills_blocked
        self._chain = Chain(chain, self._emit, self._emit, has_event_time=has_event_time)
        self._chain.said = said_from_json(said)
        self.held = held or HeldData()
        self._batch_rows = batch_rows
        self._splits = splits
        self._source_uid = source_uid
        self._state = state
        self._committer = committer
        sink = chain[-1] if chain else None
        self._sink = sink if isinstance(sink, SinkOperator) else None
        self._writer = self._sink.writer if self._sink is not None else None
        self._queues = inputs
        watermark = restored.watermark if restored is not None else None
        # What goes round comes from what came in, and never holds it up.
        self._watermarks = CombinedWatermark(
            {channel: watermark for channel in inputs if channel not in back_edges}, watermark
        )
        self._chain.restore(
            watermark,
            restored.assigned if restored is not None else None,
            splits.unfinished if splits is not None else [],
            is_new=restored is None,
        )
        # What was on its way comes before anything that is still to come, here as in the inputs: if a
        # snapshot is taken before it has been processed, it is in that one's log, once, like anything else.
        self.departures = Departures(
            outputs, ((logged.channel, decode_batch(logged.data)) for logged in unsent)
        )
        # Channels with something to deliver, in the turn they are served.
        self._turn: deque[ChannelId] = deque(channel for channel, queue in inputs.items() if queue)
        # Those of them that were found blocked, until channels are unblocked: with thousands of inputs,
        # looking at them again for each item would cost the square of their number.
        self._set_aside: list[ChannelId] = []
        self._ended_inputs: set[ChannelId] = set()
        self._ending: Iterator[None] | None = None
        self._ended = ended
        self._is_end_forwarded = False
        # What may end in a snapshot, and came while the chain was halfway, in order.
        self._postponed: deque[TaskEvent] = deque()
        self._captures = Captures(parts or PartChain(), log_space)
        self.wait_ms = 0.0

    # What the driver asks.

    @property
    def outbox(self) -> list[tuple[ChannelId, Item]]:
        """What goes to other tasks now."""
        return self.departures.outbox

    @outbox.setter
    def outbox(self, items: list[tuple[ChannelId, Item]]) -> None:
        self.departures.outbox = items

    @property
    def unsent(self) -> dict[ChannelId, deque[Item]]:
        """What could not be handed over yet, because the channel takes no more for now."""
        return self.departures.unsent

    @property
    def is_source(self) -> bool:
        """Whether the task reads splits rather than channels."""
        return self._splits is not None

    @property
    def has_work(self) -> bool:
        """Whether `run` would do something now. A source that has to wait says so by `wait_ms`."""
        if self._chain.is_midway:
            return True
        if self._ending is not None and not self._protocol.is_halted:
            return True
        if self._splits is not None:
            return not self._is_end_forwarded and not self._protocol.is_halted
        return self._has_input

    @property
    def _has_input(self) -> bool:
        while self._turn and self._protocol.is_blocked(self._turn[0]):
            self._set_aside.append(self._turn.popleft())
        return bool(self._turn)

    @property
    def is_aligning(self) -> bool:
        """Whether a barrier has come on some inputs and not yet on all."""
        return self._protocol.aligning is not None

    def is_logging(self, channel: ChannelId) -> bool:
        """Whether what arrives there belongs to a snapshot."""
        return bool(self._protocol.logging(channel))

    @property
    def is_midway(self) -> bool:
        """Whether it has begun with something that it is to go on with before it takes other records."""
        return self._chain.is_midway

    @property
    def is_awaited(self) -> bool:
        """Whether a snapshot waits until the task is through with the batch that it has begun.

        It has to run then, also if its outputs take no more: what it still makes of that is bounded.
        """
        return bool(self._postponed) and self._chain.is_halfway

    @property
    def has_buffered(self) -> bool:
        """Whether records wait in the output buffers."""
        return self.departures.has_buffered

    @property
    def records_out(self) -> int:
        """Records that have been sent on, or written."""
        return self._sent_on + (self._sink.taken_count if self._sink is not None else 0)

    def queued(self, channel: ChannelId) -> int:
        """Return how many items of an input channel wait in memory."""
        return self._queues[channel].in_memory

    def queued_rows(self, channel: ChannelId) -> int:
        """Return how many records of an input channel wait, in memory and on disk."""
        return self._queues[channel].rows

    def newest_rows(self, channel: ChannelId) -> int:
        """Return how many of them are in memory with nothing on disk after them."""
        return self._queues[channel].newest_rows

    @property
    def machines(self) -> tuple[SnapshotProtocol, Committer | None]:
        """What decides about its snapshots and transactions: to be asked, not told."""
        return self._protocol, self._committer

    def statistics(self) -> TaskStatistics:
        """Return the counters, and what waits now."""
        return TaskStatistics(
            task=self.task_id,
            records_in=self.records_in,
            records_out=self.records_out,
            state_keys=len(self._state) if self._state is not None else 0,
            queued_records=sum(queue.rows for queue in self._queues.values()),
            spilled_bytes=sum(queue.spilled_bytes for queue in self._queues.values()),
            empty_split=self._splits.empty_split if self._splits is not None else "",
        )

    # What the driver tells.

    def follow(self, course: Course) -> None:
        """Let a slice be ended early by `course`."""
        self._chain.follow(course)

    def offer(self, channel: ChannelId, item: Item) -> None:
        """Add an item that arrived on an input, after everything that arrived there before.

        The outlets may have something in them afterwards: a barrier may count on arrival.
        """
        match item:
            case Barrier(checkpoint_id):
                arrived = BarrierArrived(channel, checkpoint_id)
                is_logged = checkpoint_id in self._protocol.logging(channel)
                counts_now = self._protocol.takes_on_arrival(channel, checkpoint_id)
                if is_logged or (counts_now and self._is_settled):
                    self._perform(self._protocol.handle(arrived))
                    return
                if counts_now:
                    # It takes its place among the records, and counts as soon as a snapshot can be taken.
                    self._postponed.append(arrived)
                elif self._protocol.announces_barriers:
                    self._perform(self._protocol.handle(BarrierAnnounced(channel, checkpoint_id)))
            case Batch():
                for n in self._protocol.logging(channel):
                    self._log(n, channel, item, by_sender=False)
            case EndOfInput():
                pass
        queue = self._queues[channel]
        if not queue:
            self._turn.append(channel)
        queue.append(item)

    def spill(self, channel: ChannelId) -> bool:
        """Move what waits in an input to disk, where its sender must not be made to wait.

        Returns:
            Whether that was done; if not, the sender has to wait.

        Raises:
            SpillError: It can't be written.
        """
        is_blocked = self._spills_blocked and self._protocol.is_blocked(channel)
        return (is_blocked or channel in self._back_edges) and self._queues[channel].spill()

    def run(self) -> ChannelId | None:
        """Do one piece of work: at most `rows_max` records, or one barrier.

        Returns:
            The channel that was read from, if any: there may be room again.

        Raises:
            UserCodeError: User code raised; the task is of no use any more.
            ConnectorError: A source or sink failed; likewise.
        """
        channel = None
        self._chain.begin(self.rows_max)
        if self._chain.is_midway:
            self._chain.go_on()
        elif self._has_input:
            # Also while the operators say what they say at the end: then it is a barrier.
            channel = self._turn.popleft()
            self._deliver(channel)
        elif self._protocol.is_halted:
            pass
        elif self._ending is not None:
            self._run_ending()
        elif self._splits is not None:
            self._run_source(self._splits)
        self._let_in()
        return channel

    def flush(self) -> None:
        """Send what waits in the output buffers: nothing else is to be done, or it has lingered."""
        self.departures.flush()

    def trigger(self, checkpoint_id: CheckpointId) -> None:
        """The coordinator asks a source for a checkpoint."""
        if self._splits is None:
            return
        self._hold(CheckpointTriggered(checkpoint_id))

    def abort(self, checkpoint_id: CheckpointId) -> None:
        """The coordinator has given a checkpoint up."""
        self._perform(self._protocol.handle(CheckpointAborted(checkpoint_id)))

    def capture(self, checkpoint_id: CheckpointId) -> None:
        """Every task stands still for checkpoint n."""
        self._perform(self._protocol.handle(CaptureAllowed(checkpoint_id)))

    def resume(self, checkpoint_id: CheckpointId) -> None:
        """Checkpoint n is complete: go on, if the task stands still for it."""
        self._perform(self._protocol.handle(SourcesResumed(checkpoint_id)))

    def alignment_timed_out(self, checkpoint_id: CheckpointId) -> None:
        """The alignment of n has taken as long as the settings allow."""
        self._hold(AlignmentTimedOut(checkpoint_id))

    def note_departures(self) -> bool:
        """Barriers may have left: to be called when the outbox is empty, or something of `unsent` was sent.

        Returns:
            Whether one has: there may be something in the outlets again.
        """
        departing = self._protocol.departing
        if not departing:
            return False
        departed = self.departures.gone(departing)
        for n in departed:
            self._perform(self._protocol.handle(BarrierDeparted(n)))
        return bool(departed)

    def close_loops(self, heads: Collection[VertexId]) -> None:
        """The coordinator has found the loops with these heads exhausted: their back edges have ended."""
        if self.task_id.vertex in heads:
            for channel in sorted(self._back_edges):
                self.offer(channel, EndOfInput())

    def transaction_prepared(self, checkpoint_id: CheckpointId, handle: JSON) -> None:
        """The sink transaction of `checkpoint_id` is durable; told before `snapshot_stored`."""
        if self._committer is not None:
            self._commit(self._committer.handle(TransactionPrepared(checkpoint_id, handle)))

    def snapshot_stored(
        self,
        checkpoint_id: CheckpointId,
        part: Part | None,
        freeze_us: int,
        log: Part | None = None,
        held: Mapping[CheckpointId, Part] | None = None,
        whole: tuple[Part, ...] | None = None,
    ) -> None:
        """Everything of the frozen snapshot is durable; `part` holds the keyed state, if any.

        Args:
            log: Holds what was on its way, if anything was.
            freeze_us: How long the driver saw the task stopped while it froze.
            held: The records of pending transactions, by the checkpoint they were cut off at.
            whole: All parts of the keyed state, where it is kept in files of its own.
        """
        if self._captures.stored(checkpoint_id, Stored(part, freeze_us, log, held, whole)):
            self._perform(self._protocol.handle(SnapshotStored(checkpoint_id)))

    def snapshot_failed(self, checkpoint_id: CheckpointId, reason: str) -> None:
        """The frozen snapshot could not be stored."""
        self._perform(self._protocol.handle(SnapshotFailed(checkpoint_id, reason)))

    def checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        """Checkpoint n is complete: commit, and build the next part on this one."""
        self._captures.completed(checkpoint_id)
        if self._splits is not None:
            self._splits.acknowledge(checkpoint_id)
        if self._state is not None:
            self.jobs.append(CompleteState(checkpoint_id))
        if self._committer is not None:
            self._commit(self._committer.handle(CommitAuthorised(checkpoint_id)))

    def commit_succeeded(self) -> None:
        """The commit asked for last is visible."""
        if self._committer is not None:
            self._commit(self._committer.handle(CommitSucceeded()))

    def commit_failed(self, reason: str) -> None:
        """The commit asked for last failed or its outcome is unknown."""
        if self._committer is not None:
            self._commit(self._committer.handle(CommitAttemptFailed(reason)))

    def close(self) -> None:
        """Close readers and writer; the first error is raised after all were tried."""
        try:
            if self._splits is not None:
                self._splits.close()
        finally:
            for queue in self._queues.values():
                queue.close()
            if self._writer is not None:
                self._writer.close()

    # Records.

    def _run_source(self, splits: SplitQueue) -> None:
        try:
            found = splits.read(self.rows_max)
        except CrosscutError:
            raise
        except BaseException as error:  # A source may call the user's functions, as `generate` does.
            is_first = self.records_in == self._records_before
            raise user_code_error(self._source_uid, error, splits.positions(), is_first=is_first) from error
        self._chain.note_splits(splits.origin, splits.just_ended)
        if isinstance(found, Wait):
            self.wait_ms = found.delay_ms
            if splits.is_drained:
                self._start_ending()
            else:
                self._chain.tell_assigned()
            return
        self.wait_ms = 0.0
        self.records_in += len(found)
        rest = self._chain.process(Batch(found))
        if rest is not None:
            self._chain.keep(rest)

    def _deliver(self, channel: ChannelId) -> None:
        """Take the first item of a channel that is not blocked and not empty."""
        queue = self._queues[channel]
        item = queue.take(self.rows_max)
        match item:
            case Batch():
                if channel in self._ended_inputs:
                    raise ProtocolError(
                        f"task {self.task_id}: {len(item)} records came on {channel} after its end of input"
                    )
                rows = len(item)
                news = item.take_news() if item.has_news else None
                rest_of_slice = self._chain.process(item) if rows else None
                if rest_of_slice is not None:
                    rows -= len(rest_of_slice)
                    if news is not None:
                        rest_of_slice.add_news(news.watermark, idle=news.idle)
                    queue.appendleft(rest_of_slice)
                elif news is not None and channel not in self._back_edges:
                    self._chain.tell(self._watermarks.heard(channel, news.watermark, idle=news.idle))
                self.records_in += rows
            case Barrier(checkpoint_id):
                self._perform(self._protocol.handle(BarrierArrived(channel, checkpoint_id)))
            case EndOfInput():
                is_new = channel not in self._ended_inputs
                self._ended_inputs.add(channel)
                # The end comes around a loop as well, after it was told by `close_loops`.
                if is_new and len(self._ended_inputs) == len(self._queues):
                    self._start_ending()
                else:
                    self._chain.tell(self._watermarks.ended(channel))
            case _:
                assert_never(item)
        if queue:
            self._turn.append(channel)

    def _emit(self, batch: Batch, side: SideOutput | None = None) -> None:
        if self.departures.lead_on(side):
            self._sent_on += len(batch)
            self.departures.add(batch, side)

    def _start_ending(self) -> None:
        # Operators are told of the end once in the job's life, even if a restored source reports it
        # again. How far they have come is in each snapshot that is taken meanwhile.
        self._ending = iter(()) if self._ended else self._chain.end()
        # At once: where they have nothing to say, no barrier finds the task before that.
        self._run_ending()

    def _run_ending(self) -> None:
        if self._ending is None or next(self._ending, self) is not self:
            return
        self._ending = None
        self._ended = True
        self._is_end_forwarded = True
        self.departures.send_to_all(EndOfInput())
        if self._splits is not None:
            self.messages.append(SourceDrained(self._epoch, self.task_id))

    # Snapshots wait until nothing is halfway: half a batch is in the state, and the rest nowhere.

    @property
    def _is_settled(self) -> bool:
        return not self._chain.is_halfway

    def _hold(self, event: CheckpointTriggered | AlignmentTimedOut) -> None:
        """Tell the protocol of something that it may take a snapshot for, as soon as one can be taken."""
        self._postponed.append(event)
        self._let_in()

    def _let_in(self) -> None:
        while self._postponed and self._is_settled:
            event = self._postponed.popleft()
            if not isinstance(event, BarrierArrived):
                self._perform(self._protocol.handle(event))
                continue
            barrier = Barrier(event.checkpoint_id)
            # The same barrier on another input may have had this one taken out already.
            if barrier in self._queues[event.channel]:
                self._perform(self._protocol.handle(event))
            if barrier in self._queues[event.channel]:
                self._take_out(event.channel, barrier)

    # Effects.

    def _perform(self, effects: list[TaskEffect]) -> None:
        for effect in effects:
            match effect:
                case UnblockChannels():
                    # In front: they have waited for longer.
                    self._turn.extendleft(reversed(self._set_aside))
                    self._set_aside.clear()
                case CaptureState(checkpoint_id):
                    self._captures.begin(self._freeze(checkpoint_id))
                    self.jobs.append(NotePause(checkpoint_id))
                case ForwardBarrier(checkpoint_id):
                    self.departures.send_to_all(Barrier(checkpoint_id))
                case OvertakeWithBarrier(checkpoint_id):
                    self.departures.overtake(checkpoint_id, self._overtaken_by(checkpoint_id))
                case ExpediteBarrier(checkpoint_id):
                    self.departures.expedite(checkpoint_id, self._overtaken_by(checkpoint_id))
                    self.jobs.append(NotePause(checkpoint_id))
                case StartLog(checkpoint_id, channels):
                    self._start_log(checkpoint_id, channels)
                case StartAlignmentTimer(checkpoint_id):
                    self.jobs.append(WaitForAlignment(checkpoint_id))
                case StoreSnapshot(checkpoint_id):
                    self.jobs.append(StoreFrozen(self._captures.whole(checkpoint_id)))
                case DiscardSnapshot(checkpoint_id):
                    self._captures.discard(checkpoint_id)
                    self.jobs.append(CancelStore(checkpoint_id))
                case AcknowledgeSnapshot(checkpoint_id):
                    self.messages.append(self._acknowledgement(checkpoint_id))
                case DeclineCheckpoint(checkpoint_id, reason):
                    self.messages.append(SnapshotDeclined(self._epoch, checkpoint_id, self.task_id, reason))
                case ReportQuiet(checkpoint_id):
                    self.messages.append(TaskQuiet(self._epoch, checkpoint_id, self.task_id))
                case _:
                    assert_never(effect)

    def _log(self, n: CheckpointId, channel: ChannelId, batch: Batch, *, by_sender: bool) -> None:
        self._captures.log(n, channel, batch, by_sender=by_sender)

    def _overtaken_by(self, n: CheckpointId) -> Log:
        return partial(self._log, n, by_sender=True)

    def _start_log(self, n: CheckpointId, channels: tuple[ChannelId, ...]) -> None:
        """Log what waits in `channels` in front of barrier n; one that waits there has arrived."""
        barrier = Barrier(n)
        arrived = []
        for channel in channels:
            queue = self._queues[channel]
            for waiting in queue.in_front_of(barrier):
                if isinstance(waiting, SpilledBlocks):
                    self._captures.log_blocks(n, waiting)
                else:
                    self._log(n, channel, waiting, by_sender=False)
            if barrier in queue:
                self._take_out(channel, barrier)
                arrived.append(channel)
        for channel in arrived:
            # Not before everything is logged: the last of them may have the snapshot stored. One that is
            # not logged is the barrier that all this is for.
            if n in self._protocol.logging(channel):
                self._perform(self._protocol.handle(BarrierArrived(channel, n)))

    def _take_out(self, channel: ChannelId, barrier: Barrier) -> None:
        queue = self._queues[channel]
        queue.remove(barrier)
        if not queue:
            (self._turn if channel in self._turn else self._set_aside).remove(channel)
            self.emptied.append(channel)

    def _freeze(self, checkpoint_id: CheckpointId) -> FrozenTask:
        if not self._is_settled:
            raise ProtocolError(f"task {self.task_id}: a snapshot of half a batch")
        since = CheckpointId(0)
        if self._state is not None:
            self._state.freeze(checkpoint_id)
            since = self._captures.next_base(self._state)
        transaction = self._writer.rotate(checkpoint_id) if self._writer is not None else None
        if transaction is not None:
            self.jobs.append(PrepareTransaction(checkpoint_id, transaction))
        return FrozenTask(
            checkpoint_id=checkpoint_id,
            since=since,
            positions=self._splits.freeze(checkpoint_id) if self._splits is not None else None,
            ended=self._ended,
            watermark=self._watermarks.watermark,
            assigned=self._chain.assigned,
            said=None if self._ended or not any(self._chain.said) else list(self._chain.said),
            is_end_forwarded=self._is_end_forwarded,
            records_in=self.records_in,
            records_out=self.records_out,
            state_keys=len(self._state) if self._state is not None else 0,
        )

    def _acknowledgement(self, n: CheckpointId) -> SnapshotAcknowledged:
        pending = self._committer.pending(n) if self._committer is not None else ()
        return SnapshotAcknowledged(self._epoch, n, self.task_id, self._captures.acknowledge(n, pending))

    def _commit(self, effects: list[CommitterEffect]) -> None:
        for effect in effects:
            match effect:
                case CommitTransactions():
                    self.jobs.append(effect)
                case AnnounceCommitted(checkpoint_id):
                    self.messages.append(TransactionsCommitted(self._epoch, checkpoint_id, self.task_id))
                case FailTask(reason):
                    cause = FailureCause("CommitFailed", reason)
                    self.messages.append(TaskFailed(self._epoch, self.task_id, cause))
                case _:
                    assert_never(effect)
