"""The simulator finds each bug that is planted into the micro-batch engine and the switch of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.proof.worlds.batches import batch_options
from tests.proof.worlds.shrinking import live
from tests.simulation.planted import must_break

from crosscut.contracts.connectors import JSON
from crosscut.foundation.ids import CheckpointId, LogIndex
from crosscut.graph.channels import depths_of
from crosscut.microbatch import driver_workers, stage
from crosscut.microbatch.shuffle import ShuffleBlock, ShuffleInput
from crosscut.microbatch.state_cache import StateCache
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.operators.watermarks import CombinedWatermark
from crosscut.protocol.checkpoint.retention import Retention
from crosscut.protocol.effects import EndJob
from crosscut.protocol.job.job_run import CloseEngine, JobRun, RunEffect, RunTurn
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry
from crosscut.protocol.microbatch import batches, effects
from crosscut.protocol.microbatch.attempts import Attempt, Partition
from crosscut.protocol.microbatch.batches import Batches
from crosscut.protocol.microbatch.events import BatchEvent, OutputCommitted
from crosscut.protocol.splits import rescaling
from crosscut.task.chain import Chain
from crosscut.testing.simulator.options import FaultKind, Options, PlannedFault
from crosscut.worker.local_state_cache import LocalStateCache

SEEDS_MAX = 150
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Worlds:
    """Where a bug is looked for.

    Attributes:
        breaks: The invariant.
        options: Of the worlds, by seed.
        first_seed: Of the first world in which it was found; worlds without it would only take time. If it is
            no longer found from there on, the worlds before follow.
    """

    breaks: str
    options: Callable[[int], Options]
    first_seed: int = 0

    def seeds(self) -> Iterable[int]:
        return (*range(self.first_seed, SEEDS_MAX), *range(self.first_seed))


def any_world(seed: int) -> Options:
    return batch_options(seed)


def restarted_at_an_append(seed: int) -> Options:
    """The epoch ends while nobody knows whether the entry of a batch is in the log."""
    faults = tuple(PlannedFault(0, "ask for a checkpoint", 4, "driver.append", n) for n in range(1, 7))
    return replace(batch_options(seed, ("micro-batch",)), faults=faults, interval_ms=10)


def with_slow_commits(seed: int) -> Options:
    """The next batch is due when the sinks have not answered yet."""
    options = batch_options(seed, ("micro-batch",))
    return replace(options, faults=(), interval_ms=5, latency_us=100, store_us=50_000, step_us=50)


def with_drivers_killed(seed: int) -> Options:
    """Batches at another parallelism after each death of the driver."""
    options = batch_options(seed, ("micro-batch",), kinds=("kill the driver",))
    return replace(options, rescaled_to=(1 + seed % 3, 3), interval_ms=10)


def with_attempts_doubled(seed: int) -> Options:
    kinds: tuple[FaultKind, ...] = ("lose shuffle blocks", "speculate an attempt", "kill a worker")
    return replace(batch_options(seed, ("micro-batch",), kinds=kinds), speculation=0.4, interval_ms=10)


def between_engines(seed: int) -> Options:
    """Much is on its way in an unaligned checkpoint when batches follow, at another parallelism."""
    options = batch_options(seed, ("auto",), kinds=("slow channel",))
    return replace(
        options,
        flow="",
        graph="detours",
        snapshots="unaligned",
        parallelism=2,
        splits_per_task=2,
        record_count=25,
        source_ms=20,
        rescaled_to=(),
        splits_every_ms=0,
        batch_parallelism=3,
        batch_records=12,
        knows_lag=True,
        interval_ms=10,
        channel_bytes=50,
        latency_us=1_000,
        store_us=200,
        caught_up_at=1_000,
        behind_at=1,
        behind_for_ms=0,
        look_ms=5,
    )


def in_small_blocks(seed: int) -> Options:
    """Records of a key in many shuffle blocks, whose order can be seen in the output."""
    small = (("bytes of a shuffle block", 1),)
    return replace(between_engines(seed), engine="micro-batch", batch_records=40, thresholds=small)


def in_small_blocks_with_code_that_raises(seed: int) -> Options:
    """It raises at any moment: perhaps when blocks of the records before are about to leave."""
    faults = tuple(PlannedFault(5 * n + seed % 5, "raise in user code", n) for n in range(1, 15))
    return replace(in_small_blocks(seed), faults=faults)


def with_a_source_that_comes_late(seed: int) -> Options:
    """Two sources of one split each, of which one is found long after the other."""
    options = batch_options(seed, ("micro-batch",), kinds=("kill the driver",))
    return replace(
        options,
        flow="",
        graph="two clocks",
        parallelism=1,
        rescaled_to=(),
        splits_per_task=1,
        record_count=25,
        source_ms=0,
        splits_every_ms=20,
        empty_looks=30,
        interval_ms=5,
        batch_records=20,
        knows_lag=True,
        stays_open=False,
        faults=(),
    )


# Rescaling: item 3 of "Mended again".


def what_has_ended_is_told_by_key_group(patch: pytest.MonkeyPatch) -> None:
    plain_said, plain_end = rescaling._final_progress, Chain.end

    def by_key_group(*arguments: Any, **_: bool) -> tuple[bool, JSON]:
        return plain_said(*arguments, is_keyed=True, is_dealt=False)

    def keeps_held(self: Chain, *, is_emitted: bool = False) -> Iterator[None]:
        return iter(()) if is_emitted else plain_end(self)

    patch.setattr(rescaling, "_final_progress", by_key_group)
    patch.setattr(Chain, "end", keeps_held)


# Event time: item 17.


def a_source_without_a_split_holds_no_watermark(patch: pytest.MonkeyPatch) -> None:
    plain = AssignTimestamps.begin

    def begin(self: AssignTimestamps, splits: Iterable[str], saved: JSON, *, is_open: bool = False) -> None:
        plain(self, splits, saved, is_open=is_open)
        if self._awaits_first:
            self._awaits_first = False
            self._combined = CombinedWatermark({}, self._combined.watermark, is_open=True)
            self._add_news(self._combined._news())

    patch.setattr(AssignTimestamps, "begin", begin)


# Order: item 18.


def a_batch_takes_what_was_on_its_way_in_any_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stage, "depths_of", lambda graph: dict.fromkeys(depths_of(graph), 0))


# Batches.


def attempts_are_taken_that_have_read_others(patch: pytest.MonkeyPatch) -> None:
    def chosen(last: Mapping[int, tuple[Attempt, ...]], stages: int, parallelism: int) -> tuple[Attempt, ...]:
        found = {one.partition: one for brought in last.values() for one in brought}
        return tuple(
            found[Partition(stage, index)] for stage in range(stages) for index in range(parallelism)
        )

    patch.setattr(batches, "chosen", chosen)


def what_was_run_is_taken_as_complete(patch: pytest.MonkeyPatch) -> None:
    plain = Batches._returned

    def returned(self: Batches, event: Any) -> list[effects.BatchEffect]:
        found = plain(self, event)
        is_new = any(isinstance(one, effects.AcknowledgeBatch) for one in found)
        return [*found, *self._completed(event.checkpoint_id)] if is_new else found

    patch.setattr(Batches, "_returned", returned)


def what_was_taken_is_removed_with_its_epoch(patch: pytest.MonkeyPatch) -> None:
    plain = Batches._halted

    def halted(self: Batches) -> list[effects.BatchEffect]:
        batch = self._batch
        taken = list(batch.taken) if batch is not None else []
        found = plain(self)
        return [*self._abort(batch.checkpoint_id, taken), *found] if batch is not None and taken else found

    patch.setattr(Batches, "_halted", halted)


def the_next_batch_does_not_wait_for_the_commit(patch: pytest.MonkeyPatch) -> None:
    plain = Batches._begin

    def begin(self: Batches) -> list[effects.BatchEffect]:
        committing, self._committing = self._committing, None
        found = plain(self)
        self._committing = committing
        return found

    patch.setattr(Batches, "_begin", begin)


def a_state_is_used_whatever_checkpoint_it_is_of(patch: pytest.MonkeyPatch) -> None:
    def at_hand(self: StateCache, *_: object) -> LocalStateCache:
        return self._at_hand

    patch.setattr(StateCache, "at_hand", at_hand)
    patch.setattr(StateCache, "spoil", lambda self, tasks: None)


def the_end_of_a_commit_is_not_told(patch: pytest.MonkeyPatch) -> None:
    plain = Batches.handle

    def handle(self: Batches, event: BatchEvent) -> list[effects.BatchEffect]:
        is_third = isinstance(event, OutputCommitted) and event.checkpoint_id == CheckpointId(3)
        return [] if is_third else plain(self, event)

    patch.setattr(Batches, "handle", handle)


def a_failed_attempt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Its batch has run, and nobody says that it will never be complete."""
    patch.setattr(Batches, "_ended", lambda self, event: [])


