"""Start of a fresh process to the first record on local Spark; and how much of that is Spark's own.

Spark's own: the same process start, context and one trivial Python job of two tasks. Both in turn.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import crosscut as cc


def spark_alone() -> None:
    from crosscut.spark.cluster.session import spark_context

    context, _ = spark_context(2, "start benchmark")
    context.parallelize(range(2), 2).mapPartitionsWithIndex(lambda index, _: [index]).collect()


def flow() -> None:
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    started = cc.Flow("start")
    numbers = cc.generate(lambda i: (str(i % 100), i), rate=1_000)
    started.source(numbers).key_by(lambda record: record[0]).count().sink(cc.collect())
    job = started.start(cc.Settings(parallelism=2, checkpoint_dir=directory))
    while not job.report().first_flow_ns:
        job.wait(0.005)
    print(time.monotonic(), flush=True)
    job.cancel()
    shutil.rmtree(directory)


def measured(part: str) -> float:
    begin = time.monotonic()
    command = [sys.executable, "-m", "bench.start", "--part", part]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        if process.stdout is None:
            raise SystemExit("no output")
        end = float(process.stdout.readline())
        process.wait()
    return end - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["spark", "flow"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.part == "spark":
        spark_alone()
        print(time.monotonic(), flush=True)
        return
    if options.part == "flow":
        flow()
        return
    seconds: dict[str, list[float]] = {"spark": [], "flow": []}
    for _ in range(options.rounds):
        for part, values in seconds.items():
            values.append(measured(part))
    ours = [whole - spark for whole, spark in zip(seconds["flow"], seconds["spark"], strict=True)]
    print(
        json.dumps(
            {
                "benchmark": "start",
                "first_record_s": round(statistics.median(seconds["flow"]), 3),
                "spark_alone_s": round(statistics.median(seconds["spark"]), 3),
                "ours_s": round(statistics.median(ours), 3),
                "all": {name: [round(one, 2) for one in values] for name, values in seconds.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
