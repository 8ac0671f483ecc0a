"""Frozen dataclasses to JSON values and back, driven by their field types.

The one codec of the job log and of the control messages. Data only: what is decoded is one of the
classes the caller allows, filled with checked values; no code is looked up by name or run (rule S6).
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from crosscut.contracts.connectors import JSON
from crosscut.errors import CrosscutError, InternalError, StateError

JSON_DEPTH_MAX = 64
"""How deep a JSON value may nest: deeper ones could exhaust the stack of a reader."""

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1

_Convert = Callable[[Any], Any]
_Write = Callable[[Any], str]

# No value holds itself: what nests too deep is refused.
_WRITTEN: _Write = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class _Mismatch(Exception):
    """A value does not fit its field; turned into the caller's kind of error at the border."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """How one type hint is turned into JSON and back, and written as text."""

    encode: _Convert
    decode: _Convert
    write: _Write
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


def to_text(value: object) -> str:
    """Return `to_json(value)` as text, in ASCII and without blanks, as `json` writes it.

    It is written at once: to make the objects first, and then have them looked at, takes four times as long.

    Raises:
        StateError: As `to_json`.
    """
    try:
        return _tagged_plan((type(value),), "value").write(value)
    except _Mismatch as error:
        raise StateError(f"can't be written as JSON: {error}") from None


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
        # An exact match: a bool is an int to isinstance, but not to a reader of the JSON.
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
    write = _SCALAR_TEXTS[kind]
    return _Plan(convert, convert, lambda value: write(convert(value)), (kind,))


def _float_plan(label: str) -> _Plan:
    def check(value: Any) -> float:
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is int and _is_portable(value):
            return float(value)
        raise _mismatch(label, "a finite number", value)

    return _Plan(check, check, lambda value: _WRITTEN(check(value)))


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

    return _Plan(check, check, lambda value: _WRITTEN(check(value)), (type(None), str, bool, int))


def _tuple_plan(item: _Plan, label: str) -> _Plan:
    encode_item, decode_item, write_item = item.encode, item.decode, item.write

    def encode(value: Any) -> list[Any]:
        if type(value) is not tuple:
            raise _mismatch(label, "a tuple", value)
        return [encode_item(part) for part in value] if value else []

    def decode(data: Any) -> tuple[Any, ...]:
        if type(data) is not list:
            raise _mismatch(label, "a list", data)
        return tuple([decode_item(part) for part in data]) if data else ()

    def write(value: Any) -> str:
        if type(value) is not tuple:
            raise _mismatch(label, "a tuple", value)
        return f"[{','.join([write_item(part) for part in value])}]" if value else "[]"

    return _Plan(encode, decode, write)


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

    written = converter(item.write)

    def write(value: Any) -> str:
        return f"{{{','.join([f'{_quoted(key)}:{part}' for key, part in written(value).items()])}}}"

    return _Plan(converter(item.encode), converter(item.decode), write)


@cache
def _tagged_plan(kinds: tuple[type, ...], label: str) -> _Plan:
    """Plan of a dataclass, a union of them, or either with None: "type" tells which it is."""
    optional = type(None) in kinds
    by_name = {kind.__name__: kind for kind in kinds if kind is not type(None)}
    expected = " or ".join([*by_name, *(["None"] if optional else [])])
    # Of those that have come along: a process sees few of all.
    encoders: dict[type, _Convert] = {}
    decoders: dict[str, _Convert] = {}
    writers: dict[type, _Write] = {}

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

    def write(value: Any) -> str:
        if value is None and optional:
            return "null"
        kind: type = type(value)
        writer = writers.get(kind)
        if writer is None:
            if kind not in kinds:
                raise _mismatch(label, expected, value)
            writer = writers[kind] = _writer(kind)
        return writer(value)

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

    return _Plan(encode, decode, write, (type(None),) if optional else ())


