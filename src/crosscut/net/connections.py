"""Authenticated connections: the handshake of `crosscut.wire.handshake` over asyncio, then frames.

No byte of a peer reaches a decoder before both sides have proven the job's secret, within a deadline
and with a bounded number of connections that have not proven it yet (rules S1 to S5, S13). Where the job
is encrypted, all of that happens inside TLS, whose own handshake counts against the same deadline and
the same number.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from crosscut.errors import InternalError, WireError
from crosscut.foundation.ids import Epoch
from crosscut.net.encryption import JobCertificate, Tunnel
from crosscut.net.keepalive import notice_vanished_peer
from crosscut.net.listener import CLOSED_BY_PEER, Listener
from crosscut.wire.frames import Frame, FrameDecoder, FrameType, Payload, encode_frame
from crosscut.wire.handshake import (
    NONCE_BYTES,
    ClientHandshake,
    Proven,
    Role,
    SendBytes,
    ServerHandshake,
    Verdict,
    VerdictReceived,
)
from crosscut.wire.sealing import FrameSeals
from crosscut.wire.unauthenticated_peers import Reason

HANDSHAKE_DEADLINE_S = 5.0
"""With the default patience of ten seconds; a job that is more patient waits longer for its own processes."""
HEARTBEAT_TIMEOUT_MS = 10_000
CONNECT_PATIENCE_S = 1.0
CONNECT_ATTEMPTS_MAX = 60

_JOINED_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets of one job, known to all of its processes and to no others."""

    secret: bytes
    job: bytes
    certificate: JobCertificate | None = None
    """With it, every connection is encrypted; none is accepted without."""
    heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS
    """No secret: the patience with a vanished peer is derived from it."""
    seals_frames: bool = False
    """Whether each frame carries a seal; where TLS protects it none is needed."""

    def __repr__(self) -> str:
        return "Credentials(...)"

    @property
    def handshake_deadline_s(self) -> float:
        """How long a peer may take to prove the secret: a slow worker of the job is no stranger."""
        return HANDSHAKE_DEADLINE_S * max(1.0, self.heartbeat_timeout_ms / HEARTBEAT_TIMEOUT_MS)


