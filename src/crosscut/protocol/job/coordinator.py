"""The coordinator: one job, from the claim of its epoch to its end, through any number of failovers.

It owns no thread, clock or socket: `crosscut.driver.driver` performs its effects, on a real machine
as in the simulator's virtual world. This is the conversation: which event is for whom, and which phase of the
job (`phases`) follows. Each idea in it has a module of its own: the log and the claim of an epoch
(`ownership`), workers (`workers`), whose messages count (`fencing`), checkpoints (`scheduler`), failures
(`restarts`), the end (`ending`). docs/protocol.md has the picture of the phases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import assert_never

from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, WorkerIndex
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.checkpoint.events import (
    CheckpointDurable,
    EpochBegan,
    EpochEnded,
    JobOver,
    StopBegan,
    TasksReady,
)
from crosscut.protocol.checkpoint.scheduler import CheckpointScheduler
from crosscut.protocol.checkpoint.termination import Termination, termination
from crosscut.protocol.effects import JobEffect
from crosscut.protocol.job import fencing, restarts
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.job.ending import Ending
from crosscut.protocol.job.phases import DEPLOYED, JobState, Phase, Turn
from crosscut.protocol.job.restarts import Failures
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.job.workers import Identity, WorkerRegistry
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed, JobEntry, JobFinished
from crosscut.protocol.log.ownership import Claiming, NoCheckpoint, Ownership, Stale
from crosscut.protocol.log.writer import Durable, LogEvent
from crosscut.protocol.messages import (
    FailureCause,
    HaltTasks,
    PauseSources,
    RecordsFlowing,
    RegisterWorker,
    ShutDown,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    SourcesReached,
    StartTasks,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    UnitFinished,
    UnitProgressed,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)
from crosscut.protocol.splits.alignment import SourceGroups
from crosscut.protocol.splits.discovery import DiscoveryState, SplitDiscovery
from crosscut.protocol.splits.rescaling import state_assignment

__all__ = ["Coordinator", "CoordinatorSpec", "Phase"]


class Coordinator:
    """The coordinator of one driver. `start` once, then `handle` every event, until `EndJob`.

    Attributes:
        registry: Its workers. All three are for reading only.
        checkpoints: When checkpoints are due, and those under way.
        commits: What its sinks have committed.
    """

    def __init__(self, terms: CoordinatorSpec) -> None:
        self._terms = terms
        self._job = JobState()
        self.lineage = Lineage("")
        self.dropped: Counter[str] = Counter()
        self._failures = Failures(terms.restart)
        self._log = Ownership(terms, self.dropped)
        self.registry = WorkerRegistry(terms.identity.parallelism, terms.heartbeat_timeout_ms, self.dropped)
        self._splits = SplitDiscovery(
            terms.dynamic_sources,
            terms.start_timeout_ms,
            self._job,
            self.registry,
            self.dropped,
            is_bounded=terms.checkpoints.periodic,
        )
        self.commits = Commits(terms.sinks, terms.checkpoints.uncommitted_max, dict(terms.sink_names))
        self.checkpoints = CheckpointScheduler(
            terms, self._job, self.registry, self._log, self._splits, self.commits, self.dropped
        )
        self._source_groups = SourceGroups(dict(terms.source_groups), dict(terms.joined_sources))
        self._finished_units: set[WorkerIndex] = set()
        self._ending = Ending(terms, self._job, self._log, self.checkpoints, self.commits, self.dropped)

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        return self._job.phase

    @property
    def epoch(self) -> Epoch:
        """The newest epoch that this driver has claimed; 0: none yet."""
        return self._job.epoch

    @property
    def completed(self) -> CheckpointCompleted | None:
        """The newest completed checkpoint."""
        return self.checkpoints.newest

    @property
    def searches(self) -> tuple[DiscoveryState, ...]:
        """How the searches for splits that come stand."""
        return self._splits.searches

    @property
    def log_trouble(self) -> str:
        """Why the job log can't be written at present, which is tried again; "" if it can."""
        return self._log.trouble

    @property
    def in_phase_ms(self) -> int:
        """How long the job has been in its phase."""
        return self._job.in_phase_ms

    @property
    def restart_count(self) -> int:
        """How often the job has failed over."""
        return self._failures.restart_count

    @property
    def failures(self) -> tuple[FailureCause, ...]:
        """The failures within the window of the restart strategy, the newest last."""
        return self._failures.failures

    @property
    def termination(self) -> Termination:
        """How near the job is to the end of its input, as far as its cuts show."""
        return termination(self.completed, self._terms.loops, is_drained=self.checkpoints.is_drained)

    @property
    def takeover(self) -> str:
        """Whom this driver has taken the job over from, for people; "" if from none."""
        return self._log.takeover

    @property
    def has_unit_logs(self) -> bool:
        """Whether each worker has a log, and no checkpoint is taken."""
        return bool(self._terms.identity.unit_log)

    def _sweep(self) -> list[JobEffect]:
        # Where workers have logs, these refer to parts that no checkpoint has.
        return [] if self.has_unit_logs else [do.ListParts()]

    def start(self) -> list[JobEffect]:
        """Return the first effects."""
        return [*self._log.start(), *self.registry.start()]

    def handle(self, event: on.JobEvent) -> list[JobEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            ProtocolError: The event is impossible; nothing has changed.
        """
        effects = self._handle(event)
        is_over = self.phase is Phase.ENDED
        due = self.checkpoints.requests.due(self.commits.is_committed, is_over=is_over)
        return effects + due if due else effects

    def _handle(self, event: on.JobEvent) -> list[JobEffect]:
        if self.phase is Phase.ENDED:
            if isinstance(event, on.MessageReceived) and isinstance(event.message, RegisterWorker):
                return [do.SendMessage(event.link, ShutDown("the job is over"))]
            if isinstance(event, on.CheckpointRequested):
                return [do.AnswerRequest(event.request, None, "the job is over")]
            return []
        match event:
            case on.ClockRead():
                self._job.read_clock(event)
                return []
            case on.LinkOpened(link, worker, attempt):
                self.registry.opened(link, Identity(worker, attempt))
                return []
            case on.MessageReceived(link, message):
                return self._received(link, message)
            case on.TimerFired(timer):
                return self._timer_fired(timer)
            case on.LinkClosed(link, reason):
                return self._link_lost(link, self.registry.why_closed(link, reason), has_died=True)
            case on.WorkersEnded():
                return self._workers_ended(event)
            case on.LogTailRead():
                return self._tail_read(event)
            case on.SplitsDiscovered(assignments):
                return self._log.splits_discovered(assignments)
            case on.SplitsFound() | on.DiscoveryFailed():
                return self._discovered(event)
            case (
                on.EntryAppended()
                | on.EntryTaken()
                | on.EntryUncertain()
                | on.EntryRefused()
                | on.EntryRead()
            ):
                return self._log_answered(event)
            case on.SweepRequested():
                return self._sweep()
            case on.StopRequested():
                return self._stop_requested()
            case on.CheckpointRequested(request=request) if self.has_unit_logs:
                return [
                    do.AnswerRequest(request, None, "a job with snapshots='logged' takes no checkpoints yet")
                ]
            case on.RestartRequested():
                return self._restart_requested()
            case (
                on.CheckpointRequested()
                | on.SavepointWritten()
                | on.PartsListed()
                | on.PartsDiscarded()
                | on.PartsDeleted()
            ):
                return self.checkpoints.handle(event)
            case on.CancelRequested(cause):
                return self._end("failed" if cause else "cancelled", cause)
            case on.CutJudged():
                return self._cut_judged(event)
            case _:
                assert_never(event)

    # Claiming an epoch, and answers of the log.

    def _tail_read(self, event: on.LogTailRead) -> list[JobEffect]:
        effects, decision = self._log.tail_read(event.entries, event.outputs, self._job.now.wall_clock)
        match decision:
            case do.EndJob(outcome, cause):
                if outcome == "finished":
                    self.checkpoints.found(event.entries)
                return [*effects, *self._end(outcome, cause)]
            case Claiming():
                self.checkpoints.found(event.entries)
                return effects
            case Stale():
                return effects
            case _:
                assert_never(decision)

    def _claim_next(self) -> list[JobEffect]:
        self._go(Turn.RESTART)
        next_id, wall_clock = self.checkpoints.next_id, self._job.now.wall_clock
        return self._log.claim_next(Epoch(self.epoch + 1), next_id, wall_clock, self.completed)

    def _log_answered(self, event: LogEvent) -> list[JobEffect]:
        effects, verdict = self._log.handle(event)
        match verdict:
            case None:
                return effects
            case Durable(entry, log_index):
                return [*effects, *self._entry_durable(entry, log_index), *self._end_if_units_finished()]
            case NoCheckpoint():
                return [*effects, *self._append_refused(verdict)]
            case do.EndJob("failed", cause):
                return [*effects, *self._end("failed", self._failures.hopeless or cause)]
            case do.EndJob(outcome, cause):
                return [*effects, *self._end(outcome, cause)]
            case _:
                assert_never(verdict)

    def _entry_durable(self, entry: JobEntry, log_index: LogIndex) -> list[JobEffect]:
        match entry:
            case EpochClaimed():
                return self._epoch_claimed(entry)
            case CheckpointCompleted():
                return self._completed(entry, log_index)
            case JobFinished():
                return self._end("finished")
            case _:
                assert_never(entry)

    def _epoch_claimed(self, entry: EpochClaimed) -> list[JobEffect]:
        # Decision moment: from here on every older epoch is fenced.
        self._job.epoch, self.lineage = entry.epoch, entry.lineage
        self.checkpoints.claimed(entry.first_checkpoint_id)
        if self._failures.hopeless is not None:
            return self._end("failed", self._failures.hopeless)
        self._go(Turn.CLAIMED)
        timer = self._timer("gather", self._terms.start_timeout_ms)
        return [timer, *self.registry.submit(), *self._deploy_if_gathered()]

    # Workers come and go.

    def _received(self, link: on.LinkId, message: WorkerMessage) -> list[JobEffect]:
        self.registry.note_message(link)
        if isinstance(message, WorkerHeartbeat):
            self.registry.logged(link, message.logged)
        if isinstance(message, RegisterWorker):
            return [*self.registry.register(link, message), *self._deploy_if_gathered()]
        if isinstance(message, WorkerFailed):
            return self._start_failed(link, message)
        place = self.registry.index_of(link)
        index = fencing.sender(place, message, self.epoch, self._terms.tasks, self.dropped)
        if index is None:
            return []
        match message:
            case WorkerReady():
                return self._worker_ready(index)
            case TaskFailed(_, task, cause):
                if self.phase not in DEPLOYED:
                    self.dropped["failure during failover"] += 1
                    return []
                return self._failed(replace(cause, message=f"task {task} failed: {cause.message}"))
            case SnapshotAcknowledged() | SnapshotDeclined() | TaskQuiet() | SourceDrained():
                return self._unless_too_many(self.checkpoints.handle(message))
            case TransactionsCommitted():
                return [*self.checkpoints.handle(message), *self._end_if_committed()]
            case SourcesReached():
                if not self._source_groups.note(index, message):
                    self.dropped["late message of how far sources are"] += 1
                return self._align_sources()
            case UnitFinished():
                return self._unit_finished(index)
            case UnitProgressed():
                return self._unit_progressed()
            case RecordsFlowing() | WorkerHeartbeat():
                return []
            case _:
                assert_never(message)

    def _unit_finished(self, index: WorkerIndex) -> list[JobEffect]:
        if not self.has_unit_logs:
            self.dropped["end of a worker without a log"] += 1
            return []
        self._finished_units.add(index)
        return self._end_if_units_finished()

    def _unit_progressed(self) -> list[JobEffect]:
        if self.has_unit_logs and self.phase in DEPLOYED:
            self._failures.note_progress()
        else:
            self.dropped["late progress of a worker"] += 1
        return []

    def _end_if_units_finished(self) -> list[JobEffect]:
        if len(self._finished_units) < self._terms.identity.parallelism:
            return []
        if self.phase is Phase.STOPPING:
            return self._end("stopped")
        if self.phase is not Phase.RUNNING or not self._log.is_idle:
            return []
        # Decision moment: nothing comes from any worker any more, in any epoch.
        return self._log.append(JobFinished(self.epoch, CheckpointId(0)))

    def _start_failed(self, link: on.LinkId, message: WorkerFailed) -> list[JobEffect]:
        is_ending = self.phase in (Phase.FINISHING, Phase.STOPPING)
        cause = self.registry.start_failed(link, message, is_ending=is_ending)
        if cause is None:
            return []
        # Spark starts another attempt by itself, perhaps where it works; but not for ever.
        forget, decision = self._failures.start_failed(message.worker, cause)
        if isinstance(decision, restarts.GiveUp):
            return self._end("failed", decision.shown)
        effects: list[JobEffect] = [] if forget is None else [forget]
        effects.append(do.SendMessage(link, ShutDown(cause.message, failed=True, after_ms=decision.delay_ms)))
        if self.phase is Phase.GATHERING:
            # The delay is no time in which a worker could come.
            effects.append(do.CancelTimer(on.Timer("gather", self.epoch)))
            effects.append(self._timer("gather", self._terms.start_timeout_ms + decision.delay_ms))
        return effects

    def _link_lost(self, link: on.LinkId, reason: str, *, has_died: bool) -> list[JobEffect]:
        vacated = self.registry.lose(link)
        if vacated is None:
            return []
        if self.phase in DEPLOYED:
            died = vacated.index if has_died else None
            text = f"{vacated.name} is lost: {reason}"
            return self._failed(FailureCause("WorkerLost", text, is_transient=True, worker=died))
        return self._deploy_if_gathered()

    def _workers_ended(self, event: on.WorkersEnded) -> list[JobEffect]:
        effects, cause = self.registry.ended(event)
        return [*effects, *self._failed(cause)]

    def _deploy_if_gathered(self) -> list[JobEffect]:
        if self.phase is not Phase.GATHERING or not self.registry.is_full:
            return []
        self._go(Turn.GATHERED)
        self._failures.end_round()
        begun = self.checkpoints.handle(EpochBegan())
        self._source_groups.begin(self.epoch)
        self._finished_units.clear()
        identity, splits = self._terms.identity, self._log.splits
        assignment = state_assignment(
            self.commits.left(self.completed),
            identity.parallelism,
            identity.max_parallelism,
            self._log.writers,
            {task.vertex for task in self._terms.sinks},
            self._terms.edges,
        )
        self._splits.begin(self.epoch, self.completed, assignment.snapshots, splits, identity.parallelism)
        return [
            *begun,
            do.CancelTimer(on.Timer("gather", self.epoch)),
            self._timer("restore", self._terms.start_timeout_ms),
            *self.registry.deploy(
                self.epoch, self.lineage, assignment, splits, identity.driver, self._failures.deaths
            ),
        ]

    def _too_few(self) -> list[JobEffect]:
        cause = self.registry.too_few(self._terms.start_timeout_ms, self._terms.slots)
        if self.restart_count == 0 and not self._failures.failures and not self.takeover:
            # The caller of the start still waits and gets the error.
            return self._end("failed", cause)
        # Spark may need minutes to see that a host is gone, or to have slots again.
        return self._failed(cause)

    def _align_sources(self) -> list[JobEffect]:
        news = self._source_groups.news()
        if news is None:
            return []
        return [self._timer("align", self._source_groups.pause_ms), *self.registry.to_holders(news)]

    def _worker_ready(self, index: WorkerIndex) -> list[JobEffect]:
        if self.phase is not Phase.RESTORING:
            self.dropped["repeated ready"] += 1
            return []
        self.registry.ready(index)
        if not self.registry.are_all_ready:
            return []
        effects: list[JobEffect] = [do.CancelTimer(on.Timer("restore", self.epoch)), *self._sweep()]
        if self.completed is not None:
            restored = (one.task for one in self.completed.snapshots if one.snapshot.pending)
            self.commits.all_committed(self.completed.checkpoint_id, restored)
            if self.completed.is_final:
                self._go(Turn.READY_AT_THE_END)
                effects += self.checkpoints.handle(TasksReady())
                if not self._ending.is_finished(self.completed.checkpoint_id):
                    effects.append(self._timer("finish", self._terms.checkpoints.timeout_ms))
                return [*effects, *self._end_if_committed()]
        self._go(Turn.READY)
        effects += self.registry.to_holders(StartTasks(self.epoch))
        effects += self._splits.started(is_restored=self.completed is not None)
        return [*effects, *self.checkpoints.handle(TasksReady()), *self._end_if_units_finished()]

    # Time passes.

    def _timer_fired(self, timer: on.Timer) -> list[JobEffect]:
        match timer.kind:
            case "liveness":
                return self._liveness_tick()
            case "forget-failure":
                self._failures.forget_oldest()
                return []
            case "read-log" | "read-again" | "discover" | "log-call" | "retry-append":
                return self._log_answered(on.TimerFired(timer))
            case "delete":
                return self.checkpoints.handle(on.TimerFired(timer))
            case _ if timer.epoch != self.epoch:
                self.dropped["stale timer"] += 1
                return []
            case "trigger" | "pause" | "checkpoint-timeout":
                return self._unless_too_many(self.checkpoints.handle(on.TimerFired(timer)))
            case "gather" if self.phase is Phase.GATHERING:
                return self._too_few()
            case "restore" if self.phase is Phase.RESTORING:
                return self._failed(self.registry.too_slow(self._terms.start_timeout_ms))
            case "align":
                self._source_groups.pause_over()
                return self._align_sources()
            case "find" | "find-timeout":
                return self._discovered(on.TimerFired(timer))
            case "restart" if self.phase is Phase.WAITING:
                return self._claim_next()
            case "finish" if self.phase is Phase.FINISHING and self.completed is not None:
                return self._finish_overdue(self.completed.checkpoint_id)
            case "stop" if self.phase is Phase.STOPPING:
                return self._stop_short(FailureCause("Timeout", self._ending.stop_overdue, is_transient=True))
            case _:
                self.dropped["stale timer"] += 1
                return []

    def _liveness_tick(self) -> list[JobEffect]:
        effects = self.registry.beat(self.epoch)
        for place in self.registry.tick():
            if self.phase is not Phase.ENDED:
                # It may be alive. Nothing depends on it being dead: its epoch is about to be fenced.
                one = place.registration
                effects += [do.CloseLink(place.link), do.ReplaceWorker(one.worker, one.attempt)]
                effects += self._link_lost(place.link, self.registry.why_silent(place.link), has_died=False)
        return effects

    def _discovered(self, event: on.SplitsFound | on.DiscoveryFailed | on.TimerFired) -> list[JobEffect]:
        effects, cause = self._splits.handle(event, self.checkpoints.next_id, self.completed)
        return effects if cause is None else [*effects, *self._failed(cause)]

    # A checkpoint is complete, or has failed.

    def _completed(self, entry: CheckpointCompleted, log_index: LogIndex) -> list[JobEffect]:
        # Decision moment: the entry is durable, so the checkpoint is complete, and everything staged
        # at or below it will be committed, by this epoch or by a later one.
        is_of_epoch = self.checkpoints.is_under_way(entry.checkpoint_id)
        if is_of_epoch:
            self._failures.note_progress()
            if entry.is_final:
                self._go(Turn.FINAL)
        effects = self.checkpoints.handle(CheckpointDurable(entry, log_index))
        if not is_of_epoch:
            return effects
        if entry.is_final:
            effects.append(self._timer("finish", self._terms.checkpoints.timeout_ms))
        return [*effects, *self._end_if_committed()]

    def _append_refused(self, refused: NoCheckpoint) -> list[JobEffect]:
        effects = self._unless_too_many(self.checkpoints.handle(refused))
        return effects if self.phase is Phase.ENDED else [*effects, *self._end_if_committed()]

    def _unless_too_many(self, effects: list[JobEffect]) -> list[JobEffect]:
        """Go on with `effects`, unless too many checkpoints have failed in a row."""
        cause = self.checkpoints.failed.cause
        if cause is None:
            return effects
        if self.phase is Phase.STOPPING:
            return [*effects, *self._stop_short(cause)]
        if self.checkpoints.failed.are_final:
            return [*effects, *self._end("failed", cause)]
        # What it stores may have been in the way, or who stores it.
        self.checkpoints.failed.begin_again()
        return [*effects, *self._failed(cause)]

    # The end.

    def _stop_requested(self) -> list[JobEffect]:
        match self.phase:
            case Phase.RUNNING if isinstance(self._log.newest, JobFinished):
                # Everything is committed; only the log's answer is missing.
                return []
            case Phase.RUNNING if self.has_unit_logs:
                self._go(Turn.STOP)
                timer = self._timer("stop", self._terms.checkpoints.timeout_ms)
                paused = self.registry.to_holders(PauseSources(self.epoch, is_paused=True))
                return [timer, *paused, *self._end_if_units_finished()]
            case Phase.RUNNING if self._ending.rests:
                # Another batch would be one without records, or the first of the next start.
                return self._end("stopped")
            case Phase.RUNNING:
                self._go(Turn.STOP)
                timer = self._timer("stop", self._terms.checkpoints.timeout_ms)
                # What is read now would only stand in the way of the last barrier.
                paused = self.registry.to_holders(PauseSources(self.epoch, is_paused=True))
                return [timer, *paused, *self.checkpoints.handle(StopBegan())]
            case Phase.FINISHING | Phase.STOPPING:
                return []
            case _:
                end = self._ending.stopped_between_epochs()
                return self._end(end.outcome, end.cause)

    def _restart_requested(self) -> list[JobEffect]:
        if self.phase is not Phase.RUNNING:
            # It starts anyway, or is to end.
            self.dropped["restart while no records flow"] += 1
            return []
        return self._failed(restarts.asked())

    def _stop_short(self, cause: FailureCause) -> list[JobEffect]:
        end = self._ending.stopped_short(cause)
        return self._end(end.outcome, end.cause)

    def _end_if_committed(self) -> list[JobEffect]:
        match self._ending.due():
            case None:
                return []
            case JobFinished() as entry:
                return self._log.append(entry)
            case do.EndJob(outcome, cause):
                return self._end(outcome, cause)

    def _cut_judged(self, event: on.CutJudged) -> list[JobEffect]:
        cause = self._ending.judged(event)
        return self._end("failed", cause) if cause else self._end_if_committed()

    def _finish_overdue(self, n: CheckpointId) -> list[JobEffect]:
        if self._ending.is_finished(n):
            # Only the log has still to answer, which has timers of its own.
            return []
        overdue = self._ending.overdue(n)
        # Another epoch would wait for the same verdict.
        return self._end("failed", overdue) if self._ending.is_unjudged(n) else self._failed(overdue)

    def _failed(self, cause: FailureCause) -> list[JobEffect]:
        """A failure: go to the next epoch, or give the job up."""
        if isinstance(self._log.newest, JobFinished):
            # Everything is committed; only the log's answer to JobFinished is missing.
            self.dropped["failure after the last commit"] += 1
            return []
        if self.commits.is_behind:
            cause = replace(cause, message=f"{cause.message}; {self.commits.shown}")
        if self.phase is Phase.STOPPING:
            return self._stop_short(cause)
        forget, decision = self._failures.failover(cause, is_restoring=self.phase is Phase.RESTORING)
        if isinstance(decision, restarts.GiveUp):
            return self._end("failed", decision.shown)
        halted = [forget, *self.registry.to_holders(HaltTasks(self.epoch))]
        halted += self.checkpoints.handle(EpochEnded(f"the job has failed over: {cause.message}"))
        if self.phase in (Phase.WAITING, Phase.CLAIMING):
            return halted
        self._go(Turn.FAILURE)
        if decision.delay_ms == 0:
            return [*halted, *self._claim_next()]
        return [*halted, self._timer("restart", decision.delay_ms)]

    def _end(self, outcome: do.Outcome, cause: FailureCause | None = None) -> list[JobEffect]:
        self._go(Turn.END)
        if outcome == "finished" and self.completed is not None:
            # Perhaps by another driver; requests to this one get the final checkpoint all the same.
            self.commits.all_committed(self.completed.checkpoint_id)
        reason = f"the job has {outcome}" if outcome != "fenced" else "a newer driver owns the job"
        answers = self.checkpoints.handle(JobOver(reason))
        return [*self.registry.to_everybody(ShutDown(reason)), *answers, do.EndJob(outcome, cause)]

    def _timer(self, kind: on.TimerKind, delay_ms: int) -> do.StartTimer:
        """Return a timer of this epoch."""
        return do.StartTimer(on.Timer(kind, self.epoch), delay_ms)

    def _go(self, turn: Turn) -> None:
        self._job.go(turn)
