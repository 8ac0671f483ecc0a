"""The simulator is able to fail: it finds each bug that is planted into the runtime, within some seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.proof.worlds.graphs import GRAPHS
from tests.proof.worlds.shrinking import live, report
from tests.simulation.planted import impatience, must_break

from crosscut.errors import StoreError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, LogIndex, TaskId, WorkerIndex
from crosscut.graph import channels
from crosscut.graph.specs import Edge, JobGraph
from crosscut.net import mesh
from crosscut.net.causes import failure_cause
from crosscut.net.channels import IncomingChannel
from crosscut.net.mesh import Mesh
from crosscut.net.peer_links import PeerLink
from crosscut.operators.keyed import KeyedOperator
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.checkpoint.global_committer import GlobalCommitter
from crosscut.protocol.checkpoint.requests import CheckpointRequests
from crosscut.protocol.checkpoint.retention import Retention
from crosscut.protocol.checkpoint.scheduler import CheckpointScheduler
from crosscut.protocol.effects import (
    AppendEntry,
    CommitterEffect,
    DeleteParts,
    JobEffect,
    Outcome,
    SendMessage,
    StartTimer,
    TaskEffect,
)
from crosscut.protocol.events import (
    BarrierArrived,
    CommitAuthorised,
    CommitterEvent,
    Timer,
    TransactionPrepared,
)
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.job.ending import Ending
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.job.workers import RegisteredAttempt, WorkerRegistry
from crosscut.protocol.log import segments
from crosscut.protocol.log import writer as job_log
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry, SegmentOpened
from crosscut.protocol.log.ownership import NoCheckpoint
from crosscut.protocol.log.segments import LogEnd
from crosscut.protocol.log.writer import Appended, AppendOutcome, LogWriter, Taken, Unknown
from crosscut.protocol.messages import (
    DeployTasks,
    FailureCause,
    HaltTasks,
    PauseSources,
    SnapshotAcknowledged,
    TaskFailed,
)
from crosscut.protocol.replay_order import ReplayOrder
from crosscut.protocol.snapshot.at_least_once import AtLeastOnceBarriers
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshots import Part
from crosscut.protocol.splits import rescaling
from crosscut.protocol.worker.lifecycle import WorkerEffect, WorkerLifecycle
from crosscut.state import layers as layers_module
from crosscut.state import parts as parts_module
from crosscut.state import slot_parts as slot_parts_module
from crosscut.state import slots as slots_module
from crosscut.state import table as table_module
from crosscut.state.keyed import KeyedState
from crosscut.state.slots import SlotTable
from crosscut.state.table import Table
from crosscut.store import checkpoint_store
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.store.log import StoredLog
from crosscut.task import channel_log, edge_outputs, rerouting
from crosscut.task import task as task_module
from crosscut.task.captures import Captures
from crosscut.task.chain import Chain
from crosscut.task.ending import TaskEnding
from crosscut.task.flow_control import Credit, ReceivingEnd, SendingEnd
from crosscut.task.items import Barrier, LoggedBatch
from crosscut.task.output_buffers import OutputBuffers
from crosscut.task.requests import PrepareTransaction
from crosscut.task.snapshots import Snapshots
from crosscut.task.task import Task
from crosscut.testing.simulator.options import (
    FAILURES,
    FAULT_KINDS,
    FaultKind,
    Options,
    PlannedFault,
    options_of,
)
from crosscut.wire.frames import Frame, FrameType
from crosscut.wire.handshake import Verdict
from crosscut.wire.send_queues import Piece, SendQueues
from crosscut.worker import deployment
from crosscut.worker.background import BackgroundWork, Threads
from crosscut.worker.pool import TaskPool
from crosscut.worker.runner import TaskRunner
from crosscut.worker.worker import Worker

SEEDS_MAX = 300
EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching")

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Where:
    """The worlds in which a bug has to show.

    Attributes:
        kinds: Of faults, where only some of them bring it about.
        changed: Options that are not left to chance.
        first_seed: Those before it are known not to show it, and took long to say so.
        breaks: What it has to break; see `must_break`. Most lose output.
    """

    graphs: Sequence[str]
    protocols: tuple[ProtocolKind, ...] = EXACTLY_ONCE
    kinds: tuple[FaultKind, ...] = FAULT_KINDS
    changed: Mapping[str, Any] = field(default_factory=dict)
    first_seed: int = 0
    breaks: str = "I1"

    def worlds(self) -> Iterator[Options]:
        for seed in range(self.first_seed, self.first_seed + SEEDS_MAX):
            options = options_of(seed, tuple(self.graphs), self.protocols, kinds=self.kinds)
            yield replace(options, **{"is_periodic": True, **self.changed})


def log_replayed_twice(patch: pytest.MonkeyPatch) -> None:
    plain = channel_log.decoded_log
    patch.setattr(deployment, "decoded_log", lambda data: 2 * plain(data))


def log_not_replayed(patch: pytest.MonkeyPatch) -> None:
    def nothing(data: bytes) -> list[LoggedBatch]:
        return []

    patch.setattr(deployment, "decoded_log", nothing)


def marks_kept_in_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    plain = channel_log.encode_batch
    patch.setattr(channel_log, "encode_batch", lambda batch: plain(batch, is_kept=False))


def marks_counted_as_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batch, "__len__", lambda self: len(self.records) + (self.marker is not None))


def marks_delivered_as_records(patch: pytest.MonkeyPatch) -> None:
    plain = Task._deliver

    def deliver(self: Task, channel: ChannelId) -> None:
        plain(self, channel)
        marker, self.markers._under_way = self.markers._under_way, None
        if marker is not None and not self.chain.is_midway:
            self.output_buffers.add(Batch([marker], [marker.source]))

    patch.setattr(Task, "_deliver", deliver)


def halt_and_older_channels_ignored(patch: pytest.MonkeyPatch) -> None:
    plain_told = Worker._receive

    def told(self: Worker, message: Any) -> None:
        if isinstance(message, DeployTasks) and self._pool is not None:
            # It goes on with the tasks that it has, under the new epoch.
            self._pool.epoch = self.lifecycle._current = message.epoch
        elif not isinstance(message, HaltTasks):
            plain_told(self, message)

    patch.setattr(Worker, "_receive", told)


def channel_of_an_older_epoch_accepted(patch: pytest.MonkeyPatch) -> None:
    def verdict_on(peer: Epoch, own: Epoch, *, is_expecting: bool, is_wanted: bool) -> Verdict | None:
        return Verdict.ACCEPTED if is_wanted else None

    patch.setattr(mesh, "verdict_on", verdict_on)


def barrier_to_another_worker_lost(patch: pytest.MonkeyPatch) -> None:
    plain = TaskPool.send

    def send(self: TaskPool, sender: TaskRunner, channel: Any, item: Any) -> None:
        is_lost = isinstance(item, Barrier) and channel.source.index > channel.target.index
        if not is_lost:
            plain(self, sender, channel, item)

    patch.setattr(TaskPool, "send", send)


def output_not_flushed_before_a_barrier(patch: pytest.MonkeyPatch) -> None:
    def send_to_all(self: OutputBuffers, item: Any) -> None:
        if not isinstance(item, Barrier):
            self.flush()
        self._task_effects.outbox += [
            (channel, item) for output in self.outputs for channel in output.channels
        ]

    patch.setattr(OutputBuffers, "send_to_all", send_to_all)


def what_the_first_task_has_not_committed_yet_left_out(patch: pytest.MonkeyPatch) -> None:
    plain = GlobalCommitter.gathered

    def gathered(self: GlobalCommitter, entry: CheckpointCompleted) -> CheckpointCompleted:
        self._kept = {}
        return plain(self, entry)

    patch.setattr(GlobalCommitter, "gathered", gathered)


def each_task_commits_what_it_has_staged_itself(patch: pytest.MonkeyPatch) -> None:
    plain = Committer.handle

    def handle(self: Committer, event: CommitterEvent) -> list[CommitterEffect]:
        if isinstance(event, CommitAuthorised):
            event = replace(event, together=None)
        return plain(self, event)

    patch.setattr(Committer, "handle", handle)


def committed_when_prepared(patch: pytest.MonkeyPatch) -> None:
    plain = Committer.handle

    def handle(self: Committer, event: CommitterEvent) -> list[CommitterEffect]:
        effects = plain(self, event)
        if isinstance(event, TransactionPrepared) and self._in_flight is None:
            self._authorised = event.checkpoint_id
            self._due += (event.checkpoint_id,)
            effects += self._next()
        return effects

    patch.setattr(Committer, "handle", handle)


def no_commit_on_restore(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deployment, "restore_permit", lambda *_: None)


def state_rolled_back_too_far(patch: pytest.MonkeyPatch) -> None:
    plain = KeyedState.loading

    def loading(self: KeyedState, parts: Any, checkpoint_id: CheckpointId) -> Iterator[None]:
        return plain(self, parts[:-1] if len(parts) > 1 else parts, checkpoint_id)

    patch.setattr(KeyedState, "loading", loading)


def state_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    def roll_back(self: Any, checkpoint_id: CheckpointId) -> None:
        self._frozen.clear()

    patch.setattr(Table, "roll_back", roll_back)
    patch.setattr(SlotTable, "roll_back", roll_back)


def acknowledged_before_durable(patch: pytest.MonkeyPatch) -> None:
    async def write(self: BackgroundWork, n: CheckpointId, chunks: list[bytes]) -> Part:
        task = self._task_id
        return Part(f"parts/{n}/{task.vertex}-{task.index}-{self._host.epoch}-0", 1, "0" * 64)

    patch.setattr(BackgroundWork, "_write_part", write)


def position_saved_one_record_too_far(patch: pytest.MonkeyPatch) -> None:
    from crosscut.task.splits import SplitQueue

    plain = SplitQueue.positions

    def positions(self: SplitQueue, *others: Any) -> Any:
        rows: Any = plain(self, *others)
        return [[*row[:-1], row[-1] + 1] for row in rows]

    patch.setattr(SplitQueue, "positions", positions)


def only_own_transaction_committed(patch: pytest.MonkeyPatch) -> None:
    plain = BackgroundWork._commit

    async def commit(self: BackgroundWork, effect: Any) -> None:
        await plain(self, replace(effect, handles=effect.handles[-1:]))

    patch.setattr(BackgroundWork, "_commit", commit)


def transaction_dropped_with_its_aborted_checkpoint(patch: pytest.MonkeyPatch) -> None:
    plain = TaskPool.abort

    def abort(self: TaskPool, checkpoint_id: CheckpointId) -> None:
        plain(self, checkpoint_id)
        for task in self.tasks:
            if task._committer is not None:
                task._committer._pending.pop(checkpoint_id, None)

    patch.setattr(TaskPool, "abort", abort)


def transaction_not_prepared_when_its_checkpoint_was_aborted(patch: pytest.MonkeyPatch) -> None:
    plain = BackgroundWork._prepare

    async def prepare(self: BackgroundWork, job: PrepareTransaction) -> None:
        if job.checkpoint_id not in self._cancelled:
            await plain(self, job)

    patch.setattr(BackgroundWork, "_prepare", prepare)


# State.


def newest_changes_left_out_of_a_part(patch: pytest.MonkeyPatch) -> None:
    plain = KeyedState.encoded

    def encoded(self: KeyedState, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[bytes]:
        older = [n for n, _ in self.main._frozen if n < checkpoint_id]
        return plain(self, older[-1] if older else checkpoint_id, since)

    patch.setattr(KeyedState, "encoded", encoded)


def changes_of_a_part_that_is_replaced_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parts_module, "PARTS_MAX", 2)
    plain, once = table_module.newest_rows, slots_module._once
    patch.setattr(table_module, "newest_rows", lambda layers, tails, base: iter(plain(layers, [], base)))
    patch.setattr(slots_module, "_once", lambda several, count: once(several[:1], count))


def part_dropped_while_only_it_has_some_keys(patch: pytest.MonkeyPatch) -> None:
    small_slices(patch)
    plain = slot_parts_module.with_all_keys
    patch.setattr(slot_parts_module, "with_all_keys", lambda parts: (plain(parts) or [])[1:] or parts[-1:])


def slices_without_their_values(patch: pytest.MonkeyPatch) -> None:
    """Older parts are dropped, and with them values that did not change since."""
    small_slices(patch)
    plain = slots_module.encode_slots

    def encode_slots(table: str, slots: Any, values: list[Any], keys: Any) -> bytes:
        is_slice = isinstance(slots, range) and (slots.start or slots.stop < len(keys))
        return b"" if is_slice else plain(table, slots, values, keys)

    patch.setattr(slots_module, "encode_slots", encode_slots)


def small_slices(patch: pytest.MonkeyPatch) -> None:
    """As large tables have them."""
    patch.setattr(slot_parts_module, "SLICE_ROWS_MIN", 1)
    patch.setattr(slot_parts_module, "SLICES", 4)


def changes_stored_since_a_checkpoint_that_never_was(patch: pytest.MonkeyPatch) -> None:
    plain = Captures.acknowledge

    def acknowledge(self: Captures, n: CheckpointId, *others: Any) -> Any:
        made = plain(self, n, *others)
        # As if it were complete with the acknowledgement.
        self._parts = self._chains[n]
        return made

    patch.setattr(Captures, "acknowledge", acknowledge)


def frozen_value_changed_by_later_records(patch: pytest.MonkeyPatch) -> None:
    for module in (layers_module, table_module, slots_module):
        patch.setattr(module, "owned_copy", lambda value: value)


# Operators.


def first_key_of_a_split_batch_taken_for_all(patch: pytest.MonkeyPatch) -> None:
    plain = Batch.split

    def split(self: Batch, rows: int) -> tuple[Batch, Batch]:
        first, rest = plain(self, rows)
        if rest.keys is not None:
            rest = Batch(rest.records, [rest.keys[0]] * len(rest))
        return first, rest

    patch.setattr(Batch, "split", split)


def end_told_again_after_a_restore(patch: pytest.MonkeyPatch) -> None:
    plain = TaskEnding.begin

    def begin(self: TaskEnding, *, waits: bool = False) -> bool:
        self._chain.final_progress = (0, "")
        self.is_emitted = False
        return plain(self, waits=waits)

    patch.setattr(TaskEnding, "begin", begin)


def final_results_said_again_from_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task_module, "read_final_progress", lambda said: ((0, ""), []))


def final_results_in_the_order_of_a_dict(patch: pytest.MonkeyPatch) -> None:
    """It is another one after a restore, so a place in it says nothing."""

    def end(self: KeyedOperator, after: str) -> Iterator[tuple[Batch, str]]:
        items = [] if not self._is_final_only else list(self._state.items())
        for place, (key, value) in list(enumerate(items, start=1))[int(after or 0) :]:
            yield Batch([(key, self._final_result(value))]), f"{place:032}"

    patch.setattr(KeyedOperator, "end", end)


def record_behind_a_full_buffer_lost(patch: pytest.MonkeyPatch) -> None:
    plain = Task._emit

    def emit(self: Task, batch: Batch) -> None:
        is_full = self.output_buffers.outputs and any(
            output.buffered_rows > 1 for output in self.output_buffers.outputs
        )
        if not (is_full and len(batch) == 1 and self.records_in % 5 == 0):
            plain(self, batch)

    patch.setattr(Task, "_emit", emit)


def rest_of_a_slice_forgotten_at_a_source(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chain, "keep", lambda self, rest: None)


def snapshot_in_the_middle_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshots, "_is_settled", True)


# The coordinator.


def deleted_before_the_newer_entry_is_durable(patch: pytest.MonkeyPatch) -> None:
    plain = CheckpointScheduler._acknowledged

    def acknowledged(self: CheckpointScheduler, message: SnapshotAcknowledged) -> list[JobEffect]:
        effects = plain(self, message)
        for effect in list(effects):
            if isinstance(effect, AppendEntry) and isinstance(effect.entry, CheckpointCompleted):
                kept = self._retention
                old = (path for one in kept.retained for path in retention.parts_of(one))
                effects.append(DeleteParts(retention.unreferenced(old, [effect.entry])))
                kept._is_deleting = True
        return effects

    patch.setattr(CheckpointScheduler, "_acknowledged", acknowledged)


def deleted_though_a_retained_manifest_names_it(patch: pytest.MonkeyPatch) -> None:
    def delete(self: Retention, in_use: frozenset[str]) -> list[JobEffect]:
        gone, self._garbage = tuple(sorted(self._garbage)), set()
        self._is_deleting = self._is_deleting or bool(gone)
        return [DeleteParts(gone)] if gone else []

    patch.setattr(Retention, "delete", delete)


def built_on_a_snapshot_of_a_checkpoint_that_never_was(patch: pytest.MonkeyPatch) -> None:
    """Two rules guard this: the task builds on what is complete, and what builds on lost parts is refused."""
    changes_stored_since_a_checkpoint_that_never_was(patch)
    patch.setattr(retention, "dangling", lambda *_: ())


def final_once_the_sources_are_drained(patch: pytest.MonkeyPatch) -> None:
    """As the sources are now; what the cut holds is not looked at."""
    plain = CheckpointScheduler._append

    def append(self: CheckpointScheduler, entry: CheckpointCompleted) -> list[JobEffect]:
        return plain(self, replace(entry, is_final=self.is_drained))

    patch.setattr(CheckpointScheduler, "_append", append)


def stop_that_could_not_commit_says_nothing(patch: pytest.MonkeyPatch) -> None:
    plain = Coordinator._end

    def end(self: Coordinator, outcome: Outcome, cause: FailureCause | None = None) -> list[JobEffect]:
        return plain(self, outcome, None if outcome == "stopped" else cause)

    patch.setattr(Coordinator, "_end", end)


# The store.


def damaged_parts_are_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint_store, "_mismatch", lambda part, data: None)


def entry_of_another_taken_for_its_own(patch: pytest.MonkeyPatch) -> None:
    plain = CheckpointStore.append

    def append(
        self: CheckpointStore, index: LogIndex, entry: LogEntry, since: LogIndex | None = None
    ) -> AppendOutcome:
        outcome = plain(self, index, entry, since)
        return Appended(index) if isinstance(outcome, Taken) else outcome

    patch.setattr(CheckpointStore, "append", append)


def unknown_outcome_taken_for_a_refusal(patch: pytest.MonkeyPatch) -> None:
    plain = CheckpointStore.append

    def append(
        self: CheckpointStore, index: LogIndex, entry: LogEntry, since: LogIndex | None = None
    ) -> AppendOutcome:
        outcome = plain(self, index, entry, since)
        if isinstance(outcome, Unknown):
            raise StoreError("no answer")
        return outcome

    patch.setattr(CheckpointStore, "append", append)


# The log in segments.

TAKEN_OVER: Sequence[FaultKind] = ("pause the driver and start another", "kill the driver")
SHORT_SEGMENTS = {"segment_entries_max": 1, "retain": 1, "interval_ms": 10, "inline_bytes": 4_096}


def what_closed_a_segment_deleted(patch: pytest.MonkeyPatch) -> None:
    """A driver that has slept appends where its successor had fenced it off."""

    def written_before(head: SegmentOpened, *, was_closed: bool) -> tuple[LogIndex, ...]:
        return segments.written_before(head, was_closed=False)

    patch.setattr(job_log, "written_before", written_before)
    patch.setattr(retention, "written_before", written_before)


def log_taken_over_without_closing_the_segment(patch: pytest.MonkeyPatch) -> None:
    plain = LogWriter.__init__

    def made(self: LogWriter, end: LogEnd, *arguments: Any, **options: Any) -> None:
        plain(self, end if end.last is None else replace(end, is_closed=True), *arguments, **options)

    patch.setattr(LogWriter, "__init__", made)


def entry_written_as_a_change_of_the_wrong_one(patch: pytest.MonkeyPatch) -> None:
    """Of the newest entry that this process knows, which may be another's, or a claim."""
    plain = StoredLog._needed

    def needed(self: StoredLog, index: LogIndex) -> Any:
        return self._newest if self._newest is not None else plain(self, index)

    patch.setattr(StoredLog, "_needed", needed)


