"""Whose turn it is on a connection that several channels share."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from crosscut.foundation.ids import CheckpointId
from crosscut.wire.frames import PIECE_BYTES_MAX, FrameType, encode_barrier
from crosscut.wire.send_queues import Piece, SendQueues

BATCH, BARRIER, PIECE = FrameType.BATCH, FrameType.BARRIER, FrameType.PIECE


def all_of(lanes: SendQueues) -> list[Piece]:
    found = []
    while not lanes.is_empty:
        found.append(lanes.take())
    return found


def test_channels_take_turns_and_each_keeps_its_order() -> None:
    lanes = SendQueues()
    for channel, payload in ((0, b"a"), (0, b"b"), (0, b"c"), (2, b"x"), (1, b"p"), (2, b"y")):
        lanes.put(channel, BATCH, payload)
    assert [(one.channel, bytes(one.payload)) for one in all_of(lanes)] == [
        (0, b"a"),
        (2, b"x"),
        (1, b"p"),
        (0, b"b"),
        (2, b"y"),
        (0, b"c"),
    ]


def test_a_long_batch_goes_in_pieces_the_last_of_which_ends_it() -> None:
    lanes = SendQueues(piece_bytes=4)
    lanes.put(3, BATCH, b"0123456789")
    assert [(one.kind, bytes(one.payload)) for one in all_of(lanes)] == [
        (PIECE, b"0123"),
        (PIECE, b"4567"),
        (BATCH, b"89"),
    ]


def test_a_batch_of_just_the_length_of_a_piece_is_whole() -> None:
    lanes = SendQueues(piece_bytes=4)
    lanes.put(0, BATCH, b"0123")
    lanes.put(0, BATCH, b"")
    assert [(one.kind, bytes(one.payload)) for one in all_of(lanes)] == [(BATCH, b"0123"), (BATCH, b"")]


def test_in_front_of_a_barrier_goes_one_piece_of_each_other_channel_however_much_waits_there() -> None:
    """100 MB wait on each of three channels; the barrier of the fourth comes last."""
    lanes = SendQueues()
    large = bytes(100_000_000)
    for channel in range(3):
        lanes.put(channel, BATCH, large)
    lanes.put(3, BARRIER, encode_barrier(CheckpointId(1)))
    ahead_bytes = 0
    while (piece := lanes.take()).kind is not BARRIER:
        ahead_bytes += len(piece.payload)
    assert ahead_bytes == 3 * PIECE_BYTES_MAX


SENT = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=20), st.booleans()), max_size=40)


@given(SENT, st.integers(1, 8))
def test_every_channel_gets_all_of_its_own_in_order_and_nothing_waits_for_more_than_a_turn(
    sent: list[tuple[int, bytes, bool]], piece_bytes: int
) -> None:
    """Against an oracle for each channel alone; what is taken in between must not matter to it."""
    lanes = SendQueues(piece_bytes)
    wanted, got = defaultdict(list), defaultdict(list)
    pieces: dict[int, bytes] = defaultdict(bytes)
    waited = dict.fromkeys(range(4), 0)
    waiting: dict[int, int] = dict.fromkeys(range(4), 0)

    def take() -> None:
        piece = lanes.take()
        assert len(piece.payload) <= piece_bytes
        for other in waited:
            waited[other] = waited[other] + 1 if waiting[other] and other != piece.channel else 0
            assert waited[other] <= 3, "all others had a turn before it had one"
        pieces[piece.channel] += bytes(piece.payload)
        if piece.kind is BATCH:
            got[piece.channel].append(pieces.pop(piece.channel))
            waiting[piece.channel] -= 1

    for channel, payload, takes_one in sent:
        lanes.put(channel, BATCH, payload)
        wanted[channel].append(payload)
        waiting[channel] += 1
        if takes_one:
            take()
    while not lanes.is_empty:
        take()
    assert got == wanted
    assert not any(pieces.values())


def test_only_batches_are_cut_into_pieces() -> None:
    lanes = SendQueues(piece_bytes=4)
    for kind in (FrameType.CREDIT, BARRIER):
        lanes.put(0, kind, b"12345678")
        assert (lanes.take().kind, lanes.is_empty) == (kind, True)
