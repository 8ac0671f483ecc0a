"""Days of a time zone, against `zoneinfo` itself: every time is in the period of its local date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.flow.time_zones import zone_offsets
from crosscut.foundation.local_days import DAY_MS, LocalPeriods
from crosscut.foundation.timestamps import TIMESTAMP_MAX, TIMESTAMP_MIN

HOUR_MS = 3_600_000
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour of daylight saving
    "America/Sao_Paulo",  # clocks changed at midnight
    "Pacific/Apia",  # no 30 December 2011
    "Asia/Kathmandu",
)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def periods(zone: str, days: int = 1, offset_ms: int = 0) -> LocalPeriods:
    offsets = zone_offsets(zone)
    assert offsets is not None
    return LocalPeriods(offsets, days, offset_ms)


@pytest.mark.parametrize(
    ("zone", "time", "start", "hours"),
    [
        ("Europe/Berlin", "2026-03-29T12:00+02:00", "2026-03-29T00:00+01:00", 23),
        ("Europe/Berlin", "2026-10-25T02:30+01:00", "2026-10-25T00:00+02:00", 25),
        ("America/New_York", "2026-07-04T23:59-04:00", "2026-07-04T00:00-04:00", 24),
        ("America/Sao_Paulo", "2018-11-04T01:00-02:00", "2018-11-04T01:00-02:00", 23),
        ("Pacific/Apia", "2011-12-29T23:00-10:00", "2011-12-29T00:00-10:00", 24),
        ("Pacific/Apia", "2011-12-31T00:00+14:00", "2011-12-31T00:00+14:00", 24),
        ("Australia/Lord_Howe", "2026-04-05T12:00+10:30", "2026-04-05T00:00+11:00", 24.5),
    ],
)
def test_a_day_is_as_long_as_the_clocks_make_it(zone: str, time: str, start: str, hours: float) -> None:
    found = periods(zone)
    assert found.start_of(ms(time)) == ms(start)
    assert found.end_of(ms(start)) - ms(start) == hours * HOUR_MS


def test_weeks_begin_on_the_day_and_at_the_hour_that_the_offset_names() -> None:
    # 1 January 1970 was a Thursday.
    weeks = periods("Europe/Berlin", 7, 4 * DAY_MS + 6 * HOUR_MS)
    start = weeks.start_of(ms("2026-03-30T05:59+02:00"))
    assert start == ms("2026-03-23T06:00+01:00")
    assert weeks.end_of(start) == ms("2026-03-30T06:00+02:00"), "it has an hour less"


@given(
    st.sampled_from(ZONES),
    st.integers(ms("1900-01-01T00:00+00:00"), ms("2100-01-01T00:00+00:00")),
)
def test_a_time_is_in_the_period_of_its_local_date(zone: str, time: int) -> None:
    found = periods(zone)
    start = found.start_of(time)
    end = found.end_of(start)
    assert start <= time < end
    assert found.start_of(end) == end, "the next one follows without a gap"
    assert found.start_of(end - 1) == start

    def local_date(at: int) -> object:
        return (
            (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)).astimezone(ZoneInfo(zone)).date()
        )

    assert local_date(start) == local_date(time) == local_date(end - 1)
    assert local_date(start - 1) != local_date(time) != local_date(end)


@given(
    st.sampled_from(ZONES),
    st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX),
    st.integers(1, 40),
    st.integers(0, DAY_MS - 1),
)
def test_periods_cover_all_times_without_a_gap(zone: str, time: int, days: int, offset_ms: int) -> None:
    found = periods(zone, days, offset_ms)
    start = found.start_of(time)
    end = found.end_of(start)
    assert start <= time < end
    assert found.start_of(end) == end
    assert found.start_of(start - 1) < start


@pytest.mark.parametrize("zone", ZONES)
def test_offsets_change_at_the_second(zone: str) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for since, ahead in (zone_offsets(zone) or ())[1:]:
        time = epoch + timedelta(milliseconds=since)
        assert time.astimezone(ZoneInfo(zone)).utcoffset() == timedelta(milliseconds=ahead)
        before = (time - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).utcoffset()
        assert before != timedelta(milliseconds=ahead)


@pytest.mark.parametrize("name", ["Europe/Atlantis", "../etc/passwd", "/etc/localtime"])
def test_a_name_that_is_no_time_zone_has_no_offsets(name: str) -> None:
    assert zone_offsets(name) is None
