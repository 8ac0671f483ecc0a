"""Waiting for the next message in a thread: whoever looks now and then finds it later than it came.

A client serves one call at a time: another thread waits until the one that polls is through, or longer, for
the next poll comes right after it. So the client is either the thread's, while that waits, or the task's;
what the task wants of it meanwhile, the thread does between two polls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

WAIT_S = 0.02
"""For one poll, which nothing ends early: `close` waits for it, and so does what is to be done."""

BETWEEN_S = 0.001
"""Between two wake-ups, at least. Each costs a round of the worker, so that a trickle of single messages
would take all of its time; what comes in between is found together."""


class NextMessage:
    """Takes one message of a client that has nothing now, in a thread, and wakes somebody up for it.

    Args:
        consumer: The library's client.
        wake: Called by the thread.

    Attributes:
        is_waiting: The client is the thread's.
    """

    def __init__(self, consumer: Any, wake: Callable[[], None]) -> None:
        self.is_waiting = False
        self._consumer = consumer
        self._wake = wake
        self._found: list[Any] = []
        self._to_do: deque[Callable[[], object]] = deque()
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
        self._do_all()
        if self._failure is not None:
            raise self._failure
        found, self._found = self._found, []
        return found

    def do(self, call: Callable[[], object]) -> None:
        """Make a call of the client, now or soon, after those before it.

        Raises:
            Exception: Of the library. If it is made later, `take` raises it.
        """
        self._to_do.append(call)
        if not self.is_waiting:
            # Else by the thread; if that has just ceased to wait, with the next call, or by `take`.
            self._do_all()

    def close(self) -> None:
        """End the thread, wait for that, and make the last calls: the client may be closed after it."""
        self._is_closed = True
        self._is_asked.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._do_all()

    def _do_all(self) -> None:
        while self._to_do:
            self._to_do.popleft()()

    def _run(self) -> None:
        woken_s = 0.0
        while not self._is_closed:
            self._is_asked.wait()
            self._is_asked.clear()
            found = None
            try:
                while found is None and not self._is_closed:
                    self._do_all()
                    found = self._consumer.poll(WAIT_S)
            except BaseException as error:  # noqa: BLE001 - the last frame of the thread: `take` raises it
                self._failure = error
            if self._is_closed:
                return
            time.sleep(max(0.0, woken_s + BETWEEN_S - time.monotonic()))
            woken_s = time.monotonic()
            self._found = [] if found is None else [found]
            self.is_waiting = False
            self._wake()
