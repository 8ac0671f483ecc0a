"""Latency of a record through a keyed shuffle into a stateful count, at a fixed rate, checkpoints on.

Two latencies of every record after the warm-up, until the sink has it, over all workers: from the
moment it was made (what the engine adds), and from the moment it was due at that rate (what the engine
adds plus how late the source woke up; a stall of the source can't hide in it). `cores` is what the workers
use meanwhile: a loop that spins has good percentiles, too.

`paced`: a source that says how long to wait. `socket`: lines that another process sends at that rate; `made`
is when it sends them. `idle`: the job of `paced` with a record a second, for the cores alone. For Kafka see
`bench.kafka`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import crosscut as cc
from bench.rates import cpu_seconds
from bench.recovery import wait_until
from bench.throughput import DiscardWriter

KEYS = 10_000
SOURCES = ("paced", "socket", "idle")
IDLE_RATE = 1.0


class Paced(cc.Source):
    """`rate` records a second in all, each (key, due_ns, made_ns)."""

    def __init__(self, rate: float, seconds: float) -> None:
        self.rate, self.seconds = rate, seconds

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split(str(index), 0, [index, parallelism]) for index in range(parallelism)]

    def reader(self, split: cc.Split, position: Any) -> cc.SplitReader:
        index, of = cast(list[int], split.detail)
        return _PacedReader(self, index, of, position)


class _PacedReader(cc.SplitReader):
    def __init__(self, source: Paced, index: int, of: int, position: int) -> None:
        self.interval_ns = 1e9 * of / source.rate
        self.count = int(source.seconds * source.rate / of)
        self.made = position
        self.start_ns = time.monotonic_ns() + int(self.interval_ns * index / of)
        self.first = index

    @property
    def position(self) -> int:
        return self.made

    def read(self, limit: int) -> list[Any] | cc.Wait | cc.EndOfSplit:
        if self.made >= self.count:
            return cc.EndOfSplit()
        now_ns = time.monotonic_ns()
        due_ns = self.start_ns + self.made * self.interval_ns
        if due_ns > now_ns:
            return cc.Wait((due_ns - now_ns) / 1e6)
        records: list[Any] = []
        while due_ns <= now_ns and len(records) < limit and self.made < self.count:
            records.append((f"key-{(self.made * 7919 + self.first) % KEYS}", int(due_ns), now_ns))
            self.made += 1
            due_ns = self.start_ns + self.made * self.interval_ns
        return records


class Latencies(cc.Sink):
    """Keeps the latencies of what it is given, and leaves them in `directory` at the end."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        return _LatencyWriter(Path(self.directory) / str(context.task))


class _LatencyWriter(DiscardWriter):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = array("q")

    def write(self, records: list[Any]) -> None:
        now_ns = time.monotonic_ns()
        for _, (_, due_ns, made_ns) in records:
            self.rows.extend((now_ns, now_ns - due_ns, now_ns - made_ns))

    def close(self) -> None:
        self.path.write_bytes(self.rows.tobytes())


def first(record: tuple[str, int, int]) -> str:
    return record[0]


def count(state: tuple[int, int, int], record: tuple[str, int, int]) -> tuple[int, int, int]:
    return (state[0] + 1, record[1], record[2])


def parsed(line: str) -> tuple[str, int, int]:
    key, due_ns, made_ns = line.split()
    return key, int(due_ns), int(made_ns)


def serve(rate: float, seconds: float) -> None:
    """Send lines to the first one that connects, each at its time; print the port first."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
    reader = _PacedReader(Paced(rate, seconds), 0, 1, 0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while not isinstance(found := reader.read(1_000), cc.EndOfSplit):
            if isinstance(found, cc.Wait):
                time.sleep(found.delay_ms / 1_000)
            else:
                lines = [f"{key} {due_ns} {made_ns}\n" for key, due_ns, made_ns in found]
                connection.sendall("".join(lines).encode())


def run(source: str, rate: float, seconds: float, warm_up: float, parallelism: int = 2) -> dict[str, Any]:
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    lasts_s = seconds + warm_up + 1
    flow = cc.Flow("latency")
    with ExitStack() as ends:
        ends.callback(shutil.rmtree, directory)
        if source == "socket":
            command = [sys.executable, "-m", "bench.latency", "--serve", str(rate), str(lasts_s)]
            sender = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            ends.callback(sender.kill)
            if sender.stdout is None:
                raise SystemExit("no output")
            port = int(sender.stdout.readline())
            records = flow.source(cc.socket(f"127.0.0.1:{port}")).map(parsed)
        else:
            records = flow.source(Paced(rate, lasts_s))
        records.key_by(first).aggregate((0, 0, 0), count).sink(Latencies(directory))
        settings = cc.Settings(parallelism=parallelism, checkpoint_dir=f"{directory}/checkpoints")
        job = flow.start(settings)
        wait_until(job, lambda status: status.first_flow_ns > 0)
        job.wait(warm_up)
        before_s, began_s = cpu_seconds(job), time.monotonic()
        job.wait(seconds)
        cores = (cpu_seconds(job) - before_s) / (time.monotonic() - began_s)
        job.wait()
        checkpoints = job.checkpoints()
        rows = array("q")
        for path in Path(directory).glob("*]"):
            rows.frombytes(path.read_bytes())
    seen = list(zip(rows[0::3], rows[1::3], rows[2::3], strict=True))
    begin_ns = min(now for now, _, _ in seen) + int(warm_up * 1e9)
    kept = [(due, made) for now, due, made in seen if now >= begin_ns]
    return {
        "benchmark": "latency",
        "source": source,
        "rate": rate,
        "parallelism": parallelism,
        "cores": round(cores, 3),
        "cores_a_worker": round(cores / parallelism, 4),
        "records": len(kept),
        "checkpoints": len(checkpoints),
        "from_made_ms": percentiles([made for _, made in kept]),
        "from_due_ms": percentiles([due for due, _ in kept]),
        "load": os.getloadavg()[0],
    }


def percentiles(values_ns: list[int]) -> dict[str, float]:
    ordered = sorted(values_ns)
    at = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] / 1e6, 3)
        for name, part in at.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", choices=SOURCES, nargs="+", default=SOURCES)
    parser.add_argument("--rates", type=float, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm-up", type=float, default=3)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--serve", type=float, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    for source in options.sources:
        for rate in [IDLE_RATE] if source == "idle" else options.rates:
            found = run(source, rate, options.seconds, options.warm_up, options.parallelism)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
