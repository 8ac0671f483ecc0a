"""The checkpoints of a job, one after another: how the end of one affects the others.

`checkpoints` has those under way, `triggering` starts the next one, `retention` has those that are kept. A
whole checkpoint goes to the log; parts that a completion or a failure makes useless are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex, TaskId
from crosscut.protocol import events as on
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.checkpoint.checkpoints import Checkpoints, Failed
from crosscut.protocol.checkpoint.global_committer import GlobalCommitter
from crosscut.protocol.checkpoint.pending import Completion
from crosscut.protocol.checkpoint.retention import Retention
from crosscut.protocol.checkpoint.savepoints import Savepoints
from crosscut.protocol.checkpoint.termination import heads_to_close, stillness
from crosscut.protocol.checkpoint.triggering import Triggering
from crosscut.protocol.effects import JobEffect
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry
from crosscut.protocol.log.ownership import Ownership
from crosscut.protocol.messages import CloseLoops, FailureCause, SnapshotAcknowledged
from crosscut.protocol.splits.discovery import SplitDiscovery
from crosscut.protocol.splits.staged import staged_for


class Series:
    """All checkpoints of one driver.

    Whatever may make a checkpoint fail is to be followed by a look at `failure`: after too many failures
    in a row the job must end.

    Args:
        registry: Whom to tell.
        log: Where whole checkpoints are appended; their entries come back through `completed` or `refused`.
        finding: What is known of splits belongs to each checkpoint.
        commits: Whether another may start depends on how many are not committed.
    """

    def __init__(
        self,
        terms: CoordinatorSpec,
        registry: WorkerRegistry,
        log: Ownership,
        finding: SplitDiscovery,
        commits: Commits,
    ) -> None:
        self._loops = terms.loops
        self._registry = registry
        self._log = log
        self._finding = finding
        self._commits = commits
        self.savepoints = Savepoints()
        self._together = GlobalCommitter(terms.together)
        self._checkpoints = Checkpoints(
            terms.checkpoints, terms.tasks, terms.sources, registry, self.savepoints, self._together
        )
        self._triggering = Triggering(terms.checkpoints, self._checkpoints, commits)
        self._kept = Retention(terms.retain, terms.checkpoints.timeout_ms)

    @property
    def newest(self) -> CheckpointCompleted | None:
        """The newest completed checkpoint."""
        return self._kept.completed

    @property
    def retained(self) -> tuple[CheckpointCompleted, ...]:
        """The completed checkpoints that are kept, oldest first."""
        return self._kept.retained

    @property
    def under_way(self) -> CheckpointId | None:
        """The oldest checkpoint that has been triggered and is not decided."""
        return self._checkpoints.under_way

    @property
    def next_id(self) -> CheckpointId:
        """The id of the checkpoint that is triggered next."""
        return self._checkpoints.next_id

    @property
    def failed_count(self) -> int:
        """How many checkpoints have failed."""
        return self._checkpoints.failed_count

    @property
    def last_failure(self) -> str:
        """Which checkpoint has failed last, and why; "" if one was completed since."""
        return self._checkpoints.last_failure

    @property
    def failure(self) -> FailureCause | None:
        """Why the job must end: too many checkpoints have failed in a row."""
        return self._checkpoints.failure

    @property
    def overdue(self) -> str:
        """Why the awaited checkpoint is not complete."""
        return self._checkpoints.overdue

    @property
    def is_drained(self) -> bool:
        """Whether every source has read all of its input in this epoch."""
        return self._checkpoints.is_drained

    def is_under_way(self, n: CheckpointId) -> bool:
        """Whether n has been triggered in this epoch and is not decided."""
        current = self._checkpoints.current
        return current is not None and current.is_under_way(n)

    def is_last(self, n: CheckpointId) -> bool:
        """Whether n is the last checkpoint of a stop."""
        return self._triggering.is_last(n)

    # An epoch begins and ends.

    def found(self, tail: Sequence[tuple[LogIndex, LogEntry]]) -> None:
        """Start from the end of the log."""
        self._kept.found(tail)

    def claimed(self, first: CheckpointId) -> None:
        """Note that an epoch was claimed whose checkpoints have ids from `first` on."""
        self._checkpoints.next_id = max(self._checkpoints.next_id, first)

    def begin(self, epoch: Epoch) -> None:
        """Note that the tasks of `epoch` are being deployed."""
        self._commits.begin()
        self._triggering.begin()
        self._checkpoints.begin(epoch)

    def started(self, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Note that records flow."""
        return self._triggering.started(phase, now)

    def committed(self, task: TaskId, n: CheckpointId, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Note that `task` has committed everything at or below n; one that waited for that may start."""
        self._together.committed(task, n)
        self._commits.committed(task, n)
        return self._triggering.committed(phase, now)

    def finish(self, final: CheckpointCompleted) -> list[JobEffect]:
        """Take the final checkpoint for the answer to everybody who waits for one; no other is of use."""
        return self._checkpoints.finish(final)

    def end(self, reason: str) -> list[JobEffect]:
        """Note that the epoch is over."""
        self._commits.begin()
        return self._checkpoints.end(reason)

    def dismiss(self, reason: str) -> list[JobEffect]:
        """Note that the job is over: nobody needs to wait any more."""
        final = self.newest if self.newest is not None and self.newest.is_final else None
        return self._checkpoints.dismiss(reason, final)

    # When one starts.

    def request(self, request: int, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Answer whoever wants a checkpoint, now or when the next one is complete."""
        if self.newest is not None and self.newest.is_final:
            # It has all that there ever will be.
            return self.savepoints.answer(request, self.newest)
        self._checkpoints.request(request)
        return self.trigger(phase, now)

    def source_drained(self, task: TaskId, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Note that a source has read all of its input; once all have, a checkpoint may be the final one."""
        current = self._checkpoints.current
        return self.trigger(phase, now) if current is not None and current.source_drained(task) else []

    def trigger(self, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Start a checkpoint at once, if there is room for it."""
        return self._triggering.trigger(phase, now)

    def timer_fired(self, timer: on.Timer, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Take one of this epoch's timers: "trigger", "pause" or "checkpoint-timeout"."""
        match timer.kind:
            case "trigger":
                return self._triggering.due(phase, now)
            case "pause":
                return self._triggering.pause_over(phase, now)
            case _:
                return self._gave_up(self._checkpoints.timed_out(CheckpointId(timer.number)), phase, now)

    # It becomes whole, complete, or fails.

    def quiet(self, n: CheckpointId, task: TaskId) -> list[JobEffect]:
        """Note that `task` stands still for n."""
        return self._checkpoints.quiet(n, task)

    def acknowledged(self, message: SnapshotAcknowledged, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Take the snapshot of a task; append the checkpoint to the log if that makes it whole."""
        n = message.checkpoint_id
        # A worker has a say on no files but those of its own snapshot.
        self._kept.waste(path for path in message.unused if path.startswith(f"parts/{n}/"))
        if lost := self._kept.dangling(message.snapshot, n):
            self._kept.waste(retention.written_for(n, message.snapshot))
            reason = f"task {message.task} builds on parts that are gone: {lost[0]}"
            return self.give_up(n, reason, phase, now)
        entry = self._checkpoints.acknowledge(n, message.task, message.snapshot, now)
        if entry is not None:
            return self._append(entry, phase, now)
        # If n was given up before this came, its parts are of no use. Only then: going through
        # all parts in use for each acknowledgement would cost the square of the number of tasks.
        return self._delete() if self._checkpoints.has_void else []

    def completed(
        self, entry: CheckpointCompleted, log_index: LogIndex
    ) -> tuple[list[JobEffect], Completion | None]:
        """Take a checkpoint whose entry is durable.

        Returns:
            What to do at once, and None if the job failed over while the entry was being appended: then the
            next epoch restores it.
        """
        if self.newest is None:
            # What is read to its end already is in no manifest.
            self._kept.waste(staged_for(self._log.splits))
        self._kept.add(entry, log_index.segment, self._log.take_ended())
        effects, shown = self._checkpoints.completed(entry)
        if shown is not None:
            self._commits.completed(entry.checkpoint_id)
            self._finding.completed(entry.checkpoint_id)
        if entry.is_final:
            effects += self._checkpoints.finish(entry)
        return [*effects, *self._delete()], shown

    def after_completion(
        self, entry: CheckpointCompleted, shown: Completion, phase: Phase, now: on.ClockRead
    ) -> list[JobEffect]:
        """Go on after a completed checkpoint that is not final: end exhausted loops, trigger the next."""
        loops = self._loops if phase is Phase.RUNNING else ()
        heads = heads_to_close(loops, stillness(entry.snapshots)) if loops else ()
        told = self._registry.to_holders(CloseLoops(self._checkpoints.epoch, heads)) if heads else []
        return [*told, *self._triggering.after_completion(phase, now, shown, heads=heads)]

    def refused(
        self, entry: CheckpointCompleted, reason: str, phase: Phase, now: on.ClockRead
    ) -> list[JobEffect]:
        """Take a checkpoint whose entry is certainly not in the log; append another one, if one is whole."""
        failed, instead = self._checkpoints.refused(entry.checkpoint_id, reason, now)
        effects = self._gave_up(failed, phase, now)
        if instead is None or self.failure is not None:
            return effects
        return [*effects, *self._append(instead, phase, now)]

    def _append(self, entry: CheckpointCompleted, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        known = self._finding.known_at(entry.checkpoint_id)
        gathered = self._together.gathered(replace(entry, known_splits=known))
        if problem := self._together.problem(gathered):
            return self.refused(entry, problem, phase, now)
        return self._log.append(gathered)

    def give_up(self, n: CheckpointId, reason: str, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Give n up, and only n, unless its entry is being appended."""
        return self._gave_up(self._checkpoints.give_up(n, reason), phase, now)

    def _gave_up(self, failed: Failed | None, phase: Phase, now: on.ClockRead) -> list[JobEffect]:
        """Go on after the failure of a checkpoint, if one has failed."""
        if failed is None:
            return []
        effects = [*failed.effects, *self._delete()]
        if self.failure is not None:
            return effects
        return [*effects, *self._triggering.after_failure(phase, now, failed)]

    # Deletion.

    def listed(self, event: on.PartsListed, epoch: Epoch) -> list[JobEffect]:
        """Delete what nothing in the store needs any more."""
        self._kept.waste_entries(event.entries)
        # Before the first checkpoint only the splits themselves know what is staged for them.
        staged = staged_for(self._log.splits) if self.newest is None else frozenset[str]()
        orphans = retention.orphans(event.paths, self.retained, epoch, staged)
        self._kept.waste((*orphans, *event.unfinished))
        return self._delete()

    def discarded(self, paths: Sequence[str]) -> list[JobEffect]:
        """Delete what no snapshot refers to."""
        self._kept.waste(paths)
        return self._delete()

    def deleted(self) -> list[JobEffect]:
        """Note the end of a deletion; begin the next."""
        return [*self._kept.deleted(), *self._delete()]

    def savepoint_written(self, request: int) -> list[JobEffect]:
        """Delete what was kept for a savepoint only."""
        self.savepoints.written(request)
        return self._delete()

    def deletion_overdue(self) -> None:
        """Note that the deletion under way, if one is, has taken too long."""
        self._kept.overdue()

    def _delete(self) -> list[JobEffect]:
        self._kept.waste(self._checkpoints.take_void())
        # The manifest that is being appended may be in the log already.
        if not self._log.is_idle:
            return []
        return self._kept.delete(self._checkpoints.in_use() | self.savepoints.in_use())
