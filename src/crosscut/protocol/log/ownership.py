"""One driver's hold on a job: it reads the log, claims an epoch there, and appends to it.

The driver with the newest durable claim owns the job. Before its first claim a driver that finds its entry
taken reads again and claims above, because the newest driver wins; afterwards it has been fenced. A driver
that follows another one of the same run is as old as that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from crosscut.contracts.connectors import CommittedOutput
from crosscut.errors import ProtocolError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex
from crosscut.protocol.effects import CancelTimer, DiscoverSplits, EndJob, JobEffect, ReadLogTail, StartTimer
from crosscut.protocol.events import Timer, TimerFired
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.log import history, recovery
from crosscut.protocol.log.entries import (
    CheckpointCompleted,
    EpochClaimed,
    JobEntry,
    JobFinished,
    LogEntry,
    SegmentClosed,
)
from crosscut.protocol.log.identity import Claimant, shown
from crosscut.protocol.log.pending_append import RETRY_APPEND_MS
from crosscut.protocol.log.segments import claim_of
from crosscut.protocol.log.writer import Durable, LogEvent, LogWriter, Overtaken, Refused, Undecided, Verdict
from crosscut.protocol.messages import FailureCause, SplitAssignment
from crosscut.protocol.splits import rescaling

CLAIM_ATTEMPTS_MAX = 20

READING, READING_AGAIN, DISCOVERING = Timer("read-log"), Timer("read-again"), Timer("discover")


@dataclass(frozen=True, slots=True)
class Stale:
    """The store has answered with a log older than one that it has shown before; it is read again."""


@dataclass(frozen=True, slots=True)
class Claiming:
    """The job is this driver's to claim: the claim is on its way to the log, or will be."""


@dataclass(frozen=True, slots=True)
class NoCheckpoint:
    """The entry of a checkpoint is certainly not in the log and will not be."""

    entry: CheckpointCompleted
    reason: str


def fenced(epoch: Epoch, index: LogIndex, winner: LogEntry) -> FailureCause:
    """Return why the driver of `epoch` has to stop: entry `index` is somebody else's."""
    claim = winner if isinstance(winner, SegmentClosed) else claim_of(winner)
    who = f" ({shown(claim.claimant)})" if claim is not None else ""
    return FailureCause(
        "Fenced",
        f"another driver{who} owns this job now, in epoch {winner.epoch}; this driver, of epoch {epoch}, "
        f"found its entry {index} of the job log taken, has stopped and changed nothing since",
    )


def fenced_between(winner: EpochClaimed) -> FailureCause:
    """Return why a run whose driver before has ended has no other: the job is somebody else's."""
    return FailureCause(
        "Fenced",
        f"another driver ({shown(winner.claimant)}) owns this job now, in epoch {winner.epoch}: it has "
        f"claimed the job while that went over to its other engine here; nothing was changed since",
    )


