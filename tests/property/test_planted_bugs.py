"""The checkers are able to fail: each planted bug is found by the world or by the alignment oracle."""

from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest
from tests.simulation.alignment import BATCH, check_alignment
from tests.simulation.conversation import check_stale_epochs_change_nothing
from tests.simulation.protocol_world import Make, Seeded, World

from crosscut.errors import ProtocolError
from crosscut.ids import ChannelId, CheckpointId, Epoch, TaskId
from crosscut.interfaces import CommitPermit
from crosscut.protocol.barriers.aligned import AlignedBarriers
from crosscut.protocol.commit import Committer
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    AppendEntry,
    CommitTransactions,
    DeleteParts,
    JobEffect,
    StoreSnapshot,
    TaskEffect,
)
from crosscut.protocol.events import (
    BarrierArrived,
    EntryRead,
    EntryRefused,
    EntryUncertain,
    JobEvent,
    MessageReceived,
    SnapshotStored,
    TaskEvent,
)
from crosscut.protocol.job import checkpointing, ownership, recovery, retention
from crosscut.protocol.job.checkpoints import EpochCheckpoints, Whole
from crosscut.protocol.job.coordinator import Coordinator, JobRules
from crosscut.protocol.job.job_log import LogEffect, LogEvent, LogWriter, Verdict
from crosscut.protocol.job.keeping import Keeping
from crosscut.protocol.job.segments import following
from crosscut.protocol.messages import (
    CheckpointCompleted,
    CommitCheckpoint,
    EpochClaimed,
    FailureCause,
    PendingTransaction,
    RegisterWorker,
    Snapshot,
    SnapshotAcknowledged,
    TaskSnapshot,
)

SEEDS_MAX = 2_500


def found(make: Make | None = None) -> str:
    """Return what the first seed that finds something finds."""
    for seed in range(SEEDS_MAX):
        try:
            World(Seeded(seed, 600), make).run()
        except (AssertionError, ProtocolError) as error:
            return str(error)
    return ""


# Alignment and snapshots


class NeverBlocks(AlignedBarriers):
    def is_blocked(self, channel: ChannelId) -> bool:
        return False


class AcknowledgesBeforeDurable(AlignedBarriers):
    def handle(self, event: TaskEvent) -> list[TaskEffect]:
        if isinstance(event, SnapshotStored):
            return []
        return [
            AcknowledgeSnapshot(effect.checkpoint_id) if isinstance(effect, StoreSnapshot) else effect
            for effect in super().handle(event)
        ]


class CountsBarriers(AlignedBarriers):
    """Captures at the k-th barrier, whichever they are, as an alignment by counter would."""

    def handle(self, event: TaskEvent) -> list[TaskEffect]:
        if isinstance(event, BarrierArrived) and self.aligning is not None:
            event = BarrierArrived(event.channel, self.aligning)
        return super().handle(event)


class SupersedesNothing(AlignedBarriers):
    def handle(self, event: TaskEvent) -> list[TaskEffect]:
        is_newer = isinstance(event, BarrierArrived) and event.checkpoint_id > (self.aligning or 1 << 60)
        return [] if is_newer else super().handle(event)


def test_without_blocking_records_behind_the_barrier_are_in_the_snapshot() -> None:
    assert found(Make(barriers=NeverBlocks)).startswith("I4")


def test_an_acknowledgement_before_the_snapshot_is_durable_is_found() -> None:
    """A3."""
    assert found(Make(barriers=AcknowledgesBeforeDurable)).startswith("I8")


@pytest.mark.parametrize("planted", [NeverBlocks, CountsBarriers, SupersedesNothing])
def test_the_alignment_oracle_finds(planted: type[AlignedBarriers]) -> None:
    def disagrees(seed: int) -> bool:
        choices = Random(seed)
        scripts = [
            [
                one
                for n in (1, 2, 3)
                for one in ([BATCH] * choices.randrange(3) + [CheckpointId(n)] * (choices.random() < 0.8))
            ]
            for _ in range(3)
        ]
        try:
            check_alignment(scripts, choices.randrange, planted)
        except (AssertionError, ProtocolError):
            return True
        return False

    assert any(disagrees(seed) for seed in range(200))


