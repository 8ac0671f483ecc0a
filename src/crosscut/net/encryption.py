"""TLS 1.3 for every connection of a job, with one throw-away certificate (rules S1 to S3).

The driver makes the certificate and its key; they travel where the job's secret travels and end with the
job. Both sides of a connection present this certificate and accept no other: it is its own authority.
The handshake of `crosscut.wire.handshake` runs inside, because TLS says who is in the job, and only that
handshake says in which role, for which epoch and for which channel.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from crosscut.errors import WireError, invariant

TLS_HANDSHAKE_BYTES_MAX = 8 * 1024
"""Most that is taken from a peer before its handshake is over; a genuine one needs about 2 KiB."""

_RECORD_BYTES = 16 * 1024
"""The longest record of TLS, and so the most that one read returns."""

_SEALED_BYTES = 256 * 1024
"""Plain text that is encrypted in one go. OpenSSL's buffers keep the largest size they ever had."""

_PIPE_BYTES_MAX = 4096


class JobCertificate:
    """The certificate of one job and its private key, as PEM: the key is the proof of belonging to the job.

    It may be pickled, and travels inside `Credentials`. May be used from any thread.
    """

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self._certificate = certificate
        self._key = key
        self._connecting = self._context(ssl.PROTOCOL_TLS_CLIENT)
        self._accepting = self._context(ssl.PROTOCOL_TLS_SERVER)
        # Sessions are not resumed: every connection shows the certificate.
        self._accepting.num_tickets = 0

    def __repr__(self) -> str:
        return "JobCertificate(...)"

    def __reduce__(self) -> tuple[type[JobCertificate], tuple[bytes, bytes]]:
        return JobCertificate, (self._certificate, self._key)

    def connecting_tunnel(self) -> Tunnel:
        """Return the TLS of a connection that was made from here."""
        return Tunnel(self._connecting, accepting=False)

    def accepting_tunnel(self) -> Tunnel:
        """Return the TLS of a connection that was made to here."""
        return Tunnel(self._accepting, accepting=True)

    def _context(self, side: ssl._SSLMethod) -> ssl.SSLContext:
        # A context made like this trusts no certificate yet, not even the authorities of the system.
        context = ssl.SSLContext(side)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        # Not the name counts but the certificate itself: workers move, it stays the same.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self._certificate.decode())
        with _as_path(self._certificate) as certificate, _as_path(self._key) as key:
            context.load_cert_chain(certificate, key)
        return context


def make_certificate() -> JobCertificate:
    """Make the certificate of a new job."""
    # Imported here: only jobs with encryption pay for it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "crosscut")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # It ends with the job, which may run for years, and on machines whose clocks are wrong.
        .not_valid_before(datetime(2000, 1, 1))
        .not_valid_after(datetime(9999, 12, 31))
        # It vouches for itself and for nothing else.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    return JobCertificate(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


@contextmanager
def _as_path(content: bytes) -> Iterator[str]:
    """Yield a path that `content` can be read from, once.

    The standard library loads keys from paths only. This one leads to a pipe: the key is never on a disk,
    not even if the process is killed in between.
    """
    invariant(len(content) <= _PIPE_BYTES_MAX, "a certificate or key that is too long for a pipe")
    reading, writing = os.pipe()
    try:
        with open(writing, "wb") as pipe:
            pipe.write(content)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


class Tunnel:
    """TLS on one connection, sans-I/O: the caller owns the socket, the deadline and the limits.

    asyncio's own TLS would not do: a connection can be neither counted nor closed before its TLS handshake
    is over, and takes 256 KiB from its first byte on. This way what holds for plain connections holds for
    encrypted ones, with every event loop: back pressure, limits, and the order of what is sent.

    The keys of a connection are not renewed while it lasts: the standard library offers no call for it.
    """

    def __init__(self, context: ssl.SSLContext, *, accepting: bool) -> None:
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=accepting)
        self._handshake_bytes = 0
        self._is_established = False

    @property
    def is_established(self) -> bool:
        """Whether the peer has shown the certificate and owns its key: `seal` may be called."""
        return self._is_established

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the peer, at the start b""; return the plain text in them; then send `answer`.

        Raises:
            WireError: The peer does not speak TLS 1.3 or is not of this job (M1), the bytes were altered,
                replayed or cut (M4); close the connection.
        """
        if not self._is_established:
            # Neither side of ours sends anything else before the other has answered.
            self._handshake_bytes += len(data)
            if self._handshake_bytes > TLS_HANDSHAKE_BYTES_MAX:
                raise WireError(
                    f"TLS refused: no end of the handshake within {TLS_HANDSHAKE_BYTES_MAX} bytes"
                )
        self._arrived.write(data)
        plain: list[bytes] = []
        try:
            if not self._is_established:
                self._tls.do_handshake()
                self._is_established = True
            while piece := self._tls.read(_RECORD_BYTES):
                plain.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(plain)
        except ssl.SSLError as error:
            what = "stream broken" if self._is_established else "refused: the peer is not of this job"
            raise WireError(f"TLS {what} ({error.reason or error})") from error
        # Neither side of ours ends the encryption and keeps the connection.
        raise WireError("TLS ended by the peer")

    def answer(self) -> bytes:
        """Return the bytes that TLS itself sends to the peer."""
        return self._leaving.read()

    def seal(self, data: bytes) -> Iterator[bytes]:
        """Encrypt `data`; yield the bytes to send, piece by piece."""
        rest = memoryview(data)
        while rest:
            part, rest = rest[:_SEALED_BYTES], rest[_SEALED_BYTES:]
            while part:
                part = part[self._tls.write(part) :]
            yield self._leaving.read()
