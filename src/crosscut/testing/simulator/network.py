"""Virtual time, and connections in it: FIFO, slow, clogged, broken, half-open."""

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


class Killed(BaseException):
    """The process dies where it is: nothing of what it is doing comes to its end."""


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
            return
        try:
            action()
        except Killed as killed:
            self.die(str(killed))

    def die(self, reason: str, *, loses: bool = False) -> None:
        """The process is gone; `loses`: and with it what it had just sent."""
        self.is_alive = False

    def pause(self) -> None:
        """Stop where it is."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on: first everything that has become due meanwhile."""
        self.is_paused = False
        backlog, self._backlog = self._backlog, deque()
        for action in backlog:
            self.after(0, action)


class Line:
    """The way from one process to another: whatever connections there are go along it."""

    def __init__(self) -> None:
        self._is_clogged = False
        self._waiting: deque[Action] = deque()

    def carry(self, action: Action) -> None:
        """Do `action`, behind everything that has to wait."""
        if self._is_clogged:
            self._waiting.append(action)
        else:
            action()

    def clog(self) -> None:
        """Carry nothing for now."""
        self._is_clogged = True

    def unclog(self) -> None:
        """Carry again, first what had to wait: TCP has kept it and sends it again."""
        self._is_clogged = False
        waiting, self._waiting = self._waiting, deque()
        for action in waiting:
            action()


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
        line: Line,
        latency_us: Callable[[], int],
        deliver: Callable[[Any], None],
        closed: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._line = line
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
        self._line.carry(
            lambda: self._arrive(lambda: None if self._is_over else self._deliver(message)),
        )

    def close(self, reason: str, *, loses: bool = False) -> None:
        """Close this direction; `loses`: what is on its way never arrives."""
        if self._is_closed:
            return
        self._is_closed = True
        if loses:
            self._is_over = True
        if not self.is_silent:
            self._line.carry(lambda: self._arrive(lambda: self._closed(reason)))

    def break_silence(self, reason: str) -> None:
        """The operating system has noticed that the other end is gone."""
        self.is_silent = False
        self.close(reason, loses=True)

    def _arrive(self, action: Action) -> None:
        self._free_us = max(self._free_us, self._clock.now_us + self._latency_us() + self.slow_us)
        self._clock.after(self._free_us - self._clock.now_us, action)
