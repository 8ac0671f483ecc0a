"""Durations as users write them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from crosscut.errors import SettingsError
from crosscut.foundation.durations import duration_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0s", 0),
        ("200ms", 200),
        ("1s", 1_000),
        ("1.5m", 90_000),
        ("2min", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        (" 5 s ", 5_000),
        ("0.25s", 250),
        (0, 0),
        (2, 2_000),
        (0.5, 500),
    ],
)
def test_a_duration_is_read_as_milliseconds(text: Any, expected_ms: float) -> None:
    assert duration_ms(text, "pause") == expected_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("-5s", -5_000), (" - 1.5m ", -90_000), ("8h", 28_800_000), (-0.5, -500), (2, 2_000)],
)
def test_a_signed_duration_may_be_negative(text: Any, expected_ms: float) -> None:
    assert duration_ms(text, "offset", is_signed=True) == expected_ms


@pytest.mark.parametrize(
    "value", ["", "-", "--5s", "-5", "5s-", "-" + "9" * 20 + "s", -math.inf, math.nan, -1e12, False]
)
def test_a_signed_duration_is_refused_as_it_was_given(value: Any) -> None:
    with pytest.raises(SettingsError) as raised:
        duration_ms(value, "offset", is_signed=True)
    assert str(raised.value) == (
        f"offset={value!r}: expected a duration such as '200ms', '1s', '-5m', or a number of seconds"
    )


NOT_TEXTS = ["", "s", "1", "1 hour", "-1s", "1e3s", "1s2s", "1,5s", "9" * 400 + "s", "1s\n1"]
NOT_NUMBERS = [-1, -0.1, math.inf, math.nan, 1e12, True, False, None, [1], b"1s"]


@pytest.mark.parametrize("value", [*NOT_TEXTS, *NOT_NUMBERS])
def test_anything_else_is_refused_with_the_name_of_the_setting(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"^pause=.*: expected a duration such as '200ms'"):
        duration_ms(value, "pause")
