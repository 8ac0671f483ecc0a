"""Files packed with Zstandard; needs zstandard (`crosscut[zstd]`)."""

from __future__ import annotations

from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.packed_file import BLOCK_BYTES, PackedFile

_LEVEL = 3

# RFC 8878.
_FRAME = 0xFD2FB528
_SKIPPABLE, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_CHECKSUM = 4
_BLOCK_BYTES_MAX = 128 * 1024
_REPEATED = 1
_WINDOW_BYTES_MAX = 128 * 1024 * 1024
"""What the zstd command itself takes unless it is told otherwise."""


def compressor() -> Any:
    """Return what packs one file: `compress(data)` and `flush()`, as zlib's have it.

    Raises:
        ConnectorError: zstandard is missing.
    """
    return required("zstandard", "zstd").ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()


class ZstdFile(PackedFile):
    """A file packed with Zstandard: several frames, one after the other.

    The library is given one block at a time, which unpacks to 128 KiB at most: of a call it returns all that
    it makes of its input, and 64 KiB may be two gigabytes. Its own reader takes a file that was cut for one
    that has ended.
    """

    def begin(self) -> None:
        self._library = required("zstandard", "zstd")
        self._frame: Any = None
        self._has_checksum = False
        self._packed = b""

    def more(self) -> bytes | None:
        if self._frame is None:
            return self._begin_frame() if self._has(1) else None
        header = int.from_bytes(self._taken(3, take=False), "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if size > _BLOCK_BYTES_MAX:
            raise OSError(f"damaged: a block of {size} bytes")
        content = 1 if kind == _REPEATED else size
        return self._unpack(self._taken(3 + content + (4 if is_last and self._has_checksum else 0)))

    def _begin_frame(self) -> bytes:
        magic = int.from_bytes(self._taken(4, take=False), "little")
        if magic & _SKIPPABLE_MASK == _SKIPPABLE:
            left = int.from_bytes(self._taken(8)[4:], "little")
            while left:
                left -= len(self._taken(min(left, BLOCK_BYTES)))
            return b""
        if magic != _FRAME:
            raise OSError("damaged: what follows is no frame of Zstandard")
        described = self._taken(5, take=False)[4]
        is_single = described >> 5 & 1
        size = 6 - is_single + (0, 1, 2, 4)[described & 3] + (is_single, 2, 4, 8)[described >> 6]
        self._has_checksum = bool(described & _CHECKSUM)
        self._frame = self._library.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).decompressobj()
        return self._unpack(self._taken(size))

    def _unpack(self, data: bytes) -> bytes:
        try:
            found: bytes = self._frame.decompress(data)
        except self._library.ZstdError as error:
            raise OSError(f"damaged: {error}") from error
        if self._frame.eof:
            self._frame = None
        return found

    def _has(self, count: int) -> bool:
        """Read on until `count` bytes wait, or all that are left; return whether there are so many."""
        while len(self._packed) < count:
            if not (more := self._raw.read(BLOCK_BYTES)):
                return False
            self._packed += more
        return True

    def _taken(self, count: int, *, take: bool = True) -> bytes:
        if not self._has(count):
            raise EOFError("the file ends in the middle of a frame: it was cut")
        data = self._packed[:count]
        if take:
            self._packed = self._packed[count:]
        return data
