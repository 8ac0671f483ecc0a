"""What sources may do in micro-batches: find splits while the job runs, hear of checkpoints, say nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.driver.driver import CoordinatorDriver
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.graph.specs import JobGraph
from crosscut.microbatch.bounded_splits import BoundedSplits
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.messages import AssignSplits
from crosscut.protocol.microbatch.discovered_splits import DiscoveredSplits
from crosscut.protocol.microbatch.reading import PATIENCE_MS, SplitRead, empty_splits, is_enough

STORM = FaultProfile(doubled=0.3, torn=0.3, lost=0.1)
CALM = FaultProfile()
SOURCE = VertexId("in")
E1, E2 = Epoch(1), Epoch(2)
SPLITS, RECORDS = 12, 10


def made(seed: int, fault_profile: FaultProfile) -> Callable[[JobGraph, str], LocalJobs]:
    return lambda graph, url: LocalJobs(graph, url, Random(seed), fault_profile)


def settings(tmp_path: Path, records_max: int = 8, trigger: Any = "interval", **others: Any) -> cc.Settings:
    # How many runs are lost depends on how many batches there are, and so on the machine.
    restart = cc.Restart(failures=1_000, delay_step="1ms", delay_max="1ms")
    given: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": "10ms"}
    given |= {"restart": restart} | others
    engine = cc.MicroBatch(records_max=records_max, trigger=trigger)
    return cc.Settings(engine=engine, checkpoint_dir=tmp_path / "checkpoints", **given)


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


@pytest.mark.parametrize("fault_profile", [CALM, STORM], ids=["calm", "storm"])
def test_each_split_that_comes_is_read_once(tmp_path: Path, fault_profile: FaultProfile) -> None:
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("coming")
    flow.source(Coming()).sink(out)
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path), made(1, fault_profile))
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


def test_a_split_that_is_given_again_after_a_checkpoint_has_it_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted."""
    monkeypatch.setattr(DiscoveredSplits, "completed", lambda found, n: None)
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("coming")
    flow.source(Coming()).sink(out)
    run_batches(
        flow.compile(2, 128),
        settings(tmp_path),
        made(1, CALM),
        lambda driver: len(out.records()) > SPLITS * RECORDS,
    )
    assert len(out.records()) > len(set(out.records()))


def given(since: int, *names: str, index: int = 0, epoch: Epoch = E1, is_last: bool = False) -> AssignSplits:
    return AssignSplits(epoch, TaskId(SOURCE, index), CheckpointId(since), list(names), is_last)


def test_a_split_is_given_to_each_batch_that_counts_it_until_a_checkpoint_has_it() -> None:
    found = DiscoveredSplits()
    found.begin(E1)
    found.assigned(given(3, "a"))
    found.assigned(given(4, "b", index=1))
    assert found.of_batch(CheckpointId(2), {SOURCE}, 0) == ()
    for _ in range(2):
        assert found.of_batch(CheckpointId(3), {SOURCE}, 0) == (given(3, "a"),)
    assert found.of_batch(CheckpointId(3), {"other"}, 0) == ()
    assert found.of_batch(CheckpointId(4), {SOURCE}, 1) == (given(4, "b", index=1),)
    found.completed(CheckpointId(3))
    told = (given(3),)
    assert found.of_batch(CheckpointId(4), {SOURCE}, 0) == told, "that the source has had splits"
    assert found.of_batch(CheckpointId(4), {SOURCE}, 1) == (given(4, "b", index=1),)


def test_that_no_other_split_comes_is_told_to_each_batch() -> None:
    found = DiscoveredSplits()
    found.begin(E1)
    found.assigned(given(1, "a", is_last=True))
    found.completed(CheckpointId(1))
    assert found.of_batch(CheckpointId(2), {SOURCE}, 0) == (given(1, is_last=True),)


def test_what_was_found_in_another_epoch_is_given_to_nobody() -> None:
    found = DiscoveredSplits()
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


class UnevenReader(SplitReader[int]):
    def __init__(self, position: Any, end: int) -> None:
        self._next: int = position
        self._end = end

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


class ListeningReader(UnevenReader):
    def __init__(self, heard: Path, split: cc.Split, position: Any) -> None:
        super().__init__(position, 30 if split.split_id == "s00" else 0)
        self._heard = heard
        self._name = split.split_id

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
        settings(tmp_path, parallelism=1, records_max=10),
        made(1, CALM),
        is_enough,
    )
    lines = dict.fromkeys(heard.read_text().splitlines())
    assert list(lines) == ["s00 10", "s00 20", "s00 30"], "nothing is before the beginning of the other"


