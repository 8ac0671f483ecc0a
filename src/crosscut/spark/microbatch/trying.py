"""What Spark hears of an attempt that fails: where it makes others beside it, not the cause at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from crosscut.spark.microbatch.surroundings import Routed

TRIES = 2
"""Attempts at a partition that fail without a word, where Spark speculates: one, and the one beside it. The
cause of the next one counts."""

FAILURES_MAX = 4
"""Spark's default for `spark.task.maxFailures`."""


class TriedError(Exception):
    """An attempt has failed; Spark makes another one, or has one already."""


def tries_of(master: str, conf: Callable[[str], str | None]) -> int:
    """Return how many attempts at a partition may fail before the cause counts.

    An attempt that says why it has failed has come to its end, for Spark, which then ends the others: also
    one that would have succeeded, elsewhere. So where there may be another, the first ones fail as Spark
    knows it: no more of them than Spark bears.

    Args:
        master: `spark.master`: a Spark in one process never speculates.
        conf: Gives a configuration value, or None if it is not set.
    """
    is_one_process = master.startswith("local") and not master.startswith("local-cluster")
    if is_one_process or (conf("spark.speculation") or "").strip().lower() != "true":
        return 0
    said = (conf("spark.task.maxFailures") or "").strip()
    return max(0, min(TRIES, (int(said) if said.isdecimal() else FAILURES_MAX) - 1))


def tried(parcels: Iterable[Routed], own: Collection[str], attempt: int, tries: int) -> Iterator[Routed]:
    """Yield what an attempt says, unless it has failed and another one is to be made.

    Args:
        own: The vertices of its stage: what failed before it was tried there.
        attempt: Its number, which Spark counts from 0 on.

    Raises:
        TriedError: It has failed; nothing that it has said counts.
    """
    found = iter(parcels)
    for target, parcel in found:
        failure = parcel.failure
        if failure is not None and attempt < tries and failure.task.vertex in own:
            for _ in found:
                """To its end, which closes what the attempt has open."""
            cause = failure.cause
            raise TriedError(f"task {failure.task} failed: {cause.message}\n{cause.traceback}")
        yield target, parcel
