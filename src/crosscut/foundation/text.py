"""Values of users in messages: of bounded length, and made in bounded time."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import re
import reprlib
from contextlib import suppress
from typing import Any


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

    def repr_int(self, value: int, level: int) -> str:
        """Called by `repr`."""
        try:
            repr(value)
        except ValueError:
            # Python turns no number of many thousands of digits into text. `reprlib` shows an address then,
            # since Python 3.14.
            return f"<int of {value.bit_length()} bits>"
        return super().repr_int(value, level)

    def repr_instance(self, value: object, level: int) -> str:
        """Called by `repr`."""
        fields = None
        with suppress(Exception):
            # One may be gone, or a property of the user's own that raises.
            fields = _fields(value)
        if fields is None:
            return super().repr_instance(value, level)
        name = type(value).__name__ if isinstance(value, tuple) else type(value).__qualname__
        if level <= 0:
            return f"{name}(...)"
        shown = ", ".join(f"{field}={self.repr1(one, level - 1)}" for field, one in fields)
        text = f"{name}({shown})"
        return text if len(text) <= self.maxother else f"{text[: self.maxother - 3]}..."


def _fields(value: Any) -> list[tuple[str, object]] | None:
    """Return the fields of an instance that are in its repr, None if that is not made by Python of them."""
    made_by = getattr(getattr(inspect.unwrap(type(value).__repr__), "__code__", None), "co_filename", "")
    if made_by == "<string>" and dataclasses.is_dataclass(value):
        return [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value) if one.repr]
    if made_by == collections.__file__ and isinstance(value, tuple):
        return list(zip(getattr(value, "_fields", ()), value, strict=False))
    return None


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""All but tab and newline; with those that change the direction in which text is read."""


def escaped(text: str) -> str:
    """Return `text` with control characters written out, such as `\\x1b`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
