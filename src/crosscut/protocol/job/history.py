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

from crosscut.errors import HistoryError
from crosscut.frozen import dataclass
from crosscut.ids import CheckpointId, Epoch
from crosscut.interfaces import CommitPermit, CommittedOutput, SinkContext
from crosscut.protocol.job.recovery import Claim


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


Conflict = NewerOutput | AnotherDriver | ForeignOutput


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
            origin = f"goes on from checkpoint {restored}" if restored else "begins with nothing"
            return (
                f"{_who(one)} has committed output up to checkpoint {one.checkpoint_id} of this very job, "
                f"which {origin}: it would be written a second time. The job log has lost entries, or an "
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
                f"{_who(one)} has committed output of another history ({whose}, up to checkpoint "
                f"{one.checkpoint_id}), and this job begins with nothing: what is there would stay, and be "
                f"written again. Was the checkpoint directory deleted, or is it another one? Use the "
                f"directory that belongs to the output, or another location for the output; or remove what "
                f"is there and what the sink remembers of it (.crosscut in a directory, crosscut_markers "
                f"in a database); or start with fresh=True (--fresh) to add to it"
            )
        case _:
            assert_never(conflict)


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


def _is_same_task(one: CommittedOutput, context: SinkContext) -> bool:
    return (one.lineage, one.sink_uid, one.task) == (context.lineage, context.sink_uid, context.task)


def _is_own(one: CommittedOutput, context: SinkContext) -> bool:
    return (one.epoch, one.driver) == (context.epoch, context.driver)


def _who(one: CommittedOutput) -> str:
    return f"{one.location}: task {one.task} of sink {one.sink_uid!r}"