def blocks_are_taken_as_they_come(patch: pytest.MonkeyPatch) -> None:
    def put(self: ShuffleInput, block: ShuffleBlock) -> Iterator[ShuffleBlock]:
        sender = block.partition.index
        self._names.setdefault(sender, block.name)
        if block.is_last:
            self._ended.add(sender)
        yield block

    patch.setattr(ShuffleInput, "put", put)


def a_failure_waits_for_the_blocks_before_it(patch: pytest.MonkeyPatch) -> None:
    plain = stage.StageAttempt._take

    async def take(self: stage.StageAttempt, block: ShuffleBlock) -> None:
        if block.failure is None:
            await plain(self, block)
            return
        for one in self._shuffle_input.put(block):
            self._failure = one.failure

    patch.setattr(stage.StageAttempt, "_take", take)


# The switch.


def the_newest_batch_is_not_what_the_next_one_begins_with(patch: pytest.MonkeyPatch) -> None:
    plain = driver_workers.BatchWorkers._complete

    def complete(self: driver_workers.BatchWorkers, effect: effects.CommitBatch) -> None:
        before = self._base
        plain(self, effect)
        if effect.checkpoint_id % 3 == 0 and before[0].restore:
            self._base = tuple(replace(one, restore=effect.checkpoint_id) for one in before)

    patch.setattr(driver_workers.BatchWorkers, "_complete", complete)


