"""The generate source: numbers, pace and failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from crosscut.connectors.simple.generate import generate
from crosscut.contracts.connectors import EndOfSplit, Source, SplitReader, Wait
from crosscut.errors import ConnectorError, SettingsError
from crosscut.testing.sources import read_split


def readers(source: Source, parallelism: int) -> list[SplitReader]:
    return [source.reader(split, split.start) for split in source.splits(parallelism)]


def test_splits_take_turns() -> None:
    source = generate(lambda i: i, count=8)
    assert [read_split(source, split) for split in source.splits(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_more_splits_than_records_leave_some_empty() -> None:
    source = generate(lambda i: i, count=2)
    assert [reader.read(9) for reader in readers(source, 4)] == [[0], [1], EndOfSplit(), EndOfSplit()]


def test_without_a_count_it_never_ends() -> None:
    source = generate(lambda i: -i)
    (split,) = source.splits(1)
    reader = source.reader(split, 10**12)
    assert reader.read(3) == [-(10**12), -(10**12) - 1, -(10**12) - 2]
    assert reader.position == 10**12 + 3


class Clock:
    """A monotonic clock that the test moves, and the time of day, which it can set, too."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.set_by_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0 + made.now_s + made.set_by_s)
    return made


def test_what_is_due_is_returned_at_once_and_waiting_is_until_the_next(clock: Clock) -> None:
    (reader,) = readers(generate(lambda i: i, rate=100), 1)
    assert reader.read(50) == [0]
    wait = reader.read(50)
    assert isinstance(wait, Wait)
    assert wait.delay_ms == pytest.approx(10.0)
    clock.now_s += 0.0101
    assert reader.read(50) == [1]
    clock.now_s += 0.03
    assert reader.read(2) == [2, 3]
    assert reader.read(2) == [4]


def test_the_rate_is_shared_by_the_splits_evenly(clock: Clock) -> None:
    parts = readers(generate(lambda i: i, rate=1_000), 4)
    arrivals: list[tuple[int, int]] = []
    start_s = clock.now_s
    for millisecond in range(100):
        clock.now_s = start_s + millisecond / 1_000.0 + 1e-6
        for part in parts:
            found = part.read(10)
            if isinstance(found, list):
                arrivals += [(millisecond, record) for record in found]
    assert arrivals == [(i, i) for i in range(100)]


def test_a_stall_is_caught_up_on_by_100_ms_worth_only(clock: Clock) -> None:
    (reader,) = readers(generate(lambda i: i, rate=1_000), 1)
    clock.now_s += 60
    caught_up: list[int] = []
    while not isinstance(found := reader.read(100_000), Wait):
        assert isinstance(found, list)
        caught_up += found
    assert caught_up == list(range(101))


def all_due(reader: SplitReader) -> list[Any]:
    """Return what a reader gives until it waits."""
    found: list[Any] = []
    while isinstance(read := reader.read(100), list):
        found += read
    return found


def test_readers_that_follow_each_other_keep_the_rate(clock: Clock) -> None:
    """Each micro-batch has a reader of its own."""
    source = generate(lambda i: i, rate=1_000)
    (split,) = source.splits(1)
    position: Any = split.start
    made: list[int] = []
    for _ in range(20):
        reader = source.reader(split, position)
        made += all_due(reader)
        position = reader.position
        assert reader.lag == 0
        clock.now_s += 0.7
    assert made == list(range(len(made)))
    assert len(made) == pytest.approx(19 * 700, abs=20)


def test_a_restored_split_catches_up_on_10_s_worth_only(clock: Clock) -> None:
    source = generate(lambda i: i, rate=1_000)
    (split,) = source.splits(1)
    before = source.reader(split, split.start)
    assert before.read(100) == [0]
    clock.now_s += 3_600
    reader = source.reader(split, before.position)
    made = all_due(reader)
    assert made == list(range(1, 1 + len(made)))
    assert len(made) == pytest.approx(10_000, abs=2)
    clock.now_s += 3_600
    assert len(all_due(reader)) == pytest.approx(100, abs=2)


def test_a_clock_that_was_set_back_holds_no_record_up(clock: Clock) -> None:
    source = generate(lambda i: i, rate=1_000)
    (split,) = source.splits(1)
    before = source.reader(split, split.start)
    assert before.read(100) == [0]
    clock.set_by_s = -3_600
    reader = source.reader(split, before.position)
    wait = reader.read(100)
    assert isinstance(wait, Wait)
    assert wait.delay_ms == pytest.approx(1.0)


def test_a_position_without_the_time_goes_on_at_the_rate_from_now_on(clock: Clock) -> None:
    """Of a checkpoint that an older version has written, or of a source that had no rate."""
    source = generate(lambda i: i, rate=1_000)
    (split,) = source.splits(1)
    clock.now_s += 3_600
    reader = source.reader(split, 5_000)
    assert reader.read(1_000) == [5_000]
    assert isinstance(reader.read(1_000), Wait)


def test_a_rate_that_was_taken_away_is_no_longer_kept(clock: Clock) -> None:
    paced = generate(lambda i: i, rate=1_000)
    (split,) = paced.splits(1)
    before = paced.reader(split, split.start)
    assert before.read(100) == [0]
    assert generate(lambda i: i).reader(split, before.position).read(3) == [1, 2, 3]


def test_a_high_rate_is_not_asked_for_more_than_10_000_times_a_second(clock: Clock) -> None:
    (reader,) = readers(generate(lambda i: i, rate=1e6), 1)
    assert reader.read(10) == [0]
    wait = reader.read(10)
    assert isinstance(wait, Wait)
    assert wait.delay_ms == pytest.approx(0.1)


def raising_at(number: int, error: BaseException) -> Callable[[int], int]:
    def function(i: int) -> int:
        if i == number:
            raise error
        return i

    return function


def test_the_exception_of_the_function_comes_out_as_it_is_at_its_own_position() -> None:
    """K1: records before the failing one are not lost with it."""
    error = KeyError("mine")
    (reader,) = readers(generate(raising_at(4, error), count=10), 1)
    assert reader.read(10) == [0, 1, 2, 3]
    for _ in range(2):
        assert reader.position == 4
        with pytest.raises(KeyError) as caught:
            reader.read(10)
        assert caught.value is error


def test_stop_iteration_from_the_function_does_not_end_the_split_silently() -> None:
    """L1."""
    (reader,) = readers(generate(raising_at(2, StopIteration()), count=10), 1)
    assert reader.read(10) == [0, 1]
    with pytest.raises(ConnectorError, match="StopIteration for record 2"):
        reader.read(10)
    assert reader.position == 2


@pytest.mark.parametrize(
    "options",
    [
        {"count": -1},
        {"count": 1.0},
        {"count": True},
        {"rate": 0},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"rate": "1/s"},
        {"function": 3},
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="generate"):
        generate(**({"function": int} | options))


def test_a_split_of_another_source_is_refused() -> None:
    source = generate(int)
    (split,) = source.splits(1)
    with pytest.raises(ConnectorError, match="not of a generate source"):
        source.reader(split, "0")
