"""What a worker needs of the process it runs in: signals, the garbage collector, parent and children."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from crosscut.host.children import end_children, tie_children
from crosscut.host.installed_packages import note_packages_beside
from crosscut.host.interpreter_lock import WORKER_SWITCH_US, switching_within
from crosscut.host.watch import Slices, Watch
from crosscut.operators.time_budget import TimeBudget


class Process(Slices, Protocol):
    """The process that a worker runs in."""

    @property
    def pid(self) -> int:
        """Its number, for people."""

    def is_orphaned(self) -> bool:
        """Whether the process that started it is gone."""

    def processor_ns(self) -> int:
        """Return the processor time that it has had, in all of its threads."""

    def watch(self, timeout_s: float | None) -> None:
        """Begin to count anew how long the event loop has been held up; None: count no more."""

    def tidy(self) -> None:
        """The tasks of an epoch have ended: now is the time to look for garbage among what has lived long."""

    def load(self) -> None:
        """Tasks are going to be built, and state to be read: most of what comes now stays."""

    def settle(self) -> None:
        """Take what is alive now for long-lived: looking at it again and again would stop the records."""


_ARMED_PER_TIMEOUT = 10
"""What the event loop does not survive ends the process up to a tenth sooner; `CALL_SHARE` is less."""


def show_crashes() -> None:
    """Have the stack of a crash in native code written to standard error."""
    # If it is enabled already, keep the file that was chosen.
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__, all_threads=False)


class SystemProcess:
    """This process."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._watch: Watch | None = None
        # When the C thread was last told how long it has to wait.
        self._armed_ns = 0
        # Whether the next look is as near as user code at work needs it.
        self._looks_soon = False

    @property
    def pid(self) -> int:
        return os.getpid()

    def is_orphaned(self) -> bool:
        return os.getppid() != self._parent

    def processor_ns(self) -> int:
        return time.process_time_ns()

    def watch(self, timeout_s: float | None) -> None:
        """Begin to count anew; what holds the event loop for too long is ended.

        First a signal interrupts it, Python code or a blocking call, with an exception that names operator
        and record as any other does. What survives that, such as C code that keeps the interpreter lock, is
        shown on standard error and the process ends: a C thread sees to it.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if timeout_s is None:
            self._watch = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            return
        if self._watch is None:
            self._watch = Watch(int(timeout_s * 1e9))
            signal.signal(signal.SIGALRM, self._look)
            self._armed_ns = 0
        now_ns = time.monotonic_ns()
        self._watch.beat(now_ns)
        # Each time ends one thread and starts another, and nothing else runs meanwhile: not at each beat.
        if not self._armed_ns or (now_ns - self._armed_ns) / 1e9 >= timeout_s / _ARMED_PER_TIMEOUT:
            self._armed_ns = now_ns
            faulthandler.dump_traceback_later(timeout_s, exit=True)
        if not self._looks_soon:
            self._look()

    def begin_slice(self, now_ns: int, patience_ns: int, time_budget: TimeBudget) -> None:
        watch = self._watch
        if watch is None:
            return
        watch.begin_slice(now_ns, patience_ns, time_budget)
        if not self._looks_soon:
            # It goes on for as long as there is work: setting the timer for each slice would cost more.
            self._looks_soon = True
            signal.setitimer(signal.ITIMER_REAL, watch.look_ns / 1e9)

    def end_slice(self) -> None:
        if self._watch is not None:
            self._watch.end_slice()

    def _look(self, _: int = 0, __: FrameType | None = None) -> None:
        if self._watch is None:
            return
        self._looks_soon = False
        again_ns = self._watch.look(time.monotonic_ns())
        self._looks_soon = again_ns <= self._watch.look_ns
        signal.setitimer(signal.ITIMER_REAL, again_ns / 1e9)

    def tidy(self) -> None:
        # While others wait for a new worker, say: with millions of keys it takes a tenth of a second.
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def load(self) -> None:
        gc.disable()

    def settle(self) -> None:
        gc.freeze()
        gc.enable()


@contextmanager
def hosting_a_worker() -> Iterator[None]:
    """Make this process fit for a worker, and what it was before at the end; children end with it."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C in the terminal reaches every process of the group: the driver decides what it means.
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Taken by the watch.
        previous[signal.SIGALRM] = signal.getsignal(signal.SIGALRM)
    # The young generation's default of 700 objects is a fraction of one batch.
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    tie_children()
    note_packages_beside()
    try:
        with switching_within(WORKER_SWITCH_US):
            yield
    finally:
        end_children()
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        for number, handler in previous.items():
            signal.signal(number, handler)
        sys.stdout.flush()
