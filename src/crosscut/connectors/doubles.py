"""Decimals as doubles, which hold them exactly or not."""

from __future__ import annotations

from decimal import Decimal


def double_of(value: Decimal) -> float | None:
    """Return the double that is `value`, None if there is none.

    A double is its binary fraction, and also the shortest decimal that is read as it: both come back.
    """
    try:
        found = float(value)
    except (OverflowError, ValueError):
        return None
    return found if Decimal(found) == value or Decimal(repr(found)) == value else None
