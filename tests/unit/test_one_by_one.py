"""Calls in one thread, which is there as long as there are calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from crosscut.host.one_by_one import OneByOne


class Threads:
    """Starts no thread: the test does what threads would do."""

    def __init__(self) -> None:
        self.started: list[Callable[[], None]] = []
        self.is_full = False

    def start(self, work: Callable[[], None], name: str) -> None:
        if self.is_full:
            raise OSError("can't start new thread")
        self.started.append(work)

    def run(self) -> None:
        while self.started:
            self.started.pop(0)()


def test_calls_are_made_in_order_by_one_thread_at_a_time() -> None:
    threads, made = Threads(), list[int]()
    calls = OneByOne("calls", threads.start)
    futures = [calls.add(partial(made.append, number)) for number in range(3)]
    assert len(threads.started) == 1
    threads.run()
    assert made == [0, 1, 2]
    assert all(one.done() for one in futures)
    calls.add(partial(made.append, 3))
    threads.run()
    assert made == [0, 1, 2, 3]


def test_an_error_is_that_of_its_call_and_the_next_ones_are_made() -> None:
    threads, made = Threads(), list[int]()

    def leave() -> None:
        raise SystemExit(3)

    calls = OneByOne("calls", threads.start)
    failed = calls.add(leave)
    calls.add(partial(made.append, 1))
    threads.run()
    assert isinstance(failed.exception(), SystemExit)
    assert made == [1]


def test_calls_that_are_added_after_the_end_are_not_made() -> None:
    threads, made = Threads(), list[int]()
    calls = OneByOne("calls", threads.start)
    calls.add(partial(made.append, 1))
    calls.end()
    assert not calls.add(partial(made.append, 2)).done()
    threads.run()
    assert made == [1]


def test_a_thread_that_can_not_be_started_is_tried_again_at_the_next_call() -> None:
    threads, made = Threads(), list[int]()
    calls = OneByOne("calls", threads.start)
    threads.is_full = True
    with pytest.raises(OSError, match="new thread"):
        calls.add(partial(made.append, 1))
    threads.is_full = False
    calls.add(partial(made.append, 2))
    threads.run()
    assert made == [1, 2]
