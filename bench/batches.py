"""Micro-batches: what an empty one takes, and how many records a second full ones do.

A keyed count of (str, int) tuples, 100,000 keys, of which only the final counts are said. Beside the clock
stands the processor time of all processes of the job but the JVM: on a shared machine it says more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import crosscut as cc

KEYS = 100_000
EMPTY_S_WANTED, RECORDS_PER_S_WANTED = 0.4, 1_200_000


def record(number: int) -> tuple[str, int]:
    """Return a record; the multiplier spreads keys, and each comes as often."""
    return str(number * 2_654_435_761 % KEYS), number


def key_of(one: tuple[str, int]) -> str:
    return one[0]


class Silent(cc.Source):
    """Has nothing to give, and knows it."""

    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        return [cc.Split(str(number), 0) for number in range(parallelism)]

    def reader(self, split: cc.Split, position: Any) -> cc.SplitReader:
        return SilentReader()


class SilentReader(cc.SplitReader):
    position = 0
    lag = 0

    def read(self, limit: int) -> cc.Wait:
        return cc.Wait(1_000.0)


def python_seconds() -> float:
    """Return the processor time of this process and all Python processes below it."""
    pids = [os.getpid()]
    total_ticks = 0
    while pids:
        pid = pids.pop()
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += map(int, children.read_text().split())
        if "python" in Path(f"/proc/{pid}/comm").read_text():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total_ticks += int(fields[11]) + int(fields[12])
    return total_ticks / os.sysconf("SC_CLK_TCK")


def watched(
    flow: cc.Flow, directory: str, batches: int, **settings: Any
) -> tuple[list[dict[str, Any]], float]:
    """Run a job for so many batches after the first two; return their progress, and their processor time."""
    job = flow.start(
        cc.Settings(
            **{
                "engine": "micro-batch",
                "checkpoint_dir": f"{directory}/checkpoints",
                "checkpoint_interval": "10ms",
            }
            | settings
        )
    )
    seen: dict[int, dict[str, Any]] = {}
    began_s = 0.0
    while len(seen) < batches + 2 and not job.wait(0.02):
        progress = job.last_progress
        if progress is not None and progress["batchId"] not in seen:
            seen[progress["batchId"]] = progress
            if len(seen) == 2:
                began_s = python_seconds()
    took_s = python_seconds() - began_s
    job.cancel()
    return [seen[n] for n in sorted(seen)][2:], took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--records", type=int, default=2_000_000, help="in a batch")
    parser.add_argument("--batches", type=int, default=5)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    try:
        empty = cc.Flow("empty")
        empty.source(Silent()).key_by(key_of).count().sink(cc.files.write_jsonl(f"{directory}/empty"))
        found, _ = watched(empty, f"{directory}/a", 4 * options.batches, parallelism=options.parallelism)
        seconds = [one["batchDuration"] / 1_000 for one in found if not one["numInputRows"]]
        print(
            json.dumps(
                {
                    "benchmark": "batches",
                    "part": "empty",
                    "batch_s": round(statistics.median(seconds), 3),
                    "wanted_s": EMPTY_S_WANTED,
                    "all": [round(one, 3) for one in seconds],
                    "durationMs": found[-1]["durationMs"],
                    "load": os.getloadavg()[0],
                }
            ),
            flush=True,
        )
        full = cc.Flow("full")
        full.source(cc.generate(record)).key_by(key_of).count(emit="final").sink(
            cc.files.write_jsonl(f"{directory}/full")
        )
        found, took_s = watched(
            full,
            f"{directory}/b",
            options.batches,
            parallelism=options.parallelism,
            engine=cc.MicroBatch(records_max=options.records),
        )
        rows = sum(one["numInputRows"] for one in found)
        print(
            json.dumps(
                {
                    "benchmark": "batches",
                    "part": "full",
                    "records_per_s": round(statistics.median(one["processedRowsPerSecond"] for one in found)),
                    "wanted": RECORDS_PER_S_WANTED,
                    "records_per_python_s": round(rows / took_s) if took_s else None,
                    "batch_s": [one["batchDuration"] / 1_000 for one in found],
                    "durationMs": found[-1]["durationMs"],
                    "load": os.getloadavg()[0],
                }
            )
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
