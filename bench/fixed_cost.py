"""Sources and sinks with a fixed cost a call, at default settings: records/s against what is possible.

Prints a JSON line for each cost and place. Possible is a full batch for each fixed cost, and what the engine
takes for as many records without any. `checkpoint_ms` says whether barriers pass in time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from typing import Any

import crosscut as cc
from bench.rates import measured, warm_up
from bench.throughput import Discard, DiscardWriter

KEYS = 1_000
SLEEPS = 100


class Numbers(cc.Source):
    """Endless numbers, one split a task; each read takes `fixed_s` more."""

    def __init__(self, fixed_s: float) -> None:
        self.fixed_s = fixed_s

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split(f"numbers-{index}", 0) for index in range(parallelism)]

    def reader(self, split: cc.Split, position: Any) -> cc.SplitReader:
        return _NumbersReader(self.fixed_s, int(position))


class _NumbersReader(cc.SplitReader):
    def __init__(self, fixed_s: float, position: int) -> None:
        self._fixed_s = fixed_s
        self._position = position

    @property
    def position(self) -> Any:
        return self._position

    def read(self, limit: int) -> list[int]:
        if self._fixed_s:
            time.sleep(self._fixed_s)
        first = self._position
        self._position = first + limit
        return list(range(first, first + limit))


class Costly(Discard):
    """A sink with nothing behind it, but for a fixed cost a write."""

    def __init__(self, fixed_s: float) -> None:
        self.fixed_s = fixed_s

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        return _CostlyWriter(self.fixed_s)


class _CostlyWriter(DiscardWriter):
    def __init__(self, fixed_s: float) -> None:
        self._fixed_s = fixed_s

    def write(self, records: list[Any]) -> None:
        if self._fixed_s:
            time.sleep(self._fixed_s)


def key_of(number: int) -> int:
    return number % KEYS


def run(place: str, fixed_ms: float, seconds: float, parallelism: int) -> dict[str, Any]:
    """Run with that cost in the source or in the sink for `seconds` once the job is warm."""
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    flow = cc.Flow("fixed-cost")
    source = Numbers(fixed_ms / 1_000 if place == "source" else 0)
    sink = Costly(fixed_ms / 1_000 if place == "sink" else 0)
    flow.source(source).key_by(key_of).count().sink(sink)
    job = flow.start(cc.Settings(parallelism=parallelism, checkpoint_dir=directory))
    try:
        warm_up(job)
        rates = measured(job, seconds)
        durations = [one.duration_ms for one in job.checkpoints()]
    finally:
        job.cancel()
        shutil.rmtree(directory)
    return {
        "benchmark": "fixed_cost",
        "place": place,
        "fixed_ms": fixed_ms,
        "records_per_s": rates.records_per_s,
        "checkpoint_ms": round(statistics.median(durations), 1) if durations else None,
        "checkpoint_ms_max": max(durations, default=None),
    }


def lasting_ms(fixed_ms: float) -> float:
    """Return how long such a sleep lasts here: under other load far longer than it is asked to."""
    started = time.perf_counter()
    for _ in range(SLEEPS):
        time.sleep(fixed_ms / 1_000)
    return (time.perf_counter() - started) * 1_000 / SLEEPS


def possible_per_s(fixed_ms: float, free_per_s: float, parallelism: int) -> float:
    """Return the records/s of full batches, given those without any fixed cost."""
    batch_rows = cc.Settings().batch_rows * parallelism
    return batch_rows / (fixed_ms / 1_000 + batch_rows / free_per_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--fixed-ms", type=float, nargs="+", default=[0.5, 1.5, 5, 20])
    parser.add_argument("--place", choices=["source", "sink"], nargs="+", default=["source", "sink"])
    options = parser.parse_args()
    for place in options.place:
        free_per_s = 0.0
        for fixed_ms in [0.0, *options.fixed_ms]:
            before_ms = lasting_ms(fixed_ms) if fixed_ms else 0.0
            result = run(place, fixed_ms, options.seconds, options.parallelism)
            cost_ms = (before_ms + lasting_ms(fixed_ms)) / 2 if fixed_ms else 0.0
            free_per_s = free_per_s or result["records_per_s"]
            possible = possible_per_s(cost_ms, free_per_s, options.parallelism)
            result["lasting_ms"] = round(cost_ms, 2)
            result["possible"] = round(possible)
            result["share"] = round(result["records_per_s"] / possible, 3)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
