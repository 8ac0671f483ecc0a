"""TLS without sockets: two tunnels back to back, and what an unauthenticated peer can do to one of them."""

from __future__ import annotations

import os
import pickle
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from crosscut.contracts.settings import Settings
from crosscut.errors import SettingsError, WireError
from crosscut.net.connections import Credentials
from crosscut.net.encryption import (
    TLS_HANDSHAKE_BYTES_MAX,
    JobCertificate,
    Tunnel,
    make_certificate,
)
from crosscut.spark.cluster.session import encrypts_traffic

PLAIN = b"a record of the user " * 100


@pytest.fixture(scope="module")
def certificate() -> JobCertificate:
    return make_certificate()


def established(connecting: Tunnel, accepting: Tunnel) -> None:
    """Carry the bytes of the TLS handshake to and fro until both sides have said everything."""
    assert connecting.receive(b"") == b""
    for _ in range(3):
        assert accepting.receive(connecting.answer()) == b""
        assert connecting.receive(accepting.answer()) == b""
    assert connecting.is_established
    assert accepting.is_established


def pair(certificate: JobCertificate) -> tuple[Tunnel, Tunnel]:
    connecting, accepting = certificate.connecting_tunnel(), certificate.accepting_tunnel()
    established(connecting, accepting)
    return connecting, accepting


def sealed(tunnel: Tunnel, data: bytes) -> bytes:
    return b"".join(tunnel.seal(data))


@pytest.mark.parametrize("size", [1, 16 * 1024, 16 * 1024 + 1, 1_000_000])
def test_what_one_side_seals_the_other_reads(certificate: JobCertificate, size: int) -> None:
    data = os.urandom(size)
    connecting, accepting = pair(certificate)
    assert accepting.receive(sealed(connecting, data)) == data
    assert connecting.receive(sealed(accepting, data)) == data


def test_bytes_may_arrive_one_at_a_time(certificate: JobCertificate) -> None:
    connecting, accepting = pair(certificate)
    found = b"".join(accepting.receive(bytes([one])) for one in sealed(connecting, b"records"))
    assert found == b"records"


def test_nothing_of_the_plain_text_is_in_what_is_sent(certificate: JobCertificate) -> None:
    connecting, _ = pair(certificate)
    assert b"record of the user" not in sealed(connecting, PLAIN)


def test_a_large_piece_is_sealed_in_parts(certificate: JobCertificate) -> None:
    """I11: no buffer grows with the largest batch."""
    connecting, accepting = pair(certificate)
    parts = list(connecting.seal(b"x" * 5_000_000))
    assert max(map(len, parts)) < 300_000
    assert b"".join(map(accepting.receive, parts)) == b"x" * 5_000_000


def test_only_tls_1_3_is_spoken(certificate: JobCertificate) -> None:
    connecting, accepting = pair(certificate)
    assert connecting._tls.version() == accepting._tls.version() == "TLSv1.3"


def test_a_certificate_of_another_job_is_refused_by_the_accepting_side(certificate: JobCertificate) -> None:
    """M1: the unauthenticated peer looks away, so it is the accepting side alone that decides."""
    unauthenticated_peer = make_certificate()._connecting
    unauthenticated_peer.verify_mode = ssl.CERT_NONE
    refused_by_the_accepting_side(certificate, unauthenticated_peer)


def test_no_certificate_at_all_is_refused_by_the_accepting_side(certificate: JobCertificate) -> None:
    """M1."""
    refused_by_the_accepting_side(certificate, careless_context())


def careless_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def refused_by_the_accepting_side(certificate: JobCertificate, unauthenticated_peer: ssl.SSLContext) -> None:
    connecting, accepting = Tunnel(unauthenticated_peer, accepting=False), certificate.accepting_tunnel()
    connecting.receive(b"")
    accepting.receive(connecting.answer())
    # In TLS 1.3 the connecting side is done first, and may send before it has been looked at.
    connecting.receive(accepting.answer())
    with pytest.raises(WireError, match="not of this job"):
        accepting.receive(connecting.answer() + sealed(connecting, PLAIN))
    assert not accepting.is_established


def test_a_certificate_of_another_job_is_refused_by_the_connecting_side(certificate: JobCertificate) -> None:
    """M1: somebody else listens on the port that the driver named."""
    connecting, accepting = certificate.connecting_tunnel(), make_certificate().accepting_tunnel()
    connecting.receive(b"")
    accepting.receive(connecting.answer())
    with pytest.raises(WireError, match="not of this job"):
        connecting.receive(accepting.answer())
    assert not connecting.is_established


def test_an_older_tls_is_refused(certificate: JobCertificate) -> None:
    """M1, with the right certificate and key."""
    certificate = make_certificate()
    older = certificate._connecting
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    connecting = Tunnel(older, accepting=False)
    connecting.receive(b"")
    with pytest.raises(WireError, match="UNSUPPORTED_PROTOCOL"):
        certificate.accepting_tunnel().receive(connecting.answer())


