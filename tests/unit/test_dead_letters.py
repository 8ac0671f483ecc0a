"""Dead letters: a record has all of its effects, or it is set aside with what was raised."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.dead_letters import DEAD_LETTERS, DeadLetter
from crosscut.contracts.process import declared, states_of
from crosscut.errors import FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.graph.explain import explained
from crosscut.graph.specs import (
    AggregateSpec,
    FilterSpec,
    FlatMapSpec,
    InspectSpec,
    KeyBySpec,
    MapSpec,
    OperatorNode,
    OperatorSpec,
    ProcessSpec,
    ReduceSpec,
    SplitSpec,
    SumSpec,
)
from crosscut.operators.building import build, keyed_state
from crosscut.operators.dead_letters import AttemptedProcess
from crosscut.operators.operator import Operator
from crosscut.state.keyed import KeyedState


class Site:
    """An operator that sets records aside, with its state."""

    def __init__(self, spec: OperatorSpec, *names: str) -> None:
        node = OperatorNode("the-operator", spec, ())
        self.state = keyed_state(node)
        operator = build(node, self.state, None, (DEAD_LETTERS, *names))
        assert isinstance(operator, Operator)
        self.operator = operator

    @property
    def rows(self) -> dict[Any, Any]:
        assert isinstance(self.state, KeyedState)
        return dict(self.state.items())

    def gives(self, *records: Any, keys: list[Any] | None = None) -> list[Any]:
        return self.operator.process(Batch(list(records), keys)).records

    def said(self) -> dict[str, list[Any]]:
        assert self.operator.sides is not None
        return {side.name: batch.records for side, batch in self.operator.sides.take()}

    def letters(self) -> list[Any]:
        return [letter.record for letter in self.said().get(DEAD_LETTERS, [])]


def halved(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n // 2


def halves(n: int) -> Iterator[int]:
    yield n
    yield halved(n)


@pytest.mark.parametrize(
    ("spec", "out"),
    [
        (MapSpec(halved, DEAD_LETTERS), [1, 2]),
        (FilterSpec(lambda n: halved(n) > 1, DEAD_LETTERS), [4]),
        (FlatMapSpec(halves, DEAD_LETTERS), [2, 1, 4, 2]),
        (FlatMapSpec(lambda n: [halved(n)] * 2, DEAD_LETTERS), [1, 1, 2, 2]),
        (InspectSpec(halved, DEAD_LETTERS), [2, 4]),
        (KeyBySpec(halved, on_error=DEAD_LETTERS), [2, 4]),
        (SplitSpec((("none", lambda n: halved(n) < 0),), has_rest=True, on_error=DEAD_LETTERS), [2, 4]),
    ],
    ids=["map", "filter", "flat_map that yields", "flat_map", "inspect", "key_by", "split"],
)
def test_a_record_for_which_user_code_raises_is_set_aside_and_the_others_go_on(
    spec: OperatorSpec, out: list[int]
) -> None:
    site = Site(spec, "none")
    assert site.gives(1, 2, 3, 4, 5) == out
    letters = site.said()[DEAD_LETTERS]
    assert letters[0] == DeadLetter(1, "ValueError: 1 is odd", "the-operator")
    assert [letter.record for letter in letters] == [1, 3, 5]


def test_what_can_not_be_a_key_is_set_aside_and_the_keys_stay_with_their_records() -> None:
    site = Site(KeyBySpec(lambda record: record[0], on_error=DEAD_LETTERS))
    records = [(1,), (1.5,), ("a",), (["l"],), ((1, None),), ()]
    batch = site.operator.process(Batch(records))
    assert (batch.records, batch.keys) == ([(1,), ("a",), ((1, None),)], [1, "a", (1, None)])
    letters = site.said()[DEAD_LETTERS]
    assert [letter.record for letter in letters] == [(1.5,), (["l"],), ()]
    assert "float" in letters[0].error and letters[2].error.startswith("IndexError: ")


def grown(total: list[int], record: int) -> list[int]:
    total.append(record)
    halved(record)
    return total


def test_a_record_that_can_not_be_added_changes_nothing_not_even_a_mutable_accumulator() -> None:
    site = Site(AggregateSpec(list, grown, sum, "updates", DEAD_LETTERS))
    assert site.gives(2, 3, 4, 5, keys=["k", "k", "k", "new"]) == [("k", 2), ("k", 6)]
    assert site.rows == {"k": [2, 4]}
    assert [(letter.key, letter.record) for letter in site.said()[DEAD_LETTERS]] == [("k", 3), ("new", 5)]


def test_a_record_whose_result_can_not_be_made_is_not_added() -> None:
    site = Site(AggregateSpec(lambda: 0, lambda total, n: total + n, halved, "updates", DEAD_LETTERS))
    assert site.gives(2, 1, 4, keys=["k"] * 3) == [("k", 1), ("k", 3)]
    assert site.rows == {"k": 6} and site.letters() == [1]


@pytest.mark.parametrize(
    ("spec", "out"),
    [
        (SumSpec(halved, "updates", DEAD_LETTERS), [("k", 1), ("k", 3)]),
        (ReduceSpec(lambda total, n: total + halved(n), "updates", DEAD_LETTERS), [("k", 2), ("k", 4)]),
    ],
)
def test_sum_and_reduce_set_records_aside(spec: OperatorSpec, out: list[Any]) -> None:
    site = Site(spec)
    assert site.gives(2, 1, 4, keys=["k"] * 3) == out
    assert site.letters() == [1]


def test_a_final_result_that_can_not_be_made_is_set_aside_with_its_key() -> None:
    site = Site(AggregateSpec(lambda: 0, lambda total, n: total + n, halved, "final", DEAD_LETTERS))
    assert site.gives(2, 1, keys=["even", "odd"]) == []
    said = [record for batch, _ in site.operator.end("") for record in batch.records]
    assert said == [("even", 1)]
    assert site.said()[DEAD_LETTERS] == [
        DeadLetter(("odd", 1), "ValueError: 1 is odd", "the-operator", key="odd")
    ]


class Everything(cc.KeyedProcess[int, Any]):
    """Changes all that there is, says it, and then raises for odd numbers."""

    value = cc.ValueState(default=0)
    items = cc.ListState()
    entries = cc.MapState()
    most = cc.ReducingState(max)

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[Any]:
        self.value.set(self.value.get() + record)
        self.items.append(record)
        if record in (3, 5):
            self.entries.clear()
        self.entries[record] = [record]
        self.most.add(record)
        ctx.output("aside", record)
        yield ctx.key, self.value.get(), self.items.get(), sorted(self.entries), self.most.get()
        halved(record)


def test_a_process_that_raises_has_done_and_said_nothing_for_that_record() -> None:
    states = tuple((name, one.kind) for name, one in declared(Everything()).items())
    tried = Site(ProcessSpec(Everything(), states, DEAD_LETTERS), "aside")
    out = tried.gives(2, 3, 4, 5, 7, 6, keys=["k", "k", "k", "k", "new", "k"])
    plain = Site(ProcessSpec(Everything(), states), "aside")
    assert out == plain.gives(2, 4, 6, keys=["k"] * 3)
    said = tried.said()
    assert said["aside"] == plain.said()["aside"] == [2, 4, 6]
    assert [(letter.key, letter.record) for letter in said[DEAD_LETTERS]] == [("k", 3), ("k", 5), ("new", 7)]
    assert tried.state is not None and plain.state is not None
    for name, table in plain.state.tables.items():
        assert dict(tried.state.tables[name].items()) == dict(table.items())
    assert len(tried.state) == len(plain.state)


class Odd(cc.KeyedProcess[int, Any]):
    """Changes all that there is, and raises for timers of odd times."""

    value = cc.ValueState[int](0)
    items = cc.ListState[int]()
    entries = cc.MapState[int, list[int]]()
    most = cc.ReducingState[int](max)

    def on_record(self, record: int, ctx: cc.Context) -> None:
        ctx.set_timer(record)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        self.value.set(time)
        self.items.append(time)
        if time in (3, 5):
            self.entries.clear()
        self.entries[time] = [time]
        self.most.add(time)
        ctx.output("aside", time)
        yield ctx.key, self.value.get(), self.items.get(), sorted(self.entries), self.most.get()
        if time in (3, 5):
            ctx.delete_timer(8)
            ctx.set_timer(8)
        ctx.set_timer(time + 20)
        halved(time)


def test_a_timer_that_raises_has_done_and_said_nothing_but_a_letter_and_is_not_called_again() -> None:
    tried = Site(ProcessSpec(Odd(), states_of(Odd()), DEAD_LETTERS), "aside")
    plain = Site(ProcessSpec(Odd(), states_of(Odd())), "aside")
    said = []
    for site, times in ((tried, (3, 8, 4, 5)), (plain, (8, 4))):
        # Of two timers of one time, the one that was set first comes first, whatever was undone meanwhile.
        site.gives(*times, 8, keys=["k"] * len(times) + ["other"])
        site.operator.time_budget.rows_max = 100
        made = site.operator.advance(5)
        assert made is not None and site.operator.advance(None) is None
        last = site.operator.advance(8)
        said.append((made.records, made.timestamps, last.records if last is not None else None))
    assert said[0] == said[1]
    sides = tried.said()
    assert sides["aside"] == plain.said()["aside"] == [4, 8, 8]
    letters = sides[DEAD_LETTERS]
    assert [(one.key, one.timer, one.record) for one in letters] == [("k", 3, None), ("k", 5, None)]
    assert "in halved" in letters[0].traceback and letters[0].error.startswith("ValueError")
    assert tried.state is not None and plain.state is not None
    for name, table in plain.state.tables.items():
        rows, others = dict(tried.state.tables[name].items()), dict(table.items())
        assert (rows.keys(), len(rows)) == (others.keys(), len(others))


def test_what_keeps_a_timer_from_being_called_at_all_still_fails_the_job() -> None:
    class Forever(Odd):
        def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
            ctx.set_timer(time)
            yield from ()

    site = Site(ProcessSpec(Forever(), states_of(Forever()), DEAD_LETTERS), "aside")
    site.gives(3, keys=["k"])
    site.operator.time_budget.rows_max = 100_000
    with pytest.raises(UserCodeError, match="key 'k' has set 10000 timers, each of them due at once"):
        site.operator.advance(5)


def failing(error: BaseException) -> Callable[[Any], Any]:
    def fail(record: Any) -> Any:
        raise error

    return fail


class Ticking(cc.KeyedProcess[int, int]):
    ticks = cc.ListState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> None:
        ctx.set_timer(record)

    def on_timer(self, time: int, ctx: cc.Context) -> None:
        self.ticks.append(time)
        ctx.set_timer(time + 1)


def test_what_is_known_to_undo_a_record_does_not_grow_with_timers() -> None:
    site = Site(ProcessSpec(Ticking(), states_of(Ticking()), "dead letters"))
    site.gives(0, keys=["a"])
    operator = site.operator
    assert isinstance(operator, AttemptedProcess)
    operator.time_budget.rows_max = 100
    for watermark in range(50):
        assert operator.advance(watermark) is not None
        operator.time_budget.rest = None
    assert isinstance(site.state, KeyedState)
    assert dict(site.state.tables["ticks"].items()) == {"a": list(range(50))}
    assert len(operator._journal) == len(operator._timer_journal) == 1


@pytest.mark.parametrize(
    "error", [FlowError("the flow is wrong"), MemoryError(), SystemExit(3), KeyboardInterrupt()]
)
def test_what_is_not_about_the_record_fails_the_job(error: BaseException) -> None:
    with pytest.raises(UserCodeError, match=type(error).__name__):
        Site(MapSpec(failing(error), DEAD_LETTERS)).gives(1)


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_letter_says_what_was_raised_and_where_in_the_user_s_code_and_can_travel() -> None:
    def outer(n: int) -> int:
        return halved(n)

    site = Site(MapSpec(outer, DEAD_LETTERS))
    site.gives(1)
    (letter,) = site.said()[DEAD_LETTERS]
    lines = letter.traceback.splitlines()
    assert "in outer" in lines[1] and "in halved" in letter.traceback and "operators" not in letter.traceback
    travelled = pickle.loads(pickle.dumps(letter))
    assert travelled == letter and travelled.traceback == letter.traceback

    site = Site(MapSpec(failing(Unsayable()), DEAD_LETTERS))
    site.gives(1)
    assert site.said()[DEAD_LETTERS][0].error == "Unsayable whose text raises RuntimeError"


def test_a_letter_is_of_bounded_length_whatever_was_raised() -> None:
    def deep(n: int) -> int:
        return 1 if n < 0 else other(n - 1) + 1

    def other(n: int) -> int:
        if n == 1:
            raise ValueError("x" * 1_000_000)
        return deep(n)

    site = Site(MapSpec(deep, DEAD_LETTERS))
    site.gives(150)
    (letter,) = site.said()[DEAD_LETTERS]
    assert len(letter.error) <= 1_000 and len(letter.traceback) < 5_000


def test_dead_letters_must_be_read_and_are_shown() -> None:
    flow = cc.Flow("f")
    mapped = flow.source(cc.generate(lambda i: i, count=3)).map(halved, on_error="dead letters")
    mapped.sink(cc.files.write_jsonl("out"))
    with pytest.raises(FlowError, match="the stream 'dead letters' of operator '2-map' leads nowhere"):
        flow.compile(1, 1)
    mapped.side_output("dead letters").sink(cc.files.write_jsonl("letters"))
    graph = flow.compile(1, 1)
    assert "2-map (dead letters)" in explained(graph)
    assert len(graph.edges) == 1


def test_on_error_is_one_of_two_words_and_letters_are_read_only_where_there_are_some() -> None:
    stream = cc.Flow("f").source(cc.generate(lambda i: i, count=3))
    with pytest.raises(FlowError, match="on_error='skip': expected 'fail' or 'dead letters'"):
        stream.map(halved, on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="has no side output 'dead letters', which needs on_error"):
        stream.map(halved).side_output("dead letters")
    keyed = stream.key_by(halved, on_error="dead letters")
    keyed.side_output("dead letters")
    with pytest.raises(FlowError, match="it has 'dead letters'"):
        keyed.side_output("late")
