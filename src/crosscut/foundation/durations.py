"""Durations as users write them: "200ms", "1s", "1.5m", "1h", or a number of seconds."""

from __future__ import annotations

import math
import re

from crosscut.errors import SettingsError

_UNIT_MS = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "min": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}
_PATTERN = re.compile(r"\s*(-?)\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\s*")

Duration = str | int | float


def duration_ms(value: Duration, name: str, *, at_least_ms: int = 0, is_signed: bool = False) -> float:
    """Return `value` in milliseconds.

    Args:
        value: "200ms", "1s", "1.5m", "1h", "1d", or a number of seconds.
        name: The setting, as the error should call it.
        is_signed: It may be negative, such as "-5s" or -5.

    Raises:
        SettingsError: Not a duration, shorter than `at_least_ms`, or not finite.
    """
    if isinstance(value, bool):
        found_ms = math.nan
    elif isinstance(value, (int, float)):
        found_ms = value * 1_000.0 if abs(value) < 1e12 else math.nan
    else:
        match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
        found_ms = float(match[1] + match[2]) * _UNIT_MS[match[3]] if match else math.nan
    least_ms = -1e15 if is_signed else at_least_ms
    if not least_ms <= found_ms < 1e15:
        least = f", at least {at_least_ms} ms" if at_least_ms else ", at least 0"
        example, limit = ("-5m", "") if is_signed else ("5m", least)
        raise SettingsError(
            f"{name}={value!r:.60}: expected a duration such as '200ms', '1s', {example!r}, or a number of "
            f"seconds{limit}"
        )
    return found_ms
