"""What connects workers: one connection for two of them, with all their channels, epoch by epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

from crosscut.foundation.batch import Batch, NumberedBatch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.net import channels as channels_module
from crosscut.net.connections import Credentials
from crosscut.net.listener import Listener
from crosscut.net.mesh import Mesh
from crosscut.net.peer_links import PeerLink
from crosscut.protocol.messages import FailureCause, Peer
from crosscut.protocol.unit_log.entries import ChannelPosition, NumberedRecords
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    ConnectionId,
    InputsAcknowledged,
    RecordsArrived,
    ResumeAsked,
    ResumeRefused,
)
from crosscut.task.flow_control import Credit, SendingEnd
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.wire.batches import encode_batch
from crosscut.wire.frames import PIECE_BYTES_MAX, FrameType, encode_credit, encode_position
from crosscut.wire.handshake import Proven, Verdict

DEADLINE_S = 100.0
LOOPBACK = "127.0.0.1"
CREDENTIALS = Credentials(b"s" * 32, b"j" * 16, seals_frames=True)
CHANNEL_BYTES = 1_000
E1, E2 = Epoch(1), Epoch(2)


def channel(vertex: str, source: int, target: int, place: int = 0) -> ChannelId:
    return ChannelId(place, TaskId(VertexId(vertex), source), TaskId(VertexId(f"after {vertex}"), target))


A, B = channel("a", 0, 1), channel("b", 0, 1)
BACK = channel("c", 1, 0)
SHARED = [A, B, BACK]


class Site:
    """One worker, as far as its connections go: writes down what they bring."""

    def __init__(self, index: int, credentials: Credentials = CREDENTIALS) -> None:
        self.index = WorkerIndex(index)
        self.listener = Listener(f"worker {index}", lambda _: 0)
        self.mesh = Mesh(self.index, self, self.listener, credentials)
        self.port = 0
        self.items: list[tuple[ChannelId, Item]] = []
        self.sizes: list[int] = []
        self.ends = {one: SendingEnd(one, CHANNEL_BYTES) for one in SHARED}
        self.lost: list[tuple[TaskId, str]] = []
        self.kinds: list[str] = []

    async def listen(self) -> Peer:
        self.port = await self.listener.listen(LOOPBACK, self.mesh.accept)
        return Peer(self.index, LOOPBACK, self.port)

    def channel_received(self, channel: ChannelId, item: Item, size_bytes: int) -> None:
        self.items.append((channel, item))
        self.sizes.append(size_bytes)

    def channel_credited(self, channel: ChannelId, credit: Credit) -> None:
        self.ends[channel].credited(credit)

    def send(self, channel: ChannelId, item: Item) -> None:
        rows = len(item) if isinstance(item, Batch) else 0
        self.ends[channel].sent(self.mesh.outgoing[channel].send_item(item), rows)

    def connection_lost(self, task: TaskId, cause: FailureCause) -> None:
        self.lost.append((task, cause.message))
        self.kinds.append(cause.kind)

    def of(self, channel: ChannelId) -> list[Item]:
        return [item for one, item in self.items if one == channel]


class UnitSite(Site):
    """One worker whose records have numbers."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.mesh = Mesh(self.index, self, self.listener, CREDENTIALS, unit_host=self)
        self.events: list[object] = []

    def channel_opened(self, event: ChannelConnected | ChannelAccepted) -> None:
        self.events.append(event)

    def records_arrived(
        self, event: RecordsArrived, item: NumberedBatch | EndOfInput, size_bytes: int
    ) -> None:
        self.events.append(event)
        self.items.append((event.channel, item))

    def barrier_arrived(self, channel: ChannelId, barrier: Barrier) -> None:
        self.items.append((channel, barrier))

    def handle_peer_event(self, event: ResumeAsked | ResumeRefused | InputsAcknowledged) -> None:
        self.events.append(event)


class Pair:
    """Workers 0 and 1."""

    def __init__(self) -> None:
        self.sites: list[Site] = [Site(0), Site(1)]
        self.peers: dict[WorkerIndex, Peer] = {}

    async def listen(self) -> None:
        self.peers = {site.index: await site.listen() for site in self.sites}

    async def begin(self, epoch: Epoch, shared: list[ChannelId] = SHARED) -> None:
        for site in self.sites:
            site.mesh.expect(epoch, shared)
        await asyncio.gather(*(site.mesh.connect(self.peers) for site in self.sites))
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(site.mesh.all_open.wait() for site in self.sites))

    def peer_link(self, index: int) -> PeerLink:
        (found,) = self.sites[index].mesh._peer_links.values()
        return found

    def close(self) -> None:
        for site in self.sites:
            site.mesh.close()
            site.listener.close()


async def eventually(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0)
    assert condition(), what


