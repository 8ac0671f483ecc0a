"""Processes: their states, as user code sees them, and what is said of one that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.process import Stateful, declared
from crosscut.errors import FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.graph.specs import OperatorNode, ProcessSpec
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.state.encoding import contents
from crosscut.state.keyed import KeyedState

N1 = CheckpointId(1)


class Site:
    """A process as the operator that runs it, with its state."""

    def __init__(self, process: cc.KeyedProcess[Any, Any], state: KeyedState | None = None) -> None:
        states = tuple((name, one.kind) for name, one in declared(process).items())
        node = OperatorNode("the-process", ProcessSpec(process, states), ())
        made = state or keyed_state(node)
        assert made is not None
        self.state = made
        operator = build(node, made, None)
        assert isinstance(operator, Operator)
        self.operator = operator

    def gives(self, *pairs: tuple[Any, Any]) -> list[Any]:
        return self.operator.process(
            Batch([record for _, record in pairs], [key for key, _ in pairs])
        ).records

    def rows(self, name: str) -> dict[Any, Any]:
        return dict(self.state.tables[name].items())


class Everything(cc.KeyedProcess[str, Any]):
    value = cc.ValueState[int](default=7)
    fresh = cc.ValueState[list[int]](default=list)
    items = cc.ListState[int]()
    entries = cc.MapState[str, int]()
    most = cc.ReducingState[int](max)
    mean = cc.AggregatingState[int, float](
        lambda: (0, 0), lambda a, n: (a[0] + n, a[1] + 1), lambda a: a[0] / a[1]
    )

    def on_record(self, record: str, ctx: cc.Context) -> Iterator[Any]:
        yield eval(record)  # noqa: S307 - the tests' own words


def test_each_key_has_state_of_its_own() -> None:
    site = Site(Everything())
    assert site.gives(
        ("a", "self.value.get()"),
        ("a", "self.value.set(1)"),
        ("b", "self.value.get()"),
        ("a", "(self.value.get(), self.value.exists)"),
        ("b", "self.value.exists"),
        ("a", "ctx.key"),
    ) == [7, None, 7, (1, True), False, "a"]
    assert site.rows("value") == {"a": 1}


def test_a_default_that_is_a_function_is_made_anew_each_time() -> None:
    site = Site(Everything())
    assert site.gives(("a", "self.fresh.get().append(1)"), ("a", "self.fresh.get()")) == [None, []]


class Doubled(cc.ValueState[int]):
    """A state of a user's own."""

    def get(self) -> int:
        return 2 * super().get()

    def set(self, value: int) -> None:
        super().set(value + 1)


class HasDoubled(cc.KeyedProcess[int, int]):
    value = Doubled(3)

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[int]:
        yield self.value.get()
        self.value.set(record)


def test_a_state_of_a_users_own_has_its_own_methods() -> None:
    assert Site(HasDoubled()).gives(("a", 10), ("a", 0), ("b", 0)) == [6, 22, 6]


def test_a_list_state_is_a_list_and_no_state_while_it_is_empty() -> None:
    site = Site(Everything())
    assert site.gives(
        ("a", "(len(self.items), list(self.items), bool(self.items))"),
        ("a", "self.items.extend([])"),
        ("a", "self.items.append(1)"),
        ("a", "self.items.extend([2, 3])"),
        ("a", "(len(self.items), list(self.items), bool(self.items))"),
        ("a", "self.items.get().append(4)"),
        ("b", "self.items.set([5])"),
        ("a", "self.items.get()"),
    ) == [(0, [], False), None, None, None, (3, [1, 2, 3], True), None, None, [1, 2, 3]]
    assert site.rows("items") == {"a": [1, 2, 3], "b": [5]}
    site.gives(("a", "self.items.clear()"), ("b", "self.items.set([])"))
    assert (site.rows("items"), len(site.state)) == ({}, 0)


