"""Tumbling windows as a user asks for them: of any size in UTC, or of days in a time zone."""

from __future__ import annotations

from typing import overload

from crosscut.contracts.windows import LocalDays, Tumbling, offset_in, whole_ms
from crosscut.errors import FlowError
from crosscut.flow.time_zones import zone_offsets
from crosscut.foundation.durations import Duration
from crosscut.foundation.local_days import DAY_MS


@overload
def tumbling(size: Duration, *, offset: Duration = 0) -> Tumbling: ...


@overload
def tumbling(size: Duration, *, offset: Duration = 0, time_zone: str) -> LocalDays: ...


def tumbling(size: Duration, *, offset: Duration = 0, time_zone: str | None = None) -> Tumbling | LocalDays:
    """Return windows that follow each other without a gap; every record is in one of them.

    Args:
        size: A duration of at least a millisecond. Windows begin at the multiples of it, since 1970 in UTC.
        offset: They begin so much later: `tumbling("1d", offset="6h")` is a day from 6:00 to 6:00 UTC.
            If it is negative, as in "-8h", they begin earlier. Less than `size` either way.
        time_zone: Such as "Europe/Berlin": windows are days there, from midnight to midnight or from the
            `offset` after it. Where clocks change, a day has 23 or 25 hours. `size` is whole days then.
            The offsets from UTC are those that the machine knows that starts the job, from 1900 to 2200.

    Raises:
        FlowError: `size` or `offset` is no such duration, or there is no such time zone.

    Examples:
        >>> import crosscut as cc
        >>> days_in_new_york = cc.tumbling("1d", time_zone="America/New_York")
        >>> weeks_from_monday = cc.tumbling("7d", offset="4d", time_zone="America/New_York")
        >>> days_from_six_utc = cc.tumbling("1d", offset="6h")
    """
    size_ms = whole_ms(size, "tumbling: size", at_least=1)
    offset_ms = offset_in(offset, "tumbling", size_ms, "size")
    if time_zone is None:
        return Tumbling(size_ms, offset_ms)
    if size_ms % DAY_MS:
        raise FlowError(
            f"tumbling: size={size!r} with time_zone={time_zone!r}: expected whole days, as in '1d'; shorter "
            f"windows need no time zone but an offset"
        )
    offsets = zone_offsets(time_zone) if isinstance(time_zone, str) and time_zone else None
    if offsets is None:
        raise FlowError(
            f"tumbling: time_zone={time_zone!r}: expected the name of a time zone, such as 'Europe/Berlin'; "
            f"on a machine without time zones: pip install tzdata"
        )
    return LocalDays(size_ms // DAY_MS, time_zone, offset_ms, offsets)
