"""Inputs of unlike speed, on real workers: what is blocked goes to disk, and the output is exact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from jobs import NumberedJob, Record, added, hold, key_of, lose, nothing, until
from proving import proven

import crosscut as cc


def newest(_: Record, one: Record) -> Record:
    return one


def slowly(update: tuple[str, Record]) -> Record:
    # User code that takes its time, not a test that waits: nothing is asserted about how long it took.
    time.sleep(0.002)
    return update[1]


class Skewed(NumberedJob):
    """One branch goes through a slow task, so its barrier comes long after that of the other one."""

    def flow(self) -> cc.Flow:
        flow = cc.Flow("skewed")
        first, streams = 0, []
        for branch, count in enumerate(self.counts()):
            source = cc.generate(NumbersFrom(first), count=count)
            streams.append(flow.source(source).named(f"numbers-{branch}"))
            first += count
        slow = streams[1].key_by(key_of).reduce(newest).named("newest").map(slowly).named("slowly")
        merged = streams[0].union(slow)
        merged.key_by(key_of).aggregate(nothing, added).named("sums").sink(self.sink())
        return flow


class NumbersFrom:
    def __init__(self, first: int) -> None:
        self.first = first

    def __call__(self, index: int) -> Record:
        number = self.first + index
        return f"key-{number % 499}", number


@pytest.mark.parametrize("snapshots", [proven("aligned"), "aligned, unaligned after 300ms"])
def test_what_is_blocked_is_spilled_and_a_kill_in_the_middle_of_it_costs_no_record(
    tmp_path: Path, started: Any, snapshots: str
) -> None:
    """A2, J1."""
    # Batches that wait are joined up to `batch_rows`, and a channel inside a worker holds a few before it
    # spills. With the default, all that comes in within 300 ms fits into memory; then the barrier overtakes.
    engine = cc.Continuous(spill_bytes=1 << 30, channel_bytes=65_536)
    settings = {"snapshots": snapshots, "engine": engine, "batch_rows": 20}
    numbered = Skewed(tmp_path, count=40_000, branches=2, settings=settings)

    class Gated:
        def start(self, spark: Any) -> Any:
            flow = numbered.flow()
            hold(flow, tmp_path / "gate", 4_000)
            return flow.start(numbered.all_settings(), spark=spark)

    job = started(Gated())
    until(lambda: job.report().spilled_bytes > 0, "something to be spilled")
    lose(job, started, 0)
    completed = job.report().checkpoints_completed
    until(lambda: job.report().checkpoints_completed > completed, "a checkpoint")
    lose(job, started, 1)
    (tmp_path / "gate").touch()
    started.finish(job)
    assert job.status == "finished"
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
