"""Event time in virtual worlds: no record in bounds is ever late, no watermark goes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.graphs import WINDOW_MS, built
from tests.proof.worlds.shrinking import live
from tests.simulation.exact import all_exact
from tests.simulation.planted import must_break
from tests.simulation.seeds import some_of

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.operators.cells import TimedCells
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.operators.watermarks import CombinedWatermark
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import SourcesReached
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshots import PendingTransaction, Snapshot, TaskSnapshot
from crosscut.protocol.splits.alignment import AlignedSplits, SourceGroups
from crosscut.state.timers import Timers
from crosscut.task.chain import Chain
from crosscut.task.outputs import Output
from crosscut.testing.simulator.moving import stands_still
from crosscut.testing.simulator.options import FAULT_KINDS, FaultKind, Options, PlannedFault, options_of

SEEDS_MAX = 200
GRAPH = ("event time",)
EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching", "halting")


@some_of(80, few=25)
def test_no_record_is_late_and_no_watermark_goes_back_in_any_world(seeds: range) -> None:
    seen = all_exact(options_of(seed, GRAPH) for seed in seeds)
    assert seen["epoch"] > 1.5 * len(seeds)
    assert seen["job finished"] > len(seeds) // 2
    assert seen["watermark passed"] > 10 * len(seeds)
    assert seen["watermark restored"] > len(seeds) // 10


def waits_for_the_first(self: CombinedWatermark[Any]) -> int | None:
    """The highest watermark counts instead of the lowest."""
    return max((one for one in self._sides.values() if one is not None), default=None)


def forgets_where_it_was(plain: Callable[..., None]) -> Callable[..., None]:
    def begin(self: CombinedWatermark[Any], sides: Any, watermark: int | None = None, **others: Any) -> None:
        plain(self, dict.fromkeys(sides), None, **others)

    return begin


def says_news_first(self: Output, taken: Any, news: Batch) -> Any:
    """A watermark goes ahead of the records that it follows."""
    return [(channel, Batch([], watermark=news.watermark)) for channel in self.channels] + list(taken)


def leaves_news_with_the_first_part(plain: Callable[..., Any]) -> Callable[..., Any]:
    def split(self: Batch, rows: int) -> tuple[Batch, Batch]:
        head, rest = plain(self, rows)
        head.add_news(rest.watermark, idle=rest.idle)
        rest.take_news()
        return head, rest

    return split


def promises_more_than_was_said(plain: Callable[..., None]) -> Callable[..., None]:
    def begin(
        self: AssignTimestamps, uid: str, function: Any, out_of_orderness_ms: int, *others: Any
    ) -> None:
        plain(self, uid, function, 0, *others)

    return begin


def restores_old_watermarks(plain: Callable[..., None]) -> Callable[..., None]:
    """A restored task goes on from an older watermark than its snapshot has."""

    def restore(self: Chain, watermark: int | None, assigned: Any, splits: Any, **others: Any) -> None:
        older = {uid: [None, {}] for uid in assigned} if assigned else assigned
        plain(self, watermark, older, splits, **others)

    return restore


PLANTED: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "the highest watermark counts": (CombinedWatermark, "_lowest", lambda _: waits_for_the_first),
    "a restored task forgets its watermark": (CombinedWatermark, "__init__", forgets_where_it_was),
    "a watermark goes ahead of records": (Output, "_with_news", lambda _: says_news_first),
    "the first part of a batch has its watermark": (Batch, "split", leaves_news_with_the_first_part),
    "a source promises more than was said": (AssignTimestamps, "__init__", promises_more_than_was_said),
    "sources begin with no watermark": (Chain, "restore", restores_old_watermarks),
}


# What has to move does, before input ends.

CROWD: dict[str, Any] = {"channel_bytes": 50, "step_us": 2_000, "interval_ms": 10}


def open_worlds(graph: str, seeds: Sequence[int]) -> Iterator[Options]:
    """Jobs that go on at another parallelism, and then stay open until all has moved."""
    for seed in seeds:
        # In half of them records are on their way whenever a driver dies.
        options = options_of(seed, (graph,), ("unaligned",) if seed % 2 else EXACTLY_ONCE)
        crowd = CROWD if seed % 2 else {}
        gap_ms = max(options.safety_ms // 8, 40)
        deaths = [PlannedFault(ms, "kill the driver") for ms in range(gap_ms, options.safety_ms, gap_ms)]
        yield replace(
            options,
            is_periodic=True,
            stays_open=True,
            parallelism=2,
            rescaled_to=((3, 1, 4), (1, 3), (4, 2))[seed % 3],
            faults=tuple(deaths),
            **crowd,
        )


MOVING = (11, 13, 16, 19)
"""Worlds that go on at another parallelism, of two with records on their way."""


@pytest.mark.parametrize(
    "seeds", [MOVING, pytest.param(range(20), marks=pytest.mark.proof)], ids=["few", "all"]
)
@pytest.mark.parametrize("graph", ["timers", "event time"])
def test_watermarks_checkpoints_commits_and_lag_move_before_input_ends(
    graph: str, seeds: Sequence[int]
) -> None:
    """P1, I14: splits are far apart in event time, and drivers that follow have another parallelism."""
    seen = all_exact(open_worlds(graph, seeds))
    assert seen["all moves"] == len(seeds)
    assert seen["rescaled"] > len(seeds) // 2
    assert seen["rescaled: records on their way"]


def test_event_time_that_stands_still_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: what was said before is taken for the lowest side, and it is below all of them."""
    plain_begin, plain_heard = CombinedWatermark.__init__, CombinedWatermark.update

    def begin(self: CombinedWatermark[Any], sides: Any, watermark: int | None = None, **others: Any) -> None:
        plain_begin(self, sides, watermark, **others)
        self.watermark = watermark

    def heard(self: CombinedWatermark[Any], side: Any, watermark: Any, **others: Any) -> Batch | None:
        self._lowest_side = self.watermark
        return plain_heard(self, side, watermark, **others)

    monkeypatch.setattr(CombinedWatermark, "__init__", begin)
    monkeypatch.setattr(CombinedWatermark, "update", heard)
    failures = (live(options).failure for options in open_worlds("timers", range(20)))
    must_break("I14: 5000 ms after the last fault there stands still: watermark", failures)


