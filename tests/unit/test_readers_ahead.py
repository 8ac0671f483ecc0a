"""Readers with a thread of their own: nobody has to ask them again and again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors import ahead
from crosscut.connectors.ahead import ReaderAhead
from crosscut.errors import ConnectorError

DEADLINE_S = 100.0
LONG_MS = 100


class Numbers(ReaderAhead[int]):
    """One after the other, each when it is let go."""

    def __init__(self, count: int, *, fails: bool = False) -> None:
        super().__init__(0)
        self.goes_on = threading.Semaphore(0)
        self._count = count
        self._fails = fails

    async def fill(self) -> None:
        for number in range(self._count):
            await asyncio.get_running_loop().run_in_executor(None, self._may_go_on)
            await self.put(number, number + 1)
            if number % 3 == 0:
                # More of it at once: nobody is woken up for each.
                await self.move(number + 1)
        if self._fails:
            raise ConnectorError("it can't be read any more")

    def _may_go_on(self) -> None:
        assert self.goes_on.acquire(timeout=DEADLINE_S)


def read(reader: Numbers, woken: threading.Event) -> list[Any]:
    """Read to the end, and only when there is a reason to."""
    found: list[Any] = []
    while True:
        woken.clear()
        match reader.read(10):
            case cc.EndOfSplit():
                return found
            case cc.Wait(delay_ms):
                assert delay_ms >= LONG_MS, "nobody needs to look every few milliseconds"
                reader.goes_on.release()
                assert woken.wait(DEADLINE_S), f"nobody was woken up after {found}"
            case records:
                found += records


@pytest.mark.parametrize("count", [0, 1, 50])
def test_what_comes_wakes_the_task_up_and_so_does_the_end(count: int) -> None:
    reader, woken = Numbers(count), threading.Event()
    reader.wake_by(woken.set)
    assert read(reader, woken) == list(range(count))
    assert reader.position == count


def test_a_failure_wakes_the_task_up() -> None:
    reader, woken = Numbers(2, fails=True), threading.Event()
    reader.wake_by(woken.set)
    with pytest.raises(ConnectorError, match="can't be read any more"):
        read(reader, woken)
    assert reader.position == 2


class Failing(ReaderAhead[int]):
    """Gives one record, and fails in its own way."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(0)
        self._error = error

    async def fill(self) -> None:
        await self.put(7, 1)
        raise self._error


def read_all(reader: ReaderAhead[int], woken: threading.Event, found: list[Any]) -> None:
    while True:
        woken.clear()
        some = reader.read(10)
        if isinstance(some, cc.EndOfSplit):
            return
        if isinstance(some, list):
            found += some
        else:
            assert woken.wait(DEADLINE_S), "it waits for ever"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), KeyError("a")])
def test_whatever_ends_the_thread_is_told_and_is_no_end_of_the_split(error: BaseException) -> None:
    reader, woken = Failing(error), threading.Event()
    reader.wake_by(woken.set)
    found: list[Any] = []
    with pytest.raises(ConnectorError, match=type(error).__name__):
        read_all(reader, woken, found)
    assert found == [7]


def test_a_thread_that_gets_no_event_loop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop(main: Any) -> None:
        main.close()
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio, "run", no_loop)
    reader, woken = Numbers(1), threading.Event()
    reader.wake_by(woken.set)
    with pytest.raises(ConnectorError, match="too many open files"):
        read_all(reader, woken, [])


def test_where_nobody_can_be_woken_up_a_reader_is_asked_again_soon() -> None:
    reader = Numbers(1)
    found = reader.read(10)
    assert isinstance(found, cc.Wait)
    assert found.delay_ms < LONG_MS
    reader.goes_on.release()
    reader.close()


def test_a_task_is_woken_up_for_many_records_together() -> None:
    count, wakes = 300, 0
    came = threading.Event()
    taken: list[int] = []

    class Many(ReaderAhead[int]):
        async def fill(self) -> None:
            for number in range(count):
                await self.put(number, number + 1)

    def wake() -> None:
        nonlocal wakes
        wakes += 1
        came.set()

    reader = Many(0)
    reader.wake_by(wake)
    ended: Callable[[Any], bool] = lambda one: isinstance(one, cc.EndOfSplit)  # noqa: E731
    while not ended(found := reader.read(1_000)):
        if isinstance(found, list):
            taken += found
        else:
            assert came.wait(DEADLINE_S)
            came.clear()
    assert taken == list(range(count))
    assert wakes < count


class Large(ReaderAhead[bytes]):
    """Puts as many records as there is room for; `reached` says how many."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(0)
        self.reached = 0
        self._sizes = sizes

    async def fill(self) -> None:
        for number, size in enumerate(self._sizes):
            await self.put(bytes(size), number + 1, size)
            self.reached = number + 1


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """C26: few large records, one of which is larger than all the room there is."""
    monkeypatch.setattr(ahead, "BUFFERED_BYTES_MAX", 1_000)
    monkeypatch.setattr(ahead, "_FULL_S", 0.0001)
    sizes = [400, 400, 300, 5_000, 1, *[600] * 20]
    reader, found = Large(sizes), 0
    while True:
        match reader.read(1):
            case cc.EndOfSplit():
                break
            case cc.Wait():
                continue
            case records:
                found += len(records)
        waiting = sizes[found : reader.reached]
        assert len(waiting) <= 1 or sum(waiting) <= 1_000, waiting
    assert found == len(sizes)
    reader.close()
