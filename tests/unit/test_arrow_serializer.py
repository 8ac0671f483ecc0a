"""State as values of Arrow types: what comes back is what was given, or it is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest

import crosscut as cc

pyarrow = pytest.importorskip("pyarrow")

MIDDAY = datetime(2020, 1, 1, 12)
EAST = timezone(timedelta(hours=2))
STRUCT = pyarrow.struct({"a": pyarrow.int64()})


def through(kind: Any, value: Any) -> Any:
    serializer = cc.ArrowSerializer(kind)
    return serializer.loads(serializer.dumps(value), serializer.version)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pyarrow.int64(), 1.5, "is no int"),
        (STRUCT, {"a": 1, "b": 2}, "has other fields than a"),
        (STRUCT, {"a": 1.5}, "is no int"),
        (pyarrow.list_(STRUCT), [{"a": 1}, {"c": 1}], "has other fields than a"),
        (pyarrow.map_(pyarrow.string(), pyarrow.int64()), {"a": 1.5}, "is no int"),
        (pyarrow.date32(), MIDDAY, "has a time of the day"),
        (pyarrow.timestamp("s"), MIDDAY.replace(microsecond=7), "is no whole number of s"),
        (pyarrow.timestamp("us"), MIDDAY.replace(tzinfo=EAST), "has a time zone"),
        (pyarrow.timestamp("us", tz="UTC"), MIDDAY, "has no time zone"),
        (pyarrow.time64("us"), time(1, tzinfo=UTC), "has a time zone"),
        (pyarrow.duration("ms"), timedelta(microseconds=1), "is no whole number of ms"),
    ],
)
def test_a_value_that_would_come_back_as_another_one_is_refused(kind: Any, value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        through(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pyarrow.int64(), 1),
        (pyarrow.int64(), None),
        (pyarrow.float64(), 1.5),
        (pyarrow.list_(STRUCT), [{"a": 1}, {"a": None}, None]),
        (pyarrow.date32(), date(2020, 1, 1)),
        (pyarrow.timestamp("us"), MIDDAY.replace(microsecond=7)),
        (pyarrow.timestamp("us", tz="UTC"), MIDDAY.replace(tzinfo=UTC)),
    ],
)
def test_any_other_value_comes_back(kind: Any, value: Any) -> None:
    assert through(kind, value) == value


def test_a_field_that_is_missing_comes_back_as_none() -> None:
    assert through(pyarrow.struct({"a": pyarrow.int64(), "b": pyarrow.int64()}), {"a": 1}) == {
        "a": 1,
        "b": None,
    }
