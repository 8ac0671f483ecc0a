"""What becomes of a batch: which attempts are taken, when it is committed, and what is removed.

Batch n is checkpoint n. It begins with the checkpoint before, its base, and ends with the entry of checkpoint
n in the job log, which the coordinator appends once it has a snapshot of every task. So the log, its claim
and its fence are those of the continuous engine. What is particular to batches:

* Of each partition exactly one attempt is taken, the first that returns, and only together with those that it
  has read. If they don't fit together the batch runs again, over the same base.
* An attempt stages under a name of its own. So what is committed is what one attempt has computed, and code
  need not be deterministic.
* What was staged and not taken is removed. What was taken is removed only if the coordinator says that its
  checkpoint is certainly not complete: never because an epoch ends.
* The next batch begins when the output of this one is visible: its writers go on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import assert_never

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, VertexId
from crosscut.protocol.checkpoint.global_committer import too_much_staged
from crosscut.protocol.checkpoint.retention import written_for
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Attempt, chosen, gathered
from crosscut.protocol.microbatch.effects import (
    AbortAttempts,
    AcknowledgeBatch,
    BatchEffect,
    CancelRun,
    CommitBatch,
    DiscardParts,
    FailEpoch,
    FailJob,
    RecoverOutput,
    ReportCommitted,
    ReportReady,
    RunBatch,
    SweepOutput,
    SweepParts,
)
from crosscut.protocol.microbatch.events import (
    AttemptFailed,
    BatchAborted,
    BatchCompleted,
    BatchEvent,
    BatchTriggered,
    CommitFailed,
    CommitOverdue,
    EpochHalted,
    OutputCommitted,
    OutputRecovered,
    PartitionReturned,
    RecoveryFailed,
    RunEnded,
    TasksDeployed,
)
from crosscut.protocol.snapshot.commit import RETRY_DELAY_MAX_MS, RETRY_DELAY_MS

RUNS_MAX = 4
"""A batch whose attempts don't fit together runs again so often before its epoch fails."""

SWEEP_EVERY = 64
"""Batches between two looks for what attempts have staged and stored that died: it costs a list of each stage
and of the store."""

_NONE = CheckpointId(0)


@dataclass(slots=True)
class _Batch:
    """The batch under way.

    Attributes:
        returned: By index of the last stage, what the first attempt that returned has brought.
        staged: Every attempt that is known, by name: it may have staged something.
        taken: Acknowledged to the coordinator, which may append the entry at any moment; () before.
    """

    checkpoint_id: CheckpointId
    run: int
    returned: dict[int, tuple[Attempt, ...]] = field(default_factory=dict)
    staged: dict[str, Attempt] = field(default_factory=dict)
    taken: tuple[Attempt, ...] = ()


