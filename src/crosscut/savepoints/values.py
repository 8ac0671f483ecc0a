"""Keys, values and records as text that anybody can read: JSON, with a tag where JSON has no such type.

`None`, booleans, numbers, text, lists and dictionaries with text keys are themselves. What else there is, is
an object with one key: `$tuple`, `$set`, `$frozenset` (items), `$bytes` (base64), `$dict` (pairs), `$float`
("nan", "inf", "-inf"), and `$pickle` (base64) for instances of classes, which only a program that has these
can read. A pickle can run any code of its author: read savepoints only from authors that you trust.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import pickle  # noqa: S403 - see above
from typing import Any

from crosscut.errors import StateError
from crosscut.foundation.unpickling import loader

_PLAIN = frozenset({int, str, bool, type(None)})


def to_text(value: Any) -> str:
    """Return `value` as text.

    Raises:
        StateError: A part of it can't be pickled, and is of no plain type.
    """
    return json.dumps(_plain(value), separators=(",", ":"))


def from_text(text: str) -> Any:
    """Return what `to_text` made `text` from.

    Raises:
        StateError: It is no such text, or a class is missing here.
    """
    try:
        return _value(json.loads(text))
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise StateError(f"{text!r:.200} is no value of a savepoint: {error}") from error


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is list:
        return [_plain(item) for item in value]
    if kind is tuple:
        return {"$tuple": [_plain(item) for item in value]}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {"$dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if kind in (set, frozenset):
        # In one order whatever the process.
        items = sorted((_plain(item) for item in value), key=lambda one: json.dumps(one, sort_keys=True))
        return {f"${kind.__name__}": items}
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception as error:  # A value's own __reduce__ may raise anything.
        raise StateError(
            f"{value!r:.120} of type {kind.__qualname__} can't be part of a savepoint: {error}"
        ) from error
    return {"$pickle": base64.b64encode(data).decode("ascii")}


def _value(found: Any) -> Any:
    if isinstance(found, list):
        return [_value(item) for item in found]
    if not isinstance(found, dict):
        return found
    if len(found) == 1:
        ((tag, content),) = found.items()
        match tag:
            case "$tuple":
                return tuple(map(_value, content))
            case "$set":
                return set(map(_value, content))
            case "$frozenset":
                return frozenset(map(_value, content))
            case "$bytes":
                return base64.b64decode(content, validate=True)
            case "$dict":
                return {_value(key): _value(item) for key, item in content}
            case "$float":
                return float(content)
            case "$pickle":
                return _unpickled(content)
            case _:
                pass
    return {key: _value(item) for key, item in found.items()}


def _unpickled(content: str) -> Any:
    try:
        return loader()(base64.b64decode(content, validate=True))
    except StateError:
        raise
    except Exception as error:  # A value's own __setstate__ may raise anything.
        raise StateError(
            f"a value of a savepoint can't be decoded: {type(error).__name__}: {error}; its class must be "
            f"importable here"
        ) from error
