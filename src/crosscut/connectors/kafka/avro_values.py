"""Avro values that stay what they are: fastavro rounds, cuts and leaves out what a schema has no room for.

What a schema can't hold exactly is refused. A preparer is made once for each schema, and looks only at types
where fastavro does not refuse by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from numbers import Integral
from operator import is_
from reprlib import repr as shortened
from typing import Any
from uuid import UUID

from crosscut.connectors.extras import required

DIGITS_MAX = 4_300
"""Of a decimal, whatever precision its schema has: the time to make one grows with the square of them."""

_PREFIX = "crosscut-"
_DAY_MS = 86_400_000
_EXACT = Context(prec=DIGITS_MAX, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])

Schema = Any
"""A schema as JSON, or as fastavro parses it."""

Prepare = Callable[[Any], Any]
"""Returns the value to be written; raises ValueError if it would be written as another one."""


# Reading.


def with_exact_readers(schema: Schema) -> Schema:
    """Return a schema, as JSON, changed so that fastavro reads it with the functions below."""
    known = required("fastavro.read", "avro").LOGICAL_READERS
    for kind, read in _READERS.items():
        base, _, logical = kind.partition("-")
        known[f"{base}-{_PREFIX}{logical}"] = read
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if f"{one.get('type')}-{one.get('logicalType')}" in _READERS:
                one["logicalType"] = _PREFIX + one["logicalType"]
            left += one.values()
        elif isinstance(one, list):
            left += one
    return schema


def _read_decimal(data: bytes, schema: Schema, _reader_schema: Schema = None) -> Decimal:
    precision = schema["precision"]
    unscaled = int.from_bytes(data, "big", signed=True)
    # Not by its digits: to count them takes as long as to make a decimal.
    if abs(unscaled) >= 10 ** min(precision, DIGITS_MAX):
        raise ValueError(
            f"a decimal of {len(data)} bytes has more than {min(precision, DIGITS_MAX)} digits"
            + ("" if precision <= DIGITS_MAX else f", though its schema allows {precision}")
        )
    return Decimal(unscaled).scaleb(-schema.get("scale", 0), _EXACT)


def _reader_of_time(kind: str, per_day: int) -> Callable[..., time]:
    def read(number: int, schema: Schema, _reader_schema: Schema = None) -> time:
        if not 0 <= number < per_day:
            raise ValueError(f"{number} is no time of a day in {kind}")
        found: time = required("fastavro.read", "avro").LOGICAL_READERS[kind](number, schema)
        return found

    return read


_READERS: dict[str, Callable[..., Any]] = {
    "bytes-decimal": _read_decimal,
    "fixed-decimal": _read_decimal,
    "int-time-millis": _reader_of_time("int-time-millis", _DAY_MS),
    "long-time-micros": _reader_of_time("long-time-micros", _DAY_MS * 1_000),
}


# Writing.


def preparer(schema: Schema) -> Prepare:
    """Return what prepares values of a schema.

    Args:
        schema: As fastavro has parsed it.
    """
    return _Preparers().of(schema)


def _unchecked(value: Any) -> Any:
    """Prepare a value of a logical type that the user has added to fastavro."""
    return value


def _unfit(value: Any, expected: str) -> ValueError:
    return ValueError(f"{shortened(value)} is of type {type(value).__name__}: expected {expected}")


class _Preparers:
    """Those of one schema, which may name types that it has defined before."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Schema, Prepare]] = {}

    def of(self, schema: Schema) -> Prepare:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._named[schema][1] if schema in self._named else _PLAIN[schema]
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind)
        if logical := schema.get("logicalType"):
            typed = f"{kind}-{logical}"
            if typed in _LOGICAL:
                return self._kept(schema, _LOGICAL[typed](schema))
            if typed in required("fastavro.write", "avro").LOGICAL_WRITERS:
                return self._kept(schema, _unchecked)
        match kind:
            case "record" | "error":
                return self._record(schema)
            case "array":
                return _array(self.of(schema["items"]))
            case "map":
                return _map(self.of(schema["values"]))
            case "enum":
                return self._kept(schema, _enum(schema["symbols"]))
            case "fixed":
                return self._kept(schema, _fixed(schema["size"]))
            case _:
                return self.of(kind)

    def _kept(self, schema: Schema, prepare: Prepare) -> Prepare:
        if "name" in schema:
            self._named[schema["name"]] = schema, prepare
        return prepare

    def _record(self, schema: Schema) -> Prepare:
        own_name = schema["name"]
        names = {field["name"] for field in schema["fields"]}
        checked: list[tuple[str, Prepare]] = []

        def check_extra(value: Mapping[Any, Any]) -> None:
            extra = value.keys() - names
            # With it a value names its branch of a union, for fastavro.
            if "-type" in extra and value["-type"] != own_name:
                raise ValueError(f"it is of type {value['-type']!r}, not {own_name}")
            if extra := extra - {"-type"}:
                raise ValueError(f"the schema {own_name} has no field {', '.join(sorted(map(str, extra)))}")

        def prepare(value: Any) -> Any:
            if type(value) is not dict and not isinstance(value, Mapping):
                raise _unfit(value, f"the fields of {own_name} as a dict")
            if not value.keys() <= names:
                check_extra(value)
            changed: dict[str, Any] | None = None
            name = ""
            try:
                for name, of_field in checked:
                    if name not in value:
                        # Its default is written, or fastavro refuses.
                        continue
                    given = value[name]
                    found = of_field(given)
                    if found is not given:
                        changed = dict(value) if changed is None else changed
                        changed[name] = found
            except ValueError as error:
                raise ValueError(f"field {name}: {error}") from error
            return value if changed is None else changed

        self._kept(schema, prepare)
        for field in schema["fields"]:
            of_field = self.of(field["type"])
            if of_field not in _REFUSED_BY_FASTAVRO:
                checked.append((field["name"], of_field))
        return prepare

    def _union(self, schemas: list[Schema]) -> Prepare:
        branches = [(self._branch_name(one), self._resolved(one), self.of(one)) for one in schemas]
        others = [prepare for name, _, prepare in branches if name != "null"]
        if _unchecked in others:
            return _unchecked
        if len(others) == 1:
            (only,) = others
            return only if only in _REFUSED_BY_FASTAVRO else _nullable(only, takes_none=len(branches) > 1)
        return _chosen(branches)

    def _branch_name(self, schema: Schema) -> str:
        """Return the name by which fastavro is told which branch a value is of."""
        if isinstance(schema, str):
            return schema
        return str(schema["name"] if schema["type"] in _NAMED else schema["type"])

    def _resolved(self, schema: Schema) -> Schema:
        return self._named[schema][0] if isinstance(schema, str) and schema in self._named else schema


