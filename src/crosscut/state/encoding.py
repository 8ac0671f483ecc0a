"""State as bytes: the format of a part, and copies of values.

A part is the magic `XCS1` and a series of blocks; a block is a length (8 bytes, big-endian) and a
pickle (protocol 5) of `(keys, values)`, two lists of the same length. Blocks of later parts override
those of earlier ones. Parts are not divided by key group: whoever restores takes the keys that it
owns, so a snapshot costs no hash per key (docs/decisions/0003).

Pickle runs code of whoever made the bytes. Parts are read only after their SHA-256 matched the one in
the job log: by workers, which run the user's code anyway, and on the driver for the flow's own
invariants, if it states any (rules S7, S8).
"""

from __future__ import annotations

import pickle  # noqa: S403 - see above
import struct
from collections.abc import Iterator
from typing import Any

from crosscut.errors import StateError

MAGIC = b"XCS1"
_LENGTH = struct.Struct(">Q")

_ATOMIC = frozenset({int, float, complex, bool, str, bytes, type(None)})


def encode_block(keys: list[Any], values: list[Any]) -> bytes:
    """Return one block.

    Raises:
        StateError: A value can't be pickled; the message names its key.
    """
    try:
        data = pickle.dumps((keys, values), protocol=5)
    except Exception as error:  # A value's own __reduce__ may raise anything.
        raise StateError(_unpicklable(keys, values, error)) from error
    return _LENGTH.pack(len(data)) + data


def decode_part(data: bytes) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield the (keys, values) of each block, in order.

    Raises:
        StateError: `data` is no part, or a value's class can't be loaded here.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise StateError(f"a part of {len(data)} bytes starts with {data[:4]!r}: expected {MAGIC!r}")
    offset = len(MAGIC)
    while offset < len(data):
        start = offset + _LENGTH.size
        offset = start + int.from_bytes(data[offset:start], "big")
        if start > len(data) or offset > len(data):
            raise StateError(f"a part of {len(data)} bytes ends in the middle of a block: it was cut short")
        yield _loaded(memoryview(data)[start:offset])


def owned_copy(value: Any) -> Any:
    """Return `value` if nobody can change it, else a copy that the caller may change."""
    if type(value) in _ATOMIC or (type(value) is tuple and all(type(item) in _ATOMIC for item in value)):
        return value
    return _loaded(pickle.dumps(value, protocol=5))


def _loaded(data: bytes | memoryview) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 - own state, checked against the SHA-256 in the job log
    except Exception as error:  # A value's own __setstate__ may raise anything.
        raise StateError(
            f"state can't be decoded: {type(error).__name__}: {error}; the classes of keyed state must be "
            f"importable, in a version that accepts what an earlier one stored"
        ) from error


def _unpicklable(keys: list[Any], values: list[Any], error: Exception) -> str:
    for key, value in zip(keys, values, strict=True):
        try:
            pickle.dumps(value, protocol=5)
        except Exception as cause:  # noqa: BLE001 - as in encode_block: the same value raises again
            return (
                f"the state of key {key!r:.120}, of type {type(value).__qualname__}, can't be stored: "
                f"{type(cause).__name__}: {cause}; keep plain values in state"
            )
    return f"state can't be stored: {type(error).__name__}: {error}"
