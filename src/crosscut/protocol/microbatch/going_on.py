"""What a job does after a batch has been committed: the next one at once, later, or nothing more."""

from __future__ import annotations

from enum import Enum


class NextStep(Enum):
    """What comes after a batch."""

    BATCH_AT_ONCE = "there is more, so the next batch need not wait for its time"
    WAIT_FOR_ANSWERS = "sources have still to say whether splits have come, or that no others will soon"
    STOP = "all that was there has been read"
    WAIT_FOR_TIME = "the next batch comes with its interval"


def next_step(
    *,
    is_full: bool,
    stops_when_read: bool,
    splits_have_come: bool,
    is_asked: bool,
    splits_are_coming: bool,
) -> NextStep:
    """Return what comes next.

    Args:
        is_full: The batch has left something unread.
        stops_when_read: The job reads what there is, and then stops (`trigger="available_now"`).
        splits_have_come: There are some that no completed batch was given.
        is_asked: A call to a source that was under way when the batch was over has not been answered: a start
            that did not wait for it would stop after an empty batch, and the job never get any further.
        splits_are_coming: A source has said so, and not taken it back.
    """
    if is_full:
        return NextStep.BATCH_AT_ONCE
    if not stops_when_read:
        return NextStep.WAIT_FOR_TIME
    if splits_have_come:
        return NextStep.BATCH_AT_ONCE
    return NextStep.WAIT_FOR_ANSWERS if is_asked or splits_are_coming else NextStep.STOP