def _optional_plan(present: _Plan) -> _Plan:
    """Plan of something else than a dataclass, or None."""
    return _Plan(
        lambda value: None if value is None else present.encode(value),
        lambda data: None if data is None else present.decode(data),
        lambda value: "null" if value is None else present.write(value),
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
def _writer(kind: type) -> _Write:
    plans = _fields(kind)
    converts = {field: plan.write for field, plan in plans.items()}
    pairs = "".join(f',"{field}":{{_{field}}}' for field in plans)
    result = f"""f'{{{{"type":"{kind.__name__}"{pairs}}}}}'"""
    return _straight(plans, converts, "value.{}", result, kind, _AS_TEXT)


@cache
def _decoder(kind: type) -> _Convert:
    plans, name = _fields(kind), kind.__name__
    converts = {field: plan.decode for field, plan in plans.items()}

    def misfit(data: dict[str, Any]) -> NoReturn:
        missing = sorted(plans.keys() - data.keys())
        unknown = sorted(str(key)[:60] for key in data.keys() - plans.keys() - {"type"})
        raise _Mismatch(f"{name}: missing fields {missing}, unknown fields {unknown[:8]}")

    result = f"kind({', '.join(f'_{field}' for field in plans)})"
    straight = _straight(plans, converts, "value[{!r}]", result, kind, misfit=misfit)
    # What an earlier release has written lacks them.
    added: Mapping[str, Any] = getattr(kind, "ADDED", {})
    return (lambda data: straight({**added, **data})) if added else straight


_IS_PLAIN = {
    int: f"type({{0}}) is int and {_INT_MIN} <= {{0}} <= {_INT_MAX}",
    str: "type({0}) is str",
    bool: "type({0}) is bool",
    type(None): "{0} is None",
}
_AS_IS = dict.fromkeys(_IS_PLAIN, "{0}")
_AS_TEXT = {int: "{0}", str: "quoted({0})", bool: "('true' if {0} else 'false')", type(None): "'null'"}


def _straight(
    plans: dict[str, _Plan],
    converts: Mapping[str, _Convert],
    read: str,
    result: str,
    kind: type,
    plainly: Mapping[type, str] = _AS_IS,
    misfit: Callable[[Any], NoReturn] | None = None,
) -> _Convert:
    """Return a function that converts all fields of `value`, one after the other, and returns `result`.

    It is written out, as `dataclasses` writes an `__init__`: a loop over the fields takes four times as long,
    and a driver of many workers does little else than read what they report. Nothing but the names of classes
    and fields of our own gets into the text.

    Args:
        read: How a field of `value` is read.
        result: An expression; in it `kind` is the class, and each field has an underscore in front.
        plainly: What a field becomes that needs no call.
        misfit: Called if `value` has not these fields and "type", and no others.
    """
    lines = []
    for field, plan in plans.items():
        name, converted = f"_{field}", f"{field}_(_{field})"
        for one in reversed(plan.plain):
            converted = f"{plainly[one].format(name)} if {_IS_PLAIN[one].format(name)} else {converted}"
        lines += [f"{name} = {read.format(field)}", f"{name} = {converted}"]
    names: dict[str, Any] = {f"{field}_": convert for field, convert in converts.items()}
    names |= {"kind": kind, "quoted": _quoted, "misfit": misfit}
    lines.append(f"return {result}")
    if misfit is not None:
        # Of so many fields: if none is missing, there is no other.
        fits = f"if len(value) != {len(plans) + 1}: misfit(value)"
        lines = [fits, "try:", *[f" {line}" for line in lines], "except KeyError: misfit(value)"]
    exec("\n ".join(["def straight(value):", *lines]), names)  # noqa: S102 - see above
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
    # Of a NewType it is a Union.
    if origin in (types.UnionType, Union) and len(arguments) == 2 and arguments[1] is type(None):
        return _optional_plan(_plan(arguments[0], label))
    raise InternalError(f"{label}: the codec has no rule for a field of type {hint}")


class _HasJson:
    value: JSON


# How the recursive alias looks once its own forward references are resolved.
_JSON_HINT = get_type_hints(_HasJson)["value"]
_SCALAR_TEXTS: dict[type, _Write] = {
    int: str,
    str: _quoted,
    bool: ("false", "true").__getitem__,
    type(None): lambda _: "null",
}
_SCALARS: dict[type, str] = {int: "an integer", str: "text", bool: "true or false", type(None): "null"}