def entries_deleted_that_a_retained_checkpoint_needs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retention, "_oldest_segment", property(lambda self: 1_000_000))


# Channel logs.


def overtaken_output_left_out_of_the_log(patch: pytest.MonkeyPatch) -> None:
    plain = Snapshots._log

    def log(self: Snapshots, n: CheckpointId, channel: Any, batch: Batch, *, by_sender: bool) -> None:
        if not by_sender:
            plain(self, n, channel, batch, by_sender=by_sender)

    patch.setattr(Snapshots, "_log", log)


def waiting_input_left_out_of_the_log(patch: pytest.MonkeyPatch) -> None:
    def start_log(self: Snapshots, n: CheckpointId, channels: Any) -> None:
        for channel in channels:
            if self._input_gate.waits(channel, Barrier(n)):
                self._input_gate.take_out(channel, Barrier(n))
                self.handle(BarrierArrived(channel, n))

    patch.setattr(Snapshots, "_start_log", start_log)


def stored_before_all_inputs_are_logged(patch: pytest.MonkeyPatch) -> None:
    """A barrier that has waited counts before what waits in front of another one is in the log."""

    def start_log(self: Snapshots, n: CheckpointId, channels: Any) -> None:
        for channel in channels:
            for waiting in self._input_gate.ends[channel].queue.in_front_of(Barrier(n)):
                if isinstance(waiting, Batch):
                    self._log(n, channel, waiting, by_sender=False)
                else:
                    self._captures.log_blocks(n, waiting)
            if self._input_gate.waits(channel, Barrier(n)):
                self._input_gate.take_out(channel, Barrier(n))
                if n in self._protocol.logging(channel):
                    self.handle(BarrierArrived(channel, n))

    patch.setattr(Snapshots, "_start_log", start_log)


