"""Seals: what protects frames where there is no TLS (rule S2).

Behind each frame stands an HMAC-SHA256 over the number of the frame, its header and its payload, under a key
that this connection and this direction alone have. Whatever somebody on the way changes, leaves out, repeats,
moves or adds is seen before a byte of the frame is decoded, and ends the connection. Nothing is hidden by it.
"""

from __future__ import annotations

import hmac
import struct

SEAL_BYTES = 32
_NUMBER = struct.Struct(">Q")


class FrameSeals:
    """The seals of one direction of one connection, in order.

    Args:
        key: 32 bytes, from the handshake; no other direction or connection has it.
    """

    def __init__(self, key: bytes) -> None:
        # Set up once: for small frames that is most of the work.
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def next(self, header: bytes | memoryview, payload: bytes | memoryview) -> bytes:
        """Return the seal of the next frame."""
        one = self._keyed.copy()
        one.update(_NUMBER.pack(self._count) + header)
        one.update(payload)
        self._count += 1
        return one.digest()

    def is_next(
        self, seal: bytes | memoryview, header: bytes | memoryview, payload: bytes | memoryview
    ) -> bool:
        """Return whether `seal` is that of the next frame."""
        return hmac.compare_digest(seal, self.next(header, payload))
