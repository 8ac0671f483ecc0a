"""Waiting for the next message in a thread: whoever looks now and then finds it later than it came."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

WAIT_S = 0.02
"""For one call of the library, which nothing ends early: `close` waits for it."""

BETWEEN_S = 0.001
"""Between two wake-ups, at least. Each costs a round of the worker, so that a trickle of single messages
would take all of its time; what comes in between is found together."""


class NextMessage:
    """Takes one message of a client that has nothing now, in a thread, and wakes somebody up for it.

    The client has one reader at a time: either this thread, while `is_waiting`, or whoever has made this.

    Args:
        consumer: The library's client.
        wake: Called by the thread.
    """

    def __init__(self, consumer: Any, wake: Callable[[], None]) -> None:
        self.is_waiting = False
        self._consumer = consumer
        self._wake = wake
        self._found: list[Any] = []
        self._failure: BaseException | None = None
        self._is_closed = False
        self._is_asked = Event()
        self._thread = Thread(target=self._run, name="crosscut-kafka-next", daemon=True)

    def wait(self) -> None:
        """Begin to wait for a message."""
        self.is_waiting = True
        if self._thread.ident is None:
            self._thread.start()
        self._is_asked.set()

    def take(self) -> list[Any]:
        """Return what has been waited for: one message or event at most. Not while `is_waiting`.

        Raises:
            Exception: Of the library.
        """
        if self._failure is not None:
            raise self._failure
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """End the thread, and wait for that: the client may be closed after it."""
        self._is_closed = True
        self._is_asked.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        woken_s = 0.0
        while not self._is_closed:
            self._is_asked.wait()
            self._is_asked.clear()
            try:
                found = self._next()
            except BaseException as error:  # noqa: BLE001 - the last frame of the thread: `take` raises it
                self._failure, found = error, None
            if self._is_closed:
                return
            time.sleep(max(0.0, woken_s + BETWEEN_S - time.monotonic()))
            woken_s = time.monotonic()
            self._found = [] if found is None else [found]
            self.is_waiting = False
            self._wake()

    def _next(self) -> Any:
        """Return the next message or event of the client; None if there is none and `close` was called."""
        found = None
        while found is None and not self._is_closed:
            found = self._consumer.poll(WAIT_S)
        return found
