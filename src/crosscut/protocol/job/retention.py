"""Which parts and log entries may be deleted: pure decisions over manifests.

A part is deleted only after the newer log entry is durable, and only if no retained manifest refers
to it. When in doubt it stays: a leak is tidied later, a deletion is for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from crosscut.ids import CheckpointId, Epoch, LogIndex
from crosscut.protocol.job.segments import written_before
from crosscut.protocol.messages import CheckpointCompleted, LogEntry, SegmentClosed, SegmentOpened, Snapshot

PART_PATH = re.compile(r"parts/\d+/[^/]+-(\d+)-[0-9a-f]+")


def parts_of(checkpoint: CheckpointCompleted) -> frozenset[str]:
    """Return the paths of all files that the manifest refers to."""
    return frozenset(path for one in checkpoint.snapshots for path in paths_of(one.snapshot))


def paths_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the paths of the files of one snapshot; inline parts have none."""
    held = (one.held for one in snapshot.pending if one.held is not None)
    return tuple(part.path for part in (*snapshot.parts, *snapshot.log, *held) if part.path)


def retained(completed: Sequence[CheckpointCompleted], keep: int) -> tuple[CheckpointCompleted, ...]:
    """Return the newest `keep` checkpoints, in order."""
    return tuple(completed[-keep:])


def referenced(kept: Iterable[CheckpointCompleted]) -> frozenset[str]:
    """Return the paths of all files that the `kept` manifests refer to."""
    return frozenset[str]().union(*map(parts_of, kept))


def unreferenced(paths: Iterable[str], kept: Iterable[CheckpointCompleted]) -> tuple[str, ...]:
    """Return those of `paths` that none of the `kept` manifests refers to, sorted."""
    return tuple(sorted(set(paths) - referenced(kept)))


def orphans(listed: Iterable[str], kept: Iterable[CheckpointCompleted], epoch: Epoch) -> tuple[str, ...]:
    """Return the listed parts that older epochs left behind.

    Parts of the running epoch are never orphans here: they may belong to a checkpoint under way. A
    path that does not look like one of ours is not ours to delete.
    """
    ours = (path for path in listed if (match := PART_PATH.fullmatch(path)) and int(match[1]) < epoch)
    return unreferenced(ours, kept)


def dangling(snapshot: Snapshot, checkpoint_id: CheckpointId, kept_parts: frozenset[str]) -> tuple[str, ...]:
    """Return the parts that a new snapshot refers to but that nothing protects from deletion, sorted.

    A task that has not heard of the newest completions yet may build on parts that retention has
    deleted since. Its own new parts are protected by being newer than every sweep.

    Args:
        kept_parts: What `referenced` says of the kept manifests. It is asked for each acknowledgement, so
            going through the manifests here would cost the square of the number of tasks.
    """
    own = f"parts/{checkpoint_id}/"
    foreign = {path for path in paths_of(snapshot) if not path.startswith(own)}
    return tuple(sorted(foreign - kept_parts))


# The job log: `crosscut.protocol.job.segments` has the reasons.


def ended(tail: Sequence[tuple[LogIndex, LogEntry]]) -> tuple[LogIndex, ...]:
    """Return what can be deleted of the older segments in `tail`, once no retained checkpoint is in them."""
    entries = dict(tail)
    return tuple(
        index
        for _, head in tail
        if isinstance(head, SegmentOpened) and head.previous in entries
        for index in written_before(head, was_closed=isinstance(entries[head.previous], SegmentClosed))
    )


def left_over(listed: Iterable[LogIndex], oldest_segment: int) -> tuple[LogIndex, ...]:
    """Return the listed entries that a driver would have deleted that died before it could, sorted.

    Args:
        oldest_segment: The oldest one with a retained checkpoint: older ones hold nothing that is needed.
    """
    ours: dict[int, list[int]] = {}
    for index in listed:
        if index.segment < oldest_segment and index.number > 0:
            ours.setdefault(index.segment, []).append(index.number)
    # The newest entry of each may be what closed it. That it is kept where it is not costs one file.
    return tuple(
        LogIndex(segment, number)
        for segment, numbers in sorted(ours.items())
        for number in sorted(numbers, reverse=True)
        if number < max(numbers)
    )
