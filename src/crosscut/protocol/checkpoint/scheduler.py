"""The checkpoints of a job: when the next one is due, and what the end of one means for the others.

One is due after the interval, on request, at the end of the input, for a stop, and after a failure of the one
before. `pending` has those under way, `retention` those that are kept. A whole checkpoint goes to the log;
parts that a completion or a failure makes useless are deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from crosscut.foundation.ids import CheckpointId, LogIndex, TaskId, VertexId
from crosscut.protocol import events as on
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.checkpoint.events import (
    CheckpointDurable,
    EpochBegan,
    EpochEnded,
    JobOver,
    SchedulerEvent,
    StopBegan,
    TaskReport,
    TasksReady,
)
from crosscut.protocol.checkpoint.failures import CheckpointFailures
from crosscut.protocol.checkpoint.global_committer import GlobalCommitter
from crosscut.protocol.checkpoint.pending import PendingCheckpoint
from crosscut.protocol.checkpoint.requests import CheckpointRequests
from crosscut.protocol.checkpoint.retention import Retention
from crosscut.protocol.checkpoint.termination import DrainBackoff, heads_to_close, stillness
from crosscut.protocol.effects import JobEffect, StartTimer
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.job.phases import CHECKPOINTED, DEPLOYED, JobState, Phase
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry
from crosscut.protocol.log.ownership import NoCheckpoint, Ownership
from crosscut.protocol.messages import (
    CloseLoops,
    PauseSources,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    TaskQuiet,
    TransactionsCommitted,
)
from crosscut.protocol.splits.discovery import SplitDiscovery
from crosscut.protocol.splits.staged import staged_for

RETRY_SHARE = 4
"""A job that is to end tries again within this share of `timeout_ms`, however long the interval is."""


class CheckpointScheduler:
    """All checkpoints of one driver.

    Any event may make a checkpoint fail, and after too many failures in a row the job must end: look at
    `failed` after each.

    While too many checkpoints are uncommitted none starts, but for the last one of a stop. If the next one
    has waited for long, to start or for a sink that commits an older one, sources wait as well: what they
    read would all go into the one after it.

    Several checkpoints may be under way, and they may become whole in any order. Log entries are in the order
    of ids all the same: one that becomes whole after a newer one is appended only if the newer one is
    refused; completing the newer one subsumes it.

    Args:
        job: Where the job is.
        registry: The workers.
        log: Where whole checkpoints are appended.
        splits: What is known of splits belongs to each checkpoint.
        commits: Whether another may start depends on how many are not committed.
        dropped: Counts stale and repeated input.

    Attributes:
        next_id: Of the checkpoint that is triggered next. Ids grow and are never used twice.
        failed: Those that have failed.
        requests: Who waits for one.
    """

    def __init__(
        self,
        terms: CoordinatorSpec,
        job: JobState,
        registry: WorkerRegistry,
        log: Ownership,
        splits: SplitDiscovery,
        commits: Commits,
        dropped: Counter[str],
    ) -> None:
        self._spec = terms.checkpoints
        self._tasks = terms.tasks
        self._sources = terms.sources
        self._loops = terms.loops
        self._job = job
        self._registry = registry
        self._log = log
        self._splits = splits
        self._commits = commits
        self.requests = CheckpointRequests()
        self._committer = GlobalCommitter(terms.together)
        self._retention = Retention(terms.retain, terms.checkpoints.timeout_ms)
        self.next_id = CheckpointId(1)
        # By id, which is the order in which they were triggered.
        self._pending: dict[CheckpointId, PendingCheckpoint] = {}
        self._drained: set[TaskId] = set()
        self.failed = CheckpointFailures(terms.checkpoints)
        # When the newest one started, or records began to flow.
        self._started_ms = 0
        # The least time between two is not over; one has become due in it.
        self._is_pausing = self._is_due = False
        # One should have started, and waits for commits; sources wait for it.
        self._is_held_back = self._are_sources_paused = False
        self._backoff = DrainBackoff(terms.checkpoints.interval_ms)
        # The last one of a stop: only one that began after the stop was asked for.
        self._last: CheckpointId | None = None
        self.dropped = dropped

    # Queries.

    @property
    def newest(self) -> CheckpointCompleted | None:
        """The newest completed checkpoint."""
        return self._retention.completed

    @property
    def under_way(self) -> CheckpointId | None:
        """The oldest checkpoint that has been triggered and is not decided."""
        return next(iter(self._pending), None)

    def late(self, after_ms: int) -> tuple[CheckpointId, int] | None:
        """Return the oldest checkpoint that is under way for longer, and how long; None: none is."""
        n = self.under_way
        if n is None or self._spec.are_batches:
            # A batch takes as long as its records do.
            return None
        took_ms = self._job.now.now_ms - self._pending[n].started_ms
        return (n, took_ms) if took_ms >= after_ms else None

    @property
    def is_drained(self) -> bool:
        """Whether every source has read all of its input in this epoch."""
        return self._sources <= self._drained

    @property
    def overdue(self) -> str:
        """Why the awaited checkpoint is not complete, for people; "" if there is nothing to say."""
        n = self.under_way
        if n is None:
            return self.failed.last_failure
        return f"checkpoint {n} is not complete after {self._spec.timeout_ms / 1000:g} s{self.awaited(n)}"

    def awaited(self, n: CheckpointId) -> str:
        """Say what n, which is under way, waits for."""
        return self._pending[n].missing_shown or "; the job log has not said whether it holds its entry"

    def is_under_way(self, n: CheckpointId) -> bool:
        """Whether n has been triggered in this epoch and is not decided."""
        return n in self._pending

    def is_last(self, n: CheckpointId) -> bool:
        """Whether n is the last checkpoint of a stop."""
        return n == self._last

    def found(self, tail: Sequence[tuple[LogIndex, LogEntry]]) -> None:
        """Start from the end of the log."""
        self._retention.found(tail)

    def claimed(self, first: CheckpointId) -> None:
        """Note that an epoch was claimed whose checkpoints have ids from `first` on."""
        self.next_id = max(self.next_id, first)

    def handle(self, event: SchedulerEvent) -> list[JobEffect]:
        """Take one event and return the effects to perform, in order."""
        match event:
            case SnapshotAcknowledged() | SnapshotDeclined() | TaskQuiet() | SourceDrained():
                return self._reported(event)
            case TransactionsCommitted(checkpoint_id=n, task=task):
                self._committer.committed(task, n)
                self._commits.committed(task, n)
                return self._go_on_after_commit()
            case CheckpointDurable(entry, log_index):
                return self._completed(entry, log_index)
            case NoCheckpoint(entry, reason):
                return self._refused(entry.checkpoint_id, reason)
            case on.TimerFired(timer):
                return self._timer_fired(timer)
            case on.CheckpointRequested():
                return self._requested(event)
            case EpochBegan():
                return self._begin()
            case TasksReady():
                return self._ready()
            case StopBegan():
                return self._trigger()
            case EpochEnded(reason):
                self._commits.begin()
                self._pending, self._drained = {}, set()
                return self.requests.epoch_ended(reason)
            case JobOver(reason):
                # The final checkpoint has all that anybody asked for.
                return self.requests.answer_all(self.newest if self._is_final_complete else None, reason)
            case on.PartsListed():
                return self._listed(event)
            case on.PartsDiscarded(paths):
                self._retention.waste(paths)
                return self._delete()
            case on.PartsDeleted():
                return [*self._retention.deleted(), *self._delete()]
            case on.SavepointWritten(request):
                self.requests.written(request)
                return self._delete()
            case _:
                assert_never(event)

    def _begin(self) -> list[JobEffect]:
        self._commits.begin()
        self._committer.begin()
        self._backoff.restart()
        self._pending, self._drained = {}, set()
        self._is_held_back = self._are_sources_paused = False
        self._is_pausing = self._is_due = False
        return []

    def _ready(self) -> list[JobEffect]:
        if self.newest is not None and self.newest.is_final:
            return self._finish(self.newest)
        # The first periodic one is due after the interval, unless one is wanted at once.
        self._started_ms = self._job.now.now_ms
        effects = self._periodic()
        if self.is_drained or self.requests.are_waiting:
            effects += self._trigger()
        return effects

    # When one starts.

    def _trigger(self) -> list[JobEffect]:
        """Start one at once, if there is room for it; while stopping, only the last one."""
        phase = self._job.phase
        if phase not in CHECKPOINTED or (phase is Phase.STOPPING and self._last is not None):
            return []
        if phase is Phase.RUNNING and self._commits.is_full:
            self._is_held_back = True
            return []
        if len(self._pending) >= self._spec.in_flight_max:
            return []
        n = self.next_id
        self.next_id = CheckpointId(n + 1)
        self._is_held_back = False
        self._started_ms = self._job.now.now_ms
        if phase is Phase.STOPPING:
            self._last = n
        self.requests.triggered(n)
        self._pending[n] = PendingCheckpoint(
            self._job.epoch,
            n,
            self._tasks,
            self._registry,
            self.dropped,
            self._started_ms,
            is_after_drain=self.is_drained,
        )
        return self._pending[n].start(self._spec.timeout_ms)

    def _wanted(self) -> list[JobEffect]:
        return self._trigger() if self.requests.are_waiting else []

    def _timer_fired(self, timer: on.Timer) -> list[JobEffect]:
        match timer.kind:
            case "trigger":
                return self._due()
            case "delete":
                self._retention.overdue()
                return []
            case "pause":
                was_due, self._is_pausing, self._is_due = self._is_due, False, False
                return self._trigger() if was_due else []
            case _:
                n = CheckpointId(timer.number)
                missing = self._pending[n].missing_shown if n in self._pending else ""
                return self._give_up(n, f"not whole after {self._spec.timeout_ms / 1000:g} s{missing}")

    def _due(self) -> list[JobEffect]:
        """Start a periodic one; in the pause after another, at its end."""
        effects = self._periodic()
        if self._job.phase is Phase.RUNNING and self._is_pausing:
            self._is_due = True
            return effects
        next_id = self.next_id
        effects += self._trigger()
        # A sink makes one call at a time: it prepares a checkpoint when it has committed the one before. So
        # with a slow one, the newest is under way for as long as the commit takes.
        is_waiting = self._commits.waiting_count > 0 and self.next_id == next_id
        waits_ms = self._job.now.now_ms - self._started_ms
        if self._job.phase is not Phase.RUNNING or not is_waiting or waits_ms < self._spec.held_back_ms:
            return effects
        self._commits.note_delay()
        return effects if self._are_sources_paused else [*effects, *self._pause_sources(is_paused=True)]

    def _go_on_after_commit(self) -> list[JobEffect]:
        """Start one that has waited for a commit, and let sources read on."""
        if self._job.phase is not Phase.RUNNING or self._commits.is_full:
            return []
        # First the barrier: what is read from here on belongs to the next one.
        effects = self._trigger() if self._is_held_back else []
        if self._are_sources_paused and not self._commits.is_behind:
            effects += self._pause_sources(is_paused=False)
        return effects

    def _pause_sources(self, *, is_paused: bool) -> list[JobEffect]:
        self._are_sources_paused = is_paused
        return self._registry.to_holders(PauseSources(self._job.epoch, is_paused))

    def _requested(self, event: on.CheckpointRequested) -> list[JobEffect]:
        self.requests.add(event.request, is_savepoint=event.is_savepoint)
        # The final one has all that there ever will be.
        return self.requests.answer_all(self.newest) if self._is_final_complete else self._trigger()

    # It becomes whole, complete, or fails.

    def _reported(self, message: TaskReport) -> list[JobEffect]:
        if self._job.phase not in DEPLOYED:
            self.dropped["report of a task whose epoch is over"] += 1
            return []
        match message:
            case SnapshotAcknowledged():
                return self._acknowledged(message)
            case SnapshotDeclined(checkpoint_id=n, task=task, reason=reason):
                said = f"task {task} declined: {reason}"
                return self._give_up(n, said, is_permanent=message.is_permanent)
            case TaskQuiet(checkpoint_id=n):
                if n in self._pending:
                    return self._pending[n].handle(message)
                self.dropped["late quiet"] += 1
                return []
            case SourceDrained(task=task):
                if task in self._drained or task not in self._sources:
                    self.dropped["repeated drained"] += 1
                    return []
                self._drained.add(task)
                # Once all are, a checkpoint may be the final one.
                return self._trigger() if self.is_drained else []
            case _:
                assert_never(message)

    def _acknowledged(self, message: SnapshotAcknowledged) -> list[JobEffect]:
        n, snapshot = message.checkpoint_id, message.snapshot
        # A worker has a say on no files but those of its own snapshot.
        self._retention.waste(path for path in message.unused if path.startswith(f"parts/{n}/"))
        if lost := self._retention.dangling(snapshot, n):
            self._retention.waste(retention.written_for(n, snapshot))
            return self._give_up(n, f"task {message.task} builds on parts that are gone: {lost[0]}")
        if n not in self._pending:
            # Given up before this came: the parts that were written for it alone are of no use.
            self.dropped["late acknowledgement"] += 1
            written = retention.written_for(n, snapshot)
            self._retention.waste(written)
            return self._delete() if written or message.unused else []
        pending = self._pending[n]
        return [*pending.handle(message), *self._append_if_whole([pending])]

    def _append_if_whole(self, candidates: Iterable[PendingCheckpoint]) -> list[JobEffect]:
        """Append the first of `candidates` that is whole, unless a newer one is being appended."""
        appending = max((n for n, one in self._pending.items() if one.is_appending), default=CheckpointId(0))
        for one in candidates:
            if one.is_whole and one.checkpoint_id > appending:
                one.is_appending = True
                return self._append(one.entry(self._job.now))
        return []

    def _append(self, entry: CheckpointCompleted) -> list[JobEffect]:
        known = self._splits.known_at(entry.checkpoint_id)
        gathered = self._committer.gathered(replace(entry, known_splits=known))
        if problem := self._committer.problem(gathered):
            return self._refused(entry.checkpoint_id, problem.shown)
        return self._log.append(gathered)

    def _completed(self, entry: CheckpointCompleted, log_index: LogIndex) -> list[JobEffect]:
        n = entry.checkpoint_id
        if self.newest is None:
            # What is read to its end already is in no manifest.
            self._retention.waste(staged_for(self._log.splits))
        self._retention.add(entry, log_index.segment, self._log.take_ended())
        self.failed.note_completion()
        pending = self._pending.pop(n, None)
        effects: list[JobEffect] = []
        if pending is not None:
            self._commits.completed(n)
            self._splits.completed(n)
            effects += pending.complete(self._committer.completed(entry))
            # The log decides in order: an older one that was being appended has been decided.
            for older in [one for one in self._pending if one < n]:
                effects += self._abort(older)
            effects += self.requests.completed(entry)
            effects += self._pause()
        if entry.is_final:
            effects += self._finish(entry)
        effects += self._delete()
        if pending is None or entry.is_final:
            # After the end of its epoch, the next one restores it.
            return effects
        return [*effects, *self._after_completion(entry, is_after_drain=pending.is_after_drain)]

    def _after_completion(self, entry: CheckpointCompleted, *, is_after_drain: bool) -> list[JobEffect]:
        """End exhausted loops and start the next one, after one that is not final."""
        if self._job.phase is not Phase.RUNNING:
            return self._trigger()
        heads: tuple[VertexId, ...] = ()
        effects: list[JobEffect] = []
        if self._loops:
            heads = heads_to_close(self._loops, stillness(entry.snapshots))
        if heads:
            effects += self._registry.to_holders(CloseLoops(self._job.epoch, heads))
        if self.is_drained and is_after_drain:
            effects.append(self._after(self._backoff.next_ms(heads)))
        elif self.is_drained:
            # It was due when the last source was drained, and found no room.
            effects += self._trigger()
        return [*effects, *self._wanted()]

    def _finish(self, final: CheckpointCompleted) -> list[JobEffect]:
        """Take the final checkpoint for the answer to everybody who waits for one; no other is of use.

        One whose entry is being appended is left to the log; that it fails means nothing any more.
        """
        waiting = [n for n, one in self._pending.items() if not one.is_appending]
        return [*(effect for n in waiting for effect in self._abort(n)), *self.requests.answer_all(final)]

    @property
    def _is_final_complete(self) -> bool:
        return self.newest is not None and self.newest.is_final

    def _refused(self, n: CheckpointId, reason: str) -> list[JobEffect]:
        """Go on without n, whose entry is certainly not in the log; append another one, if one is whole."""
        if n not in self._pending:
            return []
        effects = self._fail(n, reason)
        if self.failed.cause is not None:
            return effects
        return [*effects, *self._append_if_whole(self._pending.values())]

    def _give_up(self, n: CheckpointId, reason: str, *, is_permanent: bool = False) -> list[JobEffect]:
        """Give n up, and only n, unless its entry is being appended."""
        if n not in self._pending or self._pending[n].is_appending:
            self.dropped["abort of a checkpoint that is not waiting"] += 1
            return []
        return self._fail(n, reason, is_permanent=is_permanent)

    def _fail(self, n: CheckpointId, reason: str, *, is_permanent: bool = False) -> list[JobEffect]:
        is_after_drain = self._pending[n].is_after_drain
        effects = self._abort(n)
        if not self._is_final_complete:
            self.failed.note(n, reason, self._job.now.now_ms, is_permanent=is_permanent)
            effects += self.requests.failed(n, self.failed.last_failure)
            if self.failed.cause is None:
                effects += self._pause(self.failed.backoff_ms)
        effects += self._delete()
        if self.failed.cause is not None:
            return effects
        return [*effects, *self._after_failure(n, is_after_drain=is_after_drain)]

    def _after_failure(self, n: CheckpointId, *, is_after_drain: bool) -> list[JobEffect]:
        is_ending = is_after_drain
        if self._job.phase is Phase.STOPPING:
            is_ending = self.is_last(n)
            self._last = None if is_ending else self._last
        elif self._job.phase is not Phase.RUNNING or not self.is_drained:
            return self._wanted()
        # The job is to end with a checkpoint. An older one may have been in its place.
        retry_ms = min(self._spec.interval_ms, self._spec.timeout_ms // RETRY_SHARE)
        retry = [self._after(retry_ms)] if is_ending else self._trigger()
        return [*retry, *self._wanted()]

    def _abort(self, n: CheckpointId) -> list[JobEffect]:
        pending = self._pending.pop(n)
        self._retention.waste(pending.paths)
        return pending.abort()

    # Timers.

    def _after(self, delay_ms: int) -> StartTimer:
        return StartTimer(on.Timer("trigger", self._job.epoch), delay_ms)

    def _periodic(self) -> list[JobEffect]:
        return [self._after(self._spec.interval_ms)] if self._spec.periodic else []

    def _pause(self, least_ms: int = 0) -> list[JobEffect]:
        pause_ms = max(self._spec.pause_ms, least_ms)
        if not pause_ms:
            return []
        self._is_pausing = True
        return [StartTimer(on.Timer("pause", self._job.epoch), pause_ms)]

    # Deletion.

    def _listed(self, event: on.PartsListed) -> list[JobEffect]:
        """Delete what nothing in the store needs any more."""
        self._retention.waste_entries(event.entries)
        # Before the first checkpoint only the splits themselves know what is staged for them.
        staged = staged_for(self._log.splits) if self.newest is None else frozenset[str]()
        orphans = retention.orphans(event.paths, self._retention.retained, self._job.epoch, staged)
        self._retention.waste((*orphans, *event.unfinished))
        return self._delete()

    def _delete(self) -> list[JobEffect]:
        # The manifest that is being appended may be in the log already. What is in use takes a walk through
        # all snapshots under way, so it is found only for a deletion.
        if not self._log.is_idle or not self._retention.is_due:
            return []
        in_use = frozenset[str]().union(*(one.paths for one in self._pending.values()))
        return self._retention.delete(in_use | self.requests.paths)