def log_replayed_backwards(patch: pytest.MonkeyPatch) -> None:
    plain = channel_log.decoded_log
    patch.setattr(deployment, "decoded_log", lambda data: plain(data)[::-1])


def barriers_in_flight_give_each_other_up(patch: pytest.MonkeyPatch) -> None:
    plain = AtLeastOnceBarriers._barrier_arrived

    def arrived(self: AtLeastOnceBarriers, channel: Any, n: CheckpointId) -> list[TaskEffect]:
        older = [one for one in self._delivered if one < n]
        return [*self._give_up(older, channel, n), *plain(self, channel, n)]

    patch.setattr(AtLeastOnceBarriers, "_barrier_arrived", arrived)


# Flow control, connections, epochs.


def credit_given_twice(patch: pytest.MonkeyPatch) -> None:
    plain = Mesh.give_credit

    def give(self: Mesh, channel: ChannelId, credit: Credit) -> None:
        plain(self, channel, credit)
        plain(self, channel, credit)

    patch.setattr(Mesh, "give_credit", give)


def credit_never_given(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mesh, "give_credit", lambda self, channel, credit: None)


def credit_given_too_early(patch: pytest.MonkeyPatch) -> None:
    """When a batch comes in, not when it has left the memory."""

    def credit(self: ReceivingEnd) -> Credit | None:
        given = Credit(self.uncredited_bytes, self._earned_rows + self._ledger_rows, self.rows_max)
        self._ledger.clear()
        self._rows_ahead = self.queue.rows
        self._ledger_rows = self._ledger_bytes = self._earned_bytes = self._earned_rows = 0
        return given if given.size_bytes else None

    patch.setattr(ReceivingEnd, "credit", credit)


