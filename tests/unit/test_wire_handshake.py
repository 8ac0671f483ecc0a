import pickle
from contextlib import nullcontext

import pytest

from crosscut.errors import CrosscutError, InternalError, WireError
from crosscut.foundation.ids import AttemptId, ChannelId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.wire import handshake
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
    channels_detail,
    worker_detail,
)

SECRET = bytes(range(32))
JOB = b"job-token-16byte"
DETAIL = channels_detail([ChannelId(0, TaskId(VertexId("split"), 0), TaskId(VertexId("count"), 1))])


def client(
    *,
    secret: bytes = SECRET,
    job: bytes = JOB,
    role: Role = Role.WORKER_TO_WORKER,
    epoch: int = 5,
    detail: bytes = DETAIL,
    nonce: bytes = b"c" * 32,
) -> ClientHandshake:
    return ClientHandshake(secret=secret, job=job, role=role, epoch=Epoch(epoch), detail=detail, nonce=nonce)


def server(
    *, secret: bytes = SECRET, job: bytes = JOB, role: Role = Role.WORKER_TO_WORKER, nonce: bytes = b"s" * 32
) -> ServerHandshake:
    return ServerHandshake(secret=secret, job=job, role=role, nonce=nonce)


def sent(steps: list[SendBytes | Proven] | list[SendBytes | VerdictReceived]) -> bytes:
    return b"".join(step.data for step in steps if isinstance(step, SendBytes))


@pytest.mark.parametrize("verdict", list(Verdict))
def test_two_sides_with_the_secret_prove_themselves_and_the_verdict_arrives(verdict: Verdict) -> None:
    near, far = client(), server()
    challenge = far.receive(near.hello)
    assert [type(step) for step in challenge] == [SendBytes]
    proof = near.receive(sent(challenge))
    assert [type(step) for step in proof] == [SendBytes]
    assert far.receive(sent(proof)) == [Proven(Role.WORKER_TO_WORKER, Epoch(5), DETAIL)]
    assert near.receive(far.verdict(verdict)) == [VerdictReceived(verdict)]
    assert near.phase is far.phase is Phase.FINISHED
    assert near.trailing_data == far.trailing_data == b""


def test_frames_behind_the_verdict_are_left_for_the_decoder() -> None:
    near, far = client(), server()
    far.receive(sent(near.receive(sent(far.receive(near.hello)))))
    frames = b"f" * 100_000
    assert near.receive(far.verdict(Verdict.ACCEPTED) + frames) == [VerdictReceived(Verdict.ACCEPTED)]
    assert near.trailing_data == frames


def test_bytes_sent_ahead_of_the_verdict_are_kept_up_to_the_bound() -> None:
    near, far = client(), server()
    far.receive(sent(near.receive(sent(far.receive(near.hello)))))
    far.receive(b"x" * HANDSHAKE_BYTES_MAX)
    with pytest.raises(WireError):
        far.receive(b"x")

    far = server()
    far.receive(sent(client().receive(sent(far.receive(client().hello)))) + b"early")
    far.verdict(Verdict.ACCEPTED)
    assert far.trailing_data == b"early"


@pytest.mark.parametrize(
    "other",
    [
        server(secret=b"?" * 32),
        server(job=b"another-job-----"),
        server(role=Role.WORKER_TO_COORDINATOR),
    ],
    ids=["secret", "job", "role"],
)
def test_sides_that_differ_do_not_get_past_the_challenge(other: ServerHandshake) -> None:
    near = client()
    with pytest.raises(WireError):
        near.receive(sent(other.receive(near.hello)))


def test_a_client_without_the_secret_gets_no_further_than_its_hello() -> None:
    far = server()
    far.receive(client().hello)
    with pytest.raises(WireError):
        far.receive(b"\0" * 32)
    assert far.phase is Phase.FAILED
    with pytest.raises(InternalError):
        far.verdict(Verdict.ACCEPTED)


def test_a_recorded_conversation_is_refused_by_a_fresh_server_and_a_fresh_client() -> None:
    near, far = client(), server()
    challenge = sent(far.receive(near.hello))
    proof = sent(near.receive(challenge))
    with pytest.raises(WireError):
        server(nonce=b"t" * 32).receive(near.hello + proof)
    with pytest.raises(WireError):
        client(nonce=b"d" * 32).receive(challenge)


def test_a_recorded_verdict_is_refused_in_another_conversation() -> None:
    near, far = client(), server()
    far.receive(sent(near.receive(sent(far.receive(near.hello)))))
    recorded = far.verdict(Verdict.ACCEPTED)
    near, far = client(), server(nonce=b"t" * 32)
    far.receive(sent(near.receive(sent(far.receive(near.hello)))))
    with pytest.raises(WireError):
        near.receive(recorded)


def test_a_clients_own_hello_and_proof_reflected_to_it_are_refused() -> None:
    near = client()
    with pytest.raises(WireError):
        near.receive(near.hello)
    near, far = client(), server()
    proof = sent(near.receive(sent(far.receive(near.hello))))
    with pytest.raises(WireError):
        client().receive(b"s" * 32 + proof)


def test_a_servers_proof_reflected_to_it_is_refused() -> None:
    far = server()
    challenge = sent(far.receive(client().hello))
    with pytest.raises(WireError):
        far.receive(challenge[32:])


