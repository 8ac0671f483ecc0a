"""Warns of sinks that do not return what they have committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from crosscut.host.calls import call_on
from crosscut.monitoring.job_log_lines import LOGGER

SLOW_LOOK_S = 5.0


@contextmanager
def warned_if_slow(loop: asyncio.AbstractEventLoop, uid: str) -> Iterator[None]:
    """Warn on `loop` if the block, which runs in a thread, takes longer than `SLOW_LOOK_S`.

    If the sink never answers, the start fails in the end; this tells which sink it was.
    """
    timers: list[asyncio.TimerHandle] = []

    def begin() -> None:
        timers.append(loop.call_later(SLOW_LOOK_S, warn, uid))

    def end() -> None:
        for timer in timers:
            timer.cancel()

    call_on(loop, begin)
    try:
        yield
    finally:
        call_on(loop, end)


def warn(uid: str) -> None:
    """Warn of the sink `uid`."""
    LOGGER.warning("sink %r has not reported for %g s what it has committed", uid, SLOW_LOOK_S)
