"""Frozen dataclasses to JSON values and back, driven by their field types.

The one codec of the job log and of the control messages. Data only: what is decoded is one of the
classes the caller allows, filled with checked values; no code is looked up by name or run (rule S6).
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from crosscut.errors import CrosscutError, InternalError, StateError
from crosscut.interfaces import JSON

JSON_DEPTH_MAX = 64
"""How deep a JSON value may nest: deeper ones could exhaust the stack of whoever reads them."""

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1

_Convert = Callable[[Any], Any]


class _Mismatch(Exception):
    """A value does not fit its field; turned into the caller's kind of error at the border."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """How one type hint is turned into JSON and back."""

    encode: _Convert
    decode: _Convert
    plain: tuple[type, ...] = ()
    """A value of just one of these types is its own JSON, and needs no call; an int within the bounds."""


def to_json(value: object) -> JSON:
    """Return dataclass `value` as a JSON object, with its class name under "type".

    The result shares the JSON fields of `value`, it does not copy them.

    Raises:
        StateError: A field holds something else than its type says, or a JSON field (a position, a
            transaction handle) holds something that JSON can't: a tuple, bytes, NaN, a huge integer.
    """
    try:
        encoded: JSON = _tagged_plan((type(value),), "value").encode(value)
    except _Mismatch as error:
        raise StateError(f"can't be written as JSON: {error}") from None
    return encoded


def from_json(data: JSON, kinds: tuple[type, ...], error: type[CrosscutError]) -> Any:
    """Return the object that `to_json` made `data` from.

    Args:
        data: Any JSON value, trusted or not, as a JSON parser returned it.
        kinds: The classes allowed at top level; "type" says which one it is.
        error: What to raise.

    Raises:
        CrosscutError: Of class `error`: another class, a field too many or too few, or a field that is
            not of its type; the message names the class and the field. Nothing else is ever raised.
    """
    try:
        return _tagged_plan(kinds, "message").decode(data)
    except _Mismatch as mismatch:
        raise error(f"not what was expected: {mismatch}") from None


def _mismatch(label: str, expected: str, found: object) -> _Mismatch:
    # repr of a container may recurse without bound and that of a huge int raises: show neither.
    shown = f"a value of type {type(found).__name__}"
    if isinstance(found, str):
        shown = repr(found[:60])
    elif found is None or isinstance(found, float) or _is_portable(found):
        shown = repr(found)
    return _Mismatch(f"{label}: expected {expected}, found {shown}")


def _scalar_plan(kind: type, expected: str, label: str) -> _Plan:
    def check(value: Any) -> Any:
        # An exact match: a bool is an int to isinstance, but not to whoever reads the JSON.
        if type(value) is not kind:
            raise _mismatch(label, expected, value)
        return value

    def check_int(value: Any) -> Any:
        if type(value) is not int:
            raise _mismatch(label, expected, value)
        if not _INT_MIN <= value <= _INT_MAX:
            raise _mismatch(label, "an integer of at most 64 bits", value)
        return value

    convert = check_int if kind is int else check
    return _Plan(convert, convert, (kind,))


def _float_plan(label: str) -> _Plan:
    def check(value: Any) -> float:
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is int and _is_portable(value):
            return float(value)
        raise _mismatch(label, "a finite number", value)

    return _Plan(check, check)


def _is_portable(value: object) -> bool:
    """Whether `value` is an integer that every JSON reader can hold."""
    return isinstance(value, int) and _INT_MIN <= value <= _INT_MAX


