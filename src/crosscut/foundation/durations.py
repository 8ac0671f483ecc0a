"""Durations as users write them: "200ms", "1s", "1.5m", "1h", or a number of seconds."""

from __future__ import annotations

import math
import re

from crosscut.errors import SettingsError

_UNIT_MS = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "min": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\s*")

Duration = str | int | float


def duration_ms(value: Duration, name: str, *, at_least_ms: int = 0) -> float:
    """Return `value` in milliseconds.

    Args:
        value: "200ms", "1s", "1.5m", "1h", "1d", or a number of seconds.
        name: The setting, as the error should call it.

    Raises:
        SettingsError: Not a duration, shorter than `at_least_ms`, or not finite.
    """
    least = f"{at_least_ms} ms" if at_least_ms else "0"
    expected = f"expected a duration such as '200ms', '1s', '5m', or a number of seconds, at least {least}"
    if isinstance(value, bool):
        raise SettingsError(f"{name}={value!r}: {expected}")
    if isinstance(value, (int, float)):
        found_ms = value * 1_000.0 if 0 <= value < 1e12 else math.inf
    else:
        match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
        found_ms = float(match[1]) * _UNIT_MS[match[2]] if match else math.inf
    if not at_least_ms <= found_ms < 1e15:
        raise SettingsError(f"{name}={value!r:.60}: {expected}")
    return found_ms
