"""What another thread reads on the loop of a driver, which may end meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Answer = TypeVar("Answer")

LOOK_EVERY_S = 0.1
"""How often a waiting thread looks whether the loop still runs."""


def read_on(
    loop: asyncio.AbstractEventLoop, read: Callable[[], Answer], timeout_s: float | None = None
) -> Answer:
    """Return what `read` returns on `loop`; or here, once the loop has been closed: nothing changes then.

    A loop that ends drops what it was given last without a word, so the waiting thread looks again.

    Args:
        timeout_s: None: no limit.

    Raises:
        TimeoutError: The loop has had something else to do for so long.
    """
    found: Future[Answer] = Future()

    def look() -> None:
        try:
            found.set_result(read())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.set_exception(error)

    try:
        loop.call_soon_threadsafe(look)
    except RuntimeError:
        return read()
    ends_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not wait([found], LOOK_EVERY_S).done:
        if loop.is_closed():
            return read()
        if ends_s is not None and time.monotonic() >= ends_s:
            raise TimeoutError(f"the driver has not answered within {timeout_s:g} s")
    return found.result()