def test_a_map_state_is_a_dictionary_and_no_state_while_it_is_empty() -> None:
    site = Site(Everything())
    assert site.gives(
        ("a", "self.entries.update(x=1, y=2)"),
        ("a", "(self.entries['x'], 'z' in self.entries, sorted(self.entries), len(self.entries))"),
        ("a", "self.entries.get('z', 9)"),
        ("a", "self.entries.pop('x')"),
        ("b", "self.entries.setdefault('x', 3)"),
        ("a", "dict(self.entries)"),
    ) == [None, (1, False, ["x", "y"], 2), 9, 1, 3, {"y": 2}]
    site.gives(("a", "self.entries.pop('y')"), ("b", "self.entries.clear()"))
    assert site.gives(
        ("a", "'y' in self.entries"),
        ("a", "self.entries.pop('y', 0)"),
        ("a", "self.entries.get('y')"),
        ("a", "bool(self.entries)"),
    ) == [False, 0, None, False]
    assert site.rows("entries") == {}


def test_reducing_and_aggregating_states_hold_what_was_added() -> None:
    site = Site(Everything())
    added = [("a", f"(self.most.add({n}), self.mean.add({n}))") for n in (3, 5, 1)]
    site.gives(*added)
    assert site.gives(
        ("a", "(self.most.get(), self.mean.get())"), ("b", "(self.most.get(), self.mean.get())")
    ) == [
        (5, 3.0),
        (None, None),
    ]
    assert site.rows("mean") == {"a": (9, 3)}


def test_all_states_are_in_one_snapshot_and_come_back() -> None:
    site = Site(Everything())
    site.gives(("a", "self.value.set(1)"), ("a", "self.items.append(2)"), ("b", "self.entries.update(x=3)"))
    site.state.freeze(N1)
    site.gives(("a", "self.items.append(9)"), ("a", "self.value.clear()"))
    part = b"".join(site.state.encoded(N1, CheckpointId(0)))
    assert contents([part]) == {"value": {"a": 1}, "items": {"a": [2]}, "entries": {"b": {"x": 3}}}
    fresh = keyed_state(
        OperatorNode(
            "p",
            ProcessSpec(Everything(), tuple((n, one.kind) for n, one in declared(Everything()).items())),
            (),
        )
    )
    assert fresh is not None
    for _ in fresh.loading([(N1, part)], N1):
        pass
    assert Site(Everything(), fresh).gives(("a", "(self.value.get(), list(self.items))")) == [(1, [2])]


class Keeper(cc.KeyedProcess[int, int]):
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.opened = 0

    def open(self) -> None:
        self.opened += 1

    def on_record(self, record: int, ctx: cc.Context) -> Iterable[int]:
        self.seen.append(record)
        return (self.opened, len(self.seen))


def test_what_a_process_keeps_elsewhere_is_gone_in_the_next_epoch_and_open_is_called_once_in_each() -> None:
    process = Keeper()
    assert Site(process).gives(("a", 1), ("a", 2)) == [1, 1, 1, 2]
    assert Site(process).gives(("a", 3)) == [1, 1]
    assert (process.seen, process.opened) == ([], 0)


class Nothing(cc.KeyedProcess[int, int]):
    def on_record(self, record: int, ctx: cc.Context) -> None:
        if record < 0:
            raise ValueError("negative")


def test_none_is_nothing_and_an_error_names_operator_and_record() -> None:
    site = Site(Nothing())
    assert site.gives(("a", 1)) == []
    with pytest.raises(UserCodeError, match="'the-process' raised ValueError: negative") as caught:
        site.gives(("a", 1), ("a", -2))
    assert caught.value.record == "-2"


def test_state_outside_of_a_key_is_refused_by_name() -> None:
    with pytest.raises(FlowError, match="state 'value' was used outside of a key"):
        Everything().value.get()

    class Early(cc.KeyedProcess[int, int]):
        count = cc.ValueState[int](0)

        def open(self) -> None:
            self.count.set(1)

        def on_record(self, record: int, ctx: cc.Context) -> None: ...

    with pytest.raises(UserCodeError, match=r"state 'count' was used outside of a key.*which open\(\) and"):
        Site(Early()).gives(("a", 1))


