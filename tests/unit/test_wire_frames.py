import struct

import pytest

from crosscut.errors import WireError
from crosscut.foundation.ids import CheckpointId
from crosscut.task.items import REPLAYED
from crosscut.wire.frames import (
    CONTROL_LIMITS,
    DATA_LIMITS,
    DEFAULT_LIMITS,
    HEADER,
    FrameDecoder,
    FrameType,
    decode_barrier,
    encode_barrier,
    encode_frame,
)


def data_decoder() -> FrameDecoder:
    return FrameDecoder(DATA_LIMITS, sequenced=True)


def wire(kind: FrameType, sequence: int, payload: bytes = b"") -> bytes:
    return b"".join(encode_frame(kind, sequence, payload))


def header(
    magic: bytes = b"XC",
    version: int = 3,
    kind: int = FrameType.BATCH,
    length: int = 0,
    sequence: int = 1,
    channel: int = 0,
) -> bytes:
    return struct.pack(">2sBBIIQ", magic, version, kind, length, channel, sequence)


def decoded(decoder: FrameDecoder, data: bytes) -> list[tuple[FrameType, int, bytes]]:
    decoder.feed(data)
    return [(frame.kind, frame.sequence, bytes(frame.payload)) for frame in decoder]


def test_a_header_is_twenty_bytes() -> None:
    assert HEADER.size == 20
    assert encode_frame(FrameType.BATCH, 7, b"abc", 9) == (
        b"XC\x03\x01" + b"\x00\x00\x00\x03" + b"\x00\x00\x00\x09" + b"\x00" * 7 + b"\x07",
        b"abc",
    )


def test_frames_come_out_in_order_with_their_numbers() -> None:
    data = (
        wire(FrameType.BATCH, 1, b"first")
        + wire(FrameType.BARRIER, 2, encode_barrier(CheckpointId(9)))
        + wire(FrameType.END_OF_INPUT, 3)
    )
    assert decoded(data_decoder(), data) == [
        (FrameType.BATCH, 1, b"first"),
        (FrameType.BARRIER, 2, (9).to_bytes(8, "big")),
        (FrameType.END_OF_INPUT, 3, b""),
    ]


def test_a_payload_inside_one_piece_is_a_view_of_it_and_not_a_copy() -> None:
    decoder = data_decoder()
    data = wire(FrameType.BATCH, 1, b"payload")
    decoder.feed(data)
    (frame,) = decoder
    assert isinstance(frame.payload, memoryview)
    assert frame.payload.obj is data


def test_iteration_left_at_a_barrier_goes_on_later_with_the_frames_behind_it() -> None:
    decoder = data_decoder()
    decoder.feed(
        wire(FrameType.BATCH, 1, b"before") + wire(FrameType.BARRIER, 2, encode_barrier(CheckpointId(1)))
    )
    decoder.feed(wire(FrameType.BATCH, 3, b"behind"))
    for frame in decoder:
        if frame.kind is FrameType.BARRIER:
            break
    assert decoder.held_bytes == HEADER.size + len(b"behind")
    assert [bytes(frame.payload) for frame in decoder] == [b"behind"]
    assert decoder.held_bytes == 0


def test_frames_before_a_bad_one_are_delivered_first() -> None:
    decoder = data_decoder()
    decoder.feed(wire(FrameType.BATCH, 1, b"good") + b"?" * HEADER.size)
    assert bytes(next(decoder).payload) == b"good"
    with pytest.raises(WireError):
        next(decoder)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (header(magic=b"GE"), "starts with b'GE'"),
        (header(version=1), "version 1"),
        (header(kind=0), "type 0"),
        (header(kind=255), "type 255"),
        (header(kind=FrameType.CONTROL), "type 4"),
        (header(length=DATA_LIMITS[FrameType.BATCH] + 1), "its limit is"),
        (header(length=0x7FFFFFFF), "2147483647 bytes"),
        (header(length=-1 & 0xFFFFFFFF), "4294967295 bytes"),
        (header(kind=FrameType.BARRIER, length=9), "BARRIER frame of 9 bytes"),
        (header(kind=FrameType.END_OF_INPUT, length=18), "END_OF_INPUT frame of 18 bytes"),
        (header(kind=FrameType.RESUME_REFUSED, length=17), "RESUME_REFUSED frame of 17 bytes"),
        (header(kind=FrameType.RESUME, length=16), "type 7"),
        (header(kind=FrameType.ACKNOWLEDGED, length=16), "type 9"),
        (header(sequence=0), "sequence number 0: expected 1"),
        (header(sequence=2), "sequence number 2: expected 1"),
        (header(sequence=(1 << 64) - 1), "expected 1"),
    ],
)
def test_a_bad_header_is_refused_before_any_of_its_payload_is_awaited(bad: bytes, expected: str) -> None:
    decoder = data_decoder()
    decoder.feed(bad)
    with pytest.raises(WireError, match=expected):
        next(decoder)
    assert decoder.held_bytes == 0


def test_a_broken_stream_stays_broken_and_holds_nothing() -> None:
    decoder = data_decoder()
    decoder.feed(header(kind=9))
    with pytest.raises(WireError):
        next(decoder)
    decoder.feed(wire(FrameType.BATCH, 1, b"late"))
    assert decoder.held_bytes == 0
    with pytest.raises(WireError, match="type 9"):
        next(decoder)


def test_a_repeated_frame_is_refused() -> None:
    decoder = data_decoder()
    frame = wire(FrameType.BATCH, 1, b"once")
    assert len(decoded(decoder, frame)) == 1
    decoder.feed(frame)
    with pytest.raises(WireError, match="number 1: expected 2"):
        next(decoder)


