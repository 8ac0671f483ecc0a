"""JSON in, for all decoders: what is nested so deeply that code behind it would fail is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

DEPTH_MAX = 200
"""Lists and objects inside one another. Pickle, repr and user code that walks a value recurse."""

_DEEP_LENGTH = 2 * (DEPTH_MAX + 1)
"""Shorter text can't be nested more deeply: each level takes two characters."""

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def json_value(data: bytes | str) -> Any:
    """Return what `data` says.

    Raises:
        ValueError: It is no JSON, or is nested more deeply than `DEPTH_MAX`.
    """
    return checked_depth(orjson.loads(data), data)


def checked_depth(value: Any, data: bytes | str) -> Any:
    """Return `value`, which was decoded from `data`.

    Raises:
        ValueError: It is nested more deeply than `DEPTH_MAX`.
    """
    if len(data) >= _DEEP_LENGTH and _may_be_deep(data) and _is_deep(value):
        raise ValueError(f"it is nested more than {DEPTH_MAX} levels deep")
    return value


def json_values(texts: Sequence[bytes | str]) -> list[Any]:
    """Return what each of `texts` says; see `json_value`."""
    are_short = max(map(len, texts), default=0) < _DEEP_LENGTH
    return list(map(orjson.loads if are_short else json_value, texts))


def _may_be_deep(data: bytes | str) -> bool:
    """Whether the brackets alone leave it open; those within texts count too."""
    if isinstance(data, str):
        data = data.encode()
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return False
    brackets = data.translate(_BRACKETS, _OTHERS)
    for _ in range(DEPTH_MAX):
        if not brackets:
            return False
        # One level less, the innermost ones. A text may hold brackets without their counterparts.
        size, brackets = len(brackets), brackets.replace(b"[]", b"")
        if len(brackets) == size:
            break
    return len(brackets) > 0


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        containers = [one for one in level if isinstance(one, list | dict)]
        if not containers:
            return False
        level = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
    return True
