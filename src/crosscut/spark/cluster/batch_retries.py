"""Failures of attempts as Spark sees them; `crosscut.protocol.microbatch.retry_policy` decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from crosscut.microbatch.ports import Routed
from crosscut.protocol.microbatch import retry_policy

FAILURES_MAX = 4
"""Spark's default for `spark.task.maxFailures`."""


class TriedError(Exception):
    """An attempt has failed; Spark makes another one, or has one already."""


def tries_of(master: str, conf: Callable[[str], str | None]) -> int:
    """Return how many attempts at a partition may fail before the cause counts.

    Args:
        master: `spark.master`: a Spark in one process never speculates.
        conf: Gives a configuration value, or None if it is not set.
    """
    is_one_process = master.startswith("local") and not master.startswith("local-cluster")
    speculates = (conf("spark.speculation") or "").strip().lower() == "true"
    configured = (conf("spark.task.maxFailures") or "").strip()
    return retry_policy.tries(
        speculates=speculates and not is_one_process,
        failures_max=int(configured) if configured.isdecimal() else FAILURES_MAX,
    )


def tried(
    shuffle_blocks: Iterable[Routed], own: Collection[str], attempt: int, tries: int
) -> Iterator[Routed]:
    """Yield what an attempt says, unless it has failed and another one is to be made.

    Args:
        own: The vertices of its stage.
        attempt: Its number, which Spark counts from 0 on.

    Raises:
        TriedError: It has failed; nothing that it has said counts.
    """
    found = iter(shuffle_blocks)
    for target, shuffle_block in found:
        failure = shuffle_block.failure
        if failure is not None and retry_policy.goes_back(failure.task, own, attempt, tries):
            for _ in found:
                """To its end, which closes what the attempt has open."""
            cause = failure.cause
            raise TriedError(f"task {failure.task} failed: {cause.message}\n{cause.traceback}")
        yield target, shuffle_block
