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
    assert through(pyarrow.list_(pyarrow.int64()), (1, 2)) == [1, 2]


def test_a_field_that_is_missing_comes_back_as_none() -> None:
    assert through(pyarrow.struct({"a": pyarrow.int64(), "b": pyarrow.int64()}), {"a": 1}) == {
        "a": 1,
        "b": None,
    }
