"""Settings of a job, as an argument of a program that starts it."""

from __future__ import annotations

import base64
import pickle
from typing import Any


def as_argument(settings: dict[str, Any]) -> str:
    """Return what `settings_of` makes the settings of again."""
    return base64.b64encode(pickle.dumps(settings)).decode()


def settings_of(argument: str) -> dict[str, Any]:
    """Return the settings that a program was given."""
    found: dict[str, Any] = pickle.loads(base64.b64decode(argument))
    return found