def _json_plan(label: str) -> _Plan:
    def check(value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int and _is_portable(value):
            return value
        if kind is float and math.isfinite(value):
            return value
        if depth == JSON_DEPTH_MAX:
            raise _mismatch(label, f"JSON of at most {JSON_DEPTH_MAX} levels", value)
        if kind is list:
            for item in value:
                check(item, depth + 1)
            return value
        if kind is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise _mismatch(label, "JSON, whose keys are text", key)
                check(item, depth + 1)
            return value
        raise _mismatch(label, "JSON (None, bool, 64-bit int, finite float, str, list, dict)", value)

    return _Plan(check, check, (type(None), str, bool, int))


def _tuple_plan(item: _Plan, label: str) -> _Plan:
    encode_item, decode_item = item.encode, item.decode

    def encode(value: Any) -> list[Any]:
        if type(value) is not tuple:
            raise _mismatch(label, "a tuple", value)
        return [encode_item(part) for part in value] if value else []

    def decode(data: Any) -> tuple[Any, ...]:
        if type(data) is not list:
            raise _mismatch(label, "a list", data)
        return tuple([decode_item(part) for part in data]) if data else ()

    return _Plan(encode, decode)


def _dict_plan(item: _Plan, label: str) -> _Plan:
    def converter(convert: _Convert) -> _Convert:
        def apply(value: Any) -> dict[str, Any]:
            if type(value) is not dict:
                raise _mismatch(label, "a dict", value)
            for key in value:
                if type(key) is not str:
                    raise _mismatch(label, "keys that are text", key)
            return {key: convert(part) for key, part in value.items()}

        return apply

    return _Plan(converter(item.encode), converter(item.decode))


@cache
def _tagged_plan(kinds: tuple[type, ...], label: str) -> _Plan:
    """Plan of a dataclass, a union of them, or either with None: "type" tells which it is."""
    optional = type(None) in kinds
    by_name = {kind.__name__: kind for kind in kinds if kind is not type(None)}
    expected = " or ".join([*by_name, *(["None"] if optional else [])])
    # Of those that have come along: a process sees few of all.
    encoders: dict[type, _Convert] = {}
    decoders: dict[str, _Convert] = {}

    def encode(value: Any) -> Any:
        if value is None and optional:
            return None
        kind: type = type(value)
        encoder = encoders.get(kind)
        if encoder is None:
            if kind not in kinds:
                raise _mismatch(label, expected, value)
            encoder = encoders[kind] = _encoder(kind)
        return encoder(value)

    def decode(data: Any) -> Any:
        if type(data) is not dict:
            if data is None and optional:
                return None
            raise _mismatch(label, expected, data)
        name = data.get("type")
        if type(name) is not str:
            raise _mismatch(f"{label}.type", expected, name)
        decoder = decoders.get(name)
        if decoder is None:
            if name not in by_name:
                raise _mismatch(f"{label}.type", expected, name)
            decoder = decoders[name] = _decoder(by_name[name])
        return decoder(data)

    return _Plan(encode, decode, (type(None),) if optional else ())


def _optional_plan(present: _Plan) -> _Plan:
    """Plan of something else than a dataclass, or None."""
    return _Plan(
        lambda value: None if value is None else present.encode(value),
        lambda data: None if data is None else present.decode(data),
        (type(None), *present.plain),
    )


@cache
def _fields(kind: type) -> dict[str, _Plan]:
    if not dataclasses.is_dataclass(kind):
        raise InternalError(f"{kind.__name__} is not a dataclass: it can't be written as JSON")
    name = kind.__name__
    hints = get_type_hints(kind)
    plans = {
        field.name: _plan(hints[field.name], f"{name}.{field.name}") for field in dataclasses.fields(kind)
    }
    if "type" in plans:
        raise InternalError(f"{name}.type: this name is taken by the tag that tells classes apart")
    return plans


@cache
def _encoder(kind: type) -> _Convert:
    plans = _fields(kind)
    converts = {field: plan.encode for field, plan in plans.items()}
    pairs = ", ".join(f"{field!r}: _{field}" for field in plans)
    return _straight(plans, converts, "value.{}", f"{{'type': {kind.__name__!r}, {pairs}}}", kind)


@cache
def _decoder(kind: type) -> _Convert:
    plans, name = _fields(kind), kind.__name__
    converts = {field: plan.decode for field, plan in plans.items()}
    result = f"kind({', '.join(f'_{field}' for field in plans)})"
    build = _straight(plans, converts, "value[{!r}]", result, kind)

    size = len(plans) + 1

    def decode(data: dict[str, Any]) -> Any:
        if len(data) == size:
            try:
                # Of so many fields, with "type": if none is missing, there is no other.
                return build(data)
            except KeyError:
                pass
        missing = sorted(plans.keys() - data.keys())
        unknown = sorted(str(key)[:60] for key in data.keys() - plans.keys() - {"type"})
        raise _Mismatch(f"{name}: missing fields {missing}, unknown fields {unknown[:8]}")

    return decode


_IS_PLAIN = {
    int: f"type({{0}}) is int and {_INT_MIN} <= {{0}} <= {_INT_MAX}",
    str: "type({0}) is str",
    bool: "type({0}) is bool",
    type(None): "{0} is None",
}


def _straight(
    plans: dict[str, _Plan], converts: dict[str, _Convert], read: str, result: str, kind: type
) -> _Convert:
    """Return a function that converts all fields of `value`, one after the other, and returns `result`.

    It is written out, as `dataclasses` writes an `__init__`: a loop over the fields takes four times as long,
    and a driver of many workers does little else than read what they report. Nothing but the names of classes
    and fields of our own gets into the text.

    Args:
        read: How a field of `value` is read.
        result: An expression; in it `kind` is the class, and each field has an underscore in front.
    """
    lines = []
    for field, plan in plans.items():
        is_plain = " or ".join(_IS_PLAIN[one].format(f"_{field}") for one in plan.plain)
        unless = f"if not ({is_plain}): " if is_plain else ""
        lines += [f"_{field} = {read.format(field)}", f"{unless}_{field} = {field}_(_{field})"]
    names: dict[str, Any] = {f"{field}_": convert for field, convert in converts.items()} | {"kind": kind}
    exec("\n ".join(["def straight(value):", *lines, f"return {result}"]), names)  # noqa: S102 - see above
    made: _Convert = names["straight"]
    return made


def _plan(hint: Any, label: str) -> _Plan:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if hint == _JSON_HINT:
        return _json_plan(label)
    if hint is float:
        return _float_plan(label)
    if hint in _SCALARS:
        return _scalar_plan(hint, _SCALARS[hint], label)
    if dataclasses.is_dataclass(hint):
        return _tagged_plan((hint,), label)
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_plan(_plan(arguments[0], label), label)
    if origin is dict and arguments[0] is str:
        return _dict_plan(_plan(arguments[1], label), label)
    if origin in (types.UnionType, Union) and all(
        dataclasses.is_dataclass(member) or member is type(None) for member in arguments
    ):
        return _tagged_plan(arguments, label)
    if origin is types.UnionType and len(arguments) == 2 and arguments[1] is type(None):
        return _optional_plan(_plan(arguments[0], label))
    raise InternalError(f"{label}: the codec has no rule for a field of type {hint}")


class _HasJson:
    value: JSON


# How the recursive alias looks once its own forward references are resolved.
_JSON_HINT = get_type_hints(_HasJson)["value"]
_SCALARS: dict[type, str] = {int: "an integer", str: "text", bool: "true or false", type(None): "null"}
