"""Connections over real loopback sockets: who gets in, who is closed, and what never reaches a decoder."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import crosscut.net.connections as connections
import crosscut.net.listener as listener
from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.net.connections import (
    AcceptingSide,
    ConnectingSide,
    Credentials,
)
from crosscut.net.listener import Listener
from crosscut.wire import unauthenticated_peers
from crosscut.wire.frames import CONTROL_LIMITS, Frame, FrameDecoder, FrameType
from crosscut.wire.handshake import HANDSHAKE_BYTES_MAX, Proven, Role, Verdict, worker_detail
from crosscut.wire.unauthenticated_peers import Reason

CREDENTIALS = Credentials(b"s" * 32, b"j" * 16)
DETAIL = worker_detail(WorkerIndex(0), AttemptId(1))
DEADLINE_S = 100.0
IDLE_MAX = 16
"""Unproven connections allowed here: few, so that a burst of them fits into the backlog of the listener."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is closed for the pace of this machine."""
    monkeypatch.setattr(connections, "HANDSHAKE_DEADLINE_S", 10 * DEADLINE_S)


@pytest.fixture(autouse=True)
def _few_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unauthenticated_peers, "ROOM_MAX", IDLE_MAX)
    monkeypatch.setattr(unauthenticated_peers, "ADDRESS_MAX", IDLE_MAX)


class CountingDecoder(FrameDecoder):
    """The real decoder, which also remembers all that it was fed."""

    def __init__(self, limits: Mapping[FrameType, int] = CONTROL_LIMITS) -> None:
        super().__init__(limits, sequenced=False)
        self.fed = b""

    def feed(self, data: bytes) -> None:
        self.fed += data
        super().feed(data)


