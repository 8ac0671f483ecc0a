"""Calls that may block, in one thread, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from crosscut.host.calls import start_thread

_Call = tuple[Callable[[], None], Future[None]]


class OneByOne:
    """Makes calls in the order in which they are added, in a thread that keeps no process from ending.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        start_thread(self._work, name)

    def add(self, call: Callable[[], None]) -> Future[None]:
        """Have `call` made after those before; any thread may."""
        future: Future[None] = Future()
        self._calls.put((call, future))
        return future

    def end(self) -> None:
        """No other call follows."""
        self._calls.put(None)

    def _work(self) -> None:
        while (found := self._calls.get()) is not None:
            call, future = found
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
                future.set_exception(error)
            else:
                future.set_result(None)
