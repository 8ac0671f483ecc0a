"""One driver's hold on a job: what it reads in the log, the epoch it claims there, what it appends.

Whoever has the newest durable claim owns the job. Before its first claim a driver that finds its entry
taken reads again and claims above, because the newest driver wins; afterwards it has been fenced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId, Epoch
from crosscut.protocol import recovery
from crosscut.protocol.effects import DiscoverSplits, JobEffect, ReadLogTail
from crosscut.protocol.job_log import Durable, LogEvent, LogWriter, Overtaken, Verdict
from crosscut.protocol.messages import EpochClaimed, FailureCause, LogEntry, SplitAssignment

CLAIM_ATTEMPTS_MAX = 20


def fenced(epoch: Epoch, index: int, winner: LogEntry) -> FailureCause:
    """Return why the driver of `epoch` has to stop: entry `index` is somebody else's."""
    return FailureCause(
        "Fenced",
        f"another driver owns this job now (log entry {index}: {winner!r:.200}); this driver, of "
        f"epoch {epoch}, has stopped and changed nothing since",
    )


class Ownership:
    """Reads the end of the log, claims an epoch, and then writes the log for as long as it is ours.

    Args:
        retain: How many completed checkpoints to read back.
        dropped: Where to count what is dropped.
    """

    def __init__(self, identity: recovery.JobIdentity, retain: int, dropped: Counter[str]) -> None:
        self._identity = identity
        self._retain = retain
        self._writer: LogWriter | None = None
        self._claim: recovery.Claim | None = None
        self._claim_attempts = 0
        self._is_discovering = False
        self._has_claimed = False
        self.splits: tuple[SplitAssignment, ...] = ()
        """What there is to read, if the job starts from nothing."""
        self.dropped = dropped

    @property
    def is_idle(self) -> bool:
        """Whether no append is under way: only then is it known what is in the log."""
        return self._writer is not None and self._writer.is_idle

    def start(self) -> list[JobEffect]:
        """Read the log."""
        return [ReadLogTail(self._retain)]

    def tail_read(
        self, entries: Sequence[tuple[int, LogEntry]]
    ) -> tuple[list[JobEffect], recovery.Claim | recovery.AlreadyFinished | recovery.NotThisJob]:
        """Take the end of the log; claim the next epoch, unless there is nothing to claim."""
        if self._writer is not None:
            raise ProtocolError("the end of the log was read, unasked")
        decision = recovery.claim(entries, self._identity)
        if not isinstance(decision, recovery.Claim):
            return [], decision
        self._claim = decision
        self._writer = LogWriter(decision.index, self.dropped)
        if decision.restored is None:
            self._is_discovering = True
            return [DiscoverSplits()], decision
        return self.append(decision.entry), decision

    def splits_discovered(self, assignments: tuple[SplitAssignment, ...]) -> list[JobEffect]:
        """Take what there is to read; claim the first epoch."""
        if not self._is_discovering or self._claim is None:
            raise ProtocolError("splits were discovered, unasked")
        self._is_discovering = False
        self.splits = assignments
        return self.append(self._claim.entry)

    def claim_next(self, epoch: Epoch, first_checkpoint_id: CheckpointId) -> list[JobEffect]:
        """Claim `epoch`, for a failover."""
        if self._claim is None:
            return []
        entry = replace(self._claim.entry, epoch=epoch, first_checkpoint_id=first_checkpoint_id)
        self._claim = replace(self._claim, entry=entry)
        return self.append(entry)

    def append(self, entry: LogEntry) -> list[JobEffect]:
        """Append `entry` behind those under way; `handle` returns what becomes of it."""
        return [*self._writer.append(entry)] if self._writer is not None else []

    def handle(self, event: LogEvent) -> tuple[list[JobEffect], Verdict | None]:
        """Take the store's answer; return what to do next, and the verdict on an entry if there is one."""
        if self._writer is None:
            self.dropped["log answer before the claim"] += 1
            return [], None
        effects, verdict = self._writer.handle(event)
        if isinstance(verdict, Durable) and isinstance(verdict.entry, EpochClaimed):
            self._has_claimed = True
        if (
            isinstance(verdict, Overtaken)
            and not self._has_claimed
            and self._claim_attempts < CLAIM_ATTEMPTS_MAX
        ):
            # Another driver has just claimed or written; the newest driver wins, and that is this one.
            self._claim_attempts += 1
            self._writer = self._claim = None
            return [*effects, *self.start()], None
        return [*effects], verdict
