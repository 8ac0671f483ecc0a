"""The handshake: both sides prove the job's secret before any byte is decoded (rules S1 to S3).

    client                                         server
    hello: magic, version, role, job,
           epoch, detail, client nonce      ->
                                            <-     server nonce, MAC("server")
    MAC("client")                           ->
                                            <-     verdict, MAC("verdict")

Every MAC is HMAC-SHA256 with the secret over its own label, the whole hello and the server nonce, so
a proof made for one role, job, epoch, channel or connection is worth nothing for another: replayed,
reflected or altered messages don't match. All messages have one fixed size; parsing them is slicing.

It proves who is there, and keeps nothing secret: that is the part of TLS, inside of which it runs where the
job is encrypted (`crosscut.net.encryption`). Without, the keys that it leaves both sides with seal what
comes after it (`crosscut.wire.sealing`).

Sans-I/O: the caller sends what it is told to, brings the nonces (32 random bytes, new for each
connection) and keeps the deadline. On WireError, or when the deadline passes, it closes the connection.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from enum import Enum, IntEnum
from hashlib import sha256
from typing import NoReturn

from crosscut.errors import WireError, invariant
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import AttemptId, ChannelId, Epoch, WorkerIndex
from crosscut.foundation.keys import encoded_key

SECRET_BYTES = 32
JOB_BYTES = 16
DETAIL_BYTES = 32
NONCE_BYTES = 32
HANDSHAKE_BYTES_MAX = 4096
"""Most that is kept of a peer before it is told the verdict."""

MAGIC = b"XCUT"
VERSION = 1
_HELLO = struct.Struct(f">4sBB{JOB_BYTES}sQ{DETAIL_BYTES}s{NONCE_BYTES}s")
_START = MAGIC + bytes([VERSION])
_WORKER_LABEL = b"worker".ljust(DETAIL_BYTES - 12, b"\0")
_WORKER = struct.Struct(f">{len(_WORKER_LABEL)}sIQ")
_MAC_BYTES = 32
_SERVER_PROOF_BYTES = NONCE_BYTES + _MAC_BYTES
_VERDICT_BYTES = 1 + _MAC_BYTES

CLIENT_BYTES = _HELLO.size + _MAC_BYTES
SERVER_BYTES = _SERVER_PROOF_BYTES + _VERDICT_BYTES
"""What each side sends before the first frame."""

_REFUSAL = "handshake refused: the peer did not prove that it belongs to this job"


class Role(IntEnum):
    """What the connection is for; a listener serves exactly one."""

    WORKER_TO_COORDINATOR = 1
    """The control link of a worker; the worker is the client."""
    WORKER_TO_WORKER = 2
    """The connection between two workers, which carries all their channels."""


class Verdict(IntEnum):
    """What the server decided about a proven client."""

    ACCEPTED = 1
    """The connection is open: frames may follow."""
    STALE_EPOCH = 2
    """The client acts for an epoch that is over, and must stop doing so."""
    REFUSED = 3
    """There is nothing here for this client: unknown channels, or its place is taken."""


class Phase(Enum):
    """Where a handshake is."""

    AWAITING_HELLO = "server: nothing is known of the client"
    AWAITING_SERVER_PROOF = "client: the hello is out"
    AWAITING_CLIENT_PROOF = "server: the hello fits, the challenge is out"
    PROVEN = "server: the client is genuine, the caller has to decide"
    AWAITING_VERDICT = "client: the server is genuine, the own proof is out"
    FINISHED = "the verdict is given (server) or known (client)"
    FAILED = "the peer is not genuine; nothing is accepted any more"


@dataclass(frozen=True, slots=True)
class SendBytes:
    """To be sent to the peer now."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Proven:
    """The client has proven the secret; call `ServerHandshake.verdict` next.

    Attributes:
        role: The one that this server serves.
        epoch: For which the client acts; comparing it is up to the caller.
        detail: `channels_detail` or `worker_detail` of what it wants to be.
    """

    role: Role
    epoch: Epoch
    detail: bytes


@dataclass(frozen=True, slots=True)
class VerdictReceived:
    """The server is genuine and has decided."""

    verdict: Verdict


