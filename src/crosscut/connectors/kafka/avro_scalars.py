"""Avro values that hold no others, of plain and logical types: each is written exactly, or refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from datetime import date, datetime, time
from decimal import Decimal
from numbers import Integral
from reprlib import repr as shortened
from typing import Any
from uuid import UUID

from crosscut.connectors.doubles import double_of
from crosscut.connectors.kafka.avro_reading import Schema

Prepare = Callable[[Any], Any]
"""Returns the value to be written; raises ValueError if it would be written as another one."""


class Refused(ValueError):
    """A value that a type does not hold.

    The message is made only if someone reads it: a union refuses most values for all of its types but one.
    """

    def __str__(self) -> str:
        value, reason = self.args
        return f"{shortened(value)} {reason}"


class RefusedField(Refused):
    """One whose field is refused."""

    def __str__(self) -> str:
        name, error = self.args
        return f"field {name}: {error}"


def unchecked(value: Any) -> Any:
    """Prepare a value of a logical type that the user has added to fastavro."""
    return value


def unfit(value: Any, expected: str) -> ValueError:
    return Refused(value, f"is of type {type(value).__name__}: expected {expected}")


def enum_of(symbols: Iterable[str]) -> Prepare:
    known = frozenset(symbols)
    shown = f"{', '.join(sorted(known)):.200}"

    def enum(value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise Refused(value, f"is none of the symbols {shown}")
        return value

    return enum


def fixed_of(size: int) -> Prepare:
    def fixed(value: Any) -> Any:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise unfit(value, f"{size} bytes")
        if len(value) != size:
            raise Refused(value, f"has {len(value)} bytes: expected {size}")
        return value

    return fixed


def _integer(kind: str, bits: int) -> Prepare:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def integer(value: Any) -> Any:
        if type(value) is int:
            if least <= value <= most:
                return value
            raise Refused(value, f"is beyond the {bits} bits of {kind}")
        if isinstance(value, Integral) and not isinstance(value, bool):
            return integer(int(value))
        raise unfit(value, f"an int, for {kind}")

    return integer


def _double(value: Any) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bool | str | bytes):
        raise unfit(value, "a float")
    if isinstance(value, Decimal):
        if (exact := double_of(value)) is None:
            raise Refused(value, "would be rounded to a double")
        return exact
    try:
        found = float(value)
    except (TypeError, OverflowError) as error:
        raise unfit(value, "a float") from error
    if found != value:
        raise ValueError(f"{shortened(value)} would be rounded to the double {found!r}")
    return found


def _float(value: Any) -> Any:
    found = _double(value)
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", found))
    except OverflowError as error:
        raise ValueError(f"{found!r} is beyond the range of float") from error
    if not isinstance(value, float) and single != value:
        raise ValueError(f"{shortened(value)} would be rounded to the float {single!r}")
    return found


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise unfit(value, "a bool")
    return value


def _null(value: Any) -> Any:
    if value is not None:
        raise unfit(value, "None")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise unfit(value, "a str")
    return value


def _bytes(value: Any) -> Any:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise unfit(value, "bytes")
    return value


PLAIN: dict[str, Prepare] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer("int", 32),
    "long": _integer("long", 64),
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _text,
}

SCALARS = frozenset({type(None), bool, int, float, str, bytes})

TYPES: dict[Prepare, frozenset[type]] = {
    _null: frozenset({type(None)}),
    _boolean: frozenset({bool}),
    PLAIN["int"]: frozenset({int}),
    PLAIN["long"]: frozenset({int}),
    _float: frozenset({int, float}),
    _double: frozenset({int, float}),
    _bytes: frozenset({bytes}),
    _text: frozenset({str}),
}
"""Which of `SCALARS` a type may hold."""

CONTAINERS = frozenset({"record", "error", "array", "map"})
"""Kinds that hold none of `SCALARS`."""

REFUSED_BY_FASTAVRO = frozenset({_text, _bytes, unchecked})
"""Of types for which fastavro refuses other values, or about which nothing is known."""


def _decimal(schema: Schema) -> Prepare:
    precision, scale = schema["precision"], schema.get("scale", 0)

    def decimal(value: Any) -> Any:
        if isinstance(value, bytes):
            # As it is to be written, already.
            return value
        if not isinstance(value, Decimal):
            raise unfit(value, "a Decimal")
        if not value.is_finite():
            raise ValueError(f"{value!r} is not a number in Avro")
        if not value:
            return Decimal((0, (0,), -scale))
        sign, digits, exponent = value.as_tuple()
        lost = -scale - int(exponent)
        if lost > 0:
            if any(digits[-lost:]):
                raise ValueError(f"{shortened(value)} has more than {scale} digits after the point")
            digits = digits[:-lost]
        if len(digits) + max(-lost, 0) > precision:
            raise ValueError(
                f"{shortened(value)} has more than {precision} digits, of which {scale} are after the point"
            )
        return Decimal((sign, digits, -scale)) if lost > 0 else value

    return decimal


def _date(_: Schema) -> Prepare:
    number = PLAIN["int"]

    def day(value: Any) -> Any:
        if isinstance(value, datetime):
            raise ValueError(f"{value!r} has a time of day, for which a date has no room")
        if isinstance(value, str):
            return date.fromisoformat(value)
        return value if isinstance(value, date) else _or_number(value, number, "a date or its ISO text")

    return day


def _time(kind: str, unit_us: int) -> Callable[[Schema], Prepare]:
    number = PLAIN[kind]

    def of_day(value: Any) -> Any:
        if not isinstance(value, time):
            return _or_number(value, number, "a time")
        if value.tzinfo is not None:
            raise ValueError(f"{value!r} has a time zone, for which a time of Avro has no room")
        if value.microsecond % unit_us:
            raise ValueError(f"{value!r} is no whole number of milliseconds")
        return value

    return lambda _: of_day


def _timestamp(unit_us: int, *, is_local: bool) -> Callable[[Schema], Prepare]:
    number = PLAIN["long"]

    def moment(value: Any) -> Any:
        if not isinstance(value, datetime):
            return _or_number(value, number, "a datetime")
        if is_local and value.tzinfo is not None:
            raise ValueError(f"{value!r} has a time zone, for which a local timestamp has no room")
        if not is_local and value.utcoffset() is None:
            # fastavro would take the zone of the worker.
            raise ValueError(f"{value!r} has no time zone, and a timestamp is in UTC: give it one")
        if value.microsecond % unit_us:
            raise ValueError(f"{value!r} is no whole number of milliseconds")
        return value

    return lambda _: moment


def _or_number(value: Any, number: Prepare, expected: str) -> Any:
    if not isinstance(value, Integral):
        raise unfit(value, expected)
    return number(value)


def _uuid(_: Schema) -> Prepare:
    def uuid(value: Any) -> Any:
        if isinstance(value, UUID):
            return value
        return str(UUID(_text(value)))

    return uuid


LOGICAL: dict[str, Callable[[Schema], Prepare]] = {
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "int-date": _date,
    "int-time-millis": _time("int", 1_000),
    "long-time-micros": _time("long", 1),
    "long-timestamp-millis": _timestamp(1_000, is_local=False),
    "long-timestamp-micros": _timestamp(1, is_local=False),
    "long-local-timestamp-millis": _timestamp(1_000, is_local=True),
    "long-local-timestamp-micros": _timestamp(1, is_local=True),
    "string-uuid": _uuid,
}
