"""When a worker looks for garbage, and when not: in processes of their own, since it ends its children."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from crosscut.host.process import SystemProcess, hosting_a_worker


class Cycle:
    """What only the garbage collector gives back."""

    def __init__(self) -> None:
        self.itself = self


def what_an_epoch_has_left_is_given_back_when_its_tasks_have_ended(process: SystemProcess) -> None:
    left = Cycle()
    seen = weakref.ref(left)
    process.load()
    process.settle()
    del left
    gc.collect()
    assert seen() is not None, "it was taken for long-lived"
    process.tidy()
    assert seen() is None
    assert gc.get_freeze_count() > 0, "what is alive is not looked at again"


def while_state_is_read_nothing_is_looked_for_and_then_again(process: SystemProcess) -> None:
    process.load()
    assert not gc.isenabled()
    process.settle()
    assert gc.isenabled()
    process.load()
    # The end of the worker comes now: Spark uses the process again.


def hosted(rule: Callable[[SystemProcess], None]) -> None:
    with hosting_a_worker():
        rule(SystemProcess())
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    "rule",
    [
        what_an_epoch_has_left_is_given_back_when_its_tasks_have_ended,
        while_state_is_read_nothing_is_looked_for_and_then_again,
    ],
)
def test_a_worker_looks_for_garbage_where_nobody_waits(rule: Callable[[SystemProcess], None]) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
        own.submit(hosted, rule).result()
