"""`Job.on_event`: who is told of what, and what a listener can't do to a job."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from crosscut.events import CheckpointFailed, JobEvent
from crosscut.foundation.ids import Epoch
from crosscut.monitoring.listeners import KEPT_MAX, Listeners

DEADLINE_S = 100.0


def event(number: int) -> CheckpointFailed:
    return CheckpointFailed(job="a job", at_ms=number, epoch=Epoch(1), reason="")


def close(listeners: Listeners) -> None:
    listeners.close(DEADLINE_S)


def test_every_listener_is_told_of_everything_in_order_whenever_it_came() -> None:
    listeners, early, late = Listeners("a job"), [], []
    listeners.add(early.append)
    for number in range(100):
        listeners.notify(event(number))
    listeners.add(late.append)
    listeners.notify(event(100))
    close(listeners)
    assert early == late == [event(number) for number in range(101)]


def test_a_listener_that_comes_after_the_end_is_told_as_well() -> None:
    listeners, told = Listeners("a job"), threading.Event()
    listeners.notify(event(1))
    close(listeners)
    listeners.add(lambda one: told.set())
    assert told.wait(DEADLINE_S)
    close(listeners)


def test_one_that_raises_is_reported_once_and_told_of_all_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    listeners, told = Listeners("a job"), []

    def raises(one: JobEvent) -> None:
        told.append(one)
        raise ValueError("no")

    with caplog.at_level(logging.WARNING, "crosscut.job"):
        listeners.add(raises)
        others: list[JobEvent] = []
        listeners.add(others.append)
        for number in range(3):
            listeners.notify(event(number))
        close(listeners)
    assert told == others == [event(0), event(1), event(2)]
    (record,) = caplog.records
    assert "job 'a job': a listener has raised at CheckpointFailed" in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_nobody_waits_for_a_listener_that_hangs_and_what_it_misses_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners, told, hangs, goes_on = Listeners("a job"), [], threading.Event(), threading.Event()

    def hanging(one: Any) -> None:
        told.append(one.at_ms)
        hangs.set()
        assert goes_on.wait(DEADLINE_S)

    listeners.add(hanging)
    listeners.notify(event(0))
    assert hangs.wait(DEADLINE_S)
    for number in range(1, 2 * KEPT_MAX):
        listeners.notify(event(number))
    with caplog.at_level(logging.WARNING, "crosscut.job"):
        listeners.close(0.0)
        goes_on.set()
        close(listeners)
    assert told == [0, *range(KEPT_MAX, 2 * KEPT_MAX)]
    said = [one.getMessage() for one in caplog.records]
    assert said == [
        "job 'a job': a listener has not returned 0 s after the end of the job",
        f"job 'a job': a listener is slow: {KEPT_MAX - 1} events were dropped",
    ]


def test_a_listener_may_wait_for_the_end_itself() -> None:
    """As one does that calls job.stop() when something has failed."""
    listeners, returned = Listeners("a job"), threading.Event()

    def stops(one: JobEvent) -> None:
        listeners.close(DEADLINE_S)
        returned.set()

    listeners.add(stops)
    listeners.notify(event(1))
    assert returned.wait(DEADLINE_S)


def test_one_that_exits_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    listeners, others = Listeners("a job"), list[JobEvent]()

    def exits(one: JobEvent) -> None:
        raise SystemExit(1)

    with caplog.at_level(logging.WARNING, "crosscut.job"):
        listeners.add(exits)
        listeners.add(others.append)
        listeners.notify(event(0))
        listeners.notify(event(1))
        close(listeners)
    assert others == [event(0), event(1)]
    assert [one.getMessage()[:37] for one in caplog.records] == ["job 'a job': a listener has raised at"]
