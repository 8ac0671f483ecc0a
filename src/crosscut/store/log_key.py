"""The key that the job log is authenticated with, if the user has set one. Only the driver has it.

An entry pins each part by its SHA-256 and the entry before by its digest. So a MAC over the digest of
each entry covers the whole checkpoint directory: who can write there, and has not the key, can destroy
a job, but can't have it go on from anything that it has not written.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from crosscut.errors import InternalError, SettingsError
from crosscut.foundation.ids import Epoch
from crosscut.protocol.messages import UnitKeys

VARIABLE = "CROSSCUT_LOG_KEY"
CHARACTERS_MIN = 32
_KEY_ID_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Signature:
    """What an entry carries that was written with a key.

    Attributes:
        key_id: Says which key it was, and nothing of it.
    """

    key_id: str
    mac: str


class LogKey:
    """A key. It shows itself nowhere, and can't be pickled: no closure carries it away.

    Args:
        secret: At least 32 characters, not a word that somebody could guess.

    Raises:
        SettingsError: It is shorter.
    """

    __slots__ = ("_secret", "key_id")

    def __init__(self, secret: str) -> None:
        if len(secret) < CHARACTERS_MIN:
            raise SettingsError(
                f"{VARIABLE} has {len(secret)} characters: expected a secret of at least {CHARACTERS_MIN}, "
                f"as from `openssl rand -hex 32`; or unset it, for a job log that is not authenticated"
            )
        self._secret = secret.encode()
        self.key_id = self._mac(b"crosscut job log: key id")[:_KEY_ID_DIGITS]

    def __repr__(self) -> str:
        return f"LogKey({self.key_id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the key of the job log stays in the driver: it can't be pickled")

    def signature(self, digest: str) -> Signature:
        """Return the signature of the entry with this digest."""
        return Signature(self.key_id, self._mac(b"crosscut job log: entry " + digest.encode("ascii")))

    def has_made(self, signature: Signature, digest: str) -> bool:
        """Whether `signature` is of this key and of the entry with this digest."""
        return hmac.compare_digest(signature.mac, self.signature(digest).mac)

    def note_signature(self, subject: str, digest: str) -> Signature:
        """Return the signature of something beside the log; `subject` says of what, and where it is."""
        return Signature(self.key_id, self._mac(f"crosscut {subject}: {digest}".encode()))

    def has_noted(self, signature: Signature, subject: str, digest: str) -> bool:
        """Whether `note_signature` has made `signature`."""
        return signature.mac.isascii() and hmac.compare_digest(
            signature.mac, self.note_signature(subject, digest).mac
        )

    def progress_key(self, job: str) -> bytes:
        """Return the key with which the workers of `job` sign how far their commits have come."""
        return bytes.fromhex(self._mac(f"crosscut commit progress: {job}".encode()))

    def unit_key(self, lineage: str, unit: int, epochs: Iterable[Epoch]) -> UnitLogKey:
        """Return what the log of a unit is signed with, and read with: a key for each of `epochs`."""
        keys = {epoch: bytes.fromhex(self._unit_key(lineage, unit, epoch)) for epoch in epochs}
        return UnitLogKey(self.key_id, keys)

    def unit_keys(self, lineage: str, unit: int, epoch: Epoch) -> UnitKeys:
        """Return the same for all epochs up to `epoch`, to be sent to the worker."""
        epochs = map(Epoch, range(1, epoch + 1))
        return UnitKeys(self.key_id, tuple(self._unit_key(lineage, unit, one) for one in epochs))

    def _unit_key(self, lineage: str, unit: int, epoch: Epoch) -> str:
        return self._mac(f"crosscut unit log: {lineage}/{unit}/{epoch}".encode())

    def _mac(self, data: bytes) -> str:
        return hmac.digest(self._secret, data, "sha256").hex()


class UnitLogKey:
    """The keys of one unit's log, one for each epoch, derived from the key of the job log.

    A worker has these and not the key that they come from: it can sign for its own unit only, and for no
    epoch but those that it was given.

    Args:
        key_id: Of the key that they were derived from.
        keys: By epoch.
    """

    __slots__ = ("_keys", "key_id")

    def __init__(self, key_id: str, keys: Mapping[Epoch, bytes]) -> None:
        self.key_id = key_id
        self._keys = dict(keys)

    def __repr__(self) -> str:
        return f"UnitLogKey({self.key_id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the key of a unit's log can't be pickled: a closure must not carry it away")

    def mac(self, epoch: Epoch, digest: bytes) -> bytes:
        """Return the signature of the entry of `epoch` with this digest.

        Raises:
            InternalError: There is no key of this epoch.
        """
        key = self._keys.get(epoch)
        if key is None:
            raise InternalError(f"an entry of epoch {epoch} was to be signed: this process has no key for it")
        return hmac.digest(key, digest, "sha256")

    def has_made(self, mac: bytes, epoch: Epoch, digest: bytes) -> bool:
        """Whether `mac` is of the key of `epoch` and of the entry with this digest."""
        return epoch in self._keys and hmac.compare_digest(mac, self.mac(epoch, digest))


def unit_log_key(sent: UnitKeys | None) -> UnitLogKey | None:
    """Return the keys that the driver has sent to a worker; None: its log is not signed."""
    if sent is None:
        return None
    keys = {Epoch(epoch): bytes.fromhex(key) for epoch, key in enumerate(sent.keys, 1)}
    return UnitLogKey(sent.key_id, keys)


def without_log_key(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for another process: without the key."""
    return {name: value for name, value in environment.items() if name != VARIABLE}


def log_key() -> LogKey | None:
    """Return the key that is in the environment of this process, None if there is none.

    Raises:
        SettingsError: It is too short; nothing of it is shown.
    """
    secret = os.environ.get(VARIABLE)
    return LogKey(secret) if secret is not None else None
