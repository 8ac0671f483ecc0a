"""What sources may do in micro-batches: find splits while the job runs, hear of checkpoints, say nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import crosscut as cc
from crosscut.driver.driver import CoordinatorDriver
from crosscut.graph.specs import JobGraph
from crosscut.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.interfaces import JSON, EndOfSplit, SplitReader, Wait
from crosscut.protocol.messages import AssignSplits
from crosscut.protocol.microbatch.found_splits import FoundSplits
from crosscut.testing.batches import LocalJobs, Weather, run_batches

STORM = Weather(doubled=0.3, torn=0.3, lost=0.1)
CALM = Weather()
SOURCE = VertexId("in")
E1, E2 = Epoch(1), Epoch(2)
SPLITS, RECORDS = 12, 10


def made(seed: int, weather: Weather) -> Callable[[JobGraph, str], LocalJobs]:
    return lambda graph, url: LocalJobs(graph, url, Random(seed), weather)


def settings(tmp_path: Path, **others: Any) -> cc.Settings:
    given = {"parallelism": 2, "checkpoint_interval": "10ms", "batch_records_max": 8} | others
    return cc.Settings(engine="micro-batch", checkpoint_dir=tmp_path / "checkpoints", **given)


class Coming(cc.DynamicSource[int]):
    """Splits that come one after the other, each with the next ten numbers."""

    discover_every = "1ms"

    def discover(self, known: JSON) -> cc.Discovered:
        count = known if isinstance(known, int) else 0
        if count == SPLITS:
            return cc.Discovered([], count, is_last=True)
        return cc.Discovered([cc.Split(f"s{count:02}", count * RECORDS)], count + 1)

    def reader(self, split: cc.Split, position: JSON) -> SplitReader[int]:
        return Counting(split, position)


class Counting(SplitReader[int]):
    def __init__(self, split: cc.Split, position: Any) -> None:
        self._next: int = position
        self._end = int(split.split_id[1:]) * RECORDS + RECORDS

    @property
    def position(self) -> JSON:
        return self._next

    @property
    def lag(self) -> int:
        return self._end - self._next

    def read(self, limit: int) -> list[int] | Wait | EndOfSplit:
        first = self._next
        self._next = min(self._end, first + limit)
        return list(range(first, self._next)) or EndOfSplit()


@pytest.mark.parametrize("weather", [CALM, STORM], ids=["calm", "storm"])
def test_each_split_that_comes_is_read_once(tmp_path: Path, weather: Weather) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("coming")
    flow.source(Coming()).sink(out)
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path), made(1, weather))
    assert end is not None
    assert end.outcome == "finished", end
    assert sorted(out.records()) == list(range(SPLITS * RECORDS))


@pytest.mark.parametrize("seed", range(3))
def test_each_split_is_read_once_whenever_the_driver_dies_and_at_another_parallelism(
    tmp_path: Path, seed: int
) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("coming")
    flow.source(Coming()).sink(out)
    random = Random(seed)
    for parallelism in (1, 3, 2):
        left = random.randrange(1, 30)

        def is_dead(driver: CoordinatorDriver) -> bool:
            nonlocal left
            left -= driver.status().phase == "running"
            return left < 0

        given = settings(tmp_path, parallelism=parallelism)
        run_batches(flow.compile(parallelism, 128), given, made(seed, STORM), is_dead)
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path), made(seed, CALM))
    assert end is not None
    assert end.outcome == "finished", end
    assert sorted(out.records()) == list(range(SPLITS * RECORDS))


def given(since: int, *names: str, index: int = 0, epoch: Epoch = E1, is_last: bool = False) -> AssignSplits:
    return AssignSplits(epoch, TaskId(SOURCE, index), CheckpointId(since), list(names), is_last)


def test_a_split_is_given_to_each_batch_that_counts_it_until_a_checkpoint_has_it() -> None:
    found = FoundSplits()
    found.begin(E1)
    found.assigned(given(3, "a"))
    found.assigned(given(4, "b", index=1))
    assert found.of_batch(CheckpointId(2), {SOURCE}, 0) == ()
    for _ in range(2):
        assert found.of_batch(CheckpointId(3), {SOURCE}, 0) == (given(3, "a"),)
    assert found.of_batch(CheckpointId(3), {"other"}, 0) == ()
    assert found.of_batch(CheckpointId(4), {SOURCE}, 1) == (given(4, "b", index=1),)
    found.completed(CheckpointId(3))
    assert found.of_batch(CheckpointId(4), {SOURCE}, 0) == ()
    assert found.of_batch(CheckpointId(4), {SOURCE}, 1) == (given(4, "b", index=1),)


def test_that_no_other_split_comes_is_told_to_each_batch() -> None:
    found = FoundSplits()
    found.begin(E1)
    found.assigned(given(1, "a", is_last=True))
    found.completed(CheckpointId(1))
    assert found.of_batch(CheckpointId(2), {SOURCE}, 0) == (given(1, is_last=True),)


def test_what_was_found_in_another_epoch_is_given_to_nobody() -> None:
    found = FoundSplits()
    found.begin(E1)
    found.assigned(given(1, "a"))
    found.begin(E2)
    found.assigned(given(1, "b"))
    assert found.of_batch(CheckpointId(9), {SOURCE}, 0) == ()
    assert found.dropped["splits of another epoch"] == 1


class Listening(cc.Source[int]):
    """Two splits, of which one has nothing; what it hears is in a file, since it travels."""

    def __init__(self, heard: Path) -> None:
        self._heard = heard

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("s00", 0), cc.Split("empty", 0)]

    def reader(self, split: cc.Split, position: JSON) -> SplitReader[int]:
        return ListeningReader(self._heard, split, position)


class ListeningReader(SplitReader[int]):
    def __init__(self, heard: Path, split: cc.Split, position: Any) -> None:
        self._heard = heard
        self._name = split.split_id
        self._next: int = position
        self._end = 30 if self._name == "s00" else 0

    @property
    def position(self) -> JSON:
        return self._next

    @property
    def lag(self) -> int:
        return self._end - self._next

    def read(self, limit: int) -> list[int] | Wait:
        first = self._next
        self._next = min(self._end, first + limit)
        return list(range(first, self._next)) or Wait(1.0)

    def acknowledge(self, position: JSON) -> None:
        with self._heard.open("a") as file:
            file.write(f"{self._name} {position}\n")


def test_readers_are_told_in_the_next_batch_of_what_is_complete_and_visible(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    heard.touch()
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("listening")
    flow.source(Listening(heard)).sink(out)

    def is_enough(driver: CoordinatorDriver) -> bool:
        found = [line.split() for line in heard.read_text().splitlines()]
        visible = len(out.records())
        assert all(int(position) <= visible for _, position in found)
        return ["s00", "30"] in found

    run_batches(
        flow.compile(1, 128),
        settings(tmp_path, parallelism=1, batch_records_max=10),
        made(1, CALM),
        is_enough,
    )
    lines = dict.fromkeys(heard.read_text().splitlines())
    assert list(lines) == ["s00 10", "s00 20", "s00 30"], "nothing is before the beginning of the other"
