"""Sharing the interpreter lock: an event loop that is always busy must let threads have it.

A thread that wants the lock asks for it once the switch interval has passed without a change of hands. Each
poll of the loop gives the lock up and takes it back at once, which starts that interval anew. So with rounds
shorter than the interval the thread waits without bound, once for each call that lets the lock go.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WORKER_SWITCH_US = 50
"""In the processes of workers, which are ours."""

DRIVER_SWITCH_US = 500
"""In the driver, which is the user's program: its own threads then take turns ten times as often as by
default."""

STRETCH_NS = 250_000
"""A loop that has held the lock for so long has let a waiting thread ask for it: that is more than twice the
interval and the 50 us by which Linux may end a wait late."""

PAUSE_EVERY_NS = 250_000
"""Without such a stretch, a loop whose threads are at work pauses as often. A call in a thread lets the lock
go dozens of times, a request of HTTP 25 times, and each time it waits for the next pause: with one a
millisecond ten requests took 390 ms beside rounds of 20 us, and 26 ms alone; with four, 57 ms."""

_PAUSE_S = 0.00005

_guard = threading.Lock()
_sharers: list[int] = []
_before_us = 0
_set_us = 0


@contextmanager
def switching_within(interval_us: int) -> Iterator[None]:
    """Let threads ask for the interpreter lock after `interval_us`, in this whole process.

    The shortest interval of all that are under way holds, and an interval that is shorter already stays. At
    the end the process has the interval that it had before, unless the program has set another one meanwhile.
    """
    global _before_us
    with _guard:
        if not _sharers or _switch_us() != _set_us:
            _before_us = _switch_us()
        _sharers.append(interval_us)
        _set_shortest()
    try:
        yield
    finally:
        with _guard:
            _sharers.remove(interval_us)
            if _switch_us() == _set_us:
                _set_shortest()


def _set_shortest() -> None:
    global _set_us
    sys.setswitchinterval(min((_before_us, *_sharers)) / 1e6)
    _set_us = _switch_us()


def _switch_us() -> int:
    return round(sys.getswitchinterval() * 1e6)


def let_threads_run() -> None:
    """Stay away from the interpreter lock for long enough that a waiting thread takes it."""
    time.sleep(_PAUSE_S)


def hold_on() -> None:
    """Stand in for `let_threads_run` where threads are virtual."""


class Sharing:
    """Sees to it that threads get the lock beside a loop whose rounds are too short for them to ask for it.

    Args:
        pause: `let_threads_run`, or what stands in for it.
    """

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        # When threads last had their chance.
        self._shared_ns = 0

    def held(self, from_ns: int, to_ns: int) -> None:
        """The loop has run from one time to the other without a poll."""
        if to_ns - from_ns >= STRETCH_NS:
            self._shared_ns = to_ns

    def slept(self, now_ns: int) -> None:
        """The loop has nothing to do, and waits."""
        self._shared_ns = now_ns

    def round_ended(self, now_ns: int, *, are_at_work: bool) -> None:
        """The loop will go on at once; threads are at work or not."""
        if are_at_work and now_ns - self._shared_ns >= PAUSE_EVERY_NS:
            self._shared_ns = now_ns
            self._pause()
