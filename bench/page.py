"""What it costs to be looked at: two jobs at the same time, one of them with a page that is looked at.

It is asked for each second, as a browser does, and its metrics are scraped each five; marks follow its
records. Both write down what they look like each second, as every job does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from typing import Any

import crosscut as cc
from bench.rates import counts, cpu_seconds
from bench.throughput import flow_of

START_S = 120.0
WARM_S = 3.0


def started(place: str, *, is_watched: bool) -> Any:
    settings = cc.Settings(
        parallelism=1,
        checkpoint_dir=place,
        checkpoint_interval="1s",
        heartbeat_timeout="30s",
        start_timeout="120s",
        web=is_watched,
        latency_interval="1s" if is_watched else 0,
        web_port=0,
    )
    return flow_of("count").start(settings)


def look(job: Any, over: threading.Event) -> None:
    """Look at the job's page as a browser does, and scrape its metrics."""
    address, _, token = job.page.partition("#")
    second = 0
    while not over.wait(1.0):
        for path in ("api/job", "metrics") if second % 5 == 0 else ("api/job",):
            request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                answer.read()
        second += 1


def pair(seconds: float, *, watched_first: bool) -> dict[str, Any]:
    """Run both at the same time; return the watched one's rates in those of the other."""
    over = threading.Event()
    with ExitStack() as stack:
        jobs = {}
        for is_watched in (watched_first, not watched_first):
            place = tempfile.mkdtemp(prefix="crosscut-bench-")
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            jobs[is_watched] = started(place, is_watched=is_watched)
            stack.callback(jobs[is_watched].cancel)
        looking = threading.Thread(target=look, args=(jobs[True], over))
        deadline = time.monotonic() + START_S
        while not all(job.status == "running" and counts(job) for job in jobs.values()):
            if any(job.wait(0.1) for job in jobs.values()) or time.monotonic() > deadline:
                raise SystemExit("the jobs did not start")
        looking.start()
        stack.callback(looking.join)
        stack.callback(over.set)
        time.sleep(WARM_S)
        before = {one: (counts(job), cpu_seconds(job)) for one, job in jobs.items()}
        time.sleep(seconds)
        after = {one: (counts(job), cpu_seconds(job)) for one, job in jobs.items()}
    records = {one: after[one][0] - before[one][0] for one in jobs}
    per_cpu = {one: records[one] / (after[one][1] - before[one][1]) for one in jobs}
    return {
        "benchmark": "page",
        "records": [records[True], records[False]],
        "watched/not": round(records[True] / records[False], 4),
        "per_cpu": round(per_cpu[True] / per_cpu[False], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    found = []
    for number in range(options.rounds):
        # Who starts first has an advantage: each of them half of the time.
        found.append(pair(options.seconds, watched_first=number % 2 == 0))
        print(json.dumps(found[-1]), flush=True)
    medians = {name: statistics.median(one[name] for one in found) for name in ("watched/not", "per_cpu")}
    print(json.dumps({"benchmark": "page", "medians": medians}))


if __name__ == "__main__":
    main()