def checkpoints_that_wait_for_no_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "is_full", False)


def sources_paused_for_good(patch: pytest.MonkeyPatch) -> None:
    """When the sink has caught up, nobody tells them."""
    plain = CheckpointScheduler._go_on_after_commit

    def go_on(self: CheckpointScheduler) -> list[JobEffect]:
        return [
            one
            for one in plain(self)
            if not (isinstance(one, SendMessage) and isinstance(one.message, PauseSources))
        ]

    patch.setattr(CheckpointScheduler, "_go_on_after_commit", go_on)


def checkpoint_forgotten_that_waited_for_a_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointScheduler, "_go_on_after_commit", lambda self: [])


def sent_without_credit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SendingEnd, "is_used_up", False)


def back_edge_that_does_not_spill(patch: pytest.MonkeyPatch) -> None:
    plain = ReceivingEnd.spill

    def spill(self: ReceivingEnd) -> bool:
        return not self._is_back_edge and plain(self)

    patch.setattr(ReceivingEnd, "spill", spill)


def sender_not_woken_when_its_channel_is_read(patch: pytest.MonkeyPatch) -> None:
    def credited(self: TaskPool, channel: ChannelId, credit: Credit) -> None:
        self._by_output[channel].task.output_buffers.ends[channel].credited(credit)

    patch.setattr(TaskPool, "credited", credited)


def nobody_woken_after_an_alignment_timeout(patch: pytest.MonkeyPatch) -> None:
    async def wait(self: BackgroundWork, checkpoint_id: CheckpointId) -> None:
        await asyncio.sleep(self._host.alignment_timeout_ms / 1_000)
        schedule, self._host.schedule = self._host.schedule, lambda: None  # type: ignore[attr-defined]
        try:
            self._post(lambda task: task.snapshots.alignment_timed_out(checkpoint_id))
        finally:
            self._host.schedule = schedule  # type: ignore[attr-defined]

    patch.setattr(BackgroundWork, "_wait_for_alignment", wait)


def frame_delivered_twice(patch: pytest.MonkeyPatch) -> None:
    plain = IncomingChannel.received

    def received(self: IncomingChannel, frame: Frame) -> None:
        plain(self, frame)
        if frame.kind is FrameType.BATCH and frame.sequence == 2:
            plain(self, frame)

    patch.setattr(IncomingChannel, "received", received)


def channel_called_by_the_place_of_its_edge(patch: pytest.MonkeyPatch) -> None:
    """An edge has another place when independent parts of the flow are written in another order."""
    leaving, entering = channels.leaving, channels._entering

    def placed(graph: JobGraph, edge: Edge, found: Sequence[ChannelId]) -> tuple[ChannelId, ...]:
        return tuple(replace(one, input=graph.edges.index(edge)) for one in found)

    def leaving_placed(graph: JobGraph, edge: Edge, source: int) -> tuple[ChannelId, ...]:
        return placed(graph, edge, leaving(graph, edge, source))

    def entering_placed(graph: JobGraph, task: TaskId, edges: Sequence[Edge]) -> tuple[ChannelId, ...]:
        return tuple(one for edge in edges for one in placed(graph, edge, entering(graph, task, [edge])))

    patch.setattr(channels, "leaving", leaving_placed)
    patch.setattr(edge_outputs, "leaving", leaving_placed)
    patch.setattr(channels, "_entering", entering_placed)


def barrier_reported_as_departed_before_it_waits(patch: pytest.MonkeyPatch) -> None:
    """What is sent to oneself comes back in the midst of it, when the rest has left the outlet."""

    def drain(self: TaskRunner, elapsed_us: int = 0) -> None:
        outbox, self.task.task_effects.outbox = self.task.task_effects.outbox, []
        for channel, item in outbox:
            self._pool.send(self, channel, item)
        plain(self, elapsed_us)

    plain = TaskRunner.drain
    patch.setattr(TaskRunner, "drain", drain)


def tasks_act_on_after_one_has_failed(patch: pytest.MonkeyPatch) -> None:
    def failed(self: TaskPool, task: TaskId, error: BaseException) -> None:
        self.report(TaskFailed(self.epoch, task, failure_cause(error)))

    patch.setattr(TaskPool, "failed", failed)


def stale_deployment_obeyed(patch: pytest.MonkeyPatch) -> None:
    plain = WorkerLifecycle._deploy

    def deploy(self: WorkerLifecycle, word: DeployTasks) -> list[WorkerEffect]:
        self._newest = Epoch(0)
        return plain(self, word)

    patch.setattr(WorkerLifecycle, "_deploy", deploy)


def halt_of_an_older_epoch_obeyed(patch: pytest.MonkeyPatch) -> None:
    plain = WorkerLifecycle._halt
    patch.setattr(WorkerLifecycle, "_halt", lambda self, epoch: plain(self, self._newest))


def given_up_part_not_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BackgroundWork, "_delete", lambda self, *parts: None)


def address_of_a_replacement_not_told(patch: pytest.MonkeyPatch) -> None:
    plain = WorkerRegistry._hold

    def hold(self: WorkerRegistry, index: WorkerIndex, place: RegisteredAttempt) -> None:
        number = self._number.get(index)
        plain(self, index, place)
        self._number[index] = number or self._number[index]

    patch.setattr(WorkerRegistry, "_hold", hold)


def heartbeat_of_another_attempt_believed(patch: pytest.MonkeyPatch) -> None:
    plain = WorkerRegistry.note_message

    def heard(self: WorkerRegistry, link: int) -> None:
        for other, index in self._wanted.items():
            if index == self._wanted.get(link):
                plain(self, other)

    patch.setattr(WorkerRegistry, "note_message", heard)


def channel_of_an_older_epoch_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PeerLink, "abandon", lambda self: None)


def loss_of_a_connection_not_reported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "connection_lost", lambda self, task, reason: None)


def silence_of_a_worker_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerRegistry, "tick", lambda self: [])


# Several channels on one connection.


