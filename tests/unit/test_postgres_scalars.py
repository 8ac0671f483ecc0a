"""Which values a type of Postgres takes without a change, and as which text (P10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from crosscut.connectors.postgres.scalars import ColumnType
from crosscut.connectors.postgres.text import texter

TYPES = {
    "boolean": "B",
    "date": "D",
    "time without time zone": "D",
    "timestamp without time zone": "D",
    "timestamp with time zone": "D",
    "inet": "I",
    "text": "S",
    "ltree": "U",
    "mood": "E",
    "json": "U",
    "jsonb": "U",
}
TIMESTAMP, TIMESTAMPTZ, TIME = (
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
)
WHOLE = Decimal.from_float(0.1)
AWAY = timezone(timedelta(hours=-5))


class Index:
    """As an integer of numpy."""

    def __repr__(self) -> str:
        return type(self).__name__

    def __index__(self) -> int:
        return 7


class NoIndex(Index):
    """As a bool of numpy."""

    def __index__(self) -> int:
        raise TypeError("no integer")


@dataclass
class Place:
    x: int
    _y: str


def column(kind: str) -> ColumnType:
    element = kind.removesuffix("[]")
    category = TYPES.get(element, "N")
    return ColumnType("x[]", element, category) if kind.endswith("[]") else ColumnType(kind, "", category)


def written(kind: str, value: Any, zone: str | None = None) -> str:
    return texter(column(kind), ZoneInfo(zone) if zone else None)(value)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("double precision", "1.0E-5", "0.000010"),
        ("double precision", ".5", "0.5"),
        ("double precision", "5.", "5"),
        ("double precision", "0.10000000000000001", "0.10000000000000001"),
        ("double precision", WHOLE, str(WHOLE)),
        ("double precision", Decimal("0.1"), "0.1"),
        ("double precision", Index(), "7"),
        ("real", "16777216", "16777216"),
        ("real", "1e30", "1E+30"),
        ("real", Decimal("0.1"), "0.1"),
        ("numeric", "1e-05", "0.00001"),
        ("numeric", "1E+5", "1E+5"),
        ("numeric", ".5", "0.5"),
        ("numeric", Index(), "7"),
        ("bigint", Index(), "7"),
        ("boolean", "True", "True"),
        ("boolean", "False", "False"),
        ("date", datetime(2020, 1, 1), "2020-01-01"),
        (TIME, "24:00:00", "24:00:00"),
        (TIME, "05:06", "05:06"),
        (TIMESTAMP, "2020-01-01", "2020-01-01"),
        (TIMESTAMP, "2020-01-01T05:06", "2020-01-01T05:06"),
        (TIMESTAMP, "2020-01-01T05:06:07Z", "2020-01-01T05:06:07"),
        (TIMESTAMP, "2020-01-01 05:06:07.5+00:00", "2020-01-01T05:06:07.500000"),
        (TIMESTAMP, "2020-01-01 05:06:07.123456000", "2020-01-01 05:06:07.123456000"),
        (TIMESTAMP, "2020-01-01 05:06:07.1000000Z", "2020-01-01T05:06:07.100000"),
        (TIMESTAMPTZ, "2020-01-01 05:06:07+0000", "2020-01-01 05:06:07+0000"),
        (TIMESTAMPTZ, "2020-01-01 05:06:07-0500", "2020-01-01 05:06:07-0500"),
        (TIMESTAMPTZ, "2020-01-01T05:06Z", "2020-01-01T05:06Z"),
        (TIMESTAMPTZ, "2020-01-01T05:06:07.123456000Z", "2020-01-01T05:06:07.123456000Z"),
        ("jsonb", Place(1, "a"), '{"x":1,"_y":"a"}'),
        ("json", [Place(1, "a")], '[{"x":1,"_y":"a"}]'),
    ],
    ids=str,
)
def test_a_value_that_stays_what_it_is_is_taken(kind: str, value: Any, text: str) -> None:
    assert written(kind, value) == text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("double precision", "1.00000000000000000001"),
        ("double precision", "00123"),
        ("double precision", "."),
        ("double precision", "1e99999999999999999999"),
        ("double precision", NoIndex()),
        ("numeric", "1e99999999999999999999"),
        ("real", "16777217"),
        ("real", Decimal(16_777_217)),
        ("real", 16_777_217),
        ("real", Decimal("1e300")),
        ("bigint", NoIndex()),
        ("boolean", "yes"),
        ("date", datetime(2020, 1, 1, 0, 0, 1)),
        ("date", datetime(2020, 1, 1, tzinfo=UTC)),
        (TIME, "24:00:01"),
        (TIMESTAMP, "2020-01-01 24:00:00"),
        (TIMESTAMP, "2020-01-01 05:06:07+05"),
        (TIMESTAMP, "2020-01-01 05:06:07.1234567"),
        (TIMESTAMP, "2020-01-01 05:06:07.1234567Z"),
        (TIMESTAMPTZ, "2020-01-01T05:06"),
        (TIMESTAMPTZ, "2020-01-01 05:06:07.123456700Z"),
    ],
    ids=str,
)
def test_any_other_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r".{8}"):
        written(kind, value)


def test_a_text_with_an_offset_is_written_as_a_datetime_with_one() -> None:
    moment = datetime(2020, 1, 1, 5, 6, 7, tzinfo=AWAY)
    for value in (moment, moment.isoformat()):
        assert written(TIMESTAMP, value, "Europe/Berlin") == "2020-01-01T11:06:07"
        with pytest.raises(ValueError, match="give time_zone= to the sink"):
            written(TIMESTAMP, value)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("mood[]", "{happy,sad}", "{happy,sad}"),
        ("ltree[]", "{a.b,NULL}", "{a.b,NULL}"),
        ("text[]", '{"a b",c}', '{"a b",c}'),
        ("numeric[]", "{0.01,NULL}", '{"0.01",NULL}'),
        ("integer[]", "{{1,2},{3,4}}", '{{"1","2"},{"3","4"}}'),
        ("date[]", "{2020-01-01}", '{"2020-01-01"}'),
        (f"{TIMESTAMP}[]", '{"2020-01-01 05:06:07"}', '{"2020-01-01 05:06:07"}'),
        ("integer[]", "{}", "{}"),
        ("jsonb[]", [Place(1, "a")], '{"{\\\\"x\\\\":1,\\\\"_y\\\\":\\\\"a\\\\"}"}'),
    ],
    ids=str,
)
def test_an_array_is_taken_as_postgres_writes_it(kind: str, value: Any, text: str) -> None:
    """psycopg reads arrays of types that it does not know as text."""
    assert written(kind, value) == text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer[]", "{007}"),
        ("integer[]", "{1"),
        ("integer[]", "{1}}"),
        ("integer[]", "{1 2}"),
        ("integer[]", "{1,,2}"),
        ("integer[]", "1"),
        ("integer[]", "{" * 100_000),
        ("integer[]", "[0:1]={1,2}"),
        (f"{TIMESTAMP}[]", '{"2020-01-01 05:06:07+05"}'),
        ("text[]", "{a\0}"),
        ("mood[]", 5),
    ],
    ids=lambda one: str(one)[:20],
)
def test_any_other_array_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r".{8}"):
        written(kind, value)


def test_money_is_a_number_with_two_digits_after_the_point() -> None:
    money = texter(ColumnType("money", "", "N", has_point=True), None)
    for value, text in (
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+2"), "100"),
        (-7, "-7"),
        (1.5, "1.5"),
        ("1.50", "1.50"),
        ("$1,234.50", "$1,234.50"),
    ):
        assert money(value) == text
    for value in (Decimal("1.005"), 1.005, "1.005", "$1.005", True):
        with pytest.raises(ValueError, match=r"more than 2 digits|is of type bool"):
            money(value)
    for value in (Decimal("1e30"), Decimal("NaN")):
        with pytest.raises(ValueError, match="beyond the range of money"):
            money(value)
    elsewhere = texter(ColumnType("money", "", "N"), None)
    assert elsewhere("1,50 €") == "1,50 €"
    with pytest.raises(ValueError, match="is of type Decimal"):
        elsewhere(Decimal("1.50"))


def test_a_refusal_says_what_to_do() -> None:
    for kind, value, advice in (
        ("text", 5, "convert it in row= of the sink"),
        ("bigint", "007", "give a number, or the text"),
        ("double precision", 2**53 + 1, "round it in row= of the sink, or make the column numeric"),
        ("bigint", Decimal("1.5"), "round it in row= of the sink, or make the column numeric"),
    ):
        with pytest.raises(ValueError, match=advice):
            written(kind, value)


def test_a_whole_day_in_any_column_is_written_as_it_is() -> None:
    day = date(2020, 1, 1)
    assert written("date", day) == written(TIMESTAMP, day) == "2020-01-01"
    assert written(TIME, time(5, 6)) == "05:06:00"