def test_a_proof_for_one_epoch_or_channel_is_worth_nothing_for_another() -> None:
    for relayed in (client(epoch=6), client(detail=b"\0" * 32)):
        near, far = client(), server()
        challenge = sent(far.receive(relayed.hello))
        with pytest.raises(WireError):
            near.receive(challenge)


def test_every_refusal_reads_the_same_and_is_final() -> None:
    refusals = set()
    for machine, data in (
        (server(), b"\0" * 94),
        (server(), client(job=b"another-job-----").hello),
        (server(), client(role=Role.WORKER_TO_COORDINATOR).hello),
        (server(), client().hello + b"\0" * 32),
        (client(), b"\0" * 64),
    ):
        for attempt in (data, b"", data):
            with pytest.raises(WireError) as caught:
                machine.receive(attempt)
            refusals.add(str(caught.value))
        assert machine.phase is Phase.FAILED
    assert len(refusals) == 1


def test_every_phase_answers_every_call_as_its_table_says() -> None:
    def at(phase: Phase) -> ClientHandshake | ServerHandshake:
        near, far = client(), server()
        if phase is Phase.AWAITING_HELLO:
            return far
        if phase is Phase.AWAITING_SERVER_PROOF:
            return near
        challenge = sent(far.receive(near.hello))
        if phase is Phase.AWAITING_CLIENT_PROOF:
            return far
        proof = sent(near.receive(challenge))
        if phase is Phase.AWAITING_VERDICT:
            return near
        far.receive(proof)
        if phase is Phase.FINISHED:
            far.verdict(Verdict.ACCEPTED)
        if phase is Phase.FAILED:
            with pytest.raises(WireError):
                far.receive(b"\0" * 5000)
        return far

    # Phase -> what `receive` of garbage and `verdict` raise; None: they answer.
    table: dict[Phase, tuple[type[CrosscutError] | None, type[CrosscutError] | None]] = {
        Phase.AWAITING_HELLO: (WireError, InternalError),
        Phase.AWAITING_SERVER_PROOF: (WireError, None),
        Phase.AWAITING_CLIENT_PROOF: (WireError, InternalError),
        Phase.PROVEN: (None, None),
        Phase.AWAITING_VERDICT: (WireError, None),
        Phase.FINISHED: (InternalError, InternalError),
        Phase.FAILED: (WireError, InternalError),
    }
    assert set(table) == set(Phase)
    for phase, (on_receive, on_verdict) in table.items():
        machine = at(phase)
        assert machine.phase is phase
        with nullcontext() if on_receive is None else pytest.raises(on_receive):
            assert machine.receive(b"\0" * 94) == []
        machine = at(phase)
        if isinstance(machine, ServerHandshake):
            with nullcontext() if on_verdict is None else pytest.raises(on_verdict):
                assert len(machine.verdict(Verdict.REFUSED)) == 33


@pytest.mark.parametrize("said", [b"G", b"XC?", b"XCUT\x7f", b"\x16\x03\x01"])
def test_who_begins_with_anything_else_is_not_waited_for(said: bytes) -> None:
    """S13: a whole hello would be 94 bytes; the first wrong one is enough."""
    with pytest.raises(WireError, match="handshake refused"):
        server().receive(said)


def test_a_hello_may_come_a_byte_at_a_time() -> None:
    one = server()
    for byte in client().hello[:-1]:
        assert one.receive(bytes([byte])) == []
    assert len(one.receive(client().hello[-1:])) == 1


def test_no_decoder_is_within_reach_of_the_handshake() -> None:
    assert not {"pickle", "json", "frames", "batches", "control", "codec"} & vars(handshake).keys()


def test_a_malicious_pickle_before_the_proof_is_never_loaded() -> None:
    far = server()
    with pytest.raises(WireError):
        far.receive(pickle.dumps((_Bomb(), b"x" * 200)))
    assert not _Bomb.exploded


class _Bomb:
    exploded = False

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return (_explode, ())


def _explode() -> None:
    _Bomb.exploded = True


@pytest.mark.parametrize("wrong", [{"secret": b"short"}, {"job": b""}, {"nonce": b"n" * 31}, {"detail": b""}])
def test_arguments_of_a_wrong_size_are_a_bug_of_the_caller(wrong: dict[str, bytes]) -> None:
    with pytest.raises(InternalError):
        client(**wrong)  # type: ignore[arg-type]


def test_details_differ_wherever_channels_and_workers_differ() -> None:
    count, other = TaskId(VertexId("count"), 0), TaskId(VertexId("count"), 1)
    there, back = ChannelId(0, count, other), ChannelId(0, other, count)
    details = [
        channels_detail([there]),
        channels_detail([ChannelId(1, count, other)]),
        channels_detail([back]),
        channels_detail([ChannelId(0, count, TaskId(VertexId("coun"), 1))]),
        channels_detail([there, back]),
        channels_detail([back, there]),
        channels_detail([]),
        worker_detail(WorkerIndex(0), AttemptId(1)),
        worker_detail(WorkerIndex(1), AttemptId(0)),
        worker_detail(WorkerIndex(0), AttemptId(0)),
    ]
    assert len(set(details)) == len(details)
    assert {len(detail) for detail in details} == {32}
