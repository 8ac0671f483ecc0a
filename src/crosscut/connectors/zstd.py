"""Files packed with Zstandard; needs zstandard (`crosscut[zstd]`)."""

from __future__ import annotations

from typing import Any

from crosscut.connectors.extras import required

_BLOCK_BYTES = 128 * 1024
_LEVEL = 3


def compressor() -> Any:
    """Return what packs one file: `compress(data)` and `flush()`, as zlib's have it.

    Raises:
        ConnectorError: zstandard is missing.
    """
    return required("zstandard", "zstd").ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()


class ZstdFile:
    """The unpacked content of a file, read forward. A file may be several frames, one after the other.

    The reader of the library itself takes a file that was cut for one that has ended.

    Args:
        raw: The file as it is stored; whoever has opened it closes it.
    """

    def __init__(self, raw: Any) -> None:
        self._library = required("zstandard", "zstd")
        self._raw = raw
        self._frame: Any = None
        self._rest = b""
        self._unpacked = b""
        self._offset = 0

    def tell(self) -> int:
        """Return how many bytes have been read."""
        return self._offset

    def seek(self, offset: int) -> None:
        """Go to byte `offset`, which takes as long as reading up to there."""
        if offset < self._offset:
            self._raw.seek(0)
            self._frame, self._rest, self._unpacked, self._offset = None, b"", b"", 0
        while self._offset < offset and self.read(min(_BLOCK_BYTES, offset - self._offset)):
            pass

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end.

        Raises:
            EOFError: The file ends in the middle of a frame.
            OSError: It is damaged.
        """
        while not self._unpacked:
            packed = self._rest or self._raw.read(_BLOCK_BYTES)
            self._rest = b""
            if not packed:
                if self._frame is not None:
                    raise EOFError("the file ends in the middle of a frame: it was cut")
                return b""
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._unpacked = self._frame.decompress(packed)
            except self._library.ZstdError as error:
                raise OSError(f"damaged: {error}") from error
            if self._frame.eof:
                self._rest = self._frame.unused_data
                self._frame = None
        data, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Nothing of its own is open."""