def test_each_channel_has_numbers_of_its_own() -> None:
    decoder = data_decoder()
    decoder.expect_channels(2)
    sent = [(1, 1), (0, 1), (1, 2), (1, 3), (0, 2)]
    decoder.feed(b"".join(b"".join(encode_frame(FrameType.BATCH, n, b"", one)) for one, n in sent))
    assert [(frame.channel, frame.sequence) for frame in decoder] == sent
    decoder.feed(b"".join(encode_frame(FrameType.BATCH, 4, b"", 0)))
    with pytest.raises(WireError, match="number 4: expected 3"):
        next(decoder)


def test_a_frame_of_a_channel_that_the_connection_does_not_carry_is_refused() -> None:
    decoder = data_decoder()
    decoder.expect_channels(2)
    decoder.feed(b"".join(encode_frame(FrameType.BATCH, 1, b"", 2)))
    with pytest.raises(WireError, match="of channel 2: there are 2"):
        next(decoder)


def test_a_control_link_takes_control_frames_without_numbers_only() -> None:
    decoder = FrameDecoder(CONTROL_LIMITS, sequenced=False)
    frame = wire(FrameType.CONTROL, 0, b"{}")
    assert decoded(decoder, frame + frame) == [(FrameType.CONTROL, 0, b"{}")] * 2
    for refused in (wire(FrameType.CONTROL, 1), wire(FrameType.BATCH, 0)):
        decoder = FrameDecoder(CONTROL_LIMITS, sequenced=False)
        decoder.feed(refused)
        with pytest.raises(WireError):
            next(decoder)


def test_an_announced_payload_takes_no_memory_before_it_arrives() -> None:
    decoder = data_decoder()
    decoder.feed(header(length=DATA_LIMITS[FrameType.BATCH]))
    assert list(decoder) == []
    assert decoder.held_bytes == 0


def test_a_payload_that_comes_a_byte_at_a_time_is_not_held_as_a_million_objects() -> None:
    decoder = data_decoder()
    decoder.feed(header(length=50_000) + b"abc")
    assert list(decoder) == []
    for _ in range(49_996):
        decoder.feed(b"x")
        assert len(decoder._chunks) <= 1024 + decoder.held_bytes // 1024
    assert list(decoder) == []
    decoder.feed(b"x")
    (frame,) = decoder
    assert frame.payload == b"abc" + b"x" * 49_997


@pytest.mark.parametrize("kind", list(FrameType))
def test_a_payload_above_the_limit_is_refused_by_its_sender(kind: FrameType) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return DEFAULT_LIMITS[kind] + 1

    with pytest.raises(WireError, match="can't be sent"):
        encode_frame(kind, 1, Huge())


def test_a_barrier_carries_its_checkpoint() -> None:
    assert decode_barrier(memoryview(encode_barrier(CheckpointId((1 << 64) - 1)))) == (1 << 64) - 1


def test_a_mark_of_channel_records_is_the_barrier_of_no_checkpoint() -> None:
    assert decode_barrier(memoryview(encode_barrier(REPLAYED.checkpoint_id))) == 0


@pytest.mark.parametrize("payload", [b"", b"\0" * 7, b"\0" * 9])
def test_a_barrier_without_a_checkpoint_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="BARRIER"):
        decode_barrier(payload)


PIECES = (
    wire(FrameType.BATCH, 1, b"abc"),
    wire(FrameType.END_OF_INPUT, 1),
    wire(FrameType.BATCH, 2, b"abc"),
    wire(FrameType.BATCH, 1, b"abc") + wire(FrameType.BATCH, 2),
    wire(FrameType.BATCH, 1, b"abc")[:-1],
    wire(FrameType.BATCH, 1, b"abc")[: HEADER.size - 1],
    b"",
    header(magic=b"XD"),
    header(version=1),
    header(kind=FrameType.CONTROL),
    header(channel=1),
    header(length=DATA_LIMITS[FrameType.BATCH] + 1) + bytes(DATA_LIMITS[FrameType.BATCH] + 1),
)


@pytest.mark.parametrize("piece", PIECES, ids=range(len(PIECES)))
@pytest.mark.parametrize("before", [b"", wire(FrameType.BATCH, 1, b"abc"), header(length=3)])
def test_a_piece_that_is_one_frame_is_taken_at_once_and_is_what_it_is_when_fed(
    piece: bytes, before: bytes
) -> None:
    """Whatever is no frame is refused in the same words, and nothing is taken in front of what is held."""

    def outcome(*, at_once: bool) -> list[object]:
        decoder = data_decoder()
        found: list[object] = []
        for data in (before, piece, wire(FrameType.BATCH, 2, b"x")):
            try:
                if at_once and (whole := decoder.whole(data)) is not None:
                    found.append((whole.kind, whole.sequence, whole.channel, bytes(whole.payload)))
                    continue
                decoder.feed(data)
                found += [(one.kind, one.sequence, one.channel, bytes(one.payload)) for one in decoder]
            except WireError as error:
                found.append(str(error))
        return found

    assert outcome(at_once=True) == outcome(at_once=False)


@pytest.mark.parametrize("power", [8, 16, 32, 63])
def test_sequence_numbers_never_wrap(power: int) -> None:
    """E4, P11: one that did would take a repeated frame for a new one."""
    found = FrameDecoder(DATA_LIMITS, sequenced=True)
    # As if so many frames had been received.
    found._sequences = [(1 << power) - 2]
    found.feed(b"".join(wire(FrameType.BATCH, (1 << power) + step) for step in (-1, 0, 1)))
    assert [frame.sequence - (1 << power) for frame in found] == [-1, 0, 1]
    found.feed(wire(FrameType.BATCH, 2))
    with pytest.raises(WireError, match="sequence number 2: expected"):
        list(found)