def test_whatever_stands_still_is_named() -> None:
    """I14: lag, watermark, commit."""
    job = built(replace(options_of(0, ("event time",)), parallelism=1, splits_per_task=1, record_count=2))
    read, far = [["s0-0", 0, None, 2, 2]], {"t": [5, {"s0-0": 5}]}
    other = [["s1-0", 0, None, 2, 2]]

    def found(**changed: Snapshot) -> str:
        snapshots = []
        for vertex in job.graph.vertices:
            number = len(snapshots)
            one = Snapshot(watermark=5)
            if vertex.source is not None:
                one = Snapshot(positions=other if number else read, assigned=far)
                if number:
                    one = replace(one, assigned={"t": [5, {"s1-0": 5}]})
            one = changed.get(f"v{number}", one)
            snapshots.append(TaskSnapshot(TaskId(VertexId(vertex.vertex_id), 0), one))
        entry = CheckpointCompleted(Epoch(1), CheckpointId(3), tuple(snapshots), False)
        return stands_still(entry, job.graph, 1, {"visible"})

    assert found() == ""
    assert found(v0=Snapshot(positions=[["s0-0", 0, None, 2, 1]], assigned=far)).startswith("lag: split s0-0")
    behind = Snapshot(positions=read, assigned={"t": [4, {"s0-0": 5}]})
    assert found(v0=behind).startswith("watermark: t of 1-source[0] says 4, and all its splits are at 5")
    assert "is at 4, and all that feed it are at 5" in found(v2=Snapshot(watermark=4))
    pending = (PendingTransaction(CheckpointId(3), "visible"), PendingTransaction(CheckpointId(3), "staged"))
    assert found(v2=Snapshot(watermark=5, pending=pending)).startswith("commit: staged of ")


# Sources that wait for slower ones


