"""What is made for the viewers of a job, and how often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

FRESH_S = 0.4
"""So long an answer is good for all who ask."""
SHARE_MAX = 0.1
"""Of one processor, for answers of one kind: those of a job with thousands of tasks are good for longer."""

Made = TypeVar("Made")


def pause_s(least_s: float, spent_s: float, share_max: float = SHARE_MAX) -> float:
    """Return how long not to do again what has taken so much processor time."""
    return max(least_s, spent_s / share_max)


class Shared(Generic[Made]):
    """What is made once for all who ask within a moment: the driver has other things to do.

    What takes long to make, as of a job with thousands of tasks, is made less often.

    Args:
        make: Returns it as it is now.
        clock_s: Says how old it is.
        spent_s: The processor time of the thread that asks.
    """

    def __init__(
        self,
        make: Callable[[], Made],
        clock_s: Callable[[], float] = time.monotonic,
        spent_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._make = make
        self._clock_s = clock_s
        self._spent_s = spent_s
        self._lock = threading.Lock()
        self._made: Made | None = None
        self._good_until_s = 0.0

    def __call__(self) -> Made:
        """Return it as it was a moment ago at most. Who comes while it is made waits for it, and gets it."""
        with self._lock:
            if self._made is None or self._clock_s() >= self._good_until_s:
                began_s = self._spent_s()
                self._made = self._make()
                fresh_s = pause_s(FRESH_S, self._spent_s() - began_s)
                self._good_until_s = self._clock_s() + fresh_s
            return self._made
