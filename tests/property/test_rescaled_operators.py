"""Operators against plain Python over all records: late, out of order, restored at any parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof.flows import functions, processes
from tests.proof.flows.steps import ClockName, Hold, HoldName, KeyBy, StateName
from tests.property.examples import examples
from tests.property.tasks import NOW_MS, PARALLELISM, Calls, Row, Tasks, drawn_turns
from tests.property.test_windows import CASES, Case, Naive

import crosscut as cc
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.joins import How, keeps_left, keeps_right
from crosscut.graph.windows import AggregateFold, CountFold, ProcessFold, ReduceFold, SumFold

TURNS, TURNS_OF_TWO = drawn_turns(), drawn_turns(2)


def key_of(row: Any) -> Any:
    return row[0]


def records_of(turns: list[Any], place: int = 0) -> list[Row]:
    return [row for turn in turns if turn[0] == place for row in turn[1]]


def bag(records: Iterable[Any]) -> Counter[str]:
    return Counter(map(repr, records))


def said_by(tasks: Tasks, turns: list[Any]) -> list[Any]:
    """Return all that the tasks say, to the end."""
    return [one for turn in turns for one in tasks.turn(turn)] + tasks.end()


# Folds.


def appended(numbers: list[int], number: int) -> list[int]:
    return [*numbers, number]


def running(rows: list[Row], value: Callable[[list[int]], Any]) -> list[Any]:
    """Return (key, value) after each record."""
    of_key: dict[Any, list[int]] = {}
    said = []
    for key, _, number in rows:
        of_key.setdefault(key, []).append(number)
        said.append((key, value(of_key[key])))
    return said


FOLDS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[list[int]], Any]]] = {
    "count": (lambda keyed, emit: keyed.count(emit=emit), len),
    "sum": (lambda keyed, emit: keyed.sum(abs, emit=emit), lambda numbers: sum(map(abs, numbers))),
    "reduce": (lambda keyed, emit: keyed.reduce(max, emit=emit), max),
    "aggregate": (lambda keyed, emit: keyed.aggregate(list, appended, emit=emit), list),
    "top_n": (
        lambda keyed, emit: keyed.top_n(2, abs, emit=emit),
        lambda numbers: sorted(numbers, key=abs, reverse=True)[:2],
    ),
}


@given(st.sampled_from([*FOLDS]), st.booleans(), TURNS, PARALLELISM)
@settings(max_examples=examples(120, few=50))
def test_a_fold_says_what_the_records_of_each_key_come_to(
    name: str, is_final: bool, turns: list[Any], parallelism: int
) -> None:
    make, value = FOLDS[name]
    tasks = Tasks(lambda s: make(s.key_by(key_of), "final" if is_final else "updates"), parallelism)
    expected = running(records_of(turns), value)
    assert bag(said_by(tasks, turns)) == bag(dict(expected).items() if is_final else expected)


# Windows; the global one is in test_windows.


@given(st.integers(1, 3), TURNS, PARALLELISM)
def test_count_windows_have_n_records_each_and_the_rest_comes_at_the_end(
    n: int, turns: list[Any], parallelism: int
) -> None:
    tasks = Tasks(lambda s: s.key_by(key_of).window(cc.count_window(n)).process(_sorted), parallelism)
    said = said_by(tasks, turns)
    numbers: dict[Any, list[int]] = {}
    for key, _, number in records_of(turns):
        numbers.setdefault(key, []).append(number)
    expected = [
        (key, tuple(sorted(own[at : at + n]))) for key, own in numbers.items() for at in range(0, len(own), n)
    ]
    assert bag((one.key, one.value) for one in said) == bag(expected)


def _sorted(window: Any) -> list[Any]:
    return [tuple(sorted(window.value))]


@given(CASES, TURNS, PARALLELISM)
@settings(max_examples=examples(150, few=50))
def test_any_window_at_any_parallelism_says_what_plain_loops_say(
    case: Case, turns: list[Any], parallelism: int
) -> None:
    tasks = Tasks(lambda stream: folded(stream, case), parallelism)
    naive = Naive(case)
    for turn in turns:
        said = tasks.turn(turn)
        if turn[0] == 0:
            expected = naive.step(turn[1])
        else:
            expected = naive.step(tasks.watermark) if turn[0] == "watermark" else []
        assert bag(said) == bag(result for result, _ in expected)
    assert bag(tasks.end()) == bag(result for result, _ in naive.step(END_OF_TIME))
    assert not any(len(state) for state in tasks.states)


def folded(stream: Any, case: Case) -> Any:
    windows = stream.key_by(key_of).window(case.window, case.trigger, f"{case.lateness_ms}ms")
    match case.fold:
        case CountFold():
            return windows.count()
        case SumFold(function):
            return windows.sum(function)
        case ReduceFold(function):
            return windows.reduce(function)
        case AggregateFold(initial, add, result, merge):
            return windows.aggregate(initial, add, result, merge)
        case ProcessFold(function):
            return windows.process(function)


# deduplicate


@given(TURNS, PARALLELISM)
def test_one_record_of_each_key_is_let_through(turns: list[Any], parallelism: int) -> None:
    tasks = Tasks(lambda s: s.key_by(key_of).deduplicate(), parallelism)
    first: dict[Any, Any] = {}
    for key, _, number in records_of(turns):
        first.setdefault(key, number)
    assert bag(said_by(tasks, turns)) == bag(first.values())


@given(st.integers(1, 15), TURNS, PARALLELISM, st.booleans())
@settings(max_examples=examples(150, few=50))
def test_records_are_let_through_that_are_as_far_away_from_all_others_as_they_should(
    within: int, turns: list[Any], parallelism: int, is_timed: bool
) -> None:
    tasks = Tasks(
        lambda s: s.key_by(key_of).deduplicate(within=within / 1_000), parallelism, is_timed=is_timed
    )
    passed: list[tuple[Any, int]] = []
    expected = []
    watermark, now_ms = 0, NOW_MS
    for turn in turns:
        if turn[0] == "watermark":
            watermark += turn[1]
            # Of these nothing is known any more: whoever is near enough is late.
            passed = [one for one in passed if not is_timed or one[1] + within > watermark]
        if turn[0] == "clock":
            now_ms += turn[1]
        for key, time, number in turn[1] if turn[0] == 0 else ():
            moment = time if is_timed else now_ms
            if not any(key == other and abs(moment - at) < within for other, at in passed):
                expected.append(number)
                if not (is_timed and watermark and moment + within <= watermark):
                    passed.append((key, moment))
    assert bag(said_by(tasks, turns)) == bag(expected)
    assert not any(len(state) for state in tasks.states)


# Joins.


@given(st.integers(-8, 8), st.integers(0, 8), st.sampled_from(get_args(How)), TURNS_OF_TWO, PARALLELISM)
@settings(max_examples=examples(150, few=50))
def test_an_interval_join_at_any_parallelism_says_what_nested_loops_say(
    lower: int, length: int, how: How, turns: list[Any], parallelism: int
) -> None:
    def join(one: Any, other: Any) -> Any:
        bounds = (f"{n}ms" if n >= 0 else n / 1_000 for n in (lower, lower + length))
        return one.key_by(key_of).interval_join(other.key_by(key_of), *bounds, how=how)

    sides = punctual(turns)
    met = [
        (left, right)
        for left in sides[0]
        for right in sides[1]
        if left[0] == right[0] and lower <= right[1] - left[1] <= lower + length
    ]
    expected = [(left[0], (left[2], right[2])) for left, right in met]
    if keeps_left(how):
        expected += [(one[0], (one[2], None)) for one in without(sides[0], [left for left, _ in met])]
    if keeps_right(how):
        expected += [(one[0], (None, one[2])) for one in without(sides[1], [right for _, right in met])]
    tasks = Tasks(join, parallelism, 2)
    assert bag(said_by(tasks, turns)) == bag(expected)
    assert not any(len(state) for state in tasks.states)


def without(rows: list[Row], met: list[Row]) -> list[Row]:
    return [one for one in rows if not any(one is other for other in met)]


def punctual(turns: list[Any]) -> list[list[Row]]:
    """Return the records of each side that are not late: each an object of its own."""
    sides: list[list[Row]] = [[], []]
    watermark = -1
    for turn in turns:
        if turn[0] == "watermark":
            watermark = max(watermark, 0) + turn[1]
        elif isinstance(turn[0], int):
            sides[turn[0]] += [(key, time, one) for key, time, one in turn[1] if time >= watermark]
    return sides


@given(st.integers(1, 8), st.sampled_from(get_args(How)), TURNS_OF_TWO, PARALLELISM)
def test_a_window_join_at_any_parallelism_says_all_pairs_of_each_window(
    size: int, how: How, turns: list[Any], parallelism: int
) -> None:
    def join(one: Any, other: Any) -> Any:
        return one.key_by(key_of).window_join(other.key_by(key_of), cc.tumbling(size / 1_000), how=how)

    # No watermark before the end: what is in a window depends on the records alone.
    turns = [turn for turn in turns if turn[0] != "watermark"]
    sides = [records_of(turns, place) for place in (0, 1)]
    expected = []
    for key, start in {(key, time - time % size) for side in sides for key, time, _ in side}:
        lefts, rights = (
            [one for k, time, one in side if k == key and start <= time < start + size] for side in sides
        )
        some = rights or ([None] if keeps_left(how) else [])
        others = lefts or ([None] if keeps_right(how) else [])
        expected += [cc.Windowed(key, start, start + size, (one, other)) for one in others for other in some]
    assert bag(said_by(Tasks(join, parallelism, 2), turns)) == bag(expected)


@given(st.sampled_from(["inner", "left"]), TURNS_OF_TWO, PARALLELISM)
def test_a_join_with_the_latest_at_any_parallelism_takes_what_came_last(
    how: Any, turns: list[Any], parallelism: int
) -> None:
    def join(one: Any, other: Any) -> Any:
        return one.key_by(key_of).latest_join(other.key_by(key_of), how=how)

    latest: dict[Any, Any] = {}
    expected = []
    for turn in turns:
        for key, _, record in turn[1] if isinstance(turn[0], int) else ():
            if turn[0] == 1:
                latest[key] = record
            elif key in latest or how == "left":
                expected.append((key, (record, latest.get(key))))
    assert bag(said_by(Tasks(join, parallelism, 2, is_timed=False), turns)) == bag(expected)


@given(st.sampled_from(["inner", "left"]), TURNS_OF_TWO, PARALLELISM)
@settings(max_examples=examples(150, few=50))
def test_a_join_with_the_latest_at_any_parallelism_finds_the_version_that_was_valid(
    how: Any, turns: list[Any], parallelism: int
) -> None:
    def join(one: Any, other: Any) -> Any:
        return one.key_by(key_of).latest_join(other.key_by(key_of), how=how)

    # Late versions are taken where they are still the latest: that is not determined by the records alone.
    watermark, turns_in_time = -1, []
    for turn in turns:
        if turn[0] == "watermark":
            watermark = max(watermark, 0) + turn[1]
        in_time = turn[0] != 1
        turns_in_time.append(turn if in_time else (1, [one for one in turn[1] if one[1] >= watermark]))
    lefts, rights = punctual(turns_in_time)
    expected = []
    for key, time, record in lefts:
        versions = [(at, number) for number, (k, at, _) in enumerate(rights) if k == key and at <= time]
        if versions or how == "left":
            expected.append((key, (record, rights[max(versions)[1]][2] if versions else None)))
    assert bag(said_by(Tasks(join, parallelism, 2), turns_in_time)) == bag(expected)


# Processes: those of drawn flows, which say so themselves if something of time is wrong.


@given(st.sampled_from(get_args(HoldName)), st.integers(0, 15), TURNS, PARALLELISM)
@settings(max_examples=examples(150, few=50))
def test_each_record_that_a_timer_holds_leaves_once(
    clock: HoldName, delay: int, turns: list[Any], parallelism: int
) -> None:
    process = processes.holding(Hold(0, clock, delay))
    tasks = Tasks(lambda s: s.key_by(key_of).process(process), parallelism)
    said = said_by(tasks, turns)
    assert bag(said) == bag(number for _, _, number in records_of(turns))


@given(st.sampled_from(get_args(ClockName)), TURNS, PARALLELISM)
@settings(max_examples=examples(150, few=50))
def test_a_value_is_there_as_long_as_it_lives_and_not_longer(
    clock: ClockName, turns: list[Any], parallelism: int
) -> None:
    tasks = Tasks(lambda s: s.key_by(key_of).process(processes.mortal(clock)), parallelism)
    # Long enough that it dies.
    turns = [(turn[0], 8 * turn[1]) if turn[0] in ("watermark", "clock") else turn for turn in turns]
    assert bag(said_by(tasks, turns)) == bag(number for _, _, number in records_of(turns))


@given(st.sampled_from(get_args(StateName)), TURNS, PARALLELISM)
def test_state_of_each_kind_counts(state: StateName, turns: list[Any], parallelism: int) -> None:
    turns = [(0, [(key, at, (key, n)) for key, at, n in t[1]]) if t[0] == 0 else t for t in turns]
    tasks = Tasks(lambda s: processes.tallied(s.key_by(key_of), state, KeyBy(0, "one", 1)), parallelism)
    anew = processes.ANEW_AFTER if state == "stateful" else 1 << 30
    seen: Counter[Any] = Counter()
    expected = []
    for key, _, _ in records_of(turns):
        expected.append((None if state == "stateful" else key, seen[key] % anew + 1))
        seen[key] += 1
    assert bag(said_by(tasks, turns)) == bag(expected)


@given(TURNS_OF_TWO, PARALLELISM)
def test_two_connected_streams_meet_in_pairs(turns: list[Any], parallelism: int) -> None:
    def connected(one: Any, other: Any) -> Any:
        return one.key_by(key_of).connect(other.key_by(key_of)).process(processes.Pairing())

    lefts, rights = (records_of(turns, place) for place in (0, 1))
    expected = [
        functions.of_pair(key, left, right)
        for key, _, left in lefts
        for other, _, right in rights
        if key == other
    ]
    assert bag(said_by(Tasks(connected, parallelism, 2), turns)) == bag(expected)


# Calls.


def answered(record: int) -> int:
    if record % 4 == 3:
        raise LookupError(record)
    return 10 * record


def mapped(stream: Any, *, ordered: bool) -> Any:
    return stream.map_async(answered, capacity=3, retries=1, ordered=ordered)


@given(TURNS, PARALLELISM, st.booleans(), st.lists(st.integers(0, 9), max_size=20), st.randoms())
@settings(max_examples=examples(150, few=50))
def test_each_record_is_answered_once_whoever_has_it(
    turns: list[Any], parallelism: int, ordered: bool, answers: list[int], dice: Any
) -> None:
    turns = [(0, [(key, at, abs(n) * 4) for key, at, n in t[1]]) if t[0] == 0 else t for t in turns]
    tasks = Calls(lambda s: mapped(s, ordered=ordered), parallelism)
    said: list[Any] = []
    moves = [*(("turn", turn) for turn in turns), *(("answer", number) for number in answers)]
    dice.shuffle(moves)
    came = [turn for kind, turn in moves if kind == "turn"]
    for kind, move in moves:
        said += tasks.turn(move) if kind == "turn" else tasks.answer(move, answered)
    while tasks.asked:
        said += tasks.answer(0, answered)
    expected = [10 * number for _, _, number in records_of(came)]
    assert bag(said) == bag(expected)
    assert not any(len(state) for state in tasks.states)
    if ordered and parallelism == 1 and all(turn[1] == 1 for turn in came if turn[0] == "restore"):
        assert said == expected


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.booleans())
def test_a_record_for_which_all_calls_fail_is_blamed_after_its_retries(
    numbers: list[int], ordered: bool
) -> None:
    tasks = Calls(lambda s: mapped(s, ordered=ordered), 1)
    tasks.take(0, [("a", 0, number) for number in numbers])
    failing = [number for number in numbers if number % 4 == 3]
    calls: Counter[int] = Counter()

    def noted(record: int) -> int:
        calls[record] += 1
        return answered(record)

    try:
        while tasks.asked:
            tasks.answer(0, noted)
    except cc.errors.UserCodeError as error:
        assert failing
        assert max(calls[number] for number in failing) >= 2, error
    else:
        assert not failing


@given(TURNS, PARALLELISM)
def test_a_rate_limit_lets_all_pass(turns: list[Any], parallelism: int) -> None:
    tasks = Calls(lambda s: s.rate_limit(5), parallelism)
    said = [one for turn in turns for one in tasks.turn(turn)]
    while tasks.asked:
        said += tasks.answer(0, lambda record: record)
    assert bag(said) == bag(number for _, _, number in records_of(turns))
