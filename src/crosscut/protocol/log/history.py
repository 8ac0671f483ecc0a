"""Does the visible output of a sink belong to the checkpoints that a job goes on from? Pure decisions.

A checkpoint directory records the progress of a job; its sinks remember the output that they made visible.
They disagree if newest log entries are lost, if a backup was restored, if a copy of the directory is
run, or if the directory was deleted. Going on would write the same output again, so it is refused, by
name. Every writer asks for its own task, at the resource, where a second driver can't be overlooked;
the driver asks before it claims an epoch, so that in most cases nothing at all has happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from crosscut.contracts.connectors import CommitPermit, CommittedOutput, SinkContext
from crosscut.errors import HistoryError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.protocol.log.recovery import Claim
from crosscut.protocol.unit_log.entries import group_of


@dataclass(frozen=True, slots=True)
class NewerOutput:
    """Of this very history more is visible than the restored checkpoint knows of."""

    output: CommittedOutput
    restored: CheckpointId


@dataclass(frozen=True, slots=True)
class AnotherDriver:
    """Somebody else writes as this task, in the same epoch or in a newer one.

    Attributes:
        epoch: Ours.
        driver: Our token.
    """

    output: CommittedOutput
    epoch: Epoch
    driver: str


@dataclass(frozen=True, slots=True)
class ForeignOutput:
    """There is output of another history, and this one begins with nothing."""

    output: CommittedOutput


@dataclass(frozen=True, slots=True)
class SetBack:
    """The sink remembers less than it has confirmed: its system was set back.

    Attributes:
        output: What it remembers; its `checkpoint_id` is 0 if that is nothing.
        committed: The newest transaction of which it has confirmed the commit.
    """

    output: CommittedOutput
    committed: CheckpointId


Conflict = NewerOutput | AnotherDriver | ForeignOutput | SetBack


def conflict_of_task(
    context: SinkContext, restored: CheckpointId, found: Iterable[CommittedOutput]
) -> NewerOutput | AnotherDriver | None:
    """Decide whether a sink task may write, or go on writing.

    Args:
        restored: The checkpoint that this epoch began with, 0 for none.
        found: The sink's memory; entries of another logical task or lineage, and those that this very
            epoch has written, play no part.
    """
    others = [one for one in found if _is_same_task(one, context) and not _is_own(one, context)]
    # Newer output first: it says more about the mistake.
    for one in others:
        if one.checkpoint_id > restored:
            return NewerOutput(one, restored)
    for one in others:
        if one.epoch >= context.epoch:
            return AnotherDriver(one, context.epoch, context.driver)
    return None


def conflict_at_start(claim: Claim, found: Iterable[CommittedOutput], *, is_fresh: bool) -> Conflict | None:
    """Decide whether a driver may claim an epoch.

    Args:
        claim: The entry that it would append to the log.
        found: The memory of all sinks of the flow; read *before* the log, so that all output visible
            then is known to the log that was read afterwards.
        is_fresh: The user knows that there may be output of another history, and wants this one beside it.
    """
    found = tuple(found)
    restored = claim.restored.checkpoint_id if claim.restored is not None else CheckpointId(0)
    of_this_history = [one for one in found if one.lineage == claim.entry.lineage]
    # Newer output first: it says more about the mistake.
    for one in of_this_history:
        if one.checkpoint_id > restored:
            return NewerOutput(one, restored)
    for one in of_this_history:
        if _is_unknown(one, claim):
            return AnotherDriver(one, claim.entry.epoch, claim.entry.driver)
    visible = [one for one in found if one.checkpoint_id > 0]
    if claim.before is None and not is_fresh and visible:
        return ForeignOutput(visible[0])
    return None


def _is_unknown(one: CommittedOutput, claim: Claim) -> bool:
    """Whether somebody has written who has not claimed an epoch in this log."""
    if one.epoch >= claim.entry.epoch:
        return True
    newest = claim.before
    return newest is not None and one.epoch == newest.epoch and one.driver not in ("", newest.driver)


def shown(conflict: Conflict) -> str:
    """Return what people are told."""
    one = conflict.output
    match conflict:
        case NewerOutput(_, restored):
            is_of_job = group_of(one.checkpoint_id) is None
            log = "job log" if is_of_job else f"log of worker {one.task.index} (units/{one.task.index})"
            origin = f"goes on from {_number(restored)}" if restored else "begins with nothing"
            return (
                f"{_who(one)} has committed output up to {_number(one.checkpoint_id)} of this very job, "
                f"which {origin}: it would be written a second time. The {log} has lost entries, or an "
                f"old backup of the checkpoint directory was restored, or this is a copy of one whose job "
                f"went on elsewhere. Use the newest checkpoint directory; or choose an empty one, which "
                f"begins with nothing, and another location for the output"
            )
        case AnotherDriver(_, epoch, driver):
            return (
                f"{_who(one)} belongs to epoch {one.epoch} of driver {one.driver!r}, and this is epoch "
                f"{epoch} of driver {driver!r}: two drivers of one history. A copy of the "
                f"checkpoint directory runs at the same time, or the job log has lost entries. Stop the "
                f"other one for good before this one is started again; nothing was written twice"
            )
        case ForeignOutput():
            whose = f"lineage {one.lineage}" if one.lineage else "a lineage that is not known any more"
            return (
                f"{_who(one)} has committed output of another history ({whose}, up to "
                f"{_number(one.checkpoint_id)}), and this job begins with nothing: what is there would stay, "
                f"and be written again. Was the checkpoint directory deleted, or is it another one? Use the "
                f"directory that belongs to the output, or another location for the output; or remove what "
                f"is there and what the sink remembers of it (.crosscut in a directory, crosscut_markers "
                f"in a database); or start with fresh=True (--fresh) to add to it"
            )
        case SetBack(_, committed):
            found = f"only up to {_number(one.checkpoint_id)}" if one.checkpoint_id else "nothing"
            return (
                f"{_who(one)} has confirmed that all output up to {_number(committed)} is committed, and "
                f"now remembers {found}: the system behind it was set back, by a restore from a backup, by a "
                f"failover to a replica that was behind, or by someone who removed what the sink remembers. "
                f"Output between the two is lost there, and this job no longer has it; nothing was written. "
                f"Bring the newest data of that system back and start the job again; or start a new job with "
                f"an empty checkpoint_dir, from nothing or with restore_from: a savepoint or checkpoint from "
                f"before the loss writes the lost output again, the newest checkpoint goes on without it"
            )
        case _:
            assert_never(conflict)


def _number(n: CheckpointId) -> str:
    """Return what people call the checkpoint, or the group of a worker's log, that a sink has committed."""
    group = group_of(n)
    return f"checkpoint {n}" if group is None else f"group {group} (commit number {n})"


