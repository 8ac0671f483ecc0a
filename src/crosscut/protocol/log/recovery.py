"""Recovery as pure decisions: over facts that were read, each returns one member of a closed set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex
from crosscut.protocol.job import pending_output
from crosscut.protocol.log.entries import (
    CHECKPOINT_IDS_LEAD_MAX,
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    LogEntry,
)
from crosscut.protocol.log.identity import (
    AnotherJob,
    ChangedDetails,
    Claimant,
    FlowIdentity,
    Same,
    compared,
    shown,
)
from crosscut.protocol.log.segments import LogEnd, claim_of, claims_in, end_of
from crosscut.protocol.splits import rescaling
from crosscut.protocol.splits.rescaling import parallelism_of

# Who owns the next epoch, and from which state does it start?


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A driver that has ended, and the newest epoch that it knows to be its own."""

    driver: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The job, as its driver knows it before it has read anything.

    Attributes:
        accepts_changes: The user has been told that sources or sinks say something else of themselves
            than before, and wants to go on.
        is_fresh: The user wants a new history beside output that is there already.
        follows: Whom the same run had before, who has ended to let this driver go on: a newer claim of
            anybody else is of a newer driver, which owns the job.
        unit_log: See `EpochClaimed`.
    """

    driver: str
    new_lineage: Lineage
    fingerprint: str
    parallelism: int
    max_parallelism: int
    flow: FlowIdentity = FlowIdentity("")
    host: str = ""
    pid: int = 0
    accepts_changes: bool = False
    is_fresh: bool = False
    follows: Predecessor | None = None
    unit_log: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Append `entry` to a log that ends at `end`; if that is durable, go on from `restored`.

    Attributes:
        before: The newest claim so far: whom this one takes the job over from.
    """

    end: LogEnd
    entry: EpochClaimed
    restored: CheckpointCompleted | None
    before: EpochClaimed | None = None


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """The job has run to its end; there is nothing to do."""

    entry: JobFinished


@dataclass(frozen=True, slots=True)
class NoClaim:
    """The log has entries but no claim of an epoch: it is damaged."""


@dataclass(frozen=True, slots=True)
class OtherKeyGroups:
    """Its state is in another number of key groups."""

    found: int
    ours: int


@dataclass(frozen=True, slots=True)
class OtherFlow:
    """It is the state of another flow, or of another graph of this one.

    Attributes:
        claimant: Who runs that.
    """

    difference: AnotherJob
    claimant: Claimant


@dataclass(frozen=True, slots=True)
class OtherDetails:
    """Sources or sinks say something else of themselves than before, and the user has not accepted it."""

    changed: ChangedDetails


@dataclass(frozen=True, slots=True)
class OtherUnitLogs:
    """Its workers have logs of their own, of another kind or number than those of this job, or none.

    Attributes:
        found: The kind of log; "": none.
        parallelism: How many workers.
    """

    found: str
    ours: str
    parallelism: int


@dataclass(frozen=True, slots=True)
class RestoreCutOff:
    """A savepoint was being restored, and that was cut off: nothing has run."""


@dataclass(frozen=True, slots=True)
class NotThisJob:
    """The directory holds the state of something else; nothing may be touched."""

    why: NoClaim | OtherKeyGroups | OtherFlow | OtherDetails | OtherUnitLogs | RestoreCutOff


def taken_over(tail: Iterable[tuple[LogIndex, LogEntry]], job: JobIdentity) -> EpochClaimed | None:
    """Return the claim of a newer driver, made while no driver of this run owned the job, or None.

    Args:
        tail: As in `claim`.
    """
    claims = claims_in(entry for _, entry in tail)
    if job.follows is None or not claims or claims[-1].epoch <= job.follows.epoch:
        # A log that ends before that epoch is a stale answer of the store: no claim there is ever durable.
        return None
    return None if claims[-1].driver in (job.follows.driver, job.driver) else claims[-1]


