"""JSON out, for all encoders: what orjson would silently write as another value is kept, or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from reprlib import repr as shortened
from typing import Any, TypeVar

import orjson

from crosscut.errors import ConnectorError

Returned = TypeVar("Returned")


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
    if b"null" in data:
        check_finite(value)
    return with_whole_offsets(value) if may_have_cut_offsets(data) else data


def all_dumped(values: Sequence[Any]) -> list[bytes | None]:
    """Return each of `values` as JSON, None for None.

    Raises:
        ConnectorError: One can't be JSON; names it.
    """
    dumps = orjson.dumps
    try:
        found = [None if value is None else dumps(value) for value in values]
    except orjson.JSONEncodeError:
        return [None if value is None else _named(dumped, value) for value in values]
    for value, data in zip(values, found, strict=True):
        if data is not None and b"null" in data:
            _named(check_finite, value)
    if may_have_cut_offsets(b"".join(filter(None, found))):
        return [None if value is None else _named(dumped, value) for value in values]
    return found


def may_have_cut_offsets(data: bytes) -> bool:
    """Whether `data`, which orjson has made, may lack seconds of the offset of a datetime.

    orjson writes only hours and minutes. Zones had offsets with seconds until 1972.
    """
    return _EARLY_LOCAL.search(data) is not None


def with_whole_offsets(value: Any) -> bytes:
    """Return `value`, which orjson has taken, as JSON in which offsets have their seconds."""
    return orjson.dumps(value, default=_iso, option=orjson.OPT_PASSTHROUGH_DATETIME)


def _iso(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise TypeError


def _named(function: Callable[[Any], Returned], value: Any) -> Returned:
    try:
        return function(value)
    except ValueError as error:
        shown = shortened(value)
        raise ConnectorError(f"{shown} can't be JSON: {error}", record=shown, is_permanent=True) from error


def json_text(value: Any) -> str:
    """Return `dumped` as text."""
    return dumped(value).decode()


def check_finite(value: Any) -> None:
    """Raise ValueError if a number in `value`, which orjson has taken, is NaN or infinite."""
    try:
        _FINITE_ONLY.encode(value)
    except ValueError as error:
        raise ValueError("it holds NaN or infinity, which JSON has no value for") from error


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

# Of a year before 2000, and not of UTC.
_EARLY_LOCAL = re.compile(rb'T(?<="[01]...-..-..T)..:..:..(?:\.......)?[+-](?!00:00")')
