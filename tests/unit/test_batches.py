"""The machine of micro-batches: a test for each rule, and every order of what can happen to two batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.protocol.checkpoint import global_committer as together_module
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch import batches as module
from crosscut.protocol.microbatch import effects as do
from crosscut.protocol.microbatch import events as on
from crosscut.protocol.microbatch.attempts import Attempt, Partition, chosen, committer
from crosscut.protocol.microbatch.batches import RUNS_MAX, Batches
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot, TaskSnapshot

E1, E2 = Epoch(1), Epoch(2)
N0, N1, N2 = CheckpointId(0), CheckpointId(1), CheckpointId(2)
SINK = TaskId(VertexId("sink"), 0)


def attempt(stage: int, index: int, name: str, read: tuple[str, ...] = (), n: int = 1) -> Attempt:
    handle = PendingTransaction(CheckpointId(n), name)
    task = TaskId(VertexId(f"v{stage}"), index)
    return Attempt(Partition(stage, index), name, read, (TaskSnapshot(task, Snapshot(pending=(handle,))),))


A, B = attempt(0, 0, "a"), attempt(0, 1, "b")
C, D = attempt(1, 0, "c", ("a", "b")), attempt(1, 1, "d", ("a", "b"))


def ready(stages: int = 2, parallelism: int = 2) -> Batches:
    machine = Batches(stages, parallelism, 2)
    machine.handle(on.TasksDeployed(E1, N0))
    machine.handle(on.OutputRecovered(E1))
    return machine


def running() -> Batches:
    machine = ready()
    machine.handle(on.BatchTriggered(E1, N1))
    return machine


def returned(index: int, *brought: Attempt, n: CheckpointId = N1, run: int = 1) -> on.PartitionReturned:
    return on.PartitionReturned(E1, n, run, index, brought)


def test_output_is_recovered_before_anybody_is_ready_and_before_a_batch_runs() -> None:
    machine = Batches(2, 2, 2)
    assert machine.handle(on.TasksDeployed(E1, N0)) == [do.RecoverOutput(E1, N0)]
    assert machine.handle(on.BatchTriggered(E1, N1)) == []
    assert machine.handle(on.OutputRecovered(E1)) == [do.ReportReady(E1)]
    assert machine.handle(on.BatchTriggered(E1, N1)) == [do.RunBatch(E1, N1, 1, N0)]


def test_a_batch_is_acknowledged_when_the_last_partition_has_returned() -> None:
    machine = running()
    assert machine.handle(returned(0, C, A)) == []
    assert machine.handle(returned(1, D, B)) == [do.AcknowledgeBatch(E1, N1, (A, B, C, D))]


def test_the_first_attempt_that_returns_is_taken_and_the_other_one_is_aborted() -> None:
    machine, other = running(), attempt(1, 0, "other", ("a", "b"))
    machine.handle(returned(0, C, A))
    assert machine.handle(returned(0, other, A)) == []
    assert machine.handle(returned(1, D, B)) == [
        do.AcknowledgeBatch(E1, N1, (A, B, C, D)),
        do.AbortAttempts(E1, (other,)),
    ]


def test_what_all_tasks_of_a_gathering_sink_have_staged_is_given_to_its_first_task() -> None:
    machine = Batches(2, 2, 2, frozenset({VertexId("v1")}))
    for event in (on.TasksDeployed(E1, N0), on.OutputRecovered(E1), on.BatchTriggered(E1, N1)):
        machine.handle(event)
    other = attempt(1, 1, "other", ("a", "b"))
    machine.handle(returned(1, D, B))
    assert machine.handle(returned(1, other, B)) == []
    acknowledged, aborted = machine.handle(returned(0, C, A))
    assert aborted == do.AbortAttempts(E1, (other,)), "what was not taken stays as it was"
    assert isinstance(acknowledged, do.AcknowledgeBatch)
    staged = [[one.handle for one in each.snapshots[0].snapshot.pending] for each in acknowledged.taken]
    assert staged == [["a"], ["b"], ["c", "d"], []]
    # The commit, and the removal if the checkpoint is given up, are of the same.
    (commit,) = machine.handle(on.BatchCompleted(E1, N1))
    assert isinstance(commit, do.CommitBatch)
    assert commit.taken == acknowledged.taken
    assert committer(TaskId(VertexId("v1"), 1), frozenset({VertexId("v1")})) == TaskId(VertexId("v1"), 0)
    assert committer(TaskId(VertexId("v0"), 1), frozenset({VertexId("v1")})) == TaskId(VertexId("v0"), 1)


def test_more_than_one_task_can_be_told_to_commit_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entry would be there for good, and the other engine could never restore it."""
    monkeypatch.setattr(together_module, "BYTES_MAX", 200)
    machine = Batches(2, 2, 2, frozenset({VertexId("v1")}))
    for event in (on.TasksDeployed(E1, N0), on.OutputRecovered(E1), on.BatchTriggered(E1, N1)):
        machine.handle(event)
    machine.handle(returned(1, D, B))
    cancelled, aborted, failed = machine.handle(returned(0, C, A))
    assert (cancelled, aborted) == (do.CancelRun(E1, N1, 1), do.AbortAttempts(E1, (A, B, C, D)))
    assert isinstance(failed, do.FailEpoch)
    assert failed.cause.message.startswith("what the tasks of sink v1 have staged takes 206 bytes to say")
    assert machine.handle(on.RunEnded(E1, N1, 1)) == [], "it is over"


