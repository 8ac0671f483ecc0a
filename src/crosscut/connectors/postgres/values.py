"""Values of Postgres that Python has no value for: infinity, years before 1, intervals of ages, deep JSON."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

from crosscut.connectors.extras import required
from crosscut.connectors.files.json_decoding import json_value
from crosscut.connectors.files.malformed import set_aside
from crosscut.errors import ConnectorError
from crosscut.foundation.callables import function_problem

Malformed = Literal["fail", "skip"] | Callable[[Any, ConnectorError], Any]
"""Fail the job, go on without the record and log a warning, or make another record of it and the error."""

Infinity = Literal["malformed", "limits"]
"""Whether infinite dates and times are malformed, or the first and last ones that Python has."""

_log = logging.getLogger("crosscut.postgres")


@dataclass(frozen=True, slots=True)
class MalformedRecord:
    """A record with values that can't be read: in their place are their texts.

    Attributes:
        reason: Which columns, what they hold, and why.
    """

    record: Any
    reason: str


def checked_options(malformed: object, infinity: object) -> None:
    """Raise ConnectorError unless these are `Malformed` and `Infinity`."""
    if malformed not in ("fail", "skip") and not callable(malformed):
        raise ConnectorError(f"malformed={malformed!r}: expected 'fail', 'skip', or a function")
    if callable(malformed) and (problem := function_problem(malformed, "record", "error")):
        raise ConnectorError(f"malformed: {problem}")
    if infinity not in ("malformed", "limits"):
        raise ConnectorError(f"infinity={infinity!r}: expected 'malformed' or 'limits'")


def records_of(found: Any, malformed: Malformed, location: str) -> list[Any]:
    """Return the records that become of one, which may be malformed.

    Raises:
        ConnectorError: It is, and the job is to fail.
    """
    if type(found) is not MalformedRecord:
        return [found]
    error = ConnectorError(
        f"{location}: {found.reason}, in {found.record!r:.400}. Leave the column out with columns=, set "
        f"malformed='skip' or a function, or infinity='limits' for infinite times",
        is_permanent=True,
    )
    return set_aside(malformed, found.record, error, _log)


def set_loaders(connection: Any, infinity: Infinity) -> None:
    """Let a connection read JSON as other sources do, and infinite times as `infinity` says."""
    required("psycopg.types.json", "postgres").set_json_loads(json_value, connection)
    if infinity == "malformed":
        return
    kinds = required("psycopg.types.datetime", "postgres")
    limits: list[tuple[str, Any, Any, Any]] = [
        ("date", kinds.DateLoader, date.min, date.max),
        ("timestamp", kinds.TimestampLoader, datetime.min, datetime.max),
        (
            "timestamptz",
            kinds.TimestamptzLoader,
            datetime.min.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
        ),
    ]
    for name, base, first, last in limits:
        connection.adapters.register_loader(
            name, _with_limits(base, {b"-infinity": first, b"infinity": last})
        )


def _with_limits(base: Any, limits: dict[bytes, Any]) -> type:
    class WithLimits(base):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            found = limits.get(bytes(data))
            return super().load(data) if found is None else found

    return WithLimits


def loaders_of(connection: Any, oids: Sequence[int]) -> list[Callable[[bytes], Any]]:
    """Return what makes values of text, for columns of these types."""
    text = required("psycopg", "postgres").pq.Format.TEXT
    adapters = connection.adapters
    kinds = [adapters.get_loader(oid, text) or adapters.get_loader(0, text) for oid in oids]
    return [kind(oid, connection).load for kind, oid in zip(kinds, oids, strict=True)]


def unreadable() -> tuple[type[Exception], ...]:
    """Return what is raised for a value that can't be loaded."""
    return required("psycopg", "postgres").DataError, ValueError, OverflowError


def fetched(cursor: Any) -> list[tuple[tuple[Any, ...], str]]:
    """Return the rows of a result, each with why values of it are malformed, "" if none is."""
    try:
        return [(row, "") for row in cursor.fetchall()]
    except unreadable():
        return rows_one_by_one(cursor)


def rows_one_by_one(cursor: Any) -> list[tuple[tuple[Any, ...], str]]:
    """Return what `fetched` does, loaded value by value: for a result that has an unreadable one."""
    result = cursor.pgresult
    names = [column.name for column in cursor.description]
    loaders = loaders_of(cursor.connection, [result.ftype(index) for index in range(result.nfields)])
    return [
        row_of([result.get_value(place, index) for index in range(len(names))], names, loaders)
        for place in range(result.ntuples)
    ]


def row_of(
    values: Sequence[bytes | None], names: Sequence[str], loaders: Sequence[Callable[[bytes], Any]]
) -> tuple[tuple[Any, ...], str]:
    """Return values of text, and why some are malformed; those stay text."""
    row, reasons = [], []
    for value, name, load in zip(values, names, loaders, strict=True):
        try:
            row.append(None if value is None else load(value))
        except unreadable() as error:
            text = bytes(value or b"").decode("utf-8", "backslashreplace")
            reasons.append(f"column {name} holds {text!r:.80}, which Python has no value for ({error})")
            row.append(text)
    return tuple(row), "; ".join(reasons)
