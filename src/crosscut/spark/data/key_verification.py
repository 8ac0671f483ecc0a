"""Signatures of a job log, verified for processes of Spark that don't have the key.

Spark plans reads of the data source `crosscut` in a Python process of its own. That process must believe only
what was written with the key, and must not have the key. So it asks the process that has registered the data
source whether a signature is right, over a socket in a directory that only this user can enter. The answer is
one byte, and nothing can be signed that way.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from contextlib import suppress
from typing import Any

from crosscut.errors import StoreError
from crosscut.store.log_key import VARIABLE, LogKey, Signature

REQUEST_BYTES_MAX = 4_096
PATIENCE_S = 10.0

_servers: dict[str, VerificationServer] = {}
_lock = threading.Lock()


class VerificationServer:
    """Answers, for the life of this process, whether `key` has made a signature."""

    def __init__(self, key: LogKey) -> None:
        self._key = key
        self._directory = tempfile.TemporaryDirectory(prefix="crosscut-key-")
        self.address = os.path.join(self._directory.name, "verify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.address)
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="crosscut-key", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._directory.cleanup()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError, ValueError, RecursionError):
                connection.settimeout(PATIENCE_S)
                connection.sendall(b"y" if self._is_right(_received(connection)) else b"n")

    def _is_right(self, request: bytes) -> bool:
        match json.loads(request):
            case {"key_id": str(key_id), "mac": str(mac), "digest": str(digest)}:
                is_ascii = mac.isascii() and digest.isascii()
                return is_ascii and self._key.has_made(Signature(key_id, mac), digest)
            case _:
                return False


class DriversKey(LogKey):
    """The key of another process of this machine, which verifies with it; see `VerificationServer`."""

    __slots__ = ("_address",)

    def __init__(self, key_id: str, address: str) -> None:
        self.key_id = key_id
        self._address = address

    def __reduce__(self) -> Any:
        # It holds no secret.
        return DriversKey, (self.key_id, self._address)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DriversKey) and (self.key_id, self._address) == (
            other.key_id,
            other._address,
        )

    def __hash__(self) -> int:
        return hash((self.key_id, self._address))

    def signature(self, digest: str) -> Signature:
        """Refuse: the key is elsewhere."""
        raise StoreError(f"nothing can be written to the job log here: this process does not have {VARIABLE}")

    def has_made(self, signature: Signature, digest: str) -> bool:
        """Ask the process that has the key.

        Raises:
            StoreError: It does not answer.
        """
        request = json.dumps({"key_id": signature.key_id, "mac": signature.mac, "digest": digest}).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(PATIENCE_S)
                connection.connect(self._address)
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(1)
        except OSError as error:
            raise StoreError(
                f"can't verify the job log: the program that called crosscut.spark.register, and has key "
                f"{self.key_id}, does not answer ({error}); it has to run on the machine of Spark's driver"
            ) from error
        return answer == b"y"


def drivers_key(key: LogKey | None) -> DriversKey | None:
    """Return what stands for `key` in other processes of this machine; None if there is no key."""
    if key is None:
        return None
    with _lock:
        found = _servers.get(key.key_id)
        if found is None:
            found = _servers[key.key_id] = VerificationServer(key)
    return DriversKey(key.key_id, found.address)


def _received(connection: socket.socket) -> bytes:
    data = b""
    while len(data) <= REQUEST_BYTES_MAX and (piece := connection.recv(REQUEST_BYTES_MAX)):
        data += piece
    if len(data) > REQUEST_BYTES_MAX:
        raise ValueError("too long")
    return data
