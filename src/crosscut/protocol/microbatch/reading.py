"""What a source task reads in a batch, when it is enough, and which splits have nothing. Pure decisions.

A split says by its lag that it has nothing, or that something waits. One that knows nothing of it (None) is
believed once it has given something in this batch. Before, it may only not have come by its first records
yet: each batch opens its readers anew. One that says that more is on its way is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable

from crosscut.foundation.frozen import dataclass
from crosscut.protocol.snapshots import TaskSnapshot

PATIENCE_MS = 5_000
"""A reader may need so long to come by its first records, or by the next ones where it says that some wait.
One that was given up before would never bring any."""


@dataclass(frozen=True, slots=True)
class SplitRead:
    """What is known of an open split.

    Attributes:
        has_given: Records, in this batch.
        lag: How many wait; None: it does not know.
        is_coming: More is on its way, as it says, or the answer whether there is more.
    """

    split: str
    has_given: bool
    lag: int | None
    is_coming: bool = False

    @property
    def reports_no_backlog(self) -> bool:
        """Whether it is believed to have nothing now, had it been asked."""
        return not self.is_coming and (self.lag == 0 or (self.lag is None and self.has_given))


def records_of_batch(records_max: int, begins_with: Iterable[TaskSnapshot], *, is_rescaled: bool) -> int:
    """Return how many records one source task may read in a batch.

    None, if the batch begins with records that an unaligned checkpoint of the other engine has found on their
    way, at another parallelism: newer records of a key may go another way than older ones then, since another
    task has taken over their split. So all that was on its way is processed before anything new is read.

    Args:
        records_max: As the setting says.
        begins_with: What the tasks of the batch are restored from.
    """
    if is_rescaled and any(one.snapshot.log for one in begins_with):
        return 0
    return records_max


def is_enough(splits: Iterable[SplitRead], waited_ms: float, coming_ms_max: float) -> bool:
    """Return whether nothing more is to be had for this batch, now that all splits say that they wait.

    Args:
        waited_ms: Since any of them has given something.
        coming_ms_max: For so long what is on its way is waited for.
    """
    reads = list(splits)
    patience_ms = coming_ms_max if any(one.is_coming for one in reads) else PATIENCE_MS
    return waited_ms >= patience_ms or all(one.reports_no_backlog for one in reads)


def empty_splits(splits: Iterable[SplitRead], waited_ms: float, *, is_full: bool) -> tuple[str, ...]:
    """Return those that have nothing to read, now that the batch has all its records.

    Args:
        is_full: The batch may hold no more: who does not know how much waits may have had no time to tell.
    """
    is_patient = not is_full and waited_ms >= PATIENCE_MS
    return tuple(
        one.split
        for one in splits
        if is_patient or (one.lag == 0 and not one.is_coming) or (not is_full and one.reports_no_backlog)
    )