class End:
    """What both kinds of ends note; `changed` wakes whoever waits for a condition."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.lost_reason: str | None = None
        self.is_opened = False
        self.changed = asyncio.Event()

    def opened(self) -> None:
        self.is_opened = True
        self.changed.set()

    def received(self, frame: Frame) -> None:
        self.frames.append(bytes(frame.payload))
        self.changed.set()

    def lost(self, reason: str) -> None:
        assert self.lost_reason is None, "told twice"
        self.lost_reason = reason
        self.changed.set()

        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Server(End, AcceptingSide):
    def __init__(
        self,
        listener: Listener,
        verdict: Verdict | None = Verdict.ACCEPTED,
        credentials: Credentials = CREDENTIALS,
    ) -> None:
        End.__init__(self)
        self.decoder = CountingDecoder()
        AcceptingSide.__init__(self, listener, credentials, Role.WORKER_TO_COORDINATOR, self.decoder)
        self.verdict = verdict
        self.proven: Proven | None = None

    def decide(self, proven: Proven) -> Verdict | None:
        self.proven = proven
        self.changed.set()
        return self.verdict


class Client(End, ConnectingSide):
    def __init__(
        self, credentials: Credentials = CREDENTIALS, role: Role = Role.WORKER_TO_COORDINATOR
    ) -> None:
        End.__init__(self)
        self.decoder = CountingDecoder()
        ConnectingSide.__init__(self, credentials, role, Epoch(3), DETAIL, self.decoder)


class Site:
    """A listener with the ends it has accepted, in order."""

    def __init__(self, verdict: Verdict | None = Verdict.ACCEPTED) -> None:
        self.listener = Listener("the test", Random(7).randrange)
        self.verdict = verdict
        self.credentials = CREDENTIALS
        self.accepted: list[Server] = []
        self.port = 0
        self.clients: list[Client] = []
        self.unauthenticated_peers: list[asyncio.StreamWriter] = []
        self._idle: list[socket.socket] = []
        self._arrived = asyncio.Event()

    def accept(self) -> Server:
        server = Server(self.listener, self.verdict, self.credentials)
        self.accepted.append(server)
        self._arrived.set()
        return server

    async def listen(self) -> Site:
        self.port = await self.listener.listen("127.0.0.1", lambda: self.accept())
        return self

    async def server(self, index: int = 0) -> Server:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.accepted) <= index:
                self._arrived.clear()
                await self._arrived.wait()
        return self.accepted[index]

    async def connected(self, client: Client) -> Client:
        return await self.connected_to(self.port, client)

    async def connected_to(self, port: int, client: Client) -> Client:
        self.clients.append(client)
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
        return client

    async def unauthenticated_peer(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A peer that speaks bytes of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.unauthenticated_peers.append(writer)
        return reader, writer

    async def idle(self, count: int) -> list[socket.socket]:
        """Peers that connect all at once and say nothing."""
        loop = asyncio.get_running_loop()
        idle = [socket.socket() for _ in range(count)]
        for one in idle:
            one.setblocking(False)
        self._idle += idle
        await asyncio.gather(*(loop.sock_connect(one, ("127.0.0.1", self.port)) for one in idle))
        return idle

    async def close(self) -> None:
        self.listener.close()
        for one in self._idle:
            one.close()
        for writer in self.unauthenticated_peers:
            writer.transport.abort()
        for end in (*self.accepted, *self.clients):
            end.close("the test is over")
        for end in (*self.accepted, *self.clients):
            await end.until(lambda one=end: one.lost_reason is not None)  # type: ignore[misc]


def played(scene: Callable[[Site], Coroutine[Any, Any, None]], verdict: Verdict | None) -> None:
    async def play() -> None:
        site = await Site(verdict).listen()
        try:
            await scene(site)
        finally:
            await site.close()

    asyncio.run(play())


def scene(
    verdict: Verdict | None = Verdict.ACCEPTED,
) -> Callable[[Callable[[Site], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Make a test of a coroutine that gets a listening site."""

    def decorated(function: Callable[[Site], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def test() -> None:
            played(function, verdict)

        test.__doc__ = function.__doc__
        return test

    return decorated


# Genuine peers.


@scene()
async def test_two_ends_that_know_the_secret_exchange_frames_both_ways(site: Site) -> None:
    client = await site.connected(Client())
    server = await site.server()
    await client.until(lambda: client.is_open)
    await server.until(lambda: server.is_open)
    assert server.proven == Proven(Role.WORKER_TO_COORDINATOR, Epoch(3), DETAIL)
    assert client.local_address == "127.0.0.1"
    payloads = [b"x", b"", b"y" * 1_000_000]
    for payload in payloads:
        client.send(FrameType.CONTROL, payload)
        server.send(FrameType.CONTROL, payload)
    await server.until(lambda: len(server.frames) == 3)
    await client.until(lambda: len(client.frames) == 3)
    assert server.frames == client.frames == payloads
    client.close_gently("enough")
    await server.until(lambda: server.lost_reason is not None)
    await client.until(lambda: client.lost_reason is not None)
    assert (client.lost_reason, server.lost_reason) == ("enough", "closed by the peer")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the platform has no such option")
@scene()
async def test_both_ends_have_the_kernel_notice_a_peer_that_has_vanished(site: Site) -> None:
    """E2: half of it; that the kernel does so would take a network that drops packets."""
    client = await site.connected(Client())
    server = await site.server()
    await server.until(lambda: server.is_open)
    for end in (client, server):
        assert end._transport is not None
        found = end._transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [found.getsockopt(socket.IPPROTO_TCP, one) for one in options] == [5, 5, 3]


@scene()
async def test_a_frame_in_one_packet_with_the_verdict_is_not_lost(site: Site) -> None:
    class Eager(Server):
        def opened(self) -> None:
            super().opened()
            self.send(FrameType.CONTROL, b"at once")

    site.accept = lambda: Eager(site.listener)  # type: ignore[method-assign]
    client = await site.connected(Client())
    await client.until(lambda: client.frames == [b"at once"])


@scene(verdict=None)
async def test_a_verdict_may_come_later_than_the_deadline_of_the_handshake(site: Site) -> None:
    """A peer that has heard of its epoch first waits for the other's deployment."""
    client = await site.connected(Client())
    server = await site.server()
    await server.until(lambda: server.proven is not None)
    await client.until(lambda: client._deadline is None)
    assert server._deadline is None
    assert not client.is_opened
    server.give_verdict(Verdict.ACCEPTED)
    await client.until(lambda: client.is_opened)


@pytest.mark.parametrize("verdict", [Verdict.STALE_EPOCH, Verdict.REFUSED])
def test_a_genuine_peer_that_is_not_wanted_is_told_why(verdict: Verdict) -> None:
    async def scene_(site: Site) -> None:
        client = await site.connected(Client())
        await client.until(lambda: client.lost_reason is not None)
        assert client.lost_reason == f"the peer refused: {verdict.name.lower().replace('_', ' ')}"
        assert not client.is_opened

    played(scene_, verdict)


@scene()
async def test_what_is_sent_after_the_end_goes_nowhere(site: Site) -> None:
    client = await site.connected(Client())
    await client.until(lambda: client.is_open)
    client.close("done")
    await client.until(lambda: client.lost_reason is not None)
    client.send(FrameType.CONTROL, b"late")
    client.close_gently("again")
    assert client.lost_reason == "done"


@scene()
async def test_a_proven_peer_that_breaks_the_frame_rules_is_closed(site: Site) -> None:
    """M3: the limit is checked before anything of the payload is gathered."""
    client = await site.connected(Client())
    server = await site.server()
    await client.until(lambda: client.is_open)
    client._write(b"XC\x03\x04\xff\xff\xff\xff" + bytes(12))
    await server.until(lambda: server.lost_reason is not None)
    assert server.lost_reason is not None
    assert "its limit is" in server.lost_reason
    assert server.frames == []
    await client.until(lambda: client.lost_reason is not None)


# Peers that are not genuine. None of their bytes may reach a decoder (I13).


async def closed_without_a_trace(site: Site, index: int = 0) -> Server:
    server = await site.server(index)
    await server.until(lambda: server.lost_reason is not None)
    assert (server.decoder.fed, server.frames, server.proven, server.is_opened) == (b"", [], None, False)
    return server


@pytest.mark.parametrize(
    "credentials",
    [Credentials(b"x" * 32, CREDENTIALS.job), Credentials(CREDENTIALS.secret, b"k" * 16)],
    ids=["other secret", "other job"],
)
def test_a_peer_with_another_secret_or_of_another_job_is_closed(credentials: Credentials) -> None:
    """M1. The client finds out first if only the secret differs: the server has to prove it, too."""

    async def scene_(site: Site) -> None:
        client = await site.connected(Client(credentials))
        await client.until(lambda: client.lost_reason is not None)
        assert (client.is_opened, client.decoder.fed) == (False, b"")
        await closed_without_a_trace(site)

    played(scene_, Verdict.ACCEPTED)


@scene()
async def test_a_client_that_only_claims_to_know_the_secret_is_closed(site: Site) -> None:
    """M1: one that goes on although the server's proof does not fit its own secret."""
    reader, writer = await site.unauthenticated_peer()
    writer.write(Client()._handshake.hello)
    await reader.readexactly(64)
    writer.write(bytes(32))
    assert await reader.read() == b""
    await closed_without_a_trace(site)


@scene()
async def test_a_peer_of_another_role_is_closed(site: Site) -> None:
    """M4: a channel can't pose as a control link."""
    client = await site.connected(Client(role=Role.WORKER_TO_WORKER))
    await client.until(lambda: client.lost_reason is not None)
    await closed_without_a_trace(site)


@scene()
async def test_a_recorded_conversation_is_worth_nothing_the_second_time(site: Site) -> None:
    """M4: the server's nonce is another one."""
    recorded = b""

    class Recording(Client):
        def _write(self, data: bytes) -> None:
            nonlocal recorded
            recorded += data
            super()._write(data)

    client = await site.connected(Recording())
    await client.until(lambda: client.is_open)
    _, writer = await site.unauthenticated_peer()
    writer.write(recorded)
    await closed_without_a_trace(site, 1)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 20, bytes(1_000_000), b"XCUT" * 500])
