"""From the records of one file to its bytes, as the writer of a file sink takes them."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from crosscut.connectors.files.zstd import compressor

Compression = Literal["gzip", "zstd"]

SUFFIXES: dict[Compression, str] = {"gzip": "gz", "zstd": "zst"}

_GZIP_LEVEL = 4
_GZIP = 16 + zlib.MAX_WBITS


class FileEncoder(ABC):
    """Encodes the records of one file. Made for its first records; used by one thread at a time."""

    @abstractmethod
    def add(self, records: list[Any]) -> bytes:
        """Take records; return what there is to append now, perhaps nothing.

        Called on the event loop. The caller may change the records afterwards.

        Raises:
            ConnectorError: One can't be written; then nothing was taken.
        """

    def finish(self) -> bytes:
        """Return the rest of the file. Called once, after the last records, in a thread that may wait."""
        return b""


class Plain(FileEncoder):
    """A format whose files are their records, one after the other."""

    def __init__(self, encode: Callable[[list[Any]], bytes]) -> None:
        self._encode = encode

    def add(self, records: list[Any]) -> bytes:
        return self._encode(records)


def packer(compression: Compression) -> Any:
    """Return what packs one file: `compress(data)` and `flush()`.

    Raises:
        ConnectorError: zstandard is missing.
    """
    if compression == "zstd":
        return compressor()
    return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)


class Packed(FileEncoder):
    """Another encoder's file, compressed."""

    def __init__(self, inner: FileEncoder, compression: Compression) -> None:
        self._inner = inner
        self._compress = packer(compression)

    def add(self, records: list[Any]) -> bytes:
        data: bytes = self._compress.compress(self._inner.add(records))
        return data

    def finish(self) -> bytes:
        data: bytes = self._compress.compress(self._inner.finish())
        rest: bytes = self._compress.flush()
        return data + rest
