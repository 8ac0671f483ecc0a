"""What the coordinator of a job knows: where it is, and the machines that know the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from crosscut.ids import CheckpointId, Epoch, Lineage, WorkerIndex
from crosscut.protocol.effects import JobEffect, StartTimer
from crosscut.protocol.events import ClockRead, LinkId, Timer, TimerKind
from crosscut.protocol.job.checkpointing import Checkpointing
from crosscut.protocol.job.ending import Ending, Looks, Termination, termination
from crosscut.protocol.job.ownership import Ownership
from crosscut.protocol.job.phases import Phase, Turn, after
from crosscut.protocol.job.restarts import Failures
from crosscut.protocol.job.retention import Retention
from crosscut.protocol.job.roster import Place, Roster
from crosscut.protocol.job.rules import JobRules
from crosscut.protocol.messages import CheckpointCompleted, CoordinatorMessage, FailureCause, ShutDown


class JobFacts:
    """What is true of a job, as far as its coordinator knows; to be looked at from outside, not changed."""

    def __init__(self, rules: JobRules) -> None:
        self._rules = rules
        self.phase = Phase.CLAIMING
        self.epoch = Epoch(0)
        self.lineage = Lineage("")
        self._roster = Roster(rules.identity.parallelism, rules.heartbeat_timeout_ms)
        self._failures = Failures(rules.restart)
        self.restart_count = 0
        self.dropped: Counter[str] = Counter()
        self._now = ClockRead(0, "")
        self._log = Ownership(
            rules.identity,
            self.dropped,
            retain=rules.retain,
            store_timeout_ms=rules.checkpoints.timeout_ms,
            start_timeout_ms=rules.start_timeout_ms,
            segment_entries_max=rules.segment_entries_max,
        )
        self._checkpoints = Checkpointing(rules.checkpoints, rules.tasks, rules.sources, self._roster)
        self._kept = Retention(rules.retain, rules.checkpoints.timeout_ms)
        self._ending = Ending(rules.sinks, self.dropped, awaits_verdict=rules.awaits_verdict)
        self._is_submitted = False
        self._ready: set[WorkerIndex] = set()
        self._stop_id: CheckpointId | None = None
        self._looks = Looks(rules.checkpoints.interval_ms)

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

    def worker_of(self, link: LinkId) -> WorkerIndex | None:
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

    @property
    def checkpoints_failed(self) -> int:
        """How many checkpoints have failed."""
        return self._checkpoints.failed_count

    @property
    def checkpoint_failure(self) -> str:
        """Which checkpoint has failed last, and why, for people; "" if one was completed since."""
        return self._checkpoints.last_failure

    def _timer(self, kind: TimerKind, delay_ms: int) -> StartTimer:
        """Return a timer of this epoch."""
        return StartTimer(Timer(kind, self.epoch), delay_ms)

    def _go(self, turn: Turn) -> None:
        self.phase = after(self.phase, turn)

    def _to_all(self, message: CoordinatorMessage) -> list[JobEffect]:
        if not isinstance(message, ShutDown):
            return self._roster.to_holders(message)
        return self._roster.to_everybody(message)
