"""TLS on real sockets and in a real job: who is let in, what can be read on the way, what still works."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, is_gone, until
from pyspark import SparkContext

from crosscut.contracts.settings import Settings
from crosscut.errors import SettingsError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.net import connections
from crosscut.net.connections import Credentials
from crosscut.net.encryption import JobCertificate, make_certificate
from crosscut.net.listener import Listener
from crosscut.net.peer_links import AcceptingPeerLink, ConnectingPeerLink, PeerLink
from crosscut.spark.cluster.checks import checked_encryption
from crosscut.task.flow_control import Credit, SendingEnd
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.wire.frames import FrameType
from crosscut.wire.handshake import Proven, Verdict

CHANNEL = ChannelId(0, TaskId(VertexId("source"), 0), TaskId(VertexId("sink"), 1))
EPOCH = Epoch(3)
LOOPBACK = "127.0.0.1"

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on one of the event loops that workers have."""
    factory = asyncio.new_event_loop
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def on_loop(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(test, DEADLINE_S * 2))

    return on_loop


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is closed is so for what it has said, and nobody for the pace of this machine."""
    monkeypatch.setattr(connections, "HANDSHAKE_DEADLINE_S", 10 * DEADLINE_S)


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    return Credentials(os.urandom(32), os.urandom(16), make_certificate())


class Owner:
    """The owner of one end of a connection with one channel: writes down what happens to it."""

    def __init__(self, own: int, bytes_max: int = 1 << 20) -> None:
        self.proven: list[Proven] = []
        self.is_open = False
        self.items: list[Item] = []
        self.received_bytes = 0
        self.reasons: list[str] = []
        self.end: PeerLink | None = None
        self.sending = SendingEnd(CHANNEL, bytes_max)
        self._own = own

    def carry(self, end: PeerLink) -> None:
        self.end = end
        end.carry(WorkerIndex(self._own), WorkerIndex(1 - self._own), [CHANNEL], self)

    def peer_link_proven(self, proven: Proven, end: AcceptingPeerLink) -> Verdict:
        self.proven.append(proven)
        self.carry(end)
        return Verdict.ACCEPTED

    def peer_link_opened(self, end: PeerLink) -> None:
        self.is_open = True

    def peer_link_lost(self, end: PeerLink, reason: str) -> None:
        # One that was never proven has no channels.
        if end is self.end:
            self.reasons.append(reason)

    def channel_received(self, channel: ChannelId, item: Item, size_bytes: int) -> None:
        self.items.append(item)
        self.received_bytes += size_bytes

    def channel_credited(self, channel: ChannelId, credit: Credit) -> None:
        self.sending.credited(credit)


class Sender(ConnectingPeerLink):
    """The sending end of the channel, with its connection."""

    def send_item(self, item: Item) -> int:
        return self.outgoing[CHANNEL].send_item(item)


async def eventually(condition: Callable[[], Any], what: str) -> None:
    """Wait until `condition()` is true, with the loop running meanwhile."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < ends_s, f"waited {DEADLINE_S:g} s for {what}"
        await asyncio.sleep(0.005)


class Receiver:
    """A listening worker, as far as its channels go."""

    def __init__(self, credentials: Credentials) -> None:
        self.owner = Owner(1)
        self.listener = Listener("the test", lambda _: 0)
        self.accepted: list[AcceptingPeerLink] = []
        self._credentials = credentials

    async def listen(self) -> int:
        return await self.listener.listen(LOOPBACK, self._accept)

    def _accept(self) -> AcceptingPeerLink:
        end = AcceptingPeerLink(self.owner, self.listener, self._credentials)
        self.accepted.append(end)
        return end

    def saw_nothing(self) -> bool:
        """M1: nothing was proven, and not one byte has reached the decoder."""
        fed = [end for end in self.accepted if end._decoder.held_bytes or end._decoder._error]
        return not (self.owner.proven or self.owner.items or self.owner.is_open or fed)

    def close(self) -> None:
        self.listener.close()
        for end in self.accepted:
            end.abandon()


