"""Avro values that stay what they are: fastavro rounds, cuts and leaves out what a schema has no room for.

What a schema can't hold exactly is refused. A preparer is made once for each schema, and looks only at types
where fastavro does not refuse by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from numbers import Integral
from operator import is_
from reprlib import repr as shortened
from typing import Any
from uuid import UUID

from crosscut.connectors.doubles import double_of
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
    ours = {kind: read for kind, read in _READERS.items() if _is_of_fastavro(known.get(kind))}
    for kind, read in ours.items():
        base, _, logical = kind.partition("-")
        known[f"{base}-{_PREFIX}{logical}"] = read
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if f"{one.get('type')}-{one.get('logicalType')}" in ours:
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
    prepare = _Preparers().of(schema)

    def prepared(value: Any) -> Any:
        try:
            return prepare(value)
        except _Refused as error:
            raise ValueError(str(error)) from error

    return prepared


class _Refused(ValueError):
    """A value that a type does not hold.

    The message is made only if someone reads it: a union refuses most values for all of its types but one.
    """

    def __str__(self) -> str:
        value, reason = self.args
        return f"{shortened(value)} {reason}"


class _RefusedField(_Refused):
    """One whose field is refused."""

    def __str__(self) -> str:
        name, error = self.args
        return f"field {name}: {error}"


def _unchecked(value: Any) -> Any:
    """Prepare a value of a logical type that the user has added to fastavro."""
    return value


def _unfit(value: Any, expected: str) -> ValueError:
    return _Refused(value, f"is of type {type(value).__name__}: expected {expected}")


class _Preparers:
    """Those of one schema, which may name types that it has defined before.

    fastavro refuses some values by itself, and those need no check. In a union every value is checked as a
    whole, because what is refused decides which type of the union it has.
    """

    def __init__(self) -> None:
        self._schemas: dict[str, Schema] = {}
        self._made: dict[tuple[str, bool], Prepare] = {}

    def of(self, schema: Schema, *, in_union: bool = False) -> Prepare:
        """Return what prepares values of a schema.

        Args:
            in_union: It refuses every value that fastavro would refuse.
        """
        if isinstance(schema, list):
            return self._union(schema, in_union=in_union)
        if isinstance(schema, str):
            if schema not in self._schemas:
                return _PLAIN[schema]
            made = self._made.get((schema, in_union))
            return self.of(self._schemas[schema], in_union=in_union) if made is None else made
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, in_union=in_union)
        if (write := _writer_of(schema)) is not None:
            typed = f"{kind}-{schema['logicalType']}"
            if typed in _LOGICAL and _is_of_fastavro(write):
                prepare = _LOGICAL[typed](schema)
                return self._kept(schema, _not_text(prepare) if in_union else prepare, in_union=in_union)
            return self._kept(schema, _unchecked, in_union=in_union)
        match kind:
            case "record" | "error":
                return self._record(schema, in_union=in_union)
            case "array":
                return _array(self.of(schema["items"], in_union=in_union), in_union=in_union)
            case "map":
                return _map(self.of(schema["values"], in_union=in_union), in_union=in_union)
            case "enum":
                return self._kept(schema, _enum(schema["symbols"]), in_union=in_union)
            case "fixed":
                return self._kept(schema, _fixed(schema["size"]), in_union=in_union)
            case _:
                return self.of(kind, in_union=in_union)

    def _kept(self, schema: Schema, prepare: Prepare, *, in_union: bool) -> Prepare:
        if "name" in schema:
            self._schemas[schema["name"]] = schema
            self._made[schema["name"], in_union] = prepare
        return prepare

    def _record(self, schema: Schema, *, in_union: bool) -> Prepare:
        own_name = schema["name"]
        names = {field["name"] for field in schema["fields"]}
        checked: list[tuple[str, Prepare, Any]] = []

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
                for name, of_field, default in checked:
                    if name not in value:
                        # fastavro writes the default, or refuses. In a union it passes to the next type.
                        if in_union:
                            of_field(default)
                        continue
                    given = value[name]
                    found = of_field(given)
                    if found is not given:
                        changed = dict(value) if changed is None else changed
                        changed[name] = found
            except ValueError as error:
                raise _RefusedField(name, error) from error
            return value if changed is None else changed

        self._kept(schema, prepare, in_union=in_union)
        for field in schema["fields"]:
            of_field = self.of(field["type"], in_union=in_union)
            if in_union or of_field not in _REFUSED_BY_FASTAVRO:
                checked.append((field["name"], of_field, field.get("default")))
        return prepare

    def _union(self, schemas: list[Schema], *, in_union: bool) -> Prepare:
        if any(isinstance(one, list) for one in schemas):
            raise ValueError("the schema has a union within a union, which Avro does not allow: make it one")
        names = [self._branch_name(one) for one in schemas]
        if len(set(names)) < len(names):
            # fastavro takes such a schema, and the first of the types for both.
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the schema has a union with two types {twice}, which Avro does not allow")
        others = [name for name in names if name != "null"]
        is_choice = in_union or len(others) != 1
        branches = [
            (name, self.of(one, in_union=is_choice), self._resolved(one))
            for name, one in zip(names, schemas, strict=True)
        ]
        if any(prepare is _unchecked for _, prepare, _ in branches):
            return _unchecked
        if len(others) != 1:
            return _chosen(
                [(name, _kind_of(schema), _names_of(schema), made) for name, made, schema in branches]
            )
        (only,) = [(name, prepare) for name, prepare, _ in branches if name != "null"]
        if not in_union and only[1] in _REFUSED_BY_FASTAVRO:
            return only[1]
        return _nullable(*only, takes_none=len(branches) > 1)

    def _branch_name(self, schema: Schema) -> str:
        """Return the name of a branch of a union, as fastavro takes it."""
        if isinstance(schema, str):
            return schema
        return str(schema["name"] if schema["type"] in _NAMED else schema["type"])

    def _resolved(self, schema: Schema) -> Schema:
        return self._schemas.get(schema, schema) if isinstance(schema, str) else schema


def _writer_of(schema: Schema) -> Any:
    """Return the function by which fastavro writes values of a logical type, None if it knows none."""
    typed = f"{schema['type']}-{schema.get('logicalType')}"
    return required("fastavro.write", "avro").LOGICAL_WRITERS.get(typed)


def _is_of_fastavro(function: Any) -> bool:
    """Tell whether a function of a logical type is fastavro's, not one that the user has put in its place."""
    return str(getattr(function, "__module__", "")).startswith("fastavro.")