def _nullable(prepare: Prepare, *, takes_none: bool) -> Prepare:
    def nullable(value: Any) -> Any:
        if value is None and takes_none:
            return None
        if type(value) is tuple:
            name, inner = value
            return name, nullable(inner)
        return prepare(value)

    return nullable


def _chosen(branches: list[tuple[str, Schema, Prepare]]) -> Prepare:
    """Return what chooses the branch of a union as fastavro does, among those that hold a value exactly."""
    by_name = {name: prepare for name, _, prepare in branches}

    def chosen(value: Any) -> Any:
        if type(value) is tuple:
            name, inner = value
            if name not in by_name:
                raise ValueError(f"the union has no type {name!r}, only {', '.join(by_name)}")
            return name, by_name[name](inner)
        reasons = []
        found: tuple[str, Any] | None = None
        most_fields = -1
        for name, schema, prepare in branches:
            try:
                prepared = prepare(value)
            except ValueError as error:
                reasons.append(str(error))
                continue
            kind = schema["type"] if isinstance(schema, dict) else schema
            if kind in ("record", "error"):
                count = sum(field["name"] in value for field in schema["fields"])
                if count > most_fields:
                    found, most_fields = (name, prepared), count
            elif kind == "float" and "double" in by_name:
                found = "double", by_name["double"](value)
                break
            else:
                found = name, prepared
                break
        if found is None:
            raise ValueError(f"no type of the union holds it: {'; '.join(dict.fromkeys(reasons))}")
        return None if found[0] == "null" else found

    return chosen


