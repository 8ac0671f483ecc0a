"""Virtual time, and connections in it: FIFO, slow, broken, half-open."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

Action = Callable[[], None]


class Clock:
    """Virtual time in microseconds: actions happen in the order of their times, then of their making."""

    def __init__(self) -> None:
        self.now_us = 0
        self._count = 0
        self._due: list[tuple[int, int, Action]] = []

    def after(self, delay_us: int, action: Action) -> None:
        """Do `action` once `delay_us` have passed."""
        self._count += 1
        heapq.heappush(self._due, (self.now_us + max(delay_us, 0), self._count, action))

    def tick(self) -> bool:
        """Do what is due next, and let time pass until then. Return whether there was anything."""
        if not self._due:
            return False
        self.now_us, _, action = heapq.heappop(self._due)
        action()
        return True


class Process:
    """A process: it can be killed, and paused and resumed (SIGSTOP, SIGCONT)."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock = clock
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self._backlog: deque[Action] = deque()

    def after(self, delay_us: int, action: Action) -> None:
        """Do `action` after a while, if the process is alive; later, if it is paused then."""
        self.clock.after(delay_us, lambda: self.do(action))

    def do(self, action: Action) -> None:
        """Do `action` now, or when the process goes on, or never."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._backlog.append(action)
        else:
            action()

    def pause(self) -> None:
        """Stop where it is."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on: first everything that has become due meanwhile."""
        self.is_paused = False
        backlog, self._backlog = self._backlog, deque()
        for action in backlog:
            self.after(0, action)


class Pipe:
    """One direction of a connection.

    Args:
        latency_us: Makes the latency of one message.
        deliver: Called with each message, in the order of sending.
        closed: Called once, behind everything that was not lost.
    """

    def __init__(
        self,
        clock: Clock,
        latency_us: Callable[[], int],
        deliver: Callable[[Any], None],
        closed: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._latency_us = latency_us
        self._deliver = deliver
        self._closed = closed
        self._free_us = 0
        self._is_closed = False
        self._is_over = False
        self.slow_us = 0
        self.is_silent = False
        """Half-open: what is sent is never seen, and nobody is told."""

    def send(self, message: Any) -> None:
        """Send, behind everything that was sent before."""
        if self._is_closed or self.is_silent:
            return
        self._clock.after(self._arrival_us(), lambda: None if self._is_over else self._deliver(message))

    def close(self, reason: str, *, loses: bool = False) -> None:
        """Close this direction; `loses`: what is on its way never arrives."""
        if self._is_closed:
            return
        self._is_closed = True
        if loses:
            self._is_over = True
        if not self.is_silent:
            self._clock.after(self._arrival_us(), lambda: self._closed(reason))

    def break_silence(self, reason: str) -> None:
        """The operating system has noticed that the other end is gone."""
        self.is_silent = False
        self.close(reason, loses=True)

    def _arrival_us(self) -> int:
        self._free_us = max(self._free_us, self._clock.now_us + self._latency_us() + self.slow_us)
        return self._free_us - self._clock.now_us