def _kind_of(schema: Schema) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _names_of(schema: Schema) -> frozenset[str]:
    fields = schema["fields"] if _kind_of(schema) == "record" else ()
    return frozenset(field["name"] for field in fields)


def _not_text(prepare: Prepare) -> Prepare:
    """Leave a text to another type of a union, which has one for texts if it is to hold any."""

    def prepared(value: Any) -> Any:
        found = prepare(value)
        if isinstance(value, str) and not isinstance(found, str):
            raise _unfit(value, f"a {type(found).__name__}")
        return found

    return prepared


def _nullable(name: str, prepare: Prepare, *, takes_none: bool) -> Prepare:
    def nullable(value: Any) -> Any:
        if value is None and takes_none:
            return None
        if type(value) is tuple:
            given, inner = value
            return given, nullable(inner)
        found = prepare(value)
        # With the name fastavro does not look for a type: it would not know those that were chosen inside.
        return value if found is value else (name, found)

    return nullable


def _chosen(branches: list[tuple[str, str, frozenset[str], Prepare]]) -> Prepare:
    """Return what chooses the branch of a union as fastavro does, among those that hold a value exactly.

    Args:
        branches: The name, the type, the fields of a record, and what prepares values.
    """
    by_name = {name: prepare for name, _, _, prepare in branches}
    # A shorter way to the branches of the most frequent values: a refusal takes time.
    by_type = {
        own: [one for one in branches if own in _TYPES.get(one[3], _SCALARS) and one[1] not in _CONTAINERS]
        for own in _SCALARS
    }

    def chosen(value: Any) -> Any:
        if type(value) is tuple:
            name, inner = value
            if name not in by_name:
                raise ValueError(f"the union has no type {name!r}, only {', '.join(by_name)}")
            return name, by_name[name](inner)
        errors = []
        found: tuple[str, Any] | None = None
        most_fields = -1
        for name, kind, fields, prepare in by_type.get(type(value), branches):
            try:
                prepared = prepare(value)
            except ValueError as error:
                errors.append(error)
                continue
            if kind == "record":
                count = len(fields & value.keys())
                if count > most_fields:
                    found, most_fields = (name, prepared), count
            elif kind == "float" and "double" in by_name:
                found = "double", by_name["double"](value)
                break
            else:
                found = name, prepared
                break
        if found is None:
            reasons = dict.fromkeys(map(str, errors)) or [str(_unfit(value, ", ".join(by_name)))]
            raise ValueError(f"no type of the union holds it: {'; '.join(reasons)}")
        return None if found[0] == "null" else found

    return chosen


