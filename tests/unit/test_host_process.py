"""When a worker's process looks for garbage, and when it does not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from crosscut.host.process import SystemProcess, hosting_a_worker


class Cycle:
    """What only the garbage collector gives back."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def process() -> Iterator[SystemProcess]:
    with hosting_a_worker():
        yield SystemProcess()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_an_epoch_has_left_is_given_back_when_its_tasks_have_ended(process: SystemProcess) -> None:
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


def test_while_state_is_read_nothing_is_looked_for_and_then_again(process: SystemProcess) -> None:
    process.load()
    assert not gc.isenabled()
    process.settle()
    assert gc.isenabled()
    process.load()
    # The end of the worker, while the fixture ends: Spark uses the process again.