def test_garbage_is_closed(garbage: bytes) -> None:
    """M2."""

    async def scene_(site: Site) -> None:
        _, writer = await site.unauthenticated_peer()
        writer.write(garbage)
        server = await closed_without_a_trace(site)
        assert server.lost_reason is not None
        assert server.lost_reason.startswith("handshake refused")
        assert server._handshake is not None
        assert len(server._handshake._unread) <= HANDSHAKE_BYTES_MAX

    played(scene_, Verdict.ACCEPTED)


@scene()
async def test_a_server_that_is_not_genuine_is_told_no_proof(site: Site) -> None:
    """M1: garbage from the side that was connected to."""

    class Impostor(asyncio.Protocol):
        heard = b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(bytes(64))

        def data_received(self, data: bytes) -> None:
            Impostor.heard += data

    impostor = await asyncio.get_running_loop().create_server(Impostor, "127.0.0.1", 0)
    client = Client()
    port: int = impostor.sockets[0].getsockname()[1]
    await site.connected_to(port, client)
    await client.until(lambda: client.lost_reason is not None)
    assert client.decoder.fed == b""
    assert client._handshake.hello.startswith(Impostor.heard)
    impostor.close()


@pytest.mark.parametrize("sent_bytes", [0, 1, 50])
def test_a_slow_peer_is_closed_at_the_deadline_however_it_trickles(
    sent_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: bytes of its own do not give it more time."""
    monkeypatch.setattr(connections, "HANDSHAKE_DEADLINE_S", 0.2)

    async def scene_(site: Site) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        reader, writer = await site.unauthenticated_peer()
        for byte in Client()._handshake.hello[:sent_bytes]:
            writer.write(bytes([byte]))
        server = await closed_without_a_trace(site)
        assert server.lost_reason == Reason.LATE.value
        assert loop.time() - started_s >= 0.19
        assert await reader.read() == b""

    played(scene_, Verdict.ACCEPTED)


@scene()
async def test_a_client_gives_a_silent_server_up_at_the_deadline(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as silent:
        patch.setattr(connections, "HANDSHAKE_DEADLINE_S", 0.1)
        client = Client()
        port = silent.getsockname()[1]
        await site.connected_to(port, client)
        await client.until(lambda: client.lost_reason is not None)
        assert client.lost_reason == Reason.LATE.value


@scene()
async def test_a_real_peer_is_served_among_many_idle_connections_and_most_of_them_are_closed(
    site: Site,
) -> None:
    """M2, S13: also if they come in a single burst, faster than closed ones go away."""
    count = 3 * IDLE_MAX
    await site.idle(count)
    await site.server(count - 1)
    closed = "too many at once"

    def crowded() -> list[Server]:
        return [one for one in site.accepted if one.lost_reason == closed]

    async with asyncio.timeout(DEADLINE_S):
        while len(crowded()) < count - IDLE_MAX:
            await asyncio.sleep(0)
    assert site.listener.refusals == {closed: count - IDLE_MAX}
    assert crowded() != site.accepted[: count - IDLE_MAX], "by lot, not by age"
    client = await site.connected(Client())
    await client.until(lambda: client.is_open)
    client.send(FrameType.CONTROL, b"hello")
    real = await site.server(count)
    await real.until(lambda: real.frames == [b"hello"])
    assert sum(server.lost_reason is None for server in site.accepted) <= IDLE_MAX + 1


@scene()
async def test_a_proven_peer_is_not_closed_for_idle_ones_that_come_later(site: Site) -> None:
    """M2."""
    await site.connected(Client())
    server = await site.server()
    await server.until(lambda: server.is_open)
    await site.idle(IDLE_MAX + 5)
    last = await site.server(IDLE_MAX + 5)
    site.listener.close()
    await last.until(lambda: last.lost_reason is not None)
    assert server.lost_reason is None


@scene()
async def test_a_peer_that_has_said_hello_is_not_closed_for_silent_ones_that_come_later(site: Site) -> None:
    """The genuine peer in the middle of its handshake is who must not go."""
    reader, writer = await site.unauthenticated_peer()
    writer.write(Client()._handshake.hello)
    assert len(await reader.readexactly(64)) == 64, "the challenge"
    await site.idle(4 * IDLE_MAX)
    await site.server(4 * IDLE_MAX)
    assert site.accepted[0].lost_reason is None


@scene()
async def test_who_is_refused_is_counted_by_reason(site: Site) -> None:
    """S13, M1."""
    client = await site.connected(Client(replace(CREDENTIALS, secret=b"x" * 32)))
    await client.until(lambda: client.lost_reason is not None)
    _, writer = await site.unauthenticated_peer()
    writer.write(b"GET / HTTP/1.1\r\n")
    (idle,) = await site.idle(1)
    idle.close()
    for index in range(3):
        server = await site.server(index)
        await server.until(lambda: server.lost_reason is not None)  # noqa: B023
    # The first found out for itself that the listener is not of its job.
    assert site.listener.refusals == {"went away without a proof": 2, "no proof of the secret": 1}


def test_a_flood_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """S13: the log of a job that is attacked can be read."""

    async def scene_(site: Site) -> None:
        idle = await site.idle(3 * IDLE_MAX)
        await site.server(len(idle) - 1)

    played(scene_, Verdict.ACCEPTED)
    (line,) = [one.getMessage() for one in caplog.records if one.name.startswith("crosscut")]
    assert line.startswith("the test has refused 1 connections that did not prove the job's secret (too many")
    assert "127.0.0.1" in line


@scene()
async def test_a_listener_lets_many_wait_and_takes_few_in_a_turn(site: Site) -> None:
    """Otherwise whoever is being served would wait for a whole flood to be taken."""
    taken: list[int] = []
    loop = asyncio.get_running_loop()
    # They are connected before the loop looks at the listener: in the kernel.
    idle = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(3 * listener.ACCEPT_MAX)]
    site._idle += idle

    def look() -> None:
        taken.append(len(site.accepted))
        if taken[-1] < len(idle):
            loop.call_soon(look)

    look()
    await site.server(len(idle) - 1)
    # Since Python 3.14 asyncio accepts one more than it is told.
    assert max(after - before for before, after in pairwise(taken)) <= listener.ACCEPT_MAX + 1


@scene()
async def test_closing_the_listener_closes_who_has_not_proven_the_secret_and_nobody_else(site: Site) -> None:
    await site.connected(Client())
    server = await site.server()
    await server.until(lambda: server.is_open)
    await site.unauthenticated_peer()
    unproven = await site.server(1)
    site.listener.close()
    await unproven.until(lambda: unproven.lost_reason is not None)
    assert unproven.lost_reason == "the listener is closed"
    assert server.lost_reason is None


def test_credentials_do_not_show_the_secret() -> None:
    assert repr(CREDENTIALS) == "Credentials(...)"


# Whoever connects


class FullPort:
    """A listening socket that takes nothing, and whose queue is full: the kernel ignores who comes now."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port: int = self.listening.getsockname()[1]
        self.listening.setblocking(False)
        self.taken: list[socket.socket] = []
        self.waiting = [socket.socket() for _ in range(4)]
        for one in self.waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", self.port))

    def make_room(self) -> None:
        """Those who wait go away, and whoever is in the queue is taken."""
        for one in self.waiting:
            one.close()
        with suppress(BlockingIOError):
            while True:
                self.taken.append(self.listening.accept()[0])

    def close(self) -> None:
        for one in (self.listening, *self.waiting, *self.taken):
            one.close()


def counted_attempts(patch: pytest.MonkeyPatch, then: Callable[[int], None]) -> list[str]:
    """Note each attempt to connect; call `then` with how many there were."""
    attempts: list[str] = []
    loop = asyncio.get_running_loop()
    plain = loop.create_connection

    def counted(*arguments: Any, **more: Any) -> Any:
        attempts.append("tried")
        then(len(attempts))
        return plain(*arguments, **more)

    patch.setattr(loop, "create_connection", counted)
    return attempts


@scene()
async def test_who_is_not_answered_asks_again(site: Site) -> None:
    """Under a flood each attempt is a draw, and the kernel alone makes few of them."""
    full = FullPort()

    def make_room(attempts: int) -> None:
        if attempts >= 3:
            full.make_room()

    client = Client()
    site.clients.append(client)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "CONNECT_PATIENCE_S", 0.05)
        attempts = counted_attempts(patch, make_room)
        async with asyncio.timeout(DEADLINE_S):
            await connections.connect(client, "127.0.0.1", full.port)
    assert len(attempts) >= 3
    assert client.local_address == "127.0.0.1"
    client.close("the test is over")
    full.close()


