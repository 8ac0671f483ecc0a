"""One task: its operators, its state, its snapshot protocol. No I/O, no clock, no thread.

Its performer (the worker's pool, in the cluster and in the simulator) offers what arrives on the inputs,
calls `run` when the task has something to do, and empties the task effects after each call. The task decides
all but the moment, which is the performer's.

A record's way is here: `offer`, `run`, `_deliver`, the chain, `_emit`. Around it are `input_gate` (inputs in
turn), `source_input` (the splits of a source), `output_buffers` (the way out), `snapshots` (barriers and
their effects), `transactions` (of a sink), `ending` (the end of input).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import assert_never

from crosscut.contracts.connectors import JSON, HeldData
from crosscut.errors import ProtocolError
from crosscut.foundation.batch import Batch, NumberedBatch
from crosscut.foundation.ids import ChannelId, CheckpointId, VertexId
from crosscut.graph.specs import SideOutput
from crosscut.operators.probing import Probing
from crosscut.operators.sink import SinkOperator
from crosscut.protocol.events import BarrierArrived, CommitAuthorised
from crosscut.protocol.messages import AlignSources, SourceDrained, SourceReached, TaskStatistics
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshots import PendingTransaction, Snapshot
from crosscut.protocol.splits.rescaling import read_final_progress, shown_final_progress
from crosscut.state.parts import PartChain
from crosscut.task.calls import TaskCalls
from crosscut.task.captures import Captures
from crosscut.task.chain import Chain
from crosscut.task.ending import TaskEnding
from crosscut.task.hot_keys import HotKeys
from crosscut.task.input_gate import InputGate
from crosscut.task.items import REPLAYED, Barrier, EndOfInput, Item
from crosscut.task.latency_markers import LatencyMarkers
from crosscut.task.output_buffers import OutputBuffers
from crosscut.task.plan import TaskPlan
from crosscut.task.requests import CompleteState, FrozenTask
from crosscut.task.snapshots import Snapshots
from crosscut.task.source_input import SourceInput
from crosscut.task.task_effects import TaskEffects
from crosscut.task.task_section import SplitChanges, TaskSection
from crosscut.task.time import TaskTime
from crosscut.task.transactions import Transactions
from crosscut.wire.batches import decode_batch


class Task:
    """One parallel instance of a vertex, in one epoch.

    Attributes:
        task_effects: Work for the performer, after any call.
        input_gate: The inputs.
        chain: The operators at work.
        output_buffers: The way out.
        markers: Those that follow the records.
        snapshots: Those of the task; they are told of barriers and checkpoints.
        is_source: The task reads splits rather than channels.
        sent_on: Records that the last operator has given to the outputs.
        transactions: Those of its sink.
        calls: Those that its operators have asked for.
    """

    def __init__(self, plan: TaskPlan) -> None:
        before = plan.restored if plan.restored is not None else Snapshot()
        self.task_id = plan.task_id
        self.rows_max = plan.batch_rows
        self.records_in = self._records_before = before.records_in
        self.sent_on = before.records_out
        self._hot_keys = HotKeys()
        self._late_before = before.late_records
        self._epoch = plan.epoch
        self._protocol = plan.protocol
        self._back_edges = plan.back_edges
        self.held = plan.held or HeldData()
        self._state = plan.state
        self._committer = plan.committer
        sink = plan.chain[-1] if plan.chain else None
        self._sink = sink if isinstance(sink, SinkOperator) else None
        self.task_effects = TaskEffects()
        writer = self._sink.writer if self._sink is not None else None
        self.sink_uid = self._sink.uid if self._sink is not None else ""
        self.transactions = Transactions(
            plan.task_id, plan.epoch, writer, plan.committer, self.task_effects, self.sink_uid
        )
        # Restored records come before all others, here as in the inputs: if a snapshot is taken before they
        # have been processed, they are in its log, once, like any others.
        self.task_effects.outbox += [(logged.channel, decode_batch(logged.data)) for logged in plan.unsent]
        self.input_gate = InputGate(
            plan.inputs,
            plan.protocol.is_blocked,
            self.task_effects,
            back_edges=plan.back_edges,
            channel_bytes=plan.channel_bytes,
            spills_blocked=plan.spills_blocked,
            replay=plan.replay,
        )
        self.chain = Chain(
            plan.chain, self._emit, self._emit, has_event_time=plan.has_event_time, untimed=plan.untimed
        )
        self.chain.final_progress, self._predecessor_progress = read_final_progress(before.said)
        self.is_source = plan.splits is not None
        self._source_input: SourceInput | None = None
        if plan.splits is not None:
            self._source_input = SourceInput(
                plan.task_id, plan.splits, plan.source_uid, plan.aligned, self.chain
            )
        self._time = TaskTime(
            self.chain,
            (one for one in plan.inputs if one not in plan.back_edges),
            plan.restored,
            has_event_time=plan.has_event_time,
        )
        self.uses_clock = self._time.uses_clock
        self._has_rung = False
        # What it begins then would be in the output of this batch, and not in its snapshot.
        self._is_batch_over = False
        self._is_paused = False
        self.chain.restore(
            self._time.watermark,
            before.assigned,
            plan.splits.unfinished if plan.splits is not None else [],
            is_new=plan.restored is None,
            is_open=plan.splits is not None and plan.splits.is_open,
            is_raised_later=plan.replay is not None and plan.replay.has_own,
        )
        self._ending = TaskEnding(self.chain, is_emitted=before.ended, is_forwarded=plan.is_end_forwarded)
        self._ended_inputs = frozenset(plan.ended_inputs)
        if plan.is_end_forwarded:
            self.chain.forget_news()
            for channel in plan.inputs:
                self.input_gate.end(channel)
        self.calls = TaskCalls(plan.chain, plan.protocol, self.chain, self.input_gate, self.task_effects)
        self.output_buffers = OutputBuffers(plan.outputs, self.task_effects, plan.channel_bytes)
        self.markers = LatencyMarkers(plan.task_id.vertex, self.chain, self.output_buffers, self.task_effects)
        self._captures = Captures(plan.parts or PartChain(), plan.log_space, plan.state)
        self.snapshots = Snapshots(
            plan.task_id,
            plan.epoch,
            plan.protocol,
            self._captures,
            self.input_gate,
            self.chain,
            self.output_buffers,
            self.task_effects,
            self._freeze,
            self.transactions.pending,
            self.transactions.committed,
            is_source=plan.splits is not None,
        )
        self._send_replay_markers()

    # Questions of the performer.

    @property
    def wait_ms(self) -> float:
        """For so long a source has nothing to read."""
        return self._source_input.wait_ms if self._source_input is not None else 0.0

    @property
    def is_drained(self) -> bool:
        """Whether a source has read all that there is."""
        return self._source_input is not None and self._source_input.is_drained

    @property
    def has_work(self) -> bool:
        """Whether `run` would do something now. A source that has to wait says so by `wait_ms`."""
        if self.chain.is_midway:
            return not self._stands_still
        calls, ending = self.calls, self._ending
        if calls.are_made and calls.has_results:
            return True
        if ending.is_under_way and not self._protocol.is_halted and not calls.is_calling:
            return True
        if self._source_input is not None:
            stands = self._is_batch_over or self._is_paused or self._protocol.is_halted
            return not (stands or ending.is_forwarded)
        # As `_has_input`: it is asked of every task in every round.
        return not (calls.are_made and calls.is_full) and self.input_gate.has_next

    @property
    def is_fed(self) -> bool:
        """Whether there is more to take, though perhaps not now: calls may be under way for all it holds."""
        return self.chain.is_midway or self.input_gate.has_next

    @property
    def _stands_still(self) -> bool:
        """Whether it says nothing: not even what is due, which is in the state as long as it is not said."""
        return self._protocol.is_halted and not self.chain.is_halfway

    @property
    def _has_input(self) -> bool:
        """Whether something may be taken from a channel."""
        return not (self.calls.are_made and self.calls.is_full) and self.input_gate.has_next

    @property
    def alarm_in_ms(self) -> int | None:
        """In how long `run` is to be called, at the latest, for what is due by processing time."""
        stands = self._is_batch_over or self._protocol.is_halted or self._ending.is_forwarded
        if not self.uses_clock or stands:
            return None
        return self._time.alarm_in_ms

    @property
    def _is_alarm_due(self) -> bool:
        return self.alarm_in_ms == 0

    def set_clock(self, clock_ms: int) -> None:
        """The machine's clock says `clock_ms`; to be told before `run` where `uses_clock`."""
        self._time.set_clock(clock_ms)

    @property
    def records_out(self) -> int:
        """Records that have been sent on, or written."""
        return self.sent_on + (self._sink.taken_count if self._sink is not None else 0)

    @property
    def machines(self) -> tuple[SnapshotProtocol, Committer | None]:
        """What decides about its snapshots and transactions: to be asked, not told."""
        return self._protocol, self._committer

    def statistics(self) -> TaskStatistics:
        """Return the counters and the length of the queues, without what its worker measures."""
        is_over = self._ending.is_forwarded
        source_input = self._source_input
        late_count, dead_letter_count, timer_count = self.chain.counts()
        watermark, held_up_by = (self._time.watermark, "") if is_over else self._time.leaving()
        return TaskStatistics(
            task=self.task_id,
            watermark=watermark,
            held_up_by=held_up_by,
            records_in=self.records_in,
            records_out=self.records_out,
            state_keys=len(self._state) if self._state is not None else 0,
            queued_records=self.input_gate.queued_rows,
            spilled_bytes=self.input_gate.spilled_bytes,
            empty_split=source_input.empty_split if source_input is not None else "",
            late_records=self._late_before + late_count,
            dead_letters=dead_letter_count,
            sent=tuple(one.added_rows for one in self.output_buffers.outputs),
            timers=timer_count,
            lag=source_input.lag if source_input is not None else None,
            held_splits=len(source_input.held) if source_input is not None else 0,
            barrier=self.snapshots.newest_arrived,
            captured=self.snapshots.newest_captured,
            hot_keys=self._hot_keys.shown(),
        )

    @property
    def is_over(self) -> bool:
        """Whether it has passed the end of its input on."""
        return self._ending.is_forwarded

    @property
    def reached(self) -> SourceReached | None:
        """How far it is, for its group; None: it is in none."""
        return self._source_input.reached if self._source_input is not None else None

    # Orders and news from the performer.

    def note_reached_sent(self) -> None:
        """Its group has been told how far it is."""
        if self._source_input is not None:
            self._source_input.note_reached_sent()

    def offer(self, channel: ChannelId, item: Item) -> None:
        """Add an item that arrived on an input, after everything that arrived there before.

        The task effects may have something in them afterwards: a barrier may count on arrival.
        """
        match item:
            case Barrier() if item == REPLAYED:
                if channel in self._back_edges:
                    # What goes round is not waited for: it might never come to an end.
                    return
            case Barrier(checkpoint_id):
                if not self.snapshots.barrier_came(channel, checkpoint_id):
                    return
            case Batch():
                self.snapshots.batch_came(channel, item)
            case EndOfInput():
                pass
        self.input_gate.add(channel, item)

    def run(self) -> ChannelId | None:
        """Do one piece of work: at most `rows_max` records, or one barrier.

        Returns:
            The channel that was read from, if any: there may be room again.

        Raises:
            UserCodeError: User code raised; the task is of no use any more.
            ConnectorError: A source or sink failed; as above.
        """
        channel = None
        self.chain.begin(self.rows_max)
        if self.chain.is_midway:
            # Between two of the many timers that a watermark makes due a snapshot can be taken.
            channel = None if self.chain.is_halfway else self.input_gate.begin_turn_of_barrier()
            if channel is not None:
                self._deliver(channel)
                self.input_gate.end_turn(channel)
            elif not self._stands_still:
                self.chain.go_on()
        elif self.calls.are_made and self.calls.has_results:
            self.calls.release(self.rows_max)
        elif self.uses_clock and self._is_alarm_due and not (self._has_rung and self._has_input):
            # By turns: what is due as fast as the clock goes must not keep the inputs waiting.
            self._has_rung = True
            self.chain.ring(is_fed=self.input_gate.queued_rows > 0 or self.calls.is_calling)
        elif self._has_input:
            self._has_rung = False
            # Also while the operators speak at the end of input: then it is a barrier.
            channel = self.input_gate.begin_turn()
            self._deliver(channel)
            self.input_gate.end_turn(channel)
        elif self._protocol.is_halted:
            pass
        elif self._ending.is_under_way:
            if not self.calls.is_calling and self._ending.step():
                self._pass_on_end()
        elif self._source_input is not None and not self._is_batch_over and not self._is_paused:
            self._read(self._source_input)
        if self.input_gate.is_replaying:
            self._send_replay_markers()
        if self.markers.is_under_way:
            self.markers.let_on(is_over=self._ending.is_forwarded)
        if self.snapshots.is_postponing:
            self.snapshots.let_in()
        return channel

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Let the readers of a source end a wait; `wake` may be called by any thread."""
        if self._source_input is not None:
            self._source_input.wake_by(wake)

    def probe(self, probing: Probing | None) -> None:
        """Try records in a copy of the process before they are decoded or processed here; None: no more."""
        self.chain.probing = probing
        if self._source_input is not None:
            self._source_input.probe(probing)

    def align(self, news: AlignSources) -> bool:
        """The coordinator says how far groups of sources are; return whether a split needs to wait no longer.

        If none does, no reader is asked sooner than it has said.
        """
        return self._source_input is not None and self._source_input.align(news)

    def pause(self, *, is_paused: bool) -> None:
        """A source is to read nothing, or to read again; what it has read goes on its way."""
        self._is_paused = is_paused
        if is_paused:
            self.output_buffers.flush()

    def assign(self, rows: JSON, since: CheckpointId, *, is_last: bool) -> None:
        """The coordinator gives a source splits that have been found; after the last, there are no others."""
        if self._source_input is None:
            raise ProtocolError(f"task {self.task_id} is no source, and was given splits")
        self._source_input.assign(rows, since, is_last=is_last)

    def batch_ends(self, empty: Collection[str]) -> None:
        """All records of a batch are processed, before its barrier; these splits have nothing to read.

        From here on it reads nothing, and nothing falls due: that is for the next batch.
        """
        self._is_batch_over = True
        if not self._ending.is_under_way and not self._ending.is_forwarded:
            self.chain.batch_ends(empty)

    def close_loops(self, heads: Collection[VertexId]) -> None:
        """The coordinator has found the loops with these heads exhausted: their back edges have ended."""
        if self.task_id.vertex in heads:
            for channel in sorted(self._back_edges):
                self.offer(channel, EndOfInput())

    def checkpoint_completed(
        self, checkpoint_id: CheckpointId, together: tuple[PendingTransaction, ...] | None = None
    ) -> None:
        """Checkpoint n is complete: commit, and build the next part on this one.

        Args:
            together: What to commit instead of what the task has staged, where its sink commits together.
        """
        self.snapshots.completed(checkpoint_id)
        if self._source_input is not None:
            self._source_input.acknowledge(checkpoint_id)
        if self._state is not None:
            self.task_effects.background_jobs.append(CompleteState(checkpoint_id))
        self.transactions.handle(CommitAuthorised(checkpoint_id, together))

    def close(self) -> None:
        """Close readers, operators and writer; the first error is raised after all were tried."""
        with ExitStack() as stack:
            stack.callback(self.transactions.close)
            stack.callback(self.input_gate.close)
            stack.callback(self.chain.close)
            if self._source_input is not None:
                stack.callback(self._source_input.close)

    # Records.

    def _read(self, source_input: SourceInput) -> None:
        self.chain.look_back()
        if self.chain.is_midway:
            return
        batch = source_input.read(self.rows_max, is_first=self.records_in == self._records_before)
        if batch is not None:
            self.records_in += len(batch)
            self.markers.source_read()
            rest = self.chain.process(batch)
            if rest is not None:
                self.chain.keep(rest)
        elif source_input.is_drained:
            self._input_ended()
        else:
            self.chain.forward_assigned()

    def _deliver(self, channel: ChannelId) -> None:
        """Take the first item of a channel that is not blocked and not empty."""
        item = self.input_gate.take(channel, *self.calls.room(self.rows_max))
        match item:
            case Batch():
                # The end of a loop is told from outside; what a task of it has said of time before that is
                # still on its way, and of no use to anybody.
                rows = len(item)
                if rows and self.input_gate.has_ended(channel):
                    raise ProtocolError(
                        f"task {self.task_id}: {rows} records came on {channel} after its end of input"
                    )
                item.input = channel.input
                marker = item.take_marker()
                news = item.take_news() if item.has_news else None
                rest_of_slice = self.chain.process(item) if rows else None
                if rest_of_slice is not None:
                    rows -= len(rest_of_slice)
                    rest_of_slice.marker, marker = marker, None
                    if news is not None:
                        rest_of_slice.keep_news(news)
                    self.input_gate.put_back(channel, rest_of_slice)
                elif news is not None and self.input_gate.replays_own(channel):
                    self.chain.forward_news(news)
                elif news is not None and channel not in self._back_edges:
                    self._time.note_news(channel, news)
                if marker is not None and channel not in self._back_edges:
                    # What goes round would count the rounds, and never come to an end.
                    self.markers.came(marker)
                self.records_in += rows
                self._note_keys(item, rows)
                if isinstance(item, NumberedBatch):
                    is_whole = rest_of_slice is None
                    number = news.news_number if is_whole and isinstance(news, NumberedBatch) else 0
                    self.input_gate.note_taken(channel, item.first + rows - 1, number)
                if self.calls.are_made:
                    self.calls.request()
            case Barrier() if item == REPLAYED:
                self.input_gate.note_replay_marker(channel)
            case Barrier(checkpoint_id):
                self.snapshots.handle(BarrierArrived(channel, checkpoint_id))
            case EndOfInput(news_number):
                self.input_gate.note_taken(channel, 0, news_number)
                # The end comes around a loop as well, after it was told by `close_loops`.
                if self.input_gate.end(channel):
                    self._input_ended()
                else:
                    self._time.ended(channel)
            case _:
                assert_never(item)

    def _note_keys(self, batch: Batch, rows: int) -> None:
        if batch.keys is not None:
            hot = self._hot_keys
            if rows > hot.rows_to_next:
                hot.look_at(batch.keys, rows)
            else:
                hot.rows_to_next -= rows

    def _emit(self, batch: Batch, side: SideOutput | None = None) -> None:
        if self.output_buffers.lead_on(side):
            self.sent_on += len(batch)
            self.output_buffers.add(batch, side)

    def _send_replay_markers(self) -> None:
        """Send the markers after generations of channel records that are through with the task."""
        while self.input_gate.is_generation_taken and not self.calls.is_calling:
            self.output_buffers.send_to_all(REPLAYED)
            self.input_gate.begin_generation()

    def _input_ended(self) -> None:
        if self._ending.begin(waits=self.calls.is_calling):
            self._pass_on_end()

    def _pass_on_end(self) -> None:
        self.output_buffers.send_to_all(EndOfInput())
        if self._source_input is not None:
            self.task_effects.messages.append(SourceDrained(self._epoch, self.task_id))

    # Snapshots.

    def _freeze(self, checkpoint_id: CheckpointId) -> FrozenTask:
        since = CheckpointId(0)
        if self._state is not None:
            self._state.freeze(checkpoint_id)
            since = self._captures.plan_part(checkpoint_id)
        self.transactions.cut_off(checkpoint_id)
        ending = self._ending
        return FrozenTask(
            checkpoint_id=checkpoint_id,
            since=since,
            positions=self._source_input.freeze(checkpoint_id) if self._source_input is not None else None,
            ended=ending.is_emitted,
            watermark=self._time.watermark,
            now_ms=self._time.now_ms,
            assigned=self.chain.assigned,
            final_progress=None
            if ending.is_emitted
            else shown_final_progress(self.chain.final_progress, self._predecessor_progress),
            is_end_forwarded=ending.is_forwarded,
            is_calling=self.calls.is_calling,
            records_in=self.records_in,
            records_out=self.records_out,
            late_records=self._late_before + self.chain.counts()[0],
            state_keys=len(self._state) if self._state is not None else 0,
        )

    # Groups of a unit.

    def record_changes(self, *, are_splits_logged: bool) -> None:
        """Remember from now on what changes, for `cut_group`."""
        if self._state is not None:
            self._state.record_changes()
        if self._source_input is not None:
            self._source_input.splits.record_changes(are_logged=are_splits_logged)

    @property
    def group_version(self) -> tuple[object, ...]:
        """What differs as soon as a group has something of this task."""
        gate, ending = self.input_gate, self._ending
        end = self.chain.final_progress, ending.is_emitted, ending.is_forwarded
        taken = gate.has_taken, len(gate.ended)
        return self.changed_rows, *taken, self._time.watermark, self.records_in, self.records_out, *end

    @property
    def changed_rows(self) -> int:
        """How many rows of keyed state `cut_group` would hold."""
        return self._state.recorded_rows if self._state is not None else 0

    @property
    def listening(self) -> dict[str, JSON]:
        """The positions of the splits whose readers are to be told what is durable."""
        return self._source_input.splits.listening if self._source_input is not None else {}

    def acknowledge_split(self, split_id: str, position: JSON) -> None:
        """What is before `position` is durable."""
        if self._source_input is not None:
            self._source_input.splits.acknowledge_position(split_id, position)

    def cut_group(self, number: CheckpointId) -> TaskSection:
        """End the group with this commit number here: between two batches, with empty output buffers.

        The handle of its transaction, if there is one, is not known yet.

        Raises:
            StateError: A value can't be stored.
            WireError: An item that waits can't be stored.
        """
        if self.chain.is_halfway or self.output_buffers.has_buffered:
            raise ProtocolError(f"task {self.task_id}: a group with half a batch")
        self.transactions.cut_off(number)
        return replace(
            self._described(),
            changes=self._state.changes() if self._state is not None else b"",
            splits=self._source_input.splits.changes() if self._source_input is not None else None,
            has_transaction=self.transactions.newest_cut_off == number,
        )

    def _described(self) -> TaskSection:
        """Return the task as it is, but for what adds up over the groups."""
        ending, state = self._ending, self._state
        ended_inputs = self._ended_inputs | self.input_gate.ended
        return TaskSection(
            self.task_id,
            fields=state.field_names.as_json() if state is not None else None,
            waiting=self.input_gate.waiting(without=ended_inputs),
            ended_inputs=tuple(sorted(ended_inputs)),
            is_said=ending.is_emitted,
            is_end_forwarded=ending.is_forwarded,
            said=None
            if ending.is_emitted
            else shown_final_progress(self.chain.final_progress, self._predecessor_progress),
            watermark=self._time.watermark,
            assigned=self.chain.assigned,
            now_ms=self._time.now_ms,
            records_in=self.records_in,
            records_out=self.records_out,
            late_records=self._late_before + self.chain.counts()[0],
            committed=self.transactions.committed(),
        )

    def freeze_unit(self, number: CheckpointId) -> TaskSection:
        """Freeze the keyed state at the end of the group with this commit number, which was just cut.

        Returns:
            What a snapshot of the unit holds of the task besides that, without transactions.
        """
        if self._state is not None:
            self._state.freeze(number)
        section = self._described()
        rows = self._source_input.splits.positions() if self._source_input is not None else None
        splits = SplitChanges(tuple(rows)) if isinstance(rows, list) else None
        return replace(section, splits=splits)
