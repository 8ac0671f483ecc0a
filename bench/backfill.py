"""Backfill: how many rows of Parquet a second become keyed state, and at what processor time.

A keyed count of one text column, 100,000 keys, from Parquet to the savepoint. Beside the clock stands the
processor time of all processes, JVM and Python, which says more on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import crosscut as cc

KEYS = 100_000
WANTED = 1_500_000
MULTIPLIER = 2_654_435_761


def processor_seconds() -> dict[str, float]:
    """Return the processor time of this process and all below it, ended children included, by program."""
    pids, found = [os.getpid()], {"python": 0.0, "java": 0.0}
    while pids:
        pid = pids.pop()
        try:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += map(int, children.read_text().split())
            program = "java" if "java" in Path(f"/proc/{pid}/comm").read_text() else "python"
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[program] += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32_000_000)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    spark = (
        SparkSession.builder.master(options.master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    try:
        rows = spark.range(options.rows, numPartitions=8)
        text = f"CAST(id * {MULTIPLIER} % {KEYS} AS STRING) AS user"
        rows.selectExpr(text).write.parquet(f"{directory}/rows")
        seen: list[Any] = []

        def told(event: Any) -> None:
            seen.append((time.monotonic(), {} if seen else processor_seconds(), event))

        flow = cc.Flow("visits")
        flow.source(cc.items(["user"])).key_by(lambda user: user).count(emit="final").named("visits").sink(
            cc.collect(f"{directory}/out")
        )
        before, began_s = processor_seconds(), time.monotonic()
        cc.backfill(
            flow,
            spark.read.parquet(f"{directory}/rows"),
            f"{directory}/savepoint",
            records="values",
            settings=cc.Settings(
                parallelism=options.parallelism,
                engine=cc.MicroBatch(records_max=options.batch),
                checkpoint_timeout="10m",
                checkpoint_dir=f"{directory}/checkpoints",
            ),
            on_event=told,
        )
        took_s = time.monotonic() - began_s
        after = processor_seconds()
        staged_s, staged = seen[0][0] - began_s, seen[0][1]
        spent = {name: round(after[name] - before[name], 1) for name in after}
        batches = [one.progress for _, _, one in seen if isinstance(one, cc.events.Progressed)]
        print(
            json.dumps(
                {
                    "benchmark": "backfill",
                    "rows": options.rows,
                    "master": options.master,
                    "parallelism": options.parallelism,
                    "rows_per_s": round(options.rows / took_s),
                    "wanted": WANTED,
                    "staging_s": round(staged_s, 1),
                    "took_s": round(took_s, 1),
                    "processor_s": spent,
                    "of_which_staging": {name: round(staged[name] - before[name], 1) for name in staged},
                    "rows_per_processor_s": round(options.rows / sum(spent.values())),
                    "batches_rows_per_s": [round(one["processedRowsPerSecond"]) for one in batches],
                    "load": os.getloadavg()[0],
                }
            )
        )
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