class Ownership:
    """Reads the end of the log, claims an epoch, and then writes the log for as long as it is ours.

    Args:
        dropped: Counts stale and repeated input.
    """

    def __init__(self, terms: CoordinatorSpec, dropped: Counter[str]) -> None:
        self._terms = terms
        self._store_timeout_ms = terms.checkpoints.timeout_ms
        self._discover_timeout_ms = terms.discover_timeout_ms or terms.start_timeout_ms
        # Sinks are asked, too: how long one call of the store may take says nothing of them.
        self._reading_timeout_ms = max(self._store_timeout_ms, terms.start_timeout_ms)
        self._writer: LogWriter | None = None
        self._claim: recovery.Claim | None = None
        self._claim_attempts = 0
        self._index_seen: LogIndex | None = None
        self._is_waiting = False
        self._is_discovering = False
        self._epoch = Epoch(0)
        self.takeover = ""
        """Whom this driver takes the job over from, for people."""
        self.splits: tuple[SplitAssignment, ...] = ()
        """What there is to read, if the job starts from nothing."""
        self.dropped = dropped

    @property
    def is_idle(self) -> bool:
        """Whether no append is under way: only then is the content of the log known."""
        return self._writer is not None and self._writer.is_idle

    @property
    def newest(self) -> JobEntry | None:
        """The entry appended last, if it is not decided."""
        return self._writer.newest if self._writer is not None else None

    @property
    def trouble(self) -> str:
        """Why the log can't be written at present; "" if it can."""
        return self._writer.trouble if self._writer is not None else ""

    @property
    def writers(self) -> int:
        """How many logical tasks of each sink may have left something."""
        return self._claim.entry.writers if self._claim is not None else 0

    def take_ended(self) -> tuple[LogIndex, ...]:
        """Return, once, the entries of ended segments; they can be deleted when nothing needs them."""
        return self._writer.take_ended() if self._writer is not None else ()

    def start(self) -> list[JobEffect]:
        """Look at the sinks, and read the log."""
        return [ReadLogTail(self._terms.retain), StartTimer(READING, self._reading_timeout_ms)]

    def _overdue(self, timer: Timer) -> EndJob | None:
        """End the job before it starts: what `timer` limits has taken too long, if it still goes on."""
        if timer == READING and self._writer is None:
            timeout_s = self._reading_timeout_ms / 1000
            return _failed(
                "StoreError",
                f"what the sinks have committed and the job log could not be read within {timeout_s:g} s",
                is_transient=True,
            )
        if timer == DISCOVERING and self._is_discovering:
            timeout_s = self._discover_timeout_ms / 1000
            return _failed(
                "ConnectorError",
                f"the sources have not said within {timeout_s:g} s what there is to read; raise "
                f"start_timeout if there is that much to list",
                is_transient=True,
            )
        self.dropped["stale timer"] += 1
        return None

    def _read_again(self) -> list[JobEffect]:
        """Read the log again, if that has been waited for."""
        if not self._is_waiting:
            self.dropped["stale timer"] += 1
            return []
        self._is_waiting = False
        return self.start()

    def tail_read(
        self,
        entries: Sequence[tuple[LogIndex, LogEntry]],
        outputs: Sequence[CommittedOutput],
        wall_clock: str,
    ) -> tuple[list[JobEffect], Claiming | Stale | EndJob]:
        """Take the end of the log; claim the next epoch, unless there is nothing to claim.

        Args:
            outputs: The sinks' memory, from before the log was read.
            wall_clock: For people who read the claim.
        """
        if self._writer is not None or self._is_waiting:
            raise ProtocolError("the end of the log was read, unasked")
        read: list[JobEffect] = [CancelTimer(READING)]
        winner = recovery.taken_over(entries, self._terms.identity)
        if winner is not None:
            return read, EndJob("fenced", fenced_between(winner))
        decision = recovery.claim(entries, self._terms.identity, wall_clock)
        match decision:
            case recovery.AlreadyFinished():
                return read, EndJob("finished")
            case recovery.NotThisJob():
                return read, _unusable(recovery.refusal(decision))
            case recovery.Claim():
                pass
            case _:
                assert_never(decision)
        if self._index_seen is not None and decision.end.next <= self._index_seen:
            # A claim there would be overtaken again, and so on, as fast as the store answers.
            if self._claim_attempts >= CLAIM_ATTEMPTS_MAX:
                return read, _unusable(
                    f"the store has shown entry {self._index_seen} of the job log, and then, "
                    f"{CLAIM_ATTEMPTS_MAX} times, none from {decision.end.next} on; Crosscut needs a store "
                    f"whose answers are not stale: choose another one"
                )
            self._claim_attempts += 1
            self._is_waiting = True
            return [*read, StartTimer(READING_AGAIN, RETRY_APPEND_MS)], Stale()
        # What is visible may be newer than all checkpoints: the logs of the workers say whether it is theirs.
        is_logged = decision.before is not None and bool(decision.before.unit_log)
        known = () if is_logged else outputs
        conflict = history.conflict_at_start(decision, known, is_fresh=self._terms.identity.is_fresh)
        if conflict is not None:
            return read, _failed("HistoryError", history.shown(conflict), is_final=True)
        self._claim = decision
        self.takeover = recovery.takeover(decision)
        self._writer = LogWriter(
            decision.end,
            self._store_timeout_ms,
            self.dropped,
            segment_entries_max=self._terms.segment_entries_max,
        )
        if decision.entry.splits:
            # Of the first start: others might deal out what there is by then in another way.
            self.splits = decision.entry.splits
        elif decision.restored is None:
            self._is_discovering = True
            discover = DiscoverSplits(decision.entry.epoch)
            return [*read, discover, StartTimer(DISCOVERING, self._discover_timeout_ms)], Claiming()
        return [*read, *self.append(decision.entry)], Claiming()

    def splits_discovered(self, assignments: tuple[SplitAssignment, ...]) -> list[JobEffect]:
        """Take what there is to read; claim the first epoch."""
        if not self._is_discovering or self._claim is None:
            raise ProtocolError("splits were discovered, unasked")
        self._is_discovering = False
        self.splits = assignments
        if self._terms.identity.unit_log:
            self._claim = replace(self._claim, entry=replace(self._claim.entry, splits=assignments))
        return [CancelTimer(DISCOVERING), *self.append(self._claim.entry)]

    def claim_next(
        self,
        epoch: Epoch,
        first_checkpoint_id: CheckpointId,
        wall_clock: str,
        restored: CheckpointCompleted | None,
    ) -> list[JobEffect]:
        """Claim `epoch`, for a failover that goes back to `restored`."""
        if self._claim is None:
            return []
        claimant = Claimant(self._terms.identity.host, self._terms.identity.pid, wall_clock)
        before = self._claim.entry
        known = (before.parallelism, before.writers, before.epoch)
        entry = replace(
            before,
            epoch=epoch,
            first_checkpoint_id=first_checkpoint_id,
            claimant=claimant,
            writers=rescaling.writers(before.parallelism, known, restored),
        )
        self._claim = replace(self._claim, entry=entry)
        return self.append(entry)

    def append(self, entry: JobEntry) -> list[JobEffect]:
        """Append `entry` after those under way; `handle` returns its fate."""
        return [*self._writer.append(entry)] if self._writer is not None else []

    def handle(self, event: LogEvent) -> tuple[list[JobEffect], Durable | NoCheckpoint | EndJob | None]:
        """Take an answer of the store, or a timer; return the next effects, and the fate of an entry.

        Only an epoch's own checkpoint may be refused without an end to the job.
        """
        if isinstance(event, TimerFired):
            match event.timer.kind:
                case "read-log" | "discover":
                    return [], self._overdue(event.timer)
                case "read-again":
                    return self._read_again(), None
                case _:
                    pass
        if self._writer is None:
            self.dropped["log answer before the claim"] += 1
            return [], None
        effects, verdict = self._writer.handle(event)
        if isinstance(verdict, Overtaken) and self._epoch == 0 and self._claim_attempts < CLAIM_ATTEMPTS_MAX:
            # Another driver has just claimed or written; the newest driver wins, and that is this one.
            self._claim_attempts += 1
            self._index_seen = verdict.index
            self._writer = self._claim = None
            return [*effects, *self.start()], None
        return [*effects], self._concluded(verdict) if verdict is not None else None

    def _concluded(self, verdict: Verdict) -> Durable | NoCheckpoint | EndJob:
        match verdict:
            case Durable(entry):
                if isinstance(entry, EpochClaimed):
                    self._epoch = entry.epoch
                    self._index_seen = None
                    if self._writer is not None:
                        self._writer.patience_ms = self._terms.checkpoints.outage_ms
                return verdict
            case Refused(CheckpointCompleted() as entry, reason):
                return NoCheckpoint(entry, reason)
            case Refused(entry, reason) | Undecided(entry, reason):
                message = f"the job log can't be written: {reason}"
                if isinstance(entry, JobFinished):
                    message = (
                        f"everything is processed and committed, but {message}; the next start tries again"
                    )
                # What the store refuses, it may refuse for good; a store that is silent is down.
                return _failed("StoreError", message, is_transient=isinstance(verdict, Undecided))
            case Overtaken(_, index, winner):
                return EndJob("fenced", fenced(self._epoch, index, winner))
            case _:
                assert_never(verdict)


def _unusable(reason: str) -> EndJob:
    return _failed("StoreError", f"can't use this checkpoint_dir: {reason}")


def _failed(kind: str, message: str, *, is_final: bool = False, is_transient: bool = False) -> EndJob:
    return EndJob("failed", FailureCause(kind, message, is_final=is_final, is_transient=is_transient))
