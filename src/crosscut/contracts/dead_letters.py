"""Dead letters: records and timers for which a function of the user raised, set aside instead of failing the
job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

OnError = Literal["fail", "dead letters"]

DEAD_LETTERS = "dead letters"
"""The side output that they leave by."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record, or a timer, that an operator with `on_error="dead letters"` could not take.

    Attributes:
        record: The record; of a final result, the (key, value) that it would have been made of; None of a
            timer.
        error: What was raised, as "ValueError: invalid literal ..."; of a record that ends its process,
            "ProcessDiedError: SIGSEGV" or "ProcessDiedError: exit status 3".
        operator: uid of the operator.
        key: The key of the record, where it has one, or of the timer.
        timer: The time of the timer that was called, if it was one.
        traceback: Where it was raised, from the user's function on; of bounded length. It makes no two
            letters different.

    Examples:
        >>> import crosscut as cc
        >>> flow = cc.Flow("parsed")
        >>> parsed = flow.source(cc.items(["1", "x"])).map(int, on_error="dead letters")
        >>> reasons = parsed.side_output("dead letters").map(lambda letter: (letter.record, letter.error))
    """

    record: Any
    error: str
    operator: str
    key: Any = None
    timer: int | None = None
    traceback: str = field(default="", compare=False, repr=False)


class SetsAside:
    """Part of a process that writes dead letters itself, in a thread of its own.

    Attributes:
        on_dead_letter: Called with each dead letter and their number in this epoch, by any thread; for the
            status.
    """

    on_dead_letter: Callable[[DeadLetter, int], None] | None = None
