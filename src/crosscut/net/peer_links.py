"""The connection between two workers, which carries all their channels, both ways.

Frames name their channel. Credit is per channel and the receiver always reads, so a slow channel holds up
nothing but itself. Frames that the connection does not take at once wait in send queues, and go in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from crosscut.foundation.ids import ChannelId, Epoch, WorkerIndex
from crosscut.net.channels import IncomingChannel, OutgoingChannel, SendFrame
from crosscut.net.connections import AcceptingSide, ConnectingSide, Connection, Credentials
from crosscut.net.keepalive import bound_unsent
from crosscut.net.listener import Listener
from crosscut.net.numbered_channels import NumberedChannelHost, NumberedIncoming, NumberedOutgoing
from crosscut.protocol.unit_log.events import ConnectionId
from crosscut.task.flow_control import Credit
from crosscut.task.items import Item
from crosscut.wire.frames import PEER_LIMITS, PIECE_BYTES_MAX, Frame, FrameDecoder, FrameType, Payload
from crosscut.wire.handshake import Proven, Role, Verdict, channels_detail
from crosscut.wire.send_queues import SendQueues


class PeerLinkOwner(Protocol):
    """The owner of one worker's connections."""

    def peer_link_proven(self, proven: Proven, end: AcceptingPeerLink) -> Verdict | None:
        """Somebody genuine has connected; None: the verdict comes later."""

    def peer_link_opened(self, end: PeerLink) -> None:
        """Its channels are ready for records."""

    def peer_link_lost(self, end: PeerLink, reason: str) -> None:
        """A connection is over without being closed here; it may never have been open."""


class ChannelHost(Protocol):
    """The receiver of a worker's channels."""

    def channel_received(self, channel: ChannelId, item: Item, size_bytes: int) -> None:
        """An item has arrived."""

    def channel_credited(self, channel: ChannelId, credit: Credit) -> None:
        """The receiver of an output channel gives credit back.

        Raises:
            WireError: It is more than is under way.
        """


ChannelEnd = OutgoingChannel | IncomingChannel | NumberedOutgoing | NumberedIncoming


