"""The conversation of a channel between units: who may say what, and what two ends make of it together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import ProtocolError, WireError
from crosscut.foundation.batch import Batch, NumberedBatch
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.net.channels import IncomingChannel
from crosscut.net.numbered_channels import TRANSITIONS, NumberedIncoming, NumberedOutgoing, Phase
from crosscut.protocol.unit_log import effects as do
from crosscut.protocol.unit_log.entries import START, ChannelPosition, NumberedRecords
from crosscut.protocol.unit_log.events import (
    ChannelAccepted,
    ChannelConnected,
    ConnectionId,
    InputsAcknowledged,
    RecordsArrived,
    RecordsEmitted,
    ResumeAsked,
    ResumeRefused,
)
from crosscut.protocol.unit_log.numbers import NumberedReceiver, NumberedSender
from crosscut.task.items import Barrier, EndOfInput
from crosscut.wire.batches import encode_batch, with_numbers
from crosscut.wire.frames import (
    Frame,
    FrameType,
    Payload,
    encode_barrier,
    encode_credit,
    encode_position,
)

CHANNEL = ChannelId(0, TaskId(VertexId("a"), 0), TaskId(VertexId("b"), 1))
ONE = ConnectionId(1)
BARRIER = Barrier(CheckpointId(7))


class Heard:
    """Hears what both ends of a channel say."""

    def __init__(self) -> None:
        self.sent: list[tuple[FrameType, bytes]] = []
        self.events: list[object] = []
        self.items: list[NumberedBatch | EndOfInput | Barrier] = []

    def send(self, kind: FrameType, payload: Payload) -> None:
        self.sent.append((kind, bytes(payload)))

    def records_arrived(
        self, event: RecordsArrived, item: NumberedBatch | EndOfInput, size_bytes: int
    ) -> None:
        self.events.append(event)
        self.items.append(item)

    def barrier_arrived(self, channel: ChannelId, barrier: Barrier) -> None:
        self.items.append(barrier)

    def handle_peer_event(self, event: ResumeAsked | ResumeRefused | InputsAcknowledged) -> None:
        self.events.append(event)


def frame(kind: FrameType, payload: bytes = b"") -> Frame:
    return Frame(kind, 1, payload)


def position(record: int, news: int = 0) -> ChannelPosition:
    return ChannelPosition(record, news)


def run(first: int, count: int, news: int = 0) -> NumberedRecords:
    batch = Batch([*range(first, first + count)], watermark=news or None)
    return NumberedRecords(first, first + count - 1, encode_batch(batch), news)


RESUME = frame(FrameType.RESUME, encode_position(2, 1))
REFUSED = frame(FrameType.RESUME_REFUSED, encode_position(4, 1))
ACKNOWLEDGED = frame(FrameType.ACKNOWLEDGED, encode_position(2, 1))
CREDIT = frame(FrameType.CREDIT, encode_credit(1, 1, 1))
BATCH = frame(FrameType.BATCH, with_numbers(run(3, 2).payload, 3, 0))
PIECE = frame(FrameType.PIECE, BATCH.payload[:20])
END = frame(FrameType.END_OF_INPUT, with_numbers(b"", 5, 2))
BARRIER_FRAME = frame(FrameType.BARRIER, encode_barrier(BARRIER.checkpoint_id))


def sending(phase: Phase) -> tuple[NumberedOutgoing, Heard]:
    heard = Heard()
    end = NumberedOutgoing(CHANNEL, ONE, heard.send, heard)
    if phase is not Phase.CONNECTED:
        end.received(RESUME)
    if phase is Phase.REFUSED:
        end.refuse(position(4, 1))
    assert end.phase is phase
    heard.events.clear()
    return end, heard


def receiving(phase: Phase) -> tuple[NumberedIncoming, Heard]:
    heard = Heard()
    end = NumberedIncoming(CHANNEL, ONE, heard.send, heard)
    if phase is not Phase.CONNECTED:
        end.resume(position(2, 1))
    if phase is Phase.REFUSED:
        end.received(REFUSED)
    assert end.phase is phase
    heard.events.clear()
    return end, heard


# Every frame in every phase.

ASKED = ResumeAsked(CHANNEL, ONE, position(2, 1))
SAFE = InputsAcknowledged(CHANNEL, position(2, 1))
TO_SENDER = {
    (Phase.CONNECTED, FrameType.RESUME): (Phase.RESUMED, ASKED),
    (Phase.RESUMED, FrameType.ACKNOWLEDGED): (Phase.RESUMED, SAFE),
    (Phase.REFUSED, FrameType.RESUME): (Phase.RESUMED, ASKED),
    (Phase.REFUSED, FrameType.ACKNOWLEDGED): (Phase.REFUSED, SAFE),
}
TO_RECEIVER = {
    (Phase.RESUMED, FrameType.RESUME_REFUSED): (Phase.REFUSED, ResumeRefused(CHANNEL, ONE, position(4, 1))),
    (Phase.RESUMED, FrameType.BATCH): (Phase.RESUMED, RecordsArrived(CHANNEL, ONE, 3, 4)),
    (Phase.RESUMED, FrameType.END_OF_INPUT): (Phase.RESUMED, RecordsArrived(CHANNEL, ONE, 5, 4, 2)),
    (Phase.RESUMED, FrameType.PIECE): (Phase.RESUMED, None),
    (Phase.RESUMED, FrameType.BARRIER): (Phase.RESUMED, None),
}
FRAMES = (RESUME, REFUSED, ACKNOWLEDGED, CREDIT, BATCH, PIECE, END, BARRIER_FRAME, frame(FrameType.CONTROL))


def test_the_tables_are_of_all_frames() -> None:
    assert {one.kind for one in FRAMES} == set(FrameType)
    assert set(TRANSITIONS) == set(Phase)


@pytest.mark.parametrize("made", [sending, receiving])
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("one", FRAMES, ids=lambda one: one.kind.name)
def test_each_frame_in_each_phase_has_its_event_or_is_refused_and_changes_nothing(
    one: Frame,
    phase: Phase,
    made: Callable[[Phase], tuple[NumberedOutgoing | NumberedIncoming, Heard]],
) -> None:
    end, heard = made(phase)
    expected = (TO_SENDER if made is sending else TO_RECEIVER).get((phase, one.kind))
    before = len(heard.sent)
    if expected is None:
        with pytest.raises(WireError, match=one.kind.name):
            end.received(one)
        assert (end.phase, heard.events, heard.items) == (phase, [], [])
    else:
        end.received(one)
        after, event = expected
        assert end.phase is after
        assert after is phase or after in TRANSITIONS[phase]
        assert heard.events == ([event] if event is not None else [])
    assert len(heard.sent) == before


@pytest.mark.parametrize("phase", Phase)
def test_what_an_end_says_in_each_phase(phase: Phase) -> None:
    says: list[tuple[Callable[[], tuple[object, Heard]], str, tuple[object, ...], set[Phase]]] = [
        (lambda: sending(phase), "send_records", (run(3, 1),), {Phase.RESUMED}),
        (lambda: sending(phase), "send_barrier", (CheckpointId(1),), {Phase.RESUMED}),
        (lambda: sending(phase), "refuse", (position(3),), {Phase.RESUMED}),
        (lambda: receiving(phase), "resume", (position(3),), {Phase.CONNECTED, Phase.REFUSED}),
        (lambda: receiving(phase), "acknowledge", (position(3),), {Phase.RESUMED, Phase.REFUSED}),
    ]
    for make, method, arguments, allowed in says:
        end, heard = make()
        before = len(heard.sent)
        if phase in allowed:
            getattr(end, method)(*arguments)
            assert len(heard.sent) == before + 1
        else:
            with pytest.raises(ProtocolError):
                getattr(end, method)(*arguments)
            assert len(heard.sent) == before


# What depends on more than the phase.


def test_nothing_is_refused_after_a_batch() -> None:
    end, _ = sending(Phase.RESUMED)
    end.send_records(run(3, 1))
    with pytest.raises(ProtocolError):
        end.refuse(position(4))
    receiver, _ = receiving(Phase.RESUMED)
    receiver.received(BATCH)
    with pytest.raises(WireError, match="RESUME_REFUSED"):
        receiver.received(REFUSED)


def test_an_acknowledgement_never_goes_back() -> None:
    end, heard = sending(Phase.RESUMED)
    end.received(ACKNOWLEDGED)
    end.received(ACKNOWLEDGED)
    for record, news in ((1, 1), (2, 0), (3, 0)):
        with pytest.raises(WireError, match="never goes back"):
            end.received(frame(FrameType.ACKNOWLEDGED, encode_position(record, news)))
    end.received(frame(FrameType.ACKNOWLEDGED, encode_position(2, 2)))
    assert heard.events == [SAFE, SAFE, InputsAcknowledged(CHANNEL, position(2, 2))]


def test_nothing_comes_after_the_end_but_barriers() -> None:
    end, heard = receiving(Phase.RESUMED)
    end.received(END)
    end.received(BARRIER_FRAME)
    assert heard.items == [EndOfInput(2), BARRIER]
    for one in (BATCH, PIECE, END):
        with pytest.raises(WireError, match="after its end of input"):
            end.received(one)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (frame(FrameType.BATCH, encode_batch(Batch([1]))), "a batch without numbers"),
        (frame(FrameType.BATCH, with_numbers(encode_batch(Batch([])), 1, 0)), "neither records nor news"),
        (frame(FrameType.END_OF_INPUT), "do not begin with the numbers"),
        (frame(FrameType.END_OF_INPUT, with_numbers(b"", 1, 0)), "without a number of its own"),
        (frame(FrameType.END_OF_INPUT, with_numbers(b"x", 1, 1)), "without a number of its own"),
        (frame(FrameType.RESUME_REFUSED, b"x"), "a position of 1 bytes"),
    ],
)
def test_a_frame_with_another_payload_is_refused(one: Frame, message: str) -> None:
    end, heard = receiving(Phase.RESUMED)
    with pytest.raises(WireError, match=message):
        end.received(one)
    assert heard.events == []


def test_a_position_that_is_none_is_refused() -> None:
    for phase, kind in ((Phase.CONNECTED, FrameType.RESUME), (Phase.RESUMED, FrameType.ACKNOWLEDGED)):
        end, heard = sending(phase)
        with pytest.raises(WireError, match="a position of 1 bytes"):
            end.received(frame(kind, b"x"))
        assert (end.phase, heard.events) == (phase, [])


def test_a_batch_comes_in_pieces() -> None:
    end, heard = receiving(Phase.RESUMED)
    whole = BATCH.payload
    for piece in (whole[:5], whole[5:30]):
        end.received(frame(FrameType.PIECE, bytes(piece)))
    with pytest.raises(WireError, match="in the middle of a batch"):
        end.received(BARRIER_FRAME)
    end.received(frame(FrameType.BATCH, bytes(whole[30:])))
    assert heard.events == [RecordsArrived(CHANNEL, ONE, 3, 4)]


def test_a_channel_without_numbers_takes_no_number() -> None:
    heard: list[object] = []
    end = IncomingChannel(CHANNEL, lambda kind, payload: None, lambda *item: heard.append(item))
    for one, message in ((END, "unexpected END_OF_INPUT"), (BATCH, "numbers where there are none")):
        with pytest.raises(WireError, match=message):
            end.received(one)
    assert heard == []


# Two ends, with the machines that judge the numbers, over connections that end at any moment.


class Link:
    """One connection: what either end sends waits until it is read, and is lost with it."""

    def __init__(self, number: int, pair: Pair) -> None:
        self.to_receiver: list[Frame] = []
        self.to_sender: list[Frame] = []
        name = ConnectionId(number)
        self.leaving = NumberedOutgoing(CHANNEL, name, self._into(self.to_receiver), pair)
        self.coming = NumberedIncoming(CHANNEL, name, self._into(self.to_sender), pair)

    def _into(self, frames: list[Frame]) -> Callable[[FrameType, Payload], None]:
        return lambda kind, payload: frames.append(Frame(kind, 1, bytes(payload)))


class Pair:
    """A sending and a receiving unit, each with its log."""

    def __init__(self) -> None:
        self.sender, self.receiver = NumberedSender(CHANNEL), NumberedReceiver(CHANNEL)
        self.links: list[Link] = []
        self.made = 0
        self.delivered: list[object] = []
        self.logged: list[object] = []

    # As hosts of both ends.

    def records_arrived(
        self, event: RecordsArrived, item: NumberedBatch | EndOfInput, size_bytes: int
    ) -> None:
        for effect in self.perform(self.receiver.handle(event)):
            assert isinstance(effect, do.DeliverRecords)
            assert isinstance(item, NumberedBatch)
            self.delivered += [
                *item.records[effect.skipped :],
                *(["news", item.news_number] if item.has_news else []),
            ]

    def barrier_arrived(self, channel: ChannelId, barrier: Barrier) -> None:
        raise AssertionError(barrier)

    def handle_peer_event(self, event: ResumeAsked | ResumeRefused | InputsAcknowledged) -> None:
        machine = self.receiver if isinstance(event, ResumeRefused) else self.sender
        assert not self.perform(machine.handle(event))  # type: ignore[arg-type]

    def perform(self, effects: list[do.ChannelEffect]) -> list[do.ChannelEffect]:
        """Perform those that concern a connection, unless it has gone; return the others."""
        others: list[do.ChannelEffect] = []
        for effect in effects:
            link = self.links[-1] if self.links else None
            match effect:
                case do.SendRecords(_, name, records) if link and link.leaving.connection == name:
                    link.leaving.send_records(records)
                case do.RefuseResume(_, name, at) if link and link.leaving.connection == name:
                    link.leaving.refuse(at)
                case do.AskResume(_, name, at) if link and link.coming.connection == name:
                    link.coming.resume(at)
                case do.AcknowledgeInputs(_, at):
                    if link and link.coming.phase is not Phase.CONNECTED:
                        link.coming.acknowledge(at)
                case do.DeliverRecords():
                    others.append(effect)
        return others

    # What happens.

    def connect(self) -> None:
        self.links.append(Link(len(self.links) + 1, self))
        name = ConnectionId(len(self.links))
        self.perform(self.sender.handle(ChannelConnected(CHANNEL, name)))
        self.perform(self.receiver.handle(ChannelAccepted(CHANNEL, name)))

    def emit(self, count: int, *, has_news: bool) -> None:
        first, news = self.sender.given.record + 1, self.sender.given.news + has_news
        batch = Batch([*range(first, first + count)], watermark=news if has_news else None)
        self.sender.handle(RecordsEmitted(CHANNEL, count, encode_batch(batch), has_news))
        self.sender.end_group()
        self.perform(self.sender.logged())

    def log_received(self) -> None:
        if self.receiver.taken != self.receiver.arrived:
            self.receiver.end_group(self.receiver.arrived)
            self.perform(self.receiver.logged())
            self.logged = [*self.delivered]

    def fail_receiver(self) -> None:
        """Its next incarnation has what is in its log."""
        self.receiver = NumberedReceiver(CHANNEL, self.receiver.safe)
        self.delivered = [*self.logged]

    def fail_sender(self) -> None:
        kept = tuple(one.records for one in self.sender.kept())
        self.sender = NumberedSender(CHANNEL, self.sender.given, kept)

    def deliver(self, back: int, *, to_sender: bool) -> None:
        """Let one frame come, also over a connection that was replaced and has not ended yet."""
        if back >= len(self.links):
            return
        link = self.links[-1 - back]
        frames = link.to_sender if to_sender else link.to_receiver
        if frames:
            (link.leaving if to_sender else link.coming).received(frames.pop(0))


steps = st.lists(
    st.one_of(
        st.just(("connect",)),
        st.just(("log",)),
        st.tuples(st.just("emit"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("deliver"), st.sampled_from([0, 0, 0, 1, 2]), st.booleans()),
        st.tuples(st.just("deliver"), st.sampled_from([0, 0, 0, 1, 2]), st.booleans()),
        st.just(("fail receiver",)),
        st.just(("fail sender",)),
    ),
    max_size=80,
)


@given(steps)
def test_whatever_happens_to_connections_each_record_and_each_news_comes_once_and_in_order(
    script: list[tuple[object, ...]],
) -> None:
    pair = Pair()
    for step in script:
        match step:
            case ("connect",):
                pair.connect()
            case ("log",):
                pair.log_received()
            case ("emit", int(count), bool(has_news)):
                if count or has_news:
                    pair.emit(count, has_news=has_news)
            case ("deliver", int(back), bool(to_sender)):
                pair.deliver(back, to_sender=to_sender)
            case ("fail receiver",):
                # Its connections end with it, and with what is on its way there.
                for link in pair.links:
                    link.to_receiver.clear()
                pair.fail_receiver()
                pair.connect()
            case ("fail sender",):
                for link in pair.links:
                    link.to_sender.clear()
                pair.fail_sender()
                pair.connect()
    pair.connect()
    while any(link.to_receiver or link.to_sender for link in pair.links):
        for back in range(len(pair.links)):
            pair.deliver(back, to_sender=True)
            pair.deliver(back, to_sender=False)
    pair.log_received()
    while pair.links[-1].to_sender:
        pair.deliver(0, to_sender=True)
    given = pair.sender.given
    records = [one for at, one in enumerate(pair.logged) if one != "news" and pair.logged[at - 1] != "news"]
    news = [one for at, one in enumerate(pair.logged) if at and pair.logged[at - 1] == "news"]
    assert records == [*range(1, given.record + 1)]
    assert news == [*range(1, given.news + 1)]
    assert pair.receiver.safe == given
    assert pair.sender.kept() == ()


def test_the_search_has_a_sender_that_refuses() -> None:
    """It came, and was acknowledged, on the connection before, after the next one had asked."""
    pair = Pair()
    pair.connect()
    pair.deliver(0, to_sender=True)
    pair.emit(2, has_news=False)
    pair.connect()
    pair.deliver(1, to_sender=False)
    pair.log_received()
    pair.sender.handle(InputsAcknowledged(CHANNEL, position(2)))
    for _ in range(4):
        pair.deliver(0, to_sender=True)
        pair.deliver(0, to_sender=False)
    assert pair.sender.dropped == {"resume before what is kept": 1}
    assert pair.links[-1].coming.phase is Phase.RESUMED
    assert pair.receiver.arrived == position(2) != START
