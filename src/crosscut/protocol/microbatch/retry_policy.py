"""Which failed attempts Spark retries, and which failures end the batch. Pure decisions.

To Spark, an attempt that returns a failure report has succeeded, so Spark kills its speculative copies, even
one that would have worked. Therefore, if Spark speculates, the first attempts that fail raise instead of
returning a report. There are fewer of them than the failures after which Spark gives the batch up, because
the cause has to be known before that.
"""

from __future__ import annotations

from collections.abc import Collection

from crosscut.foundation.ids import TaskId, WorkerIndex
from crosscut.protocol.job.deaths import SPARK_TASK_DIED
from crosscut.protocol.messages import FailureCause

TRIES = 2
"""Attempts at a partition that fail without a report: one and its copy. The next one returns a report."""

DEATHS_MAX = 5
"""After so many attempts in a row whose processes have died, the next one only returns a failure report.
Spark itself would go on: where Crosscut starts Spark, it allows a million failures."""


_DEATHS = ("Python worker exited unexpectedly", "ExecutorLostFailure")
"""What Spark's message contains if it gives a batch up because a process has died."""


def tries(*, speculates: bool, failures_max: int) -> int:
    """Return how many attempts at a partition may fail without a report.

    Args:
        speculates: Spark starts copies of slow attempts. Otherwise there is no copy that could succeed.
        failures_max: The number of failed attempts at a partition after which Spark gives up.
    """
    return max(0, min(TRIES, failures_max - 1)) if speculates else 0


def goes_back(failed: TaskId, own: Collection[str], attempt: int, tries: int) -> bool:
    """Return whether an attempt with a failed task raises, instead of returning the failure report.

    Args:
        own: The vertices of its stage. A failure of an earlier stage recurs in each attempt.
        attempt: Its number, from 0 on.
        tries: The result of `tries`.
    """
    return failed.vertex in own and attempt < tries


def deaths_before(attempt: int, tries: int) -> int:
    """Return how many attempts have ended without a report because their processes died.

    Args:
        attempt: The number of the one that follows, from 0 on.
        tries: So many may have failed, or run beside it.
    """
    return max(0, attempt - tries)


def dead(deaths: int, vertices: Collection[str], index: int, n: int) -> FailureCause | None:
    """Return the failure of a partition whose processes keep dying; None: make another attempt.

    Args:
        vertices: Of the stage.
        index: Of the partition.
        n: The batch.
    """
    if deaths < DEATHS_MAX:
        return None
    text = (
        f"{deaths} attempts in a row at partition {index} of {', '.join(sorted(vertices))} in batch {n} have "
        f"ended without an error message, which most often means that their processes have died"
    )
    return FailureCause("WorkerLost", text, is_transient=True, worker=WorkerIndex(index))


def given_up(message: str) -> FailureCause:
    """Return the failure of a batch that Spark has given up.

    Args:
        message: Spark's message.
    """
    kind = SPARK_TASK_DIED if any(one in message for one in _DEATHS) else "SparkJobEnded"
    return FailureCause(kind, f"Spark ended the batch: {message}", is_transient=True)
