"""The two ends of a channel between units: records have numbers, and a number names one content for ever.

The sender gives out the numbers 1, 2, 3, ... and keeps each record until the receiver acknowledges that it
is in the receiver's log. A record leaves when the sender's own log holds it. So nothing on a channel can be
late, repeated or from a zombie: the receiver drops numbers that it has, and those after a gap. A gap is
only possible on an older connection; the present one begins where the receiver asked.

There are two numbers at the receiver. *Taken* says where a connection goes on; an incarnation that fails
forgets it. *Safe* is in the log; only that lets the sender forget.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import takewhile
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.unit_log.effects import (
    AcknowledgeInputs,
    AskResume,
    ChannelEffect,
    DeliverRecords,
    SendRecords,
)
from crosscut.protocol.unit_log.entries import NumberedRecords, SentRecords
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    ConnectionId,
    InputsAcknowledged,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
)

SenderEvent = RecordsEmitted | ChannelConnected | ResumeAsked | InputsAcknowledged
ReceiverEvent = RecordsArrived | ChannelAccepted


class NumberedSender:
    """The sending end of one channel, in one incarnation.

    Args:
        given: The newest number that the log has.
        kept: Those of its records that are not known to be acknowledged.
        dropped: Counts stale and repeated input.
    """

    def __init__(
        self,
        channel: ChannelId,
        given: int = 0,
        kept: tuple[NumberedRecords, ...] = (),
        dropped: Counter[str] | None = None,
    ) -> None:
        self._channel = channel
        self.given = given
        self._ended = given
        """The newest number of an ended group."""
        self._logged = given
        self._kept = deque(kept)
        self.kept_bytes = sum(len(one.payload) for one in kept)
        self._connection: ConnectionId | None = None
        self._sent_up_to: int | None = None
        """On the present connection; None until the receiver has said where to go on."""
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    def handle(self, event: SenderEvent) -> list[ChannelEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            ProtocolError: The event is impossible; nothing has changed.
        """
        match event:
            case RecordsEmitted(_, count, payload):
                if count < 1:
                    raise ProtocolError(f"{count} records were sent on {self._channel}")
                self._kept.append(NumberedRecords(self.given + 1, self.given + count, payload))
                self.kept_bytes += len(payload)
                self.given += count
                return []
            case ChannelConnected(_, connection):
                self._connection, self._sent_up_to = connection, None
                return []
            case ResumeAsked(_, connection, number):
                return self._resume(connection, number)
            case InputsAcknowledged(_, number):
                self._acknowledged(number)
                return []
            case _:
                assert_never(event)

    def end_group(self) -> tuple[SentRecords, ...]:
        """Return what was sent since the last group ended."""
        sent = self._kept_after(self._ended)
        self._ended = self.given
        return tuple(SentRecords(self._channel, one) for one in sent)

    def logged(self, number: int) -> list[ChannelEffect]:
        """The records up to `number` are in the log: they may leave."""
        self._logged = max(self._logged, number)
        return self._send()

    def kept(self) -> tuple[SentRecords, ...]:
        """Return the records that were not acknowledged yet: part of a snapshot."""
        return tuple(SentRecords(self._channel, one) for one in self._kept)

    def _resume(self, connection: ConnectionId, number: int) -> list[ChannelEffect]:
        if connection != self._connection:
            self.dropped["resume on an older connection"] += 1
            return []
        if number > self._logged:
            # A newer incarnation of this unit has sent those: this one owns the log no more.
            self.dropped["resume ahead of the log"] += 1
            return []
        # Nothing is forgotten here: the receiver has these records, perhaps not in its log.
        self._sent_up_to = number
        return self._send()

    def _acknowledged(self, number: int) -> None:
        if number > self._logged:
            self.dropped["acknowledgement ahead of the log"] += 1
            return
        while self._kept and self._kept[0].last <= number:
            self.kept_bytes -= len(self._kept.popleft().payload)

    def _send(self) -> list[ChannelEffect]:
        if self._connection is None or self._sent_up_to is None:
            return []
        leaving = [one for one in self._kept_after(self._sent_up_to) if one.last <= self._logged]
        if leaving:
            self._sent_up_to = leaving[-1].last
        return [SendRecords(self._channel, self._connection, one) for one in leaving]

    def _kept_after(self, number: int) -> list[NumberedRecords]:
        """Return what is kept with numbers above `number`; a look at the newest records alone."""
        newest_first = takewhile(lambda one: one.last > number, reversed(self._kept))
        return [*newest_first][::-1]


class NumberedReceiver:
    """The receiving end of one channel, in one incarnation.

    Args:
        safe: The newest number that the log has.
        dropped: Counts stale and repeated input.
    """

    def __init__(self, channel: ChannelId, safe: int = 0, dropped: Counter[str] | None = None) -> None:
        self._channel = channel
        self.safe = safe
        self.taken = safe
        self._ended = safe
        """The newest number of an ended group."""
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    def handle(self, event: ReceiverEvent) -> list[ChannelEffect]:
        """Take one event and return the effects to perform, in order."""
        match event:
            case RecordsArrived(_, first, last):
                return self._arrived(first, last)
            case ChannelAccepted(_, connection):
                return [
                    AskResume(self._channel, connection, self.taken),
                    AcknowledgeInputs(self._channel, self.safe),
                ]
            case _:
                assert_never(event)

    def end_group(self) -> int | None:
        """Return the newest number that the group has taken; None: it has taken none."""
        if self.taken == self._ended:
            return None
        self._ended = self.taken
        return self.taken

    def logged(self, number: int) -> list[ChannelEffect]:
        """The records up to `number` are in the log: their sender may forget them."""
        self.safe = max(self.safe, number)
        return [AcknowledgeInputs(self._channel, self.safe)]

    def _arrived(self, first: int, last: int) -> list[ChannelEffect]:
        if first > self.taken + 1:
            self.dropped["records after a gap"] += 1
            return []
        if last <= self.taken:
            self.dropped["records that came before"] += 1
            return []
        skipped = self.taken + 1 - first
        self.taken = last
        return [DeliverRecords(self._channel, skipped)]
