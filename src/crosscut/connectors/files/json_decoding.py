"""JSON in, for all decoders. Integers are exact; what is nested so deeply that code behind it would fail is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import orjson

DEPTH_MAX = 200
"""Lists and objects inside one another. Pickle, repr and user code that walks a value recurse."""

_DEEP_LENGTH = 2 * (DEPTH_MAX + 1)
"""Shorter text can't be nested more deeply: each level takes two characters."""

# Integers of up to 18 digits have 64 bits; orjson makes floats of those that have more.
_LONG = b"0" * 19
_DIGITS = bytes(ord("0") if chr(one).isdecimal() and one < 128 else ord(" ") for one in range(256))

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def json_value(data: bytes | str) -> Any:
    """Return what `data` says.

    Raises:
        ValueError: It is no JSON, is nested more deeply than `DEPTH_MAX`, or has an integer of hundreds of
            digits.
    """
    value = orjson.loads(data)
    if _has_long_number(data):
        # What is nested as deeply as that is refused below.
        with suppress(RecursionError):
            value = json.loads(data)
    check_depth(data)
    return value


def json_values(texts: Sequence[bytes | str]) -> list[Any]:
    """Return what each of `texts` says; see `json_value`."""
    is_plain = max(map(len, texts), default=0) < _DEEP_LENGTH and not _has_long_number(_joined(texts))
    load: Callable[[bytes | str], Any] = orjson.loads if is_plain else json_value
    return list(map(load, texts))


def _joined(texts: Sequence[bytes | str]) -> bytes:
    if {*map(type, texts)} == {bytes}:
        return b" ".join(cast(Sequence[bytes], texts))
    return b" ".join([one.encode() if isinstance(one, str) else one for one in texts])


def _has_long_number(data: bytes | str) -> bool:
    if len(data) < len(_LONG):
        return False
    # Three passes over the bytes, none of them Python's: a number has no more digits than it has bytes.
    return _LONG in (data.encode() if isinstance(data, str) else data).translate(_DIGITS)


def check_depth(data: bytes | str) -> None:
    """Look how deeply `data`, which is JSON, is nested.

    Raises:
        ValueError: More deeply than `DEPTH_MAX`.
    """
    if len(data) < _DEEP_LENGTH:
        return
    if isinstance(data, str):
        data = data.encode()
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return
    # Without the texts: what stands between quotes that are not escaped.
    plain = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    brackets = plain.translate(_BRACKETS, _OTHERS)
    for _ in range(DEPTH_MAX):
        if not brackets:
            return
        # One level less, the innermost ones.
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise ValueError(f"it is nested more than {DEPTH_MAX} levels deep")
