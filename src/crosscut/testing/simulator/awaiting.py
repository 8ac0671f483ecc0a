"""What a function of `map_async` returns, at once: time is skipped where it only sleeps."""

from __future__ import annotations

import asyncio
import selectors
from asyncio import events
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from crosscut.foundation.callables import is_async
from crosscut.operators.async_map import retry_delay_ms


class _SkippingSelector(selectors.DefaultSelector):
    """Waits for nothing but what comes of itself.

    Attributes:
        skipped_s: What it should have waited.
    """

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        found = super().select(0)
        if not found:
            self.skipped_s += timeout
        return found


class _SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock runs ahead while it has nothing to do."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped_s


def result_of(function: Callable[[Any], Any], record: Any, timeout_ms: float, retries: int) -> Any:
    """Return what `function(record)` returns, a coroutine or not, called as often as `map_async` calls it.

    Raises:
        TimeoutError: The last coroutine takes longer than `timeout_ms`.
        Exception: The last call raises it.
    """
    if not is_async(function):
        for _ in range(retries):
            with suppress(Exception):
                return function(record)
        return function(record)
    # The caller may itself be called by a virtual loop.
    running = events._get_running_loop()
    events._set_running_loop(None)
    loop = _SkippingLoop()
    try:
        return loop.run_until_complete(_awaited(function, record, timeout_ms, retries))
    finally:
        loop.close()
        events._set_running_loop(running)


async def _awaited(function: Callable[[Any], Any], record: Any, timeout_ms: float, retries: int) -> Any:
    for asked in range(1, retries + 1):
        with suppress(Exception):
            return await asyncio.wait_for(function(record), timeout_ms / 1_000)
        # What fails now may be well by then.
        await asyncio.sleep(retry_delay_ms(asked) / 1_000)
    return await asyncio.wait_for(function(record), timeout_ms / 1_000)