# Commit


class CommitsItsOwnTransactionOnly(Committer):
    def pending(self, checkpoint_id: CheckpointId) -> tuple[PendingTransaction, ...]:
        return tuple(one for one in super().pending(checkpoint_id) if one.checkpoint_id == checkpoint_id)

    def _try(self, permit: CommitPermit) -> CommitTransactions:
        effect = super()._try(permit)
        own = tuple(one for one in effect.handles if str(one).endswith(f"/{permit.checkpoint_id}"))
        return replace(effect, handles=own)


def test_committing_only_the_own_transaction_loses_that_of_an_aborted_checkpoint() -> None:
    """F2."""
    assert found(Make(committer=CommitsItsOwnTransactionOnly)).startswith("I1")


def test_no_commit_on_restore_loses_the_output_of_a_completed_checkpoint() -> None:
    """B2, B3."""
    assert found(Make(commits_on_restore=False)).startswith(("I1", "I9", "F5"))


# Coordinator


class HearsEveryEpoch(Coordinator):
    def handle(self, event: JobEvent) -> list[JobEffect]:
        if isinstance(event, MessageReceived) and not isinstance(event.message, RegisterWorker):
            event = MessageReceived(event.link, replace(event.message, epoch=self.epoch))
        return super().handle(event)


class CompletesBeforeDurable(Coordinator):
    def _acknowledged(self, message: SnapshotAcknowledged) -> list[JobEffect]:
        effects = super()._acknowledged(message)
        for effect in list(effects):
            if isinstance(effect, AppendEntry) and isinstance(effect.entry, CheckpointCompleted):
                effects += self._to_all(CommitCheckpoint(self.epoch, effect.entry.checkpoint_id))
        return effects


class DeletesBeforeDurable(Coordinator):
    def _acknowledged(self, message: SnapshotAcknowledged) -> list[JobEffect]:
        effects = super()._acknowledged(message)
        for effect in list(effects):
            if isinstance(effect, AppendEntry) and isinstance(effect.entry, CheckpointCompleted):
                old = (path for one in self.retained for path in retention.parts_of(one))
                effects.append(DeleteParts(retention.unreferenced(old, [effect.entry])))
                self._kept._is_deleting = True
        return effects


class LooksAtNoManifest(Keeping):
    def delete(self, in_use: frozenset[str]) -> list[JobEffect]:
        gone, self._garbage = tuple(sorted(self._garbage)), set()
        self._is_deleting = self._is_deleting or bool(gone)
        return [DeleteParts(gone)] if gone else []


class DeletesWhatManifestsName(Coordinator):
    """Deletes what is no longer of use to one checkpoint, though it is to another. B6."""

    def __init__(self, rules: JobRules) -> None:
        super().__init__(rules)
        self._kept = LooksAtNoManifest(rules.retain, rules.checkpoints.timeout_ms)


class ReusesIds(Coordinator):
    """Goes on from what the log says is complete; ids that never completed are used again."""

    def _epoch_claimed(self, entry: EpochClaimed) -> list[JobEffect]:
        first = CheckpointId(self.completed.checkpoint_id + 1 if self.completed else 1)
        self._checkpoints.next_id = first
        return super()._epoch_claimed(replace(entry, first_checkpoint_id=first))


class StopsWithoutAWord(Coordinator):
    """A stop that could not commit looks like one that could."""

    def _stop_short(self, cause: FailureCause) -> list[JobEffect]:
        return self._end("stopped")