def test_a_zombie_that_returns_after_its_batch_was_taken_is_aborted_alone() -> None:
    machine, zombie = running(), attempt(1, 1, "zombie", ("a", "b"))
    machine.handle(returned(0, C, A))
    machine.handle(returned(1, D, B))
    assert machine.handle(returned(1, zombie, B)) == [do.AbortAttempts(E1, (zombie,))]


def test_attempts_that_have_read_different_ones_are_not_taken_together_and_the_batch_runs_again() -> None:
    machine, torn = running(), attempt(1, 1, "torn", ("a2", "b"))
    machine.handle(returned(0, C, A))
    assert machine.handle(returned(1, torn, B)) == []
    assert machine.handle(on.RunEnded(E1, N1, 1)) == [
        do.AbortAttempts(E1, (A, B, C, torn)),
        do.RunBatch(E1, N1, 2, N0),
    ]
    assert machine.handle(returned(0, C, A)) == [do.AbortAttempts(E1, (C, A))], "of the run before"


def test_a_batch_that_is_torn_again_and_again_fails_the_epoch() -> None:
    machine = running()
    for run in range(1, RUNS_MAX):
        assert machine.handle(on.RunEnded(E1, N1, run))[-1:] == [do.RunBatch(E1, N1, run + 1, N0)]
    (failed,) = machine.handle(on.RunEnded(E1, N1, RUNS_MAX))
    assert isinstance(failed, do.FailEpoch)
    assert failed.cause.kind == "BatchTorn" and failed.cause.is_transient


def test_a_failed_attempt_ends_the_run_and_the_epoch() -> None:
    machine, cause = running(), FailureCause("ValueError", "no")
    machine.handle(returned(0, C, A))
    assert machine.handle(on.AttemptFailed(E1, N1, 1, SINK, cause)) == [
        do.CancelRun(E1, N1, 1),
        do.AbortAttempts(E1, (A, C)),
        do.FailEpoch(E1, SINK, cause),
    ]
    assert machine.handle(on.AttemptFailed(E1, N1, 1, SINK, cause)) == []


def taken() -> Batches:
    machine = running()
    machine.handle(returned(0, C, A))
    machine.handle(returned(1, D, B))
    return machine


def test_output_is_committed_once_the_entry_is_durable_and_the_next_batch_waits_until_it_is_visible() -> None:
    machine = taken()
    assert machine.handle(on.BatchCompleted(E1, N1)) == [do.CommitBatch(E1, N1, (A, B, C, D))]
    assert machine.handle(on.BatchCompleted(E1, N1)) == []
    assert machine.handle(on.BatchTriggered(E1, N2)) == []
    assert machine.handle(on.OutputCommitted(E1, N1)) == [
        do.ReportCommitted(E1, N1),
        do.RunBatch(E1, N2, 1, N1),
    ]


def test_a_commit_that_fails_is_tried_again_and_then_the_epoch_fails() -> None:
    machine = taken()
    machine.handle(on.BatchCompleted(E1, N1))
    (again,) = machine.handle(on.CommitFailed(E1, N1, SINK, "down"))
    assert isinstance(again, do.CommitBatch)
    assert again.delay_ms > 0
    (failed,) = machine.handle(on.CommitFailed(E1, N1, SINK, "down", is_transient=True))
    assert isinstance(failed, do.FailEpoch)
    assert (failed.task, failed.cause.kind) == (SINK, "CommitFailed")
    assert failed.cause.is_transient and not failed.cause.is_permanent


