"""The job log as a chain of segments, so that what is no longer needed can be deleted.

A segment is written by one driver, from its head to its last entry: its successor closes
it, where that driver would append, and then opens the next one with a claim. When a
segment has become long, its own driver goes on in a new one.

Entries of an old segment are deleted, and a put-if-absent where one was deleted succeeds. That must do
no harm, however long a driver was asleep:

* The *driver of an old segment* has written everything in it before its last entry, or before what
  closed it. So it appends anew only what was there before (an append whose outcome it never heard of),
  word for word, and finds its next index taken by the entry that closed the segment: that one is kept.
* A *driver that wants the log*, and has seen an old segment as the newest, may close it a second time, and
  is none the wiser; but the head of the next segment exists: heads are kept, too.

So each segment leaves its head behind, and one entry more if a driver has taken over there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import LogIndex
from crosscut.protocol.log.entries import EpochClaimed, LogEntry, SegmentClosed, SegmentOpened

FIRST = LogIndex(1, 0)
"""Where the log begins."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log ends.

    Attributes:
        last: The newest entry; None if there is none.
        is_closed: Whether that has closed its segment.
    """

    last: LogIndex | None = None
    is_closed: bool = False

    @property
    def next(self) -> LogIndex:
        """Where the next entry belongs."""
        if self.last is None:
            return FIRST
        return head_after(self.last) if self.is_closed else following(self.last)


def following(index: LogIndex) -> LogIndex:
    """Return the next index in the same segment."""
    return LogIndex(index.segment, index.number + 1)


def head_after(index: LogIndex) -> LogIndex:
    """Return the index of the head of the next segment."""
    return LogIndex(index.segment + 1, 0)


def end_of(tail: Sequence[tuple[LogIndex, LogEntry]]) -> LogEnd:
    """Return where a log with the newest entries `tail`, in order, ends."""
    if not tail:
        return LogEnd()
    index, entry = tail[-1]
    return LogEnd(index, isinstance(entry, SegmentClosed))


def claim_of(entry: LogEntry) -> EpochClaimed | None:
    """Return the claim that `entry` is or repeats, None if it is neither."""
    if isinstance(entry, SegmentOpened):
        return entry.claim
    return entry if isinstance(entry, EpochClaimed) else None


def claims_in(entries: Iterable[LogEntry]) -> list[EpochClaimed]:
    """Return the claims that `entries` hold, the oldest first, each of them once."""
    claims = {claim.epoch: claim for one in entries if (claim := claim_of(one)) is not None}
    return list(claims.values())


def written_before(head: SegmentOpened, *, was_closed: bool) -> tuple[LogIndex, ...]:
    """Return the entries of the segment before `head` that can be deleted once nothing needs them.

    The newest comes first: when it is gone, no reader that goes back from the head comes to the others, or
    to an entry that a driver which has slept puts where one was.

    Args:
        was_closed: Whether its last entry closed it: that one stays, and so does its own head.
    """
    if head.previous is None:
        return ()
    last = head.previous.number - was_closed
    return tuple(LogIndex(head.previous.segment, number) for number in range(last, 0, -1))