async def connect(port: int, credentials: Credentials, bytes_max: int = 1 << 20) -> tuple[Owner, Sender]:
    owner = Owner(0, bytes_max)
    end = Sender(owner, credentials, EPOCH, [CHANNEL])
    owner.carry(end)
    await asyncio.get_running_loop().create_connection(lambda: end, LOOPBACK, port)
    return owner, end


def batch(text: str, rows: int = 1) -> Batch:
    return Batch([f"{text}-{row:06d}" for row in range(rows)])


def contents(items: list[Item]) -> list[object]:
    return [one.records if isinstance(one, Batch) else one for one in items]


def test_a_channel_carries_everything_in_order(run: Run, credentials: Credentials) -> None:
    """I5, with batches on both sides of every limit of TLS and of ours."""

    async def test() -> None:
        receiver = Receiver(credentials)
        sender, end = await connect(await receiver.listen(), credentials)
        await eventually(lambda: sender.is_open, "the channel")
        sent: list[Item] = [batch(f"size {rows}", rows) for rows in (1, 1_000, 5_000, 300_000, 2)]
        sent += [Barrier(CheckpointId(7)), batch("behind"), EndOfInput()]
        for item in sent:
            end.send_item(item)
        await eventually(lambda: len(receiver.owner.items) == len(sent), "all items")
        assert contents(receiver.owner.items) == contents(sent)
        end.close_gently("done")
        await eventually(lambda: receiver.owner.reasons, "the end")
        assert receiver.owner.reasons == ["closed by the peer"]
        receiver.close()

    run(test())


def older(certificate: JobCertificate) -> JobCertificate:
    """Return the same certificate, of somebody who speaks TLS 1.2 only."""
    certificate = JobCertificate(certificate._certificate, certificate._key)
    for context in (certificate._connecting, certificate._accepting):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return certificate


def unauthenticated_peers(credentials: Credentials) -> dict[str, Credentials]:
    """Everybody knows all of the job but one thing."""
    certificate = credentials.certificate
    assert certificate is not None
    return {
        "plain text": replace(credentials, certificate=None),
        "another certificate": replace(credentials, certificate=make_certificate()),
        "TLS 1.2": replace(credentials, certificate=older(certificate)),
        "another secret": replace(credentials, secret=bytes(32)),
        "another job": replace(credentials, job=bytes(16)),
    }


UNAUTHENTICATED_PEERS = ("plain text", "another certificate", "TLS 1.2", "another secret", "another job")


@pytest.mark.parametrize("kind", UNAUTHENTICATED_PEERS)
def test_a_unauthenticated_peer_that_connects_is_closed_before_any_parse(
    run: Run, credentials: Credentials, kind: str
) -> None:
    """M1, I13: also a plain-text peer that knows the secret, as when TLS was stripped on the way."""

    async def test() -> None:
        receiver = Receiver(credentials)
        unauthenticated_peer, end = await connect(
            await receiver.listen(), unauthenticated_peers(credentials)[kind]
        )
        end.send(FrameType.BATCH, b"x" * 1_000, sequence=1)
        await eventually(lambda: unauthenticated_peer.reasons, "the unauthenticated peer to be closed")
        assert not unauthenticated_peer.is_open
        assert receiver.saw_nothing()
        receiver.close()

    run(test())


@pytest.mark.parametrize("kind", UNAUTHENTICATED_PEERS)
def test_a_unauthenticated_peer_that_listens_is_told_nothing(
    run: Run, credentials: Credentials, kind: str
) -> None:
    """M1: whoever took the port of a worker gets no hello of ours, let alone a record."""

    async def test() -> None:
        receiver = Receiver(unauthenticated_peers(credentials)[kind])
        sender, end = await connect(await receiver.listen(), credentials)
        await eventually(lambda: sender.reasons, "our side to close")
        assert not sender.is_open
        assert not end.is_open
        assert receiver.saw_nothing()
        receiver.close()

    run(test())


