"""A chain whose slice is ended early: nothing is lost, doubled or overtaken, and snapshots wait."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.graph.specs import SideOutput
from crosscut.operators.combining import CombinedCount
from crosscut.operators.keyed import Aggregate, Count
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import Filter, FlatMap, KeyBy, Map
from crosscut.operators.time_budget import TimeBudget
from crosscut.state.keyed import KeyedState
from crosscut.task.chain import Chain


def _nobody(batch: Batch, side: SideOutput) -> None:
    raise AssertionError(f"these operators say nothing aside: {side}")


class Site:
    """A chain and what came out of it; its user code can end the slice, as a signal may at any moment."""

    def __init__(self, *operators: Operator) -> None:
        self.out: list[Any] = []
        self.time_budget = TimeBudget()
        self.chain = Chain(operators, lambda batch: self.out.extend(batch.records), _nobody)
        self.chain.follow(self.time_budget)

    def process(self, records: list[Any], keys: list[Any] | None = None) -> Batch | None:
        self.chain.begin(1_000)
        return self.chain.process(Batch(records, keys))

    def go_on(self) -> None:
        self.chain.begin(1_000)
        self.chain.go_on()


def stopping_at(site: Callable[[], Site], records: set[Any], function: Callable[[Any], Any]) -> Any:
    def stop(record: Any) -> Any:
        if record in records:
            site().time_budget.stop()
        return function(record)

    return stop


def test_what_the_first_operator_has_not_taken_goes_back_and_what_it_made_waits_for_the_next_one() -> None:
    site = Site(Map("m", stopping_at(lambda: site, {3}, lambda n: n * 10)), Map("next", lambda n: n + 1))
    rest = site.process([1, 2, 3, 4, 5])
    assert rest is not None
    assert rest.records == [4, 5]
    assert site.chain.is_halfway
    assert site.out == []
    site.go_on()
    assert site.out == [11, 21, 31]
    assert not site.chain.is_halfway


def test_what_a_later_operator_has_not_taken_waits_in_the_chain_behind_what_it_has_made() -> None:
    site = Site(
        FlatMap("expand", range),
        Map("slow", stopping_at(lambda: site, {1}, lambda n: n)),
        Map("last", str),
    )
    assert site.process([3, 1]) is None
    assert site.chain.is_halfway
    # First what is ahead.
    site.go_on()
    assert site.out == ["0", "1"]
    site.go_on()
    assert site.out == ["0", "1", "2", "0"]


def test_a_stop_at_the_last_record_begins_with_no_other_operator() -> None:
    """A call of seconds in each operator is then no silence of their sum."""
    site = Site(Map("m", stopping_at(lambda: site, {1}, str)), Map("next", str))
    assert site.process([1]) is None
    assert (site.out, site.chain.is_halfway) == ([], True)
    site.go_on()
    assert site.out == ["1"]


def test_a_slice_that_is_over_before_its_first_record_gives_all_of_them_back() -> None:
    site = Site(Map("m", str))
    site.chain.begin(1_000)
    site.time_budget.stop()
    rest = site.chain.process(Batch([1, 2]))
    assert rest is not None
    assert (rest.records, site.out, site.chain.is_halfway) == ([1, 2], [], False)


def test_keys_go_back_with_their_records() -> None:
    state = KeyedState(int)

    def add(total: int, n: int) -> int:
        if n == 2:
            site.time_budget.stop()
        return total + n

    site = Site(Aggregate("sum", state, "updates", add))
    rest = site.process([1, 2, 3], ["a", "b", "c"])
    assert rest is not None
    assert (rest.records, rest.keys) == ([3], ["c"])
    assert dict(state.values) == {"a": 1, "b": 2}
    assert site.out == [("a", 1), ("b", 2)]


def test_records_that_are_their_own_keys_stay_so() -> None:
    keyed = Batch([1, 2, 3])
    keyed.keys = keyed.records
    rest = keyed.drop(2)
    assert rest.keys is rest.records
    assert (keyed.records, rest.records) == ([1], [2, 3])


def test_the_record_to_blame_is_the_right_one_after_a_stop() -> None:
    def wrong(n: int) -> int:
        site.time_budget.stop()
        raise ValueError("no")

    site = Site(Map("m", wrong))
    with pytest.raises(UserCodeError) as raised:
        site.process([7, 8, 9])
    assert raised.value.record == "7"


class ByDice(TimeBudget):
    """Ends slices where the dice say so."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)

    def roll(self, record: Any) -> Any:
        if self._dice.random() < 0.2:
            self.stop()
        return record


@given(st.integers(0, 2**32), st.lists(st.lists(st.integers(0, 4), max_size=8), max_size=5))
def test_wherever_slices_end_the_chain_gives_what_it_gives_without(
    seed: int, batches: list[list[int]]
) -> None:
    def operators(state: KeyedState, roll: Callable[[Any], Any]) -> list[Operator]:
        return [
            Count("count", state, "updates"),
            FlatMap("expand", lambda pair: [pair] * roll(pair[1] % 3)),
            Filter("some", lambda pair: roll(pair)[0] != 2),
            Map("shown", lambda pair: roll(f"{pair[0]}:{pair[1]}")),
            KeyBy("keyed", roll, keys_only=True),
        ]

    whole = Site(*operators(KeyedState(int), lambda record: record))
    for batch in batches:
        assert whole.process(list(batch), list(batch)) is None
    time_budget = ByDice(seed)
    state = KeyedState(int)
    cut = Site(*operators(state, time_budget.roll))
    cut.time_budget = time_budget
    cut.chain.follow(time_budget)
    for batch in batches:
        waiting: Batch | None = Batch(list(batch), list(batch))
        while waiting is not None:
            cut.chain.begin(1_000)
            waiting = cut.chain.process(waiting)
            while cut.chain.is_halfway:
                cut.go_on()
    assert cut.out == whole.out


def test_nothing_keeps_a_batch_alive_that_all_operators_are_through_with() -> None:
    # It is cheapest to free while it is still in the processor's cache.
    class Thing:
        pass

    things = [Thing() for _ in range(3)]
    alive = [weakref.ref(thing) for thing in things]
    chain = Chain([Map("m", lambda _: 1)], lambda _: None, lambda *_: None)
    chain.process(Batch(things))
    del things
    assert [ref() for ref in alive] == [None, None, None]


def test_what_is_held_of_records_that_come_again_is_sent_though_the_end_has_been_told() -> None:
    """P3: a task that has ended, as its snapshot says, may still be given records of others."""
    for is_said, said in [(False, (0, "")), (True, (0, "")), (False, (2, ""))]:
        site = Site(KeyBy("key", lambda n: n % 2, keys_only=False), CombinedCount("fold", "key"))
        site.chain.final_progress = said
        site.process([1, 2, 3])
        assert site.out == []
        site.chain.begin(1_000)
        for _ in site.chain.end(is_emitted=is_said):
            site.chain.begin(1_000)
        assert sorted(site.out) == [1, 2]