def credit_given_to_another_channel(patch: pytest.MonkeyPatch) -> None:
    """To the next one that comes from the same worker."""
    plain = Mesh.give_credit

    def give(self: Mesh, channel: ChannelId, credit: Credit) -> None:
        near = [one for one in self.incoming if one.source.index == channel.source.index]
        if channel in near:
            channel = near[(near.index(channel) + 1) % len(near)]
        plain(self, channel, credit)

    patch.setattr(Mesh, "give_credit", give)


def frame_delivered_to_another_channel(patch: pytest.MonkeyPatch) -> None:
    """The second batch of a channel goes to the next that comes from the same worker."""
    plain = PeerLink.received

    def received(self: PeerLink, frame: Frame) -> None:
        coming = [number for number, one in enumerate(self._channels) if isinstance(one, IncomingChannel)]
        if frame.kind is FrameType.BATCH and frame.sequence == 2 and len(coming) > 1:
            other = coming[(coming.index(frame.channel) + 1) % len(coming)]
            frame = replace(frame, channel=other)
        plain(self, frame)

    patch.setattr(PeerLink, "received", received)


def barrier_held_up_by_what_another_channel_lacks(patch: pytest.MonkeyPatch) -> None:
    """Where one channel has no credit, nothing is sent on its peer links either."""
    plain = TaskPool.send_on

    def send_on(self: TaskPool, sender: TaskRunner, channel: ChannelId) -> None:
        near = [at for at in self._outgoing if at.target.index == channel.target.index]
        ends = [self._by_output[at].task.output_buffers.ends[at] for at in near]
        if channel in self._outgoing and any(one.is_used_up for one in ends):
            sender.task.output_buffers.look(channel)
        else:
            plain(self, sender, channel)

    patch.setattr(TaskPool, "send_on", send_on)


def pieces_of_two_channels_mixed(patch: pytest.MonkeyPatch) -> None:
    """One list of pieces for the whole connection."""
    plain = PeerLink.carry

    def carry(self: PeerLink, *args: Any) -> None:
        plain(self, *args)
        pieces: list[Any] = []
        for channel in self.incoming.values():
            channel._pieces = pieces

    def keep(self: IncomingChannel, piece: Any) -> None:
        self._pieces.append(piece)

    plain_received = IncomingChannel.received

    def received(self: IncomingChannel, frame: Frame) -> None:
        shared = self._pieces
        plain_received(self, frame)
        if self._pieces is not shared:
            shared.clear()
            self._pieces = shared

    patch.setattr(PeerLink, "carry", carry)
    patch.setattr(IncomingChannel, "_keep", keep)
    patch.setattr(IncomingChannel, "received", received)


def lanes_not_emptied_when_there_is_room_again(patch: pytest.MonkeyPatch) -> None:
    def resume_writing(self: PeerLink) -> None:
        self._is_clogged = False

    patch.setattr(PeerLink, "resume_writing", resume_writing)


def rest_of_a_batch_sent_after_what_follows_it(patch: pytest.MonkeyPatch) -> None:
    plain = SendQueues.take

    def take(self: SendQueues) -> Piece:
        piece = plain(self)
        if piece.kind is FrameType.PIECE:
            self._send_queues[piece.channel].rotate(-1)
        return piece

    patch.setattr(SendQueues, "take", take)


def connection_kept_for_the_next_epoch(patch: pytest.MonkeyPatch) -> None:
    """It is not closed, and whatever it says is taken for the new epoch's."""
    patch.setattr(Mesh, "close", lambda self: setattr(self, "_is_expecting", False))


# The end of a job.


def refusal_after_the_final_checkpoint_not_followed_up(patch: pytest.MonkeyPatch) -> None:
    def append_refused(self: Coordinator, refused: NoCheckpoint) -> list[JobEffect]:
        return self._unless_too_many(self.checkpoints.handle(refused))

    patch.setattr(Coordinator, "_append_refused", append_refused)


def refusal_after_the_final_checkpoint_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointScheduler, "_is_final_complete", False)


def stop_waits_for_the_interval(patch: pytest.MonkeyPatch) -> None:
    plain = CheckpointScheduler._after_failure

    def after_failure(self: CheckpointScheduler, n: CheckpointId, *, is_after_drain: bool) -> list[JobEffect]:
        retry, interval_ms = Timer("trigger", self._job.epoch), self._spec.interval_ms
        return [
            replace(one, delay_ms=interval_ms) if isinstance(one, StartTimer) and one.timer == retry else one
            for one in plain(self, n, is_after_drain=is_after_drain)
        ]

    patch.setattr(CheckpointScheduler, "_after_failure", after_failure)


def stop_waits_after_the_failure_of_an_older_checkpoint(patch: pytest.MonkeyPatch) -> None:
    plain = CheckpointScheduler._after_failure

    def after_failure(self: CheckpointScheduler, n: CheckpointId, *, is_after_drain: bool) -> list[JobEffect]:
        if self._job.phase is not Phase.STOPPING or self.is_last(n):
            return plain(self, n, is_after_drain=is_after_drain)
        return [self._after(self._spec.interval_ms)]

    patch.setattr(CheckpointScheduler, "_after_failure", after_failure)


def stop_without_a_last_checkpoint_says_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ending, "without_last", lambda self, newest, perhaps, cause: None)


def request_not_answered_by_the_final_checkpoint(patch: pytest.MonkeyPatch) -> None:
    plain = CheckpointRequests.answer_all

    def answer_all(self: CheckpointRequests, entry: Any, reason: str = "") -> list[JobEffect]:
        return plain(self, entry, reason) if entry is None else []

    patch.setattr(CheckpointRequests, "answer_all", answer_all)


def failed_checkpoint_followed_by_another_that_nobody_wants(patch: pytest.MonkeyPatch) -> None:
    plain = CheckpointScheduler._after_failure

    def after_failure(self: CheckpointScheduler, n: CheckpointId, *, is_after_drain: bool) -> list[JobEffect]:
        return [*plain(self, n, is_after_drain=is_after_drain), self._after(self._spec.interval_ms)]

    patch.setattr(CheckpointScheduler, "_after_failure", after_failure)


def tasks_closed_before_their_calls_have_returned(patch: pytest.MonkeyPatch) -> None:
    async def close(self: Threads) -> None:
        self._is_closed = True

    patch.setattr(Threads, "close", close)


def key_group_with_two_owners(patch: pytest.MonkeyPatch) -> None:
    """A task of another parallelism keeps all keys of the parts that it reads."""
    plain = deployment.PredecessorState
    patch.setattr(
        deployment,
        "PredecessorState",
        lambda chains, copies, owns, whole: plain(chains, copies, owns, frozenset(range(len(chains)))),
    )


def key_group_without_an_owner(patch: pytest.MonkeyPatch) -> None:
    """A task reads the parts of one that had its groups, not of all of them."""
    plain = rescaling._with_groups_of
    patch.setattr(rescaling, "_with_groups_of", lambda *arguments: plain(*arguments)[:1])


def split_with_two_owners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rescaling, "deal", lambda rows, parallelism: [list(rows)] * parallelism)


def records_on_their_way_kept_by_the_places_of_tasks(patch: pytest.MonkeyPatch) -> None:
    """As if what was on its way in a shuffle were not distributed by key."""

    def rerouted(logs: Any, task: TaskId, graph: JobGraph, *arguments: Any) -> Iterator[Any]:
        edges = tuple(
            replace(edge, partitioning="rebalance" if edge.partitioning == "hash" else edge.partitioning)
            for edge in graph.edges
        )
        return plain(logs, task, replace(graph, edges=edges), *arguments)

    plain = rerouting.rerouted
    patch.setattr(deployment, "rerouted", rerouted)


