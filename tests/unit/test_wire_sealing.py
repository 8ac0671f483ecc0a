"""Frames without TLS: whatever is done to them on the way is seen before a byte of them is decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import WireError
from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.wire.frames import CONTROL_LIMITS, Frame, FrameDecoder, FrameType, encode_frame
from crosscut.wire.handshake import ClientHandshake, Proven, Role, SendBytes, ServerHandshake, Verdict
from crosscut.wire.handshake import worker_detail as detail_of
from crosscut.wire.sealing import SEAL_BYTES, FrameSeals

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def sealed(payloads: list[bytes], key: bytes = KEY) -> list[bytes]:
    """Return control frames with their seals; these have no number of their own."""
    seals = FrameSeals(key)
    frames = []
    for payload in payloads:
        header, body = encode_frame(FrameType.CONTROL, 0, payload)
        frames.append(header + body + seals.next(header, body))
    return frames


def decoder(key: bytes = KEY) -> FrameDecoder:
    found = FrameDecoder(CONTROL_LIMITS, sequenced=False)
    found.expect_seals(FrameSeals(key))
    return found


def decoded(data: bytes) -> tuple[list[bytes], str]:
    """Return the payloads that came out, and why no more did."""
    found = decoder()
    found.feed(data)
    payloads: list[bytes] = []
    try:
        payloads.extend(bytes(frame.payload) for frame in found)
    except WireError as error:
        return payloads, str(error)
    return payloads, ""


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_what_was_sealed_comes_out_in_pieces_of_any_size(payloads: list[bytes], size: int) -> None:
    data = b"".join(sealed(payloads))
    found = decoder()
    frames: list[Frame] = []
    for start in range(0, len(data), size):
        found.feed(data[start : start + size])
        frames.extend(found)
    assert [bytes(frame.payload) for frame in frames] == payloads
    assert found.held_bytes == 0


def test_a_bit_flipped_anywhere_is_seen() -> None:
    """M4: nothing of the frame comes out."""
    first, second = sealed([b"first", b"second"])
    for position in range(len(second) * 8):
        changed = bytearray(second)
        changed[position // 8] ^= 1 << position % 8
        payloads, _ = decoded(first + bytes(changed) + bytes(1_000))
        assert payloads == [b"first"], f"bit {position}"


@pytest.mark.parametrize(
    ("order", "heard"),
    [((0, 0), 1), ((1,), 0), ((1, 0), 0), ((0, 2), 1), ((0, 1, 0), 2), ((0, 1, 1, 2), 2)],
    ids=["repeated", "left out", "reordered", "one left out", "sent again later", "repeated in between"],
)
def test_a_frame_at_another_place_is_seen(order: tuple[int, ...], heard: int) -> None:
    """M4: also on a control link, whose frames carry no number."""
    frames = sealed([b"same", b"same", b"same"])
    payloads, error = decoded(b"".join(frames[index] for index in order))
    assert len(payloads) == heard
    assert "has another seal" in error


def test_a_frame_of_another_connection_or_direction_is_seen() -> None:
    (foreign,) = sealed([b"hello"], OTHER_KEY)
    assert decoded(foreign)[0] == []


def test_a_frame_without_a_seal_waits_for_it_and_comes_out_never() -> None:
    header, body = encode_frame(FrameType.CONTROL, 0, b"hello")
    assert decoded(header + body) == ([], "")
    assert decoded(header + body + bytes(SEAL_BYTES))[0] == []


def test_keys_are_those_of_the_direction_and_of_the_connection() -> None:
    """Both sides know both; nobody else has any of them, and the next connection has others."""
    seen = set()
    for nonces in ((b"a" * 32, b"b" * 32), (b"a" * 32, b"c" * 32), (b"d" * 32, b"b" * 32)):
        client_keys, server_keys = shaken_hands(*nonces)
        assert client_keys == server_keys
        seen.update(client_keys)
    assert len(seen) == 6


def shaken_hands(client_nonce: bytes, server_nonce: bytes) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    secret, job, role = b"s" * 32, b"j" * 16, Role.WORKER_TO_COORDINATOR
    detail = detail_of(WorkerIndex(0), AttemptId(1))
    client = ClientHandshake(
        secret=secret, job=job, role=role, epoch=Epoch(0), detail=detail, nonce=client_nonce
    )
    server = ServerHandshake(secret=secret, job=job, role=role, nonce=server_nonce)
    (challenge,) = server.receive(client.hello)
    assert isinstance(challenge, SendBytes)
    (proof,) = client.receive(challenge.data)
    assert isinstance(proof, SendBytes)
    (proven,) = server.receive(proof.data)
    assert isinstance(proven, Proven)
    client.receive(server.verdict(Verdict.ACCEPTED))
    return client.frame_keys(), server.frame_keys()


def test_a_frame_that_is_taken_at_once_has_to_have_its_seal_too() -> None:
    first, second = sealed([b"first", b"second"])
    found = decoder()
    for frame, payload in ((first, b"first"), (second, b"second")):
        whole = found.whole(frame)
        assert whole is not None and bytes(whole.payload) == payload
    for wrong in (second, first[:-1] + bytes([first[-1] ^ 1])):
        with pytest.raises(WireError, match="another seal"):
            decoder().whole(wrong)
