"""Give up output that is prepared and can't be committed: pure decisions over the end of the job log.

A complete checkpoint can't be taken back, and neither can its output. If the system behind a sink refuses it
for good, an operator may drop it: a claim of the next epoch lists the dropped transactions. It fences a
driver that is still running, and every driver that comes later restores the checkpoint without them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import Lineage, LogIndex
from crosscut.protocol.job.pending_output import restored
from crosscut.protocol.log import recovery
from crosscut.protocol.log.entries import EpochClaimed, JobFinished, LogEntry, OpenOutput
from crosscut.protocol.log.identity import Claimant
from crosscut.protocol.log.segments import claims_in


@dataclass(frozen=True, slots=True)
class NothingToDrop:
    """The log stays as it is."""

    reason: str


def dropping(
    tail: Sequence[tuple[LogIndex, LogEntry]],
    wanted: Collection[OpenOutput],
    claimant: Claimant,
    driver: str,
    reason: str,
) -> recovery.Claim | NothingToDrop:
    """Decide what to append so that `wanted` is never committed.

    Args:
        tail: End of the log in order, as for `recovery.claim`.
        wanted: Each must be pending in the newest completed checkpoint.
        driver: A token that no other process has used.
    """
    claims = claims_in(entry for _, entry in tail)
    found = restored(tail)
    if not claims or found is None:
        return NothingToDrop("no checkpoint is complete, so no output is pending")
    if any(isinstance(entry, JobFinished) for _, entry in tail):
        return NothingToDrop("the job has finished: everything is committed")
    pending = {
        OpenOutput(one.task, each.checkpoint_id) for one in found.snapshots for each in one.snapshot.pending
    }
    if strange := sorted(set(wanted) - pending, key=lambda one: (one.task, one.checkpoint_id)):
        one = strange[0]
        return NothingToDrop(
            f"task {one.task} has no pending transaction of checkpoint {one.checkpoint_id}: expected one of "
            f"those that `crosscut transactions ls` shows"
        )
    newest = claims[-1]
    match recovery.claim(tail, _same_job(newest, claimant, driver), claimant.wall_clock):
        case recovery.Claim() as claim:
            dropped = tuple(sorted(wanted, key=lambda one: (one.task, one.checkpoint_id)))
            return replace(claim, entry=replace(claim.entry, dropped=dropped, reason=reason))
        case recovery.NotThisJob() as refused:
            return NothingToDrop(recovery.refusal(refused))
        case recovery.AlreadyFinished():
            return NothingToDrop("the job has finished: everything is committed")


def _same_job(newest: EpochClaimed, claimant: Claimant, driver: str) -> recovery.JobIdentity:
    return recovery.JobIdentity(
        driver=driver,
        new_lineage=Lineage(""),
        fingerprint=newest.fingerprint,
        parallelism=newest.parallelism,
        max_parallelism=newest.max_parallelism,
        flow=newest.flow,
        host=claimant.host,
        pid=claimant.pid,
    )
