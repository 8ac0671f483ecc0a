"""The processing time of one task."""

from __future__ import annotations


class ProcessingTime:
    """A clock that goes on where the snapshot was, and never goes back.

    A task that goes on where the clock is slow, or was set back, is ahead of it from then on: with a clock
    that stood still instead, timers would wait for as long as the clocks differ.

    Args:
        floor_ms: What the restored snapshot says; 0: there is none.
    """

    def __init__(self, floor_ms: int) -> None:
        self._floor_ms = floor_ms
        self._ahead_ms: int | None = None
        self.now_ms = floor_ms

    def tell(self, clock_ms: int) -> int:
        """Return what time it is, now that the machine's clock says `clock_ms`."""
        if self._ahead_ms is None:
            self._ahead_ms = max(0, self._floor_ms - clock_ms)
        self.now_ms = max(self.now_ms, clock_ms + self._ahead_ms)
        return self.now_ms
