"""The handshake against whoever sits between: altered, cut, replayed and invented bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import WireError
from crosscut.foundation.ids import Epoch
from crosscut.wire.handshake import (
    HANDSHAKE_BYTES_MAX,
    ClientHandshake,
    Phase,
    Proven,
    Role,
    SendBytes,
    ServerHandshake,
    Verdict,
    VerdictReceived,
)

NONCES = st.binary(min_size=32, max_size=32)
SECRET = b"k" * 32
JOB = b"j" * 16
LENGTHS = {"hello": 94, "server proof": 64, "client proof": 32, "verdict": 33}


def pair(
    epoch: int = 3,
    detail: bytes = b"d" * 32,
    client_nonce: bytes = b"c" * 32,
    server_nonce: bytes = b"s" * 32,
) -> tuple[ClientHandshake, ServerHandshake]:
    role = Role.WORKER_TO_WORKER
    return (
        ClientHandshake(
            secret=SECRET, job=JOB, role=role, epoch=Epoch(epoch), detail=detail, nonce=client_nonce
        ),
        ServerHandshake(secret=SECRET, job=JOB, role=role, nonce=server_nonce),
    )


def converse(
    near: ClientHandshake, far: ServerHandshake, flipped: str = "", bit: int = 0, piece: int = 4096
) -> tuple[list[Proven], list[VerdictReceived]]:
    """Run both machines back to back, a bit of the message `flipped` altered, in pieces of `piece` bytes."""
    proven: list[Proven] = []
    verdicts: list[VerdictReceived] = []

    def carried(name: str, message: bytes) -> list[bytes]:
        assert len(message) == LENGTHS[name]
        if name == flipped:
            altered = bytearray(message)
            altered[bit // 8] ^= 1 << bit % 8
            message = bytes(altered)
        return [message[start : start + piece] for start in range(0, len(message), piece)]

    def to_server(name: str, message: bytes) -> bytes:
        answer = b""
        for part in carried(name, message):
            for step in far.receive(part):
                if isinstance(step, SendBytes):
                    answer += step.data
                else:
                    proven.append(step)
        return answer

    def to_client(name: str, message: bytes) -> bytes:
        answer = b""
        for part in carried(name, message):
            for step in near.receive(part):
                if isinstance(step, SendBytes):
                    answer += step.data
                else:
                    verdicts.append(step)
        return answer

    proof = to_client("server proof", to_server("hello", near.hello))
    to_server("client proof", proof)
    to_client("verdict", far.verdict(Verdict.ACCEPTED))
    return proven, verdicts


@given(st.integers(0, (1 << 64) - 1), NONCES, NONCES, NONCES, st.integers(1, 100))
def test_genuine_sides_agree_however_the_bytes_are_cut(
    epoch: int, detail: bytes, client_nonce: bytes, server_nonce: bytes, piece: int
) -> None:
    near, far = pair(epoch, detail, client_nonce, server_nonce)
    assert converse(near, far, piece=piece) == (
        [Proven(Role.WORKER_TO_WORKER, Epoch(epoch), detail)],
        [VerdictReceived(Verdict.ACCEPTED)],
    )


@pytest.mark.parametrize("message", LENGTHS)
def test_every_single_flipped_bit_is_refused_by_one_side(message: str) -> None:
    for bit in range(8 * LENGTHS[message]):
        near, far = pair()
        with pytest.raises(WireError):
            converse(near, far, message, bit)
        assert Phase.FAILED in (near.phase, far.phase)
        assert near.phase is not Phase.FINISHED


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_arbitrary_bytes_prove_nothing_and_raise_wire_errors_only(parts: list[bytes]) -> None:
    for machine in pair():
        for part in parts:
            try:
                steps = machine.receive(part)
            except WireError:
                assert machine.phase is Phase.FAILED
                steps = []
            assert not any(isinstance(step, (Proven, VerdictReceived)) for step in steps)
            assert len(machine._unread) < 94


@given(st.binary(max_size=200), st.integers(0, 100))
def test_a_hello_with_anything_behind_it_gets_a_challenge_and_no_further(behind: bytes, piece: int) -> None:
    near, far = pair()
    data = near.hello + behind
    try:
        for start in range(0, len(data), piece + 1):
            assert not any(isinstance(step, Proven) for step in far.receive(data[start : start + piece + 1]))
    except WireError:
        assert len(behind) >= 32
    else:
        assert len(behind) < 32
        assert far.phase is Phase.AWAITING_CLIENT_PROOF


@given(NONCES, NONCES)
def test_a_recorded_conversation_is_worth_nothing_under_another_nonce(first: bytes, second: bytes) -> None:
    if first == second:
        return
    near, far = pair(server_nonce=first)
    recorded = b"".join(
        step.data
        for answer in far.receive(near.hello)
        if isinstance(answer, SendBytes)
        for step in near.receive(answer.data)
        if isinstance(step, SendBytes)
    )
    _, fresh = pair(server_nonce=second)
    with pytest.raises(WireError):
        fresh.receive(near.hello + recorded)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=10))
def test_at_most_the_bound_is_kept_of_a_proven_client_that_does_not_wait(lengths: list[int]) -> None:
    near, far = pair()
    steps = far.receive(near.hello)
    far.receive(b"".join(s.data for s in near.receive(_bytes(steps)) if isinstance(s, SendBytes)))
    kept = 0
    for length in lengths:
        kept += length
        if kept > HANDSHAKE_BYTES_MAX:
            with pytest.raises(WireError):
                far.receive(b"x" * length)
            assert len(far._unread) == 0
            return
        assert far.receive(b"x" * length) == []
        assert len(far._unread) == kept


def _bytes(steps: list[SendBytes | Proven]) -> bytes:
    return b"".join(step.data for step in steps if isinstance(step, SendBytes))
