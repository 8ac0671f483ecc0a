"""Throw hostile bytes at all that peers can reach: `python -m tests.proof.fuzz --inputs 1000000`.

The ports are the real classes on a transport without a socket. What is thrown at them was once genuine, of
another connection, and has been altered, cut, repeated and spliced. Each call of a deserialiser is counted:
before a peer is proven there must be none (I13).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from crosscut.errors import InternalError, WireError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import (
    AttemptId,
    ChannelId,
    CheckpointId,
    Epoch,
    TaskId,
    VertexId,
    WorkerIndex,
)
from crosscut.net.connections import Connection, Credentials
from crosscut.net.control import CoordinatorLink, WorkerLink
from crosscut.net.encryption import make_certificate
from crosscut.net.listener import Listener
from crosscut.net.peer_links import AcceptingPeerLink, ConnectingPeerLink
from crosscut.protocol.messages import (
    FailureCause,
    RegisterWorker,
    SnapshotAcknowledged,
    TaskFailed,
    TaskStatistics,
    WorkerHeartbeat,
    WorkerMessage,
)
from crosscut.protocol.snapshots import Snapshot
from crosscut.wire.batches import encode_batch
from crosscut.wire.control import WORKER_MESSAGES, decode_control, encode_control
from crosscut.wire.frames import DEFAULT_LIMITS, HEADER, FrameDecoder, FrameType, encode_barrier, encode_frame
from crosscut.wire.handshake import (
    HANDSHAKE_BYTES_MAX,
    NONCE_BYTES,
    ClientHandshake,
    Role,
    SendBytes,
    ServerHandshake,
    Verdict,
    channels_detail,
    worker_detail,
)
from crosscut.wire.sealing import FrameSeals

SECRET, JOB, KEY = b"s" * 32, b"j" * 16, b"k" * 32
CHANNEL = ChannelId(0, TaskId(VertexId("source"), 0), TaskId(VertexId("sink"), 1))
DETAILS = {
    Role.WORKER_TO_COORDINATOR: worker_detail(WorkerIndex(0), AttemptId(1)),
    Role.WORKER_TO_WORKER: channels_detail([CHANNEL]),
}
TLS_EVERY = 50
"""One input in so many goes to a port with TLS: it takes as long as all the others."""
PAUSE_EVERY = 1_000


class Breach(Exception):
    """Something happened that hostile bytes must not be able to bring about."""


# What was genuine once.


def _frames() -> list[bytes]:
    task = CHANNEL.target
    said: list[WorkerMessage] = [
        RegisterWorker(WorkerIndex(0), AttemptId(1), "10.0.0.1", 4711, 40_000),
        WorkerHeartbeat(Epoch(1), (TaskStatistics(task, 5, 5),), {"stale": 1}),
        TaskFailed(Epoch(1), task, FailureCause("ValueError", "no", "map", "'x'", "Traceback")),
        SnapshotAcknowledged(Epoch(1), CheckpointId(1), task, Snapshot(positions={"split": [1, None, 2.5]})),
    ]
    payloads = [(FrameType.CONTROL, 0, encode_control(message)) for message in said]
    payloads.append((FrameType.BATCH, 1, encode_batch(Batch([("key", 1), ("other", 2)]))))
    payloads.append((FrameType.BARRIER, 2, encode_barrier(CheckpointId(7))))
    payloads.append((FrameType.END_OF_INPUT, 3, b""))
    return [b"".join(encode_frame(kind, number, payload)) for kind, number, payload in payloads]


def _conversation(role: Role) -> tuple[bytes, bytes]:
    """Return the bytes of client and server in a genuine handshake of another connection."""
    client = ClientHandshake(
        secret=SECRET, job=JOB, role=role, epoch=Epoch(1), detail=DETAILS[role], nonce=b"c" * NONCE_BYTES
    )
    server = ServerHandshake(secret=SECRET, job=JOB, role=role, nonce=b"n" * NONCE_BYTES)
    (challenge,) = server.receive(client.hello)
    if not isinstance(challenge, SendBytes):
        raise InternalError("a server that does not answer a genuine hello")
    (proof,) = client.receive(challenge.data)
    if not isinstance(proof, SendBytes):
        raise InternalError("a client that does not answer a genuine server")
    server.receive(proof.data)
    return client.hello + proof.data, challenge.data + server.verdict(Verdict.ACCEPTED)


def _tls_hello() -> bytes:
    tunnel = make_certificate().connecting_tunnel()
    tunnel.receive(b"")
    return tunnel.answer()


class Corpus:
    """Genuine bytes, and hostile ones made of them."""

    def __init__(self) -> None:
        self.frames = _frames()
        conversations = {role: _conversation(role) for role in Role}
        self.of_clients = {role: said for role, (said, _) in conversations.items()}
        self.of_servers = {role: said for role, (_, said) in conversations.items()}
        self.tls_hello = _tls_hello()
        self._all = [*self.frames, *self.of_clients.values(), *self.of_servers.values(), self.tls_hello]

    def hostile(self, random: Random, genuine: bytes) -> bytes:
        """Return `genuine`, altered; now and then as it is, with the frames that would follow it."""
        data = bytearray(genuine + b"".join(random.choices(self.frames, k=random.randrange(3))))
        for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
            at = random.randrange(len(data) + 1)
            match random.randrange(7):
                case 0:
                    if at < len(data):
                        data[at] ^= 1 << random.randrange(8)
                case 1:
                    del data[at:]
                case 2:
                    data[at:at] = random.randbytes(random.randrange(40))
                case 3:
                    data[at:at] = data[max(0, at - random.randrange(64)) : at]
                case 4:
                    del data[at : at + random.randrange(64)]
                case 5:
                    data[at:] = random.choice(self._all)[random.randrange(8) :]
                case _:
                    data[at : at + 4] = random.choice(_LENGTHS)
        return bytes(data)


_LENGTHS = [n.to_bytes(4, "big") for n in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 256 << 20)]


def pieces(random: Random, data: bytes) -> Iterator[bytes]:
    """Yield `data` as a socket might: all at once, or in pieces."""
    size = random.choice((len(data), len(data), 1 + random.randrange(64), 1))
    if size == 1:
        # A byte at a time, but not for ever.
        size = max(1, len(data) // 64)
    for start in range(0, len(data), max(size, 1)):
        yield data[start : start + size]


# What counts.


class Deserialisers:
    """Counts calls of the functions that turn bytes into objects."""

    def __init__(self) -> None:
        self.calls = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count within the block, in the whole process."""

        def counting(plain: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                self.calls += 1
                return plain(*arguments, **more)

            return call

        # Also what json.loads and `decode` call, so that a decoder that somebody has made once counts too.
        watched: list[tuple[Any, str]] = [(pickle, "loads"), (json.JSONDecoder, "raw_decode")]
        plain = [getattr(owner, name) for owner, name in watched]
        for (owner, name), one in zip(watched, plain, strict=True):
            setattr(owner, name, counting(one))
        try:
            yield
        finally:
            for (owner, name), one in zip(watched, plain, strict=True):
                setattr(owner, name, one)


class Wire(asyncio.Transport):
    """A transport without a socket: it counts the bytes that are written, and can be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.9", 1) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return self.is_over

    def write(self, data: Any) -> None:
        """Nobody reads it: the peer here does not listen."""

    def close(self) -> None:
        self.is_over = True

    abort = close


class Owner:
    """The owner of the ends, which must never hear of them."""

    def __getattr__(self, name: str) -> Any:
        if name in ("link_lost", "peer_link_lost"):
            return lambda *_: None
        raise Breach(f"{name}: a peer without the secret was taken for genuine")


class Fuzzer:
    """Throws one input after the other. Must run on an event loop.

    Args:
        seed: Input i of a seed is always the same.

    Attributes:
        count: Inputs so far, by their target.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._corpus = Corpus()
        self._listener = Listener("the fuzzer")
        self._owner: Any = Owner()
        plain = Credentials(SECRET, JOB)
        self._credentials = (plain, Credentials(SECRET, JOB, make_certificate()))
        self.deserialisers = Deserialisers()
        self.count: Counter[str] = Counter()

    def throw(self, index: int) -> None:
        """Throw input `index`.

        Raises:
            Breach: It did harm.
        """
        random = Random(f"crosscut fuzz {self._seed} {index}")
        what = random.choice(("driver", "worker", "client", "client", "frames", "sealed frames", "message"))
        self.count[what] += 1
        match what:
            case "frames":
                self._frames(random)
            case "sealed frames":
                self._sealed(random)
            case "message":
                self._message(random)
            case _:
                self._port(random, what)

    def _port(self, random: Random, what: str) -> None:
        """A peer without the secret: it may not be believed, nor may anything be decoded for it."""
        is_encrypted = random.randrange(TLS_EVERY) == 0
        credentials = self._credentials[is_encrypted]
        end, genuine = self._end(random, what, credentials)
        if is_encrypted and random.randrange(2):
            genuine = self._corpus.tls_hello + genuine
        data = self._corpus.hostile(random, genuine)
        self.throw_at(end, pieces(random, data))

    def throw_at(self, end: Connection, data: Iterator[bytes]) -> None:
        """Have `end` receive `data` from a peer that does not know the secret."""
        before = self.deserialisers.calls
        wire = Wire()
        end.connection_made(wire)
        for piece in data:
            if wire.is_over:
                break
            end.data_received(piece)
            handshake = getattr(end, "_handshake", None)
            if handshake is not None and handshake.kept_bytes > HANDSHAKE_BYTES_MAX + len(piece):
                raise Breach(f"{handshake.kept_bytes} bytes are kept of a peer that has proven nothing")
        if end.is_open:
            raise Breach("a peer without the secret was taken for genuine")
        end.connection_lost(None)
        if self.deserialisers.calls != before:
            raise Breach(f"{self.deserialisers.calls - before} deserialiser calls before any proof")

    def _end(self, random: Random, what: str, credentials: Credentials) -> tuple[Connection, bytes]:
        owner, corpus = self._owner, self._corpus
        if what == "driver":
            role = Role.WORKER_TO_COORDINATOR
            return CoordinatorLink(owner, self._listener, credentials), corpus.of_clients[role]
        if what == "worker":
            role = Role.WORKER_TO_WORKER
            return AcceptingPeerLink(owner, self._listener, credentials), corpus.of_clients[role]
        if random.randrange(2):
            peer_link = ConnectingPeerLink(owner, credentials, Epoch(1), [CHANNEL])
            return peer_link, corpus.of_servers[Role.WORKER_TO_WORKER]

        def heard(*_: Any) -> None:
            raise Breach("a listener without the secret was taken for genuine")

        link = WorkerLink(credentials, WorkerIndex(0), AttemptId(1), heard, heard, lambda _: None)
        return link, corpus.of_servers[Role.WORKER_TO_COORDINATOR]

    def _frames(self, random: Random) -> None:
        """A peer that has proven the secret: its bytes are frames or an error, at a cost by their length."""
        decoder = FrameDecoder(DEFAULT_LIMITS, sequenced=bool(random.randrange(2)))
        data = self._corpus.hostile(random, random.choice(self._corpus.frames))
        fed = 0
        try:
            for piece in pieces(random, data):
                decoder.feed(piece)
                fed += len(piece)
                for frame in decoder:
                    if len(frame.payload) > DEFAULT_LIMITS[frame.kind]:
                        raise Breach(f"a {frame.kind.name} frame above its limit")
                if decoder.held_bytes > fed:
                    raise Breach(f"{decoder.held_bytes} bytes are held of {fed}")
        except WireError:
            return

    def _sealed(self, random: Random) -> None:
        """Somebody on the way: the bytes that come out are those that were sent, or the first of them."""
        seals = FrameSeals(KEY)
        sent = random.choices(self._corpus.frames[:4], k=3)
        whole = [(frame, seals.next(frame[: HEADER.size], frame[HEADER.size :])) for frame in sent]
        decoder = FrameDecoder(DEFAULT_LIMITS, sequenced=False)
        decoder.expect_seals(FrameSeals(KEY))
        data = self._corpus.hostile(random, b"".join(frame + seal for frame, seal in whole))
        heard: list[bytes] = []
        try:
            for piece in pieces(random, data):
                decoder.feed(piece)
                heard.extend(bytes(frame.payload) for frame in decoder)
        except WireError:
            pass
        if heard != [frame[HEADER.size :] for frame in sent][: len(heard)]:
            raise Breach("a frame that was not sent has come out of sealed ones")

    def _message(self, random: Random) -> None:
        """A worker that lies: a message, or an error."""
        genuine = random.choice(self._corpus.frames[:4])[HEADER.size :]
        data = self._corpus.hostile(random, genuine)
        try:
            message = decode_control(data, WORKER_MESSAGES)
        except WireError:
            return
        if not isinstance(message, WORKER_MESSAGES):
            raise Breach(f"a {type(message).__name__} has come out, which no worker may send")


async def run(inputs: int, *, seed: int = 0, first: int = 0) -> Fuzzer:
    """Throw `inputs` inputs, from number `first` on; return who did.

    Raises:
        Breach: One did harm; the message names it.
    """
    fuzzer = Fuzzer(seed)
    with fuzzer.deserialisers.watched():
        for index in range(first, first + inputs):
            try:
                fuzzer.throw(index)
            except Exception as error:
                again = f"python -m tests.proof.fuzz --seed {seed} --first {index} --inputs 1"
                raise Breach(f"{type(error).__name__}: {error}\nagain: {again}") from error
            if index % PAUSE_EVERY == 0:
                # The loop throws away the timers of connections that are over.
                await asyncio.sleep(0)
    return fuzzer


def main(arguments: Sequence[str] | None = None) -> int:
    """Throw as many inputs as the command line says; return the exit code: 1 if one did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: %(default)s)")
    asked = parser.parse_args(arguments)
    try:
        fuzzer = asyncio.run(run(asked.inputs, seed=asked.seed, first=asked.first))
    except Breach as breach:
        sys.stdout.write(f"{breach}\n")
        return 1
    thrown = ", ".join(f"{what}: {count:,}" for what, count in sorted(fuzzer.count.items()))
    sys.stdout.write(
        f"{asked.inputs:,} inputs ({thrown}): nobody was taken for genuine, and no deserialiser was called "
        f"before a proof\n"
    )
    return 0


if __name__ == "__main__":
    # Peers are to be refused here.
    logging.getLogger("crosscut").setLevel(logging.ERROR)
    sys.exit(main())
