"""The output that a restored checkpoint still commits: what was prepared, without what was dropped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from crosscut.foundation.ids import LogIndex
from crosscut.protocol.log.entries import CheckpointCompleted, LogEntry, OpenOutput
from crosscut.protocol.log.segments import claim_of
from crosscut.protocol.snapshots import TaskSnapshot


def dropped_since(tail: Sequence[tuple[LogIndex, LogEntry]]) -> frozenset[OpenOutput]:
    """Return the output of the newest completed checkpoint in `tail` that was dropped."""
    dropped: frozenset[OpenOutput] = frozenset()
    for _, entry in tail:
        if isinstance(entry, CheckpointCompleted):
            dropped = frozenset()
        elif (claim := claim_of(entry)) is not None:
            dropped |= frozenset(claim.dropped)
    return dropped


def without(entry: CheckpointCompleted, dropped: Collection[OpenOutput]) -> CheckpointCompleted:
    """Return `entry` as it is restored: the dropped transactions are no longer pending."""
    if not dropped:
        return entry

    def kept(one: TaskSnapshot) -> TaskSnapshot:
        pending = tuple(
            each for each in one.snapshot.pending if OpenOutput(one.task, each.checkpoint_id) not in dropped
        )
        return replace(one, snapshot=replace(one.snapshot, pending=pending))

    return replace(entry, snapshots=tuple(map(kept, entry.snapshots)))


def restored(tail: Sequence[tuple[LogIndex, LogEntry]]) -> CheckpointCompleted | None:
    """Return the newest completed checkpoint in `tail`, without what was dropped; None if there is none."""
    completed = [entry for _, entry in tail if isinstance(entry, CheckpointCompleted)]
    return without(completed[-1], dropped_since(tail)) if completed else None