def verdict_on(peer: Epoch, own: Epoch, *, is_expecting: bool, is_wanted: bool) -> Verdict | None:
    """Decide about a proven peer by its epoch, then by what connection it wants to be.

    Args:
        is_expecting: Whether it is known which connections epoch `own` has.
        is_wanted: Whether its connection is one of them, and not made yet.

    Returns:
        None if the peer has heard of its epoch before we have: it waits.
    """
    if peer < own:
        return Verdict.STALE_EPOCH
    if peer > own or not is_expecting:
        return None
    return Verdict.ACCEPTED if is_wanted else Verdict.REFUSED


def channels_detail(channels: Sequence[ChannelId]) -> bytes:
    """Return the `detail` of the connection that carries `channels`, in the order of their numbers.

    So both ends have the same channels under the same numbers, or no connection.
    """
    found = sha256(b"channels")
    for channel in channels:
        source, target = channel.source, channel.target
        parts = (channel.input, source.vertex, source.index, target.vertex, target.index)
        found.update(encoded_key(parts))
    return found.digest()


def epoch_of_hello(hello: bytes) -> Epoch:
    """Return the epoch that a client claims in what it sends first."""
    return Epoch(_HELLO.unpack_from(hello)[4])


def worker_detail(worker: WorkerIndex, attempt: AttemptId) -> bytes:
    """Return the `detail` of the control link of one attempt of a worker."""
    return _WORKER.pack(_WORKER_LABEL, worker, attempt)


def proven_worker(detail: bytes) -> tuple[WorkerIndex, AttemptId]:
    """Return which attempt of which worker a proven peer is, from its `worker_detail`.

    Raises:
        WireError: It is not the detail of a worker.
    """
    label, worker, attempt = _WORKER.unpack(detail)
    if label != _WORKER_LABEL:
        raise WireError("the peer has proven the secret, but not which worker it is")
    return WorkerIndex(worker), AttemptId(attempt)


