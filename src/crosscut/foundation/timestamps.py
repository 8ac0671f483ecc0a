"""Event time: whole milliseconds since 1970 in UTC; before that, they are negative."""

from __future__ import annotations

from calendar import timegm
from reprlib import repr as shortened
from typing import Any, Protocol

TIMESTAMP_MIN = -62_135_596_800_000
"""The first millisecond of the year 1, with which the times of Python begin."""

TIMESTAMP_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999. What operators say after the end of input has this timestamp."""

BEFORE_ALL_TIME = -(2**63)
"""Stands for a watermark where none is known."""

END_OF_TIME = 2**63 - 1
"""The watermark after the end of input: nothing will come at all."""


class Moment(Protocol):
    """What of a `datetime` counts here. Operators have no clock, and so don't import the module."""

    @property
    def tzinfo(self) -> Any: ...

    @property
    def microsecond(self) -> int: ...

    def utcoffset(self) -> Any: ...

    def utctimetuple(self) -> Any: ...


def as_timestamp(value: Any) -> int:
    """Return the time that `value` names, in milliseconds since 1970 in UTC.

    Args:
        value: Such a number, negative before 1970, or a `datetime` with a time zone.

    Raises:
        TypeError: It is something else.
        ValueError: It is a time before the year 1 or after 9999, or a `datetime` without a time zone.
    """
    if type(value) is int:
        if TIMESTAMP_MIN <= value <= TIMESTAMP_MAX:
            return value
        raise ValueError(f"{value} is no timestamp: {_EXPECTED}{_hint(value)}")
    if hasattr(value, "utctimetuple") and hasattr(value, "microsecond"):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(
                f"{value!r} has no time zone, so it is not known when that was: make it with one, as in "
                f"datetime(..., tzinfo=timezone.utc)"
            )
        try:
            moment = value.utctimetuple()
        except OverflowError:
            raise ValueError(f"{value!r} is before the year 1 or after 9999 in UTC: {_EXPECTED}") from None
        return as_timestamp(timegm(moment) * 1_000 + value.microsecond // 1_000)
    if value is None:
        raise TypeError(f"there is no timestamp: {_EXPECTED}; leave records without one out before this")
    raise TypeError(f"{shortened(value)} of type {type(value).__name__} is no timestamp: {_EXPECTED}")


def as_timer_time(value: Any) -> int:
    """Return the time of a timer that `value` names: as `as_timestamp`, but any time before the end of time.

    Raises:
        TypeError, ValueError: As there.
    """
    return value if type(value) is int and TIMESTAMP_MAX < value < END_OF_TIME else as_timestamp(value)


_EXPECTED = "expected whole milliseconds since 1970 in UTC (an int), or a datetime with a time zone"


def _hint(value: int) -> str:
    if value < 0:
        return "; this is before the year 1: is it in microseconds or nanoseconds?"
    return "; this is after the year 9999: is it in microseconds or nanoseconds?"