class PeerLink(Connection):
    """Either end: the channels, their send queues, and the numbers of their frames.

    Attributes:
        peer: The worker at the other end, once that is known.
        outgoing: The channels that lead there.
        incoming: Those that come from there.
        numbered_outgoing, numbered_incoming: The same if records have numbers; then the others are empty.
        is_over: The epoch is, or the connection: nothing that it says counts any more.
    """

    _host: PeerLinkOwner
    peer: WorkerIndex | None = None
    outgoing: dict[ChannelId, OutgoingChannel]
    incoming: dict[ChannelId, IncomingChannel]
    numbered_outgoing: dict[ChannelId, NumberedOutgoing]
    numbered_incoming: dict[ChannelId, NumberedIncoming]
    is_over = False
    _is_clogged = False
    _send_queues: SendQueues
    _channels: Sequence[ChannelEnd] = ()

    def carry(
        self,
        own: WorkerIndex,
        peer: WorkerIndex,
        channels: Sequence[ChannelId],
        host: ChannelHost,
        piece_bytes: int = PIECE_BYTES_MAX,
        numbered: tuple[ConnectionId, NumberedChannelHost] | None = None,
    ) -> None:
        """Say who is at both ends and which channels there are between them; before the connection opens.

        Args:
            channels: In the order that both ends number them by.
            numbered: The records of all channels have numbers: what this connection is called, and who hears
                of them instead of `host`.
        """
        self.peer = peer
        self.outgoing, self.incoming = {}, {}
        self.numbered_outgoing, self.numbered_incoming = {}, {}
        self._send_queues = SendQueues(piece_bytes)
        self._sequences = [0] * len(channels)
        ends: list[ChannelEnd] = []
        for number, channel in enumerate(channels):
            send = partial(self._send_later, number)
            if numbered is not None:
                ends.append(self._numbered_end(own, channel, send, *numbered))
            elif channel.source.index == own:
                leaving = OutgoingChannel(channel, send, host.channel_credited)
                self.outgoing[channel] = leaving
                ends.append(leaving)
            else:
                coming = IncomingChannel(channel, send, host.channel_received)
                self.incoming[channel] = coming
                ends.append(coming)
        self._channels = ends
        self._decoder.expect_channels(len(ends))

    def _numbered_end(
        self,
        own: WorkerIndex,
        channel: ChannelId,
        send: SendFrame,
        connection: ConnectionId,
        host: NumberedChannelHost,
    ) -> NumberedOutgoing | NumberedIncoming:
        if channel.source.index == own:
            leaving = NumberedOutgoing(channel, connection, send, host)
            self.numbered_outgoing[channel] = leaving
            return leaving
        coming = NumberedIncoming(channel, connection, send, host)
        self.numbered_incoming[channel] = coming
        return coming

    @property
    def channels(self) -> Sequence[ChannelEnd]:
        """Those of this connection, by number; none before it is known who is at the other end."""
        return self._channels

    def waiting(self, number: int) -> tuple[tuple[FrameType, Payload], ...]:
        """Return what a channel has to send and the transport has not got yet, in order."""
        return self._send_queues.waiting(number)

    def opened(self) -> None:
        if self._transport is not None:
            bound_unsent(self._transport)
        self._host.peer_link_opened(self)

    def received(self, frame: Frame) -> None:
        if not self.is_over:
            self._channels[frame.channel].received(frame)

    def lost(self, reason: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._host.peer_link_lost(self, reason)

    def pause_writing(self) -> None:
        """Keep frames in send queues: the transport would send them in the order it got them."""
        self._is_clogged = True

    def resume_writing(self) -> None:
        """Let it go, in turns."""
        self._is_clogged = False
        self._send_on()

    def abandon(self) -> None:
        """The epoch is over: close, and report nothing any more."""
        self.is_over = True
        self.close("the epoch is over")

    def _send_later(self, number: int, kind: FrameType, payload: Payload) -> None:
        send_queues = self._send_queues
        if not self._is_clogged and send_queues.is_empty and len(payload) <= send_queues.piece_bytes:
            # Nothing to take turns with, as nearly always.
            self._send_now(number, kind, payload)
            return
        send_queues.put(number, kind, payload)
        if not self._is_clogged:
            self._send_on()

    def _send_on(self) -> None:
        send_queues = self._send_queues
        while not (self._is_clogged or send_queues.is_empty):
            piece = send_queues.take()
            self._send_now(piece.channel, piece.kind, piece.payload)

    def _send_now(self, number: int, kind: FrameType, payload: Payload) -> None:
        self._sequences[number] += 1
        self.send(kind, payload, channel=number, sequence=self._sequences[number])


class ConnectingPeerLink(PeerLink, ConnectingSide):
    """The end of the worker that connects."""

    def __init__(
        self, host: PeerLinkOwner, credentials: Credentials, epoch: Epoch, channels: Sequence[ChannelId]
    ) -> None:
        decoder = FrameDecoder(PEER_LIMITS, sequenced=True)
        super().__init__(credentials, Role.WORKER_TO_WORKER, epoch, channels_detail(channels), decoder)
        self._host = host
        self._send_queues = SendQueues()


class AcceptingPeerLink(PeerLink, AcceptingSide):
    """The end of the worker that is connected to; which channels it carries, the handshake says."""

    def __init__(self, host: PeerLinkOwner, listener: Listener, credentials: Credentials) -> None:
        decoder = FrameDecoder(PEER_LIMITS, sequenced=True)
        super().__init__(listener, credentials, Role.WORKER_TO_WORKER, decoder)
        self._host = host
        # The handshake may clog a transport, too.
        self._send_queues = SendQueues()

    def decide(self, proven: Proven) -> Verdict | None:
        return self._host.peer_link_proven(proven, self)