class Late(Coming):
    """A source whose first split comes when others have been read to their ends."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def discover(self, known: JSON) -> cc.Discovered:
        looks = known if isinstance(known, int) else 0
        if looks < self._looks:
            return cc.Discovered([], looks + 1)
        return cc.Discovered([cc.Split("s00", 0)], looks, is_last=True)


def test_no_record_is_late_since_the_other_source_of_a_join_has_had_no_split_yet(tmp_path: Path) -> None:
    """P2."""
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("late")
    left = flow.source(Late(5)).assign_timestamps(lambda one: one * 1_000).key_by(lambda one: "k")
    right = flow.source(cc.items(range(RECORDS))).assign_timestamps(lambda one: one * 1_000)
    left.window_join(right.key_by(lambda one: "k"), cc.tumbling("1s")).map(lambda one: one.value).sink(out)
    end, _ = run_batches(flow.compile(2, 128), settings(tmp_path), made(1, CALM))
    assert end is not None and end.outcome == "finished", end
    assert sorted(out.records()) == [(number, number) for number in range(RECORDS)]


class Uneven(cc.Source[int]):
    """Split "a" has the numbers up to 100; "b" has nothing, and never ends."""

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("a", 0), cc.Split("b", 0)]

    def reader(self, split: cc.Split, position: JSON) -> SplitReader[int]:
        return UnevenReader(position, 100 if split.split_id == "a" else 0)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_split_without_records_does_not_hold_windows_up_for_ever(tmp_path: Path, parallelism: int) -> None:
    """With 2, the split is all that its task has: those behind are told to wait for nobody there."""
    out = cc.collect(tmp_path / "out")
    flow = cc.Flow("uneven")
    timed = flow.source(Uneven()).assign_timestamps(lambda one: one * 10, idle_after="300ms")
    timed.key_by(lambda one: 0).window(cc.tumbling("100ms")).count().sink(out)

    def has_closed_all(driver: CoordinatorDriver) -> bool:
        return len(out.records()) == 9

    given_settings = settings(tmp_path, parallelism=parallelism, records_max=40)
    run_batches(flow.compile(parallelism, 128), given_settings, made(1, CALM), has_closed_all)
    assert sorted((one.start, one.value) for one in out.records()) == [(100 * n, 10) for n in range(9)]


def test_a_split_is_idle_by_what_all_batches_say_of_it_and_only_at_the_end_of_one() -> None:
    def operator(now_ms: int, saved: JSON) -> AssignTimestamps:
        one = AssignTimestamps("times", lambda record: record, 0, 100)
        one.time_budget.now_ms = now_ms
        one.begin(["a", "b"], saved)
        return one

    first = operator(1_000, None)
    first.waits_for("b")
    first.origin = "a"
    first.process(Batch([50]))
    first.batch_ends(["a", "b"])
    assert first.watermark is None
    assert first.saved == [None, {"a": 50}, {"b": 1_000}]
    second = operator(1_100, first.saved)
    second.waits_for("b")
    assert second.watermark is None, "nobody knows yet what this batch brings"
    second.batch_ends(["a", "b"])
    assert second.watermark == 50
    third = operator(1_200, second.saved)
    third.origin = "b"
    third.process(Batch([70]))
    third.batch_ends(["a", "b"])
    assert third.saved == [70, {"a": 50, "b": 70}, {"a": 1_100}]


ENDLESS_MS = float("inf")


def read(split: str, lag: int | None, *, has_given: bool = False, is_coming: bool = False) -> SplitRead:
    return SplitRead(split, has_given, lag, is_coming)


def test_a_split_that_may_not_have_come_by_its_first_records_yet_is_not_called_empty() -> None:
    knows, silent, gave = read("knows", 0), read("silent", None), read("gave", None, has_given=True)
    assert empty_splits([knows, silent, gave], 0, is_full=True) == ("knows",)
    assert empty_splits([knows, silent, gave], 0, is_full=False) == ("knows", "gave")
    assert empty_splits([silent, read("lags", 3)], PATIENCE_MS, is_full=False) == ("silent", "lags")
    assert empty_splits([silent, read("lags", 3)], PATIENCE_MS, is_full=True) == ()


def test_nobody_knows_how_much_waits_while_there_are_splits_that_were_never_opened() -> None:
    source = Coming()
    source.open_splits_max = 1
    unread = [(cc.Split(f"s{n:02}", n * RECORDS), n * RECORDS) for n in range(2)]
    splits = BoundedSplits(source, unread, "in", 4)
    splits.read(4)
    assert splits.is_full
    assert splits.lag is None
    alone = BoundedSplits(source, unread[:1], "in", 4)
    alone.read(4)
    assert alone.lag == RECORDS - 4


def test_a_batch_has_enough_when_all_have_had_their_say_or_have_had_the_time_for_it() -> None:
    assert is_enough([read("a", 0), read("b", None, has_given=True)], 0, ENDLESS_MS)
    for waits in (read("a", 1, has_given=True), read("a", None)):
        assert not is_enough([waits], PATIENCE_MS - 1, ENDLESS_MS)
        assert is_enough([waits], PATIENCE_MS, ENDLESS_MS)


def test_a_batch_waits_for_what_is_on_its_way() -> None:
    for coming in (read("a", None, has_given=True, is_coming=True), read("a", 0, is_coming=True)):
        assert not is_enough([coming, read("b", 0)], 2 * PATIENCE_MS - 1, 2 * PATIENCE_MS)
        assert is_enough([coming, read("b", 0)], 2 * PATIENCE_MS, 2 * PATIENCE_MS)
        assert empty_splits([coming, read("b", 0)], 0, is_full=False) == ("b",)


class Fetched(cc.Source):
    """Fetches one record after the other, in the time that the test says."""

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("only", 0)]

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        assert isinstance(position, int)
        return FetchedReader(position)


class FetchedReader(SplitReader):
    def __init__(self, position: int) -> None:
        self._position = position
        self._is_fetched = False

    @property
    def position(self) -> JSON:
        return self._position

    @property
    def lag(self) -> int | None:
        return None if self._position < RECORDS else 0

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        self._is_fetched = not self._is_fetched
        if self._position == RECORDS:
            return Wait(1.0)
        if self._is_fetched:
            return Wait(1.0, is_coming=True)
        self._position += 1
        return [self._position]


def test_a_job_that_reads_what_there_is_reads_also_what_is_on_its_way(tmp_path: Path) -> None:
    flow, out = cc.Flow("fetched"), cc.collect(tmp_path / "out")
    flow.source(Fetched()).sink(out)
    given = settings(tmp_path, parallelism=1, trigger="available_now", records_max=100)
    end, _ = run_batches(flow.compile(1, 128), given, made(1, CALM))
    assert end is not None
    assert end.outcome == "stopped", end
    assert out.records() == list(range(1, RECORDS + 1))


class Counted(cc.DynamicSource[int]):
    """One split for each number below that in a file; it takes its time to look."""

    discover_every = "1ms"

    def __init__(self, path: Path) -> None:
        self._path = path

    def discover(self, known: JSON) -> cc.Discovered:
        time.sleep(0.03)
        first, end = known if isinstance(known, int) else 0, int(self._path.read_text())
        return cc.Discovered([cc.Split(f"s{n:02}", n * RECORDS) for n in range(first, end)], end)

    def reader(self, split: cc.Split, position: JSON) -> SplitReader[int]:
        return Counting(split, position)


def test_a_job_that_reads_what_there_is_first_hears_what_has_come_since_the_last_start(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    for count in (2, 3, 5):
        there.write_text(str(count))
        flow, out = cc.Flow("counted"), cc.collect(tmp_path / "out")
        flow.source(Counted(there)).sink(out)
        end, _ = run_batches(flow.compile(2, 128), settings(tmp_path, trigger="available_now"), made(1, CALM))
        assert end is not None
        assert end.outcome == "stopped", end
        assert sorted(out.records()) == list(range(count * RECORDS))


class Made(Counted):
    """As `Counted`, but its splits are being made from the first call on, and it says so."""

    discover_every = "50ms"
    CALLS = 8

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.calls = 0

    def discover(self, known: JSON) -> cc.Discovered:
        self.calls += 1
        if self.calls < self.CALLS:
            return cc.Discovered(known=known, is_coming=True)
        return super().discover(known)


def test_a_job_that_reads_what_there_is_waits_for_splits_that_are_being_made(tmp_path: Path) -> None:
    """Its first start too, and one call in between that finds nothing yet ends it as little."""
    there = tmp_path / "there"
    for count in (2, 3):
        there.write_text(str(count))
        flow, out = cc.Flow("made"), cc.collect(tmp_path / "out")
        flow.source(Made(there)).sink(out)
        end, _ = run_batches(flow.compile(2, 128), settings(tmp_path, trigger="available_now"), made(1, CALM))
        assert end is not None
        assert end.outcome == "stopped", end
        assert sorted(out.records()) == list(range(count * RECORDS))
