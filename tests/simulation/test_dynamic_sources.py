"""Splits that come while the job runs, in virtual worlds: each is read once, whoever dies when."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_options
from tests.proof.worlds.shrinking import live, report
from tests.simulation.planted import must_break

from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.splits import discovery as finding
from crosscut.protocol.splits.discovery import SplitDiscovery
from crosscut.task.splits import SplitQueue
from crosscut.testing.simulator.options import FaultKind, Moment, Options, PlannedFault, options_of

PROTOCOLS: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching", "halting")


def world(seed: int, protocol: ProtocolKind, **changed: Any) -> Options:
    """A drawn world in which splits come."""
    options = options_of(seed, ("chain", "union", "rebalance"), (protocol,))
    return replace(options, splits_every_ms=(3, 10, 40)[seed % 3], splits_per_task=2, **changed)


def lives(*options: Options) -> Counter[str]:
    """Let worlds live; return what they have seen."""
    seen: Counter[str] = Counter()
    for one in options:
        life = live(one)
        assert not life.failure, report(life)
        seen += life.seen
    return seen


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_split_is_read_once_whatever_happens(protocol: ProtocolKind) -> None:
    seen = lives(*(world(seed, protocol) for seed in range(8)))
    assert seen["effect: FindSplits"] > 20, "they are looked for"


def test_each_split_is_read_once_in_flows_that_are_drawn_with_their_times_and_windows() -> None:
    lives(*(replace(drawn_options(seed), splits_every_ms=(3, 10, 40)[seed % 3]) for seed in range(10)))


def test_in_some_of_the_worlds_that_are_drawn_splits_come_and_faults_meet_them() -> None:
    growing = [one for one in map(drawn_options, range(200)) if one.splits_every_ms]
    assert 20 < len(growing) < 60
    moments = Counter(fault.moment for one in growing for fault in one.faults)
    assert moments["driver.found"] and moments["splits.assigned"] and moments["driver.appended"]


def test_a_split_that_comes_late_has_no_record_that_is_late_in_a_drawn_flow() -> None:
    """The window of the first split would be over when the second one comes."""
    flow = "timed_source 0 0; timed_source 5,1 0; key_by 1 one 1; window 2 tumbling 50 reduce; sink 0; sink 3"
    lives(replace(drawn_options(1157), parallelism=1, splits_every_ms=10, flow=flow, faults=()))


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("kill the driver", "driver.found"),
        ("kill a worker", "splits.assigned"),
        ("kill the driver", "driver.appended"),
        ("fail a source", None),
    ],
)
def test_each_split_is_read_once_whoever_dies_between_its_discovery_and_a_checkpoint(
    kind: FaultKind, moment: Moment | None
) -> None:
    faults = tuple(PlannedFault(20, kind, 0, moment, nth) for nth in (1, 2, 3))
    seen = lives(*(world(seed, "aligned", faults=faults) for seed in range(3)))
    assert seen[f"fault: {kind}"]


def test_each_split_is_read_once_where_a_source_has_to_wait_until_enough_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "UNREAD_BYTES_MAX", 30)
    monkeypatch.setattr(finding, "ENDED_IDS_MAX", 1)
    is_enough = SplitDiscovery._is_enough
    held: Counter[bool] = Counter()

    def noting(self: SplitDiscovery, *others: Any) -> bool:
        found = is_enough(self, *others)
        held[found] += 1
        return found

    monkeypatch.setattr(SplitDiscovery, "_is_enough", noting)
    # It is asked again only when splits have ended.
    lives(*(replace(world(seed, PROTOCOLS[seed % 4]), stays_open=False) for seed in range(8)))
    assert held[True] and held[False], "they waited, and not for ever"


def breaks(invariant: str, protocol: ProtocolKind, seeds: int = 60) -> None:
    """Require that a world finds what is planted."""
    must_break(invariant, (live(world(seed, protocol)).failure for seed in range(seeds)))


def test_a_split_that_is_known_to_a_checkpoint_and_not_in_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: the entry says what is known when it is appended. Such a split would be lost."""
    monkeypatch.setattr(
        SplitDiscovery,
        "known_at",
        lambda self, n, **others: tuple(search.newest for search in self._searches.values()),
    )
    breaks("I1", "aligned")


def test_a_split_that_is_in_a_checkpoint_that_does_not_know_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: a task that takes its snapshot late has splits in it that came after the trigger."""
    freeze = SplitQueue.freeze

    def freeze_all(self: SplitQueue, checkpoint_id: Any, **others: Any) -> Any:
        self._since.clear()
        return freeze(self, checkpoint_id, **others)

    monkeypatch.setattr(SplitQueue, "freeze", freeze_all)
    breaks("I2", "halting")
