"""State as values of Arrow types: what comes back is what was given, or it is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

import crosscut as cc

pyarrow = pytest.importorskip("pyarrow")

MIDDAY = datetime(2020, 1, 1, 12)
EAST = timezone(timedelta(hours=2))
STRUCT = pyarrow.struct({"a": pyarrow.int64()})


class Nanoseconds(datetime):
    """As a timestamp of pandas."""

    nanosecond = 7


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
        (pyarrow.list_(pyarrow.string()), "abc", "is no list"),
        (pyarrow.list_(pyarrow.int64()), b"abc", "is no list"),
        (pyarrow.list_(pyarrow.int64()), 5, "is no list"),
        (pyarrow.list_view(pyarrow.int64()), [1.5], "is no int"),
        (pyarrow.large_list_view(pyarrow.int64()), [1.5], "is no int"),
        (pyarrow.string(), b"x", "is no str"),
        (pyarrow.large_string(), b"x", "is no str"),
        (pyarrow.binary(), "x", "is no bytes"),
        (pyarrow.binary(2), "ab", "is no bytes"),
        (pyarrow.float64(), True, "is a bool"),
        (pyarrow.list_(pyarrow.float32()), [True], "is a bool"),
        (STRUCT, (1.5,), "is no int"),
        (STRUCT, [("a", 1.5)], "is no int"),
        (pyarrow.timestamp("us"), 1_775_001.5, "is no datetime"),
        (pyarrow.timestamp("us", tz="UTC"), 0.9, "is no datetime"),
        (pyarrow.timestamp("s"), Decimal("1.9"), "is no datetime"),
        (pyarrow.timestamp("us"), Nanoseconds(2020, 1, 1), "is no whole number of us"),
        (pyarrow.list_(pyarrow.timestamp("us")), [MIDDAY, 0.9], "is no datetime"),
        (pyarrow.struct({"a": pyarrow.timestamp("ms")}), {"a": 0.9}, "is no datetime"),
        (pyarrow.map_(pyarrow.string(), pyarrow.duration("us")), {"a": 1.5}, "is no timedelta"),
        (pyarrow.time32("s"), 1.5, "is no time"),
        (pyarrow.time64("us"), Decimal("1.5"), "is no time"),
        (pyarrow.time32("s"), 86_400, "is no time of a day"),
        (pyarrow.time32("ms"), -1, "is no time of a day"),
        (pyarrow.time64("us"), -1, "is no time of a day"),
        (pyarrow.time64("us"), 86_400_000_000, "is no time of a day"),
        (pyarrow.time64("ns"), 86_400_000_000_000, "is no time of a day"),
        (pyarrow.duration("us"), 1.5, "is no timedelta"),
        (pyarrow.duration("us"), Decimal("1.5"), "is no timedelta"),
        (pyarrow.float32(), 1e300, "beyond the range"),
        (pyarrow.float32(), -3.4028235677973366e38, "beyond the range"),
        (pyarrow.float16(), 70_000.0, "beyond the range"),
        (pyarrow.float16(), 2**40, "beyond the range"),
        (pyarrow.float16(), 2_049, "would be rounded"),
        (pyarrow.list_(pyarrow.float32()), [1.0, 1e300], "beyond the range"),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.int64()), 1.5, "is no int"),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), b"x", "is no str"),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.float32()), 1e300, "beyond the range"),
        (pyarrow.run_end_encoded(pyarrow.int32(), pyarrow.int64()), 1.5, "is no int"),
        (pyarrow.opaque(pyarrow.int64(), "a", "b"), 1.5, "is no int"),
        (pyarrow.json_(), b"x", "is no str"),
        (pyarrow.bool8(), 3, "is neither 0 nor 1"),
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
        (pyarrow.list_view(pyarrow.int64()), [1, None]),
        (pyarrow.string(), "x"),
        (pyarrow.binary(), b"x"),
        (pyarrow.list_(STRUCT), [{"a": 1}, {"a": None}, None]),
        (pyarrow.date32(), date(2020, 1, 1)),
        (pyarrow.timestamp("us"), MIDDAY.replace(microsecond=7)),
        (pyarrow.timestamp("us", tz="UTC"), MIDDAY.replace(tzinfo=UTC)),
        (pyarrow.time64("us"), time(23, 59, 59, 999_999)),
        (pyarrow.duration("us"), timedelta(days=-1, microseconds=1)),
        (pyarrow.float32(), 3.4028234663852886e38),
        (pyarrow.float32(), float("-inf")),
        (pyarrow.float16(), 65_504.0),
        (pyarrow.float16(), 2_048),
        (pyarrow.bool8(), 1),
    ],
)
def test_any_other_value_comes_back(kind: Any, value: Any) -> None:
    assert through(kind, value) == value


class Index:
    """As an integer of numpy."""

    def __index__(self) -> int:
        return 7


def test_values_of_other_types_that_mean_the_same_are_taken() -> None:
    assert through(pyarrow.int64(), Index()) == 7
    assert through(pyarrow.timestamp("ms"), 5) == datetime(1970, 1, 1, microsecond=5_000)
    assert through(pyarrow.timestamp("us", tz="UTC"), Index()) == datetime(
        1970, 1, 1, microsecond=7, tzinfo=UTC
    )
    assert through(pyarrow.time32("ms"), 5) == time(microsecond=5_000)
    assert through(pyarrow.time64("us"), 86_399_999_999) == time(23, 59, 59, 999_999)
    assert through(pyarrow.duration("s"), -5) == timedelta(seconds=-5)
    assert through(pyarrow.list_(pyarrow.int64()), (1, 2)) == [1, 2]


def test_a_field_that_is_missing_comes_back_as_none() -> None:
    assert through(pyarrow.struct({"a": pyarrow.int64(), "b": pyarrow.int64()}), {"a": 1}) == {
        "a": 1,
        "b": None,
    }
