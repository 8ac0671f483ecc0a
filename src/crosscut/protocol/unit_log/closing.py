"""When a group ends: a decision, made between two batches of a worker."""

from __future__ import annotations

from enum import Enum, auto

from crosscut.foundation.frozen import dataclass

GROUP_BYTES = 256 << 10
HOLD_BYTES = 4 << 20
HOLD_MS = 10_000


class GroupEnd(Enum):
    """What the worker does with the group that grows."""

    GROW = auto()
    """Go on: an append is under way, or the group may have more."""

    HOLD = auto()
    """It must not grow: run only tasks that are within a batch, until the log has taken the group before."""

    SETTLE = auto()
    """Run only tasks that are within a batch, until none is: then the group ends."""

    END = auto()
    """End it now: all tasks are between two batches."""


@dataclass(frozen=True, slots=True)
class GrowingGroup:
    """A group, as far as it has come.

    Attributes:
        has_content: A task has processed something since the last group ended.
        can_end: No append is under way.
        is_settled: All tasks of the unit are between two batches.
        is_idle: No task has anything to do.
        size_bytes: Of the entry as it would be now, roughly.
        age_ms: Since its first batch.
        is_awaited: A barrier, a savepoint or the end of the job waits for the end of the group.
        takes_input: The sinks are not too far behind.
    """

    has_content: bool
    can_end: bool
    is_settled: bool
    is_idle: bool = False
    size_bytes: int = 0
    age_ms: int = 0
    is_awaited: bool = False
    takes_input: bool = True


def group_end(
    group: GrowingGroup,
    interval_ms: int,
    bytes_max: int = GROUP_BYTES,
    *,
    hold_bytes: int = HOLD_BYTES,
    hold_ms: int = HOLD_MS,
) -> GroupEnd:
    """Decide whether `group` ends.

    Args:
        interval_ms: How old a group becomes while there is more to do. 0: as soon as the log is free.
        bytes_max: How large.
        hold_bytes: How large it becomes while the log is busy with the group before. That bounds the memory
            of a worker whose log is slow or away, and the size of the next entry.
        hold_ms: How old. That bounds the work that is done again after a failure.
    """
    is_late = not group.can_end and (group.size_bytes >= hold_bytes or group.age_ms >= hold_ms)
    wait = GroupEnd.HOLD if is_late or not group.takes_input else GroupEnd.GROW
    if not group.can_end or not (group.has_content or group.is_awaited):
        return wait
    is_full = group.size_bytes >= bytes_max or group.age_ms >= interval_ms
    # A task that is held may have something to do, and nothing will be added all the same.
    if not (is_full or group.is_idle or group.is_awaited or not group.takes_input):
        return wait
    return GroupEnd.END if group.is_settled else GroupEnd.SETTLE
