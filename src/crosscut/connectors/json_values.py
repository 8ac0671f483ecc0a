"""JSON that is exact: what orjson would silently write or read as another value is kept, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import orjson

# A number of 64 bits has 20 digits at most, and one of 18 digits fits always.
_LONG = b"0" * 19
_DIGITS = bytes(ord("0") if 48 <= one <= 57 else ord(" ") for one in range(256))


def dumped(value: Any) -> bytes:
    """Return `value` as JSON, in one line.

    Integers may be of any size. Keys of objects are texts; others become texts as Python's json makes them.

    Raises:
        ValueError: It can't be JSON without a change: NaN, infinity, keys that become the same, or a type
        that
            JSON does not have.
    """
    try:
        data = orjson.dumps(value)
    except orjson.JSONEncodeError as refusal:
        # The standard module also takes integers above 64 bits, named tuples and keys that are no texts.
        try:
            _check_keys(value)
            data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{refusal}; {error}") from error
    # orjson writes NaN and infinity as null. Where there is no null there is nothing to check.
    if b"null" in data and not is_finite(value):
        raise ValueError("it holds NaN or infinity, which JSON has no value for")
    return data


def json_text(value: Any) -> str:
    """Return `dumped` as text."""
    return dumped(value).decode()


def is_finite(value: Any) -> bool:
    """Return whether no number in `value`, which orjson has taken, is NaN or infinite."""
    try:
        _FINITE_ONLY.encode(value)
    except ValueError:
        return False
    return True


def loaded(data: bytes | str) -> Any:
    """Return the value of JSON; integers of any size are exact, where orjson makes floats of them.

    Raises:
        ValueError: It is no JSON, or an integer has more digits than Python reads.
    """
    return _exact(data) if _has_long_number(data) else orjson.loads(data)


def all_loaded(found: Iterable[bytes]) -> list[Any]:
    """Return the values of several pieces of JSON, as `loaded` does, with one look at all of them."""
    pieces = list(found)
    load: Callable[[bytes], Any] = _exact if _has_long_number(b"\n".join(pieces)) else orjson.loads
    return [load(one) for one in pieces]


def _has_long_number(data: bytes | str) -> bool:
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return len(text) >= len(_LONG) and _LONG in text.translate(_DIGITS)


def _exact(data: bytes | str) -> Any:
    # First the strict reader: the standard module takes NaN and other things that are no JSON.
    orjson.loads(data)
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _check_keys(value: Any) -> None:
    if isinstance(value, dict):
        texts = {key if isinstance(key, str) else json.dumps(key) for key in value}
        if len(texts) < len(value):
            raise ValueError(f"keys become the same text in JSON: {sorted(texts)[:5]}")
        for one in value.values():
            _check_keys(one)
    elif isinstance(value, list | tuple):
        for one in value:
            _check_keys(one)


def _contents(value: Any) -> Any:
    """Return what `value`, which only orjson knows, consists of; None for one that holds no number."""
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return value.value if isinstance(value, Enum) else None


_FINITE_ONLY = json.JSONEncoder(allow_nan=False, default=_contents)
