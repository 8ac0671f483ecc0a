"""Which Python values an Arrow column would take and silently change: refused instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def check_values(arrow: Any, values: Sequence[Any], kind: Any) -> None:
    """Raise ValueError if one of `values` would come back from a column of type `kind` as something else.

    What pyarrow refuses by itself is left to it, and so is rounding to 32-bit floats, which is what they
    are for.
    """
    types = arrow.types
    found = [value for value in values if value is not None]
    if types.is_integer(kind):
        # pyarrow cuts fractions off. Most often a look at the types is enough.
        if not {int}.issuperset(map(type, found)):
            _refuse(found, kind, lambda value: not isinstance(value, int), "is no int")
    elif types.is_timestamp(kind):
        # A time without a zone would be taken for UTC, and one with a zone lose it.
        has_zone, grain = kind.tz is not None, _MICROSECONDS[kind.unit]
        _refuse(
            found,
            kind,
            lambda value: isinstance(value, datetime) and (value.tzinfo is not None) != has_zone,
            "has no time zone" if has_zone else "has a time zone",
        )
        _refuse(
            found, kind, lambda value: value.microsecond % grain != 0, f"is no whole number of {kind.unit}"
        )
    elif types.is_date(kind):
        _refuse(found, kind, lambda value: isinstance(value, datetime), "has a time of the day")
        _refuse(found, kind, lambda value: not isinstance(value, date), "is no date")
    elif types.is_time(kind) or types.is_duration(kind):
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
        rows = [value for value in found if isinstance(value, Mapping)]
        for field in kind:
            check_values(arrow, [row.get(field.name) for row in rows], field.type)
    elif types.is_map(kind):
        pairs = [pair for value in found for pair in (value.items() if isinstance(value, Mapping) else value)]
        check_values(arrow, [key for key, _ in pairs], kind.key_type)
        check_values(arrow, [item for _, item in pairs], kind.item_type)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        check_values(arrow, [item for value in found for item in value], kind.value_type)


def _refuse(values: list[Any], kind: Any, is_wrong: Any, why: str) -> None:
    for value in values:
        if is_wrong(value):
            raise ValueError(f"{value!r:.100} {why}, and the column is {kind}")
