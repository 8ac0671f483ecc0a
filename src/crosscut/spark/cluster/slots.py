"""Who holds Spark's task slots: a job of this process keeps one for each worker, for as long as it runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from crosscut.errors import SettingsError


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """The slots of one job, until `release`."""

    context: SparkContext
    job: str
    count: int

    def release(self) -> None:
        """Give the slots back; may be called again."""
        with _lock:
            if self in _holdings:
                _holdings.remove(self)


_lock = threading.Lock()
_holdings: list[Holding] = []


def holders(context: SparkContext) -> list[Holding]:
    """Return the jobs of this process that run on `context`, the oldest first."""
    with _lock:
        return [one for one in _holdings if one.context is context]


def hold(context: SparkContext, job: str, count: int, total: int | None, advice: str) -> Holding:
    """Take `count` of the `total` slots of `context` for a job.

    Args:
        total: None: not known, so nothing is refused.
        advice: How there could be more slots, as "or ...".

    Raises:
        SettingsError: There are not so many, or other jobs hold them.
    """
    with _lock:
        others = [(one.job, one.count) for one in _holdings if one.context is context]
        if total is not None and (problem := lack(count, total, others)):
            raise SettingsError(f"{problem}, {advice}")
        holding = Holding(context, job, count)
        _holdings.append(holding)
        return holding


def lack(count: int, total: int, others: Sequence[tuple[str, int]]) -> str:
    """Return what is wrong with a job of `count` workers beside `others`, (name, slots), or ""."""
    if count + sum(held for _, held in others) <= total:
        return ""
    text = f"parallelism={count}, but Spark has {total} task slots in all"
    advice = "lower parallelism"
    if others and count <= total:
        text += ", of which " + " and ".join(f"job {name!r} holds {held}" for name, held in others)
        advice = f"wait for {'that job' if len(others) == 1 else 'one of them'} or stop it, {advice}"
    return f"{text}; each worker needs one for as long as the job runs: {advice}"
