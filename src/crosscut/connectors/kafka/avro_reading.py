"""How Avro values are read: decimals with a bound on their digits, times of day that are within one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import time
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any

from crosscut.connectors.extras import required

DIGITS_MAX = 4_300
"""Of a decimal, whatever precision its schema has: the time to make one grows with the square of them."""

_PREFIX = "crosscut-"
_DAY_MS = 86_400_000
_EXACT = Context(prec=DIGITS_MAX, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])

Schema = Any
"""A schema as JSON, or as fastavro parses it."""


def with_exact_readers(schema: Schema) -> Schema:
    """Return a schema, as JSON, changed so that fastavro reads it with the functions below."""
    known = required("fastavro.read", "avro").LOGICAL_READERS
    ours = {kind: read for kind, read in _READERS.items() if is_of_fastavro(known.get(kind))}
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


def is_of_fastavro(function: Any) -> bool:
    """Tell whether a function of a logical type is fastavro's, not one that the user has put in its place."""
    return str(getattr(function, "__module__", "")).startswith("fastavro.")
