"""Calls of what may block, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

StartThread = Callable[[Callable[[], None], str], None]
"""Runs a function, which never raises, in a new thread of a name, and does not wait for it."""


def start_thread(work: Callable[[], None], name: str) -> None:
    """Run `work` in a thread of this process.

    It is a daemon, so that a call that never returns does not keep the process from ending.
    """
    threading.Thread(target=work, name=name, daemon=True).start()


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Have `loop` call `function` soon, from any thread; a loop that has ended calls nothing."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # It is closed, so what it ran is over.
        return


def name_of(function: Callable[..., object]) -> str:
    """Return what people call `function`, whatever kind of object it is."""
    return getattr(function, "__qualname__", type(function).__qualname__)


class Calls:
    """Calls that are under way.

    Each has a thread of its own: in a pool, calls that hang would keep others waiting, which would then
    be taken for hung themselves (D3). The caller bounds how many there are.

    Args:
        name: Of the threads; what is called stands after it.
    """

    def __init__(self, name: str, start: StartThread = start_thread) -> None:
        self._name = name
        self._start = start
        self._under_way: dict[Future[Any], str] = {}

    @property
    def under_way(self) -> dict[Future[Any], str]:
        """The calls that have not returned, oldest first, and what is called."""
        return dict(self._under_way)

    @property
    def are_under_way(self) -> bool:
        """Whether there are any."""
        return bool(self._under_way)

    def start(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call `function` in a thread, and don't wait for it."""
        future: Future[R] = Future()
        # Who calls: what the function logs says it.
        context = copy_context()

        def call() -> None:
            try:
                result = context.run(function, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - handed on to the waiting thread
                del self._under_way[future]
                future.set_exception(error)
            else:
                del self._under_way[future]
                future.set_result(result)

        # It runs from now on, and can't be cancelled: who waits for it may cease to, the call goes on.
        future.set_running_or_notify_cancel()
        name = self._under_way[future] = name_of(function)
        self._start(call, f"{self._name} {name}")
        return future