class Connection(asyncio.Protocol, ABC):
    """One end of a proven connection. Subclasses say what happens on frames and at the end.

    All methods are called on the event loop's thread.

    Attributes:
        has_offended: The peer, once proven, has broken the protocol.
    """

    def __init__(self, credentials: Credentials, decoder: FrameDecoder) -> None:
        self._credentials = credentials
        self._decoder = decoder
        self._tunnel: Tunnel | None = None
        self._seals: FrameSeals | None = None
        self._transport: asyncio.Transport | None = None
        self._is_open = False
        self.has_offended = False
        self._reason = CLOSED_BY_PEER
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames may be sent."""
        return self._is_open

    @property
    def transport(self) -> asyncio.Transport | None:
        """What carries the bytes, from when it is connected until it is lost."""
        return self._transport

    @property
    def local_address(self) -> str:
        """This end's address, without the port."""
        if self._transport is None:
            raise WireError("the connection is closed")
        address: str = self._transport.get_extra_info("sockname")[0]
        return address

    @abstractmethod
    def opened(self) -> None:
        """Both sides have proven the secret; frames may follow."""

    @abstractmethod
    def received(self, frame: Frame) -> None:
        """A complete frame has arrived.

        Raises:
            WireError: It is wrong; the connection is closed.
        """

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The connection is over; called once, also if it was never opened."""

    def send(self, kind: FrameType, payload: Payload = b"", *, channel: int = 0, sequence: int = 0) -> None:
        """Send a frame; bytes that do not fit into the socket are buffered."""
        if self._transport is None or not self._is_open:
            return
        header, body = encode_frame(kind, sequence, payload, channel)
        seal = self._seals.next(header, body) if self._seals is not None else b""
        if len(body) <= _JOINED_BYTES_MAX:
            self._write(b"".join((header, body, seal)))
        elif self._tunnel is None:
            self._transport.writelines((header, body, seal))
        else:
            self._write(header)
            self._write(b"".join((body, seal)))

    def close(self, reason: str) -> None:
        """Close without waiting for the peer; frames under way may get lost."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def close_gently(self, reason: str) -> None:
        """Close once everything that was sent is out."""
        self._reason = reason
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            self._credentials.handshake_deadline_s, self.close, Reason.LATE.value
        )

    def data_received(self, data: bytes) -> None:
        try:
            if self._tunnel is not None:
                data = self._through(self._tunnel, data)
                if not data:
                    return
            if self._is_open:
                data = bytes(data)
                if (frame := self._decoder.whole(data)) is not None:
                    self.received(frame)
                    return
                self._decoder.feed(data)
                self._take_frames()
            else:
                self._shake(data)
        except WireError as error:
            self.has_offended = self._is_open
            self.close(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        self._transport = None
        self._settled()
        self.lost(f"{self._reason}: {exc}" if exc else self._reason)

    # The handshake.

    def _begin(self, tunnel: Tunnel | None) -> None:
        """Begin the handshake, inside of TLS if there is a tunnel."""
        self._tunnel = tunnel
        if tunnel is None:
            self._connected()
        else:
            self._through(tunnel, b"")

    def _connected(self) -> None:
        """Bytes can be exchanged with the peer; if there is TLS, it is established."""

    @abstractmethod
    def _shake(self, data: bytes) -> None: ...

    def _through(self, tunnel: Tunnel, data: bytes) -> bytes:
        """Return the plain text in `data`, and send the answer of TLS."""
        was_established = tunnel.is_established
        plain = tunnel.receive(data)
        if (answer := tunnel.answer()) and self._transport is not None:
            self._transport.write(answer)
        if tunnel.is_established and not was_established:
            self._connected()
        return plain

    def _settled(self) -> None:
        """The handshake is decided, or the connection is over."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _open(self, trailing: bytes, own_key: bytes, peer_key: bytes) -> None:
        self._settled()
        if self._credentials.seals_frames:
            self._seals = FrameSeals(own_key)
            self._decoder.expect_seals(FrameSeals(peer_key))
        self._is_open = True
        self.opened()
        if trailing:
            self._decoder.feed(trailing)
            self._take_frames()

    def _take_frames(self) -> None:
        for frame in self._decoder:
            self.received(frame)

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._tunnel is None:
            self._transport.write(data)
            return
        for sealed in self._tunnel.seal(data):
            self._transport.write(sealed)


class ConnectingSide(Connection):
    """The side that connects."""

    def __init__(
        self, credentials: Credentials, role: Role, epoch: Epoch, detail: bytes, decoder: FrameDecoder
    ) -> None:
        super().__init__(credentials, decoder)
        self._handshake = ClientHandshake(
            secret=credentials.secret,
            job=credentials.job,
            role=role,
            epoch=epoch,
            detail=detail,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        notice_vanished_peer(cast(asyncio.Transport, transport), self._credentials.heartbeat_timeout_ms)
        certificate = self._credentials.certificate
        self._begin(certificate.connecting_tunnel() if certificate else None)

    def _connected(self) -> None:
        self._write(self._handshake.hello)

    def _shake(self, data: bytes) -> None:
        for step in self._handshake.receive(data):
            match step:
                case SendBytes(answer):
                    # The server is genuine. Its verdict may take as long as its own deployment.
                    self._settled()
                    self._write(answer)
                case VerdictReceived(Verdict.ACCEPTED):
                    client_key, server_key = self._handshake.frame_keys()
                    self._open(self._handshake.trailing_data, client_key, server_key)
                case VerdictReceived(verdict):
                    self.close(f"the peer refused: {verdict.name.lower().replace('_', ' ')}")


async def connect(end: ConnectingSide, host: str, port: int) -> None:
    """Connect `end` to a listener.

    A client without an answer asks again each second. The kernel would after 1, 3, 7, 15 s, and at a port
    under a flood of connections each time is a draw.

    Raises:
        OSError: The connection is refused, or there is no answer.
    """
    loop = asyncio.get_running_loop()
    for _ in range(CONNECT_ATTEMPTS_MAX):
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_PATIENCE_S):
                await loop.create_connection(lambda: end, host, port)
                return
    raise TimeoutError(f"no answer within {CONNECT_ATTEMPTS_MAX * CONNECT_PATIENCE_S:g} s")


class AcceptingSide(Connection):
    """The side that is connected to. `decide` is asked once the peer is proven.

    A peer that says nothing costs as little as possible: there may be thousands a second.
    """

    def __init__(
        self, listener: Listener, credentials: Credentials, role: Role, decoder: FrameDecoder
    ) -> None:
        super().__init__(credentials, decoder)
        self._listener = listener
        self._role = role
        self._address = ""
        self._is_proven = False
        self._handshake: ServerHandshake | None = None

    @abstractmethod
    def decide(self, proven: Proven) -> Verdict | None:
        """Return the verdict, or None to give it later by `give_verdict`."""

    def give_verdict(self, verdict: Verdict) -> None:
        """Tell the peer, and open or close the connection."""
        if self._transport is None:
            return
        handshake = self._asked()
        self._write(handshake.verdict(verdict))
        if verdict is Verdict.ACCEPTED:
            client_key, server_key = handshake.frame_keys()
            self._open(handshake.trailing_data, server_key, client_key)
        else:
            self.close_gently(f"refused: {verdict.name.lower().replace('_', ' ')}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = str(transport.get_extra_info("peername")[0])
        self._listener.came(self, self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_proven:
            self._listener.refused(self._reason, self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._handshake is None:
            self._handshake = ServerHandshake(
                secret=self._credentials.secret,
                job=self._credentials.job,
                role=self._role,
                nonce=secrets.token_bytes(NONCE_BYTES),
            )
            certificate = self._credentials.certificate
            self._begin(certificate.accepting_tunnel() if certificate else None)
        super().data_received(data)

    def _asked(self) -> ServerHandshake:
        """Return the handshake; the peer has said something."""
        if self._handshake is None:
            raise InternalError("a verdict or bytes before the peer has said anything")
        return self._handshake

    def _shake(self, data: bytes) -> None:
        for step in self._asked().receive(data):
            match step:
                case SendBytes(answer):
                    self._write(answer)
                    self._listener.greeted(self)
                case Proven():
                    self._is_proven = True
                    self._settled()
                    if self._transport is not None:
                        notice_vanished_peer(self._transport, self._credentials.heartbeat_timeout_ms)
                    verdict = self.decide(step)
                    if verdict is not None:
                        self.give_verdict(verdict)

    def _settled(self) -> None:
        self._listener.left(self)
        super()._settled()
