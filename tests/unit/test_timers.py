"""Timers: in order, once each, in every snapshot; and processes that set them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crosscut as cc
from crosscut.contracts.process import states_of
from crosscut.errors import FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.specs import OperatorNode, ProcessSpec, Vertex
from crosscut.graph.windows import CountFold
from crosscut.operators.building import build, keyed_state
from crosscut.operators.process import TIMERS_AT_ONCE_MAX, Process
from crosscut.operators.time_budget import TimeBudget
from crosscut.operators.windows.building import window_operator, window_state
from crosscut.operators.windows.folding import folding
from crosscut.state.keyed import KeyedState
from crosscut.state.timers import Timers, TimerTable

NAME = "timers"
KEYS = st.sampled_from(["a", "b", ("c", 1), 4, None])
TIMES = st.integers(0, 12)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "set", "set", "delete"]), KEYS, TIMES)
    | st.tuples(st.just("due"), st.none(), TIMES)
    | st.tuples(st.sampled_from(["checkpoint", "roll back", "restore"]), st.none(), st.just(0)),
    max_size=40,
)


def state_with_timers() -> KeyedState:
    return KeyedState(int, named=[TimerTable(NAME, lists_names=False)])


def timers_of(state: KeyedState) -> Timers:
    table = state.named[NAME]
    assert isinstance(table, TimerTable)
    timers = Timers(table)
    for _ in timers.loading():
        pass
    return timers


@given(STEPS)
def test_timers_are_a_sorted_list_that_every_restore_brings_back(steps: list[tuple[str, Any, int]]) -> None:
    state = state_with_timers()
    timers = timers_of(state)
    # In plain words: what is set, in the order in which it was.
    expected: list[tuple[int, Any]] = []
    snapshots: list[tuple[CheckpointId, list[tuple[int, Any]], bytes]] = []
    n = 0
    for step, key, time in steps:
        match step:
            case "set":
                timers.register(key, time)
                if (time, key) not in expected:
                    expected.append((time, key))
            case "delete":
                timers.delete(key, time)
                expected = [one for one in expected if one != (time, key)]
            case "due":
                due = sorted((one for one in expected if one[0] <= time), key=lambda one: one[0])
                assert list(timers.due(time)) == due
                expected = [one for one in expected if one[0] > time]
            case "checkpoint":
                n += 1
                state.freeze(CheckpointId(n))
                part = b"".join(state.encoded(CheckpointId(n), CheckpointId(0)))
                snapshots.append((CheckpointId(n), list(expected), part))
            case "roll back":
                if snapshots:
                    checkpoint_id, expected, _ = snapshots[-1]
                    expected = list(expected)
                    state.roll_back(checkpoint_id)
                    timers = timers_of(state)
            case "restore":
                if snapshots:
                    checkpoint_id, expected, part = snapshots[-1]
                    expected = list(expected)
                    state = state_with_timers()
                    for _ in state.loading([(checkpoint_id, part)], checkpoint_id):
                        pass
                    snapshots = [(checkpoint_id, list(expected), part)]
                    timers = timers_of(state)
                    state.freeze(CheckpointId(n))
        assert timers.next_time == min((one[0] for one in expected), default=None)
        assert len(timers) == len(expected)


def test_timers_that_are_always_put_off_take_no_more_memory() -> None:
    timers = timers_of(state_with_timers())
    for time in range(50_000):
        timers.register("key", time + 1_000_000)
        timers.delete("key", time + 1_000_000 - 10)
    assert len(timers) == 10
    assert len(timers._heap) < 5_000
    assert timers.next_time == 1_049_990


def test_a_timer_in_the_past_outlives_others_that_are_put_off() -> None:
    """It has more in its row than its place, and those that are gone are cleared away around it."""
    timers = timers_of(state_with_timers())
    timers.register("late", 5, not_before=100)
    for time in range(2_000):
        timers.register("key", time + 1_000)
        timers.delete("key", time + 1_000)
    assert len(timers._heap) < 2_000
    assert list(timers.due(200)) == [(5, "late")]
    assert timers.not_before == 100


def test_timers_of_several_tasks_may_be_put_back() -> None:
    """Two of one time and place, of keys that have no order."""
    state = state_with_timers()
    for key in ("a", 7):
        state.named[NAME].put((key, 5), 0)
    timers = timers_of(state)
    for key in ("a", 7):
        timers.put_back(key, 5, timers.delete(key, 5))
    assert list(timers.due(10)) == [(5, "a"), (5, 7)]


def test_timers_of_several_tasks_that_come_together_have_one_order() -> None:
    """Their places may be the same, and their keys need not have an order of their own."""

    def state(*rows: tuple[Any, int, int]) -> list[tuple[int, Any]]:
        one = state_with_timers()
        for key, time, place in rows:
            one.named[NAME].put((key, time), place)
        return list(timers_of(one).due(10))

    rows = [("a", 5, 0), (7, 5, 0), (("b", 1), 5, 0), ("z", 4, 9)]
    assert state(*rows) == state(*reversed(rows))


# Processes.


class Site:
    """A process as the operator that runs it."""

    def __init__(
        self, process: cc.KeyedProcess[Any, Any], state: KeyedState | None = None, *, is_timed: bool = True
    ) -> None:
        vertex = vertex_of(process, is_timed=is_timed)
        self.state = state or keyed_state(vertex.chain[0])
        operator = build(vertex.chain[0], self.state, None, ())
        assert isinstance(operator, Process)
        self.operator = operator
        self.operator.time_budget = TimeBudget()
        self.operator.time_budget.begin(1_000)
        for _ in operator.loading():
            pass

    def takes(self, *records: tuple[Any, int]) -> list[Any]:
        """Take (key, timestamp)s, each the record itself."""
        keys, timestamps = [key for key, _ in records], [timestamp for _, timestamp in records]
        return shown(self.operator.process(Batch(list(records), keys, timestamps)))

    def says(self, watermark: int | None) -> list[Any]:
        said: list[Any] = []
        while (made := self.operator.advance(watermark)) is not None:
            said += shown(made)
            self.operator.time_budget.rest = None
        return said


def vertex_of(process: cc.KeyedProcess[Any, Any], *, is_timed: bool) -> Vertex:
    flow = cc.Flow("timers")
    stream = flow.source(cc.items([1]))
    if is_timed:
        stream = stream.assign_timestamps(lambda n: n)
    stream.key_by(lambda n: n).process(process).named("process").sink(cc.printing())
    return next(one for one in flow.compile(1, 8).vertices if isinstance(one.chain[0].spec, ProcessSpec))


def shown(batch: Batch) -> list[Any]:
    return list(zip(batch.records, batch.timestamps or [], strict=True))


class Later(cc.KeyedProcess[Any, Any]):
    """Says each record 10 ms later, and counts what it has said."""

    waiting = cc.ListState[int]()

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        assert ctx.timestamp is not None
        self.waiting.append(ctx.timestamp)
        ctx.set_timer(ctx.timestamp + 10)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        assert ctx.timestamp == time
        yield ctx.key, [one for one in self.waiting if one <= time - 10], ctx.watermark
        self.waiting.set([one for one in self.waiting if one > time - 10])


def test_a_timer_fires_once_when_the_watermark_has_come_to_it_with_its_own_time() -> None:
    site = Site(Later())
    assert site.takes(("a", 5), ("b", 3), ("a", 7), ("a", 5)) == []
    assert site.says(12) == []
    assert site.says(15) == [(("b", [3], 15), 13), (("a", [5, 5], 15), 15)]
    assert site.says(16) == []
    assert site.says(END_OF_TIME) == [(("a", [7], END_OF_TIME), 17)]


def test_timers_wait_in_the_snapshot() -> None:
    site = Site(Later())
    site.takes(("a", 5), ("b", 3))
    n = CheckpointId(1)
    site.state.freeze(n)
    part = b"".join(site.state.encoded(n, CheckpointId(0)))
    assert [record[0] for record, _ in site.says(20)] == ["b", "a"]
    again = Site(Later(), keyed_state(vertex_of(Later(), is_timed=True).chain[0]))
    for _ in again.state.loading([(n, part)], n):
        pass
    again = Site(Later(), again.state)
    assert again.says(20) == [(("b", [3], 20), 13), (("a", [5], 20), 15)]


class Chain(cc.KeyedProcess[Any, Any]):
    """Each timer sets the next one, up to a time, and takes others back."""

    def __init__(self, up_to: int = 40) -> None:
        self.up_to = up_to

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_timer(record[1])
        ctx.set_timer(record[1])
        ctx.set_timer(33)

    def on_timer(self, time: int, ctx: cc.Context) -> list[Any]:
        if time + 10 <= self.up_to:
            ctx.set_timer(time + 10)
        ctx.delete_timer(33)
        return [time]


def test_what_a_timer_sets_takes_its_place_among_the_others_and_what_it_deletes_is_gone() -> None:
    site = Site(Chain())
    site.takes(("a", 10))
    assert site.says(35) == [(10, 10), (20, 20), (30, 30)]
    assert site.says(40) == [(40, 40)]
    assert site.says(END_OF_TIME) == []


def test_a_timer_in_the_past_is_called_soon_and_what_it_says_is_not_late() -> None:
    site = Site(Chain())
    assert site.says(100) == []
    site.takes(("a", 10))
    assert site.says(None) == [(10, 100), (20, 100), (30, 100), (40, 100)]


def test_a_slice_fires_a_bounded_number_and_the_next_one_goes_on() -> None:
    site = Site(Chain(up_to=100))
    site.takes(("a", 10))
    site.operator.time_budget.begin(3)
    made = site.operator.advance(100)
    assert made is not None
    assert made.records == [10, 20, 30]
    assert [record for record, _ in site.says(100)] == list(range(40, 101, 10))


def test_a_timer_that_always_sets_the_next_one_is_told_of_when_the_input_has_ended() -> None:
    site = Site(Chain(up_to=END_OF_TIME - 1))
    site.takes(("a", 10))
    site.operator.time_budget.begin(TIMERS_AT_ONCE_MAX * 2)
    with pytest.raises(
        UserCodeError, match="key 'a' has set 10000 timers, each of them due at once, after the end of input"
    ) as caught:
        site.says(END_OF_TIME)
    assert caught.value.operator == "process"


class AtTheEnd(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_timer(END_OF_TIME - 1)

    def on_timer(self, time: int, ctx: cc.Context) -> list[Any]:
        return [(ctx.key, time)]


def test_what_a_timer_of_the_last_moment_says_is_in_a_window_that_ends() -> None:
    site = Site(AtTheEnd())
    site.takes(("a", 10))
    [(said, timestamp)] = site.says(END_OF_TIME)
    assert said == ("a", END_OF_TIME - 1)
    window = cc.tumbling("10s")
    windows = window_operator("window", window_state(window), folding(CountFold()), window, None)
    windows.process(Batch([said], ["a"], [timestamp]))
    last = windows.advance(END_OF_TIME)
    assert last is not None
    assert [one.value for one in last.records] == [1]


class Ticking(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_processing_timer(ctx.now() + 50)

    def on_processing_timer(self, time: int, ctx: cc.Context) -> list[Any]:
        return [(ctx.key, time, ctx.now(), ctx.watermark)]


def test_processing_time_is_the_time_that_the_slice_is_told() -> None:
    site = Site(Ticking())
    time_budget = site.operator.time_budget
    time_budget.now_ms = 1_000
    site.takes(("a", 1))
    time_budget.now_ms = 1_049
    assert site.says(7) == []
    time_budget.now_ms = 1_060
    assert site.says(None) == [(("a", 1_050, 1_060, 7), 7)]
    assert site.says(None) == []


def test_what_a_restored_timer_of_processing_time_says_is_not_late() -> None:
    """Those that came due while the job was down fire before the watermark has gone on again."""
    site = Site(Ticking())
    site.operator.time_budget.now_ms = 1_000
    site.takes(("a", 1))
    again = Site(Ticking(), site.state)
    again.operator.time_budget.now_ms = 5_000
    again.operator.begin_at(7)
    assert again.says(7) == [(("a", 1_050, 5_000, 7), 7)]
    # So also before what was on its way at another parallelism, at the watermarks of others.
    site.takes(("b", 1))
    again = Site(Ticking(), site.state)
    again.operator.time_budget.now_ms = 5_000
    again.operator.begin_at(7)
    assert [time for _, time in again.says(None)] == [7]


def test_when_the_input_has_ended_nobody_waits_for_timers_of_processing_time() -> None:
    site = Site(Ticking())
    site.takes(("a", 1))
    site.says(7)
    assert site.says(END_OF_TIME) == [(("a", 50, 0, END_OF_TIME), 7)]


def test_what_a_timer_raises_names_the_operator_the_key_and_the_time() -> None:
    class Broken(Later):
        def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
            if ctx.key == "a":
                raise KeyError("missing")
            yield time

    site = Site(Broken())
    site.takes(("b", 4), ("a", 5))
    with pytest.raises(UserCodeError, match="operator 'process' raised KeyError") as caught:
        site.says(20)
    assert caught.value.record == "{'key': 'a', 'timer': 15}"
    assert not caught.value.is_first
    # The first one may meet a service that is down, however many records have come, which don't need it: then
    # it is not the one to blame.
    site = Site(Broken())
    site.takes(("a", 5))
    with pytest.raises(UserCodeError) as caught:
        site.says(20)
    assert caught.value.is_first
    again = Site(Broken(), site.state)
    again.state.named["event timers"].put(("a", 15), 0)
    again = Site(Broken(), again.state)
    with pytest.raises(UserCodeError) as caught:
        again.says(20)
    assert caught.value.is_first


@pytest.mark.parametrize(
    ("time", "problem"),
    [
        ("ctx.timestamp + 0.5", "5.5 of type float is no timestamp"),
        ("-(10**14)", "is no timestamp: .* before the year 1"),
        ("None", "there is no timestamp"),
        ("datetime.datetime(2024, 1, 1)", "has no time zone"),
        ("2**63", "is no timestamp"),
    ],
)
def test_a_time_that_is_none_is_refused_where_it_is_set(time: str, problem: str) -> None:
    class Sets(Later):
        def on_record(self, record: Any, ctx: cc.Context) -> None:
            ctx.set_timer(eval(time, {"ctx": ctx, "datetime": datetime}))  # noqa: S307 - the test's own words

    with pytest.raises(UserCodeError, match=problem):
        Site(Sets()).takes(("a", 5))


def test_a_datetime_with_a_time_zone_is_a_time() -> None:
    class Sets(Later):
        def on_record(self, record: Any, ctx: cc.Context) -> None:
            ctx.set_timer(datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC))

    site = Site(Sets())
    site.takes(("a", 5))
    assert [timestamp for _, timestamp in site.says(1_000)] == [1_000]


def test_a_process_that_sets_a_timer_needs_the_method_for_it() -> None:
    class Sets(cc.KeyedProcess[Any, Any]):
        def on_record(self, record: Any, ctx: cc.Context) -> None:
            ctx.set_timer(5)

    with pytest.raises(UserCodeError, match=r"Sets sets a timer and has no on_timer\(self, time, ctx\)"):
        Site(Sets()).takes(("a", 5))


def context() -> cc.Context:
    return cc.Context(lambda name, record, timestamp: None)


def test_a_dead_letter_leaves_no_timer_and_takes_none_away() -> None:
    class Fails(cc.KeyedProcess[Any, Any]):
        def on_record(self, record: Any, ctx: cc.Context) -> None:
            ctx.set_timer(record[1])
            if record[1] % 2:
                ctx.delete_timer(record[1] - 1)
                ctx.set_timer(record[1] + 10)
                raise ValueError("odd")

        def on_timer(self, time: int, ctx: cc.Context) -> list[Any]:
            return [time]

    flow = cc.Flow("letters")
    stream = flow.source(cc.items([1])).assign_timestamps(lambda n: n).key_by(lambda n: n)
    said = stream.process(Fails(), on_error="dead letters").named("fails")
    said.sink(cc.printing())
    said.side_output("dead letters").sink(cc.printing())
    vertex = next(one for one in flow.compile(1, 8).vertices if isinstance(one.chain[0].spec, ProcessSpec))
    state = keyed_state(vertex.chain[0])
    operator = build(vertex.chain[0], state, None, ("dead letters",))
    assert isinstance(operator, Process)
    operator.process(Batch([("a", 4), ("a", 5), ("a", 6)], ["a", "a", "a"], [4, 5, 6]))
    operator.time_budget.begin(100)
    due = operator.advance(100)
    assert due is not None
    assert due.records == [4, 6]


def test_a_context_by_itself_has_no_time() -> None:
    with pytest.raises(FlowError, match="outside of a key"):
        context().set_timer(5)
    with pytest.raises(FlowError, match="outside of a running job"):
        context().now()


def test_event_timers_need_event_time_and_no_timers_stand_in_a_loop() -> None:
    with pytest.raises(FlowError, match="has on_timer, and its records have no timestamps"):
        vertex_of(Later(), is_timed=False)
    # Timers of processing time need none.
    vertex_of(Ticking(), is_timed=False)
    flow = cc.Flow("loop")

    def body(loop: Any) -> Any:
        said = loop.key_by(lambda n: n).process(Ticking()).named("ticking")
        return said.filter(bool), said

    flow.source(cc.items([1])).iterate(body).sink(cc.printing())
    with pytest.raises(FlowError, match="operator 'ticking' has timers and stands in a loop"):
        flow.compile(1, 8)


def test_methods_that_cannot_be_called_are_refused_where_the_flow_is_written() -> None:
    class Wrong(Later):
        def on_timer(self, time: int) -> Any:  # type: ignore[override]
            return []

    with pytest.raises(FlowError, match=r"on_timer: it is called with \(time, ctx\)"):
        vertex_of(Wrong(), is_timed=True)


def test_timers_are_part_of_what_a_restored_flow_must_have() -> None:
    assert vertex_of(Later(), is_timed=True).chain[0].spec.states == (  # type: ignore[union-attr]
        ("waiting", "list"),
        ("event timers", "timers"),
    )


class Stamps(cc.KeyedProcess[int, Any]):
    def on_record(self, record: int, ctx: cc.Context) -> list[Any]:
        ctx.set_processing_timer(record)
        return [ctx.timestamp]

    def on_processing_timer(self, time: int, ctx: cc.Context) -> None:
        pass


def test_a_record_without_event_time_has_no_timestamp_also_after_a_timer() -> None:
    node = OperatorNode("stamps", ProcessSpec(Stamps(), states_of(Stamps())), ())
    state = keyed_state(node)
    assert state is not None
    operator = build(node, state, None)
    assert operator is not None
    operator.time_budget.rows_max = 10
    for now in (1, 2):
        operator.time_budget.now_ms = now
        assert operator.process(Batch([now], ["a"])).records == [None]
        assert operator.advance(None) is not None
        assert operator.advance(None) is None