def _array(of_item: Prepare, *, in_union: bool) -> Prepare:
    is_free = not in_union and of_item in _REFUSED_BY_FASTAVRO

    def array(value: Any) -> Any:
        if isinstance(value, list | tuple):
            if is_free:
                return value
            found = list(map(of_item, value))
            return value if all(map(is_, found, value)) else found
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
            # fastavro would write each character, or the keys.
            raise _unfit(value, "a list")
        if in_union and isinstance(value, Iterator):
            # Each type of the union is tried, and after the first one nothing would be left.
            raise _unfit(value, "a list")
        try:
            items = iter(value)
        except TypeError:
            raise _unfit(value, "a list") from None
        return list(map(of_item, items))

    return array


def _map(of_value: Prepare, *, in_union: bool) -> Prepare:
    is_free = not in_union and of_value in _REFUSED_BY_FASTAVRO

    def mapped(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _unfit(value, "a dict")
        if is_free:
            return value
        if in_union and not all(isinstance(key, str) for key in value):
            raise _unfit(value, "a dict with keys of type str")
        found = list(map(of_value, value.values()))
        if all(map(is_, found, value.values())):
            return value
        return dict(zip(value, found, strict=True))

    return mapped


def _enum(symbols: Iterable[str]) -> Prepare:
    known = frozenset(symbols)
    shown = f"{', '.join(sorted(known)):.200}"

    def enum(value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise _Refused(value, f"is none of the symbols {shown}")
        return value

    return enum


def _fixed(size: int) -> Prepare:
    def fixed(value: Any) -> Any:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _unfit(value, f"{size} bytes")
        if len(value) != size:
            raise _Refused(value, f"has {len(value)} bytes: expected {size}")
        return value

    return fixed


def _integer(kind: str, bits: int) -> Prepare:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def integer(value: Any) -> Any:
        if type(value) is int:
            if least <= value <= most:
                return value
            raise _Refused(value, f"is beyond the {bits} bits of {kind}")
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
    if isinstance(value, Decimal):
        if (exact := double_of(value)) is None:
            raise _Refused(value, "would be rounded to a double")
        return exact
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

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})

_TYPES: dict[Prepare, frozenset[type]] = {
    _null: frozenset({type(None)}),
    _boolean: frozenset({bool}),
    _PLAIN["int"]: frozenset({int}),
    _PLAIN["long"]: frozenset({int}),
    _float: frozenset({int, float}),
    _double: frozenset({int, float}),
    _bytes: frozenset({bytes}),
    _text: frozenset({str}),
}
"""Which of `_SCALARS` a type may hold."""

_CONTAINERS = frozenset({"record", "error", "array", "map"})
"""Kinds that hold none of `_SCALARS`."""

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
        if isinstance(value, str):
            return date.fromisoformat(value)
        return value if isinstance(value, date) else _or_number(value, number, "a date or its ISO text")

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
