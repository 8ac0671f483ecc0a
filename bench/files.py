"""Rows into files, exactly once: records/s of Python rows into Parquet, CSV and JSON lines.

`writer`: what one task's sink takes by itself, from rows in batches of 1,000 to files that are durable and
visible, a checkpoint every `CHECKPOINT_ROWS`; by the time of its process, by the clock, and by the clock less
what its thread waited for a core. `job`: a flow
from a generator into the sink, with two workers and a checkpoint every second, by the clock, from the first
committed checkpoint on. Prints a JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import parquet

import crosscut as cc
from bench.cores import waited_s
from crosscut.foundation.ids import CheckpointId
from crosscut.testing.sinks import open_writer, permit, prepare

SCHEMA = {"id": "int64", "country": "string", "amount": "float64", "count": "int32"}
COUNTRIES = ("AT", "BE", "CH", "DE", "ES", "FR", "IT", "NL", "PL", "SE")
BATCH_ROWS = 1_000
CHECKPOINT_ROWS = 500_000
CHECKPOINTS = 4


def row(number: int) -> tuple[int, str, float, int]:
    return number, COUNTRIES[number % len(COUNTRIES)], number * 0.25, number % 1_000


def by_name(number: int) -> dict[str, Any]:
    return dict(zip(SCHEMA, row(number), strict=True))


SINKS: dict[str, tuple[Callable[[str], cc.Sink], Callable[[int], Any]]] = {
    "parquet": (lambda directory: cc.files.write_parquet(directory, SCHEMA), row),
    "parquet by country": (
        lambda directory: cc.files.write_parquet(directory, SCHEMA, partition_by="country"),
        row,
    ),
    "csv": (lambda directory: cc.files.write_csv(directory, list(SCHEMA)), row),
    "jsonl": (lambda directory: cc.files.write_jsonl(directory), by_name),
}


def writer(kind: str) -> dict[str, Any]:
    """Write `CHECKPOINTS` checkpoints as one task does."""
    make, record = SINKS[kind]
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    batches = [
        [record(number) for number in range(first, first + BATCH_ROWS)]
        for first in range(0, CHECKPOINT_ROWS, BATCH_ROWS)
    ]
    try:
        one = open_writer(make(directory), 1)
        started, busy, waited = time.perf_counter(), time.process_time(), waited_s()
        for n in range(1, CHECKPOINTS + 1):
            for batch in batches:
                one.write(batch)
            one.commit(permit(n), [prepare(one, one.rotate(CheckpointId(n)))])
        elapsed, used = time.perf_counter() - started, time.process_time() - busy
        waited = waited_s() - waited
        one.close()
        size = sum(path.stat().st_size for path in Path(directory).rglob(f"part-*.{kind.split()[0]}"))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    rows = CHECKPOINTS * CHECKPOINT_ROWS
    return {
        "writer": kind,
        "rows": rows,
        "rows_per_s": round(rows / elapsed),
        "rows_per_s_with_a_core": round(rows / (elapsed - waited)),
        "rows_per_cpu_s": round(rows / used),
        "bytes_per_row": round(size / rows, 1),
    }


def job(kind: str, seconds: float) -> dict[str, Any]:
    """Run a flow for `seconds`; count what it has committed."""
    make, record = SINKS[kind]
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    flow = cc.Flow("rows-out")
    flow.source(cc.generate(record)).sink(make(f"{directory}/out")).named("out")
    try:
        running = flow.start(
            cc.Settings(parallelism=2, checkpoint_dir=f"{directory}/checkpoints", checkpoint_interval="1s")
        )
        while not rows_in(directory):
            time.sleep(0.05)
        before, started = rows_in(directory), time.perf_counter()
        time.sleep(seconds)
        after, elapsed = rows_in(directory), time.perf_counter() - started
        running.cancel()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"job": kind, "rows": after - before, "rows_per_s": round((after - before) / elapsed)}


def rows_in(directory: str) -> int:
    """Count the committed rows: by the footers of Parquet."""
    paths = [path for path in Path(directory, "out").rglob("part-*.parquet") if ".crosscut" not in path.parts]
    return sum(parquet.read_metadata(path).num_rows for path in paths)


def main() -> None:
    """Print all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    for kind in SINKS:
        print(json.dumps({**writer(kind), "load": round(load, 1)}), flush=True)
    for kind in ("parquet", "parquet by country"):
        print(json.dumps({**job(kind, arguments.seconds), "load": round(load, 1)}), flush=True)


if __name__ == "__main__":
    main()
