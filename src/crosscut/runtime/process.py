"""What a worker needs of the process it runs in: signals, the garbage collector, parent and children."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from crosscut.runtime.children import end_children, tie_children

_SOFT_SHARE = 0.9
"""Share of the heartbeat timeout after which what holds the loop is interrupted: the failure has to
reach the coordinator before the silence does."""


class HeldUpError(BaseException):
    """User code holds the event loop. Not an Exception, which user code may well catch and go on."""


class Process(Protocol):
    """The process that a worker runs in."""

    @property
    def pid(self) -> int:
        """Its number, for people."""

    def is_orphaned(self) -> bool:
        """Whether the process that started it is gone."""

    def watch(self, timeout_s: float | None) -> None:
        """Begin to count anew how long the event loop has been held up; None: count no more."""

    def settle(self) -> None:
        """Take what is alive now for long-lived: looking at it again and again would stop the records."""


class SystemProcess:
    """This process."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    @property
    def pid(self) -> int:
        return os.getpid()

    def is_orphaned(self) -> bool:
        return os.getppid() != self._parent

    def watch(self, timeout_s: float | None) -> None:
        """Begin to count anew; what holds the event loop for too long is ended.

        First a signal interrupts it, Python code or a blocking call, with an exception that names operator
        and record as any other does. What survives that, such as C code that keeps the interpreter lock, is
        shown on standard error and the process ends: a C thread sees to it.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if timeout_s is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            return
        signal.setitimer(signal.ITIMER_REAL, _SOFT_SHARE * timeout_s)
        faulthandler.dump_traceback_later(timeout_s, exit=True)

    def settle(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@contextmanager
def hosting_a_worker(heartbeat_timeout_ms: int) -> Iterator[None]:
    """Make this process fit for a worker, and what it was before at the end; children end with it."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C in the terminal reaches every process of the group: the driver decides what it means.
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, _held_up(heartbeat_timeout_ms))
    # The young generation's default of 700 objects is a fraction of one batch.
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    tie_children()
    try:
        yield
    finally:
        end_children()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        for number, handler in previous.items():
            signal.signal(number, handler)
        sys.stdout.flush()


def _held_up(heartbeat_timeout_ms: int) -> Callable[[int, FrameType | None], None]:
    def interrupt(_: int, __: FrameType | None) -> None:
        timeout_s = heartbeat_timeout_ms / 1_000
        raise HeldUpError(
            f"it held its worker up for almost heartbeat_timeout={timeout_s:g} s: nothing else runs there "
            f"meanwhile; make it return sooner, or raise heartbeat_timeout"
        )

    return interrupt
