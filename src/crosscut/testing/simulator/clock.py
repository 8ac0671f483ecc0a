"""Virtual time: one clock for a whole world, and one list of its future events."""

from __future__ import annotations

import heapq
from asyncio import AbstractEventLoop
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """Virtual time in microseconds: actions happen in the order of their times, then of their making.

    Attributes:
        running_loop: The one that asyncio takes for the running one.
        keeps_running_loop: It does so until the turn of another one; else to the end of a turn. To tell
            asyncio takes a call of the operating system.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.running_loop: AbstractEventLoop | None = None
        self.keeps_running_loop = False
        self._count = 0
        self._due: list[tuple[int, int, Action]] = []

    def after(self, delay_us: int, action: Action) -> None:
        """Do `action` once `delay_us` have passed."""
        self._count += 1
        heapq.heappush(self._due, (self.now_us + (delay_us if delay_us > 0 else 0), self._count, action))

    def tick(self) -> bool:
        """Let time pass until the next event, which happens. Return whether there was one."""
        if not self._due:
            return False
        self.now_us, _, action = heapq.heappop(self._due)
        action()
        return True
