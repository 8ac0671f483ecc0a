"""kill -9 of a worker to records flowing again, on local Spark.

Prints a JSON line for each kill, and one with the median and the worst of them.
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
from bench.throughput import Discard, ZipfRecords, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=float, default=200_000)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    flow = cc.Flow("recovery")
    records = cc.generate(ZipfRecords(1 << 12), rate=options.rate)
    flow.source(records).key_by(first).count().sink(Discard())
    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=directory,
        checkpoint_interval="200ms",
        restart=cc.Restart(failures=options.kills + 1),
    )
    job = flow.start(settings)
    try:
        wait_until(job, lambda status: status.first_flow_ns)
        measured = []
        for number in range(options.kills):
            completed = job.report().checkpoints_completed
            wait_until(job, lambda status, n=completed: status.checkpoints_completed >= n + 3)
            victim = job.workers()[number % 2]
            killed_ns = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            wait_until(job, lambda status, n=number: len(status.recoveries) > n)
            seconds = (job.report().recoveries[-1].flowing_ns - killed_ns) / 1e9
            measured.append(seconds)
            line = {"benchmark": "recovery", "kill": number, "seconds": round(seconds, 3)}
            print(json.dumps(line), flush=True)
    finally:
        job.cancel()
        shutil.rmtree(directory)
    summary = {"median_s": round(statistics.median(measured), 3), "max_s": round(max(measured), 3)}
    print(json.dumps({"benchmark": "recovery", "kills": len(measured), **summary}))


def wait_until(job: Any, condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition(job.report()):
        if job.wait(0.01) or time.monotonic() > deadline:
            raise SystemExit(f"waited in vain: {job.progress()}")


if __name__ == "__main__":
    main()