@pytest.mark.parametrize("noise", ["random", "zeros", "http", "tls record of 16 KiB"])
def test_noise_is_closed_before_any_parse(run: Run, credentials: Credentials, noise: str) -> None:
    """M2, I13."""
    said = {
        "random": os.urandom(100_000),
        "zeros": bytes(100_000),
        "http": b"GET / HTTP/1.1\r\nHost: crosscut\r\n\r\n",
        "tls record of 16 KiB": b"\x16\x03\x01\x40\x00\x01\x00\xff\xff\x03\x03" + bytes(40_000),
    }[noise]

    async def test() -> None:
        receiver = Receiver(credentials)
        reader, writer = await asyncio.open_connection(LOOPBACK, await receiver.listen())
        writer.write(said)
        assert await answer_of(reader) == b""
        writer.close()
        assert receiver.saw_nothing()
        receiver.close()

    run(test())


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Return what the peer says until it closes; a reset is an end like any other."""
    try:
        return await asyncio.wait_for(reader.read(), DEADLINE_S)
    except ConnectionError:
        return b""


def test_a_silent_peer_is_closed_at_the_deadline_and_makes_room_before_it(
    run: Run, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2, S3: connections that are in their TLS handshake count, and some of them have to go."""
    monkeypatch.setattr("crosscut.wire.unauthenticated_peers.ROOM_MAX", 4)

    async def test() -> None:
        receiver = Receiver(credentials)
        port = await receiver.listen()
        hello = credentials.certificate.connecting_tunnel()  # type: ignore[union-attr]
        hello.receive(b"")
        first_bytes = hello.answer()
        peers = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            # A whole client hello: the server has answered, and waits for the certificate.
            writer.write(first_bytes)
            peers.append((reader, writer))
        crowded = {"too many at once": 2}
        await eventually(lambda: receiver.listener.refusals == crowded, "two of them to be closed")
        assert sum(end._transport is not None for end in receiver.accepted) == 4
        # A genuine peer is served while the crowd waits.
        sender, end = await connect(port, credentials)
        await eventually(lambda: sender.is_open, "the genuine peer")
        monkeypatch.setattr(connections, "HANDSHAKE_DEADLINE_S", 0.2)
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        peers.append((reader, writer))
        assert await answer_of(reader) == b""
        assert end.is_open
        for _, writer in peers:
            writer.close()
        end.abandon()
        await eventually(
            lambda: not any(end._transport is not None for end in receiver.accepted), "all to be gone"
        )
        receiver.close()

    run(test())