def test_a_commit_that_does_not_return_fails_the_job_and_is_not_tried_again_beside_itself() -> None:
    machine = taken()
    machine.handle(on.BatchCompleted(E1, N1))
    (failed,) = machine.handle(on.CommitOverdue(E1, N1))
    assert isinstance(failed, do.FailJob)
    assert failed.cause.kind == "SinkHungError" and failed.cause.is_transient
    machine.handle(on.OutputCommitted(E1, N1))
    assert machine.handle(on.CommitOverdue(E1, N1)) == []


def test_what_was_taken_is_aborted_only_if_its_checkpoint_certainly_is_not_complete() -> None:
    assert taken().handle(on.EpochHalted(E1)) == []
    assert taken().handle(on.BatchAborted(E1, N1)) == [do.AbortAttempts(E1, (A, B, C, D))]


def test_what_the_next_epoch_has_not_restored_of_what_was_taken_is_aborted_then() -> None:
    for n, is_complete in [(N0, False), (N1, True)]:
        machine = taken()
        assert machine.handle(on.EpochHalted(E1)) == []
        aborted = [] if is_complete else [do.AbortAttempts(E2, (A, B, C, D))]
        assert machine.handle(on.TasksDeployed(E2, n)) == [do.RecoverOutput(E2, n), *aborted]
        assert machine.handle(on.TasksDeployed(Epoch(E2 + 1), n)) == [do.RecoverOutput(Epoch(E2 + 1), n)]


def test_a_batch_that_is_aborted_while_it_runs_is_cancelled_and_the_next_one_has_the_same_base() -> None:
    machine = running()
    machine.handle(returned(0, C, A))
    assert machine.handle(on.BatchAborted(E1, N1)) == [
        do.CancelRun(E1, N1, 1),
        do.AbortAttempts(E1, (A, C)),
    ]
    assert machine.handle(on.BatchTriggered(E1, N2)) == [do.RunBatch(E1, N2, 1, N0)]


def test_nothing_of_an_older_epoch_is_heard() -> None:
    machine = running()
    machine.handle(on.TasksDeployed(E2, N0))
    machine.handle(on.OutputRecovered(E2))
    for event in (returned(0, C, A), on.BatchCompleted(E1, N1), on.RunEnded(E1, N1, 1), on.EpochHalted(E1)):
        assert machine.handle(event) == []
    assert machine.dropped["event of an epoch that is over"] == 4


def test_what_dead_attempts_have_staged_is_swept_when_nothing_is_awaited() -> None:
    assert ready().handle(on.EpochHalted(E1)) == [do.SweepOutput(E1)]
    assert running().handle(on.EpochHalted(E1)) == [do.CancelRun(E1, N1, 1), do.SweepOutput(E1)]
    machine = taken()
    machine.handle(on.BatchCompleted(E1, N1))
    assert machine.handle(on.EpochHalted(E1)) == [], "not all is visible"


def test_a_sweep_before_the_end_of_an_epoch_is_part_of_a_commit_since_the_next_batch_stages_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SWEEP_EVERY", 1)
    machine = taken()
    assert machine.handle(on.BatchCompleted(E1, N1)) == [do.CommitBatch(E1, N1, (A, B, C, D), sweeps=True)]
    (again,) = machine.handle(on.CommitFailed(E1, N1, SINK, "down"))
    assert isinstance(again, do.CommitBatch)
    assert again.sweeps
    machine.handle(on.BatchTriggered(E1, N2))
    assert machine.handle(on.OutputCommitted(E1, N1)) == [
        do.ReportCommitted(E1, N1),
        do.SweepParts(E1),
        do.RunBatch(E1, N2, 1, N1),
    ]


def with_parts(one: Attempt, *paths: str) -> Attempt:
    (of_task,) = one.snapshots
    parts = tuple(Part(path, 1, "00") for path in paths)
    return replace(one, snapshots=(replace(of_task, snapshot=Snapshot(parts=parts)),))


