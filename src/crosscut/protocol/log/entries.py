"""The entries of the job log: data only, as messages are."""

from __future__ import annotations

from typing import ClassVar

from crosscut.contracts.connectors import JSON
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId
from crosscut.protocol.log.identity import Claimant, FlowIdentity
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.snapshots import KnownSplits, TaskSnapshot

CHECKPOINT_IDS_LEAD_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A history that a job goes on from: `lineage`, up to `checkpoint_id`, in a savepoint.

    Attributes:
        digest: Of the manifest of the savepoint that the job has begun with, which pins its files; "" if
            it is not known, and in a manifest.
    """

    lineage: Lineage
    checkpoint_id: CheckpointId
    digest: str = ""


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """Output of sink task `task`, of checkpoint `checkpoint_id` or before, that may not be committed.

    Among `EpochClaimed.dropped`, only the transaction of that very checkpoint.
    """

    task: TaskId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """Epoch `epoch` belongs to `driver`; a driver with an older one is a zombie.

    Attributes:
        driver: Unique token of the claiming driver process.
        fingerprint: Of the graph, so that a different graph is refused before any side effect.
        flow: Identity of the job, so that another flow is refused, with the differences.
        claimant: Which process has claimed it, and when, for people.
        first_checkpoint_id: The epoch uses ids from here on, at most `CHECKPOINT_IDS_LEAD_MAX` above
            this or the newest completed one; so a new driver can step over all that were ever used.
        writers: How many logical tasks of each sink may have left something, if they are more than there are
            now, as after a smaller parallelism was chosen; else 0.
        ancestors: The histories that this one goes on from, through savepoints; the newest last.
        dropped: Output of the newest checkpoint before this entry that an operator has given up: no
            later driver commits it.
        reason: Why, in the operator's words; the claimant is the process that dropped it.
        unit_log: The kind of log that each worker has of its own, which may say more than the newest
            checkpoint; "": they have none.
        splits: With logs of workers: what the sources had to read when the job began. A worker whose log is
            empty begins with its share of it, in every epoch.
    """

    ADDED: ClassVar[dict[str, JSON]] = {"unit_log": "", "splits": []}
    """Fields, as JSON, that job logs of earlier releases lack."""

    epoch: Epoch
    lineage: Lineage
    driver: str
    fingerprint: str
    parallelism: int
    max_parallelism: int
    first_checkpoint_id: CheckpointId
    flow: FlowIdentity = FlowIdentity("")
    claimant: Claimant = Claimant()
    writers: int = 0
    ancestors: tuple[Ancestor, ...] = ()
    dropped: tuple[OpenOutput, ...] = ()
    reason: str = ""
    unit_log: str = ""
    splits: tuple[SplitAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """Checkpoint n is complete. That this entry is durable *is* the completion (decision moment).

    Attributes:
        known_splits: Of dynamic sources: what was known when n was triggered. The positions in `snapshots`
            have exactly the splits that were found up to then, without those that have ended.
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    snapshots: tuple[TaskSnapshot, ...]
    is_final: bool = False
    duration_ms: int = 0
    wall_clock: str = ""
    """ISO time, for people only: no decision reads it."""
    known_splits: tuple[KnownSplits, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The final checkpoint `checkpoint_id` is committed everywhere; there is nothing left to run."""

    epoch: Epoch
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class SegmentOpened:
    """The head of a segment of the log: from here on it is written by the driver of `claim`.

    It is a claim of its epoch where that is newer than what stands before; else the same driver goes on
    in a new segment, so that the older ones can be deleted.

    Attributes:
        claim: The newest claim.
        previous: The last entry of the segment before; None in the very first.
    """

    claim: EpochClaimed
    previous: LogIndex | None

    @property
    def epoch(self) -> Epoch:
        """The epoch whose driver writes the segment."""
        return self.claim.epoch


@dataclass(frozen=True, slots=True)
class SegmentClosed:
    """The last entry of a segment, written by the driver that is about to claim `epoch`.

    It stands where the driver before would append next: that one finds its index taken. Never deleted.
    """

    epoch: Epoch
    driver: str
    claimant: Claimant


JobEntry = EpochClaimed | CheckpointCompleted | JobFinished
"""Entries that a coordinator appends."""

LogEntry = JobEntry | SegmentOpened | SegmentClosed
