"""The unpacked content of packed files, read forward in pieces of bounded size."""

from __future__ import annotations

import lzma
from abc import ABC, abstractmethod
from typing import Any

BLOCK_BYTES = 128 * 1024
"""Of the file as it is stored, read at once."""

MEMORY_BYTES_MAX = 256 * 1024 * 1024
"""For what a format lets a file ask for: xz -9 asks for 65 MiB, and a file may ask for 4 GiB."""


class PackedFile(ABC):
    """The unpacked content of a file.

    Args:
        raw: The file as it is stored; the caller closes it.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._unpacked = b""
        self._offset = 0
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Begin with the first byte of `raw`."""

    @abstractmethod
    def more(self) -> bytes | None:
        """Return the next piece, perhaps an empty one, or None at the end. Bounded, whatever the file says.

        Raises:
            EOFError: The file ends before its content does.
            OSError: It is damaged.
        """

    def tell(self) -> int:
        """Return how many bytes have been read."""
        return self._offset

    def seek(self, offset: int) -> None:
        """Go to byte `offset`, which takes as long as reading up to there."""
        if offset < self._offset:
            self._raw.seek(0)
            self._unpacked, self._offset = b"", 0
            self.begin()
        while self._offset < offset and self.read(min(BLOCK_BYTES, offset - self._offset)):
            pass

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end.

        Raises:
            EOFError: The file ends before its content does.
            OSError: It is damaged.
        """
        while not self._unpacked:
            if (more := self.more()) is None:
                return b""
            self._unpacked = more
        data, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Nothing of its own is open."""


class XzFile(PackedFile):
    """A file packed with xz: several streams, one after the other, with zeros between them.

    `lzma.open` takes any amount of memory that the file asks for.
    """

    def begin(self) -> None:
        # An empty file is one that was cut.
        self._stream: lzma.LZMADecompressor | None = self._new_stream()
        self._rest = b""

    def more(self) -> bytes | None:
        if self._stream is None:
            self._rest = self._rest.lstrip(b"\0") or self._raw.read(BLOCK_BYTES).lstrip(b"\0")
            if not self._rest:
                return None if self._is_at_end() else b""
            self._stream = self._new_stream()
        packed, self._rest = self._rest, b""
        if not packed and self._stream.needs_input and not (packed := self._raw.read(BLOCK_BYTES)):
            raise EOFError("the file ends in the middle of a stream: it was cut")
        data = self._stream.decompress(packed, BLOCK_BYTES)
        if self._stream.eof:
            self._rest, self._stream = self._stream.unused_data, None
        return data

    def _new_stream(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=MEMORY_BYTES_MAX)

    def _is_at_end(self) -> bool:
        self._rest = self._raw.read(BLOCK_BYTES)
        return not self._rest
