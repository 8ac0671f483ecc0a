"""JSON out, for all encoders: what orjson would silently write as another value is kept, or refused.

A dataclass is an object of its fields, as it is a row of a table. orjson by itself leaves out fields that
begin with "_", and adds attributes that are no fields, such as a `cached_property` once it has been used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from enum import Enum
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from reprlib import repr as shortened
from typing import Any, TypeVar, cast

import orjson

from crosscut.errors import ConnectorError

Returned = TypeVar("Returned")

OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS
"""For `orjson.dumps`, with `fields_of`."""

_attributes = attrgetter("__dict__")
_OTHERS = (Mapping, list, tuple, str, int, Enum)


def dumped(value: Any) -> bytes:
    """Return `value` as JSON, in one line.

    Integers may be of any size. Keys of objects are texts; others become texts as Python's json makes them.

    Raises:
        ValueError: It can't be JSON without a change: NaN, infinity, keys that become the same, or a type
            that JSON does not have.
    """
    try:
        data = orjson.dumps(value, fields_of, OPTIONS)
    except orjson.JSONEncodeError as refusal:
        # The standard module also takes integers above 64 bits, named tuples and keys that are no texts.
        try:
            _check_keys(value)
            data = json.dumps(value, separators=(",", ":"), allow_nan=False, default=fields_of).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{refusal}; {error}") from error
    # orjson writes NaN and infinity as null. Where there is no null there is nothing to check.
    if b"null" in data:
        check_finite(value)
    return _with_whole_offsets(value) if has_cut_offset(value, data) else data


def all_dumped(values: Sequence[Any]) -> list[bytes | None]:
    """Return each of `values` as JSON, None for None.

    Raises:
        ConnectorError: One can't be JSON; names it.
    """
    dumps = orjson.dumps
    try:
        plain = with_fields(values)
        found = [None if value is None else dumps(value, fields_of, OPTIONS) for value in plain]
    except TypeError:
        # orjson's own is one.
        return [None if value is None else _named(dumped, value) for value in values]
    for value, data in zip(values, found, strict=True):
        if data is not None and b"null" in data:
            _named(check_finite, value)
    if has_cut_offset(plain, b"".join(filter(None, found))):
        return [None if value is None else _named(dumped, value) for value in values]
    return found


def has_cut_offset(value: Any, data: bytes) -> bool:
    """Whether a datetime in `value`, of which orjson has made `data`, has an offset of no whole minutes.

    Of an offset orjson writes only hours and minutes.
    """
    if _OFFSET.search(data) is None:
        return False
    has_found = False

    def look(inner: Any) -> Any:
        nonlocal has_found
        if isinstance(inner, datetime):
            # UTC, the most frequent zone, need not be asked.
            offset = None if inner.tzinfo is UTC else inner.utcoffset()
            if offset is not None and (offset.seconds % 60 or offset.microseconds):
                has_found = True
            return None
        return None if isinstance(inner, date | time) else fields_of(inner)

    orjson.dumps(value, look, OPTIONS | orjson.OPT_PASSTHROUGH_DATETIME)
    return has_found


def _with_whole_offsets(value: Any) -> bytes:
    """Return `value`, which orjson has taken, as JSON in which offsets are exact."""
    return orjson.dumps(value, _iso_or_fields, OPTIONS | orjson.OPT_PASSTHROUGH_DATETIME)


def _iso_or_fields(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime | date | time) else fields_of(value)


def with_fields(values: Sequence[Any]) -> Sequence[Any]:
    """Return `values`, each dataclass as a dict of its fields: faster than to have orjson ask for each."""
    kinds = set(map(type, values))
    declared = [found for kind in kinds if (found := _declared(kind))]
    if not declared:
        return values
    if len(kinds) == 1:
        # Loops that are not Python's: most often there is nothing to leave out or to add.
        names, values_of = declared[0]
        with suppress(AttributeError):
            if not hasattr(values[0], "__dict__"):
                return list(map(dict, map(zip, repeat(names), map(values_of, values))))
            attributes = list(map(_attributes, values))
            if set(map(tuple, attributes)) == {tuple(names)}:
                return attributes
    return [fields_of(value) if _declared(type(value)) else value for value in values]


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; may be its own `__dict__`, so it must not be changed.

    Raises:
        TypeError: It is no dataclass, or has no value for a field.
    """
    declared = _declared(type(value))
    if declared is None:
        raise TypeError(f"Type is not JSON serializable: {type(value).__qualname__}")
    names, values_of = declared
    attributes = getattr(value, "__dict__", None)
    if attributes is not None and [*attributes] == names:
        return cast(dict[str, Any], attributes)
    try:
        return dict(zip(names, values_of(value), strict=True))
    except AttributeError as error:
        raise TypeError(f"a {type(value).__qualname__} lacks a field: {error}") from error


Declared = tuple[list[str], Callable[[Any], tuple[Any, ...]]]


def _find_declared(kind: type) -> Declared | None:
    """Return the names of a dataclass's fields and what gets their values; None: it is of another type."""
    if not is_dataclass(kind) or issubclass(kind, _OTHERS):
        return None
    names = [field.name for field in fields(kind)]
    match names:
        case []:
            return names, lambda value: ()
        case [name]:
            return names, lambda value: (getattr(value, name),)
        case _:
            return names, attrgetter(*names)


_declared = cast(Callable[[type], Declared | None], lru_cache(1_000)(_find_declared))


def is_object(value: Any) -> bool:
    """Tell whether a value is a dataclass, which JSON has as an object."""
    return _declared(type(value)) is not None


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
    elif _declared(type(value)):
        _check_keys(fields_of(value))
    elif isinstance(value, list | tuple):
        for one in value:
            _check_keys(one)


def _contents(value: Any) -> Any:
    """Return what `value`, which only orjson knows, consists of; None for one that holds no number."""
    if _declared(type(value)):
        return fields_of(value)
    return value.value if isinstance(value, Enum) else None


_FINITE_ONLY = json.JSONEncoder(allow_nan=False, default=_contents)

_OFFSET = re.compile(rb'T\d\d:\d\d:\d\d(?:\.\d{6})?[+-]\d\d:\d\d"')
"""Of a datetime that has a time zone, as orjson writes it."""
