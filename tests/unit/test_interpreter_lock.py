"""Who gets the interpreter lock, and when: switch intervals, and pauses of a loop of short rounds."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from crosscut.host.interpreter_lock import PAUSE_EVERY_NS, STRETCH_NS, Sharing, switching_within

DEFAULT_S = 0.005


def interval_us() -> int:
    return round(sys.getswitchinterval() * 1e6)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(DEFAULT_S)
    yield
    sys.setswitchinterval(before_s)


def test_the_interval_is_short_as_long_as_somebody_needs_it_and_then_as_before() -> None:
    with switching_within(500):
        assert interval_us() == 500
        with switching_within(50):
            assert interval_us() == 50
            with switching_within(500):
                assert interval_us() == 50
        assert interval_us() == 500
    assert interval_us() == 5_000


def test_jobs_may_end_in_any_order() -> None:
    first, second = switching_within(50), switching_within(500)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert interval_us() == 500
    second.__exit__(None, None, None)
    assert interval_us() == 5_000


def test_it_is_restored_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), switching_within(50):
        raise ZeroDivisionError
    assert interval_us() == 5_000


def test_what_the_program_sets_meanwhile_stays() -> None:
    with switching_within(500):
        sys.setswitchinterval(0.002)
    assert interval_us() == 2_000


def test_what_the_program_sets_between_two_jobs_is_what_it_gets_back() -> None:
    with switching_within(500):
        sys.setswitchinterval(0.002)
        with switching_within(50):
            assert interval_us() == 50
    assert interval_us() == 2_000


def test_an_interval_that_is_shorter_already_stays() -> None:
    sys.setswitchinterval(0.00001)
    with switching_within(50):
        assert interval_us() == 10
    assert interval_us() == 10


class Loop:
    """A loop that is always busy, beside threads that are at work unless a test says otherwise."""

    def __init__(self, *, are_at_work: bool = True) -> None:
        self.are_at_work = are_at_work
        self.now_ns = 10**9
        self.paused_at: list[int] = []
        self.sharing = Sharing(lambda: self.paused_at.append(self.now_ns))

    def round(self, ns: int) -> None:
        began_ns, self.now_ns = self.now_ns, self.now_ns + ns
        self.sharing.held(began_ns, self.now_ns)
        self.sharing.round_ended(self.now_ns, are_at_work=self.are_at_work)


def test_a_loop_of_short_rounds_pauses_by_the_clock() -> None:
    loop = Loop()
    loop.sharing.slept(loop.now_ns)
    for _ in range(1_000):
        loop.round(STRETCH_NS // 10)
    apart = {later - earlier for earlier, later in zip(loop.paused_at, loop.paused_at[1:], strict=False)}
    assert loop.paused_at
    assert apart == {PAUSE_EVERY_NS}


def test_a_loop_with_a_long_stretch_now_and_then_need_not_pause() -> None:
    loop = Loop()
    loop.sharing.slept(loop.now_ns)
    for number in range(1_000):
        loop.round(STRETCH_NS if number % 10 == 0 else STRETCH_NS // 10)
    assert loop.paused_at == []


def test_a_loop_that_sleeps_now_and_then_need_not_pause() -> None:
    loop = Loop()
    for _ in range(1_000):
        loop.sharing.slept(loop.now_ns)
        loop.round(STRETCH_NS // 10)
    assert loop.paused_at == []


def test_a_loop_without_threads_at_work_need_not_pause() -> None:
    loop = Loop(are_at_work=False)
    for _ in range(1_000):
        loop.round(STRETCH_NS // 10)
    assert loop.paused_at == []