def the_engine_that_is_to_follow_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    plain = JobRun._engine_ended

    def ended(self: JobRun, end: EndJob) -> list[RunEffect]:
        found = plain(self, end)
        return [one for one in found if not isinstance(one, CloseEngine)] if self._following else found

    patch.setattr(JobRun, "_engine_ended", ended)


def both_engines_run_at_once(patch: pytest.MonkeyPatch) -> None:
    plain = JobRun._engine_ended

    def ended(self: JobRun, end: EndJob) -> list[RunEffect]:
        found = plain(self, end)
        # The next one starts without waiting until this one is closed.
        following = self._following
        if following is None:
            return found
        self._go(RunTurn.CLOSED)
        self._following = None
        return [*self._start()]

    patch.setattr(JobRun, "_engine_ended", ended)


def the_newest_checkpoint_is_forgotten_at_a_start(patch: pytest.MonkeyPatch) -> None:
    plain = Retention.found

    def found(self: Retention, tail: Sequence[tuple[LogIndex, LogEntry]]) -> None:
        completed = [one for one in tail if isinstance(one[1], CheckpointCompleted)]
        plain(self, [one for one in tail if one not in completed[1:]])

    patch.setattr(Retention, "found", found)


PLANTED: dict[Plant, Worlds] = {
    a_source_without_a_split_holds_no_watermark: Worlds("I1", with_a_source_that_comes_late),
    what_has_ended_is_told_by_key_group: Worlds("I1", with_drivers_killed, first_seed=14),
    a_batch_takes_what_was_on_its_way_in_any_order: Worlds("I5", between_engines, first_seed=3),
    attempts_are_taken_that_have_read_others: Worlds("I1|I2", with_attempts_doubled, first_seed=28),
    what_was_run_is_taken_as_complete: Worlds("I3", any_world),
    what_was_taken_is_removed_with_its_epoch: Worlds("I1|I8|I9", restarted_at_an_append),
    the_next_batch_does_not_wait_for_the_commit: Worlds("I3", with_slow_commits),
    a_state_is_used_whatever_checkpoint_it_is_of: Worlds("I1|I2|I4", with_attempts_doubled, first_seed=72),
    the_end_of_a_commit_is_not_told: Worlds("I10", any_world),
    a_failed_attempt_is_forgotten: Worlds("I10", with_attempts_doubled),
    blocks_are_taken_as_they_come: Worlds("I5", in_small_blocks),
    a_failure_waits_for_the_blocks_before_it: Worlds(
        r"task \S+ fails with InternalError", in_small_blocks_with_code_that_raises, first_seed=4
    ),
    the_newest_batch_is_not_what_the_next_one_begins_with: Worlds("I2", any_world),
    both_engines_run_at_once: Worlds("B3", between_engines),
    the_newest_checkpoint_is_forgotten_at_a_start: Worlds("I2|I8", with_drivers_killed, first_seed=4),
    the_engine_that_is_to_follow_is_forgotten: Worlds("I10", between_engines),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda one: one.__name__)
def test_a_bug_that_is_planted_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    worlds = PLANTED[plant]
    must_break(worlds.breaks, (live(worlds.options(seed)).failure for seed in worlds.seeds()))
