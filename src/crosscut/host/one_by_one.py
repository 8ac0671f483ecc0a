"""Calls that may block, one after the other, in a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from crosscut.host.calls import StartThread, start_thread

_Call = tuple[Callable[[], None], Future[None]]


class OneByOne:
    """Makes calls in the order in which they are added, in a thread that lasts as long as there are any.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str, start: StartThread = start_thread) -> None:
        self._name = name
        self._start = start
        self._lock = threading.Lock()
        self._calls: deque[_Call] = deque()
        self._is_working = False
        self._is_ended = False

    def add(self, call: Callable[[], None]) -> Future[None]:
        """Have `call` made after those before; any thread may. After `end` it is not made."""
        future: Future[None] = Future()
        with self._lock:
            if self._is_ended:
                return future
            self._calls.append((call, future))
            if self._is_working:
                return future
            self._is_working = True
        try:
            self._start(self._work, self._name)
        except BaseException:
            # The next call tries again.
            self._is_working = False
            raise
        return future

    def end(self) -> None:
        """No other call follows."""
        with self._lock:
            self._is_ended = True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._is_working = False
                    return
                call, future = self._calls.popleft()
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - handed on to the waiting thread
                future.set_exception(error)
            else:
                future.set_result(None)
