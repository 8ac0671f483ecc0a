"""Values as Postgres' COPY takes them in its text format, by the type of their column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from reprlib import repr as shortened
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from crosscut.connectors.files.json_values import json_text

_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
_ESCAPES = str.maketrans(_ESCAPED)
_UNESCAPED = {escape: character for character, escape in _ESCAPED.items()}
_ESCAPE = re.compile(r"\\.", re.DOTALL)

NULL = "\\N"

_JSON = frozenset(["json", "jsonb"])
_WITH_ZONE = "timestamp with time zone"
_WITHOUT_ZONE = "timestamp without time zone"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a column holds.

    Attributes:
        name: As `format_type` writes it, of a domain that of the type which it restricts.
        element: Of an array, the type of what is in it; else "".
    """

    name: str
    element: str = ""


def texter(column: ColumnType, zone: ZoneInfo | None) -> Callable[[Any], str]:
    """Return what writes values of a column; it raises ValueError, with the reason, for one that it can't.

    Args:
        zone: In which times without a zone are; and in which a column without one has its times.
    """
    scalar = _scalar(column.element or column.name, zone)

    def text(value: Any) -> str:
        if value is None:
            return NULL
        if type(value) is str:
            if "\0" in value:
                raise ValueError("it holds a zero byte, which Postgres refuses")
            return value.translate(_ESCAPES)
        return scalar(value).translate(_ESCAPES)

    def array(value: Any) -> str:
        if isinstance(value, list | tuple):
            return _array(value, scalar, has_lists=column.element in _JSON).translate(_ESCAPES)
        return text(value)

    return array if column.element else text


def _array(values: list[Any] | tuple[Any, ...], scalar: Callable[[Any], str], *, has_lists: bool) -> str:
    found = []
    for value in values:
        if value is None:
            found.append("NULL")
        elif isinstance(value, list | tuple) and not has_lists:
            found.append(_array(value, scalar, has_lists=has_lists))
        else:
            escaped = scalar(value).replace("\\", "\\\\").replace('"', '\\"')
            found.append(f'"{escaped}"')
    return "{" + ",".join(found) + "}"


def _scalar(kind: str, zone: ZoneInfo | None) -> Callable[[Any], str]:
    def scalar(value: Any) -> str:
        if isinstance(value, str):
            if "\0" in value:
                raise ValueError("it holds a zero byte, which Postgres refuses")
            return str.__str__(value)
        if value is True or value is False:
            return "t" if value else "f"
        # An enum is its number, whatever it calls itself.
        if isinstance(value, int):
            return int.__repr__(value)
        if isinstance(value, float):
            return float.__repr__(value)
        if isinstance(value, Decimal | UUID):
            return str(value)
        if isinstance(value, datetime | date | time):
            return str(_moment(value, kind, zone).isoformat())
        if isinstance(value, timedelta):
            return _duration(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return "\\x" + bytes(value).hex()
        if isinstance(value, dict | list | tuple):
            return json_text(value)
        raise ValueError(
            f"{shortened(value)} is of type {type(value).__name__}: expected None, bool, int, float, str, "
            f"bytes, a date, time or duration, Decimal, UUID, JSON, or a list for an array"
        )

    return scalar


def _moment(value: Any, kind: str, zone: ZoneInfo | None) -> Any:
    if kind == _WITH_ZONE and isinstance(value, date) and getattr(value, "tzinfo", None) is None:
        if zone is None:
            # The server would take it to be in the time zone of the session.
            raise ValueError(
                f"{value!r} has no time zone, and the column has one: give time_zone= to the sink"
            )
        midnight = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return midnight.replace(tzinfo=zone)
    if kind == _WITHOUT_ZONE and isinstance(value, datetime) and value.tzinfo is not None:
        if zone is not None:
            return value.astimezone(zone).replace(tzinfo=None)
        if value.utcoffset():
            # The server would leave the offset out.
            raise ValueError(
                f"{value!r} is not in UTC, and the column has no time zone: give time_zone= to the sink"
            )
    return value


def _duration(value: timedelta) -> str:
    microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    return f"{'-' if microseconds < 0 else ''}{seconds}.{rest:06d} seconds"


def lines_of(data: bytes) -> Iterator[list[str | None]]:
    """Return the rows of text that `texter` has written, line by line."""
    for line in data.decode().split("\n")[:-1]:
        yield [None if one == NULL else _ESCAPE.sub(_unescaped, one) for one in line.split("\t")]


def _unescaped(found: re.Match[str]) -> str:
    return _UNESCAPED.get(found[0], found[0])