class CountsAcknowledgements(EpochCheckpoints):
    """Acknowledgements are counted, not remembered."""

    def __init__(
        self,
        epoch: Epoch,
        tasks: frozenset[TaskId],
        sources: frozenset[TaskId],
        next_id: CheckpointId,
        in_flight_max: int = 1,
    ) -> None:
        super().__init__(epoch, tasks, sources, next_id, in_flight_max)
        self._counts: defaultdict[CheckpointId, int] = defaultdict(int)

    def acknowledge(
        self, checkpoint_id: CheckpointId, task: TaskId, snapshot: Snapshot, now_ms: int, wall_clock: str
    ) -> Whole | None:
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return None
        self._counts[checkpoint_id] += 1
        pending.snapshots[task] = snapshot
        if self._counts[checkpoint_id] != len(self._tasks):
            return None
        self._appending.add(checkpoint_id)
        snapshots = tuple(TaskSnapshot(one, pending.snapshots[one]) for one in sorted(pending.snapshots))
        return Whole(CheckpointCompleted(self._epoch, checkpoint_id, snapshots))


class FinalOnceSourcesAreDrained(EpochCheckpoints):
    """Looks at what the sources say now, not at what the cut holds."""

    def acknowledge(
        self, checkpoint_id: CheckpointId, task: TaskId, snapshot: Snapshot, now_ms: int, wall_clock: str
    ) -> Whole | None:
        whole = super().acknowledge(checkpoint_id, task, snapshot, now_ms, wall_clock)
        return Whole(replace(whole.entry, is_final=self.is_drained)) if whole else None


class TakesUnknownForFailure(LogWriter):
    def handle(self, event: LogEvent) -> tuple[list[LogEffect], Verdict | None]:
        if isinstance(event, EntryUncertain):
            return super().handle(EntryRefused(event.index, event.reason))
        return super().handle(event)


class WritesOnAfterBeingOvertaken(LogWriter):
    def handle(self, event: LogEvent) -> tuple[list[LogEffect], Verdict | None]:
        if isinstance(event, EntryRead) and event.entry and self._queue and event.entry != self._queue[0]:
            self._next_index = following(self._next_index)
            return self._ask_next(), None
        return super().handle(event)


@pytest.mark.parametrize(
    ("planted", "invariants"),
    [
        (CompletesBeforeDurable, ("I3",)),
        (DeletesBeforeDurable, ("I8",)),
        (DeletesWhatManifestsName, ("I8",)),
        (ReusesIds, ("I6", "I8")),
        (StopsWithoutAWord, ("F5 F7",)),
    ],
)
def test_the_world_finds_a_coordinator_that(planted: type[Coordinator], invariants: tuple[str, ...]) -> None:
    """B4, B6, C2, F7."""
    assert found(Make(coordinator=planted)).startswith(invariants)


@pytest.mark.parametrize(
    ("name", "planted", "invariants"),
    [
        ("EpochCheckpoints", CountsAcknowledgements, ("I4", "I10")),
        ("EpochCheckpoints", FinalOnceSourcesAreDrained, ("F5",)),
        ("LogWriter", TakesUnknownForFailure, ("I8",)),
        ("LogWriter", WritesOnAfterBeingOvertaken, ("I6", "I7")),
    ],
)
def test_the_world_finds_a_part_of_the_coordinator_that(
    monkeypatch: pytest.MonkeyPatch, name: str, planted: type, invariants: tuple[str, ...]
) -> None:
    """A4, B4, B5, F5."""
    monkeypatch.setattr(checkpointing if name == "EpochCheckpoints" else ownership, name, planted)
    assert found().startswith(invariants)


def test_a_coordinator_that_hears_every_epoch_is_found() -> None:
    """C2. In the world nothing comes of it, since ids are never reused: two rules guard one thing."""
    check_stale_epochs_change_nothing(Coordinator)
    with pytest.raises(AssertionError):
        check_stale_epochs_change_nothing(HearsEveryEpoch)


def test_a_new_driver_that_does_not_step_over_the_used_ids_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """C2."""
    monkeypatch.setattr(recovery, "CHECKPOINT_IDS_LEAD_MAX", 1)
    assert found().startswith("I6")


def test_a_task_that_builds_on_a_void_snapshot_is_harmless_as_long_as_dangling_parts_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B6."""
    careless = Make(builds_on_completed=False)
    for seed in range(150):
        World(Seeded(seed, 600), careless).run()
    monkeypatch.setattr(retention, "dangling", lambda *_: ())
    assert found(careless).startswith("I8")
