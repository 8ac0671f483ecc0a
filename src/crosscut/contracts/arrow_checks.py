"""Values for Arrow: what a type would take and silently change is refused instead."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_BYTES = (bytes, bytearray, memoryview)
_NO_LISTS = (str, *_BYTES, Mapping)
_TEXTS = frozenset({"string", "large_string", "string_view"})
_BINARIES = frozenset({"binary", "large_binary", "binary_view"})
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_UNITS_OF_A_DAY = {unit: 86_400 * 10**digits for unit, digits in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))}
_NARROW_FLOATS = {16: "e", 32: "f"}
"""Their codes in the module struct, by their bits."""

_TIMES_OF_NUMPY = frozenset({"datetime64", "timedelta64"})


def type_by_name(arrow: Any, name: str) -> Any:
    """Return the `pyarrow.DataType` of a name such as "timestamp[us, tz=UTC]"; None if no type has it."""
    unit, _, zone = name.removesuffix("]").partition(", tz=")
    if zone and unit.startswith("timestamp[") and name.endswith("]"):
        try:
            return arrow.timestamp(unit.removeprefix("timestamp["), tz=zone)
        except ValueError:
            return None
    try:
        return arrow.type_for_alias(name)
    except ValueError:
        return None


def check_values(arrow: Any, values: Sequence[Any], kind: Any) -> None:
    """Raise ValueError if one of `values` would come back from Arrow's type `kind` as something else.

    What pyarrow refuses by itself is left to it, and so is rounding of floats to fewer bits, which is what
    narrow types are for. For a timestamp, time or duration an int is the number of the type's units.
    """
    types = arrow.types
    found = [value for value in values if value is not None]
    if types.is_integer(kind):
        # pyarrow cuts fractions off. Most often a look at the types is enough.
        if _has_others(found, int):
            _refuse(found, kind, lambda value: not hasattr(value, "__index__"), "is no int")
    elif types.is_floating(kind):
        if _has_others(found, float):
            _refuse(found, kind, lambda value: isinstance(value, bool), "is a bool")
        if kind.bit_width in _NARROW_FLOATS:
            _check_narrow(found, kind)
    elif str(kind) in _TEXTS:
        if _has_others(found, str):
            _refuse(found, kind, lambda value: isinstance(value, _BYTES), "is no str")
    elif str(kind) in _BINARIES or types.is_fixed_size_binary(kind):
        if _has_others(found, bytes):
            _refuse(found, kind, lambda value: isinstance(value, str), "is no bytes")
    elif types.is_timestamp(kind):
        _refuse_types(found, kind, "toordinal", "is no datetime")
        # A time without a zone would be taken for UTC, and one with a zone lose it.
        has_zone, grain = kind.tz is not None, _MICROSECONDS[kind.unit]
        _refuse(
            found,
            kind,
            lambda value: _has_time(value) and (value.tzinfo is not None) != has_zone,
            "has no time zone" if has_zone else "has a time zone",
        )
        _refuse(
            found,
            kind,
            lambda value: getattr(value, "microsecond", 0) % grain != 0,
            f"is no whole number of {kind.unit}",
        )
        _check_nanoseconds(found, kind, "nanosecond")
    elif types.is_date(kind):
        _refuse(found, kind, _has_time, "has a time of the day")
        _refuse(found, kind, lambda value: not _has_day(value), "is no date")
    elif types.is_time(kind) or types.is_duration(kind):
        if types.is_time(kind):
            _refuse_types(found, kind, "utcoffset", "is no time")
            _check_within_a_day(found, kind)
        else:
            _refuse_types(found, kind, "total_seconds", "is no timedelta")
            _check_nanoseconds(found, kind, "nanoseconds")
        _refuse(found, kind, lambda value: getattr(value, "tzinfo", None) is not None, "has a time zone")
        grain = _MICROSECONDS[kind.unit]
        name = "microseconds" if types.is_duration(kind) else "microsecond"
        _refuse(
            found,
            kind,
            lambda value: getattr(value, name, 0) % grain != 0,
            f"is no whole number of {kind.unit}",
        )
    elif types.is_struct(kind):
        names = {field.name for field in kind}
        _refuse(
            found,
            kind,
            lambda value: isinstance(value, Mapping) and not value.keys() <= names,
            f"has other fields than {', '.join(sorted(names))}",
        )
        rows = [as_mapping(value, kind) for value in found]
        for field in kind:
            _check_inner(arrow, [row.get(field.name) for row in rows], field)

    elif types.is_map(kind):
        pairs = [pair for value in found for pair in (value.items() if isinstance(value, Mapping) else value)]
        check_values(arrow, [key for key, _ in pairs], kind.key_type)
        _check_inner(arrow, [item for _, item in pairs], kind.item_field)

    elif getattr(kind, "value_field", None) is not None:
        # Of texts and bytes pyarrow would take each character.
        if _has_others(found, list):
            _refuse(
                found,
                kind,
                lambda value: isinstance(value, _NO_LISTS) or not isinstance(value, Iterable),
                "is no list",
            )
        _check_inner(arrow, [item for value in found for item in value], kind.value_field)
    elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        check_values(arrow, found, kind.value_type)
    elif isinstance(kind, arrow.BaseExtensionType):
        check_values(arrow, found, kind.storage_type)
        if kind.extension_name == "arrow.bool8":
            _refuse(found, kind, lambda value: value not in (0, 1), "is neither 0 nor 1")


def _check_narrow(values: list[Any], kind: Any) -> None:
    """Refuse what becomes infinite, and ints that are rounded."""
    code = f"<{_NARROW_FLOATS[kind.bit_width]}"
    if not _has_others(values, float):
        # Most often one call for all of them is enough.
        with suppress(OverflowError):
            struct.pack(f"<{len(values)}{code[1:]}", *values)
            return
    for value in values:
        try:
            (single,) = struct.unpack(code, struct.pack(code, float(value)))
        except OverflowError:
            raise ValueError(f"{value!r:.100} is beyond the range of its type, {kind}") from None
        except (TypeError, ValueError):
            # pyarrow refuses what is no number.
            continue
        if _is_int(type(value)) and value != single:
            raise ValueError(f"{value!r:.100} would be rounded to {single!r}, and its type is {kind}")


def _is_int(kind: type) -> bool:
    return hasattr(kind, "__index__")


def _check_within_a_day(values: list[Any], kind: Any) -> None:
    if any(map(_is_int, set(map(type, values)))):
        end = _UNITS_OF_A_DAY[kind.unit]
        numbers = [value for value in values if _is_int(type(value))]
        _refuse(numbers, kind, lambda value: not 0 <= value.__index__() < end, "is no time of a day")


def _refuse_types(values: list[Any], kind: Any, method: str, why: str) -> None:
    """Refuse values that are neither ints nor have `method`: pyarrow cuts fractions off.

    Times of numpy it takes only in the unit of `kind`.
    """
    for one in set(map(type, values)):
        if not hasattr(one, method) and not _is_int(one) and one.__name__ not in _TIMES_OF_NUMPY:
            _refuse([value for value in values if type(value) is one], kind, lambda _: True, why)


def _check_nanoseconds(values: list[Any], kind: Any, name: str) -> None:
    """Refuse times of pandas that have nanoseconds, if `kind` has none."""
    if kind.unit != "ns" and any(hasattr(one, name) for one in set(map(type, values))):
        _refuse(values, kind, lambda value: getattr(value, name, 0), f"is no whole number of {kind.unit}")


def as_mapping(value: Any, fields: Iterable[Any]) -> Mapping[Any, Any]:
    """Return the fields of a struct, for which pyarrow also takes a tuple of values, and pairs."""
    if isinstance(value, tuple):
        return dict(zip((field.name for field in fields), value, strict=False))
    if isinstance(value, list):
        return dict(pair for pair in value if isinstance(pair, tuple))
    # What is no struct pyarrow refuses.
    return value if isinstance(value, Mapping) else {}


def _has_others(values: list[Any], usual: type) -> bool:
    return not {usual}.issuperset(map(type, values))


# Operators use serializers, and the core may not import what has a clock; so dates are told by their methods.
def _has_day(value: Any) -> bool:
    return hasattr(value, "toordinal")


def _has_time(value: Any) -> bool:
    return hasattr(value, "toordinal") and hasattr(value, "utcoffset")


def _check_inner(arrow: Any, values: list[Any], field: Any) -> None:
    """Check the values of a field within another one; pyarrow finds a missing one only when it writes."""
    if not field.nullable and any(value is None for value in values):
        raise ValueError(f"field {field.name!r} does not accept None")
    check_values(arrow, values, field.type)


def _refuse(values: list[Any], kind: Any, is_wrong: Any, why: str) -> None:
    for value in values:
        if is_wrong(value):
            raise ValueError(f"{value!r:.100} {why}, and its type is {kind}")
