"""Some thousands of hostile inputs; `python -m tests.proof.fuzz` throws as many as one likes."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.proof import fuzz
from tests.proof.fuzz import Breach

from crosscut.errors import WireError
from crosscut.net import connections
from crosscut.net.connections import AcceptingSide
from crosscut.wire import frames
from crosscut.wire.handshake import Proven, Role, ServerHandshake
from crosscut.wire.sealing import FrameSeals

INPUTS = 4_000


def test_hostile_bytes_do_no_harm_and_reach_no_deserialiser() -> None:
    """M1 to M4, I13."""
    fuzzer = asyncio.run(fuzz.run(INPUTS))
    assert sum(fuzzer.count.values()) == INPUTS
    assert set(fuzzer.count) == {"driver", "worker", "client", "frames", "sealed frames", "message"}
    assert fuzzer.deserialisers.calls > 0, "those of messages, behind a proof"


def test_an_input_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one that did harm can be thrown again, alone."""
    thrown: list[bytes] = []
    plain = fuzz.Corpus.hostile

    def recorded(self: fuzz.Corpus, random: Random, genuine: bytes) -> bytes:
        thrown.append(plain(self, random, genuine))
        return thrown[-1]

    monkeypatch.setattr(fuzz.Corpus, "hostile", recorded)
    # OpenSSL draws the bytes of its hello by itself.
    monkeypatch.setattr(fuzz, "_tls_hello", lambda: b"hello")
    asyncio.run(fuzz.run(100))
    asyncio.run(fuzz.run(5, first=95))
    assert thrown[95:100] == thrown[100:]


def test_the_deserialisers_are_counted() -> None:
    """The control: bytes that do reach one."""
    found = fuzz.Deserialisers()
    with found.watched():
        pickle.loads(pickle.dumps(1))
    pickle.loads(pickle.dumps(1))
    assert found.calls == 1


def breach_of(patches: list[tuple[Any, str, Any]]) -> str:
    """Return what is found with a bug planted."""
    with pytest.MonkeyPatch.context() as patch:
        for target, name, value in patches:
            patch.setattr(target, name, value)
        with pytest.raises(Breach) as caught:
            asyncio.run(fuzz.run(INPUTS))
    return str(caught.value)


def test_decoding_before_the_proof_is_found() -> None:
    """A planted bug: somebody looks into the bytes, to say more in the error."""
    plain = AcceptingSide._shake

    def looks(self: AcceptingSide, data: bytes) -> None:
        try:
            plain(self, data)
        except WireError:
            with suppress(Exception):
                pickle.loads(data)
            raise

    assert "deserialiser calls before any proof" in breach_of([(AcceptingSide, "_shake", looks)])


def test_a_proof_that_is_not_checked_is_found() -> None:
    bug = (ServerHandshake, "_check", lambda self, found, expected: None)
    found = breach_of([bug])
    assert "was taken for genuine" in found
    assert "--first" in found


def test_a_nonce_that_is_used_again_is_found() -> None:
    """A recorded conversation is worth something then."""
    bug = (connections.secrets, "token_bytes", lambda size: b"n" * size)
    assert "was taken for genuine" in breach_of([bug])


def test_a_handshake_without_a_limit_is_found() -> None:
    def keeps_all(self: ServerHandshake, data: bytes) -> list[Proven]:
        self._unread += data
        return []

    genuine = {role: fuzz._conversation(role) for role in Role}
    patches = [
        (fuzz, "_conversation", genuine.__getitem__),
        (ServerHandshake, "receive", keeps_all),
        (fuzz, "HANDSHAKE_BYTES_MAX", 100),
    ]
    assert "bytes are kept of a peer" in breach_of(patches)


def test_a_seal_that_is_not_checked_is_found() -> None:
    bug = (FrameSeals, "is_next", lambda self, seal, header, payload: True)
    assert "a frame that was not sent" in breach_of([bug])


def test_a_limit_that_is_not_checked_is_found() -> None:
    """M3: of a frame that is short, so that the test need not send a long one."""
    small = dict.fromkeys(frames.DEFAULT_LIMITS, 1)
    assert "above its limit" in breach_of([(fuzz, "DEFAULT_LIMITS", _Lenient(small))])


class _Lenient(dict[Any, int]):
    """Limits that the decoder is not told of."""

    def get(self, kind: Any, default: Any = None) -> Any:
        return frames.DEFAULT_LIMITS.get(kind, default)


def test_the_command_says_what_it_has_done_and_how_to_do_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--inputs", "300", "--seed", "5"]) == 0
    assert capsys.readouterr().out.startswith("300 inputs (")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerHandshake, "_check", lambda self, found, expected: None)
        assert fuzz.main(["--inputs", "3000", "--seed", "5"]) == 1
        again = capsys.readouterr().out.rpartition("fuzz ")[2].split()
        assert fuzz.main(again) == 1
