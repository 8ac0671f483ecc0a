"""What sources on the driver are told at the end of an engine run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest

import crosscut as cc
from crosscut.contracts.connectors import JSON, Split, SplitReader
from crosscut.contracts.driver_source import DriverSource
from crosscut.contracts.dynamic_source import Discovered
from crosscut.driver.source_notices import SourceNotices
from crosscut.host.calls import start_thread

DEADLINE_S = 60.0


class Stopping(DriverSource[int]):
    """Calls `end` to stop."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def begin(self, *, ends: bool) -> None:
        """Nothing is kept open."""

    def completed(self, known: JSON, unread: Iterable[JSON]) -> None:
        """Nothing is kept."""

    def stop(self) -> Callable[[], None]:
        def end() -> None:
            self._end()

        return end

    def discover(self, known: JSON) -> Discovered:
        return Discovered((), known)

    def reader(self, split: Split, position: JSON) -> SplitReader[int]:
        raise AssertionError("it has no splits")


def notices(*ends: Callable[[], object]) -> SourceNotices:
    flow = cc.Flow("here")
    for number, end in enumerate(ends):
        flow.source(Stopping(end)).named(f"source-{number}").sink(cc.collect()).named(f"out-{number}")
    return SourceNotices("here", flow.compile(1, 128), start_thread)


def late() -> None:
    raise TimeoutError("a broker has not answered")


def test_the_stop_of_each_source_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[int] = []
    notices(late, lambda: stopped.append(1)).close(DEADLINE_S)
    assert stopped == [1]
    (line,) = caplog.messages
    assert "source-0' could not be stopped: TimeoutError: a broker has not answered" in line


def test_a_source_that_hangs_is_named(caplog: pytest.LogCaptureFixture) -> None:
    may_return = threading.Event()
    notices(lambda: None, lambda: may_return.wait(DEADLINE_S)).close(0.2)
    (line,) = caplog.messages
    assert "source-1' has not stopped within 0.2 s" in line
    may_return.set()
