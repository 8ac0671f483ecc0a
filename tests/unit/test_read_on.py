"""What is asked of the loop of a driver, which may end meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest

from crosscut.driver.reading_on import read_on

DEADLINE_S = 100.0


@pytest.fixture
def loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def test_a_loop_that_runs_answers_itself(loop: asyncio.AbstractEventLoop) -> None:
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert read_on(loop, threading.get_ident) == thread.ident
        with pytest.raises(ValueError, match="no"):
            read_on(loop, lambda: int("no"))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()


def test_nobody_waits_for_a_loop_that_has_been_closed(loop: asyncio.AbstractEventLoop) -> None:
    loop.close()
    assert read_on(loop, lambda: 7) == 7


def test_who_asks_a_loop_that_ends_just_then_is_answered_at_once(loop: asyncio.AbstractEventLoop) -> None:
    """It stands already, and what it is given now it never does."""
    closing = threading.Timer(0.2, loop.close)
    closing.start()
    # Longer than any test may take.
    assert read_on(loop, lambda: 7, 100 * DEADLINE_S) == 7
    closing.join()


def test_a_loop_that_has_something_else_to_do_is_not_waited_for_without_end(
    loop: asyncio.AbstractEventLoop,
) -> None:
    with pytest.raises(TimeoutError, match=r"has not answered within 0\.1 s"):
        read_on(loop, lambda: 7, 0.1)
    loop.close()
