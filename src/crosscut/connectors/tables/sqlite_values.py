"""Which values SQLite's columns keep as they are: its declared types convert what looks like another type."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from reprlib import repr as shortened
from typing import Any
from uuid import UUID

from crosscut.connectors.doubles import double_of
from crosscut.connectors.files.json_values import is_object, json_text
from crosscut.errors import ConnectorError

BYTES = "$bytes"
"""Marks bytes in the JSON that holds rows."""

_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[ \t\n\v\f\r]*")

_NUMERIC = frozenset(
    ["any", "bool", "boolean", "date", "datetime", "dec", "decimal", "number", "numeric", "time", "timestamp"]
)
"""Names of types whose columns SQLite makes numeric, and where that does no harm."""

_MAPPED = {
    "json": "json text",
    "jsonb": "json text",
    "str": "text",
    "string": "text",
    "uuid": "uuid text",
    "bytea": "blob",
}
"""Names that other databases know. SQLite would make the columns numeric: "00123" would become 123.

The first word of a type says what is written as text, and SQLite finds "text" in it.
"""


class Affinity(Enum):
    """What SQLite converts values of a column to, where nothing is lost in its view."""

    INTEGER = "integer"
    TEXT = "text"
    BLOB = "blob"
    REAL = "real"
    NUMERIC = "numeric"


def affinity_of(declared: str) -> Affinity:
    """Return the affinity of a column. Source: the SQLite documentation, "Datatypes In SQLite", 3.1."""
    name = declared.upper()
    if "INT" in name:
        return Affinity.INTEGER
    if any(one in name for one in ("CHAR", "CLOB", "TEXT")):
        return Affinity.TEXT
    if "BLOB" in name or not name:
        return Affinity.BLOB
    if any(one in name for one in ("REAL", "FLOA", "DOUB")):
        return Affinity.REAL
    return Affinity.NUMERIC


def mapped_types(types: Mapping[str, str]) -> dict[str, str]:
    """Return the types that a table is made with.

    Raises:
        ConnectorError: SQLite does not know one, and would make the column numeric.
    """
    found = {}
    for column, kind in types.items():
        word = _first_word(kind)
        found[column] = _MAPPED.get(word, kind)
        if kind and affinity_of(found[column]) is Affinity.NUMERIC and word not in _NUMERIC:
            raise ConnectorError(
                f"columns: SQLite has no type {kind!r}, and would make {column!r} numeric: a text such as "
                f"'00123' would become the number 123. Use 'text', 'integer', 'real', 'blob' or 'numeric'"
            )
    return found


def _first_word(declared: str) -> str:
    return declared.lower().partition("(")[0].partition(" ")[0]


def storer(affinity: Affinity, declared: str) -> Callable[[Any], Any]:
    """Return what makes the value that a column keeps as it is, as JSON holds it.

    What SQLite has no type for is written as text, into columns whose declared type says so: elsewhere a date
    and its text would become the same, and so would 1 and "1" in a column of text.

    The function raises ValueError, with the reason, for a value that can't be stored, or that the column
    would change.

    Args:
        declared: Its type, whose first word counts.
    """
    is_number = affinity in (Affinity.INTEGER, Affinity.REAL, Affinity.NUMERIC)
    word = _first_word(declared)
    is_json, is_uuid = word in ("json", "jsonb"), word == "uuid"
    is_moment = word.startswith(("date", "time"))

    def unfit(value: Any) -> ValueError:
        others = ", Decimal" if is_number else ""
        kinds = "str, bytes" if affinity is Affinity.TEXT else f"bool, int, float, str, bytes{others}"
        own = ", JSON" if is_json else ", UUID" if is_uuid else ", dates and times" if is_moment else ""
        return ValueError(
            f"{shortened(value)} is of type {type(value).__name__}: expected None, {kinds}{own} in a column "
            f"of type {declared!r}. Dates, UUIDs and JSON need a type that begins with 'date', 'time', "
            f"'uuid' or 'json', such as columns={{'at': 'datetime'}}; convert others in row= of the sink"
        )

    def text(value: str) -> str:
        if is_number and _NUMBER.fullmatch(value):
            raise ValueError(
                f"the text {shortened(value)} would become a number in a column of affinity "
                f"{affinity.value}; give a number, or make the column 'text'"
            )
        # JSON holds it, and so does SQLite.
        value.encode()
        return value

    def number(value: float) -> Any:
        if affinity is Affinity.TEXT:
            if is_json:
                return json_text(value)
            raise unfit(value)
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ValueError(f"{shortened(value)} is beyond 64 bits")
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value!r} is not a number in SQLite")
        if affinity is Affinity.REAL and type(value) is int and int(float(value)) != value:
            raise ValueError(f"{value!r} would be rounded in a column of affinity real")
        return value

    def decimal(value: Decimal) -> Any:
        if not value.is_finite():
            raise ValueError(f"{value!r} is not a number in SQLite")
        if value == value.to_integral_value() and abs(value) < 2**63:
            return number(int(value))
        exact = double_of(value)
        if exact is None:
            raise ValueError(
                f"{value!r} would be rounded in a column of affinity {affinity.value}; write its text into "
                f"a column of type 'text'"
            )
        return exact

    def other(value: Any) -> Any:
        if isinstance(value, bytes | bytearray | memoryview):
            return {BYTES: base64.b64encode(value).decode()}
        # An enum is its text or number, whatever it calls itself.
        if isinstance(value, str):
            return text(str.__str__(value))
        if isinstance(value, int | float):
            return number(int(value) if isinstance(value, int) else float(value))
        if is_number and isinstance(value, Decimal):
            return decimal(value)
        if is_moment and isinstance(value, datetime | date | time):
            return value.isoformat()
        if is_uuid and isinstance(value, UUID):
            return str(value)
        if is_json and (isinstance(value, dict | list | tuple) or is_object(value)):
            return json_text(value)
        raise unfit(value)

    def stored(value: Any) -> Any:
        kind = type(value)
        if value is None:
            return None
        if kind is str:
            return text(value)
        if kind is int or kind is float or kind is bool:
            return number(value)
        return other(value)

    return stored


def parameter(value: Any) -> Any:
    """Return a value that JSON has held as SQLite takes it."""
    return base64.b64decode(value[BYTES], validate=True) if isinstance(value, dict) else value
