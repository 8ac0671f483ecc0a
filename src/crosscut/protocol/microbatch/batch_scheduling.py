"""When the next micro-batch starts: at once, with its interval, or never."""

from __future__ import annotations

from enum import Enum


class NextStep(Enum):
    """What happens after a batch."""

    BATCH_AT_ONCE = "start the next batch at once, because there is more to read"
    WAIT_FOR_ANSWERS = "wait until the sources have answered whether there are new splits"
    STOP = "stop, because everything that was there has been read"
    WAIT_FOR_TIME = "start the next batch with its interval"


def next_step(
    *,
    is_full: bool,
    stops_when_read: bool,
    splits_have_come: bool,
    is_asked: bool,
    splits_are_coming: bool,
) -> NextStep:
    """Return what happens after a batch.

    Args:
        is_full: The batch has left something unread.
        stops_when_read: The job reads what there is, and then stops (`trigger="available_now"`).
        splits_have_come: There are new splits that no completed batch has read.
        is_asked: A source has not answered a call that was under way at the end of the batch. Without the
            answer the job would stop after an empty batch, at each start again.
        splits_are_coming: A source has announced new splits.
    """
    if is_full:
        return NextStep.BATCH_AT_ONCE
    if not stops_when_read:
        return NextStep.WAIT_FOR_TIME
    if splits_have_come:
        return NextStep.BATCH_AT_ONCE
    return NextStep.WAIT_FOR_ANSWERS if is_asked or splits_are_coming else NextStep.STOP
