"""Values for Arrow: what a type would take and silently change is refused instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BYTES = (bytes, bytearray, memoryview)
_NO_LISTS = (str, *_BYTES, Mapping)
_TEXTS = frozenset({"string", "large_string", "string_view"})
_BINARIES = frozenset({"binary", "large_binary", "binary_view"})
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def check_values(arrow: Any, values: Sequence[Any], kind: Any) -> None:
    """Raise ValueError if one of `values` would come back from Arrow's type `kind` as something else.

    What pyarrow refuses by itself is left to it, and so is rounding to 32-bit floats, which is what they
    are for.
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
    elif str(kind) in _TEXTS:
        if _has_others(found, str):
            _refuse(found, kind, lambda value: isinstance(value, _BYTES), "is no str")
    elif str(kind) in _BINARIES or types.is_fixed_size_binary(kind):
        if _has_others(found, bytes):
            _refuse(found, kind, lambda value: isinstance(value, str), "is no bytes")
    elif types.is_timestamp(kind):
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
    elif types.is_date(kind):
        _refuse(found, kind, _has_time, "has a time of the day")
        _refuse(found, kind, lambda value: not _has_day(value), "is no date")
    elif types.is_time(kind) or types.is_duration(kind):
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
        rows = [_as_mapping(value, kind) for value in found]
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


def _as_mapping(value: Any, kind: Any) -> Mapping[Any, Any]:
    """Return the fields of a struct, for which pyarrow also takes a tuple of values, and pairs."""
    if isinstance(value, tuple):
        return dict(zip((field.name for field in kind), value, strict=False))
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
        raise ValueError(f"field {field.name!r} takes no None")
    check_values(arrow, values, field.type)


def _refuse(values: list[Any], kind: Any, is_wrong: Any, why: str) -> None:
    for value in values:
        if is_wrong(value):
            raise ValueError(f"{value!r:.100} {why}, and its type is {kind}")