def _array(of_item: Prepare) -> Prepare:
    is_free = of_item in _REFUSED_BY_FASTAVRO

    def array(value: Any) -> Any:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
            # fastavro would write each character, or the keys.
            raise _unfit(value, "a list")
        if is_free:
            return value
        found = list(map(of_item, value))
        return value if all(map(is_, found, value)) else found

    return array


def _map(of_value: Prepare) -> Prepare:
    is_free = of_value in _REFUSED_BY_FASTAVRO

    def mapped(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _unfit(value, "a dict")
        if is_free:
            return value
        found = list(map(of_value, value.values()))
        if all(map(is_, found, value.values())):
            return value
        return dict(zip(value, found, strict=True))

    return mapped


def _enum(symbols: Iterable[str]) -> Prepare:
    known = frozenset(symbols)

    def enum(value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{shortened(value)} is none of the symbols {', '.join(sorted(known)):.200}")
        return value

    return enum


def _fixed(size: int) -> Prepare:
    def fixed(value: Any) -> Any:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _unfit(value, f"{size} bytes")
        if len(value) != size:
            raise ValueError(f"{shortened(value)} has {len(value)} bytes: expected {size}")
        return value

    return fixed


def _integer(kind: str, bits: int) -> Prepare:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def integer(value: Any) -> Any:
        if type(value) is int:
            if least <= value <= most:
                return value
            raise ValueError(f"{shortened(value)} is beyond the {bits} bits of {kind}")
        if isinstance(value, Integral) and not isinstance(value, bool):
            return integer(int(value))
        raise _unfit(value, f"an int, for {kind}")

    return integer


def _double(value: Any) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bool | str | bytes):
        raise _unfit(value, "a float")
    try:
        found = float(value)
    except (TypeError, OverflowError) as error:
        raise _unfit(value, "a float") from error
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
        raise _unfit(value, "a bool")
    return value


def _null(value: Any) -> Any:
    if value is not None:
        raise _unfit(value, "None")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise _unfit(value, "a str")
    return value


def _bytes(value: Any) -> Any:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _unfit(value, "bytes")
    return value


_PLAIN: dict[str, Prepare] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer("int", 32),
    "long": _integer("long", 64),
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _text,
}

_REFUSED_BY_FASTAVRO = frozenset({_text, _bytes, _unchecked})
"""Of types for which fastavro refuses other values, or about which nothing is known."""


def _decimal(schema: Schema) -> Prepare:
    precision, scale = schema["precision"], schema.get("scale", 0)

    def decimal(value: Any) -> Any:
        if isinstance(value, bytes):
            # As it is to be written, already.
            return value
        if not isinstance(value, Decimal):
            raise _unfit(value, "a Decimal")
        if not value.is_finite():
            raise ValueError(f"{value!r} is no number of Avro")
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
    number = _PLAIN["int"]

    def day(value: Any) -> Any:
        if isinstance(value, datetime):
            raise ValueError(f"{value!r} has a time of day, for which a date has no room")
        return value if isinstance(value, date) else _or_number(value, number, "a date")

    return day


def _time(kind: str, unit_us: int) -> Callable[[Schema], Prepare]:
    number = _PLAIN[kind]

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
    number = _PLAIN["long"]

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
        raise _unfit(value, expected)
    return number(value)


def _uuid(_: Schema) -> Prepare:
    def uuid(value: Any) -> Any:
        if isinstance(value, UUID):
            return value
        return str(UUID(_text(value)))

    return uuid


_LOGICAL: dict[str, Callable[[Schema], Prepare]] = {
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

_NAMED = ("record", "error", "enum", "fixed")
