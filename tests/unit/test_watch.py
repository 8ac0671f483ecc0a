"""What is seen of user code at work, at which time, and what is done about it."""

from __future__ import annotations

import pytest

from crosscut.foundation.batch import Batch
from crosscut.host.watch import LOOK_NS, HeldUpError, Watch
from crosscut.operators.time_budget import TimeBudget

MS = 1_000_000
TIMEOUT_NS = 10_000 * MS
PATIENCE_NS = 50 * MS


class Site:
    """A watch of a slice that began at 0, with a thousand records."""

    def __init__(self) -> None:
        self.watch = Watch(TIMEOUT_NS)
        self.time_budget = TimeBudget()
        self.time_budget.begin(1_000)
        self.watch.begin_slice(0, PATIENCE_NS, self.time_budget)
        self.batch = Batch(list(range(1_000)))
        self.remaining = self.time_budget.through(self.batch)


def test_while_user_code_is_at_work_it_is_looked_at_often_else_when_the_loop_may_be_held_up() -> None:
    site = Site()
    assert site.watch.look(0) == LOOK_NS
    site.watch.end_slice()
    assert site.watch.look(1_000 * MS) == 7_000 * MS - 1_000 * MS
    site.watch.beat(2_000 * MS)
    assert site.watch.look(2_000 * MS) == 7_000 * MS


def test_before_its_patience_is_over_a_slice_goes_on_and_then_its_rest_goes_back() -> None:
    site = Site()
    next(site.remaining)
    site.watch.look(PATIENCE_NS - 1)
    assert not site.time_budget.is_over
    next(site.remaining)
    site.watch.look(PATIENCE_NS)
    assert site.time_budget.is_over
    assert list(site.remaining) == []
    assert site.batch.records == [0, 1]
    assert site.time_budget.rest is not None
    assert site.time_budget.rest.records == list(range(2, 1_000))


def test_each_call_is_measured_and_not_the_batch() -> None:
    """K3: a minute of calls of a second each interrupts nothing, in a loop that can't be ended early."""
    site = Site()
    for second in range(60):
        site.time_budget.step()
        site.watch.look(second * 1_000 * MS + 1)


def test_one_call_that_does_not_return_is_interrupted_before_the_coordinator_misses_the_worker() -> None:
    site = Site()
    next(site.remaining)
    began_ns = 700 * MS
    site.watch.look(began_ns)
    site.watch.look(began_ns + 6_999 * MS)
    with pytest.raises(HeldUpError, match=r"not returned for 7\.0 s.* 0\.7 of heartbeat_timeout=10 s"):
        site.watch.look(began_ns + 7_000 * MS)
    # Whoever catches it and goes on is not interrupted again at once.
    site.watch.look(began_ns + 7_100 * MS)


def test_a_loop_that_is_held_up_by_something_else_is_interrupted_as_well() -> None:
    watch = Watch(TIMEOUT_NS)
    watch.beat(0)
    assert watch.look(6_999 * MS) == LOOK_NS
    with pytest.raises(HeldUpError):
        watch.look(7_000 * MS)


def test_a_new_slice_is_counted_from_its_own_beginning() -> None:
    site = Site()
    site.watch.end_slice()
    site.watch.begin_slice(6_999 * MS, PATIENCE_NS, site.time_budget)
    site.time_budget.begin(1_000)
    site.watch.look(7_001 * MS)
    assert not site.time_budget.is_over


def test_where_heartbeats_are_frequent_so_are_looks() -> None:
    assert Watch(200 * MS).look_ns == 10 * MS
