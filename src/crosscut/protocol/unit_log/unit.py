"""The protocol of one unit, in one incarnation: groups become entries, and what leaves the unit is a fact.

1. Records, acknowledgements, commits and source positions leave when a durable entry holds them, and not
   before.
2. One entry commits a group: the records it took and sent, the state it changed, the output of its sinks.
   One append is under way at a time; the next group grows meanwhile.
3. What the log adds up to is all that a new incarnation needs. It claims the log, restores the tasks,
   commits what is owed, and sends again what is not acknowledged.
4. The coordinator of a sink transaction is the log: the entry is the decision, and its index the number of
   the commit. A commit that comes late or twice commits the same.
5. Compaction is a snapshot of this unit alone. It holds what is not acknowledged and what is owed. Groups
   before it are deleted after a head that holds it is durable.

Since a group is durable only after what it took was durable at its sender, the ends of all logs are a
consistent cut at any moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from crosscut.contracts.connectors import JSON
from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId, LogIndex
from crosscut.protocol.events import (
    EntryAppended,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    TimerFired,
)
from crosscut.protocol.snapshot.commit import RETRY_DELAY_MAX_MS, RETRY_DELAY_MS
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.appending import (
    EntryLogged,
    LogKind,
    LogLost,
    LogVerdict,
    UnitClaimed,
    UnitLog,
)
from crosscut.protocol.unit_log.effects import (
    AcknowledgeSources,
    AuthoriseCommit,
    DeleteGroups,
    EndUnit,
    FreezeUnit,
    RestoreUnit,
    StoreUnitSnapshot,
    UnitEffect,
)
from crosscut.protocol.unit_log.entries import (
    START,
    ChannelPosition,
    GroupCommitted,
    GroupContent,
    Incarnation,
    NumberedRecords,
    UnitSnapshot,
)
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    CompactionRequested,
    GroupEnded,
    InputsAcknowledged,
    NewestHeadRead,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
    ResumeRefused,
    SealFound,
    SegmentSealed,
    UnitCommitFailed,
    UnitCommitted,
    UnitEntryRead,
    UnitEvent,
    UnitLogEvent,
    UnitLogFailed,
    UnitSnapshotFailed,
    UnitSnapshotStored,
    UnitTailRead,
)
from crosscut.protocol.unit_log.numbers import (
    NumberedReceiver,
    NumberedSender,
    ReceiverEvent,
    SenderEvent,
)
from crosscut.protocol.unit_log.positions import by_channel
from crosscut.protocol.unit_log.replay import by_split, replayed

OWED_MAX = 64
"""Sink transactions that are in the log and not committed; above that the unit takes no input."""


class Unit:
    """A worker's tasks as one unit of logging.

    Args:
        inputs: Channels from tasks of other units.
        outputs: Channels to tasks of other units.
        timeout_ms: How long one call of the store may take.
        back_edges: Those of `outputs` that close a cycle: they never stop their sender.
        channel_bytes: How much of an output is kept before it stops its sender.
        commit_attempts: Attempts at one commit before the unit fails; the next incarnation commits again.
        first_segment: Where a log begins that has no entry.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        inputs: tuple[ChannelId, ...],
        outputs: tuple[ChannelId, ...],
        timeout_ms: int,
        kind: LogKind = "objects",
        *,
        back_edges: frozenset[ChannelId] = frozenset(),
        channel_bytes: int = 4 << 20,
        commit_attempts: int = 10,
        owed_max: int = OWED_MAX,
        first_segment: int = 1,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._incarnation = incarnation
        self._inputs, self._outputs = inputs, outputs
        self._back_edges = back_edges
        self._channel_bytes = channel_bytes
        self._commit_attempts = commit_attempts
        self._owed_max = owed_max
        self._log = UnitLog(incarnation, timeout_ms, kind, first_segment=first_segment, dropped=self.dropped)
        self._is_claimed = False
        self._is_over = False
        self._senders: dict[ChannelId, NumberedSender] = {}
        self._receivers: dict[ChannelId, NumberedReceiver] = {}
        self._positions: dict[str, JSON] = {}
        self._owed: dict[LogIndex, JSON] = {}
        self._committing: LogIndex | None = None
        self._attempt = 0
        self._wants_snapshot = False
        self._frozen: UnitSnapshot | None = None
        self._is_stored = False
        self._groups: list[LogIndex] = []
        """Of the log, as far as no snapshot has replaced them."""

    @property
    def is_running(self) -> bool:
        """Whether the log is this incarnation's, as far as it knows."""
        return self._is_claimed and not self._is_over

    @property
    def can_end_group(self) -> bool:
        """Whether no append is under way, so that the group may end."""
        return self.is_running and self._log.is_idle

    @property
    def next_index(self) -> LogIndex:
        """Where the group belongs that ends next, if it `can_end_group` now."""
        return self._log.next

    @property
    def newest_owed(self) -> LogIndex:
        """The newest group in the log whose sink transaction is owed; all before it are in the log, too."""
        return max(self._owed)

    @property
    def is_settled(self) -> bool:
        """Whether no append is under way, and no sink transaction is owed."""
        return self.can_end_group and not self._owed

    @property
    def takes_input(self) -> bool:
        """Whether tasks may take input: their sinks are not too far behind."""
        return self.is_running and len(self._owed) <= self._owed_max

    def is_full(self, output: ChannelId) -> bool:
        """Whether `output` stops the task that sends on it, until its receiver has acknowledged more."""
        return output not in self._back_edges and self._senders[output].kept_bytes >= self._channel_bytes

    @property
    def trouble(self) -> str:
        """Why the append under way did not succeed yet, for people; "" if nothing is wrong."""
        return self._log.trouble

    def start(self) -> list[UnitEffect]:
        """Find out what the log holds, and claim it."""
        return [*self._log.start()]

    def handle(self, event: UnitEvent) -> list[UnitEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            MissingRecordsError: The sender of an input has forgotten what comes next. The process must end.
            ProtocolError: The event is impossible; nothing has changed.
        """
        if self._is_over:
            return self._drop("event after the end")
        match event:
            case (
                NewestHeadRead() | SegmentSealed() | UnitTailRead() | EntryAppended() | EntryTaken()
                | EntryUncertain() | EntryRefused() | UnitEntryRead() | SealFound() | UnitLogFailed()
                | TimerFired()
            ):  # fmt: skip
                return self._log_answered(event)
            case RecordsEmitted() | ChannelConnected() | ResumeAsked() | InputsAcknowledged():
                return self._sender_event(event)
            case RecordsArrived() | ChannelAccepted() | ResumeRefused():
                return self._receiver_event(event)
            case GroupEnded(content, taken):
                return self._end_group(content, taken)
            case UnitCommitted(index):
                return self._committed(index)
            case UnitCommitFailed(index, reason):
                return self._commit_failed(index, reason)
            case CompactionRequested():
                return self._compact()
            case UnitSnapshotStored(index, parts):
                return self._snapshot_stored(index, parts)
            case UnitSnapshotFailed(index):
                return self._snapshot_failed(index)
            case _:
                assert_never(event)

    # The log.

    def _log_answered(self, event: UnitLogEvent) -> list[UnitEffect]:
        effects, verdict = self._log.handle(event)
        return [*effects, *self._concluded(verdict)] if verdict is not None else [*effects]

    def _concluded(self, verdict: LogVerdict) -> list[UnitEffect]:
        match verdict:
            case UnitClaimed():
                return self._restored(verdict)
            case EntryLogged(index, entry):
                if isinstance(entry, GroupCommitted):
                    return [*self._group_logged(index, entry), *self._open_segment()]
                return self._compacted(entry.snapshot)
            case LogLost(reason, is_fenced):
                return self._end(reason, is_fenced=is_fenced)
            case _:
                assert_never(verdict)

    def _restored(self, claimed: UnitClaimed) -> list[UnitEffect]:
        replay = replayed(claimed.tail)
        total = replay.total
        received, given = dict(total.received), dict(total.given)
        kept: dict[ChannelId, list[NumberedRecords]] = {}
        for one in total.kept:
            kept.setdefault(one.channel, []).append(one.records)
        self._receivers = {
            channel: NumberedReceiver(channel, received.get(channel, START), self.dropped)
            for channel in self._inputs
        }
        self._senders = {
            channel: NumberedSender(
                channel, given.get(channel, START), tuple(kept.get(channel, ())), self.dropped
            )
            for channel in self._outputs
        }
        self._positions = dict(total.positions)
        self._owed = dict(total.owed)
        self._groups = [*claimed.leftover, *replay.indices]
        self._is_claimed = True
        return [RestoreUnit(replay.base, replay.groups, total.positions), *self._commit_next()]

    # Groups.

    def _end_group(
        self, content: GroupContent, taken: tuple[tuple[ChannelId, ChannelPosition], ...]
    ) -> list[UnitEffect]:
        if not self.can_end_group:
            raise ProtocolError("a group ends before the append of the one before is decided")
        for channel, position in taken:
            self._receiver(channel).check_taken(position)
        received = {
            channel: position for channel, position in taken if self._receivers[channel].taken != position
        }
        for channel, position in received.items():
            self._receivers[channel].end_group(position)
        sent = tuple(one for end in self._senders.values() for one in end.end_group())
        group = GroupCommitted(self._incarnation, by_channel(received), sent, content)
        index = self._log.next
        self._positions |= dict(content.positions)
        effects: list[UnitEffect] = []
        if self._wants_snapshot:
            self._wants_snapshot = False
            self._frozen = self._snapshot(index, group)
            effects.append(FreezeUnit(index))
        return [*effects, *self._log.append(group)]

    def _group_logged(self, index: LogIndex, group: GroupCommitted) -> list[UnitEffect]:
        """Let everything out that depends on the group."""
        effects: list[UnitEffect] = []
        self._groups.append(index)
        for channel in dict.fromkeys(one.channel for one in group.sent):
            effects += self._senders[channel].logged()
        for channel, _ in group.received:
            effects += self._receivers[channel].logged()
        if group.content.positions:
            effects.append(AcknowledgeSources(group.content.positions))
        if group.content.sink is not None:
            self._owed[index] = group.content.sink
            effects += self._commit_next()
        if self._frozen is not None and self._frozen.index == index:
            effects.append(StoreUnitSnapshot(index))
        return effects

    # Channels.

    def _sender_event(self, event: SenderEvent) -> list[UnitEffect]:
        if not self._is_claimed:
            return self._drop("channel event before the claim")
        return [*self._sender(event.channel).handle(event)]

    def _receiver_event(self, event: ReceiverEvent) -> list[UnitEffect]:
        if not self._is_claimed:
            return self._drop("channel event before the claim")
        return [*self._receiver(event.channel).handle(event)]

    def _sender(self, channel: ChannelId) -> NumberedSender:
        if channel not in self._senders:
            raise ProtocolError(f"{channel} is no output of this unit")
        return self._senders[channel]

    def _receiver(self, channel: ChannelId) -> NumberedReceiver:
        if channel not in self._receivers:
            raise ProtocolError(f"{channel} is no input of this unit")
        return self._receivers[channel]

    # The second phase of sinks.

    def _commit_next(self) -> list[UnitEffect]:
        if self._committing is not None or not self._owed:
            return []
        self._committing, self._attempt = min(self._owed), 0
        return self._try_commit(self._committing)

    def _try_commit(self, index: LogIndex) -> list[UnitEffect]:
        delay_ms = 0
        if self._attempt:
            delay_ms = min(RETRY_DELAY_MS << min(self._attempt - 1, 20), RETRY_DELAY_MAX_MS)
        self._attempt += 1
        return [AuthoriseCommit(index, self._owed[index], delay_ms)]

    def _committed(self, index: LogIndex) -> list[UnitEffect]:
        if index != self._committing:
            return self._drop("stale commit")
        self._committing = None
        del self._owed[index]
        return self._commit_next()

    def _commit_failed(self, index: LogIndex, reason: str) -> list[UnitEffect]:
        if index != self._committing:
            return self._drop("stale commit")
        if self._attempt >= self._commit_attempts:
            return self._end(
                f"the output of group {index} could not be committed in {self._attempt} attempts, the last "
                f"one: {reason}",
                is_fenced=False,
            )
        return self._try_commit(index)

    # Compaction.

    def _compact(self) -> list[UnitEffect]:
        if self._frozen is not None:
            return self._drop("compaction under way")
        self._wants_snapshot = True
        return []

    def _snapshot(self, index: LogIndex, group: GroupCommitted) -> UnitSnapshot:
        """Return the snapshot at the end of `group`, without parts: as if its entry was durable."""
        owed = dict(self._owed)
        if group.content.sink is not None:
            owed[index] = group.content.sink
        return UnitSnapshot(
            index,
            by_channel({channel: end.taken for channel, end in self._receivers.items()}),
            by_channel({channel: end.given for channel, end in self._senders.items()}),
            tuple(one for end in self._senders.values() for one in end.kept()),
            by_split(self._positions),
            tuple(owed.items()),
        )

    def _snapshot_stored(self, index: LogIndex, parts: tuple[Part, ...]) -> list[UnitEffect]:
        if self._frozen is None or self._frozen.index != index or self._is_stored:
            return self._drop("stale snapshot")
        self._frozen = replace(self._frozen, parts=parts)
        self._is_stored = True
        return self._open_segment()

    def _snapshot_failed(self, index: LogIndex) -> list[UnitEffect]:
        if self._frozen is None or self._frozen.index != index or self._is_stored:
            return self._drop("stale snapshot")
        self._frozen = None
        return []

    def _open_segment(self) -> list[UnitEffect]:
        """Put the stored snapshot into the log, if there is one and nothing else is under way."""
        if self._frozen is None or not self._is_stored or not self._log.is_idle:
            return []
        return [*self._log.open_segment(self._frozen)]

    def _compacted(self, snapshot: UnitSnapshot | None) -> list[UnitEffect]:
        """The log begins with `snapshot` now: what is before it can go, oldest last."""
        self._frozen, self._is_stored = None, False
        replaced = self._replaced(snapshot) if snapshot is not None else []
        self._groups = [index for index in self._groups if index not in set(replaced)]
        return [DeleteGroups(tuple(replaced[::-1]))] if replaced else []

    def _replaced(self, snapshot: UnitSnapshot) -> Sequence[LogIndex]:
        return [index for index in self._groups if index <= snapshot.index]

    # The end.

    def _end(self, reason: str, *, is_fenced: bool) -> list[UnitEffect]:
        self._is_over = True
        return [EndUnit(reason, is_fenced)]

    def _drop(self, reason: str) -> list[UnitEffect]:
        self.dropped[reason] += 1
        return []
