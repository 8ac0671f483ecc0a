"""Which failures of an attempt go back to Spark, which then makes another one, and which end the batch.

An attempt that says why it has failed has come to its end, for Spark, which then ends the others: also one
that would have succeeded, elsewhere. So where there may be another beside it, the first ones fail as Spark
knows it, without a word: no more of them than Spark bears, for it must not give the batch up before the cause
is known. Pure decisions.
"""

from __future__ import annotations

from collections.abc import Collection

from crosscut.foundation.ids import TaskId, WorkerIndex
from crosscut.protocol.messages import FailureCause

TRIES = 2
"""Attempts at a partition that fail without a word: one, and the one beside it. The next says why."""

DEATHS_MAX = 5
"""Attempts in a row whose processes end before the next one says so, and does nothing else. Spark might make
them for ever: where Crosscut starts it, it allows a million."""


def tries(*, speculates: bool, failures_max: int) -> int:
    """Return how many attempts at a partition may fail without a word.

    Args:
        speculates: Spark makes attempts beside those that take long. Else there is nobody to wait for.
        failures_max: So many attempts at a partition may fail before Spark gives up.
    """
    return max(0, min(TRIES, failures_max - 1)) if speculates else 0


def goes_back(failed: TaskId, own: Collection[str], attempt: int, tries: int) -> bool:
    """Tell whether an attempt that hears of a failed task is to fail, rather than to pass the cause on.

    Args:
        own: The vertices of its stage: what failed before it was tried there, and comes again each time.
        attempt: Its number, from 0 on.
        tries: See there.
    """
    return failed.vertex in own and attempt < tries


def deaths_before(attempt: int, tries: int) -> int:
    """Return how many attempts have ended without a word because their processes ended.

    Args:
        attempt: The number of the one that follows, from 0 on.
        tries: So many may have failed, or run beside it.
    """
    return max(0, attempt - tries)


def dead(deaths: int, vertices: Collection[str], index: int, n: int) -> FailureCause | None:
    """Return the failure of a partition whose processes end again and again; None: another attempt is made.

    Args:
        vertices: Of the stage.
        index: Of the partition.
        n: The batch.
    """
    if deaths < DEATHS_MAX:
        return None
    text = (
        f"{deaths} processes in a row have ended at partition {index} of {', '.join(sorted(vertices))} in "
        f"batch {n}, without a word"
    )
    return FailureCause("WorkerLost", text, worker=WorkerIndex(index))
