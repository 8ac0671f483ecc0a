"""An event loop in a thread: for connections that outlive a call, and calls that have one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class LoopThread:
    """An event loop in a thread of its own.

    Args:
        name: Of the thread.
        timeout_s: For each call, from its beginning to its end, however slowly a server answers.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine there, and wait for it.

        Raises:
            TimeoutError: It took too long, and was cancelled.
        """

        async def bounded() -> _Result:
            return await asyncio.wait_for(coroutine, self._timeout_s)

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    def close(self) -> None:
        """End it; nothing may run there."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
