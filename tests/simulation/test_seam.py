"""Where one engine follows the other: whoever dies at any point of it, nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from tests.simulation.seam import World

from crosscut.foundation.ids import LogIndex
from crosscut.protocol.checkpoint.retention import Retention
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry
from crosscut.protocol.microbatch import effects as do
from crosscut.protocol.microbatch import events as on
from crosscut.protocol.microbatch.batches import Batches
from crosscut.protocol.microbatch.engine_switch import EngineEffect, Engines, StartEngine
from crosscut.testing.simulator.violation import Violation

STEPS = 900
Plant = Callable[[pytest.MonkeyPatch], None]


def lived(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed)
        world.run(STEPS, faults=seed % 5)
        seen += world.seen
    return seen


def test_nothing_is_lost_or_doubled_whoever_dies_or_is_taken_for_dead_around_the_seams() -> None:
    """B2, B3, F1, I1, I2, I3."""
    seen = lived(range(100))
    assert seen["over to continuous"] > 40
    assert seen["over to micro-batch"] > 15
    assert seen["taken for dead"] > 10
    killed = " ".join(what for what in seen if what.startswith("killed"))
    for where in ("micro-batch", "continuous", "CLAIMING", "RUNNING", "STOPPING"):
        assert where in killed


def both_engines_run_at_once(patch: pytest.MonkeyPatch) -> None:
    plain = Engines._switch

    def switch(self: Engines, why: str) -> list[EngineEffect]:
        return [*plain(self, why), StartEngine("continuous", why)]

    patch.setattr(Engines, "_switch", switch)


def the_newest_checkpoint_is_forgotten_at_a_start(patch: pytest.MonkeyPatch) -> None:
    plain = Retention.found

    def found(self: Retention, tail: Sequence[tuple[LogIndex, LogEntry]]) -> None:
        completed = [one for one in tail if isinstance(one[1], CheckpointCompleted)]
        plain(self, [one for one in tail if one not in completed[1:]])

    patch.setattr(Retention, "found", found)


def what_was_run_is_taken_as_complete(patch: pytest.MonkeyPatch) -> None:
    plain = Batches._returned

    def returned(self: Batches, event: on.PartitionReturned) -> list[do.BatchEffect]:
        effects = plain(self, event)
        taken = self._batch.taken if self._batch is not None else ()
        is_new = any(isinstance(one, do.AcknowledgeBatch) for one in effects)
        return [*effects, *self._completed(event.checkpoint_id)] if is_new and taken else effects

    patch.setattr(Batches, "_returned", returned)


PLANTED: dict[Plant, str] = {
    both_engines_run_at_once: "what ran before has not ended",
    the_newest_checkpoint_is_forgotten_at_a_start: "are visible twice",
    what_was_run_is_taken_as_complete: "becomes visible, and no durable entry has it",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda one: one.__name__)
def test_a_bug_that_is_planted_at_the_seam_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match=PLANTED[plant]):
        lived(range(200))