def scene(test: Callable[[Pair], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def play() -> None:
            pair = Pair()
            await pair.listen()
            try:
                await test(pair)
            finally:
                pair.close()

        asyncio.run(play())

    # Or pytest takes the pair for a fixture.
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


@scene
async def test_two_workers_have_one_connection_for_all_their_channels_of_both_directions(pair: Pair) -> None:
    await pair.begin(E1)
    one, other = (site.mesh for site in pair.sites)
    assert (len(one._peer_links), len(other._peer_links)) == (1, 1)
    assert (set(one.outgoing), set(one.incoming)) == ({A, B}, {BACK})
    assert (set(other.outgoing), set(other.incoming)) == ({BACK}, {A, B})
    batch = Batch(["there"])
    one.outgoing[A].send_item(batch)
    one.outgoing[B].send_item(Barrier(CheckpointId(7)))
    one.outgoing[A].send_item(EndOfInput())
    other.outgoing[BACK].send_item(Batch(["back"]))
    await eventually(lambda: len(pair.sites[1].items) == 3 and pair.sites[0].items, "all")
    there, *rest = pair.sites[1].of(A)
    assert isinstance(there, Batch) and there.records == ["there"]
    assert rest == [EndOfInput()]
    assert pair.sites[1].of(B) == [Barrier(CheckpointId(7))]
    (back,) = pair.sites[0].of(BACK)
    assert isinstance(back, Batch) and back.records == ["back"]


@scene
async def test_a_channel_without_credit_holds_up_nothing_but_itself(pair: Pair) -> None:
    """B goes on, with credit of its own, and so do the barriers of A itself."""
    await pair.begin(E1)
    sender, receiver = pair.sites
    a, b = sender.ends[A], sender.ends[B]
    sender.send(A, Batch(["x" * CHANNEL_BYTES]))
    assert (a.is_used_up, b.is_used_up) == (True, False)
    for number in range(5):
        sender.send(B, Batch([number]))
    sender.send(A, Barrier(CheckpointId(1)))
    await eventually(lambda: len(receiver.items) == 7, "what B and the barrier are")
    of_b = sum(size for (at, item), size in zip(receiver.items, receiver.sizes, strict=True) if at == B)
    receiver.mesh.give_credit(B, Credit(of_b, 5, 7))
    receiver.mesh.give_credit(A, Credit(receiver.sizes[0], 1, 8))
    await eventually(lambda: not a.is_used_up, "A to go on")
    assert (a.under_way_bytes, b.under_way_bytes) == (0, 0)
    assert (a.under_way_rows, b.under_way_rows) == (0, 0)
    assert (a.rows_max, b.rows_max) == (8, 7)


@scene
async def test_the_barrier_of_one_channel_passes_the_large_batch_of_another(pair: Pair) -> None:
    """More than all buffers between the two workers take: without turns it would come in behind it."""
    await pair.begin(E1)
    sender, receiver = pair.sites
    sender.send(A, Batch([bytes(50_000_000)]))
    sender.send(B, Barrier(CheckpointId(1)))
    await eventually(lambda: len(receiver.items) == 2, "both")
    assert [at for at, _ in receiver.items] == [B, A]
    (_, large), size = receiver.items[1], receiver.sizes[1]
    assert isinstance(large, Batch) and large.records == [bytes(50_000_000)]
    # Credit is for what the sender counted, in however many pieces it went.
    assert sender.ends[A].under_way_bytes == size


@scene
async def test_what_is_wrong_on_a_channel_ends_the_connection(pair: Pair) -> None:
    """M3: each names the channel, and nothing of it is passed on."""
    credit = encode_credit(1, 0, 1)
    cases: list[tuple[list[tuple[int, FrameType, bytes]], str]] = [
        ([(0, FrameType.CREDIT, credit)], "unexpected CREDIT frame"),
        ([(2, FrameType.BARRIER, bytes(7) + b"\1")], "BARRIER frame from its receiving end"),
        ([(2, FrameType.CREDIT, credit)], "credit for 1 of 0 bytes"),
        ([(2, FrameType.CREDIT, encode_credit(0, 1, 1))], "credit for 1 of 0 records"),
        ([(2, FrameType.CREDIT, encode_credit(0, 0, 0))], "takes no records any more"),
        ([(1, FrameType.PIECE, b"x"), (1, FrameType.END_OF_INPUT, b"")], "in the middle of a batch"),
    ]
    numbers = dict(enumerate(sorted(SHARED)))
    for number, (frames, complaint) in enumerate(cases, 1):
        await pair.begin(Epoch(number))
        for at, kind, payload in frames:
            pair.peer_link(0)._send_later(at, kind, payload)
        receiver = pair.sites[1]
        await eventually(lambda: receiver.lost, complaint)  # noqa: B023
        ((task, reason),) = receiver.lost
        assert task.index == 1
        assert complaint in reason
        assert f"channel {numbers[frames[-1][0]]}: " in reason
        assert receiver.items == []
        receiver.lost.clear()
        for site in pair.sites:
            site.mesh.close()


@scene
async def test_pieces_are_refused_once_they_are_more_than_a_batch_may_be(pair: Pair) -> None:
    """S5: a peer that never ends its batch takes no more memory than the longest one."""
    with limit_of_a_batch(3 * PIECE_BYTES_MAX):
        await pair.begin(E1)
        for _ in range(4):
            pair.peer_link(0)._send_later(0, FrameType.PIECE, bytes(PIECE_BYTES_MAX))
        await eventually(lambda: pair.sites[1].lost, "the end")
        assert "a batch of more than" in pair.sites[1].lost[0][1]
        # What nobody may say is not a loss; to the other side it is one.
        await eventually(lambda: pair.sites[0].lost, "the loss")
        assert [site.kinds for site in pair.sites] == [["ConnectionLost"], ["WireError"]]


@contextmanager
def limit_of_a_batch(size_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels_module, "BATCH_BYTES_MAX", size_bytes)
        yield


@scene
async def test_a_transport_that_is_clogged_by_the_handshake_is_still_so_when_the_channels_are_known(
    pair: Pair,
) -> None:
    """Small buffers and TLS; of an unauthenticated peer they never become known."""
    end = pair.sites[1].mesh.accept()
    end.pause_writing()
    end.resume_writing()
    end.pause_writing()
    end.carry(WorkerIndex(1), WorkerIndex(0), sorted(SHARED), pair.sites[1])
    end.outgoing[BACK].send_item(EndOfInput())
    assert not end._send_queues.is_empty


# Epochs


@scene
async def test_the_next_epoch_has_a_connection_of_its_own_and_hears_nothing_of_the_old(
    pair: Pair,
) -> None:
    """I7: what was on its way in the old one is gone."""
    await pair.begin(E1)
    old = pair.peer_link(0)
    for site in pair.sites:
        site.mesh.close()
    old.outgoing[A].send_item(Batch(["of the old one"]))
    await pair.begin(E2)
    assert pair.peer_link(0) is not old
    pair.sites[0].mesh.outgoing[A].send_item(Barrier(CheckpointId(1)))
    await eventually(lambda: pair.sites[1].items, "the barrier")
    assert pair.sites[1].items == [(A, Barrier(CheckpointId(1)))]
    assert [site.lost for site in pair.sites] == [[], []]


@scene
async def test_a_peer_of_an_older_epoch_is_refused_and_a_second_one_of_this_epoch(pair: Pair) -> None:
    """C3, I7."""
    await pair.begin(E2)
    for epoch, reason in ((E1, "the peer refused: stale epoch"), (E2, "the peer refused: refused")):
        zombie = Site(0)
        zombie.mesh.expect(epoch, SHARED)
        await zombie.mesh.connect(pair.peers)
        await eventually(lambda: zombie.lost, "the refusal")  # noqa: B023
        assert zombie.lost == [
            (TaskId(VertexId("after c"), 0), f"the connection to worker 1 is lost: {reason}")
        ]
        assert not zombie.mesh.all_open.is_set()
    assert pair.sites[1].lost == []


@scene
async def test_a_peer_that_has_other_channels_is_refused(pair: Pair) -> None:
    """Or it would know them by other numbers."""
    pair.sites[1].mesh.expect(E1, SHARED)
    pair.sites[0].mesh.expect(E1, [A, B])
    await pair.sites[0].mesh.connect(pair.peers)
    await eventually(lambda: pair.sites[0].lost, "the refusal")
    assert pair.sites[0].lost[0][1].endswith("the peer refused: refused")


@scene
async def test_a_peer_that_is_ahead_waits_until_its_epoch_begins_here(pair: Pair) -> None:
    early, late = pair.sites
    early.mesh.expect(E2, SHARED)
    await early.mesh.connect(pair.peers)
    await eventually(lambda: late.mesh._early, "the peer to be proven")
    assert not early.mesh.all_open.is_set()
    late.mesh.expect(E1, SHARED)
    assert late.mesh._early, "not of this epoch either"
    late.mesh.close()
    late.mesh.expect(E2, SHARED)
    await eventually(lambda: early.mesh.all_open.is_set() and late.mesh.all_open.is_set(), "both to open")


@scene
async def test_a_peer_that_was_ahead_and_has_gone_is_not_waited_with(pair: Pair) -> None:
    """Its place is free for the one that comes instead."""
    gone = Site(0)
    gone.mesh.expect(E1, SHARED)
    await gone.mesh.connect(pair.peers)
    late = pair.sites[1].mesh
    await eventually(lambda: late._early, "the peer to be proven")
    gone.mesh.close()
    await eventually(lambda: not late._early, "it to be forgotten")
    await pair.begin(E1)
    assert pair.sites[1].lost == []


@scene
async def test_a_broken_connection_is_told_once_at_each_end(pair: Pair) -> None:
    await pair.begin(E1)
    transport = pair.peer_link(0)._transport
    assert transport is not None
    transport.abort()
    await eventually(lambda: all(site.lost for site in pair.sites), "both to hear of it")
    assert [[task.index for task, _ in site.lost] for site in pair.sites] == [[0], [1]]
    assert all("the connection to worker" in site.lost[0][1] for site in pair.sites)


@scene
async def test_a_worker_without_channels_to_others_is_open_at_once(pair: Pair) -> None:
    await pair.begin(E1, [])
    assert pair.sites[0].mesh._peer_links == {}


def test_a_verdict_is_none_before_it_is_known_what_the_epoch_has() -> None:
    """A peer must not be refused for coming before this worker has read what it has to deploy."""

    async def test() -> None:
        site = Site(1)
        end = site.mesh.accept()
        assert site.mesh.peer_link_proven(Proven(end._role, E1, b"d" * 32), end) is None
        site.mesh.expect(E1, [channel("a", 0, 2)])
        assert site.mesh.peer_link_proven(Proven(end._role, E1, b"d" * 32), end) is Verdict.REFUSED

    asyncio.run(test())


# Channels between units.


async def unit_sites(pair: Pair) -> list[UnitSite]:
    """Let the workers of `pair` have numbers."""
    pair.close()
    sites = [UnitSite(0), UnitSite(1)]
    pair.sites = [*sites]
    await pair.listen()
    return sites


@scene
async def test_units_resume_acknowledge_and_number_what_they_send(pair: Pair) -> None:
    one, other = await unit_sites(pair)
    await pair.begin(E1)
    first = ConnectionId(1)
    assert one.events == [
        ChannelConnected(A, first),
        ChannelConnected(B, first),
        ChannelAccepted(BACK, first),
    ]
    assert other.events == [
        ChannelConnected(BACK, first),
        ChannelAccepted(A, first),
        ChannelAccepted(B, first),
    ]
    assert not (one.mesh.outgoing or one.mesh.incoming)
    one.events.clear()
    other.events.clear()
    coming, leaving = other.mesh.numbered_incoming[A], one.mesh.numbered_outgoing[A]
    coming.resume(ChannelPosition(2, 0))
    coming.acknowledge(ChannelPosition(1, 0))
    await eventually(lambda: len(one.events) == 2, "the resume")
    assert one.events == [
        ResumeAsked(A, first, ChannelPosition(2, 0)),
        InputsAcknowledged(A, ChannelPosition(1, 0)),
    ]
    long = "x" * (2 * PIECE_BYTES_MAX)
    leaving.send_records(NumberedRecords(3, 4, encode_batch(Batch(["x", long], watermark=5)), 1))
    leaving.send_barrier(CheckpointId(7))
    leaving.send_records(NumberedRecords(5, 4, b"", 2))
    await eventually(lambda: len(other.items) == 3, "all")
    assert other.events == [RecordsArrived(A, first, 3, 4, 1), RecordsArrived(A, first, 5, 4, 2)]
    batch, *rest = other.of(A)
    assert isinstance(batch, NumberedBatch) and batch.records == ["x", long]
    assert rest == [Barrier(CheckpointId(7)), EndOfInput(2)]


@scene
async def test_what_a_peer_of_an_older_epoch_says_has_no_effect(pair: Pair) -> None:
    one, other = await unit_sites(pair)
    await pair.begin(E1)
    coming, leaving = other.mesh.numbered_incoming[A], one.mesh.numbered_outgoing[A]
    for site in pair.sites:
        site.mesh.close()
    await pair.begin(E2)
    second = ConnectionId(2)
    assert ChannelConnected(A, second) in one.events and ChannelAccepted(A, second) in other.events
    one.events.clear()
    # Those of the first epoch go nowhere.
    coming.resume(ChannelPosition(9, 9))
    coming.acknowledge(ChannelPosition(9, 9))
    other.mesh.numbered_incoming[A].resume(ChannelPosition(1, 0))
    await eventually(lambda: one.events, "the resume")
    assert one.events == [ResumeAsked(A, second, ChannelPosition(1, 0))]
    assert leaving.connection != second


@scene
async def test_a_peer_that_resumes_twice_loses_its_connection(pair: Pair) -> None:
    one, other = await unit_sites(pair)
    await pair.begin(E1)
    for _ in range(2):
        pair.peer_link(1)._send_later(0, FrameType.RESUME, encode_position(0, 0))
    await eventually(lambda: one.lost, "the loss")
    ((_, reason),) = one.lost
    assert "unexpected RESUME frame from its receiving end, which is resumed" in reason
    assert one.kinds == ["WireError"]
    assert other.mesh is not None