@some_of(15, few=5)
def test_sources_that_wait_for_slower_ones_come_to_their_end_in_any_world(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: Counter[bool] = Counter()
    plain = AlignedSplits.held

    def held(self: AlignedSplits, watermarks: Any) -> frozenset[str]:
        found = plain(self, watermarks)
        waited[bool(found)] += 1
        return found

    monkeypatch.setattr(AlignedSplits, "held", held)
    seen = all_exact(options_of(seed, ("aligned sources",)) for seed in seeds)
    assert seen["job finished"] > len(seeds) // 2
    assert waited[True] > 10 * len(seeds)


def who_has_ended_is_waited_for(plain: Callable[..., bool]) -> Callable[..., bool]:
    def note(self: SourceGroups, worker: Any, said: SourcesReached) -> bool:
        tasks = tuple(one for one in said.tasks if one.watermark is not None)
        return plain(self, worker, replace(said, tasks=tasks))

    return note


def older_words_of_workers_are_believed(plain: Callable[..., bool]) -> Callable[..., bool]:
    def note(self: SourceGroups, *arguments: Any) -> bool:
        self._newest_numbers.clear()
        return plain(self, *arguments)

    return note


def the_rest_of_a_pause_is_forgotten(self: SourceGroups) -> None:
    """What is news while nothing is said never is."""
    self._touched.clear()
    self._pauses = False


REPEATED: tuple[FaultKind, ...] = ("repeat a message",)
PLANTED_GROUPS: dict[str, tuple[str, Callable[[Any], Any], tuple[FaultKind, ...]]] = {
    "a group waits for who has ended": ("note", who_has_ended_is_waited_for, FAULT_KINDS),
    "an old word of a worker is believed": ("note", older_words_of_workers_are_believed, REPEATED),
    "news of a pause is forgotten": ("pause_over", lambda _: the_rest_of_a_pause_is_forgotten, FAULT_KINDS),
}


@pytest.mark.parametrize("name", PLANTED_GROUPS)
def test_finds_the_planted_bug_of_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, planted, kinds = PLANTED_GROUPS[name]
    monkeypatch.setattr(SourceGroups, method, planted(getattr(SourceGroups, method)))
    drawn = (options_of(seed, ("aligned sources",), EXACTLY_ONCE, kinds=kinds) for seed in range(SEEDS_MAX))
    # Without checkpoints, of which there are hundreds until it is clear that it will never finish.
    failures = (live(replace(options, is_periodic=False)).failure for options in drawn)
    must_break("I10", failures)


# Timers


@some_of(40, few=12)
def test_every_timer_fires_once_at_its_time_in_any_world(seeds: range) -> None:
    seen = all_exact(options_of(seed, ("timers",)) for seed in seeds)
    assert seen["job finished"] > len(seeds) // 2


def fires_twice(plain: Callable[..., Any]) -> Callable[..., Any]:
    def due(self: Timers, up_to: int) -> Any:
        return (one for found in plain(self, up_to) for one in (found, found))

    return due


def fires_early(plain: Callable[..., Any]) -> Callable[..., Any]:
    def due(self: Timers, up_to: int) -> Any:
        return plain(self, up_to + WINDOW_MS)

    return due


def is_lost_with_its_worker(self: Timers) -> Any:
    """What the table holds is not put in order after a restore."""
    return iter(())


def is_never_taken_back(self: Timers, key: Any, time: int) -> None:
    """Timers that are deleted fire all the same."""


PLANTED_TIMERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a timer fires twice": ("due", fires_twice),
    "a timer fires before its time": ("due", fires_early),
    "timers are lost at a restore": ("loading", lambda _: is_lost_with_its_worker),
    "a deleted timer fires": ("delete", lambda _: is_never_taken_back),
}


@pytest.mark.parametrize("name", PLANTED_TIMERS)
def test_finds_the_planted_bug_of_timers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, planted = PLANTED_TIMERS[name]
    monkeypatch.setattr(Timers, method, planted(getattr(Timers, method)))
    failures = (live(options_of(seed, ("timers",), EXACTLY_ONCE)).failure for seed in range(SEEDS_MAX))
    must_break("I1|I2", failures)


# A time to live


@some_of(40, few=12)
def test_nothing_that_has_expired_comes_back_in_any_world(seeds: range) -> None:
    seen = all_exact(options_of(seed, ("time to live",)) for seed in seeds)
    assert seen["job finished"] > len(seeds) // 2


def lives_forever(self: TimedCells, written: int) -> bool:
    return False


def lives_again_after_a_restore(plain: Callable[..., bool]) -> Callable[..., bool]:
    """What a new task looks at first is taken for new."""
    looks: Counter[int] = Counter()
    kept: list[TimedCells] = []

    def has_expired(self: TimedCells, written: int) -> bool:
        # Kept, so that no other has its identity.
        kept.append(self)
        looks[id(self)] += 1
        return looks[id(self)] > 3 and plain(self, written)

    return has_expired


@pytest.mark.parametrize("planted", [lambda _: lives_forever, lives_again_after_a_restore])
def test_finds_what_has_expired_and_is_there(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedCells, "_has_expired", planted(TimedCells._has_expired))
    failures = (live(options_of(seed, ("time to live",), EXACTLY_ONCE)).failure for seed in range(SEEDS_MAX))
    must_break("I1|I2", failures)


@pytest.mark.parametrize("name", PLANTED)
def test_finds_the_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, method, planted = PLANTED[name]
    monkeypatch.setattr(target, method, planted(getattr(target, method)))
    failures = (live(options_of(seed, GRAPH)).failure for seed in range(SEEDS_MAX))
    must_break("I14", failures)
