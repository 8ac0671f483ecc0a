"""The failure of a simulation."""

from __future__ import annotations

from typing import NoReturn


class Violation(AssertionError):
    """Something happened that must never happen. The message begins with the invariant's number."""


noted: list[Violation] = []
"""Every violation since the world began: code in it may catch the exception, as it catches a sink's."""


def ensure(condition: bool, message: str) -> None:
    """Raise Violation unless `condition` holds.

    The message is made each time: where much is asked, `violate` under an `if` costs far less.
    """
    if not condition:
        violate(message)


def violate(message: str) -> NoReturn:
    """Raise Violation."""
    violation = Violation(message)
    noted.append(violation)
    raise violation
