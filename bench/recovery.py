"""kill -9 of a worker to records flowing again, on local Spark, with more and more state.

A running count of so many keys, each of which has been counted before the first kill. Prints a JSON line
for each kill, and one for each size of the state with the median and the worst of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from typing import Any

import crosscut as cc
from bench.throughput import Discard, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=float, default=200_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    options = parser.parse_args()
    for keys in options.keys:
        run(keys, options.kills, options.rate)


class Keys:
    """Record i is (key, i): `count` keys in turn."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, i: int) -> tuple[str, int]:
        return f"key-{i % self.count:08d}", i


def run(keys: int, kills: int, rate: float) -> None:
    """Kill workers of a job with so much state, and print what was measured."""
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    flow = cc.Flow("recovery")
    flow.source(cc.generate(Keys(keys), rate=rate)).key_by(first).count().sink(Discard())
    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=directory,
        checkpoint_interval="200ms",
        restart=cc.Restart(failures=kills + 1),
    )
    job = flow.start(settings)
    try:
        wait_until(job, lambda status: status.state_keys == keys)
        measured = []
        for number in range(kills):
            completed = job.report().checkpoints_completed
            wait_until(job, lambda status, n=completed: status.checkpoints_completed >= n + 3)
            victim = job.workers()[number % 2]
            killed_ns = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            wait_until(job, lambda status, n=number: len(status.recoveries) > n)
            seconds = (job.report().recoveries[-1].flowing_ns - killed_ns) / 1e9
            measured.append(seconds)
            line = {"benchmark": "recovery", "keys": keys, "kill": number, "seconds": round(seconds, 3)}
            print(json.dumps(line), flush=True)
        state_bytes = job.checkpoints()[-1].state_bytes
    finally:
        job.cancel()
        shutil.rmtree(directory)
    summary = {"median_s": round(statistics.median(measured), 3), "max_s": round(max(measured), 3)}
    state = {"state_keys": keys, "state_bytes": state_bytes}
    print(json.dumps({"benchmark": "recovery", "kills": len(measured), **state, **summary}))


def wait_until(job: Any, condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition(job.report()):
        if job.wait(0.01) or time.monotonic() > deadline:
            raise SystemExit(f"waited in vain: {job.report()}")


if __name__ == "__main__":
    main()
