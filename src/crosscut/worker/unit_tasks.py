"""The tasks of a worker as its unit of logging sees them: their books, their channels, their sinks.

`unit_runner` has effects carried out here, and is told here of what happens. What tasks send to other units
becomes an event of the unit instead of a frame, and comes back as an effect once the log holds it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from crosscut.contracts.connectors import JSON
from crosscut.errors import InternalError, ProtocolError, StateError, StoreError, invariant
from crosscut.foundation.batch import Batch, NumberedBatch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, LogIndex, TaskId
from crosscut.net.numbered_channels import NumberedIncoming, NumberedOutgoing, Phase
from crosscut.protocol.events import CommitAuthorised
from crosscut.protocol.messages import (
    SourceDrained,
    TransactionsCommitted,
    UnitFinished,
    UnitProgressed,
    WorkerMessage,
)
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.effects import (
    AcknowledgeInputs,
    AskResume,
    AuthoriseCommit,
    ChannelEffect,
    DeliverRecords,
    RefuseResume,
    RestoreUnit,
    SendRecords,
)
from crosscut.protocol.unit_log.entries import ChannelPosition, commit_number
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    CompactionRequested,
    GroupEnded,
    InputsAcknowledged,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
    ResumeRefused,
    UnitCommitted,
    UnitSnapshotFailed,
    UnitSnapshotStored,
)
from crosscut.protocol.unit_log.spec import UnitLogSpec
from crosscut.protocol.unit_log.unit import Unit
from crosscut.task.flow_control import ROWS_MAX
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.task.unit_books import FrozenUnit, UnitBooks
from crosscut.task.unit_restore import RestoredUnit
from crosscut.wire.batches import encode_batch
from crosscut.worker.pool import TaskPool
from crosscut.worker.runner import TaskRunner
from crosscut.worker.unit_runner import UnitRunner

PROGRESS_EVERY_NS = 1_000_000_000
"""How often a unit reports that its log grows, at most: an epoch that is shorter has made no progress."""

RETRY_SNAPSHOT_NS = 10_000_000_000
"""After so long a snapshot that could not be stored is tried again."""

_LOG = logging.getLogger("crosscut")
_FromPeer = ChannelConnected | ChannelAccepted | ResumeAsked | ResumeRefused | InputsAcknowledged


class UnitChannels(Protocol):
    """The connections of a worker; see `crosscut.net.mesh.Mesh`."""

    numbered_outgoing: dict[ChannelId, NumberedOutgoing]
    numbered_incoming: dict[ChannelId, NumberedIncoming]


class UnitTasks:
    """The tasks of one incarnation. All methods are called on the event loop.

    Connections may be made at any time. `begin` comes after the tasks are built and before they start.

    Args:
        channels: The newest connections.
        report: Takes what tasks have to say to the coordinator.

    Attributes:
        dropped: Counts effects for connections that are gone.
    """

    def __init__(
        self,
        unit: Unit,
        spec: UnitLogSpec,
        epoch: Epoch,
        runner: UnitRunner,
        channels: UnitChannels,
        report: Callable[[WorkerMessage], None],
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._unit = unit
        self._spec = spec
        self._epoch = epoch
        self._is_stopping = self._has_finished = False
        # When progress was reported last, or the tasks began, and where the log ended then.
        self._progress_ns = 0
        self._progress_at: LogIndex | None = None
        # Of the log since its newest snapshot.
        self._tail_groups = self._tail_bytes = 0
        self._snapshot_bytes = 0
        self._frozen: FrozenUnit | None = None
        # The tail that the snapshot under way replaces, in groups and bytes.
        self._replaced_tail = (0, 0)
        self._next_snapshot_ns = 0
        # The newest snapshot, which the log begins with once its head is durable, and the one before.
        self._parts: tuple[tuple[Part, ...], ...] = ()
        self._runner = runner
        self._channels = channels
        self._report = report
        self._pool: TaskPool | None = None
        self._books: UnitBooks | None = None
        # What peers have said before the tasks were there, in order.
        self._early: list[_FromPeer] = []
        self._number = CheckpointId(0)
        # What has just come, until it is known how much of it is new.
        self._arriving: tuple[ChannelId, NumberedBatch | EndOfInput, int] | None = None
        # The newest commit number that is visible, by sink task.
        self._visible: dict[TaskId, CheckpointId] = {}
        self._restored = CheckpointId(0)
        self._committing: LogIndex | None = None
        # The newest commit number that the sinks were told to commit, with all before it.
        self._authorised = CheckpointId(0)

    def begin(self, pool: TaskPool, restored: RestoreUnit, sections: RestoredUnit) -> None:
        """The tasks are in `pool`, restored: go on as a unit. All output in the log is visible.

        Args:
            sections: What the log adds up to.
        """
        number = self._restored = sections.number
        self._tail_groups = len(restored.groups)
        self._tail_bytes = sum(len(group.content.sections) for group in restored.groups)
        if restored.snapshot is not None:
            self._parts = (restored.snapshot.parts,)
            self._snapshot_bytes = sum(part.size_bytes for part in restored.snapshot.parts)
        taken = taken_by(restored)
        self._books = UnitBooks(
            pool.tasks, taken, are_splits_logged=number > 0, record_fields=sections.record_fields
        )
        self._pool = pool
        self._progress_ns, self._progress_at = pool.now_ns(), self._unit.next_index
        self._visible = {
            runner.task.task_id: number for runner in pool.runners if runner.task.machines[1] is not None
        }
        pool.emit = self._emit
        self._runner.begin(pool, self)
        early, self._early = self._early, []
        for event in early:
            self._runner.handle(event)
        for runner in pool.runners:
            buffers = runner.task.output_buffers
            for channel, end in buffers.ends.items():
                if channel.source.index != channel.target.index:
                    # No barrier waits behind these records, so only their bytes are bounded.
                    end.rows_max = ROWS_MAX
                    self._look_at(channel)
            buffers.measure()

    def round_over(self) -> None:
        """A round of the scheduler is over, and no group is ending: have all tasks come to their end?"""
        pool = self._pool
        if pool is None:
            return
        self._note_progress(pool)
        if self._has_finished or not (self._is_stopping or all(task.is_over for task in pool.tasks)):
            return
        if pool.is_settled and not self._its_books.has_content and self._unit.is_settled:
            self._has_finished = True
            self._report(UnitFinished(self._epoch))

    def stop(self) -> None:
        """Take no more input, and report when all output in the log is visible."""
        self._is_stopping = True
        self._runner.stop()

    def _note_progress(self, pool: TaskPool) -> None:
        """Report from time to time that the log has grown: what it holds is not processed again."""
        index = self._unit.next_index
        if index == self._progress_at or (now_ns := pool.now_ns()) - self._progress_ns < PROGRESS_EVERY_NS:
            return
        self._progress_ns, self._progress_at = now_ns, index
        pool.note_durable()
        self._report(UnitProgressed(self._epoch))

    def report(self, message: WorkerMessage) -> None:
        """A task has something to say."""
        match message:
            case TransactionsCommitted():
                # Of a group, which nobody but the unit knows.
                self._visible[message.task] = message.checkpoint_id
                self._note_committed()
            case SourceDrained():
                # No checkpoint follows: the end is in the log, and `UnitFinished` says so.
                pass
            case _:
                self._report(message)

    # What is sent.

    def _emit(self, sender: TaskRunner, channel: ChannelId, item: Item) -> None:
        match item:
            case Batch():
                if not item.records and not item.has_news:
                    # A mark alone, which no log holds.
                    return
                payload = encode_batch(item)
                event = RecordsEmitted(channel, len(item), payload, item.has_news)
            case EndOfInput():
                payload = b""
                event = RecordsEmitted(channel, 0, payload, has_news=True)
            case Barrier():
                raise ProtocolError(f"{item} on {channel}: units have no barriers")
            case _:
                assert_never(item)
        self._its_books.note_sent(payload)
        self._runner.handle(event)
        self._look_at(channel)

    def _look_at(self, channel: ChannelId) -> None:
        """Let the sender of an output go on, or make it wait."""
        pool = self._pool
        if pool is None or channel.source.index == channel.target.index:
            return
        buffers = pool.sender_of(channel).task.output_buffers
        end = buffers.ends[channel]
        end.is_paused = self._unit.is_full(channel)
        if buffers.look(channel):
            pool.schedule()

    # What comes from peers.

    def channel_opened(self, event: ChannelConnected | ChannelAccepted) -> None:
        """A channel has a connection, which replaces the one before."""
        self._peer_event(event)

    def handle_peer_event(self, event: ResumeAsked | ResumeRefused | InputsAcknowledged) -> None:
        """The other end of a channel has said something."""
        self._peer_event(event)
        if isinstance(event, InputsAcknowledged) and self._pool is not None and not self._runner.is_over:
            self._look_at(event.channel)

    def records_arrived(
        self, event: RecordsArrived, item: NumberedBatch | EndOfInput, size_bytes: int
    ) -> None:
        """Records, or news, have come: perhaps again."""
        invariant(self._arriving is None, "records come while others are judged")
        self._arriving = event.channel, item, size_bytes
        try:
            self._runner.handle(event)
        finally:
            self._arriving = None

    def barrier_arrived(self, channel: ChannelId, barrier: Barrier) -> None:
        """A barrier has come.

        Raises:
            ProtocolError: Nobody sends one.
        """
        raise ProtocolError(f"{barrier} came on {channel}: units have no barriers")

    def _peer_event(self, event: _FromPeer) -> None:
        if self._pool is None:
            self._early.append(event)
        else:
            self._runner.handle(event)

    # As the runner sees it.

    @property
    def _its_books(self) -> UnitBooks:
        if self._books is None:
            raise InternalError("the tasks of a unit run before it has begun")
        return self._books

    @property
    def has_content(self) -> bool:
        return self._its_books.has_content

    @property
    def size_bytes(self) -> int:
        return self._its_books.size_bytes

    @property
    def is_awaited(self) -> bool:
        return False

    def end_group(self) -> GroupEnded | None:
        pool, books = self._pool, self._its_books
        if pool is None or pool.is_over:
            return None
        if not books.is_cut:
            for runner in pool.runners:
                runner.post(lambda task: task.output_buffers.flush())
            if pool.is_over:
                # A record could not be sent, and its task has failed.
                return None
            self._number = commit_number(self._unit.next_index)
            books.cut(self._number)
            for runner in pool.runners:
                # What is to be prepared.
                runner.reach(runner.drain)
        event = books.ended()
        if event is not None:
            now = commit_number(self._unit.next_index)
            invariant(now == self._number, f"group {self._number} was to be appended as {now}")
            self._note_tail(event, pool.now_ns())
        return event

    def _note_tail(self, event: GroupEnded, now_ns: int) -> None:
        """Ask for a snapshot if the log has become long, compared with the state."""
        spec = self._spec
        self._tail_groups += 1
        self._tail_bytes += len(event.content.sections)
        is_long = self._tail_bytes >= max(spec.tail_bytes_max, self._snapshot_bytes)
        has_many = self._tail_groups >= spec.tail_groups_max and 4 * self._tail_bytes >= self._snapshot_bytes
        # Each is an object that a claim has to read.
        has_too_many = spec.kind == "objects" and self._tail_groups >= spec.tail_objects_max
        if (is_long or has_many or has_too_many) and now_ns >= self._next_snapshot_ns:
            # The unit handles this before `event`, so the snapshot is taken at the end of this group.
            self._runner.handle(CompactionRequested())

    def perform(self, effect: ChannelEffect) -> None:
        match effect:
            case SendRecords(channel, connection, records):
                if (end := self._channels.numbered_outgoing.get(channel)) and end.connection == connection:
                    end.send_records(records)
                else:
                    self.dropped["records for a connection that is gone"] += 1
            case RefuseResume(channel, connection, position):
                if (end := self._channels.numbered_outgoing.get(channel)) and end.connection == connection:
                    end.refuse(position)
                else:
                    self.dropped["refusal for a connection that is gone"] += 1
            case AskResume(channel, connection, position):
                if (way := self._channels.numbered_incoming.get(channel)) and way.connection == connection:
                    way.resume(position)
                else:
                    self.dropped["resume for a connection that is gone"] += 1
            case AcknowledgeInputs(channel, position):
                way = self._channels.numbered_incoming.get(channel)
                # If the sender was not told where to go on, it is about to be, and this is said with that.
                if way is not None and way.phase is not Phase.CONNECTED:
                    way.acknowledge(position)
            case DeliverRecords(channel, skipped):
                self._deliver(channel, skipped)
            case _:
                assert_never(effect)

    def _deliver(self, channel: ChannelId, skipped: int) -> None:
        arriving, pool = self._arriving, self._pool
        if arriving is None or arriving[0] != channel or pool is None:
            raise InternalError(f"records of {channel} are to be delivered, and none have come")
        _, item, size_bytes = arriving
        if isinstance(item, NumberedBatch) and skipped:
            _, item = item.split(skipped)
        pool.received(channel, item, size_bytes)

    def acknowledge_sources(self, positions: tuple[tuple[str, JSON], ...]) -> None:
        self._its_books.acknowledge(positions)

    def commit(self, effect: AuthoriseCommit) -> None:
        number = commit_number(effect.index)
        if number <= self._restored:
            # The sinks have recovered with it.
            self._runner.handle(UnitCommitted(effect.index))
            return
        self._committing = effect.index
        # All that the log holds by now: a sink that is slower than groups are commits several at a time.
        newest = commit_number(self._unit.newest_owed)
        if newest > self._authorised and self._pool is not None:
            self._authorised = newest
            for runner in self._pool.runners:
                if runner.task.task_id in self._visible:
                    runner.post(lambda task: task.transactions.handle(CommitAuthorised(newest)))
        self._note_committed()

    def _note_committed(self) -> None:
        index = self._committing
        if index is None:
            return
        number = commit_number(index)
        if all(visible >= number for visible in self._visible.values()):
            self._committing = None
            self._runner.handle(UnitCommitted(index))

    # Snapshots.

    def freeze(self, index: LogIndex) -> None:
        self._frozen = self._its_books.freeze(commit_number(index))
        self._replaced_tail = self._tail_groups, self._tail_bytes
        self._tail_groups = self._tail_bytes = 0

    def store(self, index: LogIndex) -> None:
        pool, frozen = self._pool, self._frozen
        if pool is None or frozen is None or frozen.number != commit_number(index):
            raise InternalError(f"a snapshot of the unit at group {index} was not frozen")
        pool.spawn(pool.tasks[0].task_id, self._store, pool, index, frozen)

    async def _store(self, pool: TaskPool, index: LogIndex, frozen: FrozenUnit) -> None:
        number = frozen.number
        stateful = [(runner, runner.state) for runner in pool.runners if runner.state is not None]
        parts: list[Part] = []
        try:
            places: dict[TaskId, int] = {}
            for runner, state in stateful:
                chunks = []
                for chunk in state.encoded(number, CheckpointId(0)):
                    chunks.append(chunk)
                    await pool.pause()
                places[runner.task.task_id] = len(parts) + 1
                parts.append(await self._write(pool, number, runner.task.task_id, chunks))
            head = await self._write(pool, number, pool.tasks[0].task_id, [frozen.encoded(places)])
        except (StoreError, StateError) as error:
            for _, state in stateful:
                state.abandon(number)
            self._delete(pool, tuple(parts))
            self._snapshot_failed(pool, str(error))
            self._runner.handle(UnitSnapshotFailed(index, str(error)))
            return
        for _, state in stateful:
            for _ in state.complete(number):
                await pool.pause()
        self._stored(pool, (head, *parts))
        self._runner.handle(UnitSnapshotStored(index, (head, *parts)))

    def _snapshot_failed(self, pool: TaskPool, reason: str) -> None:
        # The tail is as long as it was.
        groups, size_bytes = self._replaced_tail
        self._tail_groups += groups
        self._tail_bytes += size_bytes
        self._next_snapshot_ns = pool.now_ns() + RETRY_SNAPSHOT_NS
        _LOG.warning(
            "A snapshot that makes the log of this worker shorter could not be stored: %s. It is tried again "
            "after %d s; until then the log grows.",
            reason,
            RETRY_SNAPSHOT_NS // 1_000_000_000,
        )

    async def _write(self, pool: TaskPool, number: CheckpointId, task: TaskId, chunks: list[bytes]) -> Part:
        pool.failpoints("part.write")
        return await pool.threads.call(pool.store.write_part, number, task, self._epoch, chunks)

    def _stored(self, pool: TaskPool, parts: tuple[Part, ...]) -> None:
        # The head of the newest one before is durable, or this one would not have been asked for.
        for older in self._parts[:-1]:
            self._delete(pool, older)
        self._parts = (*self._parts[-1:], parts)
        self._snapshot_bytes = sum(part.size_bytes for part in parts)

    def _delete(self, pool: TaskPool, parts: tuple[Part, ...]) -> None:
        """Delete parts of no use, best effort."""
        if paths := [part.path for part in parts if part.path]:
            pool.threads.start(pool.store.delete_parts, paths)


def taken_by(restored: RestoreUnit) -> Mapping[ChannelId, ChannelPosition]:
    """Return how far a log has taken each channel."""
    taken = dict(restored.snapshot.received) if restored.snapshot is not None else {}
    for group in restored.groups:
        taken |= dict(group.received)
    return taken