def test_the_files_of_attempts_that_are_not_taken_are_discarded_but_not_those_they_build_on() -> None:
    base, lost, late = "parts/1/v1-0-1-aa", "parts/2/v1-0-1-bb", "parts/2/v1-1-1-cc"
    machine = taken()
    machine.handle(on.BatchCompleted(E1, N1))
    machine.handle(on.OutputCommitted(E1, N1))
    machine.handle(on.BatchTriggered(E1, N2))
    first, second = with_parts(C, base, "parts/2/v1-0-1-dd"), replace(C, name="second")
    machine.handle(returned(0, first, A, n=N2))
    machine.handle(returned(0, with_parts(second, base, lost), A, n=N2))
    assert machine.handle(returned(1, D, B, n=N2)) == [
        do.AcknowledgeBatch(E1, N2, (A, B, first, D)),
        do.DiscardParts(E1, (lost,)),
    ]
    zombie = returned(1, with_parts(replace(D, name="late"), base, late), B, n=N2)
    assert machine.handle(zombie) == [do.DiscardParts(E1, (late,))]
    machine.handle(on.BatchCompleted(E1, N2))
    assert machine.handle(zombie) == [do.DiscardParts(E1, (late,))], "its batch is over"


def test_attempts_fit_only_if_each_place_has_one_and_has_read_those_before() -> None:
    assert chosen({0: (C, A), 1: (D, B)}, 2, 2) == (A, B, C, D)
    assert chosen({0: (C, A)}, 2, 2) is None
    assert chosen({0: (C, A), 1: (D, B, attempt(0, 0, "a2"))}, 2, 2) is None
    assert chosen({0: (replace(C, read=("a2", "b")), A), 1: (D, B)}, 2, 2) is None


# Every order: two batches of two stages and two partitions, attempts made twice, torn runs, refused entries,
# failovers and dead drivers.


@dataclass
class World:
    """The machine, and what it can't see.

    Attributes:
        to_do: Effects that have not been performed.
        run: The run under way: (epoch, n, run), and which partitions have returned.
        appending: What the coordinator may append at any moment.
        log: What is complete.
        staged: Attempts whose transactions exist.
        visible: Those that are committed.
        mishaps: How many may still happen, of whatever kind.
    """

    machine: Batches
    to_do: list[do.BatchEffect] = field(default_factory=list)
    run: tuple[Epoch, CheckpointId, int] | None = None
    back: frozenset[int] = frozenset()
    appending: tuple[CheckpointId, tuple[Attempt, ...]] | None = None
    log: dict[int, tuple[Attempt, ...]] = field(default_factory=dict)
    told: int = 0
    staged: frozenset[str] = frozenset()
    visible: frozenset[str] = frozenset()
    triggered: int = 0
    mishaps: int = 2

    def check(self) -> None:
        """What is visible is complete; nothing that is complete is gone; what is complete fits together."""
        complete = {one.name for taken in self.log.values() for one in taken}
        assert self.visible <= complete, "visible, and not complete"
        assert complete <= self.visible | self.staged, "complete, and gone"
        for taken in self.log.values():
            last = {one.partition.index: (one, *taken) for one in taken if one.partition.stage == 1}
            assert len(taken) == 4, "a checkpoint without a partition"
            assert original_chosen(last, 2, 2) is not None, "attempts that have not read each other"

    @property
    def newest(self) -> int:
        return max(self.log, default=0)


original_chosen = chosen
EPOCHS_MAX, BATCHES_MAX = 3, 2


def moves(world: World) -> Iterator[tuple[str, Callable[[World], None]]]:
    """Everything that can happen next."""
    if world.to_do:
        yield "perform", perform
    machine, run = world.machine, world.run
    is_idle = world.appending is None and world.told == world.newest and not world.to_do and run is None
    if is_idle and machine._is_open and world.triggered < BATCHES_MAX:
        yield "trigger", trigger
    if run is not None:
        for index in (0, 1):
            if index not in world.back:
                yield f"return {index}", lambda w, i=index: give_back(w, i, "x")
                if world.mishaps:
                    yield f"torn {index}", lambda w, i=index: torn(w, i)
            elif world.mishaps:
                yield f"again {index}", lambda w, i=index: again(w, i)
        if world.back == {0, 1}:
            yield "run ends", end_run
        if world.mishaps:
            yield "run lost", lose_run
    if world.appending is not None:
        yield "append", append
        if world.mishaps:
            yield "refuse", refuse
    if world.told < world.newest and not world.to_do and machine._is_open:
        yield "tell", tell
    if world.mishaps and machine._is_open:
        yield "halt", halt
    if not machine._is_open and not world.to_do and machine.epoch < EPOCHS_MAX:
        yield "deploy", deploy
    if world.mishaps:
        yield "crash", crash


