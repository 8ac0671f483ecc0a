"""The two ends of a channel between units: records have numbers, and a number names one content for ever.

The sender gives out the numbers 1, 2, 3, ... and keeps each record until the receiver acknowledges that it
is in the receiver's log. A record leaves when the sender's own log holds it. So nothing on a channel can be
late, repeated or from a zombie: the receiver drops numbers that it has. It drops those after a gap if they
come on an older connection. The present one begins where the receiver asked, so a gap there is an error.

News (watermarks, idleness, the end of input) has numbers of its own, and follows the same rules.

There are three positions at the receiver. *Arrived* is in its queues, and says where a connection goes on;
an incarnation that fails forgets it. *Taken* is in a group that has ended. *Safe* is in the log; only that
lets the sender forget. A sender that has forgotten what a receiver asks for says so. Then the receiver has it
meanwhile, or it is a zombie, or its log has lost entries; in the last two cases it ends.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import assert_never

from crosscut.errors import MissingRecordsError, ProtocolError
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.unit_log.effects import (
    AcknowledgeInputs,
    AskResume,
    ChannelEffect,
    DeliverRecords,
    RefuseResume,
    SendRecords,
)
from crosscut.protocol.unit_log.entries import START, ChannelPosition, NumberedRecords, SentRecords
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    ConnectionId,
    InputsAcknowledged,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
    ResumeRefused,
)
from crosscut.protocol.unit_log.positions import advanced, before, is_after, is_gap, skipped

SenderEvent = RecordsEmitted | ChannelConnected | ResumeAsked | InputsAcknowledged
ReceiverEvent = RecordsArrived | ChannelAccepted | ResumeRefused


class NumberedSender:
    """The sending end of one channel, in one incarnation.

    Args:
        given: The newest numbers that the log has.
        kept: What is not known to be acknowledged, in order.
        dropped: Counts stale and repeated input.
    """

    def __init__(
        self,
        channel: ChannelId,
        given: ChannelPosition = START,
        kept: tuple[NumberedRecords, ...] = (),
        dropped: Counter[str] | None = None,
    ) -> None:
        self._channel = channel
        self.given = given
        self._ended = given
        """The newest numbers of an ended group."""
        self._logged = given
        self._kept = deque(kept)
        self.kept_bytes = sum(len(one.payload) for one in kept)
        self._growing: list[NumberedRecords] = []
        """Those of the group that has not ended."""
        self._connection: ConnectionId | None = None
        self._unsent: deque[NumberedRecords] | None = None
        """What is to be sent on the present connection; None until the receiver has said where to go on."""
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    def handle(self, event: SenderEvent) -> list[ChannelEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            MissingRecordsError: The receiver has more than the log; nothing has changed.
            ProtocolError: The event is impossible; nothing has changed.
        """
        match event:
            case RecordsEmitted(_, count, payload, has_news):
                self._emitted(count, payload, has_news=has_news)
                return []
            case ChannelConnected(_, connection):
                self._connection, self._unsent = connection, None
                return []
            case ResumeAsked(_, connection, position):
                return self._resume(connection, position)
            case InputsAcknowledged(_, position):
                self._acknowledged(position)
                return []
            case _:
                assert_never(event)

    def end_group(self) -> tuple[SentRecords, ...]:
        """Return what was sent since the last group ended."""
        sent, self._growing = self._growing, []
        self._ended = self.given
        return tuple(SentRecords(self._channel, one) for one in sent)

    def logged(self) -> list[ChannelEffect]:
        """The group that has ended last is in the log: what it has sent may leave."""
        self._logged = self._ended
        return self._send()

    def kept(self) -> tuple[SentRecords, ...]:
        """Return what was not acknowledged yet: part of a snapshot."""
        return tuple(SentRecords(self._channel, one) for one in self._kept)

    def _emitted(self, count: int, payload: bytes, *, has_news: bool) -> None:
        if count < 0 or not (count or has_news):
            raise ProtocolError(f"{count} records and no news were sent on {self._channel}")
        first, last = self.given.record + 1, self.given.record + count
        records = NumberedRecords(first, last, payload, self.given.news + 1 if has_news else 0)
        self.given = advanced(self.given, records.last, records.news)
        self.kept_bytes += len(payload)
        for part in (self._kept, self._growing, self._unsent):
            if part is not None:
                part.append(records)

    def _resume(self, connection: ConnectionId, position: ChannelPosition) -> list[ChannelEffect]:
        if connection != self._connection:
            self.dropped["resume on an older connection"] += 1
            return []
        if self._is_ahead(position):
            # A newer incarnation of this unit has sent those; or they were in the log, and are not any more.
            raise missing_records(
                self._channel,
                f"its receiver has {_text(position)}, and the log of its sender ends with "
                f"{_text(self._logged)}",
            )
        # Nothing is forgotten here: the receiver has what is before, perhaps not in its log.
        lacking = [one for one in self._kept if is_after(one, position)]
        since = before(lacking[0], position) if lacking else self.given
        if since.record > position.record or since.news > position.news:
            self.dropped["resume before what is kept"] += 1
            return [RefuseResume(self._channel, connection, since)]
        self._unsent = deque(lacking)
        return self._send()

    def _acknowledged(self, position: ChannelPosition) -> None:
        if self._is_ahead(position):
            self.dropped["acknowledgement ahead of the log"] += 1
            return
        while self._kept and not is_after(self._kept[0], position):
            self.kept_bytes -= len(self._kept.popleft().payload)

    def _is_ahead(self, position: ChannelPosition) -> bool:
        return position.record > self._logged.record or position.news > self._logged.news

    def _send(self) -> list[ChannelEffect]:
        effects: list[ChannelEffect] = []
        if self._connection is None or self._unsent is None:
            return effects
        while self._unsent and not is_after(self._unsent[0], self._logged):
            effects.append(SendRecords(self._channel, self._connection, self._unsent.popleft()))
        return effects