def claim(
    tail: Sequence[tuple[LogIndex, LogEntry]], job: JobIdentity, wall_clock: str = ""
) -> Claim | AlreadyFinished | NotThisJob:
    """Decide how a starting driver goes on from the log it found.

    Args:
        tail: End of the log in order, with the newest epoch claim and the retained checkpoints.
        wall_clock: For people who read the claim.
    """
    end = end_of(tail)
    claims = [found for _, entry in tail if (found := claim_of(entry)) is not None]
    completed = tuple(entry for _, entry in tail if isinstance(entry, CheckpointCompleted))
    finished = [entry for _, entry in tail if isinstance(entry, JobFinished)]
    if not claims:
        if tail:
            return NotThisJob(NoClaim())
        return Claim(end, _entry(job, job.new_lineage, Epoch(1), CheckpointId(1), wall_clock), None)
    newest = claims[-1]
    if newest.flow.name == job.flow.name and newest.max_parallelism != job.max_parallelism:
        return NotThisJob(OtherKeyGroups(newest.max_parallelism, job.max_parallelism))
    match compared(newest.flow, job.flow, is_same_structure=newest.fingerprint == job.fingerprint):
        case AnotherJob() as difference:
            return NotThisJob(OtherFlow(difference, newest.claimant))
        case ChangedDetails() as changed if (completed or newest.unit_log) and not job.accepts_changes:
            return NotThisJob(OtherDetails(changed))
        case ChangedDetails() | Same():
            pass
    if newest.ancestors and not completed:
        return NotThisJob(RestoreCutOff())
    if finished:
        return AlreadyFinished(finished[-1])
    has_more = bool(newest.unit_log or completed)
    is_other = newest.unit_log != job.unit_log or (job.unit_log and newest.parallelism != job.parallelism)
    if has_more and is_other:
        return NotThisJob(OtherUnitLogs(newest.unit_log, job.unit_log, newest.parallelism))
    used_max = max([newest.first_checkpoint_id, *(entry.checkpoint_id for entry in completed)])
    # An earlier driver may have used ids that never completed. It was bound to stay within the
    # lead, so ids are never reused, although nothing was written for each.
    first = CheckpointId((used_max // CHECKPOINT_IDS_LEAD_MAX + 2) * CHECKPOINT_IDS_LEAD_MAX + 1)
    restored = pending_output.restored(tail)
    known = (newest.parallelism, newest.writers, newest.epoch)
    entry = replace(
        _entry(job, newest.lineage, Epoch(newest.epoch + 1), first, wall_clock),
        writers=rescaling.writers(job.parallelism, known, restored),
        ancestors=newest.ancestors,
        splits=newest.splits if newest.unit_log else (),
    )
    return Claim(end, entry, restored, newest)


def takeover(claim: Claim) -> str:
    """Return whom the driver that makes `claim` takes the job over from, for people; "" if from none."""
    if claim.before is None:
        return ""
    whom = f"epoch {claim.before.epoch} ({shown(claim.before.claimant)})"
    if claim.restored is None and claim.entry.unit_log:
        return f"takes over from {whom}, at the ends of the logs of its workers"
    if claim.restored is None:
        return f"takes over from {whom}, which has completed no checkpoint"
    n, now, then = claim.restored.checkpoint_id, claim.entry.parallelism, parallelism_of(claim.restored)
    where = f"at checkpoint {n}" if then in (0, now) else f"and {rescaling.shown(n, now, then)}"
    return (
        f"takes over from {whom} {where}; the next ones start at "
        f"{claim.entry.first_checkpoint_id}, since no id is ever used twice and that driver may have used "
        f"some that it did not complete"
    )


def refusal(found: NotThisJob) -> str:
    """Return why the job can't use this checkpoint directory, and what to do, for people."""
    match found.why:
        case NoClaim():
            return (
                "the job log has entries but no epoch claim: it is damaged; restore the directory from "
                "a backup, or choose another checkpoint_dir"
            )
        case OtherKeyGroups(before, ours):
            return (
                f"its state is in {before} key groups, but max_parallelism={ours}; max_parallelism can't "
                f"change once there is state"
            )
        case OtherFlow(AnotherJob(reason), claimant):
            gap = "\n" if "\n" in reason else "; "
            return (
                f"{reason}{gap}it is claimed by {shown(claimant)}; choose another checkpoint_dir, or "
                f"run the flow that it belongs to"
            )
        case OtherDetails(ChangedDetails(changes)):
            return (
                f"{'; '.join(changes)}. A job that is resumed goes on with the splits and positions that it "
                f"has, and commits what it has staged: nothing is read anew, nothing is moved. If that is "
                f"what you want, start it with accept_changes=True (--accept-changes); else choose another "
                f"checkpoint_dir"
            )
        case OtherUnitLogs() as other:
            if not other.found:
                return (
                    "it holds checkpoints, and a job whose workers have logs (snapshots='logged') can't "
                    "begin with one yet; start it with the snapshots that it had, or choose another "
                    "checkpoint_dir"
                )
            return (
                f"its newest state is in the logs of {other.parallelism} workers ({other.found}), which only "
                f"a job with the same logs and workers can go on from; start it with snapshots='logged' and "
                f"parallelism={other.parallelism}, or choose another checkpoint_dir"
            )
        case RestoreCutOff():
            return (
                "a savepoint was being restored here, and that was cut off: nothing has run. Remove the "
                "directory, and start again with restore_from"
            )
        case _:
            assert_never(found.why)


def _entry(
    job: JobIdentity, lineage: Lineage, epoch: Epoch, first: CheckpointId, wall_clock: str
) -> EpochClaimed:
    return EpochClaimed(
        epoch=epoch,
        lineage=lineage,
        driver=job.driver,
        fingerprint=job.fingerprint,
        parallelism=job.parallelism,
        max_parallelism=job.max_parallelism,
        first_checkpoint_id=first,
        flow=job.flow,
        claimant=Claimant(job.host, job.pid, wall_clock),
        unit_log=job.unit_log,
    )


# Where does a task find the state of the checkpoint that it has to go back to?


@dataclass(frozen=True, slots=True)
class FromMemory:
    """The worker has kept the state of this checkpoint: nothing is read from the store."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FromStore:
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FromNothing:
    """Start with empty state."""


def restore_from(
    restore: CheckpointId, at_hand: Iterable[CheckpointId]
) -> FromMemory | FromStore | FromNothing:
    """Decide where one task's keyed state comes from.

    Args:
        restore: The checkpoint to go back to, 0 for the very beginning.
        at_hand: Checkpoints of this lineage whose state the surviving worker still holds.
    """
    if restore == 0:
        return FromNothing()
    return FromMemory(restore) if restore in set(at_hand) else FromStore(restore)
