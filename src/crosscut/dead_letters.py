"""Dead letters: records for which a function of the user raised, set aside instead of failing the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

OnError = Literal["fail", "dead letters"]

DEAD_LETTERS = "dead letters"
"""The side output that they leave by."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that an operator with `on_error="dead letters"` could not take.

    Attributes:
        record: The record; of a final result, the (key, value) that it would have been made of.
        error: What was raised, as "ValueError: invalid literal ...".
        operator: uid of the operator.
        key: The record's key, where it has one.
        traceback: Where it was raised, from the user's function on; of bounded length. It makes no two
            letters different.
    """

    record: Any
    error: str
    operator: str
    key: Any = None
    traceback: str = field(default="", compare=False, repr=False)
