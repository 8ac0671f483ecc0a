"""Latency of committed output, and throughput of the same flow: logs of workers beside checkpoints.

A keyed count behind a shuffle, into JSON lines. A reader looks into the directory of the sink every
`POLL_MS`, takes the files that it finds away, and notes how old their records are: from when they were made
to when somebody else could read them. The variants run one after the other, `--rounds` times.

`files` and `objects`: `cc.Logged(log=...)`. `1s` and `100ms`: aligned checkpoints at that interval.
`commits` counts files a second and task; `cores` is what the workers use.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import crosscut as cc
from bench.latency import Paced, count, first, percentiles
from bench.rates import cpu_seconds
from bench.recovery import wait_until

VARIANTS: dict[str, dict[str, Any]] = {
    "files": {"snapshots": cc.Logged(log="files")},
    "objects": {"snapshots": cc.Logged(log="objects")},
    "100ms": {"checkpoint_interval": "100ms"},
    "1s": {"checkpoint_interval": "1s"},
}
POLL_MS = 2


def made_of(counted: tuple[str, tuple[int, int, int]]) -> int:
    return counted[1][2]


def taken(out: Path) -> list[tuple[int, int]]:
    """Take away what is committed: return for each record when it was found, and when it was made."""
    found: list[tuple[int, int]] = []
    names = [name for name in os.listdir(out) if name.startswith("part-")] if out.exists() else []
    for name in names:
        now_ns = time.monotonic_ns()
        path = out / name
        found += [(now_ns, int(line)) for line in path.read_text().split()]
        path.unlink()
    return found


def run(variant: str, rate: float, seconds: float, warm_up: float, parallelism: int) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="crosscut-bench-"))
    flow = cc.Flow("logged")
    records = flow.source(Paced(rate, seconds + warm_up + 1))
    records.key_by(first).aggregate((0, 0, 0), count).map(made_of).sink(
        cc.files.write_jsonl(directory / "out")
    )
    settings = cc.Settings(
        parallelism=parallelism, checkpoint_dir=directory / "checkpoints", **VARIANTS[variant]
    )
    try:
        job = flow.start(settings)
        wait_until(job, lambda status: status.first_flow_ns > 0)
        job.wait(warm_up)
        before_s, began_s, begin_ns = cpu_seconds(job), time.monotonic(), time.monotonic_ns()
        taken(directory / "out")
        found: list[tuple[int, int]] = []
        commits = 0
        while time.monotonic() < began_s + seconds:
            more = taken(directory / "out")
            commits += len({now for now, _ in more})
            found += more
            time.sleep(POLL_MS / 1_000)  # between two looks at the output, until the deadline of the round
        cores = (cpu_seconds(job) - before_s) / (time.monotonic() - began_s)
        job.wait()
    finally:
        shutil.rmtree(directory)
    ages = [now - made for now, made in found if made >= begin_ns]
    return {
        "benchmark": "logged",
        "variant": variant,
        "rate": rate,
        "parallelism": parallelism,
        "records": len(ages),
        "committed_ms": percentiles(ages),
        "commits": round(commits / seconds / parallelism, 1),
        "cores": round(cores, 3),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", choices=VARIANTS, nargs="+", default=list(VARIANTS))
    parser.add_argument("--rates", type=float, nargs="+", default=[2_000, 10_000])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=3)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for rate in options.rates:
        runs: dict[str, list[dict[str, float]]] = {one: [] for one in options.variants}
        for _ in range(options.rounds):
            for variant in options.variants:
                found = run(variant, rate, options.seconds, options.warm_up, options.parallelism)
                runs[variant].append(found["committed_ms"])
                print(json.dumps(found), flush=True)
        if options.rounds > 1:
            for variant, ages in runs.items():
                medians = {name: statistics.median(one[name] for one in ages) for name in ("p50", "p99")}
                print(json.dumps({"benchmark": "logged", "variant": variant, "rate": rate, **medians}))


if __name__ == "__main__":
    main()