class NumberedReceiver:
    """The receiving end of one channel, in one incarnation.

    Args:
        safe: How far the log has taken it.
        dropped: Counts stale and repeated input.
    """

    def __init__(
        self, channel: ChannelId, safe: ChannelPosition = START, dropped: Counter[str] | None = None
    ) -> None:
        self._channel = channel
        self.safe = safe
        self.taken = safe
        self.arrived = safe
        self._connection: ConnectionId | None = None
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    def handle(self, event: ReceiverEvent) -> list[ChannelEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            MissingRecordsError: The sender has forgotten what comes next; nothing has changed.
        """
        match event:
            case RecordsArrived():
                return self._arrived(event)
            case ChannelAccepted(_, connection):
                self._connection = connection
                return [
                    AskResume(self._channel, connection, self.arrived),
                    AcknowledgeInputs(self._channel, self.safe),
                ]
            case ResumeRefused(_, connection, position):
                return self._refused(connection, position)
            case _:
                assert_never(event)

    def check_taken(self, position: ChannelPosition) -> None:
        """Require that a group can have taken the channel up to `position`.

        Raises:
            ProtocolError: It can't.
        """
        low, high = self.taken, self.arrived
        if not (low.record <= position.record <= high.record and low.news <= position.news <= high.news):
            raise ProtocolError(
                f"{self._channel} is taken up to {_text(position)}, was taken up to {_text(low)}, and "
                f"arrived up to {_text(high)}"
            )

    def end_group(self, taken: ChannelPosition) -> None:
        """The group that ends has taken the channel up to `taken`, which `check_taken` has allowed."""
        self.taken = taken

    def logged(self) -> list[ChannelEffect]:
        """The group that has ended last is in the log: the sender may forget what it has taken."""
        self.safe = self.taken
        return [AcknowledgeInputs(self._channel, self.safe)]

    def _arrived(self, event: RecordsArrived) -> list[ChannelEffect]:
        first, last, news = event.first, event.last, event.news
        if is_gap(first, news, self.arrived):
            if event.connection == self._connection:
                raise self._missing(f"record {first} and news {news} came")
            self.dropped["records after a gap"] += 1
            return []
        now = advanced(self.arrived, last, news)
        if now == self.arrived:
            self.dropped["records that came before"] += 1
            return []
        skip = skipped(first, last, self.arrived)
        self.arrived = now
        return [DeliverRecords(self._channel, skip)]

    def _refused(self, connection: ConnectionId, position: ChannelPosition) -> list[ChannelEffect]:
        if connection != self._connection:
            self.dropped["refusal on an older connection"] += 1
            return []
        if position.record > self.arrived.record or position.news > self.arrived.news:
            raise self._missing(f"its sender keeps only what comes after {_text(position)}")
        # It has come on the connection before, and was acknowledged there, while this unit asked on this one.
        return [AskResume(self._channel, connection, self.arrived)]

    def _missing(self, found: str) -> MissingRecordsError:
        return missing_records(self._channel, f"it has arrived up to {_text(self.arrived)}, and {found}")


def missing_records(channel: ChannelId, found: str) -> MissingRecordsError:
    """Return the error of a channel whose two ends do not fit together."""
    sender, receiver = channel.source.index, channel.target.index
    return MissingRecordsError(
        f"{channel} lacks records: {found}. Either a newer process owns this worker's log, or the logs of "
        f"workers {sender} and {receiver} (units/{sender} and units/{receiver} in the checkpoint directory) "
        f"are not of one moment: entries were lost, or one was replaced by a backup. Restore both from a "
        f"backup of one moment",
        damaged=True,
    )


def _text(position: ChannelPosition) -> str:
    return f"record {position.record} and news {position.news}"
