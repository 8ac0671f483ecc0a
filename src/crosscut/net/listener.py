"""A listening socket, and the fate of connections that have not proven the secret yet."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from crosscut.wire.unauthenticated_peers import Lobby, Reason, Refusals

ACCEPT_MAX = 16
"""Connections that are taken in one turn of the event loop: in between, the others go on."""
QUEUE_MAX = 512
"""Connections that wait in the kernel until they are taken."""
CLOSED_BY_PEER = "closed by the peer"
LISTENER_CLOSED = "the listener is closed"

_REASONS = {Reason.CROWDED.value: Reason.CROWDED, Reason.LATE.value: Reason.LATE, CLOSED_BY_PEER: Reason.LEFT}
_LOG = logging.getLogger(__name__)


class UnauthenticatedPeer(Protocol):
    """One end of a connection whose peer has not proven the secret."""

    def __hash__(self) -> int: ...

    def close(self, reason: str) -> None:
        """Close without waiting for the peer."""


class Listener:
    """A listening socket on one named address, port chosen by the system (rule S4).

    Args:
        name: Whose it is, for people.
        draw: Decides which peer has to go when there are too many unauthenticated ones; see
            `crosscut.wire.unauthenticated_peers.Lobby`.
    """

    def __init__(self, name: str, draw: Callable[[int], int] = secrets.randbelow) -> None:
        self._server: asyncio.Server | None = None
        self._lobby = Lobby[UnauthenticatedPeer](draw)
        self._refusals = Refusals(name)
        self._is_closed = False

    async def listen(self, host: str, accept: Callable[[], asyncio.Protocol]) -> int:
        """Listen on `host`; return the port.

        Raises:
            OSError: The address is not one of this machine.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(accept, host, 0, backlog=ACCEPT_MAX)
        _lengthen_queue(self._server)
        port: int = self._server.sockets[0].getsockname()[1]
        if self._is_closed:
            # Meanwhile.
            self._server.close()
        return port

    def close(self) -> None:
        """Accept nothing more, and close all connections that have not proven the secret."""
        if self._server is not None:
            self._server.close()
        self._is_closed = True
        for one in self._lobby.peers():
            one.close(LISTENER_CLOSED)

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many unauthenticated peers were refused, by reason."""
        return self._refusals.counts

    def came(self, unauthenticated_peer: UnauthenticatedPeer, address: str) -> None:
        """Note a peer that has not proven the secret; close one of them if there are too many."""
        _close_crowded(self._lobby.enter(unauthenticated_peer, address))
        if self._is_closed:
            # The event loop had taken it before.
            unauthenticated_peer.close(LISTENER_CLOSED)

    def greeted(self, unauthenticated_peer: UnauthenticatedPeer) -> None:
        """Note that one of them has said a hello that fits."""
        _close_crowded(self._lobby.greeted(unauthenticated_peer))

    def left(self, unauthenticated_peer: UnauthenticatedPeer) -> None:
        """Forget a peer that has proven the secret or is gone."""
        self._lobby.leave(unauthenticated_peer)

    def refused(self, why: str, address: str) -> None:
        """Note that a connection from `address` has ended without a proof."""
        if why == LISTENER_CLOSED:
            return
        reason = _REASONS.get(why, Reason.UNPROVEN)
        line = self._refusals.note(reason, address, asyncio.get_running_loop().time())
        if line is not None:
            _LOG.warning(line)


def _lengthen_queue(server: asyncio.Server) -> None:
    """Let more connections wait in the kernel than are taken in one turn: asyncio has one number for both."""
    for one in server.sockets:
        # A socket of a virtual world has no number.
        if (number := getattr(one, "fileno", None)) is not None:
            with socket.socket(fileno=os.dup(number())) as listening:
                listening.listen(QUEUE_MAX)


def _close_crowded(unauthenticated_peer: UnauthenticatedPeer | None) -> None:
    if unauthenticated_peer is not None:
        unauthenticated_peer.close(Reason.CROWDED.value)
