"""What it costs to be looked at: one job, whose page is looked at for two seconds, and then not, many times.

While it is looked at, its page is asked for each second, as a browser does, and its metrics are scraped once,
by a process of its own. The worker notes, each time it reads, how many records it has read and how much
processor time it has had. So the rate of a window is exact, and what else the machine does meets both kinds
of windows alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import crosscut as cc
from bench.notes import Notes, NotingSource
from bench.rates import warm_up
from bench.throughput import TABLE_ROWS, Discard, ZipfRecords, first

SETTLED_S = 0.3
"""After looking has begun or ended."""
LOOK_EVERY_S = 1.0


# In the worker.


def noted(count: int) -> tuple[int, int, int]:
    """Return records, nanoseconds of processor time, and when."""
    return count, time.process_time_ns(), time.monotonic_ns()


# Whoever looks: `python -m bench.page --look LINK`.


def look(link: str) -> None:
    """Look at the page between a line "on" of the standard input and a line "off"."""
    address, _, token = link.partition("#")
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}
    is_on = threading.Event()

    def ask(path: str) -> None:
        with urllib.request.urlopen(
            urllib.request.Request(address + path, headers=headers), timeout=30
        ) as answer:
            answer.read()

    def keep_looking() -> None:
        while is_on.wait():
            ask("api/job")
            time.sleep(LOOK_EVERY_S)

    threading.Thread(target=keep_looking, daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "on":
            is_on.set()
            ask("metrics")
        else:
            is_on.clear()


# Windows.


class Window(NamedTuple):
    """What was done, and what it took: the worker's processor time, and the driver's."""

    records: int
    seconds: float
    worker_s: float
    driver_s: float


def window(notes: Notes, seconds: float) -> Window:
    """Return what is done within so long."""
    driver_s = time.process_time()
    count, cpu_ns, at_ns = notes.read()
    time.sleep(seconds)
    count_after, cpu_ns_after, at_ns_after = notes.read()
    return Window(
        count_after - count,
        (at_ns_after - at_ns) / 1e9,
        (cpu_ns_after - cpu_ns) / 1e9,
        time.process_time() - driver_s,
    )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and between what it lies in 95 of 100 cases, whatever the values are drawn from."""
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    # So many of each end may be left out; with less than six values none may.
    low = max(0, rank - 1)
    return statistics.median(ordered), ordered[low], ordered[count - 1 - low]


def compared(pairs: Sequence[tuple[Window, Window]]) -> dict[str, Any]:
    """Return what it costs to be looked at; each pair has the window in which it was looked at first."""

    def shown(values: Sequence[float], digits: int) -> dict[str, float]:
        names = ("median", "from", "to")
        return {name: round(one, digits) for name, one in zip(names, interval(values), strict=True)}

    spent = [seen.driver_s / seen.seconds - unseen.driver_s / unseen.seconds for seen, unseen in pairs]
    return {
        "pairs": len(pairs),
        "worker_records_per_cpu_s": shown(
            [(a.records / a.worker_s) / (b.records / b.worker_s) for a, b in pairs], 4
        ),
        "records_by_the_clock": shown(
            [(a.records / a.seconds) / (b.records / b.seconds) for a, b in pairs], 4
        ),
        "driver_ms_per_s": shown([1e3 * one for one in spent], 2),
        "driver_ms_per_s_unseen": round(
            1e3 * statistics.median(unseen.driver_s / unseen.seconds for _, unseen in pairs), 2
        ),
    }


def measured(pairs: int, seconds: float) -> list[tuple[Window, Window]]:
    """Run a job; return its windows, in pairs."""
    draw = random.Random(11)
    with tempfile.TemporaryDirectory(prefix="crosscut-bench-") as directory:
        notes = Notes(Path(directory) / "notes", count=3)
        flow = cc.Flow("page")
        source = NotingSource(cc.generate(ZipfRecords(TABLE_ROWS)), os.path.join(directory, "notes"), noted)
        flow.source(source).key_by(first).count().sink(Discard())
        settings = cc.Settings(
            parallelism=1,
            checkpoint_dir=os.path.join(directory, "checkpoints"),
            checkpoint_interval="1s",
            heartbeat_timeout="30s",
            start_timeout="120s",
            web=True,
            web_port=0,
        )
        job = flow.start(settings)
        looking = subprocess.Popen(
            [sys.executable, "-m", "bench.page", "--look", job.page], stdin=subprocess.PIPE, text=True
        )
        try:
            warm_up(job)
            found = []
            for _ in range(pairs):
                windows = {}
                # Neither of them always comes second.
                for is_seen in draw.sample((True, False), 2):
                    print("on" if is_seen else "off", file=looking.stdin, flush=True)
                    time.sleep(SETTLED_S)
                    windows[is_seen] = window(notes, seconds)
                found.append((windows[True], windows[False]))
            return found
        finally:
            looking.kill()
            looking.wait()
            job.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--look", metavar="LINK", help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each window")
    options = parser.parse_args()
    if options.look:
        look(options.look)
        return
    print(json.dumps({"benchmark": "page", **compared(measured(options.pairs, options.seconds))}))


if __name__ == "__main__":
    main()