@scene()
async def test_who_is_never_answered_is_told_so(site: Site) -> None:
    full = FullPort()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "CONNECT_PATIENCE_S", 0.02)
        patch.setattr(connections, "CONNECT_ATTEMPTS_MAX", 3)
        attempts = counted_attempts(patch, lambda _: None)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.06 s"):
            await connections.connect(Client(), "127.0.0.1", full.port)
    assert len(attempts) == 3
    full.close()


@scene()
async def test_where_nobody_listens_nothing_is_tried_again(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        attempts = counted_attempts(patch, lambda _: None)
        with pytest.raises(ConnectionRefusedError):
            await connections.connect(Client(), "127.0.0.1", port)
    assert len(attempts) == 1


# Seals


SEALING = replace(CREDENTIALS, seals_frames=True)


@scene()
async def test_sealed_frames_go_both_ways(site: Site) -> None:
    """S2: small ones, which are joined, and large ones, which are not."""
    site.credentials = SEALING
    client = await site.connected(Client(SEALING))
    await client.until(lambda: client.is_open)
    server = await site.server()
    sent = [b"small", b"", b"x" * 200_000]
    for payload in sent:
        client.send(FrameType.CONTROL, payload)
        server.send(FrameType.CONTROL, payload[::-1])
    await server.until(lambda: server.frames == sent)
    await client.until(lambda: client.frames == [payload[::-1] for payload in sent])


@scene()
async def test_a_byte_that_was_changed_on_the_way_ends_a_sealed_connection(site: Site) -> None:
    """M4: nothing of the frame is passed on."""
    site.credentials = SEALING

    class Changed(Client):
        def _write(self, data: bytes) -> None:
            super()._write(data.replace(b"pay 1", b"pay 9"))

    client = await site.connected(Changed(SEALING))
    await client.until(lambda: client.is_open)
    server = await site.server()
    client.send(FrameType.CONTROL, b"hello")
    client.send(FrameType.CONTROL, b"pay 1")
    await server.until(lambda: server.lost_reason is not None)
    assert server.frames == [b"hello"]
    assert server.lost_reason is not None
    assert server.lost_reason.startswith("CONTROL frame of 5 bytes has another seal")


@scene()
async def test_a_peer_that_leaves_the_seals_out_is_closed(site: Site) -> None:
    """They can't be talked away: both sides know from the job whether there are any."""
    site.credentials = SEALING
    client = await site.connected(Client(CREDENTIALS))
    await client.until(lambda: client.is_open)
    server = await site.server()
    for _ in range(2):
        client.send(FrameType.CONTROL, b"x" * 100)
    await server.until(lambda: server.lost_reason is not None)
    assert server.frames == []


@pytest.mark.parametrize(("heartbeat_timeout_ms", "deadline_s"), [(200, 5.0), (10_000, 5.0), (60_000, 30.0)])
def test_a_patient_job_waits_longer_for_the_handshakes_of_its_own_slow_processes(
    monkeypatch: pytest.MonkeyPatch, heartbeat_timeout_ms: int, deadline_s: float
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_DEADLINE_S", 5.0)
    one = Credentials(b"s", b"j", heartbeat_timeout_ms=heartbeat_timeout_ms)
    assert one.handshake_deadline_s == deadline_s
