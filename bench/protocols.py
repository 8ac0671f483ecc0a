"""Running time of a job with three full shuffles, under every snapshot protocol and interval.

The experiment of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows", 2015,
section 6: a bounded source, three keyed counts behind one another, each behind a shuffle of everything.

Measured from the first record read to the last record sunk, by the clock and by processor time of the
workers. The runs of a round are in a shuffled order, with `none` in between; each is compared with
the runs of `none` just before and just after it, because the machine is not the same from minute to
minute. A job has to live longer than its interval to take a checkpoint at all: those with the long
intervals read more records, and have runs of `none` of their own length.

Prints a JSON line for each run and one for each protocol and interval, and writes both and the plot to
bench/plots.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import crosscut as cc
from bench import plot
from bench.throughput import Discard, DiscardWriter

PROTOCOLS = ("aligned", "unaligned", "at-least-once", "halting")
INTERVALS_MS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)
LONGER_THAN_INTERVAL = 1.1
NONE_EVERY = 4
"""Runs between two runs of `none`."""
CPU_READ_EVERY_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """One finished job.

    Attributes:
        round: Runs are compared within one round and one length only.
        interval_ms: 0 for `none`.
        checkpoints: Completed before the last record was sunk or after it: the final one is one of them.
    """

    round: int
    snapshots: str
    interval_ms: int
    records: int
    seconds: float
    cpu_seconds: float
    checkpoints: int
    checkpoint_ms: float


class Numbers(cc.Source):
    """0, 1, 2, ... up to `count`, and when each worker began, in `directory`."""

    def __init__(self, count: int, directory: str) -> None:
        self.count, self.directory = count, directory

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split(str(index), 0, [index, parallelism]) for index in range(parallelism)]

    def reader(self, split: cc.Split, position: Any) -> cc.SplitReader:
        index, of = cast(list[int], split.detail)
        return _NumbersReader(self, index, of, position)


class _NumbersReader(cc.SplitReader):
    def __init__(self, source: Numbers, index: int, of: int, position: int) -> None:
        self.end = source.count // of
        self.first, self.step = index, of
        self.made = position
        self.stamp = Path(source.directory) / f"{index}.first"

    @property
    def position(self) -> int:
        return self.made

    def read(self, limit: int) -> list[Any] | cc.EndOfSplit:
        if self.made == 0:
            write_stamp(self.stamp, now())
        size = min(limit, self.end - self.made)
        if size == 0:
            return cc.EndOfSplit()
        first = self.first + self.made * self.step
        self.made += size
        return list(range(first, first + size * self.step, self.step))


class LastRecord(Discard):
    """Keeps nothing but when each worker wrote last, in `directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        return _LastRecordWriter(Path(self.directory) / f"{context.task.index}.last")


class _LastRecordWriter(DiscardWriter):
    def __init__(self, stamp: Path) -> None:
        self.stamp = stamp
        self.last_ns = self.cpu_read_ns = self.cpu_ns = 0

    def write(self, records: list[Any]) -> None:
        self.last_ns = time.monotonic_ns()
        # Reading the processor time is a system call: for each batch it would be a fifth of the work.
        if self.last_ns - self.cpu_read_ns > CPU_READ_EVERY_NS:
            self.cpu_read_ns, self.cpu_ns = now()

    def close(self) -> None:
        write_stamp(self.stamp, (self.last_ns, self.cpu_ns))


def now() -> tuple[int, int]:
    """Return the clock, which all processes share, and the processor time of this one."""
    return time.monotonic_ns(), time.process_time_ns()


def write_stamp(path: Path, stamp: tuple[int, int]) -> None:
    path.write_text(json.dumps(stamp))


def read_stamps(directory: str, kind: str) -> list[tuple[int, int]]:
    return [tuple(json.loads(path.read_text())) for path in Path(directory).glob(f"*.{kind}")]


def three_shuffles(count: int, keys: int, directory: str) -> cc.Flow:
    flow = cc.Flow("protocols")
    (
        flow.source(Numbers(count, directory))
        .key_by(lambda number: number % keys)
        .count()
        .key_by(lambda update: (update[0] * 31 + update[1]) % keys)
        .count()
        .key_by(lambda update: (update[0] * 17 + update[1]) % keys)
        .count()
        .sink(LastRecord(directory))
    )
    return flow


def run(number: int, snapshots: str, interval_ms: int, records: int, keys: int) -> Run:
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    try:
        settings = cc.Settings(
            parallelism=2,
            checkpoint_dir=f"{directory}/checkpoints",
            checkpoint_interval=f"{interval_ms or 1_000}ms",
            snapshots=snapshots,
        )
        job = three_shuffles(records, keys, directory).start(settings)
        job.wait()
        status = job.report()
        first, last = read_stamps(directory, "first"), read_stamps(directory, "last")
    finally:
        shutil.rmtree(directory)
    periodic = [one.duration_ms for one in status.checkpoints if not one.is_final]
    return Run(
        round=number,
        snapshots=snapshots,
        interval_ms=interval_ms,
        records=records,
        seconds=(max(clock for clock, _ in last) - min(clock for clock, _ in first)) / 1e9,
        cpu_seconds=(sum(cpu for _, cpu in last) - sum(cpu for _, cpu in first)) / 1e9,
        checkpoints=status.checkpoints_completed,
        checkpoint_ms=statistics.median(periodic) if periodic else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One protocol at one interval against `none`: the median over the rounds, and the extremes."""

    snapshots: str
    interval_ms: int
    runs: int
    clock: float
    clock_least: float
    clock_most: float
    cpu: float
    checkpoints: float
    checkpoint_ms: float


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Return a comparison for each protocol and interval, of runs in the order they were made."""
    ratios: dict[tuple[str, int], list[tuple[float, float]]] = {}
    of: dict[tuple[str, int], list[Run]] = {}
    for at, one in enumerate(runs):
        if one.snapshots == "none":
            continue
        around = _neighbours(runs, at)
        clock = one.seconds / statistics.mean(other.seconds for other in around)
        cpu = one.cpu_seconds / statistics.mean(other.cpu_seconds for other in around)
        kind = (one.snapshots, one.interval_ms)
        ratios.setdefault(kind, []).append((clock, cpu))
        of.setdefault(kind, []).append(one)
    found = []
    for kind in sorted(ratios, key=lambda kind: (PROTOCOLS.index(kind[0]), kind[1])):
        clocks = [clock for clock, _ in ratios[kind]]
        found.append(
            Comparison(
                *kind,
                runs=len(clocks),
                clock=round(statistics.median(clocks), 4),
                clock_least=round(min(clocks), 4),
                clock_most=round(max(clocks), 4),
                cpu=round(statistics.median(cpu for _, cpu in ratios[kind]), 4),
                checkpoints=statistics.median(one.checkpoints for one in of[kind]),
                checkpoint_ms=statistics.median(one.checkpoint_ms for one in of[kind]),
            )
        )
    return found


def _neighbours(runs: Sequence[Run], at: int) -> list[Run]:
    """Return the nearest run of `none` before and after, of the same round and length."""
    one = runs[at]

    def nearest(candidates: Iterable[Run]) -> list[Run]:
        like = (
            other
            for other in candidates
            if other.snapshots == "none" and (other.round, other.records) == (one.round, one.records)
        )
        return [other for other in [next(like, None)] if other is not None]

    around = nearest(reversed(runs[:at])) + nearest(runs[at + 1 :])
    if not around:
        raise ValueError(f"no run of none in round {one.round} with {one.records} records")
    return around


def plan(seed: int, groups: dict[float, list[int]]) -> list[tuple[float, str, int]]:
    """Return the runs of one round: (seconds, protocol, interval), each length by itself."""
    draw = random.Random(seed)
    planned: list[tuple[float, str, int]] = []
    for seconds, intervals in groups.items():
        measured = [(protocol, interval) for protocol in PROTOCOLS for interval in intervals]
        draw.shuffle(measured)
        for at, (protocol, interval) in enumerate(measured):
            if at % NONE_EVERY == 0:
                planned.append((seconds, "none", 0))
            planned.append((seconds, protocol, interval))
        planned.append((seconds, "none", 0))
    return planned


def by_length(intervals_ms: Sequence[int], seconds: float) -> dict[float, list[int]]:
    """Return the intervals by how long a job with them has to be."""
    longest = max(seconds, *(LONGER_THAN_INTERVAL * interval / 1e3 for interval in intervals_ms))
    groups: dict[float, list[int]] = {}
    for interval in intervals_ms:
        fits = LONGER_THAN_INTERVAL * interval / 1e3 <= seconds
        groups.setdefault(seconds if fits else longest, []).append(interval)
    return groups


def draw_plot(found: Sequence[Comparison]) -> Path:
    ticks = {float(ms): f"{ms} ms" if ms < 1_000 else f"{ms // 1_000} s" for ms in INTERVALS_MS}
    used = {tick: label for tick, label in ticks.items() if any(one.interval_ms == tick for one in found)}

    def panel(title: str, value: str) -> plot.Panel:
        lines: dict[str, list[tuple[float, Any]]] = {
            protocol: [(one.interval_ms, getattr(one, value)) for one in found if one.snapshots == protocol]
            for protocol in PROTOCOLS
        }
        ends = (min(used), max(used))
        lines["none"] = [(end, 1.0) for end in ends]
        return plot.Panel(
            title=title,
            x_label="checkpoint interval",
            y_label="relative to none",
            lines=lines,
            dashed=frozenset({"none"}),
            x_ticks=used,
        )

    return plot.write_plot(
        "protocols",
        [panel("Running time, three shuffles", "clock"), panel("Processor time of the workers", "cpu")],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long-rounds", type=int, default=1, help="rounds of those with long intervals")
    parser.add_argument("--seconds", type=float, default=3.5, help="length of a job, roughly")
    parser.add_argument("--intervals-ms", type=int, nargs="+", default=list(INTERVALS_MS))
    parser.add_argument("--keys", type=int, default=10_000, help="of each of the three counts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    plot.check_installed()
    # The first job pays for the start of Spark and of its Python workers; the others tell the rate.
    run(-1, "none", 0, 200_000, options.keys)
    warm = [run(-1, "none", 0, 1_000_000, options.keys) for _ in range(3)]
    rate = max(one.records / one.seconds for one in warm)
    groups = by_length(options.intervals_ms, options.seconds)
    runs: list[Run] = []
    for number in range(options.rounds):
        wanted = {
            seconds: intervals
            for seconds, intervals in groups.items()
            if seconds == options.seconds or number < options.long_rounds
        }
        for seconds, protocol, interval in plan(options.seed + number, wanted):
            records = int(rate * seconds) // 10_000 * 10_000
            runs.append(run(number, protocol, interval, records, options.keys))
            print(json.dumps({"benchmark": "protocols", **asdict(runs[-1])}), flush=True)
    found = compare(runs)
    for one in found:
        print(json.dumps({"benchmark": "protocols", **asdict(one)}), flush=True)
    figures = {
        "keys": options.keys,
        "found": [asdict(one) for one in found],
        "runs": [asdict(one) for one in runs],
    }
    (plot.PLOTS / "protocols.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(draw_plot(found))


if __name__ == "__main__":
    main()