class Proxy:
    """Passes one connection on, and keeps all that it sees."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.seen = {"to the listener": bytearray(), "back": bytearray()}
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._port)
        for name, one, other in (("to the listener", reader, far_writer), ("back", far_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pass_on(name, one, other))
            self._tasks.append(task)

    async def _pass_on(self, name: str, one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
        try:
            while data := await one.read(1 << 16):
                self.seen[name] += data
                other.write(data)
                await other.drain()
        finally:
            other.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("encrypted", [True, False])
def test_who_listens_on_the_way_reads_records_only_without_encryption(
    run: Run, credentials: Credentials, encrypted: bool
) -> None:
    """S2; the other half shows that this test would see them."""
    used = credentials if encrypted else replace(credentials, certificate=None)

    async def test() -> None:
        receiver = Receiver(used)
        proxy = Proxy(await receiver.listen())
        sender, end = await connect(await proxy.listen(), used)
        await eventually(lambda: sender.is_open, "the channel")
        end.send_item(batch("confidential", 20_000))
        end.send_item(Barrier(CheckpointId(0x1122334455667788)))
        await eventually(lambda: len(receiver.owner.items) == 2, "the items")
        end.close_gently("done")
        await eventually(lambda: receiver.owner.reasons, "the end")
        receiver.close()
        await proxy.close()
        there, back = bytes(proxy.seen["to the listener"]), bytes(proxy.seen["back"])
        assert len(there) > 20_000 * len("confidential")
        assert len(back) > 32
        for needle in (b"confidential", b"XCUT", b"\x11\x22\x33\x44\x55\x66\x77\x88", used.job):
            assert (needle in there + back) is not encrypted, needle
        assert used.secret not in there + back

    run(test())


def test_a_channel_without_credit_makes_the_sender_wait_and_loses_nothing(
    run: Run, credentials: Credentials
) -> None:
    """I11: what the receiver has not processed is bounded, also under TLS."""

    async def test() -> None:
        receiver = Receiver(credentials)
        sender, end = await connect(await receiver.listen(), credentials, bytes_max=256 * 1024)
        await eventually(lambda: sender.is_open and receiver.owner.is_open, "the channel")
        sent = 0
        while not sender.sending.is_used_up:
            sender.sending.sent(end.send_item(batch(f"number {sent}", 1_000)))
            sent += 1
            assert sent < 5_000, "the sender never had to wait"
        await eventually(lambda: len(receiver.owner.items) == sent, "all batches")
        assert sender.sending.is_used_up
        assert receiver.owner.end is not None
        receiver.owner.end.incoming[CHANNEL].give_credit(Credit(receiver.owner.received_bytes, 0, 1))
        await eventually(lambda: not sender.sending.is_used_up, "the sender to go on")
        firsts = [one.records[0] for one in receiver.owner.items if isinstance(one, Batch)]
        assert firsts == [f"number {number}-000000" for number in range(sent)]
        receiver.close()
        await eventually(lambda: sender.reasons, "the end")

    run(test())


def test_what_is_sent_on_a_broken_stream_goes_nowhere(run: Run, credentials: Credentials) -> None:
    """M4: a record was altered; our side may want to send before it hears of the end."""

    async def test() -> None:
        receiver = Receiver(credentials)
        sender, end = await connect(await receiver.listen(), credentials)
        await eventually(lambda: sender.is_open and receiver.owner.is_open, "the channel")
        end.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
        end.send_item(batch("too late"))
        await eventually(lambda: sender.reasons and receiver.owner.reasons, "the end of both")
        assert sender.reasons == ["TLS stream broken (DECRYPTION_FAILED_OR_BAD_RECORD_MAC)"]
        assert receiver.owner.items == []
        receiver.close()

    run(test())


def test_an_abandoned_channel_ends_at_once_at_the_other_side(run: Run, credentials: Credentials) -> None:
    async def test() -> None:
        receiver = Receiver(credentials)
        sender, end = await connect(await receiver.listen(), credentials)
        await eventually(lambda: sender.is_open and receiver.owner.is_open, "the channel")
        end.abandon()
        end.send_item(batch("too late"))
        await eventually(lambda: receiver.owner.reasons, "the end")
        assert receiver.owner.items == []
        assert sender.reasons == []
        receiver.close()

    run(test())


# A real job.


def ports_of(job: Any) -> list[int]:
    """Return the driver's port and those of the workers."""
    held = job._run.driver._coordinator.registry.held.values()
    plan = job._run.driver._supply._plan
    return [plan.coordinator_port, *(place.registration.data_port for place in held)]


