"""Values as Postgres' COPY takes them in its text format, by the type of their column."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from reprlib import repr as shortened
from typing import Any
from zoneinfo import ZoneInfo

from crosscut.connectors.postgres.scalars import (
    JSON,
    ColumnType,
    Scalar,
    checked_text,
    other_text,
    scalar_of,
    whole_text_length,
)

_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
_ESCAPES = str.maketrans(_ESCAPED)
_UNESCAPED = {escape: character for character, escape in _ESCAPED.items()}
_ESCAPE = re.compile(r"\\.", re.DOTALL)

_PART = re.compile(r'"(?P<quoted>(?:[^"\\]|\\.)*)"|[{}]|[^{}",\\]+', re.DOTALL)
"""Of the text of an array: an element, or a brace."""
_BRACES = {"{": "[", "}": "]"}

NULL = "\\N"


def texter(column: ColumnType, zone: ZoneInfo | None) -> Callable[[Any], str]:
    """Return what writes values of a column.

    It raises ValueError, with the reason, for a value that it can't write, or that the column would change.

    Args:
        zone: In which times without a zone are; and in which a column without one has its times.
    """
    scalar, is_plain = scalar_of(column, zone)
    length = whole_text_length(column, scalar)
    has_lists = column.element in JSON
    # The server keeps any text of such types, so it need not be read here.
    is_own_text = has_lists or scalar in (checked_text, other_text)

    def plain(value: Any) -> str:
        return NULL if value is None else scalar(value)

    def escaped(value: Any) -> str:
        return NULL if value is None else scalar(value).translate(_ESCAPES)

    def words(value: Any) -> str:
        if type(value) is str and len(value) <= length and "\0" not in value:
            return value.translate(_ESCAPES)
        return escaped(value)

    def array(value: Any) -> str:
        if value is None:
            return NULL
        if isinstance(value, str):
            if is_own_text:
                return checked_text(value).translate(_ESCAPES)
            value = _elements(value)
        if not isinstance(value, list | tuple):
            raise ValueError(
                f"{shortened(value)} is of type {type(value).__name__}: expected None, a list, or the text "
                f"of an array; convert it in row= of the sink"
            )
        return _array(value, scalar, has_lists=has_lists).translate(_ESCAPES)

    if column.element:
        return array
    if length >= 0:
        return words
    return plain if is_plain else escaped


def _array(values: list[Any] | tuple[Any, ...], scalar: Scalar, *, has_lists: bool) -> str:
    found = []
    for value in values:
        if value is None:
            found.append("NULL")
        elif isinstance(value, list | tuple) and not has_lists:
            if not value:
                raise ValueError("it holds an empty list, and Postgres has no arrays of empty arrays")
            found.append(_array(value, scalar, has_lists=has_lists))
        else:
            escaped = scalar(value).replace("\\", "\\\\").replace('"', '\\"')
            found.append(f'"{escaped}"')
    return "{" + ",".join(found) + "}"


def _elements(text: str) -> list[Any]:
    """Return what is in the text of an array, as Postgres writes it."""
    try:
        found = json.loads(_PART.sub(_as_json, text))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise ValueError(
            f"the text {shortened(text)} is not in Postgres's format for an array, such as "
            f"'{{1,2}}'; give a list"
        )
    return found


def _as_json(part: re.Match[str]) -> str:
    if part[0] in _BRACES:
        return _BRACES[part[0]]
    if part["quoted"] is not None:
        return json.dumps(_ESCAPE.sub(lambda escape: escape[0][1], part["quoted"]))
    return "null" if part[0] == "NULL" else json.dumps(part[0])


def lines_of(data: bytes) -> Iterator[list[str | None]]:
    """Return the rows of text that `texter` has written, line by line."""
    for line in data.decode().split("\n")[:-1]:
        yield [None if one == NULL else _ESCAPE.sub(_unescaped, one) for one in line.split("\t")]


def _unescaped(found: re.Match[str]) -> str:
    return _UNESCAPED.get(found[0], found[0])
