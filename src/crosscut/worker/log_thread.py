"""The thread in which a worker calls the log of its unit.

Calls of a log are few and large, up to some hundred a second, and each is on the way of every record that
leaves. So they do not wait behind parts that are being written, and no thread is started for each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from crosscut.host.calls import StartThread, start_thread

T = TypeVar("T")
Work = Callable[[], None]


class _Lane:
    """What one thread does.

    Attributes:
        is_busy: A call is under way, or has not begun.
    """

    def __init__(self) -> None:
        self.queue: SimpleQueue[Work | None] = SimpleQueue()
        self.is_busy = False


class LogThread:
    """Makes one call after the other in a lasting thread. Its methods are called by one thread.

    A call that is asked for while another one is under way gets a new thread: the caller has given the other
    one up, and that may hang for ever.

    Args:
        name: Of the thread.
        is_lasting: The thread waits for the next call. A virtual thread can't wait: each call has its own.
    """

    def __init__(self, name: str, start: StartThread = start_thread, *, is_lasting: bool = True) -> None:
        self._name = name
        self._start = start
        self._is_lasting = is_lasting
        self._lane: _Lane | None = None
        self._lock = threading.Lock()
        self._under_way = 0
        self._last: Work | None = None

    def call(self, function: Callable[[], T], answer: Callable[[T], None]) -> None:
        """Call `function`, which never raises, and then `answer` with what it returns; both in the thread."""
        with self._lock:
            self._under_way += 1
            lane = self._lane
            is_free = lane is not None and not lane.is_busy
        if lane is None or not is_free:
            self._end_lane()
            lane = _Lane()
            if self._is_lasting:
                self._lane = lane
                self._start(partial(_serve, lane), self._name)
        lane.is_busy = True
        work = partial(self._call, lane, function, answer)
        if self._is_lasting:
            lane.queue.put(work)
        else:
            self._start(work, self._name)

    def close(self, last: Work) -> None:
        """Call `last` after all calls have returned, however long that takes; no other call may follow.

        It is called at once if none is under way, else in the thread of the call that returns last.
        """
        self._end_lane()
        with self._lock:
            is_idle = not self._under_way
            self._last = None if is_idle else last
        if is_idle:
            last()

    def _end_lane(self) -> None:
        if self._lane is not None:
            self._lane.queue.put(None)
            self._lane = None

    def _call(self, lane: _Lane, function: Callable[[], T], answer: Callable[[T], None]) -> None:
        result = function()
        with self._lock:
            # Before the answer: the next call follows at once.
            lane.is_busy = False
            self._under_way -= 1
            last = None if self._under_way else self._last
        answer(result)
        if last is not None:
            last()


def _serve(lane: _Lane) -> None:
    while (work := lane.queue.get()) is not None:
        work()
