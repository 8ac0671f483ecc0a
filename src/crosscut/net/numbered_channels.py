"""Channels between units: records have numbers, and a connection goes on where its receiver says.

Who may say what on one connection, and when:

    frame           from      when
    RESUME          receiver  first, and again after each RESUME_REFUSED
    RESUME_REFUSED  sender    as the answer to a RESUME, before anything else
    BATCH           sender    after a RESUME that it has not refused; with numbers
    END_OF_INPUT    sender    as a batch, once; with its number
    BARRIER         sender    as a batch
    ACKNOWLEDGED    receiver  after its first RESUME; never less than before
    CREDIT          not sent  an acknowledgement is the credit

All else is a WireError, which ends the connection. Nothing is decided here that outlives it. The machines of
`crosscut.protocol.unit_log.numbers` judge which numbers are new, and what a sender may forget. They get all
of this as events, with the connection that it came on.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from crosscut.errors import ProtocolError, WireError
from crosscut.foundation.batch import NumberedBatch
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.net.channels import Pieces, SendFrame
from crosscut.protocol.unit_log.entries import START, ChannelPosition, NumberedRecords
from crosscut.protocol.unit_log.events import (
    ConnectionId,
    InputsAcknowledged,
    RecordsArrived,
    ResumeAsked,
    ResumeRefused,
)
from crosscut.task.items import Barrier, EndOfInput
from crosscut.wire.batches import decode_batch, decode_numbers, with_numbers
from crosscut.wire.frames import (
    NUMBERS,
    Frame,
    FrameType,
    Payload,
    decode_barrier,
    decode_position,
    encode_barrier,
    encode_position,
)


class NumberedChannelHost(Protocol):
    """The owner of a unit."""

    def records_arrived(
        self, event: RecordsArrived, item: NumberedBatch | EndOfInput, size_bytes: int
    ) -> None:
        """Records, or news, have come: perhaps again. The machine of the unit says what of them is new."""

    def barrier_arrived(self, channel: ChannelId, barrier: Barrier) -> None:
        """A barrier has come, after what came before it on this connection."""

    def handle_peer_event(self, event: ResumeAsked | ResumeRefused | InputsAcknowledged) -> None:
        """The other end of a channel has said something."""


class Phase(Enum):
    """How far the two ends of a channel have come on one connection."""

    CONNECTED = auto()
    """The receiver has not said anything."""

    RESUMED = auto()
    """The receiver has said where to go on: what comes next comes after that."""

    REFUSED = auto()
    """The sender has refused that: the receiver has to ask again, or ends."""


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.CONNECTED: frozenset({Phase.RESUMED}),
    Phase.RESUMED: frozenset({Phase.REFUSED}),
    Phase.REFUSED: frozenset({Phase.RESUMED}),
}


class NumberedOutgoing:
    """The sending end of a channel, on one connection."""

    def __init__(
        self, channel: ChannelId, connection: ConnectionId, send: SendFrame, host: NumberedChannelHost
    ) -> None:
        self.channel = channel
        self.connection = connection
        self.phase = Phase.CONNECTED
        self._send = send
        self._host = host
        self._has_sent = False
        self._acknowledged = START

    def send_records(self, records: NumberedRecords) -> None:
        """Send what the log holds.

        Raises:
            ProtocolError: The receiver has not said where to go on; nothing was sent.
        """
        kind = FrameType.BATCH if records.payload else FrameType.END_OF_INPUT
        self._send_next(kind, with_numbers(records.payload, records.first, records.news))

    def send_barrier(self, checkpoint_id: CheckpointId) -> None:
        """Send a barrier, after what was sent before.

        Raises:
            ProtocolError: The receiver has not said where to go on; nothing was sent.
        """
        self._send_next(FrameType.BARRIER, encode_barrier(checkpoint_id))

    def refuse(self, position: ChannelPosition) -> None:
        """Say that only what comes after `position` is kept.

        Raises:
            ProtocolError: The receiver does not wait for an answer; nothing was sent.
        """
        if self.phase is not Phase.RESUMED or self._has_sent:
            raise ProtocolError(f"channel {self.channel}: a resume is refused that was not asked for")
        self.phase = Phase.REFUSED
        self._send(FrameType.RESUME_REFUSED, encode_position(position.record, position.news))

    def received(self, frame: Frame) -> None:
        """Take what the receiver says.

        Raises:
            WireError: It may not say that, or not now.
        """
        match frame.kind:
            case FrameType.RESUME if self.phase is not Phase.RESUMED:
                position = ChannelPosition(*decode_position(frame.payload))
                self.phase, self._has_sent = Phase.RESUMED, False
                self._host.handle_peer_event(ResumeAsked(self.channel, self.connection, position))
            case FrameType.ACKNOWLEDGED if self.phase is not Phase.CONNECTED:
                self._take_acknowledgement(ChannelPosition(*decode_position(frame.payload)))
            case kind:
                raise WireError(
                    f"channel {self.channel}: unexpected {kind.name} frame from its receiving end, which is "
                    f"{self.phase.name.lower()}"
                )

    def _take_acknowledgement(self, position: ChannelPosition) -> None:
        before = self._acknowledged
        if position.record < before.record or position.news < before.news:
            raise WireError(
                f"channel {self.channel}: {position} is acknowledged after {before}, and an acknowledgement "
                f"never goes back"
            )
        self._acknowledged = position
        self._host.handle_peer_event(InputsAcknowledged(self.channel, position))

    def _send_next(self, kind: FrameType, payload: Payload) -> None:
        if self.phase is not Phase.RESUMED:
            raise ProtocolError(
                f"channel {self.channel}: {kind.name} to a receiver that is {self.phase.name.lower()}"
            )
        self._has_sent = True
        self._send(kind, payload)


class NumberedIncoming(Pieces):
    """The receiving end of a channel, on one connection."""

    def __init__(
        self, channel: ChannelId, connection: ConnectionId, send: SendFrame, host: NumberedChannelHost
    ) -> None:
        super().__init__()
        self.channel = channel
        self.connection = connection
        self.phase = Phase.CONNECTED
        self._send = send
        self._host = host
        self._has_received = False
        self._has_ended = False

    def resume(self, position: ChannelPosition) -> None:
        """Tell the sender to go on after `position`.

        Raises:
            ProtocolError: It was told already, and has not refused; nothing was sent.
        """
        if self.phase is Phase.RESUMED:
            raise ProtocolError(f"channel {self.channel}: resumed twice on one connection")
        self.phase, self._has_received = Phase.RESUMED, False
        self._send(FrameType.RESUME, encode_position(position.record, position.news))

    def acknowledge(self, position: ChannelPosition) -> None:
        """Tell the sender that all up to `position` is in the log.

        Raises:
            ProtocolError: It was not told where to go on; nothing was sent.
        """
        if self.phase is Phase.CONNECTED:
            raise ProtocolError(f"channel {self.channel}: acknowledged before it is resumed")
        self._send(FrameType.ACKNOWLEDGED, encode_position(position.record, position.news))

    def received(self, frame: Frame) -> None:
        """Take a frame from the sender.

        Raises:
            WireError: It may not come on a channel, or not now, or has no numbers.
        """
        kind, payload = frame.kind, frame.payload
        if self.phase is not Phase.RESUMED:
            raise WireError(
                f"channel {self.channel}: {kind.name} frame to a receiver that is {self.phase.name.lower()}"
            )
        if kind is FrameType.PIECE:
            self._check_open(kind)
            self._keep(payload)
            return
        if self._pieces:
            payload = self._joined(kind, payload)
        match kind:
            case FrameType.BATCH:
                self._check_open(kind)
                self._take_batch(payload)
            case FrameType.BARRIER:
                self._host.barrier_arrived(self.channel, Barrier(decode_barrier(payload)))
            case FrameType.END_OF_INPUT:
                self._check_open(kind)
                self._take_end(payload)
            case FrameType.RESUME_REFUSED if not self._has_received:
                position = ChannelPosition(*decode_position(payload))
                self.phase = Phase.REFUSED
                self._host.handle_peer_event(ResumeRefused(self.channel, self.connection, position))
                return
            case _:
                raise WireError(f"channel {self.channel}: unexpected {kind.name} frame")
        self._has_received = True

    def _check_open(self, kind: FrameType) -> None:
        if self._has_ended:
            raise WireError(f"channel {self.channel}: {kind.name} frame after its end of input")

    def _take_batch(self, payload: Payload) -> None:
        batch = decode_batch(payload)
        if not isinstance(batch, NumberedBatch):
            raise WireError(f"channel {self.channel}: a batch without numbers")
        if not batch.records and not batch.news_number:
            raise WireError(f"channel {self.channel}: a batch with neither records nor news")
        event = RecordsArrived(self.channel, self.connection, batch.first, batch.last, batch.news_number)
        self._host.records_arrived(event, batch, len(payload))

    def _take_end(self, payload: Payload) -> None:
        first, news_number = decode_numbers(payload)
        if len(payload) != NUMBERS.size or not news_number:
            raise WireError(f"channel {self.channel}: END_OF_INPUT frame without a number of its own")
        self._has_ended = True
        event = RecordsArrived(self.channel, self.connection, first, first - 1, news_number)
        self._host.records_arrived(event, EndOfInput(news_number), 0)