def certificate_shown(port: int) -> bytes | None:
    """Return the certificate that a listener shows to anybody, or None if it speaks no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((LOOPBACK, port), timeout=DEADLINE_S) as raw:
        try:
            with context.wrap_socket(raw) as connection:
                assert connection.version() == "TLSv1.3"
                return connection.getpeercert(binary_form=True)
        except OSError:
            return None


def answer_to(port: int, said: bytes) -> bytes:
    """Return what a listener answers to a plain-text peer until it closes the connection."""
    with socket.create_connection((LOOPBACK, port), timeout=DEADLINE_S) as raw:
        raw.sendall(said)
        try:
            return raw.recv(1 << 16)
        except ConnectionResetError:
            return b""


def test_an_encrypted_job_with_a_killed_worker_and_unauthenticated_peers_at_its_ports_is_exact(
    tmp_path: Path, started: Any
) -> None:
    """M1, I1, I2, I13, S2: control links and channels, before and after a restart."""
    numbered = NumberedJob(tmp_path, settings={"encryption": "on"}, held=True)
    job = started(numbered)
    for restarts in (0, 1):
        until(lambda: job.report().restarts == restarts and job.status == "running", "the job")  # noqa: B023
        before = len(job.checkpoints())
        until(lambda: len(job.checkpoints()) >= before + 2, "checkpoints")  # noqa: B023
        ports = ports_of(job)
        assert len(ports) == 3
        (shown,) = {certificate_shown(port) for port in ports}
        assert shown is not None
        assert [answer_to(port, b"XCUT\x01\x01" + bytes(92)) for port in ports] == [b""] * 3
        if restarts == 0:
            (victim, _) = started.watch(job)
            os.kill(victim, signal.SIGKILL)
            until(lambda: is_gone(victim), "the worker to die")  # noqa: B023
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.report().restarts == 1
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
    key = job._run.driver._credentials.certificate._key
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert stored
    assert not any(key in path.read_bytes() or b"PRIVATE KEY" in path.read_bytes() for path in stored)


def test_a_job_is_not_encrypted_where_spark_is_not(tmp_path: Path, started: Any) -> None:
    """The default, in local mode."""
    numbered = NumberedJob(tmp_path, held=True)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 1, "a checkpoint")
    assert [certificate_shown(port) for port in ports_of(job)] == [None] * 3
    job.stop()


@pytest.mark.parametrize("encryption", ["auto", "required", "on", "off"])
def test_a_key_that_would_travel_in_the_open_is_warned_of_or_refused(
    spark: SparkContext, encryption: Any
) -> None:
    """S1: TLS is worth no more than the way its key takes; on loopback nobody can listen."""
    settings = Settings(encryption=encryption)
    is_encrypted = encryption in ("required", "on")
    assert checked_encryption(settings, spark, LOOPBACK) is is_encrypted
    complaint = "the key travels through Spark" if is_encrypted else "are not encrypted"
    if encryption == "required":
        with pytest.raises(SettingsError, match=complaint):
            checked_encryption(settings, spark, "10.0.0.1")
    elif encryption == "off":
        assert checked_encryption(settings, spark, "10.0.0.1") is False
    else:
        with pytest.warns(RuntimeWarning, match=r"spark\.ssl\.rpc\.enabled=true"):
            assert checked_encryption(settings, spark, "10.0.0.1") is is_encrypted
    with pytest.raises(SettingsError, match=complaint):
        checked_encryption(replace(settings, strict=True), spark, "10.0.0.1")


def test_a_job_with_a_large_graph_writes_no_secret_to_a_file_and_deletes_the_graph(
    tmp_path: Path, spark: SparkContext, started: Any
) -> None:
    """S1: PySpark writes closures of more than 1 MB to a file, which it keeps."""
    large = os.urandom(3_000_000)
    marker = large[:64]

    def looked_up(one: Any) -> Any:
        assert large
        return one

    numbered = NumberedJob(tmp_path, hook=looked_up, held=True)

    def files_with(secret: bytes) -> list[Path]:
        return [
            one
            for one in Path(str(spark._temp_dir)).rglob("*")
            if one.is_file() and secret in one.read_bytes()
        ]

    job = started(numbered)
    until(lambda: job.status == "running", "the job to run")
    assert files_with(job._run.driver._credentials.secret) == []
    assert [oct(one.stat().st_mode & 0o777) for one in files_with(marker)] == ["0o600"]
    numbered.open_gate()
    assert job.wait(DEADLINE_S)
    assert files_with(marker) == []
    numbered.check_output_is_exact()
