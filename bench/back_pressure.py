"""How long a checkpoint takes when the sink is k times too slow: unaligned against aligned barriers.

The source offers records at a fixed rate; each sink task needs k times as long for a record as it may.
So everything in front of the sink is full, up to `channel_bytes` a channel. An aligned barrier waits
behind all of that; an unaligned one overtakes it, and the snapshot holds what was overtaken.

Checkpoints are taken one after the other on request, from trigger to durable log entry. One that takes
longer than `--patience` is not waited for. Channels are small here (64 KiB, 100 records a batch), so that
aligned ones end at all: what they wait for grows with the channels, and the default is 4 MiB.

Prints a JSON line for each protocol and k, and writes them and the plot to bench/plots.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import crosscut as cc
from bench import plot
from bench.throughput import Discard, DiscardWriter
from crosscut.errors import CheckpointError
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store

PROTOCOLS = ("aligned", "aligned, unaligned after 100ms", "unaligned")
SLOWNESS = (1, 2, 5, 10, 20, 50)
PARALLELISM = 2


class Slow(Discard):
    """Takes `record_s` for each record."""

    def __init__(self, record_s: float) -> None:
        self.record_s = record_s

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        return _SlowWriter(self.record_s)


class _SlowWriter(DiscardWriter):
    def __init__(self, record_s: float) -> None:
        self.record_s = record_s

    def write(self, records: list[Any]) -> None:
        # What is measured is the checkpoint behind a sink that is this slow.
        time.sleep(len(records) * self.record_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """Checkpoints of one protocol at one slowness.

    Attributes:
        duration_ms: Median; of those that were too long to wait for, the time waited.
        too_long: How many of them those are.
        channel_records: In the snapshots, median; `channel_bytes` is what the store holds of them.
        slice_ms: How long the sink is in one record: no barrier can be handled meanwhile.
    """

    snapshots: str
    slowness: float
    checkpoints: int
    too_long: int
    duration_ms: float
    duration_ms_most: float
    channel_records: float
    channel_bytes: float
    slice_ms: float


def run(snapshots: str, slowness: float, options: argparse.Namespace) -> Measured:
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    record_s = slowness * PARALLELISM / options.rate
    flow = cc.Flow("back-pressure")
    (
        # No two records share their payload: pickle would write it once.
        flow.source(cc.generate(lambda i: (i, f"{i:0100}"), rate=options.rate))
        .key_by(lambda record: record[0] % 1_000)
        .reduce(lambda old, new: new)
        .key_by(lambda update: update[1][0] % 997)
        .reduce(lambda old, new: new)
        .sink(Slow(record_s))
    )
    settings = cc.Settings(
        parallelism=PARALLELISM,
        checkpoint_dir=directory,
        checkpoint_interval="1h",
        checkpoint_timeout="10m",
        snapshots=snapshots,
        engine=cc.Continuous(channel_bytes=64 * 1024),
        batch_rows=100,
    )
    job = flow.start(settings)
    durations: list[float] = []
    too_long = 0
    try:
        deadline = time.monotonic() + 60
        while not job.report().first_flow_ns:
            if job.wait(0.05) or time.monotonic() > deadline:
                raise SystemExit("the job did not start")
        job.wait(options.warm_up)
        ends = time.monotonic() + options.seconds
        while len(durations) < options.checkpoints and time.monotonic() < ends:
            begun = time.monotonic()
            try:
                durations.append(job.checkpoint(options.patience).duration_ms)
            except CheckpointError:
                durations.append((time.monotonic() - begun) * 1e3)
                too_long += 1
                break
            job.wait(0.2)
    finally:
        job.cancel()
        logs = channel_logs(directory)
        shutil.rmtree(directory)
    return Measured(
        snapshots=snapshots,
        slowness=slowness,
        checkpoints=len(durations),
        too_long=too_long,
        duration_ms=round(statistics.median(durations), 1),
        duration_ms_most=round(max(durations), 1),
        channel_records=statistics.median(records for records, _ in logs) if logs else 0,
        channel_bytes=statistics.median(size_bytes for _, size_bytes in logs) if logs else 0,
        slice_ms=round(record_s * 1e3, 3),
    )


def channel_logs(checkpoint_dir: str) -> list[tuple[int, int]]:
    """Return, of each completed checkpoint, the records in its channels and their bytes."""
    store = open_store(checkpoint_dir, create=False)
    return [
        (
            sum(one.snapshot.in_flight for one in entry.snapshots),
            sum(part.size_bytes for one in entry.snapshots for part in one.snapshot.log),
        )
        for _, entry in store.entries()
        if isinstance(entry, CheckpointCompleted)
    ]


def draw_plot(found: Sequence[Measured]) -> Path:
    ticks = {float(one.slowness): f"{one.slowness:g}" for one in found}

    names = [name for name in PROTOCOLS if any(one.snapshots == name for one in found)]

    def panel(title: str, y_label: str, value: str, scale: float, y_scale: str) -> plot.Panel:
        lines = {
            name: [(one.slowness, getattr(one, value) / scale) for one in found if one.snapshots == name]
            for name in names
        }
        x_label = "how many times too slow the sink is"
        return plot.Panel(title, x_label, y_label, lines, y_scale=y_scale, x_ticks=ticks)

    durations = panel("Checkpoint under back pressure", "trigger to complete, ms", "duration_ms", 1, "log")
    sizes = panel("Channel records in the snapshot", "KiB", "channel_bytes", 1024, "linear")
    return plot.write_plot("back_pressure", [durations, sizes])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slowness", type=float, nargs="+", default=list(SLOWNESS))
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument("--rate", type=float, default=20_000, help="records a second that are offered")
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--warm-up", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=15, help="no new checkpoint is begun after them")
    parser.add_argument("--patience", type=float, default=60)
    options = parser.parse_args()
    plot.check_installed()
    found = []
    for slowness in options.slowness:
        for protocol in options.protocols:
            found.append(run(protocol, slowness, options))
            print(json.dumps({"benchmark": "back_pressure", **asdict(found[-1])}), flush=True)
    (plot.PLOTS / "back_pressure.json").write_text(
        json.dumps({"rate": options.rate, "found": [asdict(one) for one in found]}, indent=1) + "\n"
    )
    print(draw_plot(found))


if __name__ == "__main__":
    main()