class Batches:
    """The batches of one driver, one at a time.

    Args:
        stages: Of each batch.
        parallelism: Partitions of each stage.
        commit_attempts_max: Attempts at one commit before the epoch fails; the restore commits again.
        global_sinks: Sinks whose first task commits what all have staged.

    Attributes:
        epoch: The newest that was deployed.
        base: The newest completed checkpoint.
    """

    def __init__(
        self,
        stages: int,
        parallelism: int,
        commit_attempts_max: int,
        global_sinks: frozenset[VertexId] = frozenset(),
    ) -> None:
        self._global_sinks = global_sinks
        self._stages = stages
        self._parallelism = parallelism
        self._commit_attempts_max = commit_attempts_max
        self.epoch = Epoch(0)
        self.base = _NONE
        self._is_open = False
        self._batch: _Batch | None = None
        # Taken when an epoch ended: what the next one restores says whether it is complete.
        self._undecided: _Batch | None = None
        # Complete, and not known to be visible.
        self._committing: _Batch | None = None
        self._commit_attempts = 0
        # Due, as soon as the one before is visible.
        self._due = _NONE
        self._until_sweep = SWEEP_EVERY
        self.dropped: Counter[str] = Counter()

    def handle(self, event: BatchEvent) -> list[BatchEffect]:
        """Take one event and return the effects to perform, in order."""
        if isinstance(event, TasksDeployed):
            return self._deployed(event)
        if event.epoch != self.epoch or not (
            self._is_open or isinstance(event, OutputRecovered | RecoveryFailed)
        ):
            self.dropped["event of an epoch that is over"] += 1
            return []
        match event:
            case OutputRecovered():
                self._is_open = True
                return [ReportReady(self.epoch)]
            case RecoveryFailed(epoch, task, cause):
                return [FailEpoch(epoch, task, cause)]
            case BatchTriggered(_, n):
                return self._triggered(n)
            case PartitionReturned():
                return self._returned(event)
            case AttemptFailed(epoch, n, run, task, cause):
                if not self._is_under_way(n, run):
                    return []
                return [*self._give_up(), FailEpoch(epoch, task, cause)]
            case RunEnded():
                return self._ended(event)
            case BatchAborted(_, n):
                return self._aborted(n)
            case BatchCompleted(_, n):
                return self._completed(n)
            case OutputCommitted(epoch, n):
                if self._committing is None or self._committing.checkpoint_id != n:
                    self.dropped["commit that was not asked for"] += 1
                    return []
                self._committing = None
                swept: list[BatchEffect] = [] if self._until_sweep else [SweepParts(epoch)]
                self._until_sweep = self._until_sweep or SWEEP_EVERY
                return [ReportCommitted(epoch, n), *swept, *self._begin()]
            case CommitFailed():
                return self._commit_failed(event)
            case CommitOverdue(_, n):
                return self._overdue(n)
            case EpochHalted():
                return self._halted()
            case _:
                assert_never(event)

    def _deployed(self, event: TasksDeployed) -> list[BatchEffect]:
        if event.epoch <= self.epoch:
            self.dropped["deployment of an older epoch"] += 1
            return []
        effects = self._halted()
        self.epoch, self.base = event.epoch, event.restore
        effects.append(RecoverOutput(event.epoch, event.restore))
        undecided, self._undecided = self._undecided, None
        if undecided is not None and undecided.checkpoint_id > event.restore:
            # No entry of an older epoch follows the claim of this one, and no id comes twice.
            effects += self._abort(undecided.checkpoint_id, list(undecided.taken))
        return effects

    def _halted(self) -> list[BatchEffect]:
        # What was taken may be in the log, or come to be: only the next epoch, whose claim says what is, may
        # remove it.
        batch = self._batch
        effects: list[BatchEffect] = []
        if batch is not None and batch.taken:
            self._undecided = batch
        elif batch is not None:
            effects = self._give_up()
        if self._is_open and self._batch is None and self._committing is None:
            effects.append(SweepOutput(self.epoch))
        self._batch = self._committing = None
        self._due = _NONE
        self._commit_attempts = 0
        self._is_open = False
        return effects

    def _triggered(self, n: CheckpointId) -> list[BatchEffect]:
        newest = self._batch.checkpoint_id if self._batch is not None else self.base
        if n <= max(newest, self._due):
            self.dropped["repeated trigger"] += 1
            return []
        self._due = n
        return self._begin()

    def _begin(self) -> list[BatchEffect]:
        """Run the batch that is due, unless it has to wait."""
        if not self._due or self._batch is not None or self._committing is not None:
            return []
        n, self._due = self._due, _NONE
        return self._run(n, 1)

    def _run(self, n: CheckpointId, run: int) -> list[BatchEffect]:
        self._batch = _Batch(n, run)
        return [RunBatch(self.epoch, n, run, self.base)]

    def _is_under_way(self, n: CheckpointId, run: int) -> bool:
        batch = self._batch
        if batch is not None and (batch.checkpoint_id, batch.run) == (n, run) and not batch.taken:
            return True
        self.dropped["word of a run that is over"] += 1
        return False

    def _returned(self, event: PartitionReturned) -> list[BatchEffect]:
        batch = self._batch
        if batch is None or event.checkpoint_id != batch.checkpoint_id:
            # It may have read what has been committed since; what it has staged goes with the epoch. The
            # coordinator deletes no file that a checkpoint refers to.
            self.dropped["attempt at a batch that is over"] += 1
            return self._discard(event.checkpoint_id, event.brought)
        is_of_run = event.run == batch.run
        if batch.taken or not is_of_run:
            # A zombie: it is never taken.
            self.dropped["attempt that came too late"] += 1
            kept = {one.name for one in batch.taken} | batch.staged.keys()
            late = [one for one in event.brought if one.name not in kept]
            return self._abort(event.checkpoint_id, late)
        batch.staged.update((one.name, one) for one in event.brought)
        if event.index in batch.returned:
            self.dropped["second attempt at a partition"] += 1
            return []
        batch.returned[event.index] = event.brought
        if len(batch.returned) < self._parallelism:
            return []
        taken = chosen(batch.returned, self._stages, self._parallelism)
        if taken is None:
            # Waits for the end of the run: another one beside it would only take its place in Spark.
            return []
        taken = gathered(taken, self._global_sinks)
        snapshots = [one for attempt in taken for one in attempt.snapshots]
        if problem := too_much_staged(snapshots, self._global_sinks):
            # The job may go on in tasks that stay, whose coordinator has to tell one of them all of it.
            return [
                *self._give_up(),
                FailEpoch(self.epoch, None, FailureCause("TooMuchStaged", problem.shown)),
            ]
        batch.taken = taken
        names = {one.name for one in taken}
        losers = [one for name, one in sorted(batch.staged.items()) if name not in names]
        batch.staged = {}
        return [
            AcknowledgeBatch(self.epoch, batch.checkpoint_id, taken),
            *self._abort(batch.checkpoint_id, losers),
        ]

    def _ended(self, event: RunEnded) -> list[BatchEffect]:
        n, run, cause = event.checkpoint_id, event.run, event.cause
        batch = self._batch
        if batch is not None and (batch.checkpoint_id, batch.run) == (n, run) and batch.taken:
            return []
        if batch is None or not self._is_under_way(n, run):
            return []
        losers = self._abort(n, [one for _, one in sorted(batch.staged.items())])
        self._batch = None
        if cause is None and run < RUNS_MAX:
            return [*losers, *self._run(n, run + 1)]
        if cause is None:
            cause = FailureCause(
                "BatchTorn",
                f"batch {n} has run {run} times, and each time some of its partitions had read other "
                f"attempts than others: Spark lost what executors had written; look for executors that die",
                is_transient=True,
            )
        return [*losers, FailEpoch(event.epoch, None, cause)]

    def _give_up(self) -> list[BatchEffect]:
        """End the batch under way, of which nothing was taken."""
        batch, self._batch = self._batch, None
        if batch is None:
            return []
        n = batch.checkpoint_id
        losers = self._abort(n, [one for _, one in sorted(batch.staged.items())])
        return [CancelRun(self.epoch, n, batch.run), *losers]

    def _aborted(self, n: CheckpointId) -> list[BatchEffect]:
        if self._due == n:
            self._due = _NONE
            return []
        batch = self._batch
        if batch is None or batch.checkpoint_id != n:
            self.dropped["abort of a batch that is over"] += 1
            return []
        if not batch.taken:
            return [*self._give_up(), *self._begin()]
        self._batch = None
        return [*self._abort(n, list(batch.taken)), *self._begin()]

    def _completed(self, n: CheckpointId) -> list[BatchEffect]:
        batch = self._batch
        if batch is None or batch.checkpoint_id != n or not batch.taken:
            self.dropped["repeated completion"] += 1
            return []
        self._batch, self._committing = None, batch
        self.base = n
        self._commit_attempts = 1
        self._until_sweep = max(0, self._until_sweep - 1)
        return [self._commit(batch)]

    def _commit(self, batch: _Batch, delay_ms: int = 0) -> BatchEffect:
        # Swept with the commit, not beside the next batch: what that stages must not go.
        sweeps = not self._until_sweep
        return CommitBatch(self.epoch, batch.checkpoint_id, batch.taken, delay_ms, sweeps)

    def _commit_failed(self, event: CommitFailed) -> list[BatchEffect]:
        batch = self._committing
        if batch is None or batch.checkpoint_id != event.checkpoint_id:
            self.dropped["commit that was not asked for"] += 1
            return []
        if event.is_permanent or self._commit_attempts >= self._commit_attempts_max:
            cause = FailureCause(
                "CommitFailed",
                f"the output of checkpoint {event.checkpoint_id} could not be committed in "
                f"{self._commit_attempts} attempts, the last one: {event.reason}",
                event.operator,
                is_permanent=event.is_permanent,
                is_transient=event.is_transient,
            )
            return [FailEpoch(self.epoch, event.task, cause)]
        delay_ms = min(RETRY_DELAY_MS << min(self._commit_attempts - 1, 20), RETRY_DELAY_MAX_MS)
        self._commit_attempts += 1
        return [self._commit(batch, delay_ms)]

    def _overdue(self, n: CheckpointId) -> list[BatchEffect]:
        if self._committing is None or self._committing.checkpoint_id != n:
            self.dropped["commit that was not asked for"] += 1
            return []
        # Not tried again, nor by another epoch: the call is still at it, in this process.
        cause = FailureCause(
            "SinkHungError",
            f"the output of checkpoint {n} has not been committed within checkpoint_timeout: a sink has not "
            f"returned; the next start commits it",
            is_transient=True,
        )
        return [FailJob(cause)]

    def _abort(self, n: CheckpointId, attempts: list[Attempt]) -> list[BatchEffect]:
        staged = tuple(one for one in attempts if any(each.snapshot.pending for each in one.snapshots))
        aborted: list[BatchEffect] = [AbortAttempts(self.epoch, staged)] if staged else []
        return [*aborted, *self._discard(n, attempts)]

    def _discard(self, n: CheckpointId, attempts: Iterable[Attempt]) -> list[BatchEffect]:
        paths = {path for one in attempts for each in one.snapshots for path in written_for(n, each.snapshot)}
        return [DiscardParts(self.epoch, tuple(sorted(paths)))] if paths else []
