"""Records/s through a shuffle into keyed state, with and without snapshots.

`count`: a keyed running count of tuples with string keys, which says what the engine costs. `user`: what a
user writes with the public interface alone: a source of one's own that makes objects, `map`, and an
`aggregate` whose accumulator is a tuple. Prints a JSON line for each run, the protocols in turn, and one
with the medians and their ratio.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import shutil
import statistics
import tempfile
from functools import lru_cache
from itertools import accumulate
from typing import Any

import crosscut as cc
from bench.rates import measured, warm_up

KEYS = 100_000
ZIPF = 1.1
TABLE_ROWS = 1 << 19


class Discard(cc.Sink):
    """A sink with nothing behind it: what is measured is the engine."""

    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        return DiscardWriter()


class DiscardWriter(cc.SinkWriter):
    def recover(self, permit: Any, handles: Any) -> None:
        pass

    def write(self, records: list[Any]) -> None:
        pass

    def rotate(self, checkpoint_id: Any) -> None:
        return None

    def prepare(self, transaction: Any) -> None:
        return None

    def commit(self, permit: Any, handles: Any) -> None:
        pass


class ZipfRecords:
    """Record i is (key, i); a table of `rows` keys (a power of 2) is repeated: see `zipf_keys`."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.keys: list[str] | None = None

    def __getstate__(self) -> int:
        return self.rows

    def __setstate__(self, rows: int) -> None:
        self.__init__(rows)  # type: ignore[misc]

    def __call__(self, i: int) -> tuple[str, int]:
        keys = self.keys
        if keys is None:
            keys = self.keys = zipf_keys(self.rows)
        return (keys[i & (self.rows - 1)], i)


@lru_cache
def zipf_keys(rows: int) -> list[str]:
    """Return `rows` keys by Zipf's law, in no order; the same object for the same key.

    If there is room, each of the `KEYS` keys is there once beside what is drawn: Zipf's law alone leaves
    most of the rare ones out.
    """
    draw = random.Random(7)
    bounds = list(accumulate(1.0 / rank**ZIPF for rank in range(1, KEYS + 1)))
    names = [f"key-{rank:06d}" for rank in range(KEYS)]
    keys = list(names) if rows > KEYS else []
    keys += draw.choices(names, cum_weights=bounds, k=rows - len(keys))
    draw.shuffle(keys)
    return keys


def first(record: tuple[str, Any]) -> str:
    return record[0]


class Payment:
    """A record of a user's."""

    __slots__ = ("account", "cents")

    def __init__(self, account: str, cents: int) -> None:
        self.account = account
        self.cents = cents

    def __reduce__(self) -> Any:
        return Payment, (self.account, self.cents)


class Payments(cc.Source[Payment]):
    """A source of one's own: endless, one split a task."""

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split(f"{index}", start=index) for index in range(parallelism)]

    def reader(self, split: cc.Split, position: cc.JSON) -> cc.SplitReader[Payment]:
        assert isinstance(position, int)
        return PaymentReader(position)


class PaymentReader(cc.SplitReader[Payment]):
    def __init__(self, position: int) -> None:
        self._position = position
        self._keys = zipf_keys(TABLE_ROWS)

    @property
    def position(self) -> cc.JSON:
        return self._position

    def read(self, limit: int) -> list[Payment]:
        first = self._position & (TABLE_ROWS - 1)
        keys = self._keys[first : first + limit]
        self._position += len(keys)
        return [Payment(key, number) for number, key in enumerate(keys)]


def in_euros(payment: Payment) -> tuple[str, float]:
    return payment.account, payment.cents / 100


def add(total: tuple[int, float], payment: tuple[str, float]) -> tuple[int, float]:
    return total[0] + 1, total[1] + payment[1]


def flow_of(workload: str) -> cc.Flow:
    """Return the flow that is measured."""
    flow = cc.Flow("throughput")
    if workload == "user":
        payments = flow.source(Payments()).map(in_euros).key_by(first)
        payments.aggregate((0, 0.0), add).sink(Discard())
    else:
        flow.source(cc.generate(ZipfRecords(TABLE_ROWS))).key_by(first).count().sink(Discard())
    return flow


def run(workload: str, snapshots: str, seconds: float, batch_rows: int) -> dict[str, Any]:
    """Run for `seconds` once the job is warm; return what was measured."""
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    flow = flow_of(workload)
    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=directory,
        checkpoint_interval="1s",
        snapshots=snapshots,
        batch_rows=batch_rows,
        # Each worker makes its table of keys in one call, which took 7 s on a machine with a load of 12.
        heartbeat_timeout="60s",
    )
    job = flow.start(settings)
    try:
        warm_up(job)
        rates = measured(job, seconds)
        checkpoints = job.checkpoints()
        keys = job.report().state_keys
    finally:
        job.cancel()
        shutil.rmtree(directory)
    return {
        "benchmark": "throughput",
        "workload": workload,
        "snapshots": snapshots,
        **rates._asdict(),
        "checkpoints": len(checkpoints),
        "checkpoint_ms": [one.duration_ms for one in checkpoints][-5:],
        "freeze_us": max((one.freeze_us for one in checkpoints), default=0),
        "state_bytes": checkpoints[-1].state_bytes if checkpoints else 0,
        "state_keys": keys,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-rows", type=int, default=1_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--workload", choices=("count", "user"), nargs="+", default=["count", "user"])
    options = parser.parse_args()
    for workload in options.workload:
        measured: dict[str, list[int]] = {}
        per_cpu: dict[str, list[int]] = {}
        for _ in range(options.rounds):
            for snapshots in ("none", "aligned"):
                if options.only in ("", snapshots):
                    result = run(workload, snapshots, options.seconds, options.batch_rows)
                    print(json.dumps(result), flush=True)
                    measured.setdefault(snapshots, []).append(result["records_per_s"])
                    per_cpu.setdefault(snapshots, []).append(result["records_per_cpu_s"])
        medians = {name: statistics.median(rates) for name, rates in measured.items()}
        if len(medians) == 2:
            ratios = {"aligned/none": ratio(measured), "per_cpu": ratio(per_cpu)}
            print(json.dumps({"workload": workload, "medians": medians, **ratios}))


def ratio(measured: dict[str, list[int]]) -> float:
    """Return the median of aligned/none, pair by pair."""
    pairs = zip(measured["aligned"], measured["none"], strict=True)
    return round(statistics.median(aligned / none for aligned, none in pairs), 4)


if __name__ == "__main__":
    # Workers find what is shipped by the name of its module, which `__main__` is not.
    importlib.import_module("bench.throughput").main()