def give(world: World, event: on.BatchEvent) -> None:
    world.to_do += world.machine.handle(event)


def perform(world: World) -> None:
    effect = world.to_do.pop(0)
    match effect:
        case do.RecoverOutput(epoch, restore):
            complete = {one.name for one in world.log.get(restore, ())}
            assert restore == world.newest, "restored from an older checkpoint"
            world.visible |= complete & world.staged
            world.staged = frozenset()
            give(world, on.OutputRecovered(epoch))
        case do.RunBatch(epoch, n, run, base):
            assert base == world.newest, "a batch over an old base"
            complete = {one.name for taken in world.log.values() for one in taken}
            assert complete <= world.visible, "a batch before the output of the one before is visible"
            world.run, world.back = (epoch, n, run), frozenset()
        case do.CancelRun():
            world.run = None
        case do.AcknowledgeBatch(_, n, taken):
            world.appending = (n, taken)
        case do.AbortAttempts(_, attempts):
            world.staged -= {one.name for one in attempts}
        case do.SweepOutput():
            world.staged = frozenset()
        case do.CommitBatch(epoch, n, taken, _, sweeps):
            assert n in world.log, "a commit before the entry"
            world.visible |= {one.name for one in taken}
            world.staged = frozenset() if sweeps else world.staged - world.visible
            give(world, on.OutputCommitted(epoch, n))
        case do.FailEpoch(epoch):
            give(world, on.EpochHalted(epoch))
        case do.ReportReady() | do.ReportCommitted() | do.FailJob():
            pass


def trigger(world: World) -> None:
    world.triggered += 1
    n = max(world.newest, world.machine.base) + 1 + 10 * world.machine.epoch + world.triggered
    give(world, on.BatchTriggered(world.machine.epoch, CheckpointId(n)))


def brought(world: World, index: int, variant: str) -> tuple[Attempt, ...]:
    assert world.run is not None
    _, n, run = world.run
    first = f"{n}-{run}-0-0-{'y' if variant == 'torn' else 'x'}"
    read = (first, f"{n}-{run}-0-1-x")
    own = attempt(1, index, f"{n}-{run}-1-{index}-{variant}", read, n)
    return own, attempt(0, index, read[index], (), n)


def give_back(world: World, index: int, variant: str) -> None:
    assert world.run is not None
    found = brought(world, index, variant)
    world.staged |= {one.name for one in found} - world.visible
    world.back |= {index}
    epoch, n, run = world.run
    give(world, on.PartitionReturned(epoch, n, run, index, found))


def again(world: World, index: int) -> None:
    world.mishaps -= 1
    give_back(world, index, "z")


def torn(world: World, index: int) -> None:
    world.mishaps -= 1
    give_back(world, index, "torn")


def end_run(world: World) -> None:
    assert world.run is not None
    (epoch, n, run), world.run = world.run, None
    give(world, on.RunEnded(epoch, n, run))


def lose_run(world: World) -> None:
    assert world.run is not None
    world.mishaps -= 1
    (epoch, n, run), world.run = world.run, None
    give(world, on.RunEnded(epoch, n, run, FailureCause("SparkJobEnded", "lost")))


def append(world: World) -> None:
    assert world.appending is not None
    (n, found), world.appending = world.appending, None
    world.log[n] = found


def tell(world: World) -> None:
    world.told = world.newest
    give(world, on.BatchCompleted(world.machine.epoch, CheckpointId(world.newest)))


def refuse(world: World) -> None:
    assert world.appending is not None
    world.mishaps -= 1
    (n, _), world.appending = world.appending, None
    give(world, on.BatchAborted(world.machine.epoch, n))


def halt(world: World) -> None:
    world.mishaps -= 1
    give(world, on.EpochHalted(world.machine.epoch))


def deploy(world: World) -> None:
    # The claim comes after every append of the epoch before, or before it, which is then fenced.
    world.appending = None
    world.told = world.newest
    give(world, on.TasksDeployed(Epoch(world.machine.epoch + 1), CheckpointId(world.newest)))


def crash(world: World) -> None:
    """Another driver: what the old one has asked Spark for may still stage something."""
    world.mishaps -= 1
    before = world.machine.epoch
    world.machine = Batches(2, 2, 2)
    world.machine.epoch = before
    world.to_do = []
    world.run = None