class _Handshake:
    """What both sides share: the bytes not consumed yet, the MAC, and how to fail."""

    def __init__(self, secret: bytes, job: bytes, nonce: bytes, phase: Phase) -> None:
        invariant(len(secret) == SECRET_BYTES, f"the job's secret must have {SECRET_BYTES} bytes")
        invariant(len(job) == JOB_BYTES, f"the job token must have {JOB_BYTES} bytes")
        invariant(len(nonce) == NONCE_BYTES, f"a nonce must have {NONCE_BYTES} bytes")
        self._secret = secret
        self._job = job
        self._nonce = nonce
        self._phase = phase
        self._transcript = b""
        self._unread = bytearray()

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def kept_bytes(self) -> int:
        """How much is kept of what the peer has sent and this end has not taken in yet."""
        return len(self._unread)

    @property
    def trailing_data(self) -> bytes:
        """What came after the handshake: feed it to the frame decoder first, once FINISHED."""
        invariant(self._phase is Phase.FINISHED, "trailing data asked for before the end of the handshake")
        return bytes(self._unread)

    def frame_keys(self) -> tuple[bytes, bytes]:
        """Return the keys for the seals of what the client and what the server sends, once FINISHED.

        Both nonces are in them: no other connection has the same.
        """
        invariant(self._phase is Phase.FINISHED, "frame keys asked for before the end of the handshake")
        return self._mac(b"client frames", self._transcript), self._mac(b"server frames", self._transcript)

    def _add(self, data: bytes) -> None:
        if self._phase is Phase.FAILED:
            raise WireError(_REFUSAL)
        invariant(self._phase is not Phase.FINISHED, "bytes after the handshake belong to the frame decoder")
        self._unread += data

    def _take(self, size: int) -> bytes | None:
        """Remove the next message of `size` bytes, or return None while it is not complete."""
        if len(self._unread) < size:
            return None
        message = bytes(self._unread[:size])
        del self._unread[:size]
        return message

    def _mac(self, label: bytes, *parts: bytes) -> bytes:
        # Labels differ in their bytes up to the NUL and all parts have fixed sizes: no two messages
        # of different meaning have the same input.
        return hmac.digest(self._secret, b"\0".join((label, b"".join(parts))), "sha256")

    def _check(self, found: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(found, expected):
            self._fail()

    def _fail(self) -> NoReturn:
        # One message for every reason: which check failed would help an attacker only.
        self._phase = Phase.FAILED
        self._unread.clear()
        raise WireError(_REFUSAL)


class ClientHandshake(_Handshake):
    """The connecting side. Send `hello` first, then pass on everything received.

    Args:
        secret: The job's secret, 32 bytes.
        job: The job token, 16 bytes; not secret.
        role: What the connection is for.
        epoch: For which this process acts.
        detail: `channels_detail` or `worker_detail`.
        nonce: 32 random bytes, never used before.
    """

    def __init__(
        self, *, secret: bytes, job: bytes, role: Role, epoch: Epoch, detail: bytes, nonce: bytes
    ) -> None:
        super().__init__(secret, job, nonce, Phase.AWAITING_SERVER_PROOF)
        invariant(len(detail) == DETAIL_BYTES, f"the detail must have {DETAIL_BYTES} bytes")
        self.hello = _HELLO.pack(MAGIC, VERSION, role, job, epoch, detail, nonce)

    def receive(self, data: bytes) -> list[SendBytes | VerdictReceived]:
        """Take what was read; return what to send and, at the end, the verdict.

        Raises:
            WireError: The server is not genuine (M1), or the bytes were altered, replayed or
                reflected (M4); the handshake has failed for good.
        """
        self._add(data)
        steps: list[SendBytes | VerdictReceived] = []
        if self._phase is Phase.AWAITING_SERVER_PROOF and (proof := self._take(_SERVER_PROOF_BYTES)):
            self._transcript = self.hello + proof[:NONCE_BYTES]
            self._check(proof[NONCE_BYTES:], self._mac(b"server", self._transcript))
            self._phase = Phase.AWAITING_VERDICT
            steps.append(SendBytes(self._mac(b"client", self._transcript)))
        if self._phase is Phase.AWAITING_VERDICT and (message := self._take(_VERDICT_BYTES)):
            self._check(message[1:], self._mac(b"verdict", self._transcript, message[:1]))
            self._phase = Phase.FINISHED
            steps.append(VerdictReceived(Verdict(message[0])))
        return steps


class ServerHandshake(_Handshake):
    """The accepting side: pass on everything received, decide when `Proven` comes out.

    Args:
        secret: The job's secret, 32 bytes.
        job: The job token, 16 bytes; not secret.
        role: The only one that this listener serves: a worker can't pose as another kind of peer.
        nonce: 32 random bytes, never used before.
    """

    def __init__(self, *, secret: bytes, job: bytes, role: Role, nonce: bytes) -> None:
        super().__init__(secret, job, nonce, Phase.AWAITING_HELLO)
        self._role = role
        self._proven = Proven(role, Epoch(0), b"")

    def receive(self, data: bytes) -> list[SendBytes | Proven]:
        """Take what was read; return what to send and, once the client is proven, what it claims.

        Until then at most one incomplete message is kept (M2), no length is read from the peer (M3),
        and nothing is decoded.

        Raises:
            WireError: The client has not proven the secret (M1), speaks of another job or role, or its
                bytes were altered or replayed (M4); the handshake has failed for good.
        """
        self._add(data)
        steps: list[SendBytes | Proven] = []
        if self._phase is Phase.AWAITING_HELLO and not self._unread.startswith(_START[: len(self._unread)]):
            # A peer that speaks something else need not be waited for.
            self._fail()
        if self._phase is Phase.AWAITING_HELLO and (hello := self._take(_HELLO.size)):
            _, _, role, job, epoch, detail, _ = _HELLO.unpack(hello)
            if (role, job) != (self._role, self._job):
                self._fail()
            self._transcript = hello + self._nonce
            self._proven = Proven(self._role, Epoch(epoch), detail)
            self._phase = Phase.AWAITING_CLIENT_PROOF
            steps.append(SendBytes(self._nonce + self._mac(b"server", self._transcript)))
        if self._phase is Phase.AWAITING_CLIENT_PROOF and (proof := self._take(_MAC_BYTES)):
            self._check(proof, self._mac(b"client", self._transcript))
            self._phase = Phase.PROVEN
            steps.append(self._proven)
        if len(self._unread) > HANDSHAKE_BYTES_MAX:
            self._fail()
        return steps

    def verdict(self, verdict: Verdict) -> bytes:
        """Return the authenticated verdict, to be sent; close the connection unless it is ACCEPTED."""
        invariant(self._phase is Phase.PROVEN, f"verdict given while the handshake is {self._phase.name}")
        self._phase = Phase.FINISHED
        code = bytes([verdict])
        return code + self._mac(b"verdict", self._transcript, code)
