"""Looks at user code while it is at work: ends a slice that takes long, interrupts a call that never ends.

Somebody has to look from outside, since a function that does not return can't. `look` is called by a
signal now and then, in between two steps of whatever runs. It reads no clock: it is told the time.
"""

from __future__ import annotations

from typing import Protocol

from crosscut.operators.time_budget import TimeBudget

LOOK_NS = 100_000_000
"""How often is looked while user code is at work."""

_LOOKS_PER_TIMEOUT = 20

CALL_SHARE = 0.7
"""Share of the heartbeat timeout that one call of user code may take. The last heartbeat may have been a
quarter of it before the call, and the failure has to reach the coordinator before the silence does."""


class HeldUpError(BaseException):
    """User code holds the event loop. Not an Exception, which user code may well catch and go on."""


class Slices(Protocol):
    """Is told of each slice of work of a task."""

    def begin_slice(self, now_ns: int, patience_ns: int, time_budget: TimeBudget) -> None:
        """From now on user code may be at work; what is left of its records after `patience_ns` goes back."""

    def end_slice(self) -> None:
        """No more."""


class Unwatched:
    """Watches nothing: where no signal can interrupt."""

    def begin_slice(self, now_ns: int, patience_ns: int, time_budget: TimeBudget) -> None: ...

    def end_slice(self) -> None: ...


class Watch:
    """Measures each call of user code, and whatever else holds the event loop.

    Args:
        timeout_ns: The heartbeat timeout.
    """

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._limit_ns = int(CALL_SHARE * timeout_ns)
        self.look_ns = min(LOOK_NS, timeout_ns // _LOOKS_PER_TIMEOUT)
        self._time_budget: TimeBudget | None = None
        self._patience_ns = 0
        self._began_ns = 0
        self._progress = (0, 0)
        # When the event loop or user code was last seen to go on.
        self._moved_ns = 0

    def beat(self, now_ns: int) -> None:
        """The event loop goes round."""
        self._moved_ns = now_ns

    def begin_slice(self, now_ns: int, patience_ns: int, time_budget: TimeBudget) -> None:
        """As in `Slices`."""
        self._began_ns = self._moved_ns = now_ns
        self._patience_ns = patience_ns
        self._time_budget = time_budget

    def end_slice(self) -> None:
        """As in `Slices`."""
        self._time_budget = None

    def look(self, now_ns: int) -> int:
        """Look at what is at work; return after how many nanoseconds to look again.

        Raises:
            HeldUpError: It has been at it for too long.
        """
        time_budget = self._time_budget
        if time_budget is not None:
            progress = time_budget.progress
            if progress != self._progress:
                # Another call than when it was looked last. It began since then, at an unknown time.
                self._progress, self._moved_ns = progress, now_ns
            if now_ns - self._began_ns >= self._patience_ns:
                time_budget.stop()
        held_ns = now_ns - self._moved_ns
        if held_ns >= self._limit_ns:
            self._moved_ns = now_ns
            raise HeldUpError(
                f"one call has not returned for {held_ns / 1e9:.1f} s, and nothing else runs in its worker "
                f"meanwhile: it may take {CALL_SHARE:g} of heartbeat_timeout={self._timeout_ns / 1e9:g} s; "
                f"make it return sooner (a request needs a timeout), or raise heartbeat_timeout"
            )
        return self.look_ns if time_budget is not None else max(self.look_ns, self._limit_ns - held_ns)