def what_senders_had_left_lost_at_another_parallelism(patch: pytest.MonkeyPatch) -> None:
    def rerouted(logs: Any, *arguments: Any) -> Iterator[Any]:
        return plain(([one for one in log if not one.by_sender] for log in logs), *arguments)

    plain = rerouting.rerouted
    patch.setattr(deployment, "rerouted", rerouted)


def older_records_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Each task takes its own channel records first, and then whatever comes."""

    def replay_order(sections: Any, *arguments: Any) -> ReplayOrder:
        return ReplayOrder(sections, 0, {})

    patch.setattr(deployment, "ReplayOrder", replay_order)


def transactions_of_a_task_that_is_gone_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rescaling, "retired", lambda *arguments: ())


def final_results_of_an_heir_said_from_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rescaling, "combined_final_progress", lambda before, mine: rescaling.FinalProgress())


def final_results_of_an_heir_taken_as_said(patch: pytest.MonkeyPatch) -> None:
    """One of those that had its groups had said everything."""
    plain = rescaling.combined_final_progress

    def combined(before: Any, mine: range) -> rescaling.FinalProgress:
        found = list(before)
        is_any = any(place == rescaling.ALL_EMITTED for _, place in found)
        return rescaling.FinalProgress(ended=True) if is_any else plain(found, mine)

    patch.setattr(rescaling, "combined_final_progress", combined)


ANY = tuple(GRAPHS)
RESCALED: Mapping[str, Any] = {
    "parallelism": 2,
    "rescaled_to": (3, 1, 4),
    "interval_ms": 10,
    "pause_ms": 0,
    "step_us": 500,
    "latency_us": 100,
    "store_us": 200,
    "checkpoint_timeout_ms": 1_000,
    "record_count": 15,
    "batch_rows": 1,
    "channel_bytes": 50,
    "spark_start_ms": 5,
    "source_ms": 150,
    "safety_ms": 800,
    "faults": tuple(PlannedFault(at_ms, "kill the driver") for at_ms in range(60, 800, 80)),
}
"""The driver dies again and again, and each time the job goes on at another parallelism."""
RESCALED_AT_A_COMMIT = {
    **RESCALED,
    "faults": tuple(
        PlannedFault(at_ms, "kill the driver", moment="driver.appended") for at_ms in range(40, 400, 60)
    ),
}
RESCALED_IN_A_CROWD = {
    **RESCALED,
    "step_us": 2_000,
    "batch_rows": 3,
    "record_count": 25,
    "source_ms": 20,
    "faults": tuple(PlannedFault(at_ms, "kill the driver") for at_ms in range(60, 800, 60)),
}
LOOPS = ("loop", "nested loops")
COUNTS = ("chain", "union", "rebalance")
SHARED = ("diamond", "union", "rebalance", "loop", "nested loops")
"""Several channels lead from one worker to another."""
BEHIND: Mapping[str, Any] = {
    "uncommitted_max": 1,
    "held_back_ms": 0,
    "interval_ms": 10,
    "pause_ms": 0,
    "store_us": 20_000,
    "record_count": 15,
    "safety_ms": 400,
    "source_ms": 300,
}
"""Commits take longer than the interval."""
CROWDED = {"parallelism": 2, "channel_bytes": 50, "record_count": 15, "batch_rows": 1}
STOPS: tuple[FaultKind, ...] = ("stop the job", "refuse a part", "refuse a log append")
REFUSED_AFTER_COMPLETION: Mapping[str, Any] = {
    "in_flight_max": 4,
    "interval_ms": 10,
    "pause_ms": 0,
    "source_ms": 20,
    "store_us": 20_000,
    "step_us": 50,
    "latency_us": 100,
    "checkpoint_timeout_ms": 1_000,
    "safety_ms": 800,
    "faults": tuple(
        PlannedFault(0, "refuse a log append", moment="driver.commit", nth=nth) for nth in range(1, 60)
    ),
}
"""Each completion is followed by a refusal of what is appended next."""

# Checkpoints while final results are leaving.
MIDST = {
    "interval_ms": 10,
    "pause_ms": 0,
    "checkpoint_timeout_ms": 1_000,
    "batch_rows": 1,
    "step_us": 5_000,
    "latency_us": 1_000,
    "store_us": 200,
    "record_count": 15,
    "source_ms": 20,
    "spark_start_ms": 5,
    "faults": tuple(PlannedFault(ms, "kill a worker", ms) for ms in (215, 245, 275, 305, 340, 380)),
}
BUGS: dict[Plant, Where] = {
    log_replayed_twice: Where(LOOPS, kinds=FAILURES, breaks="I2", first_seed=6),
    log_not_replayed: Where(LOOPS, kinds=FAILURES, first_seed=6),
    halt_and_older_channels_ignored: Where(ANY, breaks="I10", first_seed=1),
    channel_of_an_older_epoch_accepted: Where(
        COUNTS,
        kinds=("pause a worker", "partition two workers", "kill a worker", "clog some lines"),
        changed={"parallelism": 3, "spark_start_ms": 5},
        first_seed=289,
        breaks="I7",
    ),
    barrier_to_another_worker_lost: Where(COUNTS, ("aligned",), breaks="I10", first_seed=1),
    output_not_flushed_before_a_barrier: Where(ANY, ("aligned",), first_seed=5),
    committed_when_prepared: Where(ANY, breaks="I3"),
    what_the_first_task_has_not_committed_yet_left_out: Where(
        COUNTS,
        kinds=("slow sink", "fail a commit", "kill a worker"),
        changed={
            "commits_together": True,
            "parallelism": 2,
            "interval_ms": 10,
            "pause_ms": 0,
            "in_flight_max": 4,
        },
    ),
    each_task_commits_what_it_has_staged_itself: Where(
        COUNTS, changed={"commits_together": True, "parallelism": 2}, breaks="I3"
    ),
    no_commit_on_restore: Where(ANY, kinds=(*FAILURES, "fail a commit"), first_seed=6),
    state_rolled_back_too_far: Where(COUNTS, kinds=("kill the driver", "kill a worker"), first_seed=2),
    state_not_rolled_back: Where(COUNTS, kinds=("raise in user code",), first_seed=13),
    acknowledged_before_durable: Where(COUNTS, breaks="I8"),
    position_saved_one_record_too_far: Where(ANY),
    only_own_transaction_committed: Where(
        ANY, kinds=("refuse a part", "hang the store"), changed={"inline_bytes": 0}
    ),
    transaction_dropped_with_its_aborted_checkpoint: Where(
        COUNTS, kinds=("refuse a part", "hang the store"), changed={"inline_bytes": 0}
    ),
    # Two in a row hang in the store, and what waits behind them times out before its turn.
    transaction_not_prepared_when_its_checkpoint_was_aborted: Where(
        COUNTS,
        changed={
            "in_flight_max": 4,
            "interval_ms": 10,
            "pause_ms": 0,
            "inline_bytes": 0,
            "parallelism": 1,
            "record_count": 25,
            "store_us": 2_000,
            "step_us": 5_000,
            "latency_us": 1_000,
            "safety_ms": 800,
            "source_ms": 400,
            "checkpoint_timeout_ms": 90,
            "faults": tuple(PlannedFault(ms, "hang the store") for ms in range(20, 400, 5)),
        },
    ),
    newest_changes_left_out_of_a_part: Where(COUNTS, first_seed=5),
    changes_of_a_part_that_is_replaced_left_out: Where(COUNTS),
    part_dropped_while_only_it_has_some_keys: Where(
        COUNTS,
        first_seed=1,
        breaks=r"I10: without faults, the job fails: StateError: parts refer to key number",
    ),
    slices_without_their_values: Where(COUNTS),
    # What builds on lost parts is refused, so no checkpoint completes any more.
    changes_stored_since_a_checkpoint_that_never_was: Where(
        COUNTS,
        changed={
            "inline_bytes": 0,
            "stays_open": True,
            "interval_ms": 400,
            "pause_ms": 0,
            "checkpoint_timeout_ms": 1_000,
            "safety_ms": 2_000,
            "source_ms": 1_800,
            "record_count": 25,
            "rescaled_to": (),
            "faults": tuple(
                PlannedFault(0, "refuse a part", moment="snapshot.frozen", nth=nth) for nth in (5, 9, 14)
            ),
        },
        breaks="I14: .* checkpoints: none is complete",
        first_seed=4,
    ),
    frozen_value_changed_by_later_records: Where(("union",), first_seed=6),
    first_key_of_a_split_batch_taken_for_all: Where(COUNTS, changed={"batch_rows": 10}),
    end_told_again_after_a_restore: Where(
        ("totals",),
        ("unaligned",),
        ("kill a worker", "slow channel"),
        {"channel_bytes": 50, "parallelism": 2, "step_us": 2_000, "interval_ms": 10, "source_ms": 20},
        breaks="I1|I2",
        first_seed=43,
    ),
    final_results_said_again_from_the_first: Where(
        ("totals",), ("unaligned", "aligned"), ("raise in user code",), MIDST, breaks="I2"
    ),
    final_results_in_the_order_of_a_dict: Where(
        ("totals",), ("unaligned", "aligned"), ("raise in user code",), MIDST, breaks="I2"
    ),
    record_behind_a_full_buffer_lost: Where(ANY, first_seed=5),
    rest_of_a_slice_forgotten_at_a_source: Where(ANY, first_seed=7),
    snapshot_in_the_middle_of_a_batch: Where(ANY, first_seed=30),
    damaged_parts_are_used: Where(
        COUNTS,
        kinds=("flip a bit in a read", "misdirect a read", "rot a part", "kill the driver"),
        changed={"inline_bytes": 0},
        first_seed=13,
    ),
    entry_of_another_taken_for_its_own: Where(
        ANY,
        kinds=("pause the driver and start another",),
        breaks=r"transaction .* is prepared twice",
        first_seed=1,
    ),
    unknown_outcome_taken_for_a_refusal: Where(
        COUNTS, kinds=("apply a log append without an answer",), changed={"inline_bytes": 0}, breaks="I8"
    ),
    what_closed_a_segment_deleted: Where(
        COUNTS, kinds=TAKEN_OVER, changed=SHORT_SEGMENTS, breaks="I7", first_seed=11
    ),
    log_taken_over_without_closing_the_segment: Where(
        COUNTS, kinds=TAKEN_OVER, changed=SHORT_SEGMENTS, breaks="I7", first_seed=5
    ),
    entry_written_as_a_change_of_the_wrong_one: Where(
        COUNTS, changed={"segment_entries_max": 1_000}, breaks="I7"
    ),
    entries_deleted_that_a_retained_checkpoint_needs: Where(
        COUNTS, kinds=FAILURES, changed=SHORT_SEGMENTS | {"retain": 2}, first_seed=20, breaks="I10"
    ),
    deleted_before_the_newer_entry_is_durable: Where(
        COUNTS, changed={"inline_bytes": 0, "retain": 1}, breaks="I8"
    ),
    deleted_though_a_retained_manifest_names_it: Where(COUNTS, changed={"inline_bytes": 0}, breaks="I8"),
    built_on_a_snapshot_of_a_checkpoint_that_never_was: Where(
        COUNTS,
        kinds=("refuse a part", "kill the driver"),
        changed={"inline_bytes": 0, "interval_ms": 10},
        breaks="I1|I2|I8",
        first_seed=16,
    ),
    final_once_the_sources_are_drained: Where(("loop", "union"), ("unaligned",), breaks="F5", first_seed=2),
    stop_that_could_not_commit_says_nothing: Where(
        COUNTS, kinds=("stop the job", "fail a commit", "hang a sink"), first_seed=37, breaks="F5"
    ),
    overtaken_output_left_out_of_the_log: Where(ANY, ("unaligned",)),
    waiting_input_left_out_of_the_log: Where(ANY, ("switching",)),
    stored_before_all_inputs_are_logged: Where(
        ("union",),
        ("unaligned",),
        changed={
            "parallelism": 2,
            "batch_rows": 10,
            "linger_ms": 0,
            "record_count": 25,
            "source_ms": 40,
            "interval_ms": 10,
            "step_us": 2_000,
            "latency_us": 1_000,
            "faults": (),
        },
        first_seed=32,
    ),
    log_replayed_backwards: Where(
        ("diamond",),
        ("unaligned",),
        ("kill a worker", "raise in user code"),
        {
            "channel_bytes": 50,
            "parallelism": 2,
            "step_us": 2_000,
            "interval_ms": 20,
            "source_ms": 20,
            "record_count": 15,
            "batch_rows": 1,
        },
        first_seed=59,
        breaks="I5",
    ),
    marks_kept_in_a_snapshot: Where(
        COUNTS,
        ("unaligned",),
        changed={"marker_interval_ms": 1, "parallelism": 2, "interval_ms": 20},
        breaks="I4",
    ),
    marks_counted_as_records: Where(
        COUNTS, changed={"marker_interval_ms": 1, "parallelism": 2}, breaks="I11", first_seed=93
    ),
    marks_delivered_as_records: Where(COUNTS, changed={"marker_interval_ms": 1}, breaks="I2"),
    credit_given_twice: Where(COUNTS, breaks="I11"),
    credit_never_given: Where(COUNTS, breaks="I11"),
    credit_given_too_early: Where(COUNTS, changed={"channel_bytes": 200, "parallelism": 2}, breaks="I11"),
    checkpoints_that_wait_for_no_commit: Where(COUNTS, changed=BEHIND, breaks="P4"),
    sources_paused_for_good: Where(COUNTS, changed=BEHIND, breaks="I10"),
    checkpoint_forgotten_that_waited_for_a_commit: Where(
        COUNTS, changed=BEHIND | {"is_periodic": False}, first_seed=3, breaks="I10"
    ),
    sent_without_credit: Where(COUNTS, changed={"channel_bytes": 50, "parallelism": 2}, breaks="I11"),
    back_edge_that_does_not_spill: Where(
        LOOPS,
        changed={
            "channel_bytes": 50,
            "parallelism": 2,
            "record_count": 100,
            "batch_rows": 1,
            "source_ms": 2,
            "faults": (),
        },
        breaks="I10",
    ),
    sender_not_woken_when_its_channel_is_read: Where(
        COUNTS,
        changed={"channel_bytes": 50, "parallelism": 2, "record_count": 15, "is_periodic": False},
        breaks="I10",
        first_seed=1,
    ),
    nobody_woken_after_an_alignment_timeout: Where(
        ("rebalance", "union"),
        ("switching",),
        ("slow channel", "partition two workers"),
        {"parallelism": 3, "alignment_timeout_ms": 10, "interval_ms": 10},
        breaks="I12",
    ),
    channel_called_by_the_place_of_its_edge: Where(
        ("apart",),
        ("aligned", "unaligned"),
        ("kill the driver",),
        breaks=r"task .* fails with KeyError: ChannelId",
        first_seed=11,
    ),
    barrier_reported_as_departed_before_it_waits: Where(
        ("once round",),
        ("switching",),
        ("slow channel",),
        {
            "parallelism": 2,
            "channel_bytes": 50,
            "alignment_timeout_ms": 10,
            "interval_ms": 30,
            "record_count": 15,
            "step_us": 500,
        },
        first_seed=136,
        breaks="I10",
    ),
    tasks_act_on_after_one_has_failed: Where(
        COUNTS, kinds=("raise in user code", "slow control link"), breaks="I7", first_seed=2
    ),
    frame_delivered_twice: Where(COUNTS, breaks=r"task .* fails with WireError: the connection to worker"),
    stale_deployment_obeyed: Where(
        COUNTS, kinds=("repeat a word", "kill a worker"), breaks="I7", first_seed=3
    ),
    halt_of_an_older_epoch_obeyed: Where(
        COUNTS,
        kinds=("repeat a word", "raise in user code"),
        changed={"parallelism": 1},
        first_seed=175,
        breaks="I10",
    ),
    given_up_part_not_deleted: Where(
        COUNTS, kinds=("slow store", "hang the store"), changed={"inline_bytes": 0}, breaks="I11"
    ),
    address_of_a_replacement_not_told: Where(
        COUNTS, kinds=("kill a worker",), changed={"parallelism": 2}, breaks="I10", first_seed=5
    ),
    heartbeat_of_another_attempt_believed: Where(
        COUNTS,
        kinds=("start a second attempt", "freeze a worker"),
        changed={"spark_start_ms": 5},
        breaks="I10",
        first_seed=10,
    ),
    channel_of_an_older_epoch_read: Where(
        COUNTS, kinds=("raise in user code", "kill a worker"), breaks="I11"
    ),
    credit_given_to_another_channel: Where(SHARED, changed=CROWDED, breaks="I11", first_seed=12),
    frame_delivered_to_another_channel: Where(SHARED, changed=CROWDED, breaks="I11", first_seed=12),
    barrier_held_up_by_what_another_channel_lacks: Where(SHARED, changed=CROWDED, breaks="I12"),
    pieces_of_two_channels_mixed: Where(
        SHARED,
        changed={"parallelism": 2, "channel_bytes": 10_000, "piece_bytes": 10, "buffer_bytes": 100},
        breaks=r"task .* fails with WireError: the connection to worker",
        first_seed=12,
    ),
    lanes_not_emptied_when_there_is_room_again: Where(
        COUNTS, changed={"parallelism": 2, "buffer_bytes": 100}, first_seed=25, breaks="I10"
    ),
    rest_of_a_batch_sent_after_what_follows_it: Where(
        COUNTS,
        changed={"parallelism": 2, "piece_bytes": 30, "buffer_bytes": 100},
        breaks=r"task .* fails with WireError: the connection to worker",
    ),
    connection_kept_for_the_next_epoch: Where(
        COUNTS, kinds=("raise in user code", "kill a worker"), breaks="I10", first_seed=1
    ),
    loss_of_a_connection_not_reported: Where(
        COUNTS, kinds=("break a channel", "half-open channel"), breaks="I10", first_seed=1
    ),
    silence_of_a_worker_not_noticed: Where(COUNTS, kinds=("freeze a worker",), breaks="I10", first_seed=1),
    tasks_closed_before_their_calls_have_returned: Where(COUNTS, first_seed=145, breaks="I9"),
    key_group_with_two_owners: Where(COUNTS, changed=RESCALED, breaks="I4"),
    key_group_without_an_owner: Where(COUNTS, changed=RESCALED),
    split_with_two_owners: Where(COUNTS, changed=RESCALED, breaks="I2"),
    records_on_their_way_kept_by_the_places_of_tasks: Where(
        COUNTS, ("unaligned",), changed=RESCALED_IN_A_CROWD, breaks="I4", first_seed=1
    ),
    what_senders_had_left_lost_at_another_parallelism: Where(
        COUNTS, ("unaligned",), changed=RESCALED_IN_A_CROWD
    ),
    older_records_not_waited_for: Where(
        ("detours",), ("unaligned",), changed=RESCALED_IN_A_CROWD, breaks="I5", first_seed=1
    ),
    transactions_of_a_task_that_is_gone_forgotten: Where(COUNTS, changed=RESCALED_AT_A_COMMIT),
    final_results_of_an_heir_said_from_the_first: Where(
        ("totals",), changed=RESCALED, first_seed=27, breaks="I2"
    ),
    final_results_of_an_heir_taken_as_said: Where(("totals",), changed=RESCALED, first_seed=137),
    refusal_after_the_final_checkpoint_not_followed_up: Where(
        COUNTS, kinds=("refuse a log append",), changed=REFUSED_AFTER_COMPLETION, breaks="I10", first_seed=1
    ),
    refusal_after_the_final_checkpoint_counted: Where(
        COUNTS, kinds=("refuse a log append",), changed=REFUSED_AFTER_COMPLETION, breaks="D4"
    ),
    stop_waits_for_the_interval: Where(COUNTS, kinds=STOPS, breaks="F7"),
    stop_waits_after_the_failure_of_an_older_checkpoint: Where(
        COUNTS,
        changed={
            "interval_ms": 100,
            "checkpoint_timeout_ms": 200,
            "source_ms": 400,
            "inline_bytes": 0,
            "faults": (
                PlannedFault(0, "refuse a part", moment="snapshot.frozen"),
                PlannedFault(0, "stop the job", moment="snapshot.frozen"),
            ),
        },
        breaks="F7",
    ),
    stop_without_a_last_checkpoint_says_nothing: Where(COUNTS, kinds=STOPS, breaks="F7"),
    request_not_answered_by_the_final_checkpoint: Where(
        COUNTS, kinds=("ask for a checkpoint",), breaks="F5", first_seed=20
    ),
    failed_checkpoint_followed_by_another_that_nobody_wants: Where(
        COUNTS,
        kinds=("ask for a checkpoint", "refuse a part"),
        changed={"is_periodic": False},
        breaks=r"checkpoint \d+ is triggered, and nobody wants one",
        first_seed=13,
    ),
    barriers_in_flight_give_each_other_up: Where(
        ("diamond", "union"),
        ("at-least-once",),
        changed={"in_flight_max": 4, "interval_ms": 10, "latency_us": 10_000, "faults": ()},
        breaks="I10",
        first_seed=2,
    ),
}


@pytest.mark.parametrize("plant", BUGS, ids=lambda one: one.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    where = BUGS[plant]
    must_break(where.breaks, (live(options).failure for options in where.worlds()))


@pytest.mark.parametrize("part", [0, *(pytest.param(one, marks=pytest.mark.proof) for one in (1, 2, 3))])
def test_the_planted_bugs_are_the_only_ones(part: int) -> None:
    # Many look for their bug in the same worlds.
    worlds = list(dict.fromkeys(next(where.worlds()) for where in BUGS.values()))
    with impatience():
        for options in worlds[part::4]:
            life = live(options)
            assert not life.failure, report(life)