def copied(world: World) -> World:
    following = replace(world, to_do=list(world.to_do), log=dict(world.log))
    machine = following.machine = copy(world.machine)
    machine.dropped = machine.dropped.copy()
    for name in ("_batch", "_committing"):
        one = getattr(machine, name)
        if one is not None:
            # One object if it was one.
            setattr(machine, name, replace(one, returned=dict(one.returned), staged=dict(one.staged)))
    return following


def key_of(world: World) -> str:
    """Return what tells states apart: what was dropped and how does not."""
    machine = {name: value for name, value in vars(world.machine).items() if name != "dropped"}
    rest = {
        name: value for name, value in vars(world).items() if name not in ("machine", "staged", "visible")
    }
    return f"{machine}{rest}{sorted(world.staged)}{sorted(world.visible)}"


def explored() -> int:
    """Visit every state; return how many there are. All that is complete is visible in the end."""
    start = World(Batches(2, 2, 2))
    give(start, on.TasksDeployed(E1, N0))
    seen = {key_of(start)}
    ahead = deque([start])
    while ahead:
        world = ahead.popleft()
        found = list(moves(world))
        quiet = [name for name, _ in found if name not in ("crash", "halt", "run lost", "trigger")]
        if not quiet and world.machine._is_open and world.run is None:
            complete = {one.name for taken in world.log.values() for one in taken}
            assert complete <= world.visible, "complete, and never visible"
            assert world.appending is None
        for _, move in found:
            following = copied(world)
            move(following)
            following.check()
            key = key_of(following)
            if key not in seen:
                seen.add(key)
                ahead.append(following)
    return len(seen)


@pytest.mark.parametrize("sweep_every", [1, pytest.param(64, marks=pytest.mark.proof)])
def test_every_order_of_what_can_happen_keeps_output_exact(
    sweep_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_EVERY", sweep_every)
    assert explored() > 1_000


class AbortsWhatItTookWhenItHalts(Batches):
    def _halted(self) -> list[do.BatchEffect]:
        taken = self._batch.taken if self._batch is not None else ()
        return [*super()._halted(), *self._abort(N1, list(taken))]


class SweepsWhatItTook(Batches):
    def _returned(self, event: on.PartitionReturned) -> list[do.BatchEffect]:
        effects = super()._returned(event)
        return [*effects, do.SweepOutput(self.epoch)] if len(effects) == 1 else effects


class CommitsWhenItAcknowledges(Batches):
    def _returned(self, event: on.PartitionReturned) -> list[do.BatchEffect]:
        effects = super()._returned(event)
        for one in effects:
            if isinstance(one, do.AcknowledgeBatch):
                return [*effects, do.CommitBatch(one.epoch, one.checkpoint_id, one.taken)]
        return effects


class AbortsLosersWithWhatTheyHaveRead(Batches):
    def _returned(self, event: on.PartitionReturned) -> list[do.BatchEffect]:
        effects = super()._returned(event)
        return [
            replace(one, attempts=event.brought) if isinstance(one, do.AbortAttempts) else one
            for one in effects
        ]


class BeginsBeforeOutputIsVisible(Batches):
    def _completed(self, n: CheckpointId) -> list[do.BatchEffect]:
        effects = super()._completed(n)
        return [do.RunBatch(self.epoch, CheckpointId(n + 1), 1, n), *effects] if effects else effects


class RunsAgainOverNothing(Batches):
    def _run(self, n: CheckpointId, run: int) -> list[do.BatchEffect]:
        base, self.base = self.base, N0
        effects = super()._run(n, run)
        self.base = base
        return effects


@pytest.mark.parametrize(
    "bug",
    [
        AbortsWhatItTookWhenItHalts,
        SweepsWhatItTook,
        CommitsWhenItAcknowledges,
        AbortsLosersWithWhatTheyHaveRead,
        BeginsBeforeOutputIsVisible,
        RunsAgainOverNothing,
    ],
)
def test_a_planted_bug_is_found(bug: type[Batches], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Batches", bug)
    with pytest.raises(AssertionError):
        explored()


def test_taking_attempts_that_have_not_read_each_other_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_place_alone(last: Any, stages: int, parallelism: int, **others: Any) -> tuple[Attempt, ...]:
        found = {one.partition: one for brought in last.values() for one in brought}
        return tuple(found[partition] for partition in sorted(found))

    monkeypatch.setattr(module, "chosen", by_place_alone)
    with pytest.raises(AssertionError):
        explored()
