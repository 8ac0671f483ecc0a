"""The coordinator: one job, from the claim of its epoch to its end, through any number of failovers.

It owns no thread, clock or socket: `crosscut.spark.driver` carries out what it asks for, and the
simulator does so in a virtual world. docs/protocol.md has the picture of the phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId, Epoch, Lineage, TaskId, WorkerIndex
from crosscut.protocol import recovery, retention
from crosscut.protocol.admission import Admit, KeepInReserve, Place, TurnAway
from crosscut.protocol.checkpointing import Checkpointing
from crosscut.protocol.checkpoints import CheckpointRules, Completion
from crosscut.protocol.effects import (
    AnswerRequest,
    CancelTimer,
    CloseLink,
    DeleteParts,
    DiscoverSplits,
    EndJob,
    JobEffect,
    ListParts,
    Outcome,
    ReadLogTail,
    ReplaceWorker,
    SendMessage,
    StartTimer,
    SubmitWorkers,
)
from crosscut.protocol.events import (
    CancelRequested,
    CheckpointRequested,
    ClockRead,
    CutJudged,
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    EntryUncertain,
    JobEvent,
    LinkClosed,
    LinkId,
    LogTailRead,
    MessageReceived,
    PartsListed,
    SplitsDiscovered,
    StopRequested,
    Timer,
    TimerFired,
    WorkersEnded,
)
from crosscut.protocol.job_log import Durable, LogEvent, LogWriter, Overtaken, Refused, Undecided
from crosscut.protocol.messages import (
    CheckpointCompleted,
    CloseLoops,
    CoordinatorHeartbeat,
    CoordinatorMessage,
    DeployTasks,
    EpochClaimed,
    FailureCause,
    HaltTasks,
    JobFinished,
    LogEntry,
    RecordsFlowing,
    RegisterWorker,
    ShutDown,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    SplitAssignment,
    StandBy,
    StartTasks,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    WorkerHeartbeat,
    WorkerReady,
)
from crosscut.protocol.roster import LIVENESS_TICKS, Roster

LOOP_WATCH_MS = 250
"""Between the checkpoints that watch a loop run empty, once all sources are drained."""

CLAIM_ATTEMPTS_MAX = 20


class Phase(Enum):
    """Where the job is."""

    CLAIMING = "claiming the epoch in the job log"
    GATHERING = "waiting for Spark to start workers"
    RESTORING = "workers restore their tasks and connect"
    RUNNING = "records flow"
    FINISHING = "the final checkpoint is complete and being committed"
    STOPPING = "a last checkpoint is taken before the job stops"
    WAITING = "a failure happened; the next epoch is claimed after a delay"
    ENDED = "over, for this driver"


DEPLOYED = frozenset({Phase.RESTORING, Phase.RUNNING, Phase.FINISHING, Phase.STOPPING})
"""Phases in which the workers have tasks, so that losing one is a failure."""


class Termination(Enum):
    """How near a job is to the end of its input."""

    OPEN = "a source may have more"
    DRAINED = "every source has been read to its end; records may still be on their way"
    QUIET = "a cut has shown every loop to be empty, for good; their back edges have ended"
    FINAL = "a cut has shown that nothing is left anywhere: the checkpoint is the final one"


@dataclass(frozen=True, slots=True)
class JobRules:
    """What the coordinator has to know of the job and its settings; durations in milliseconds.

    Attributes:
        has_loops: Whether the graph has back edges.
        slots: How many workers Spark can run at once, where known; only for the error text.
        awaits_verdict: An invariant may end the job as failed, so it has not finished before the final
            cut has been judged.
    """

    identity: recovery.JobIdentity
    tasks: frozenset[TaskId]
    sources: frozenset[TaskId]
    sinks: frozenset[TaskId]
    checkpoints: CheckpointRules
    restart: recovery.RestartPolicy
    retain: int
    heartbeat_timeout_ms: int
    start_timeout_ms: int
    has_loops: bool = False
    slots: int | None = None
    awaits_verdict: bool = False


class Coordinator:
    """The coordinator of one driver. `start` once, then `handle` every event, until `EndJob`."""

    def __init__(self, rules: JobRules) -> None:
        self._rules = rules
        self.phase = Phase.CLAIMING
        self.epoch = Epoch(0)
        self.lineage = Lineage("")
        self.completed: CheckpointCompleted | None = None
        self.retained: tuple[CheckpointCompleted, ...] = ()
        self._roster = Roster(rules.identity.parallelism)
        self.failures: tuple[FailureCause, ...] = ()
        self.restart_count = 0
        self.dropped: Counter[str] = Counter()
        self._now = ClockRead(0, "")
        self._log: LogWriter | None = None
        self._claim: recovery.Claim | None = None
        self._claim_attempts = 0
        self._splits: tuple[SplitAssignment, ...] | None = None
        self._checkpoints = Checkpointing(rules.checkpoints, rules.tasks, rules.sources, self._roster)
        # Parts that may be deleted once no append is undecided.
        self._garbage: set[str] = set()
        self._is_submitted = False
        self._ready: set[WorkerIndex] = set()
        self._committed: dict[TaskId, CheckpointId] = {}
        self._stop_id: CheckpointId | None = None
        self._judged = CheckpointId(0)
        self._are_loops_closed = False
        self._failures_seen = 0
        self._failures_in_a_row = 0

    def start(self) -> list[JobEffect]:
        """Return the first effects."""
        tick_ms = self._rules.heartbeat_timeout_ms // LIVENESS_TICKS
        return [ReadLogTail(self._rules.retain), StartTimer(Timer("liveness"), tick_ms)]

    @property
    def held(self) -> Mapping[WorkerIndex, Place]:
        """The admitted workers, by index."""
        return self._roster.held

    @property
    def reserve(self) -> Mapping[WorkerIndex, Place]:
        """Second live attempts, which wait for the place of the first."""
        return self._roster.reserve

    @property
    def termination(self) -> Termination:
        """How near the job is to the end of its input, as far as its cuts show."""
        if self.completed is not None and self.completed.is_final:
            return Termination.FINAL
        if not self._checkpoints.is_drained:
            return Termination.OPEN
        return Termination.QUIET if self._are_loops_closed else Termination.DRAINED

    @property
    def checkpoint_under_way(self) -> CheckpointId | None:
        """The oldest checkpoint that has been triggered and is not decided."""
        return self._checkpoints.under_way

    @property
    def checkpoints_failed(self) -> int:
        """How many checkpoints have failed."""
        return self._checkpoints.failed_count

    def handle(self, event: JobEvent) -> list[JobEffect]:
        """Take one event and return what has to be done, in order.

        Raises:
            ProtocolError: The event is impossible; nothing has changed.
        """
        if self.phase is Phase.ENDED:
            if isinstance(event, MessageReceived) and isinstance(event.message, RegisterWorker):
                return [SendMessage(event.link, ShutDown("the job is over"))]
            if isinstance(event, CheckpointRequested):
                return [AnswerRequest(event.request, None, "the job is over")]
            return []
        match event:
            case ClockRead():
                self._now = event
                return []
            case MessageReceived(link, message):
                return self._received(link, message)
            case TimerFired(timer):
                return self._timer_fired(timer)
            case LinkClosed(link, reason):
                return self._link_lost(link, self._why_closed(link, reason))
            case WorkersEnded(reason):
                return self._workers_ended(reason)
            case LogTailRead():
                return self._tail_read(event)
            case SplitsDiscovered(assignments):
                return self._splits_discovered(assignments)
            case EntryAppended() | EntryTaken() | EntryUncertain() | EntryRefused() | EntryRead():
                return self._log_answered(event)
            case PartsListed(paths):
                return self._delete(retention.orphans(paths, self.retained, self.epoch))
            case StopRequested():
                return self._stop_requested()
            case CheckpointRequested(request):
                self._checkpoints.request(request)
                return self._trigger()
            case CancelRequested(cause):
                return self._end("failed" if cause else "cancelled", cause)
            case CutJudged():
                return self._cut_judged(event)
            case _:
                assert_never(event)

    # Claiming an epoch.

    def _tail_read(self, event: LogTailRead) -> list[JobEffect]:
        if self._log is not None:
            raise ProtocolError(f"the end of the log was read again while {self.phase.value}")
        decision = recovery.claim(event.entries, self._rules.identity)
        match decision:
            case recovery.AlreadyFinished():
                return self._end("finished")
            case recovery.NotThisJob(reason):
                message = f"can't use this checkpoint_dir: {reason}"
                return self._end("failed", FailureCause("StoreError", message))
            case recovery.Claim(index, _, restored, retained):
                self._claim = decision
                self._log = LogWriter(index)
                self.completed, self.retained = restored, retained
                return [DiscoverSplits()] if restored is None else self._append_claim()
            case _:
                assert_never(decision)

    def _splits_discovered(self, assignments: tuple[SplitAssignment, ...]) -> list[JobEffect]:
        is_asked = self._log is not None and self._log.is_idle and self.epoch == 0
        if not is_asked or self.completed is not None:
            raise ProtocolError(f"splits were discovered, unasked, while {self.phase.value}")
        self._splits = assignments
        return self._append_claim()

    def _append_claim(self) -> list[JobEffect]:
        if self._claim is None or self._log is None:
            return []
        return [*self._log.append(self._claim.entry)]

    def _claim_next(self) -> list[JobEffect]:
        """Claim the epoch after ours, for a failover."""
        self.phase = Phase.CLAIMING
        if self._claim is None or self._log is None:
            return []
        entry = replace(
            self._claim.entry, epoch=Epoch(self.epoch + 1), first_checkpoint_id=self._checkpoints.next_id
        )
        self._claim = replace(self._claim, entry=entry)
        return [*self._log.append(entry)]

    def _epoch_claimed(self, entry: EpochClaimed) -> list[JobEffect]:
        # Decision moment: from here on every older epoch is fenced.
        self.epoch, self.lineage = entry.epoch, entry.lineage
        self._checkpoints.next_id = max(self._checkpoints.next_id, entry.first_checkpoint_id)
        self.phase = Phase.GATHERING
        effects: list[JobEffect] = [StartTimer(Timer("gather", self.epoch), self._rules.start_timeout_ms)]
        if not self._is_submitted:
            self._is_submitted = True
            effects.append(SubmitWorkers())
        return [*effects, *self._deploy_if_gathered()]

    # The log.

    def _log_answered(self, event: LogEvent) -> list[JobEffect]:
        if self._log is None:
            self.dropped["log answer before the claim"] += 1
            return []
        log_effects, verdict = self._log.handle(event)
        effects: list[JobEffect] = [*log_effects]
        match verdict:
            case None:
                return effects
            case Durable(entry):
                return [*effects, *self._entry_durable(entry)]
            case Refused(CheckpointCompleted() as entry, reason):
                return [*effects, *self._append_refused(entry, reason)]
            case Refused(_, reason) | Undecided(_, reason):
                cause = FailureCause("StoreError", f"the job log can't be written: {reason}")
                return [*effects, *self._end("failed", cause)]
            case Overtaken(_, index, winner):
                return [*effects, *self._overtaken(index, winner)]
            case _:
                assert_never(verdict)

    def _entry_durable(self, entry: LogEntry) -> list[JobEffect]:
        match entry:
            case EpochClaimed():
                return self._epoch_claimed(entry)
            case CheckpointCompleted():
                return self._completed(entry)
            case JobFinished():
                return self._end("finished")
            case _:
                assert_never(entry)

    def _overtaken(self, index: int, winner: object) -> list[JobEffect]:
        if self.epoch == 0 and self._claim_attempts < CLAIM_ATTEMPTS_MAX:
            # Another driver has just claimed or written; the newest driver wins, and that is this one.
            self._claim_attempts += 1
            self._log = self._claim = None
            return [ReadLogTail(self._rules.retain)]
        return self._end(
            "fenced",
            FailureCause(
                "Fenced",
                f"another driver owns this job now (log entry {index}: {winner!r:.200}); this driver, of "
                f"epoch {self.epoch}, has stopped and changed nothing since",
            ),
        )

    # Workers come and go.

    def _received(self, link: LinkId, message: object) -> list[JobEffect]:
        self._roster.heard(link)
        if isinstance(message, RegisterWorker):
            return self._registered(link, message)
        index = self._roster.index_of(link)
        if index is None:
            self.dropped["message of a worker without a place"] += 1
            return []
        if getattr(message, "epoch", None) != self.epoch:
            self.dropped["stale epoch"] += 1
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
                self._committed[task] = max(self._committed.get(task, CheckpointId(0)), checkpoint_id)
                return self._end_if_committed()
            case RecordsFlowing() | WorkerHeartbeat():
                return []
            case _:
                self.dropped["unknown message"] += 1
                return []

    def _registered(self, link: LinkId, newcomer: RegisterWorker) -> list[JobEffect]:
        if self._roster.knows(link):
            self.dropped["repeated registration"] += 1
            return []
        decision = self._roster.register(link, newcomer)
        match decision:
            case Admit():
                return self._deploy_if_gathered()
            case KeepInReserve():
                return [SendMessage(link, StandBy())]
            case TurnAway(reason):
                return [SendMessage(link, ShutDown(reason, failed=True)), CloseLink(link)]
            case _:
                assert_never(decision)

    def _why_closed(self, link: LinkId, reason: str) -> str:
        if not self._roster.is_quiet(link):
            return f"its process has ended ({reason})"
        timeout_s = self._rules.heartbeat_timeout_ms / 1000
        return (
            f"its process has ended ({reason}) after a call had held it up for "
            f"heartbeat_timeout={timeout_s:g} s; its stack is on the standard error of the worker"
        )

    def _link_lost(self, link: LinkId, reason: str) -> list[JobEffect]:
        vacated = self._roster.lose(link)
        if vacated is None:
            return []
        if self.phase in DEPLOYED:
            one = vacated.place.registration
            name = f"worker {vacated.index} (pid {one.pid} on {one.host})"
            return self._failed(FailureCause("WorkerLost", f"{name} is lost: {reason}"))
        return self._deploy_if_gathered()

    def _workers_ended(self, reason: str) -> list[JobEffect]:
        # Whoever of them still speaks has outlived its Spark job (SPARK-18761): it must not keep a
        # place from the attempts of the next one.
        effects: list[JobEffect] = [CloseLink(place.link) for place in self._roster.dismiss_all()]
        self._is_submitted = False
        return [*effects, *self._failed(FailureCause("SparkJobEnded", f"Spark ended the workers: {reason}"))]

    def _deploy_if_gathered(self) -> list[JobEffect]:
        if self.phase is not Phase.GATHERING or not self._roster.is_full:
            return []
        self.phase = Phase.RESTORING
        self._ready = set()
        self._are_loops_closed = False
        self._checkpoints.begin(self.epoch)
        peers = self._roster.peers()
        effects: list[JobEffect] = [
            CancelTimer(Timer("gather", self.epoch)),
            StartTimer(Timer("restore", self.epoch), self._rules.start_timeout_ms),
        ]
        for index, place in sorted(self.held.items()):
            snapshots = self.completed.snapshots if self.completed else ()
            effects.append(
                SendMessage(
                    place.link,
                    DeployTasks(
                        epoch=self.epoch,
                        lineage=self.lineage,
                        peers=peers,
                        restore=self.completed.checkpoint_id if self.completed else CheckpointId(0),
                        snapshots=tuple(one for one in snapshots if one.task.index == index),
                        splits=tuple(one for one in self._splits or () if one.task.index == index),
                    ),
                )
            )
        return effects

    def _worker_ready(self, index: WorkerIndex) -> list[JobEffect]:
        if self.phase is not Phase.RESTORING:
            self.dropped["repeated ready"] += 1
            return []
        self._ready.add(index)
        if len(self._ready) < self._rules.identity.parallelism:
            return []
        effects: list[JobEffect] = [CancelTimer(Timer("restore", self.epoch)), ListParts()]
        if self.completed is not None:
            # Restoring replays the commits of the restored checkpoint, so they are done by now.
            self._committed = dict.fromkeys(sorted(self._rules.sinks), self.completed.checkpoint_id)
            if self.completed.is_final:
                self.phase = Phase.FINISHING
                return [*effects, *self._append_finished(self.completed.checkpoint_id)]
        self.phase = Phase.RUNNING
        effects += self._to_all(StartTasks(self.epoch))
        if self._rules.checkpoints.periodic:
            effects.append(StartTimer(Timer("trigger", self.epoch), self._rules.checkpoints.interval_ms))
        if self._checkpoints.is_drained or self._checkpoints.is_wanted:
            effects += self._trigger()
        return effects

    def _timer_fired(self, timer: Timer) -> list[JobEffect]:
        match timer.kind:
            case "liveness":
                return self._liveness_tick()
            case "forget-failure":
                self.failures = self.failures[1:]
                return []
            case "retry-append":
                return self._log_answered(TimerFired(timer))
            case _ if timer.epoch != self.epoch:
                self.dropped["stale timer"] += 1
                return []
            case "trigger":
                return [
                    StartTimer(timer, self._rules.checkpoints.interval_ms),
                    *self._trigger(is_periodic=True),
                ]
            case "pause":
                return self._trigger() if self._checkpoints.pause_over() else []
            case "checkpoint-timeout":
                n = CheckpointId(timer.number)
                return self._gave_up(n, self._checkpoints.timed_out(n))
            case "gather" if self.phase is Phase.GATHERING:
                return self._end("failed", FailureCause("WorkersError", self._too_few_workers()))
            case "restore" if self.phase is Phase.RESTORING:
                missing = sorted(set(self.held) - self._ready)
                reason = f"workers {missing} were not ready after {self._rules.start_timeout_ms / 1000:g} s"
                return self._failed(FailureCause("Timeout", f"restoring took too long: {reason}"))
            case "restart" if self.phase is Phase.WAITING:
                return self._claim_next()
            case "finish" if self.phase is Phase.FINISHING:
                timeout_s = self._rules.checkpoints.timeout_ms / 1000
                what = "the output of the final checkpoint was not committed"
                if self._uncommitted() is None:
                    what = "the invariants were not evaluated on the final checkpoint"
                reason = f"{what} within {timeout_s:g} s"
                return self._failed(FailureCause("Timeout", reason))
            case "stop" if self.phase is Phase.STOPPING:
                return self._end("stopped", self._uncommitted())
            case _:
                self.dropped["stale timer"] += 1
                return []

    def _liveness_tick(self) -> list[JobEffect]:
        tick_ms = self._rules.heartbeat_timeout_ms // LIVENESS_TICKS
        effects: list[JobEffect] = [StartTimer(Timer("liveness"), tick_ms)]
        effects += [
            SendMessage(place.link, CoordinatorHeartbeat(self.epoch)) for place in self._roster.everybody()
        ]
        for place in self._roster.tick():
            if self.phase is not Phase.ENDED:
                # It may be alive. Nothing depends on it being dead: its epoch is about to be fenced.
                one = place.registration
                reason = (
                    f"silent for more than heartbeat_timeout={self._rules.heartbeat_timeout_ms / 1000:g} s"
                )
                effects += [CloseLink(place.link), ReplaceWorker(one.worker, one.attempt)]
                effects += self._link_lost(place.link, reason)
        return effects

    def _too_few_workers(self) -> str:
        parallelism = self._rules.identity.parallelism
        slots = "" if self._rules.slots is None else f"; Spark has {self._rules.slots} slots in all"
        return (
            f"{len(self.held)} of {parallelism} workers registered within "
            f"{self._rules.start_timeout_ms / 1000:g} s{slots}. Each worker needs a Spark task slot for as "
            f"long as the job runs: lower parallelism, free slots, or raise start_timeout"
        )

    # Checkpoints.

    def _trigger(self, *, is_periodic: bool = False) -> list[JobEffect]:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING):
            return []
        if self.phase is Phase.RUNNING:
            checkpoints = self._checkpoints
            return checkpoints.tick(self._now) if is_periodic else checkpoints.trigger(self._now)
        if self._stop_id is not None:
            return []
        effects = self._checkpoints.trigger(self._now)
        if effects:
            self._stop_id = self._checkpoints.newest
        return effects

    def _acknowledged(self, message: SnapshotAcknowledged) -> list[JobEffect]:
        n = message.checkpoint_id
        if lost := retention.dangling(message.snapshot, n, self.retained):
            return self._give_up(n, f"task {message.task} builds on parts that are gone: {lost[0]}")
        return self._append(self._checkpoints.acknowledge(n, message.task, message.snapshot, self._now))

    def _append(self, entry: CheckpointCompleted | None) -> list[JobEffect]:
        return [*self._log.append(entry)] if entry is not None and self._log is not None else []

    def _completed(self, entry: CheckpointCompleted) -> list[JobEffect]:
        # Decision moment: the entry is durable, so the checkpoint is complete, and everything staged
        # at or below it will be committed, by this epoch or by a later one.
        dropped = self.retained
        self.completed = entry
        self.retained = retention.retained((*self.retained, entry), self._rules.retain)
        effects, shown = self._checkpoints.completed(entry)
        if entry.is_final:
            effects += self._checkpoints.give_up_rest()
        effects += self._delete(path for one in dropped for path in retention.parts_of(one))
        if shown is None:
            # It failed over while the entry was being appended; the next epoch restores n.
            return effects
        self._failures_in_a_row = 0
        if entry.is_final:
            self.phase = Phase.FINISHING
            effects.append(StartTimer(Timer("finish", self.epoch), self._rules.checkpoints.timeout_ms))
        elif self.phase is Phase.STOPPING and self._stop_id is None:
            effects += self._trigger()
        elif self._checkpoints.is_drained:
            effects += self._towards_the_end(shown)
        elif self._checkpoints.is_wanted:
            effects += self._trigger()
        return [*effects, *self._end_if_committed()]

    def _towards_the_end(self, shown: Completion) -> list[JobEffect]:
        """Every source is drained: what does the checkpoint that has just completed say of the end?"""
        if not self._rules.has_loops or self._are_loops_closed or not shown.is_after_drain:
            return self._trigger()
        if shown.is_quiet:
            # Chandy and Lamport's stable property, once more: a loop that is empty on a cut, with no
            # source left to feed it, is empty for ever.
            self._are_loops_closed = True
            return [*self._to_all(CloseLoops(self.epoch)), *self._trigger()]
        delay_ms = min(self._rules.checkpoints.interval_ms, LOOP_WATCH_MS)
        return [StartTimer(Timer("trigger", self.epoch), delay_ms)]

    def _append_refused(self, entry: CheckpointCompleted, reason: str) -> list[JobEffect]:
        n = entry.checkpoint_id
        effects, instead = self._checkpoints.refused(n, reason, self._now)
        effects = self._gave_up(n, effects)
        return effects if self.phase is Phase.ENDED else [*effects, *self._append(instead)]

    def _give_up(self, n: CheckpointId, reason: str) -> list[JobEffect]:
        return self._gave_up(n, self._checkpoints.give_up(n, reason))

    def _gave_up(self, n: CheckpointId, effects: list[JobEffect]) -> list[JobEffect]:
        """Go on after `effects`, if n has failed indeed."""
        if not effects:
            return []
        effects = [*effects, *self._delete(())]
        if cause := self._checkpoints.failure:
            return [*effects, *self._end("failed", cause)]
        if self._stop_id == n:
            self._stop_id = None
        is_stopping = self.phase is Phase.STOPPING and self._stop_id is None
        if is_stopping or not self._rules.checkpoints.periodic:
            # There is no periodic trigger that would try again.
            effects.append(StartTimer(Timer("trigger", self.epoch), self._rules.checkpoints.interval_ms))
        return [*effects, *self._trigger()] if self._checkpoints.is_wanted else effects

    def _delete(self, paths: Iterable[str]) -> list[JobEffect]:
        self._garbage |= {*paths, *self._checkpoints.take_void()}
        if self._log is None or not self._log.is_idle:
            # The manifest that is being appended may be in the log already.
            return []
        in_use = self._checkpoints.in_use()
        gone = retention.unreferenced(self._garbage - in_use, self.retained)
        self._garbage &= in_use
        return [DeleteParts(gone)] if gone else []

    # The end.

    def _stop_requested(self) -> list[JobEffect]:
        if self.phase not in (Phase.RUNNING, Phase.FINISHING, Phase.STOPPING):
            return self._end("stopped", self._uncommitted())
        if self.phase is not Phase.RUNNING:
            return []
        self.phase = Phase.STOPPING
        timer = StartTimer(Timer("stop", self.epoch), self._rules.checkpoints.timeout_ms)
        return [timer, *self._trigger()]

    def _end_if_committed(self) -> list[JobEffect]:
        if self.completed is None or self._log is None or not self._log.is_idle:
            return []
        n = self.completed.checkpoint_id
        if any(self._committed.get(task, 0) < n for task in self._rules.sinks):
            return []
        if self.phase is Phase.FINISHING and (self._judged >= n or not self._rules.awaits_verdict):
            return self._append_finished(n)
        if self.phase is Phase.STOPPING and self._stop_id == n:
            return self._end("stopped")
        return []

    def _cut_judged(self, event: CutJudged) -> list[JobEffect]:
        n = event.checkpoint_id
        if self.completed is None or n > self.completed.checkpoint_id:
            raise ProtocolError(f"the cut of checkpoint {n} was judged, which is not complete")
        if n <= self._judged:
            self.dropped["repeated verdict"] += 1
            return []
        self._judged = n
        for one in event.broken:
            if one.stop:
                message = f"invariant {one.name!r} is broken on the cut of checkpoint {n}: {one.message}"
                return self._end("failed", FailureCause("InvariantBroken", message))
        return self._end_if_committed()

    def _append_finished(self, n: CheckpointId) -> list[JobEffect]:
        return [*self._log.append(JobFinished(self.epoch, n))] if self._log else []

    def _uncommitted(self) -> FailureCause | None:
        """What a job that stops now has to say of its output."""
        if self.completed is None:
            return None
        n = self.completed.checkpoint_id
        if all(self._committed.get(task, 0) >= n for task in self._rules.sinks):
            return None
        return FailureCause(
            "Uncommitted",
            f"checkpoint {n} is complete, but not all of its output is known to be committed; the next "
            f"start commits it",
        )

    def _failed(self, cause: FailureCause) -> list[JobEffect]:
        """A failure: go to the next epoch, or give the job up."""
        if self.phase is Phase.FINISHING and self._log is not None and not self._log.is_idle:
            # Everything is committed; only the log's answer to JobFinished is missing.
            self.dropped["failure after the last commit"] += 1
            return []
        if self.phase is Phase.STOPPING:
            return self._end("stopped", self._uncommitted() or cause)
        self.failures = (*self.failures, cause)
        self._failures_seen += 1
        self._failures_in_a_row += 1
        forget = StartTimer(
            Timer("forget-failure", number=self._failures_seen), self._rules.restart.window_ms
        )
        decision = recovery.restart(self.failures, self._failures_in_a_row, self._rules.restart)
        if isinstance(decision, recovery.GiveUp):
            message = f"{decision.cause.message} (given up after {decision.why})"
            return self._end("failed", replace(decision.cause, message=message))
        self.restart_count += 1
        halted = [forget, *self._to_all(HaltTasks(self.epoch))]
        halted += self._checkpoints.end(f"the job has failed over: {cause.message}")
        if self.phase in (Phase.WAITING, Phase.CLAIMING):
            return halted
        self.phase = Phase.WAITING
        if decision.delay_ms == 0:
            return [*halted, *self._claim_next()]
        return [*halted, StartTimer(Timer("restart", self.epoch), decision.delay_ms)]

    def _end(self, outcome: Outcome, cause: FailureCause | None = None) -> list[JobEffect]:
        self.phase = Phase.ENDED
        reason = f"the job has {outcome}" if outcome != "fenced" else "a newer driver owns the job"
        dismissed = self._checkpoints.dismiss(reason)
        return [*self._to_all(ShutDown(reason)), *dismissed, EndJob(outcome, cause)]

    def _to_all(self, message: CoordinatorMessage) -> list[JobEffect]:
        if not isinstance(message, ShutDown):
            return self._roster.to_holders(message)
        places = sorted(self._roster.everybody(), key=lambda one: one.link)
        return [SendMessage(place.link, message) for place in places]
