"""Alarms of an event loop that are exact to some microseconds.

The timers of event loops count milliseconds. uvloop rounds what is shorter to nothing, so that a loop which
waits for a fraction of a millisecond spins; asyncio rounds up to a whole one.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    """Calls a function once, at a time. Used by the thread of its loop."""

    def set(self, delay_ns: int) -> None:
        """Call the function after `delay_ns`, in place of any time that was set before."""

    def cancel(self) -> None:
        """Do not call it."""

    def close(self) -> None:
        """Cancel, and give back what it holds. May be repeated."""


NewAlarm = Callable[[Callable[[], None]], Alarm]
"""Makes an alarm of the running loop that calls a function."""


class LoopAlarm:
    """An alarm that is as exact as the timers of the running loop.

    Args:
        unit_ns: Delays are rounded up to it: a loop that rounds them down would be woken too early, again
            and again.
    """

    def __init__(self, ring: Callable[[], None], unit_ns: int = 1) -> None:
        self._ring = ring
        self._unit_ns = unit_ns
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_ns: int) -> None:
        self.cancel()
        delay_s = math.ceil(max(0, delay_ns) / self._unit_ns) * self._unit_ns / 1e9
        self._timer = self._loop.call_later(delay_s, self._ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self.cancel()


class TimerDescriptor:
    """An alarm by a timer of the kernel, which the running loop watches as it watches sockets. Linux only.

    Raises:
        OSError: There is none, or no file descriptor is left.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._descriptor = _checked(
            _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC), "timerfd_create"
        )
        self._time = _TimerSpec()
        self._pointer = ctypes.byref(self._time)
        self._loop.add_reader(self._descriptor, self._rung)

    def set(self, delay_ns: int) -> None:
        # 0 would disarm it.
        value = self._time.value
        value.seconds, value.nanoseconds = divmod(max(1, delay_ns), 1_000_000_000)
        self._settime()

    def cancel(self) -> None:
        value = self._time.value
        if value.seconds or value.nanoseconds:
            value.seconds = value.nanoseconds = 0
            self._settime()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _settime(self) -> None:
        _checked(_libc.timerfd_settime(self._descriptor, 0, self._pointer, None), "timerfd_settime")

    def _rung(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            # It was set anew, or cancelled, after the loop had seen it.
            return
        self._time.value.seconds = self._time.value.nanoseconds = 0
        self._ring()


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


# The calls do not wait, so they keep the interpreter lock: letting it go would invite others to take it.
# Python has these functions only from 3.13 on.
_libc = ctypes.PyDLL(None, use_errno=True)

system_alarm: NewAlarm
if sys.platform == "linux":
    system_alarm = TimerDescriptor
else:

    def system_alarm(ring: Callable[[], None]) -> Alarm:
        """Return an alarm that rings up to a millisecond late."""
        return LoopAlarm(ring, 1_000_000)
