"""Tumbling windows: records/s with 1,000 keys and windows of 10 s, against a running count of the same.

Records are tuples `(key, time, value)`; a second of event time holds 40,000 of them. Prints a JSON line for
each run, the kinds in turn, and one with the medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from typing import Any

import crosscut as cc
from bench.rates import measured, warm_up
from bench.throughput import Discard

KEYS = 1_000
KINDS = ["count", "window count", "window sum", "window reduce"]
RECORDS_PER_MS = 40
WINDOW = "10s"
START_MS = 1_714_564_800_000


NAMES = [f"key-{number:04d}" for number in range(KEYS)]


def reading(i: int) -> tuple[str, int, int]:
    """Return record i: (key, time, value). Every key has its turn, `RECORDS_PER_MS` records a millisecond."""
    return (NAMES[i * 7 % KEYS], START_MS + i // RECORDS_PER_MS, i)


def key_of(reading: tuple[str, int, int]) -> str:
    return reading[0]


def time_of(reading: tuple[str, int, int]) -> int:
    return reading[1]


def value_of(reading: tuple[str, int, int]) -> int:
    return reading[2]


def flow_of(kind: str) -> cc.Flow:
    """Return a flow; `kind`: "count" without event time, "window count", "window sum", "window reduce"."""
    flow = cc.Flow("windows")
    readings: Any = flow.source(cc.generate(reading)).named("readings")
    if kind == "count":
        readings.key_by(key_of).count().named("operator").sink(Discard()).named("out")
        return flow
    windowed = readings.assign_timestamps(time_of).named("times").key_by(key_of).window(cc.tumbling(WINDOW))
    if kind == "window count":
        results = windowed.count()
    elif kind == "window sum":
        results = windowed.sum(value_of)
    else:
        results = windowed.reduce(max)
    results.named("operator").sink(Discard()).named("out")
    return flow


def run(kind: str, seconds: float) -> dict[str, Any]:
    """Run for `seconds` once the job is warm; return what was measured."""
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    settings = cc.Settings(
        parallelism=2, checkpoint_dir=directory, checkpoint_interval="1s", heartbeat_timeout="4s"
    )
    job = flow_of(kind).start(settings)
    try:
        warm_up(job)
        rates = measured(job, seconds)
        state_keys = job.report().state_keys
        written = sum(one.records_out for one in job.report().tasks if one.task.vertex == "operator")
    finally:
        job.cancel()
        shutil.rmtree(directory)
    return {
        "benchmark": "windows",
        "kind": kind,
        **rates._asdict(),
        "state_keys": state_keys,
        "results": written,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in arguments.kinds}
    for _ in range(arguments.rounds):
        for kind in arguments.kinds:
            found[kind].append(run(kind, arguments.seconds))
            print(json.dumps(found[kind][-1]), flush=True)
    medians = {
        kind: {
            name: round(statistics.median(one[name] for one in runs))
            for name in ("records_per_s", "records_per_cpu_s")
        }
        for kind, runs in found.items()
    }
    print(json.dumps({"benchmark": "windows", "medians": medians}), flush=True)


if __name__ == "__main__":
    main()
