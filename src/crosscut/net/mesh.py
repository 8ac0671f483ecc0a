"""The connections of one worker to the others: one to each that it shares channels with, for one epoch.

A connection is of one epoch, as the handshake proves: the next one makes new ones, so nothing that is on its
way in an old one can be taken for something new. Of two workers the one with the lower index connects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from crosscut.foundation.ids import ChannelId, Epoch, TaskId, WorkerIndex
from crosscut.net.channels import IncomingChannel, OutgoingChannel
from crosscut.net.connections import Credentials, connect
from crosscut.net.listener import Listener
from crosscut.net.numbered_channels import NumberedChannelHost, NumberedIncoming, NumberedOutgoing
from crosscut.net.peer_links import AcceptingPeerLink, ChannelHost, ConnectingPeerLink, PeerLink
from crosscut.protocol.messages import FailureCause, Peer
from crosscut.protocol.unit_log.events import ChannelAccepted, ChannelConnected, ConnectionId
from crosscut.task.flow_control import Credit
from crosscut.wire.frames import PIECE_BYTES_MAX
from crosscut.wire.handshake import Proven, Verdict, channels_detail, verdict_on


class MeshHost(ChannelHost, Protocol):
    """The worker."""

    def connection_lost(self, task: TaskId, cause: FailureCause) -> None:
        """A connection of this epoch is over; `task` is one of those that it leaves without a channel."""


class UnitMeshHost(NumberedChannelHost, Protocol):
    """The owner of a unit."""

    def channel_opened(self, event: ChannelConnected | ChannelAccepted) -> None:
        """A channel has a connection, which replaces the one before."""


class Mesh:
    """The connections of worker `own` to its peers.

    Args:
        piece_bytes: Longest payload of one frame.
        unit_host: Hears of records if they have numbers; None: they have none.

    Attributes:
        outgoing: The channels that leave this worker.
        incoming: Those that come from other workers.
        numbered_outgoing, numbered_incoming: The same if records have numbers; then the others are empty.
        all_open: Is set once every connection of this epoch is open.
    """

    def __init__(
        self,
        own: WorkerIndex,
        host: MeshHost,
        listener: Listener,
        credentials: Credentials,
        piece_bytes: int = PIECE_BYTES_MAX,
        unit_host: UnitMeshHost | None = None,
    ) -> None:
        self.outgoing: dict[ChannelId, OutgoingChannel] = {}
        self.incoming: dict[ChannelId, IncomingChannel] = {}
        self.numbered_outgoing: dict[ChannelId, NumberedOutgoing] = {}
        self.numbered_incoming: dict[ChannelId, NumberedIncoming] = {}
        self._unit_host = unit_host
        self._connection_count = 0
        self.all_open = asyncio.Event()
        self._own = own
        self._host = host
        self._listener = listener
        self._credentials = credentials
        self._piece_bytes = piece_bytes
        self._epoch = Epoch(0)
        self._is_expecting = False
        self._shared: dict[WorkerIndex, tuple[ChannelId, ...]] = {}
        # The peers that will connect, by the detail they must prove.
        self._expected: dict[bytes, WorkerIndex] = {}
        self._peer_links: dict[WorkerIndex, PeerLink] = {}
        self._missing: set[WorkerIndex] = set()
        self._early: dict[AcceptingPeerLink, Proven] = {}

    @property
    def epoch(self) -> Epoch:
        """That connections are made for, or were made for last."""
        return self._epoch

    def accept(self) -> AcceptingPeerLink:
        """Return the end for somebody who has connected."""
        return AcceptingPeerLink(self, self._listener, self._credentials)

    def expect(self, epoch: Epoch, channels: Iterable[ChannelId]) -> None:
        """Begin `epoch`, with these channels between this worker and others; admit peers that came early."""
        shared: dict[WorkerIndex, list[ChannelId]] = {}
        # Both ends number them in this order.
        for channel in sorted(channels):
            index = channel.target.index if channel.source.index == self._own else channel.source.index
            shared.setdefault(WorkerIndex(index), []).append(channel)
        self._epoch = epoch
        self._shared = {peer: tuple(those) for peer, those in shared.items()}
        self._expected = {
            channels_detail(those): peer for peer, those in self._shared.items() if peer < self._own
        }
        self._missing = set(shared)
        self.all_open = asyncio.Event()
        if not shared:
            self.all_open.set()
        self._is_expecting = True
        early, self._early = self._early, {}
        for end, proven in early.items():
            verdict = self.peer_link_proven(proven, end)
            if verdict is not None:
                end.give_verdict(verdict)

    async def connect(self, peers: Mapping[WorkerIndex, Peer]) -> None:
        """Connect to those that this worker has to connect to.

        Raises:
            OSError: One of them can't be reached.
        """
        for peer, channels in sorted(self._shared.items()):
            if peer > self._own:
                end = ConnectingPeerLink(self, self._credentials, self._epoch, channels)
                self._add(peer, end)
                await connect(end, peers[peer].host, peers[peer].data_port)

    def close(self) -> None:
        """The epoch is over: nothing of it is heard any more."""
        self._is_expecting = False
        peer_links, self._peer_links = self._peer_links, {}
        self.outgoing, self.incoming = {}, {}
        self.numbered_outgoing, self.numbered_incoming = {}, {}
        for end in peer_links.values():
            end.abandon()

    def give_credit(self, channel: ChannelId, credit: Credit) -> None:
        """Let the sender of `channel` send so much more."""
        if channel in self.incoming:
            self.incoming[channel].give_credit(credit)

    # News from the connections.

    def peer_link_proven(self, proven: Proven, end: AcceptingPeerLink) -> Verdict | None:
        """Decide about a genuine peer."""
        peer = self._expected.get(proven.detail)
        verdict = verdict_on(
            proven.epoch,
            self._epoch,
            is_expecting=self._is_expecting,
            is_wanted=peer is not None and peer not in self._peer_links,
        )
        if verdict is None:
            self._early[end] = proven
        elif verdict is Verdict.ACCEPTED and peer is not None:
            self._add(peer, end)
        return verdict

    def peer_link_opened(self, end: PeerLink) -> None:
        """Note that its channels are ready."""
        if end.peer is not None and self._peer_links.get(end.peer) is end:
            self._missing.discard(end.peer)
            if not self._missing:
                self.all_open.set()
            if self._unit_host is not None:
                for leaving in end.numbered_outgoing.values():
                    self._unit_host.channel_opened(ChannelConnected(leaving.channel, leaving.connection))
                for coming in end.numbered_incoming.values():
                    self._unit_host.channel_opened(ChannelAccepted(coming.channel, coming.connection))

    def peer_link_lost(self, end: PeerLink, reason: str) -> None:
        """A connection of this epoch broke, or one that waited for its verdict."""
        if isinstance(end, AcceptingPeerLink):
            self._early.pop(end, None)
        if end.peer is not None and self._peer_links.get(end.peer) is end:
            coming, leaving = (*end.incoming, *end.numbered_incoming), (*end.outgoing, *end.numbered_outgoing)
            task = coming[0].target if coming else leaving[0].source
            # A peer of this job that breaks the protocol is a bug, and not a loss.
            kind = "WireError" if end.has_offended else "ConnectionLost"
            reason = f"the connection to worker {end.peer} is lost: {reason}"
            self._host.connection_lost(task, FailureCause(kind, reason, is_transient=True))

    def _add(self, peer: WorkerIndex, end: PeerLink) -> None:
        channels = self._shared[peer]
        numbered = None
        if self._unit_host is not None:
            self._connection_count += 1
            numbered = ConnectionId(self._connection_count), self._unit_host
        end.carry(self._own, peer, channels, self._host, self._piece_bytes, numbered)
        self._peer_links[peer] = end
        self.outgoing |= end.outgoing
        self.incoming |= end.incoming
        self.numbered_outgoing |= end.numbered_outgoing
        self.numbered_incoming |= end.numbered_incoming
