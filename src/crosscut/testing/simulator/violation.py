"""What a simulation fails with."""

from __future__ import annotations


class Violation(AssertionError):
    """Something happened that must never happen. The message begins with the invariant's number."""


def ensure(condition: bool, message: str) -> None:
    """Raise Violation unless `condition` holds."""
    if not condition:
        raise Violation(message)
