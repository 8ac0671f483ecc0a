"""Bytes in blocks that are worth a call of the operating system."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

BLOCK_BYTES = 1024 * 1024
"""Hashing a block or writing it lets the interpreter lock go. A thread gets it back only when the event loop,
which is always busy in a loaded worker, gives it up: once a block, not for each of hundreds of pieces."""


def in_blocks(pieces: Iterable[bytes], block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Join pieces to blocks of at least `block_bytes`; the last one may be shorter. No block is empty."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        if piece:
            gathered.append(piece)
            size += len(piece)
        if size >= block_bytes:
            yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield gathered[0] if len(gathered) == 1 else b"".join(gathered)


def write_fully(descriptor: int, data: bytes) -> None:
    """Write all of `data`.

    Raises:
        OSError: That is not possible; a part of it may be written.
    """
    written = os.write(descriptor, data)
    if written < len(data):
        # At 2 GiB, or near the end of the disk.
        rest = memoryview(data)[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
