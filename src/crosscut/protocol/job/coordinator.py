"""The coordinator: one job, from the claim of its epoch to its end, through any number of failovers.

It owns no thread, clock or socket: `crosscut.driver.driver` carries out what it asks for, and the
simulator does so in a virtual world. This is the conversation; each idea in it has a module of its own:
the phases and their transitions (`phases`), the log and the claim of an epoch (`ownership`, `job_log`),
workers (`roster`), checkpoints (`checkpoints`, `triggering`), failures (`restarts`), the end (`ending`).
docs/protocol.md has the picture of the phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId, Epoch, Lineage, LogIndex, VertexId, WorkerIndex
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.effects import JobEffect
from crosscut.protocol.job import history, recovery, restarts, retention
from crosscut.protocol.job.checkpoints import Checkpoints, Failed
from crosscut.protocol.job.ending import Ending, Termination, heads_to_close, stillness, termination
from crosscut.protocol.job.job_log import Durable, LogEvent, Overtaken, Refused, Undecided
from crosscut.protocol.job.ownership import CLAIM_ATTEMPTS_MAX, Ownership, Stale, fenced
from crosscut.protocol.job.phases import DEPLOYED, Phase, Turn, after
from crosscut.protocol.job.restarts import Failures
from crosscut.protocol.job.retention import Retention
from crosscut.protocol.job.roster import LIVENESS_TICKS, Identity, Place, Roster, speaks_for_itself
from crosscut.protocol.job.rules import JobRules
from crosscut.protocol.job.triggering import Triggering
from crosscut.protocol.messages import (
    CheckpointCompleted,
    CloseLoops,
    CoordinatorMessage,
    EpochClaimed,
    FailureCause,
    HaltTasks,
    JobEntry,
    JobFinished,
    RecordsFlowing,
    RegisterWorker,
    ShutDown,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    StartTasks,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerMessage,
    WorkerReady,
)

__all__ = ["CLAIM_ATTEMPTS_MAX", "LIVENESS_TICKS", "Coordinator", "JobRules", "Phase", "Termination"]


class Coordinator:
    """The coordinator of one driver. `start` once, then `handle` every event, until `EndJob`."""

    def __init__(self, rules: JobRules) -> None:
        self._rules = rules
        self.phase = Phase.CLAIMING
        self.epoch = Epoch(0)
        self.lineage = Lineage("")
        self._roster = Roster(rules.identity.parallelism, rules.heartbeat_timeout_ms)
        self._failures = Failures(rules.restart)
        self.restart_count = 0
        self.dropped: Counter[str] = Counter()
        self._now = on.ClockRead(0, "")
        self._log = Ownership(
            rules.identity,
            self.dropped,
            retain=rules.retain,
            store_timeout_ms=rules.checkpoints.timeout_ms,
            start_timeout_ms=rules.start_timeout_ms,
            segment_entries_max=rules.segment_entries_max,
        )
        self._checkpoints = Checkpoints(rules.checkpoints, rules.tasks, rules.sources, self._roster)
        self._kept = Retention(rules.retain, rules.checkpoints.timeout_ms)
        self._ending = Ending(rules.sinks, self.dropped, awaits_verdict=rules.awaits_verdict)
        self._is_submitted = False
        # What no restart can mend, as an owner of the job would see it; the next claim tells.
        self._hopeless: FailureCause | None = None
        self._ready: set[WorkerIndex] = set()
        self._triggering = Triggering(rules.checkpoints, self._checkpoints)

    @property
    def completed(self) -> CheckpointCompleted | None:
        """The newest completed checkpoint."""
        return self._kept.completed

    @property
    def retained(self) -> tuple[CheckpointCompleted, ...]:
        """The completed checkpoints that are kept, oldest first."""
        return self._kept.retained

    @property
    def failures(self) -> tuple[FailureCause, ...]:
        """The failures within the window of the restart strategy, the newest last."""
        return self._failures.failures

    @property
    def held(self) -> Mapping[WorkerIndex, Place]:
        """The admitted workers, by index."""
        return self._roster.held

    def worker_of(self, link: on.LinkId) -> WorkerIndex | None:
        """Return which worker speaks on `link`, if it has been admitted."""
        return self._roster.index_of(link)

    @property
    def reserve(self) -> Mapping[WorkerIndex, Place]:
        """Second live attempts, which wait for the place of the first."""
        return self._roster.reserve

    @property
    def termination(self) -> Termination:
        """How near the job is to the end of its input, as far as its cuts show."""
        return termination(self.completed, self._rules.loops, is_drained=self._checkpoints.is_drained)

    @property
    def takeover(self) -> str:
        """Whom this driver has taken the job over from, for people; "" if from nobody."""
        return self._log.takeover

    @property
    def checkpoint_under_way(self) -> CheckpointId | None:
        """The oldest checkpoint that has been triggered and is not decided."""
        return self._checkpoints.under_way

    def is_under_way(self, checkpoint_id: CheckpointId) -> bool:
        """Whether a checkpoint has been triggered and is not decided."""
        current = self._checkpoints.current
        return current is not None and current.is_under_way(checkpoint_id)

    @property
    def checkpoints_failed(self) -> int:
        """How many checkpoints have failed."""
        return self._checkpoints.failed_count

    @property
    def checkpoint_failure(self) -> str:
        """Which checkpoint has failed last, and why, for people; "" if one was completed since."""
        return self._checkpoints.last_failure

    def start(self) -> list[JobEffect]:
        """Return the first effects."""
        return [*self._log.start(), *self._roster.start()]

    def handle(self, event: on.JobEvent) -> list[JobEffect]:
        """Take one event and return the effects to perform, in order.

        Raises:
            ProtocolError: The event is impossible; nothing has changed.
        """
        if self.phase is Phase.ENDED:
            if isinstance(event, on.MessageReceived) and isinstance(event.message, RegisterWorker):
                return [do.SendMessage(event.link, ShutDown("the job is over"))]
            if isinstance(event, on.CheckpointRequested):
                return [do.AnswerRequest(event.request, None, "the job is over")]
            return []
        match event:
            case on.ClockRead():
                self._now = event
                return []
            case on.LinkOpened(link, worker, attempt):
                self._roster.opened(link, Identity(worker, attempt))
                return []
            case on.MessageReceived(link, message):
                return self._received(link, message)
            case on.TimerFired(timer):
                return self._timer_fired(timer)
            case on.LinkClosed(link, reason):
                return self._link_lost(link, self._roster.why_closed(link, reason))
            case on.WorkersEnded():
                return self._workers_ended(event)
            case on.LogTailRead():
                return self._tail_read(event)
            case on.SplitsDiscovered(assignments):
                return self._log.splits_discovered(assignments)
            case (
                on.EntryAppended()
                | on.EntryTaken()
                | on.EntryUncertain()
                | on.EntryRefused()
                | on.EntryRead()
            ):
                return self._log_answered(event)
            case on.PartsListed(paths, entries, unfinished):
                self._kept.waste_entries(entries)
                return self._delete((*retention.orphans(paths, self.retained, self.epoch), *unfinished))
            case on.PartsDeleted():
                return [*self._kept.deleted(), *self._delete()]
            case on.StopRequested():
                return self._stop_requested()
            case on.CheckpointRequested(request):
                return self._requested(request)
            case on.CancelRequested(cause):
                return self._end("failed" if cause else "cancelled", cause)
            case on.CutJudged():
                return self._cut_judged(event)
            case _:
                assert_never(event)

    # Claiming an epoch.

    def _tail_read(self, event: on.LogTailRead) -> list[JobEffect]:
        effects, decision = self._log.tail_read(event.entries, event.outputs, self._now.wall_clock)
        match decision:
            case recovery.AlreadyFinished():
                return [*effects, *self._end("finished")]
            case recovery.NotThisJob(reason):
                message = f"can't use this checkpoint_dir: {reason}"
                return [*effects, *self._end("failed", FailureCause("StoreError", message))]
            case history.NewerOutput() | history.AnotherDriver() | history.ForeignOutput():
                cause = FailureCause("HistoryError", history.shown(decision), is_final=True)
                return [*effects, *self._end("failed", cause)]
            case Stale():
                return effects
            case recovery.Claim():
                self._kept.found(event.entries)
                return effects
            case _:
                assert_never(decision)

    def _claim_next(self) -> list[JobEffect]:
        self._go(Turn.RESTART)
        next_id, wall_clock = self._checkpoints.next_id, self._now.wall_clock
        return self._log.claim_next(Epoch(self.epoch + 1), next_id, wall_clock)

    def _epoch_claimed(self, entry: EpochClaimed) -> list[JobEffect]:
        # Decision moment: from here on every older epoch is fenced.
        self.epoch, self.lineage = entry.epoch, entry.lineage
        self._checkpoints.next_id = max(self._checkpoints.next_id, entry.first_checkpoint_id)
        if self._hopeless is not None:
            return self._end("failed", self._hopeless)
        self._go(Turn.CLAIMED)
        effects: list[JobEffect] = [self._timer("gather", self._rules.start_timeout_ms)]
        if not self._is_submitted:
            self._is_submitted = True
            effects.append(do.SubmitWorkers())
        return [*effects, *self._deploy_if_gathered()]

    # The log.

    def _log_answered(self, event: LogEvent) -> list[JobEffect]:
        effects, verdict = self._log.handle(event)
        match verdict:
            case None:
                return effects
            case Durable(entry, log_index):
                return [*effects, *self._entry_durable(entry, log_index)]
            case Refused(CheckpointCompleted() as entry, reason):
                return [*effects, *self._append_refused(entry, reason)]
            case Refused(entry, reason) | Undecided(entry, reason):
                message = f"the job log can't be written: {reason}"
                if isinstance(entry, JobFinished):
                    message = (
                        f"everything is processed and committed, but {message}; the next start tries again"
                    )
                cause = self._hopeless or FailureCause("StoreError", message)
                return [*effects, *self._end("failed", cause)]
            case Overtaken(_, index, winner):
                return [*effects, *self._end("fenced", fenced(self.epoch, index, winner))]
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

    # Workers come and go.

    def _received(self, link: on.LinkId, message: WorkerMessage) -> list[JobEffect]:
        self._roster.heard(link)
        if isinstance(message, RegisterWorker):
            return self._registered(link, message)
        if isinstance(message, WorkerFailed):
            return self._start_failed(link, message)
        index = self._roster.index_of(link)
        if index is None or message.epoch != self.epoch:
            # A heartbeat says that its sender is alive, of whichever epoch: nothing is dropped with it.
            if not isinstance(message, WorkerHeartbeat):
                is_placed = index is not None
                self.dropped["late message of another epoch" if is_placed else "message without a place"] += 1
            return []
        if not speaks_for_itself(index, message, self._rules.tasks):
            self.dropped["word about another worker's task"] += 1
            return []
        match message:
            case WorkerReady():
                return self._worker_ready(index)
            case TaskFailed(_, task, cause):
                if self.phase not in DEPLOYED:
                    self.dropped["failure during failover"] += 1
                    return []
                return self._failed(replace(cause, message=f"task {task} failed: {cause.message}"))
            case SnapshotAcknowledged():
                return self._acknowledged(message)
            case SnapshotDeclined(_, checkpoint_id, task, reason):
                return self._give_up(checkpoint_id, f"task {task} declined: {reason}")
            case TaskQuiet(_, checkpoint_id, task):
                return self._checkpoints.quiet(checkpoint_id, task)
            case SourceDrained(_, task):
                current = self._checkpoints.current
                return self._trigger() if current is not None and current.source_drained(task) else []
            case TransactionsCommitted(_, checkpoint_id, task):
                self._ending.committed(task, checkpoint_id)
                return self._end_if_committed()
            case RecordsFlowing() | WorkerHeartbeat():
                return []
            case _:
                assert_never(message)

    def _registered(self, link: on.LinkId, newcomer: RegisterWorker) -> list[JobEffect]:
        if self._roster.knows(link):
            self.dropped["repeated registration"] += 1
            return []
        if not self._roster.is_proven(link, newcomer):
            self.dropped["registration as somebody else"] += 1
            who = f"attempt {newcomer.attempt} of worker {newcomer.worker}"
            return self._roster.turn_away(link, f"this link has not proven to be {who}")
        return [*self._roster.register(link, newcomer), *self._deploy_if_gathered()]

    def _start_failed(self, link: on.LinkId, message: WorkerFailed) -> list[JobEffect]:
        if not self._roster.is_proven(link, message):
            self.dropped["failed start of somebody else"] += 1
            return []
        # Spark starts another attempt by itself, perhaps where it works; but not for ever.
        is_over = self.phase in (Phase.FINISHING, Phase.STOPPING)
        if is_over or not self._roster.lacks(link, message):
            self.dropped["failed start that does not matter"] += 1
            return []
        cause = replace(
            message.cause, message=f"worker {message.worker} could not start: {message.cause.message}"
        )
        forget, decision = self._failures.note(cause)
        return self._end("failed", decision.shown) if isinstance(decision, restarts.GiveUp) else [forget]

    def _link_lost(self, link: on.LinkId, reason: str) -> list[JobEffect]:
        vacated = self._roster.lose(link)
        if vacated is None:
            return []
        if self.phase in DEPLOYED:
            return self._failed(FailureCause("WorkerLost", f"{vacated.name} is lost: {reason}"))
        return self._deploy_if_gathered()

    def _workers_ended(self, event: on.WorkersEnded) -> list[JobEffect]:
        # Whoever of them still speaks has outlived its Spark job (SPARK-18761): it must not keep a
        # place from the attempts of the next one.
        effects: list[JobEffect] = [do.CloseLink(place.link) for place in self._roster.dismiss_all()]
        self._is_submitted = False
        if event.is_final:
            cause = FailureCause("WorkersError", event.reason, is_final=True)
        else:
            cause = FailureCause("SparkJobEnded", f"Spark ended the workers: {event.reason}")
        return [*effects, *self._failed(cause)]

    def _deploy_if_gathered(self) -> list[JobEffect]:
        if self.phase is not Phase.GATHERING or not self._roster.is_full:
            return []
        self._go(Turn.GATHERED)
        self._ready = set()
        self._triggering.begin()
        self._checkpoints.begin(self.epoch)
        return [
            do.CancelTimer(on.Timer("gather", self.epoch)),
            self._timer("restore", self._rules.start_timeout_ms),
            *self._roster.deploy(
                self.epoch, self.lineage, self.completed, self._log.splits, self._rules.identity.driver
            ),
        ]

    def _worker_ready(self, index: WorkerIndex) -> list[JobEffect]:
        if self.phase is not Phase.RESTORING:
            self.dropped["repeated ready"] += 1
            return []
        self._ready.add(index)
        if len(self._ready) < self._rules.identity.parallelism:
            return []
        effects: list[JobEffect] = [do.CancelTimer(on.Timer("restore", self.epoch)), do.ListParts()]
        if self.completed is not None:
            self._ending.restored(self.completed.checkpoint_id)
            if self.completed.is_final:
                self._go(Turn.READY_AT_THE_END)
                effects += self._checkpoints.finish(self.completed)
                if not self._ending.is_finished(self.completed.checkpoint_id):
                    effects.append(self._timer("finish", self._rules.checkpoints.timeout_ms))
                return [*effects, *self._end_if_committed()]
        self._go(Turn.READY)
        effects += self._to_all(StartTasks(self.epoch))
        return [*effects, *self._triggering.started(self.phase, self._now)]

    def _timer_fired(self, timer: on.Timer) -> list[JobEffect]:
        match timer.kind:
            case "liveness":
                return self._liveness_tick()
            case "forget-failure":
                self._failures.forget_oldest()
                return []
            case "retry-append" | "log-call":
                return self._log_answered(on.TimerFired(timer))
            case "read-log" | "discover":
                overdue = self._log.overdue(timer)
                return self._end("failed", overdue) if overdue else []
            case "read-again":
                return self._log.read_again()
            case "delete":
                self._kept.overdue()
                return []
            case _ if timer.epoch != self.epoch:
                self.dropped["stale timer"] += 1
                return []
            case "trigger":
                return self._triggering.due(self.phase, self._now)
            case "pause":
                return self._triggering.pause_over(self.phase, self._now)
            case "checkpoint-timeout":
                n = CheckpointId(timer.number)
                return self._gave_up(self._checkpoints.timed_out(n))
            case "gather" if self.phase is Phase.GATHERING:
                reason = self._roster.too_few(self._rules.start_timeout_ms, self._rules.slots)
                return self._end("failed", FailureCause("WorkersError", reason))
            case "restore" if self.phase is Phase.RESTORING:
                reason = self._roster.too_slow(self._ready, self._rules.start_timeout_ms)
                return self._failed(FailureCause("Timeout", reason))
            case "restart" if self.phase is Phase.WAITING:
                return self._claim_next()
            case "finish" if self.phase is Phase.FINISHING:
                n = self.completed.checkpoint_id if self.completed else CheckpointId(0)
                if self._ending.is_finished(n):
                    # Only the log has still to answer, which has timers of its own.
                    return []
                overdue = self._ending.overdue(n, self._rules.checkpoints.timeout_ms)
                if self._ending.is_unjudged(n):
                    # Another epoch would wait for the same verdict.
                    return self._end("failed", overdue)
                return self._failed(overdue)
            case "stop" if self.phase is Phase.STOPPING:
                return self._stop_short(FailureCause("Timeout", self._checkpoints.overdue))
            case _:
                self.dropped["stale timer"] += 1
                return []

    def _liveness_tick(self) -> list[JobEffect]:
        effects = self._roster.beat(self.epoch)
        for place in self._roster.tick():
            if self.phase is not Phase.ENDED:
                # It may be alive. Nothing depends on it being dead: its epoch is about to be fenced.
                one = place.registration
                effects += [do.CloseLink(place.link), do.ReplaceWorker(one.worker, one.attempt)]
                effects += self._link_lost(place.link, self._roster.why_silent())
        return effects

    # Checkpoints.

    def _requested(self, request: int) -> list[JobEffect]:
        if self.completed is not None and self.completed.is_final:
            # It has all that there ever will be.
            return [do.AnswerRequest(request, self.completed)]
        self._checkpoints.request(request)
        return self._trigger()

    def _trigger(self) -> list[JobEffect]:
        return self._triggering.trigger(self.phase, self._now)

    def _acknowledged(self, message: SnapshotAcknowledged) -> list[JobEffect]:
        n = message.checkpoint_id
        if lost := self._kept.dangling(message.snapshot, n):
            own = f"parts/{n}/"
            self._kept.waste(path for path in retention.paths_of(message.snapshot) if path.startswith(own))
            return self._give_up(n, f"task {message.task} builds on parts that are gone: {lost[0]}")
        entry = self._checkpoints.acknowledge(n, message.task, message.snapshot, self._now)
        if entry is not None:
            return self._append(entry)
        # If n was given up before this came, what was written for it is of no use. Only then: going through
        # what is in use for each acknowledgement would cost the square of the number of tasks.
        return self._delete() if self._checkpoints.has_void else []

    def _append(self, entry: CheckpointCompleted | None) -> list[JobEffect]:
        return self._log.append(entry) if entry is not None else []

    def _completed(self, entry: CheckpointCompleted, log_index: LogIndex) -> list[JobEffect]:
        # Decision moment: the entry is durable, so the checkpoint is complete, and everything staged
        # at or below it will be committed, by this epoch or by a later one.
        self._kept.add(entry, log_index.segment, self._log.take_ended())
        effects, shown = self._checkpoints.completed(entry)
        if entry.is_final:
            effects += self._checkpoints.finish(entry)
        effects += self._delete()
        if shown is None:
            # It failed over while the entry was being appended; the next epoch restores n.
            return effects
        self._failures.note_progress()
        if entry.is_final:
            self._go(Turn.FINAL)
            effects.append(self._timer("finish", self._rules.checkpoints.timeout_ms))
        else:
            heads = self._exhausted(entry) if self.phase is Phase.RUNNING else ()
            effects += self._to_all(CloseLoops(self.epoch, heads)) if heads else []
            effects += self._triggering.after_completion(self.phase, self._now, shown, heads=heads)
        return [*effects, *self._end_if_committed()]

    def _exhausted(self, entry: CheckpointCompleted) -> tuple[VertexId, ...]:
        """Return the heads of the loops that the cut of `entry` shows to be exhausted."""
        loops = self._rules.loops
        return heads_to_close(loops, stillness(entry.snapshots)) if loops else ()

    def _append_refused(self, entry: CheckpointCompleted, reason: str) -> list[JobEffect]:
        failed, instead = self._checkpoints.refused(entry.checkpoint_id, reason, self._now)
        effects = self._gave_up(failed)
        if self.phase is Phase.ENDED:
            return effects
        return [*effects, *self._append(instead), *self._end_if_committed()]

    def _give_up(self, n: CheckpointId, reason: str) -> list[JobEffect]:
        return self._gave_up(self._checkpoints.give_up(n, reason))

    def _gave_up(self, failed: Failed | None) -> list[JobEffect]:
        """Go on after the failure of a checkpoint, if one has failed."""
        if failed is None:
            return []
        effects = [*failed.effects, *self._delete()]
        if cause := self._checkpoints.failure:
            if self.phase is Phase.STOPPING:
                return [*effects, *self._stop_short(cause)]
            return [*effects, *self._end("failed", cause)]
        return [*effects, *self._triggering.after_failure(self.phase, self._now, failed)]

    def _delete(self, paths: Iterable[str] = ()) -> list[JobEffect]:
        self._kept.waste({*paths, *self._checkpoints.take_void()})
        # The manifest that is being appended may be in the log already.
        return self._kept.delete(self._checkpoints.in_use()) if self._log.is_idle else []

    # The end.

    def _stop_requested(self) -> list[JobEffect]:
        if self.phase not in (Phase.RUNNING, Phase.FINISHING, Phase.STOPPING):
            uncommitted = self._ending.uncommitted(self.completed.checkpoint_id) if self.completed else None
            return self._end("stopped", uncommitted)
        if self.phase is not Phase.RUNNING:
            return []
        self._go(Turn.STOP)
        timer = self._timer("stop", self._rules.checkpoints.timeout_ms)
        return [timer, *self._trigger()]

    def _end_if_committed(self) -> list[JobEffect]:
        if self.completed is None or not self._log.is_idle:
            return []
        n = self.completed.checkpoint_id
        if self.phase is Phase.FINISHING and self._ending.is_finished(n):
            return self._append_finished(n)
        if self.phase is Phase.STOPPING and self._triggering.is_last(n) and self._ending.is_committed(n):
            return self._end("stopped")
        return []

    def _cut_judged(self, event: on.CutJudged) -> list[JobEffect]:
        n = event.checkpoint_id
        if self.completed is None or n > self.completed.checkpoint_id:
            raise ProtocolError(f"the cut of checkpoint {n} was judged, which is not complete")
        cause = self._ending.judged(
            event, is_final=self.completed.is_final and n == self.completed.checkpoint_id
        )
        return self._end("failed", cause) if cause else self._end_if_committed()

    def _append_finished(self, n: CheckpointId) -> list[JobEffect]:
        return self._log.append(JobFinished(self.epoch, n))

    def _stop_short(self, cause: FailureCause) -> list[JobEffect]:
        """End a stop whose last checkpoint, or the commit of it, is not to be had because of `cause`."""
        newest = self.completed.checkpoint_id if self.completed else None
        if newest is not None and self._triggering.is_last(newest):
            return self._end("stopped", self._ending.uncommitted(newest, cause.message))
        undecided = self._log.newest
        perhaps = undecided.checkpoint_id if isinstance(undecided, CheckpointCompleted) else None
        return self._end("stopped", self._ending.without_last(newest, perhaps, cause))

    def _failed(self, cause: FailureCause) -> list[JobEffect]:
        """A failure: go to the next epoch, or give the job up."""
        if isinstance(self._log.newest, JobFinished):
            # Everything is committed; only the log's answer to JobFinished is missing.
            self.dropped["failure after the last commit"] += 1
            return []
        if self.phase is Phase.STOPPING:
            return self._stop_short(cause)
        forget, decision = self._failures.note(cause)
        delay_ms = 0
        if not isinstance(decision, restarts.GiveUp):
            self.restart_count += 1
            delay_ms = decision.delay_ms
        elif cause.is_final and self.phase is Phase.RESTORING:
            # A driver that has slept finds parts gone, and output newer than its checkpoint: all is well,
            # and it is fenced. Only the owner of a job may call it damaged, so it claims once more.
            self._hopeless = decision.shown
        else:
            return self._end("failed", decision.shown)
        halted = [forget, *self._to_all(HaltTasks(self.epoch))]
        halted += self._checkpoints.end(f"the job has failed over: {cause.message}")
        if self.phase in (Phase.WAITING, Phase.CLAIMING):
            return halted
        self._go(Turn.FAILURE)
        if delay_ms == 0:
            return [*halted, *self._claim_next()]
        return [*halted, self._timer("restart", delay_ms)]

    def _end(self, outcome: do.Outcome, cause: FailureCause | None = None) -> list[JobEffect]:
        self._go(Turn.END)
        reason = f"the job has {outcome}" if outcome != "fenced" else "a newer driver owns the job"
        dismissed = self._checkpoints.dismiss(reason)
        return [*self._to_all(ShutDown(reason)), *dismissed, do.EndJob(outcome, cause)]

    def _timer(self, kind: on.TimerKind, delay_ms: int) -> do.StartTimer:
        """Return a timer of this epoch."""
        return do.StartTimer(on.Timer(kind, self.epoch), delay_ms)

    def _go(self, turn: Turn) -> None:
        self.phase = after(self.phase, turn)

    def _to_all(self, message: CoordinatorMessage) -> list[JobEffect]:
        if not isinstance(message, ShutDown):
            return self._roster.to_holders(message)
        return self._roster.to_everybody(message)
