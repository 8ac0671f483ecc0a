"""deduplicate, top_n, rate_limit, for_each."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crosscut as cc
from crosscut.contracts.dead_letters import DEAD_LETTERS
from crosscut.errors import FlowError
from crosscut.flow.builtin_processes import FirstByEventTime, with_ranked, without_ranks
from crosscut.foundation.batch import Batch
from crosscut.graph.rate_limit import Turns
from crosscut.graph.specs import AsyncMapSpec, ForEachSpec, OperatorNode, Vertex
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.operators.time_budget import TimeBudget


def stream() -> cc.Stream[Any]:
    return cc.Flow("f").source(cc.items([1]))


class Site:
    """deduplicate as the operator that runs it; each record is its key."""

    def __init__(self, within: int | None, *, is_timed: bool) -> None:
        flow = cc.Flow("f")
        source = flow.source(cc.items([1]))
        source = source.assign_timestamps(lambda n: n) if is_timed else source
        within_s = None if within is None else within / 1_000
        source.key_by(lambda n: n).deduplicate(within=within_s).named("first").sink(cc.printing())
        vertex: Vertex = next(one for one in flow.compile(1, 8).vertices if one.vertex_id == "first")
        state = keyed_state(vertex.chain[0])
        assert state is not None
        self.state = state
        operator = build(vertex.chain[0], self.state, None, ())
        assert operator is not None
        self.operator: Operator = operator
        self.operator.time_budget = TimeBudget()
        self.operator.time_budget.begin(1_000)
        for _ in self.operator.loading():
            pass

    def takes(self, key: Any, timestamp: int | None = None, now: int = 0) -> bool:
        self.operator.time_budget.now_ms = now
        timestamps = None if timestamp is None else [timestamp]
        return bool(self.operator.process(Batch([key], [key], timestamps)).records)

    def comes_to(self, watermark: int | None = None, now: int = 0) -> None:
        self.operator.time_budget.now_ms = now
        while self.operator.advance(watermark) is not None:
            self.operator.time_budget.rest = None


def test_the_first_record_of_a_key_goes_on_and_others_that_are_near_do_not() -> None:
    site = Site(10, is_timed=True)
    assert site.takes("a", 100)
    assert not site.takes("a", 109) and not site.takes("a", 91)
    assert site.takes("b", 105)
    assert site.takes("a", 110)
    assert not site.takes("a", 119) and not site.takes("a", 101)


def test_what_is_known_of_a_key_is_forgotten_when_it_makes_no_difference_any_more() -> None:
    site = Site(10, is_timed=True)
    site.takes("a", 100)
    site.takes("a", 110)
    site.comes_to(119)
    assert len(site.state.tables["passed"]) == 1
    site.comes_to(120)
    assert len(site.state) == 0


def test_a_record_that_comes_long_after_a_later_one_goes_on_once_as_any_other() -> None:
    site = Site(10, is_timed=True)
    assert site.takes("a", 100)
    assert site.takes("a", 20)
    assert not site.takes("a", 20) and not site.takes("a", 29) and not site.takes("a", 11)
    assert site.takes("a", 60)
    assert not site.takes("a", 20) and not site.takes("a", 100)
    site.comes_to(69)
    assert not site.takes("a", 69)
    site.comes_to(110)
    assert len(site.state) == 0


@given(st.lists(st.integers(0, 60)), st.integers(1, 20))
def test_deduplicate_lets_a_record_go_on_unless_one_that_is_near_has(times: list[int], within: int) -> None:
    site, passed = Site(within, is_timed=True), list[int]()
    for time in times:
        is_first = all(abs(time - one) >= within for one in passed)
        assert site.takes("a", time) is is_first
        passed += [time] if is_first else []


def test_without_event_time_the_worker_s_clock_counts() -> None:
    site = Site(10, is_timed=False)
    assert site.takes("a", now=1_000)
    assert not site.takes("a", now=1_009)
    assert site.takes("a", now=1_010)
    site.comes_to(now=1_020)
    assert len(site.state) == 0


def test_without_a_time_a_key_goes_on_once_ever() -> None:
    site = Site(None, is_timed=False)
    assert [site.takes(key) for key in "abaab"] == [True, True, False, False, False]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())), st.integers(1, 4))
def test_top_n_is_the_beginning_of_what_a_stable_sort_gives(records: list[Any], count: int) -> None:
    best: list[Any] = []
    for position, record in enumerate(records):
        best = with_ranked(count, lambda one: one[0], best, record)
        seen = sorted(records[: position + 1], key=lambda one: -one[0])
        assert without_ranks(best) == seen[:count]


def test_top_n_gives_each_key_its_best_records() -> None:
    flow = cc.Flow("f")
    best = flow.source(cc.items([3, 1, 2])).key_by(lambda n: n % 2).top_n(2, by=lambda n: n)
    best.named("best").sink(cc.printing())
    node = flow.compile(1, 1).vertices[1].chain[0]
    operator = build(node, keyed_state(node), None)
    assert operator is not None
    out = operator.process(Batch([3, 1, 5], [1, 1, 1])).records
    assert out == [(1, [3]), (1, [3, 1]), (1, [5, 3])]


def test_turns_are_evenly_spread_over_all_tasks_and_kept_in_order() -> None:
    times: list[float] = []

    async def run() -> None:
        turns = Turns(interval_ms=1.0, tasks=3)
        loop = asyncio.get_running_loop()

        async def one(record: int) -> None:
            assert await turns(record) == record
            times.append(loop.time())

        await asyncio.gather(*map(one, range(4)))

    asyncio.run(run())
    assert all(
        later - first >= 0.003 * place - 1e-6 for place, later in enumerate(times) for first in times[:1]
    )


def test_a_rate_is_shared_by_the_tasks() -> None:
    flow = cc.Flow("f")
    flow.source(cc.items([1])).rate_limit(100, per="1s").sink(cc.printing())
    spec = flow.compile(4, 4).vertices[1].chain[0].spec
    assert isinstance(spec, AsyncMapSpec) and isinstance(spec.function, Turns)
    assert (spec.function.interval_ms, spec.function.tasks, spec.capacity) == (10, 4, 25)
    assert spec.timeout_ms > 25 * 40


def raising(record: Any) -> None:
    raise ValueError(record)


@pytest.mark.parametrize(("on_error", "letters"), [("fail", 0), (DEAD_LETTERS, 2)])
def test_for_each_calls_for_each_record_and_nothing_goes_on(on_error: Any, letters: int) -> None:
    seen: list[int] = []
    function: Callable[[Any], object] = raising if letters else seen.append
    operator = build(OperatorNode("e", ForEachSpec(function, on_error), ()), None, None, (DEAD_LETTERS,))
    assert operator is not None
    assert operator.process(Batch([1, 2])).records == []
    assert seen == ([] if letters else [1, 2])
    said = operator.sides.take() if operator.sides is not None else []
    assert sum(len(batch) for _, batch in said) == letters


def test_a_flow_may_end_in_for_each_alone_and_its_dead_letters_are_read_there() -> None:
    flow = cc.Flow("f")
    end = flow.source(cc.items([1])).for_each(print, on_error="dead letters").named("mails")
    end.side_output("dead letters").for_each(print)
    graph = flow.compile(1, 1)
    assert [[node.uid for node in vertex.chain] for vertex in graph.vertices] == [
        ["1-source", "mails"],
        ["3-for_each"],
    ]


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (lambda: stream().key_by(abs).deduplicate(within=0), "within=0: expected at least 1 ms"),
        (lambda: stream().key_by(abs).top_n(0), "n=0 of type int: expected an int of at least 1"),
        (lambda: stream().rate_limit(0), "records=0 of type int: expected an int of at least 1"),
        (lambda: stream().rate_limit(1, per=0), "per=0: expected at least 1 ms"),
        (lambda: stream().for_each(3), "function=3 of type int: expected a function"),
        (lambda: stream().deduplicate(within=1), "give the records keys first"),
    ],
)
def test_arguments_are_checked_at_once(action: Callable[[], object], problem: str) -> None:
    with pytest.raises(FlowError) as caught:
        action()
    assert problem in str(caught.value)


def test_deduplicate_can_be_sent_to_workers() -> None:
    assert pickle.loads(pickle.dumps(FirstByEventTime(5)))._within_ms == 5


def test_a_rank_that_compares_with_nothing_is_an_error() -> None:
    # It would let no better record past it, for ever.
    with pytest.raises(ValueError, match="rank of a record is nan"):
        with_ranked(2, float, [], "nan")