class Closed(Keeper):
    def open(self) -> None:
        raise OSError("nobody there")


def test_no_record_is_to_blame_for_a_process_that_can_not_be_opened() -> None:
    """It would be the same one after each restart, and the job would give up on it."""
    with pytest.raises(UserCodeError, match="'the-process' raised OSError: nobody there") as caught:
        Site(Closed()).gives(("a", 1), ("b", 2), ("c", 3))
    assert (caught.value.record, caught.value.is_first) == ("1", True)


class Ends(cc.KeyedProcess[int, int]):
    count = cc.ValueState[int](0)

    def close(self) -> None:
        self.count.set(1)

    def on_record(self, record: int, ctx: cc.Context) -> None:
        ctx.set_processing_timer(record)

    def on_processing_timer(self, time: int, ctx: cc.Context) -> None: ...


class Begins(Ends):
    def open(self) -> None:
        self.count.set(1)


def test_open_and_close_are_at_no_key_whatever_comes_before_or_after() -> None:
    site = Site(Ends())
    site.gives(("a", 1))
    with pytest.raises(UserCodeError, match="state 'count' was used outside of a key"):
        site.operator.close()
    # In a restored task a timer may come first.
    again = Site(Begins())
    state = again.state
    assert isinstance(state, KeyedState)
    state.named["processing timers"].put(("a", 1), 0)
    for _ in again.operator.loading():
        pass
    again.operator.time_budget.begin(10)
    again.operator.time_budget.now_ms = 5
    with pytest.raises(UserCodeError, match="state 'count' was used outside of a key"):
        again.operator.advance(None)


def keyed() -> Any:
    return cc.Flow("f").source(cc.generate(lambda i: i, count=3)).key_by(lambda i: i)


def test_mistakes_are_found_when_the_flow_is_written() -> None:
    with pytest.raises(
        FlowError,
        match=r"operator '3-process': expected a crosscut.KeyedProcess, found .*make one, as in Nothing\(\)",
    ):
        keyed().process(Nothing)

    class OneArgument(cc.KeyedProcess[int, int]):
        def on_record(self, record: int) -> None:  # type: ignore[override]
            ...

    with pytest.raises(FlowError, match=r"on_record: it is called with \(record, ctx\)"):
        keyed().process(OneArgument())

    class OnTheObject(Nothing):
        def __init__(self) -> None:
            self.count = cc.ValueState[int]()

    with pytest.raises(
        FlowError,
        match=r"state 'count' is set on the object: declare it in the body .* `count = cc.ValueState",
    ):
        keyed().process(OnTheObject())
    with pytest.raises(FlowError, match=r"function: it is called with \(state, record\)"):
        keyed().stateful(lambda record: record)


def test_the_short_form_keeps_one_state_and_deletes_it_for_none() -> None:
    def third(state: list[int] | None, record: int) -> tuple[list[int] | None, list[list[int]]]:
        got = [*(state or []), record]
        return (None, [got]) if len(got) == 3 else (got, [])

    site = Site(Stateful(third))
    assert site.gives(*[("a", n) for n in range(4)], ("b", 9)) == [[0, 1, 2]]
    assert site.rows("state") == {"a": [3], "b": [9]}
    with pytest.raises(UserCodeError, match=r"returned 5: expected two things, \(the next state or None"):
        Site(Stateful(lambda state, record: 5)).gives(("a", 1))


def test_states_are_part_of_what_a_graph_is_and_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    class Other(Nothing):
        count = cc.ValueState[int](0)

    class Lists(Nothing):
        count = cc.ListState[int]()

    def flow(process: cc.KeyedProcess[int, int]) -> cc.Flow:
        made = cc.Flow("f")
        made.source(cc.generate(lambda i: i, count=3)).key_by(lambda i: i).process(process).named("p").sink(
            cc.collect()
        )
        return made

    prints = {flow(process).compile(1, 8).fingerprint for process in (Nothing(), Other(), Lists())}
    assert len(prints) == 3
    flow(Other()).explain()
    assert "p (process, count: value)" in capsys.readouterr().out
