"""What time it is: the machine's clocks, or those of a virtual world."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two clocks. May be asked from any thread."""

    def monotonic_ns(self) -> int:
        """Return a reading that never goes back; only differences mean anything."""

    def now(self) -> datetime:
        """Return the date and time, as people are told; nothing is decided by it."""


class SystemClock:
    """The clocks of this machine."""

    # Read several times for each batch: no call of ours in between.
    monotonic_ns = staticmethod(time.monotonic_ns)

    def now(self) -> datetime:
        return datetime.now(UTC)
