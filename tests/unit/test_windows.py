"""Windows and joins as a user writes them: what is refused and how, what they are called, what they say."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.files.jsonl import encoded_lines
from crosscut.contracts.windows import CountWindow, Session, Tumbling
from crosscut.errors import FlowError, UserCodeError
from crosscut.flow.arguments import itself
from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.explain import explained
from crosscut.graph.ready_folds import list_of
from crosscut.graph.specs import JobGraph
from crosscut.graph.windows import AggregateFold, ProcessFold, SumFold
from crosscut.operators.building import build, keyed_state
from crosscut.operators.timed import TimedOperator
from crosscut.operators.windows.building import window_operator, window_state
from crosscut.operators.windows.folding import folding
from crosscut.task.chain import Chain

GUIDES = Path(__file__).parents[2] / "docs" / "guide"


@pytest.mark.parametrize("name", ["windows", "joins"])
def test_the_snippets_of_the_guide_run(name: str) -> None:
    path = GUIDES / f"{name}.md"
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(snippet, str(path), "exec"), names)  # noqa: S102 - our own text
        names["flow"].compile(2, 128)


def first(record: Any) -> Any:
    return record[0]


def second(record: Any) -> Any:
    return record[1]


def keyed(flow: cc.Flow, name: str = "records", *, is_timed: bool = True) -> cc.KeyedStream[Any, Any]:
    stream = flow.source(cc.items([("a", 1)])).named(name)
    if is_timed:
        stream = stream.assign_timestamps(second).named(f"{name}-times")
    return stream.key_by(first).named(f"{name}-keys")


def compiled(make: Callable[[cc.Flow], cc.Stream[Any]]) -> JobGraph:
    flow = cc.Flow("f")
    make(flow).sink(cc.printing()).named("out")
    return flow.compile(2, 128)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: cc.tumbling(0), "tumbling: size=0: expected a duration such as"),
        (lambda: cc.tumbling("1.5ms"), "tumbling: size='1.5ms': expected whole milliseconds"),
        (lambda: cc.tumbling("often"), "tumbling: size='often': expected a duration such as"),
        (lambda: cc.session(-1), "session: gap=-1: expected a duration such as"),
        (lambda: cc.session(-1), "or a number of seconds, at least 1 ms"),
        (lambda: cc.session("0.5ms"), "or a number of seconds, at least 1 ms"),
        (lambda: cc.sliding("1m", every="2m"), "sliding: every='2m' is more than size='1m': records between"),
        (
            lambda: cc.sliding("30d", every="1s"),
            "put each record into 2,592,000 windows",
        ),
        (lambda: cc.sliding("1m", every=0), "sliding: every=0: expected a duration such as"),
        (lambda: cc.tumbling("1d", offset="1d"), "tumbling: offset='1d': expected less than size"),
        (lambda: cc.sliding("1h", every="1m", offset="2m"), "sliding: offset='2m': expected less than every"),
        (lambda: cc.tumbling("1d", offset="-1d"), "tumbling: offset='-1d': expected less than size"),
        (lambda: cc.sliding("1h", every="1m", offset=-60), "sliding: offset=-60: expected less than every"),
        (lambda: cc.tumbling("1d", offset="-"), "tumbling: offset='-': expected a duration such as"),
        (lambda: cc.tumbling("1d", offset="-0.5ms"), "tumbling: offset='-0.5ms': expected whole"),
        (lambda: cc.tumbling("1d", offset="--8h"), "tumbling: offset='--8h': expected a duration such as"),
        (lambda: cc.tumbling("1d", offset=" -8 "), "tumbling: offset=' -8 ': expected a duration such as"),
        (lambda: cc.tumbling("1d", offset=-0.0005), "tumbling: offset=-0.0005: expected whole"),
        (lambda: cc.tumbling("1d", offset=True), "tumbling: offset=True: expected a duration such as"),
        (
            lambda: cc.tumbling("1h", time_zone="Europe/Berlin"),
            "tumbling: size='1h' with time_zone='Europe/Berlin': expected whole days",
        ),
        (
            lambda: cc.tumbling("1d", time_zone="Berlin"),
            "tumbling: time_zone='Berlin': expected the name of a",
        ),
        (lambda: cc.tumbling("1d", time_zone=2), "tumbling: time_zone=2: expected the name"),  # type: ignore[call-overload]
        (
            lambda: cc.tumbling("1d", offset="1d", time_zone="UTC"),
            "tumbling: offset='1d': expected less than size",
        ),
        (lambda: cc.count_window(0), "count_window: n=0: expected a whole number, at least 1"),
        (lambda: cc.count_window(True), "count_window: n=True: expected a whole number, at least 1"),
        (lambda: cc.on_count(1.5), "on_count: n=1.5: expected a whole number, at least 1"),  # type: ignore[arg-type]
        (lambda: cc.early("0s"), "early: every='0s': expected a duration such as"),
    ],
)
def test_a_window_that_holds_nothing_is_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(FlowError) as raised:
        make()
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda k: k.window("1m"), "expected a window, as in cc.tumbling('1m')"),
        (lambda k: k.window(cc.tumbling(1), trigger=3), "trigger=3 of type int: expected cc.on_count(n)"),
        (
            lambda k: k.window(cc.count_window(3), trigger=cc.on_count(1)),
            "a count window speaks when it is full: leave trigger=on every 1 records out",
        ),
        (
            lambda k: k.window(cc.global_window(), allowed_lateness="1s"),
            "allowed_lateness: nothing is ever late for a global window: leave it out",
        ),
        (lambda k: k.window(cc.count_window(3), late="late"), "late: nothing is ever late for a count of 3"),
        (lambda k: k.window(cc.tumbling(1), late=""), "'' of type str is no name"),
        (lambda k: k.window(cc.tumbling(1)).sum(3), "function=3 of type int: expected a function"),
        (
            lambda k: k.window(cc.tumbling(1)).aggregate([], add=max),
            "could be changed, and all keys would",
        ),
        (
            lambda k: k.window(cc.session(1)).aggregate(0, lambda a, b: a),
            "aggregate over sessions needs merge: a record between two sessions joins them",
        ),
        (lambda k: k.interval_join(k, 2, 1), "lower=2 is more than upper=1: nothing lies between"),
        (lambda k: k.interval_join(k, "-x", 1), "lower='-x': expected a duration"),
        (
            lambda k: k.interval_join(k, 0, 1, how="full"),
            "how='full': expected one of 'inner', 'left'",
        ),
        (lambda k: k.latest_join(k, how="outer"), "how='outer': expected one of 'inner', 'left'"),
        (
            lambda k: k.latest_join(3),
            "expected a keyed stream of this flow to join with, found 3",
        ),
        (lambda k: k.latest_join(keyed(cc.Flow("g"))), "expected a keyed stream of this flow to join with"),
        (
            lambda k: k.window_join(k, cc.global_window()),
            "expected cc.tumbling(...), cc.sliding(...)",
        ),
    ],
)
def test_arguments_are_checked_where_they_are_written(
    make: Callable[[cc.KeyedStream[Any, Any]], Any], problem: str
) -> None:
    with pytest.raises(FlowError) as raised:
        make(keyed(cc.Flow("f")))
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda k, other: k.window(cc.tumbling("1s")).count(),
        lambda k, other: k.window(cc.session("1s")).count(),
        lambda k, other: k.window(cc.global_window(), trigger=cc.early("1s")).count(),
        lambda k, other: k.interval_join(other, -1, 1),
        lambda k, other: k.window_join(other, cc.tumbling("1s")),
    ],
)
def test_what_goes_by_event_time_is_refused_where_records_have_none(make: Callable[..., Any]) -> None:
    def flow_of(flow: cc.Flow) -> Any:
        two = (keyed(flow, name, is_timed=False) for name in ("left", "right"))
        left, right = two
        right.count().named("used").sink(cc.printing()).named("other")
        return make(left, right).named("timed")

    with pytest.raises(FlowError, match="'timed': it goes by event time, and its records have none"):
        compiled(flow_of)


def test_what_needs_no_event_time_does_without() -> None:
    compiled(lambda flow: keyed(flow, is_timed=False).window(cc.count_window(2)).count())
    compiled(lambda flow: keyed(flow, is_timed=False).window(cc.global_window(), cc.on_count(2)).count())
    compiled(
        lambda flow: keyed(flow, "left", is_timed=False).latest_join(keyed(flow, "right", is_timed=False))
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda k: k.window(cc.tumbling("1s")).count(),
        lambda k: k.window(cc.count_window(3)).count(),
        lambda k: k.interval_join(k, -1, 1),
        lambda k: k.window_join(k, cc.tumbling("1s")),
        lambda k: k.latest_join(k),
    ],
)
def test_what_speaks_at_the_end_of_its_input_can_not_stand_in_a_loop(make: Callable[[Any], Any]) -> None:
    def flow_of(flow: cc.Flow) -> cc.Stream[Any]:
        timed = flow.source(cc.items([("a", 1)])).assign_timestamps(second)

        def body(loop: cc.Stream[Any]) -> tuple[cc.Stream[Any], cc.Stream[Any]]:
            said = make(loop.key_by(first)).named("speaks")
            return said.filter(bool), said.filter(bool)

        return timed.iterate(body)

    with pytest.raises(FlowError, match="operator 'speaks' says what is left at the end of its input"):
        compiled(flow_of)


def test_a_side_output_for_late_records_must_lead_somewhere_and_is_called_as_it_was() -> None:
    with pytest.raises(FlowError, match="stream 'late' of operator 'per-second' leads nowhere"):
        compiled(lambda f: keyed(f).window(cc.tumbling(1), late="late").count().named("per-second"))
    counts = keyed(cc.Flow("f")).window(cc.tumbling(1), late="late").count().named("per-second")
    with pytest.raises(FlowError, match="has no side output 'early'; it has 'late'"):
        counts.side_output("early")
    with pytest.raises(FlowError, match="has no side output 'late'; it has none"):
        keyed(cc.Flow("f")).window(cc.tumbling(1)).count().side_output("late")


def test_what_a_window_is_belongs_to_the_flow_and_how_long_it_waits_does_not() -> None:
    def fingerprint(*arguments: Any, **options: Any) -> str:
        return compiled(lambda f: keyed(f).window(*arguments, **options).count().named("w")).fingerprint

    minute = fingerprint(cc.tumbling("1m"))
    assert fingerprint(cc.tumbling("60s"), allowed_lateness="1h") == minute
    assert fingerprint(cc.tumbling("2m")) != minute
    assert fingerprint(cc.tumbling("1m", offset="1s")) != minute
    assert fingerprint(cc.tumbling("1m", offset=0)) == minute
    assert fingerprint(cc.tumbling("1m"), trigger=cc.on_count(3)) != minute


def test_explain_says_what_windows_and_joins_are() -> None:
    flow = cc.Flow("f")
    left, right = keyed(flow, "left"), keyed(flow, "right")
    left.window(cc.sliding("1m", every="10s")).sum(second).named("w").sink(cc.printing()).named("a")
    left.interval_join(right, "-5s", "5s", how="outer").named("j").sink(cc.printing()).named("b")
    text = explained(flow.compile(2, 128))
    assert "w (window, sliding 60000 ms every 10000 ms: sum)" in text
    assert "j (interval_join, outer join from -5000 to 5000 ms)" in text
    assert "w: task 0: 0-63, task 1: 64-127" in text


def test_only_keys_travel_to_a_window_that_counts_and_hands_nothing_on() -> None:
    def ships_only_keys(make: Callable[[Any], Any]) -> bool:
        graph = compiled(lambda flow: make(keyed(flow)))
        return graph.vertices[0].chain[-1].spec.keys_only  # type: ignore[union-attr]

    def with_late(k: Any) -> Any:
        counts = k.window(cc.tumbling(1), late="late").count()
        counts.side_output("late").sink(cc.printing())
        return counts

    assert ships_only_keys(lambda k: k.window(cc.tumbling(1)).count())
    assert not ships_only_keys(lambda k: k.window(cc.tumbling(1)).sum(second))
    assert not ships_only_keys(with_late)


def test_a_result_is_an_object_in_json_lines_and_survives_pickling() -> None:
    one = cc.Windowed("a", 0, 10, (1, None))
    assert pickle.loads(pickle.dumps(one)) == one
    assert json.loads(encoded_lines([one], "out")) == {"key": "a", "start": 0, "end": 10, "value": [1, None]}


def advanced(operator: TimedOperator, watermark: int) -> Iterator[Batch]:
    while (said := operator.advance(watermark)) is not None:
        yield said


def test_late_records_go_to_the_side_output_with_nothing_lost() -> None:
    flow = cc.Flow("f")
    counts = keyed(flow).window(cc.tumbling("10ms"), late="late").count().named("w")
    counts.sink(cc.printing())
    counts.side_output("late").sink(cc.printing())
    node = flow.compile(1, 128).vertices[1].chain[0]
    operator = build(node, keyed_state(node), None, {"late"})
    assert isinstance(operator, TimedOperator) and operator.sides is not None
    list(advanced(operator, 10))
    operator.process(Batch(["x", "y"], ["a", "a"], [3, 12]))
    ((_, batch),) = operator.sides.take()
    assert (batch.records, batch.timestamps) == (["x"], [3])
    assert Chain([operator], print, print).counts() == (1, 0, 0)


def test_who_raises_in_a_window_is_named_with_the_record_or_with_what_the_window_holds() -> None:
    state = window_state(Tumbling(10))
    operator = window_operator("w", state, folding(SumFold(lambda one: 1 // one)), Tumbling(10), None)
    with pytest.raises(UserCodeError) as raised:
        operator.process(Batch([1, 0], ["a", "b"], [3, 4]))
    assert (raised.value.operator, raised.value.record) == ("w", "0")  # type: ignore[attr-defined]

    def fails(window: cc.Windowed[Any, Any]) -> list[Any]:
        raise ValueError(window.end)

    state = window_state(Tumbling(10))
    operator = window_operator("w", state, folding(ProcessFold(fails)), Tumbling(10), None)
    operator.process(Batch([1], ["a"], [3]))
    with pytest.raises(UserCodeError, match="operator 'w' raised ValueError: 10"):
        list(advanced(operator, 10))


@pytest.mark.parametrize(
    "window", [cc.tumbling(10), cc.session(4), cc.count_window(2), cc.global_window()], ids=repr
)
def test_the_first_result_may_meet_a_service_that_is_down_however_many_records_have_come(window: Any) -> None:
    def looked_up(one: cc.Windowed[Any, Any]) -> list[Any]:
        if one.key == "b":
            raise ConnectionError("down")
        return [one.key]

    def raised(*keys: str) -> UserCodeError:
        fold = folding(ProcessFold(looked_up))
        operator: Any = window_operator("w", window_state(window), fold, window, None)
        operator.time_budget.begin(100)
        with pytest.raises(UserCodeError) as found:
            for n in range(2):
                for key in keys:
                    operator.process(Batch([n], [key], [n]))
            for _ in advanced(operator, END_OF_TIME):
                pass
            for _ in operator.end(""):
                pass
        return found.value

    assert raised("b").is_first
    assert not raised("a", "b").is_first


def test_a_window_with_more_keys_than_a_batch_speaks_in_several() -> None:
    state = window_state(Tumbling(10))
    operator = window_operator("w", state, folding(SumFold(abs)), Tumbling(10), None)
    operator.time_budget.begin(2)
    operator.process(Batch([1] * 5, list("abcde"), [3] * 5))
    said = [len(batch) for batch in advanced(operator, END_OF_TIME)]
    assert said == [2, 2, 1]
    assert len(state) == 0


def test_a_slice_that_is_over_in_the_midst_of_results_goes_on_where_it_stopped() -> None:
    state = window_state(Tumbling(10))
    operator: Any = None

    def result(total: int) -> int:
        operator.time_budget.stop()
        return total

    fold = AggregateFold(int, lambda total, one: total + one, result, None)
    operator = window_operator("w", state, folding(fold), Tumbling(10), None)
    operator.time_budget.begin(3)
    operator.process(Batch([1, 2, 3], list("abc"), [3] * 3))
    said = [[one.value for one in batch.records] for batch in advanced(operator, 10)]
    assert said == [[1], [2], [3]]


def test_a_record_at_the_end_of_a_window_belongs_to_the_next_one() -> None:
    state = window_state(Tumbling(10))
    operator = window_operator("w", state, folding(SumFold(abs)), Tumbling(10), None)
    operator.process(Batch([1, 2, 4], ["a"] * 3, [0, 9, 10]))
    found = [one for batch in advanced(operator, END_OF_TIME) for one in batch.records]
    assert found == [cc.Windowed("a", 0, 10, 3), cc.Windowed("a", 10, 20, 4)]


@pytest.mark.parametrize("is_early", [False, True], ids=["plain", "with a trigger"])
def test_a_day_with_an_offset_begins_so_much_after_midnight(is_early: bool) -> None:
    hour = 3_600_000
    window, trigger = cc.tumbling("1d", offset="6h"), cc.on_count(99) if is_early else None
    state = window_state(window)
    operator = window_operator("w", state, folding(SumFold(abs)), window, trigger)
    operator.process(Batch([1, 2, 4, 8], ["a"] * 4, [-hour, 6 * hour - 1, 6 * hour, 30 * hour - 1]))
    found = [one for batch in advanced(operator, END_OF_TIME) for one in batch.records]
    assert found == [
        cc.Windowed("a", -18 * hour, 6 * hour, 3), cc.Windowed("a", 6 * hour, 30 * hour, 12)
    ]  # fmt: skip


@pytest.mark.parametrize("trigger", [None, cc.on_count(99), cc.early("1h")], ids=str)
def test_a_day_of_a_time_zone_is_as_long_as_its_clocks_make_it(trigger: Any) -> None:
    """In Berlin 29 March 2026 has 23 hours, from 23:00 to 22:00 UTC."""
    hour, midnight = 3_600_000, 1_774_738_800_000
    window = cc.tumbling("1d", time_zone="Europe/Berlin")
    state = window_state(window)
    operator = window_operator("w", state, folding(SumFold(abs)), window, trigger, lateness_ms=hour)
    times = [midnight - 1, midnight, midnight + 23 * hour - 1, midnight + 23 * hour]
    operator.process(Batch([1, 2, 4, 8], ["a"] * 4, times))
    found = [one for batch in advanced(operator, midnight + 23 * hour - 1) for one in batch.records]
    assert found[-1].end == midnight, "the day before is over, this one is not"
    found = [one for batch in advanced(operator, midnight + 23 * hour) for one in batch.records]
    assert found[0] == cc.Windowed("a", midnight, midnight + 23 * hour, 6)
    late = operator.process(Batch([16], ["a"], [midnight + 1]))
    assert late.records == [cc.Windowed("a", midnight, midnight + 23 * hour, 22)]
    found = [one for batch in advanced(operator, END_OF_TIME) for one in batch.records]
    assert found[-1] == cc.Windowed("a", midnight + 23 * hour, midnight + 47 * hour, 8)


def test_days_of_a_time_zone_are_said_and_sent_as_what_they_are() -> None:
    weeks = cc.tumbling("7d", offset="4d", time_zone="America/New_York")
    assert str(weeks) == "tumbling 7 days in America/New_York from 345600000 ms"
    assert pickle.loads(pickle.dumps(weeks)) == weeks
    assert len(repr(weeks)) < 100


def test_windows_may_begin_earlier_by_a_negative_offset() -> None:
    assert cc.tumbling("1d", offset="-8h") == cc.tumbling("1d", offset="16h")
    assert cc.tumbling(60, offset=-1) == cc.tumbling("1m", offset="59s")
    assert cc.sliding("1h", every="5m", offset="-1m") == cc.sliding("1h", every="5m", offset="4m")
    assert list(cc.tumbling("1d", offset="-8h").starts(0)) == [-8 * 3_600_000]


def test_a_session_that_a_record_joins_lists_the_records_of_the_earlier_one_first() -> None:
    """Whatever came first: accumulators are merged, which know nothing of each other's order."""
    window = Session(10)
    fold = AggregateFold(*list_of(itself)[:4])
    for kept in (fold, ProcessFold(lambda windowed: [windowed.value])):
        operator = window_operator("w", window_state(window), folding(kept), window, None)
        operator.process(Batch(["late 1", "early", "late 2", "between"], ["a"] * 4, [18, 0, 19, 9]))
        found = [one for batch in advanced(operator, END_OF_TIME) for one in batch.records]
        assert found == [cc.Windowed("a", 0, 29, ["early", "late 1", "late 2", "between"])]


def test_records_without_time_stay_without_where_windows_count() -> None:
    state = window_state(CountWindow(2))
    operator = window_operator("w", state, folding(SumFold(abs)), CountWindow(2), None)
    made = [operator.process(Batch([1, 2, 4], ["a"] * 3)), *(batch for batch, _ in operator.end(""))]
    assert [(batch.records, batch.timestamps) for batch in made] == [
        ([cc.Windowed("a", 0, 0, 3)], None),
        ([cc.Windowed("a", 0, 0, 4)], None),
    ]