def check_history(
    context: SinkContext, permit: CommitPermit | None, found: Iterable[CommittedOutput]
) -> None:
    """Refuse to write as a sink task if the sink's memory contradicts the restored checkpoint.

    For `SinkWriter.recover`, before anything is written; best in the transaction that also fences older
    epochs. In `commit` the same with the permit of the checkpoint that was *restored*.

    Args:
        permit: The one that `recover` was given.
        found: The sink's memory of this task, at least.

    Raises:
        HistoryError: The job must not go on; it ends, whatever its restart strategy.
    """
    conflict = conflict_of_task(context, permit.checkpoint_id if permit else CheckpointId(0), found)
    if conflict is not None:
        raise HistoryError(shown(conflict), location=conflict.output.location)


def set_back(
    context: SinkContext,
    permit: CommitPermit | None,
    found: CheckpointId,
    location: str,
    confirmed: CheckpointId = CheckpointId(0),
) -> SetBack | None:
    """Decide whether the system of a sink has lost output that it had confirmed.

    What a checkpoint commits may not be committed yet: a crash between completion and commit is no loss,
    since the checkpoint holds its transactions. Those that it does not hold any more are confirmed.

    Args:
        permit: Of this `recover` or `commit`.
        found: The sink remembers that all of this task up to there is visible; 0: it remembers nothing.
        location: Where, as people call it.
        confirmed: What the system has confirmed to this very writer.
    """
    known = max(confirmed, permit.committed if permit is not None else CheckpointId(0))
    if found >= known:
        return None
    output = CommittedOutput(
        location, context.lineage, context.sink_uid, context.task, context.epoch, context.driver, found
    )
    return SetBack(output, known)


def check_not_set_back(
    context: SinkContext,
    permit: CommitPermit | None,
    found: CheckpointId,
    location: str,
    *,
    confirmed: CheckpointId = CheckpointId(0),
) -> None:
    """Refuse to go on as a sink task if the sink remembers less than it has confirmed.

    For `SinkWriter.recover`, and for `SinkWriter.commit` wherever it has read what the sink remembers; before
    anything is written, best in the transaction that writes.

    Args:
        permit: The one that the call was given.
        found: The sink remembers that all of this task up to there is visible; 0: it remembers nothing.
        location: Where, as people call it: a table, a topic.
        confirmed: The newest transaction of which the system has confirmed the commit to this very writer;
            0 if the writer does not remember that.

    Raises:
        HistoryError: The job must not go on; it ends, whatever its restart strategy.
    """
    conflict = set_back(context, permit, found, location, confirmed)
    if conflict is not None:
        raise HistoryError(shown(conflict), location=location)


def _is_same_task(one: CommittedOutput, context: SinkContext) -> bool:
    return (one.lineage, one.sink_uid, one.task) == (context.lineage, context.sink_uid, context.task)


def _is_own(one: CommittedOutput, context: SinkContext) -> bool:
    return (one.epoch, one.driver) == (context.epoch, context.driver)


def _who(one: CommittedOutput) -> str:
    return f"{one.location}: task {one.task} of sink {one.sink_uid!r}"
