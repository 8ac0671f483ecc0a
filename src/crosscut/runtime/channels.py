"""Channels between workers: one TCP connection each. To block a channel is not to read it."""

from __future__ import annotations

from typing import Protocol, assert_never

from crosscut.batch import Batch
from crosscut.errors import WireError
from crosscut.ids import ChannelId, Epoch
from crosscut.runtime.connections import AcceptingSide, ConnectingSide, Credentials, Listener
from crosscut.runtime.task import Barrier, EndOfInput, Item
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.wire.frames import (
    DATA_LIMITS,
    Frame,
    FrameDecoder,
    FrameType,
    decode_barrier,
    encode_barrier,
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

    def channel_clogged(self, channel: ChannelId, is_clogged: bool) -> None:
        """An output channel takes no more for now, or takes more again."""

    def channel_lost(self, channel: ChannelId, reason: str) -> None:
        """A channel is over, though nobody here closed it."""


class OutgoingChannel(ConnectingSide):
    """The sending end."""

    def __init__(
        self, host: ChannelHost, channel: ChannelId, epoch: Epoch, credentials: Credentials, bytes_max: int
    ) -> None:
        decoder = FrameDecoder({}, sequenced=True)  # Nothing ever comes back.
        super().__init__(credentials, Role.CHANNEL, epoch, channel_detail(channel), decoder)
        self.channel = channel
        self._host: ChannelHost | None = host
        self._bytes_max = bytes_max

    def send_item(self, item: Item) -> None:
        """Send a batch, a barrier, or the end of input.

        Raises:
            WireError: A record can't be sent; the message names it.
        """
        match item:
            case Batch():
                self.send(FrameType.BATCH, encode_batch(item), sequenced=True)
            case Barrier(checkpoint_id):
                self.send(FrameType.BARRIER, encode_barrier(checkpoint_id), sequenced=True)
            case EndOfInput():
                self.send(FrameType.END_OF_INPUT, sequenced=True)
            case _:
                assert_never(item)

    def opened(self) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=self._bytes_max)
        if self._host is not None:
            self._host.channel_opened(self.channel)

    def received(self, frame: Frame) -> None:
        raise WireError(f"channel {self.channel}: {frame.kind.name} from the receiving end")

    def clogged(self, is_clogged: bool) -> None:
        if self._host is not None:
            self._host.channel_clogged(self.channel, is_clogged)

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
