"""Memory of the workers while the sink is far slower than the source: it must not grow.

The source could make about a million records a second; the sink sleeps 100 microseconds for each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import crosscut as cc
from bench.throughput import Discard, DiscardWriter


class Slow(Discard):
    """Takes 100 microseconds for each record."""

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        return _SlowWriter()


class _SlowWriter(DiscardWriter):
    def write(self, records: list[Any]) -> None:
        time.sleep(len(records) * 100e-6)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    flow = cc.Flow("memory")
    records = cc.generate(lambda i: (f"key-{i % 1000}", "x" * 100, i))
    flow.source(records).key_by(lambda record: record[0]).reduce(lambda old, new: new).sink(Slow())
    job = flow.start(cc.Settings(parallelism=2, checkpoint_dir=directory))
    try:
        while not job.report().first_flow_ns:
            job.wait(0.1)
        job.wait(5)
        pids = [worker.pid for worker in job.workers()]
        samples = []
        for _ in range(max(2, int(options.seconds / 2))):
            samples.append(sum(map(resident_mib, pids)))
            job.wait(2)
        status = job.report()
    finally:
        job.cancel()
        shutil.rmtree(directory)
    print(
        json.dumps(
            {
                "benchmark": "memory",
                "seconds": options.seconds,
                "first_mib": round(samples[0], 1),
                "last_mib": round(samples[-1], 1),
                "max_mib": round(max(samples), 1),
                "records_read": status.records_read,
                "queued_records": status.queued_records,
                "checkpoints": status.checkpoints_completed,
                "checkpoint_ms": [one.duration_ms for one in status.checkpoints][-5:],
            }
        )
    )


if __name__ == "__main__":
    main()