@pytest.mark.parametrize("side", ["connecting", "accepting"])
@pytest.mark.parametrize("said", [b"XCUT\x01\x02" + bytes(92), b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\xff"])
def test_plain_text_is_refused(certificate: JobCertificate, side: str, said: bytes) -> None:
    """M1, TLS stripped: whoever expects TLS never falls back."""
    tunnel: Tunnel = getattr(certificate, f"{side}_tunnel")()
    tunnel.receive(b"")
    with pytest.raises(WireError, match="not of this job"):
        tunnel.receive(said + bytes(100))


def test_a_handshake_without_end_is_refused_before_it_fills_the_memory(certificate: JobCertificate) -> None:
    """M2: a client hello that claims 64 KiB, in small records."""
    with pytest.raises(WireError, match="no end of the handshake"):
        certificate.accepting_tunnel().receive(bytes(TLS_HANDSHAKE_BYTES_MAX + 1))
    tunnel = certificate.accepting_tunnel()
    record = b"\x16\x03\x01" + (1_000).to_bytes(2, "big")
    first = b"\x01" + (65_000).to_bytes(3, "big") + b"\x03\x03"
    tunnel.receive(record + first + bytes(994))
    for _ in range(TLS_HANDSHAKE_BYTES_MAX // 1_005 - 1):
        tunnel.receive(record + bytes(1_000))
    with pytest.raises(WireError, match="no end of the handshake"):
        tunnel.receive(record + bytes(1_000))


@pytest.mark.parametrize("place", [0, 5, 100, -1])
def test_an_altered_byte_ends_the_connection(certificate: JobCertificate, place: int) -> None:
    """M4: of the record that was altered, nothing comes out."""
    connecting, accepting = pair(certificate)
    altered = bytearray(sealed(connecting, b"x" * 500))
    altered[place] ^= 1
    with pytest.raises(WireError, match="TLS stream broken"):
        accepting.receive(bytes(altered) + bytes(1_000))


def test_a_repeated_or_a_missing_record_ends_the_connection(certificate: JobCertificate) -> None:
    """M4."""
    connecting, accepting = pair(certificate)
    once = sealed(connecting, b"once")
    assert accepting.receive(once) == b"once"
    with pytest.raises(WireError, match="TLS stream broken"):
        accepting.receive(once)
    connecting, accepting = pair(certificate)
    sealed(connecting, b"lost on the way")
    with pytest.raises(WireError, match="TLS stream broken"):
        accepting.receive(sealed(connecting, b"next"))


def test_a_recorded_conversation_can_not_be_replayed(certificate: JobCertificate) -> None:
    """M4: neither to another connection of the same job."""
    connecting, accepting = certificate.connecting_tunnel(), certificate.accepting_tunnel()
    connecting.receive(b"")
    hello = connecting.answer()
    accepting.receive(hello)
    connecting.receive(accepting.answer())
    finished = connecting.answer() + sealed(connecting, PLAIN)
    assert accepting.receive(finished) == PLAIN
    other = certificate.accepting_tunnel()
    other.receive(hello)
    with pytest.raises(WireError):
        other.receive(finished)


def test_the_certificate_travels_and_works_at_the_other_end(certificate: JobCertificate) -> None:
    there: JobCertificate = pickle.loads(pickle.dumps(certificate))
    established(certificate.connecting_tunnel(), there.accepting_tunnel())
    established(there.connecting_tunnel(), certificate.accepting_tunnel())


def test_the_key_shows_up_in_no_text(certificate: JobCertificate) -> None:
    """S1."""
    shown = repr(certificate) + str(Credentials(b"s" * 32, b"j" * 16, certificate))
    assert "BEGIN" not in shown
    assert shown == "JobCertificate(...)Credentials(...)"


def test_loading_the_key_leaves_no_file_and_no_descriptor_behind(
    certificate: JobCertificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: with no place to write a file to, it works as well."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    before = os.listdir("/proc/self/fd")
    pickle.loads(pickle.dumps(certificate))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_job_without_encryption_does_not_load_the_library_for_certificates() -> None:
    code = "import sys, crosscut.spark.cluster.starting; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, False),
        ({"spark.ssl.rpc.enabled": "true"}, True),
        ({"spark.ssl.rpc.enabled": "TRUE"}, True),
        ({"spark.ssl.rpc.enabled": "false"}, False),
        ({"spark.ssl.enabled": "true"}, False),
        ({"spark.authenticate": "true"}, False),
        ({"spark.network.crypto.enabled": "true"}, False),
        ({"spark.authenticate": "true", "spark.network.crypto.enabled": " true "}, True),
        ({"spark.authenticate": "true", "spark.network.crypto.enabled": "false"}, False),
        ({"spark.authenticate": "true", "spark.authenticate.enableSaslEncryption": "true"}, True),
        ({"spark.authenticate": "true", "spark.ssl.enabled": "true"}, False),
    ],
)
def test_whether_spark_encrypts_follows_from_its_configuration(conf: dict[str, str], expected: bool) -> None:
    assert encrypts_traffic(conf.get) is expected


@pytest.mark.parametrize("wrong", ["yes", "On", "", True, None])
def test_an_unknown_choice_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(SettingsError, match=r"encryption=.*'auto', 'required', 'on', 'off'"):
        Settings(encryption=wrong)  # type: ignore[arg-type]
