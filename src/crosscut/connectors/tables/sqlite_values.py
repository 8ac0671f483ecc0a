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

from crosscut.connectors.files.json_values import json_text
from crosscut.errors import ConnectorError

BYTES = "$bytes"
"""Marks bytes in the JSON that holds rows."""

_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[ \t\n\v\f\r]*")

_NUMERIC = frozenset(
    ["any", "bool", "boolean", "date", "datetime", "dec", "decimal", "number", "numeric", "time", "timestamp"]
)
"""Names of types whose columns SQLite makes numeric, and where that does no harm."""

_MAPPED = {"json": "text", "jsonb": "text", "str": "text", "string": "text", "uuid": "text", "bytea": "blob"}
"""Names that other databases know. SQLite would make the columns numeric: "00123" would become 123."""


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
        word = kind.lower().partition("(")[0].split(" ")[0]
        found[column] = _MAPPED.get(word, kind)
        if kind and affinity_of(found[column]) is Affinity.NUMERIC and word not in _NUMERIC:
            raise ConnectorError(
                f"columns: SQLite has no type {kind!r}, and would make {column!r} numeric: a text such as "
                f"'00123' would become the number 123. Use 'text', 'integer', 'real', 'blob' or 'numeric'"
            )
    return found


def storer(affinity: Affinity) -> Callable[[Any], Any]:
    """Return what makes the value that a column of this affinity keeps as it is, as JSON holds it.

    The function raises ValueError, with the reason, for a value that can't be stored, or that the column
    would change.
    """
    is_number = affinity in (Affinity.INTEGER, Affinity.REAL, Affinity.NUMERIC)

    def text(value: str) -> str:
        if is_number and _NUMBER.fullmatch(value):
            raise ValueError(
                f"the text {shortened(value)} would become a number in a column of affinity "
                f"{affinity.value}; give "
                f"a number, or make the column 'text'"
            )
        # JSON holds it, and so does SQLite.
        value.encode()
        return value

    def number(value: float) -> Any:
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ValueError(f"{shortened(value)} is beyond 64 bits")
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value!r} is no number of SQLite")
        if affinity is Affinity.TEXT:
            # SQLite would write a float with 15 digits.
            return str(int(value)) if type(value) is bool else repr(value)
        if affinity is Affinity.REAL and type(value) is int and int(float(value)) != value:
            raise ValueError(f"{value!r} would be rounded in a column of affinity real")
        return value

    def decimal(value: Decimal) -> Any:
        if not is_number:
            return str(value)
        if not value.is_finite():
            raise ValueError(f"{value!r} is no number of SQLite")
        if value == value.to_integral_value() and abs(value) < 2**63:
            return number(int(value))
        if Decimal(repr(float(value))) != value:
            raise ValueError(
                f"{value!r} would be rounded in a column of affinity {affinity.value}; use 'text'"
            )
        return float(value)

    def other(value: Any) -> Any:
        if isinstance(value, bytes | bytearray | memoryview):
            return {BYTES: base64.b64encode(value).decode()}
        if isinstance(value, str):
            return text(str(value))
        if isinstance(value, Decimal):
            return decimal(value)
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        if isinstance(value, UUID):
            return str(value)
        if isinstance(value, dict | list | tuple):
            return json_text(value)
        raise ValueError(
            f"{shortened(value)} is of type {type(value).__name__}: expected None, bool, int of 64 bits, "
            f"finite "
            f"float, str, bytes, a date or time, Decimal, UUID, or JSON"
        )

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
