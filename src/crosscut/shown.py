"""Values of users in messages: of bounded length, and made in bounded time."""

from __future__ import annotations

import reprlib


class ShortRepr(reprlib.Repr):
    """Shortens bytes before their repr is made, as `reprlib` does with text: the whole one of a gigabyte
    takes four, and longer than a worker may be silent.

    Args:
        text_max: Characters of each text, and of whatever else is no container.
    """

    def __init__(self, text_max: int) -> None:
        super().__init__()
        self.maxstring = self.maxother = text_max

    def repr_bytes(self, value: bytes, level: int) -> str:
        """Called by `repr`."""
        # Up to four characters each.
        bytes_max = self.maxstring // 4
        return repr(value) if len(value) <= bytes_max else f"{value[:bytes_max]!r}..."

    def repr_bytearray(self, value: bytearray, level: int) -> str:
        """Called by `repr`."""
        return f"bytearray({self.repr_bytes(bytes(value[: self.maxstring]), level)})"
