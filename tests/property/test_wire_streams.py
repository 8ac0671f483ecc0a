"""Frames: however the bytes are cut, the frames are the same; whatever the bytes are, only WireError."""

from hypothesis import example, given
from hypothesis import strategies as st

from crosscut.errors import WireError
from crosscut.wire.frames import DATA_LIMITS, HEADER, FrameDecoder, FrameType, encode_frame

PAYLOADS = {
    FrameType.BATCH: st.binary(max_size=300),
    FrameType.BARRIER: st.binary(min_size=8, max_size=8),
    FrameType.END_OF_INPUT: st.just(b""),
}
FRAMES = st.lists(
    st.sampled_from(list(PAYLOADS)).flatmap(lambda kind: st.tuples(st.just(kind), PAYLOADS[kind])),
    max_size=12,
)
CUTS = st.lists(st.integers(0, 60), min_size=1, max_size=30)

Frames = list[tuple[FrameType, bytes]]


def stream(frames: Frames) -> bytes:
    return b"".join(
        part
        for number, (kind, payload) in enumerate(frames, 1)
        for part in encode_frame(kind, number, payload)
    )


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut `data` into pieces of the lengths `cuts`, over and over; a cut of 0 is an empty piece."""
    lengths = cuts if any(cuts) else [1]
    found: list[bytes] = []
    start = 0
    while start < len(data):
        length = lengths[len(found) % len(lengths)]
        found.append(data[start : start + length])
        start += length
    return found


def outcome(parts: list[bytes]) -> tuple[list[tuple[FrameType, int, bytes]], str | None, int]:
    """Return the frames, the error if there was one, and the bytes still held."""
    decoder = FrameDecoder(DATA_LIMITS, sequenced=True)
    frames = []
    try:
        for part in parts:
            decoder.feed(part)
            for frame in decoder:
                frames.append((frame.kind, frame.sequence, bytes(frame.payload)))
    except WireError as error:
        return frames, str(error), decoder.held_bytes
    return frames, None, decoder.held_bytes


@given(FRAMES, CUTS)
def test_any_cutting_gives_back_the_frames_that_were_encoded(frames: Frames, cuts: list[int]) -> None:
    data = stream(frames)
    expected = [(kind, number, payload) for number, (kind, payload) in enumerate(frames, 1)]
    for parts in (pieces(data, cuts), pieces(data, [1]), [data]):
        assert outcome(parts) == (expected, None, 0)


@given(FRAMES, CUTS, st.binary(max_size=100), st.integers(0, 3000))
def test_a_damaged_stream_has_one_outcome_however_it_is_cut(
    frames: Frames, cuts: list[int], damage: bytes, position: int
) -> None:
    data = stream(frames)
    position = min(position, len(data))
    data = data[:position] + damage + data[position + len(damage) :]
    expected = outcome([data])
    assert outcome(pieces(data, cuts)) == outcome(pieces(data, [1])) == expected


@given(FRAMES, st.integers(0, 3000))
def test_a_cut_off_stream_gives_the_frames_before_the_cut_and_holds_at_most_the_rest_of_one(
    frames: Frames, length: int
) -> None:
    data = stream(frames)[:length]
    complete, end = [], 0
    for number, (kind, payload) in enumerate(frames, 1):
        if end + HEADER.size + len(payload) > len(data):
            break
        end += HEADER.size + len(payload)
        complete.append((kind, number, payload))
    remaining = len(data) - end
    held = remaining if remaining < HEADER.size else remaining - HEADER.size
    assert outcome([data]) == (complete, None, held)


@given(st.binary(max_size=200), CUTS)
@example(b"XC\x03\x01\xff\xff\xff\xff" + bytes(12), [1])
@example(b"\x7f\xff\xff\xff" * 10, [1])
@example(b"\x80\x00\x00\x00" * 10, [3])
def test_arbitrary_bytes_raise_wire_errors_only_and_are_not_hoarded(data: bytes, cuts: list[int]) -> None:
    frames, error, held = outcome(pieces(data, cuts))
    whole = sum(HEADER.size + len(payload) for _, _, payload in frames)
    assert held <= len(data) - whole
    if error is not None:
        assert held == 0
    elif not data.startswith(b"XC\x03"):
        assert len(data) < HEADER.size, "a stream without the magic must be refused at its first header"
