"""How fast a running job is: records by the clock, and by the processor time of its workers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

_WARM_UP_S = 3
_START_TIMEOUT_S = 60


class Rates(NamedTuple):
    """The latter is less noisy on a shared machine."""

    records_per_s: int
    records_per_cpu_s: int


def warm_up(job: Any) -> None:
    """Wait until records flow, and for a while longer.

    Raises:
        SystemExit: They never do.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while job.status != "running" or not job.report().records_read:
        if job.wait(0.1) or time.monotonic() > deadline:
            raise SystemExit("the job did not start")
    job.wait(_WARM_UP_S)


def measured(job: Any, seconds: float) -> Rates:
    """Return how fast the job is for so long."""
    before, started = _counted(job)
    cpu_before = cpu_seconds(job)
    job.wait(seconds)
    after, ended = _counted(job)
    cpu_after = cpu_seconds(job)
    return Rates(
        round((after - before) / (ended - started)), round((after - before) / (cpu_after - cpu_before))
    )


def cpu_seconds(job: Any) -> float:
    """Return the processor time of all workers."""
    ticks = 0
    for worker in job.workers():
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _counted(job: Any) -> tuple[int, float]:
    """Return records counted so far and the time, right after a heartbeat came in."""
    seen = counts(job)
    while True:
        job.wait(0.002)
        if counts(job) != seen:
            return counts(job), time.monotonic()


def counts(job: Any) -> int:
    """Return how many records have come to tasks after the sources."""
    return sum(one.records_in for one in job.report().tasks if "source" not in one.task.vertex)
