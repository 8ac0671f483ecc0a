"""Channels between workers: one TCP connection each, with credit.

A sender may have so many bytes under way that the receiver has not processed; the receiver gives
credit back as it does. So memory is bounded at both ends, a blocked channel stops its sender without
stopping the socket, and a barrier, which needs no credit, always gets through: what it has to overtake
waits in user space, at one end or the other (docs/decisions, credit).
"""

from __future__ import annotations

from typing import Protocol, assert_never

from crosscut.batch import Batch
from crosscut.errors import WireError
from crosscut.ids import ChannelId, Epoch
from crosscut.net.connections import AcceptingSide, ConnectingSide, Credentials
from crosscut.net.listener import Listener
from crosscut.task.flow_control import Credit
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.wire.frames import (
    CREDIT_LIMITS,
    DATA_LIMITS,
    Frame,
    FrameDecoder,
    FrameType,
    decode_barrier,
    decode_credit,
    encode_barrier,
    encode_credit,
)
from crosscut.wire.handshake import Proven, Role, Verdict, channel_detail


class ChannelHost(Protocol):
    """What owns the channels of one worker."""

    def channel_proven(self, proven: Proven, end: IncomingChannel) -> Verdict | None:
        """Somebody genuine wants to be an input channel; None: the verdict comes later."""

    def channel_opened(self, channel: ChannelId) -> None:
        """A channel is ready for records."""

    def channel_received(self, channel: ChannelId, item: Item, size_bytes: int) -> None:
        """An item has arrived."""

    def channel_unclogged(self, channel: ChannelId) -> None:
        """An output channel that was full takes more again."""

    def channel_lost(self, channel: ChannelId, reason: str) -> None:
        """A channel is over, though nobody here closed it."""


class OutgoingChannel(ConnectingSide):
    """The sending end."""

    def __init__(
        self, host: ChannelHost, channel: ChannelId, epoch: Epoch, credentials: Credentials, bytes_max: int
    ) -> None:
        decoder = FrameDecoder(CREDIT_LIMITS, sequenced=True)
        super().__init__(credentials, Role.CHANNEL, epoch, channel_detail(channel), decoder)
        self.channel = channel
        self._host: ChannelHost | None = host
        self._credit = Credit(channel, bytes_max)

    @property
    def is_full(self) -> bool:
        """Whether records have to wait. Barriers need not: they are few, and the protocol's."""
        return self._credit.is_used_up

    def send_item(self, item: Item) -> None:
        """Send a batch, a barrier, or the end of input.

        Raises:
            WireError: A record can't be sent; the message names it.
        """
        match item:
            case Batch():
                payload = encode_batch(item)
                self._credit.take(len(payload))
                self.send(FrameType.BATCH, payload, sequenced=True)
            case Barrier(checkpoint_id):
                self.send(FrameType.BARRIER, encode_barrier(checkpoint_id), sequenced=True)
            case EndOfInput():
                self.send(FrameType.END_OF_INPUT, sequenced=True)
            case _:
                assert_never(item)

    def opened(self) -> None:
        if self._host is not None:
            self._host.channel_opened(self.channel)

    def received(self, frame: Frame) -> None:
        if self._credit.give_back(decode_credit(frame.payload)) and self._host is not None:
            self._host.channel_unclogged(self.channel)

    def lost(self, reason: str) -> None:
        if self._host is not None:
            self._host.channel_lost(self.channel, reason)

    def abandon(self) -> None:
        """The epoch is over: close, and report nothing any more."""
        self._host = None
        self.close("the epoch is over")


class IncomingChannel(AcceptingSide):
    """The receiving end; which channel it is, the handshake says."""

    def __init__(self, host: ChannelHost, listener: Listener, credentials: Credentials) -> None:
        decoder = FrameDecoder(DATA_LIMITS, sequenced=True)
        super().__init__(listener, credentials, Role.CHANNEL, decoder)
        self._host: ChannelHost | None = host
        self._channel: ChannelId | None = None

    def decide(self, proven: Proven) -> Verdict | None:
        return self._host.channel_proven(proven, self) if self._host else Verdict.STALE_EPOCH

    def assign(self, host: ChannelHost, channel: ChannelId) -> None:
        """Say which channel this is; to be called before the verdict ACCEPTED."""
        self._host = host
        self._channel = channel

    def give_credit(self, size_bytes: int) -> None:
        """Tell the sender that so much has been processed."""
        self.send(FrameType.CREDIT, encode_credit(size_bytes), sequenced=True)

    def opened(self) -> None:
        if self._host is not None and self._channel is not None:
            self._host.channel_opened(self._channel)

    def received(self, frame: Frame) -> None:
        if self._host is None or self._channel is None:
            return
        match frame.kind:
            case FrameType.BATCH:
                item: Item = decode_batch(frame.payload)
            case FrameType.BARRIER:
                item = Barrier(decode_barrier(frame.payload))
            case FrameType.END_OF_INPUT:
                item = EndOfInput()
            case _:
                raise WireError(f"channel {self._channel}: unexpected {frame.kind.name}")
        self._host.channel_received(self._channel, item, len(frame.payload))

    def lost(self, reason: str) -> None:
        if self._host is not None and self._channel is not None:
            self._host.channel_lost(self._channel, reason)

    def abandon(self) -> None:
        """The epoch is over: close, and report nothing any more."""
        self._host = None
        self.close("the epoch is over")
