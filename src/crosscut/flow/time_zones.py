"""The time zones of this machine, as tables that go to the workers: so all have the same, of one version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crosscut.foundation.local_days import Offsets

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_DAY, _MS = timedelta(days=1), timedelta(milliseconds=1)


@lru_cache(maxsize=32)
def zone_offsets(name: str) -> Offsets | None:
    """Return the offsets of a time zone such as "Europe/Berlin", from 1900 to 2200; None: it is unknown."""
    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None
    day, ahead = _FIRST, _ahead(_FIRST, zone)
    found = [(day, ahead)]
    while day < _LAST:
        day += _DAY
        if (now := _ahead(day, zone)) != ahead:
            found.append((_change(day - _DAY, day, zone), now))
            ahead = now
    return tuple(((since - _EPOCH) // _MS, offset // _MS) for since, offset in found)


def _ahead(time: datetime, zone: tzinfo) -> timedelta:
    return time.astimezone(zone).utcoffset() or timedelta()


def _change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return when, to the second, the offset changes that is another one at `after`."""
    new = _ahead(after, zone)
    while after - before > timedelta(seconds=1):
        between = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if _ahead(between, zone) == new:
            after = between
        else:
            before = between
    return after
