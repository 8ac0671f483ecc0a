"""What `python -m tests.versions` runs in an environment with Crosscut alone: jobs whose output is checked.

    python version_checks.py CHECK DIRECTORY

A check exits with 0 if its output is exact. It imports nothing of this repository but the installed package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import crosscut as cc

RECORDS = 20_000
KEYS = 97
DEADLINE_S = 240.0
"""For each wait, generous for a machine under load; a wait that never ends fails the check."""
THROTTLE_S = 0.01
"""A delay per record: the job can't end before the gate is open."""


def key_of(number: int) -> int:
    return number % KEYS


def counted(numbers: Iterable[int]) -> Counter[tuple[int, int]]:
    """Return the updates of a count by key: for a key with n records (key, 1), ... (key, n), each once."""
    totals = Counter(map(key_of, numbers))
    return Counter((key, count + 1) for key, total in totals.items() for count in range(total))


def check(found: Iterable[tuple[int, int]], expected: Counter[tuple[int, int]]) -> None:
    rows = Counter(found)
    missing, surplus = expected - rows, rows - expected
    if missing or surplus:
        sys.exit(
            f"the output is not exact: {missing.total()} of {expected.total()} rows are missing, such as "
            f"{list(missing)[:3]}, and {surplus.total()} are surplus, such as {list(surplus)[:3]}"
        )


def until(condition: Callable[[], object], awaited: str) -> None:
    """Wait for a condition; fail after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited {DEADLINE_S:.0f} s in vain for {awaited}")
        time.sleep(0.05)


def count_flow(source: cc.Source, output: Path, hook: Callable[[int], int] | None = None) -> cc.Flow:
    flow = cc.Flow("counts")
    numbers = flow.source(source).named("numbers")
    if hook is not None:
        numbers = numbers.map(hook)
    numbers.key_by(key_of).count().named("counts").sink(cc.files.write_jsonl(output)).named("out")
    return flow


def rows_of(output: Path) -> list[tuple[int, int]]:
    """Return the committed rows of a sink of JSON lines."""
    import orjson

    lines = [line for path in output.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
    return [(key, count) for key, count in map(orjson.loads, lines)]


def micro_batch(directory: Path) -> None:
    """A count in micro-batches."""
    flow = count_flow(cc.items(range(RECORDS)), directory / "out")
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=5_000), parallelism=2, checkpoint_dir=str(directory / "cp")
    )
    job = flow.start(settings)
    job.wait(DEADLINE_S)
    if len(job.checkpoints()) < 2:
        sys.exit(f"expected several batches, found {len(job.checkpoints())} checkpoints")
    check(rows_of(directory / "out"), counted(range(RECORDS)))


def dataframe(directory: Path) -> None:
    """A DataFrame as the source; output and state as DataFrames."""
    from crosscut.spark.cluster.session import spark_session

    # A plain SparkSession would need a Java on the machine; Crosscut brings one.
    spark, _ = spark_session(2, "frames")
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    flow = cc.Flow("frames")
    df = spark.range(RECORDS).selectExpr(
        "id AS number", "timestamp_seconds(id) AS at", "CAST(id AS STRING) AS text"
    )
    rows = flow.source(cc.spark.dataframe(df)).named("rows")
    rows = rows.map(lambda row: row.number if str(row.number) == row.text and row.at is not None else -1)
    counts = rows.key_by(key_of).count().named("counts")
    counts.sink(cc.spark.table(directory / "out", "key BIGINT, count BIGINT")).named("out")
    job = flow.start(cc.Settings(parallelism=2, checkpoint_dir=str(directory / "cp")), spark=spark)
    job.wait(DEADLINE_S)
    expected = counted(range(RECORDS))
    written = spark.read.parquet(str(directory / "out")).collect()
    check([(row["key"], row["count"]) for row in written], expected)
    cc.spark.register(spark)
    reader = spark.read.format("crosscut")
    result = reader.option("uid", "counts").load(str(directory / "cp")).collect()
    totals = Counter(map(key_of, range(RECORDS)))
    check([(row["key"], row["value"]) for row in result], Counter(totals.items()))
    spark.stop()


class Throttled:
    """Give each number as it is, and slowly until the gate is open."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __call__(self, number: int) -> int:
        if not self.gate.exists():
            time.sleep(THROTTLE_S)
        return number


def throttled_job(directory: Path, parallelism: int) -> cc.Job:
    flow = count_flow(cc.items(range(RECORDS)), directory / "out", Throttled(directory / "gate"))
    settings = cc.Settings(
        parallelism=parallelism,
        checkpoint_dir=str(directory / "cp"),
        checkpoint_interval="200ms",
        batch_rows=10,
        heartbeat_timeout="60s",
        start_timeout=DEADLINE_S,
    )
    return flow.start(settings)


def restore(directory: Path) -> None:
    """Kill a worker, then the driver; another driver goes on from the checkpoint with more tasks."""
    first = subprocess.Popen([sys.executable, __file__, "first-driver", str(directory)])
    try:
        until(
            lambda: (directory / "ready").exists() or first.poll() is not None,
            "a checkpoint after a failover",
        )
        if first.poll() is not None:
            sys.exit(f"the first driver ended with {first.returncode} before it was killed")
    finally:
        first.kill()
        first.wait()
    before = len(rows_of(directory / "out"))
    if not 0 < before < RECORDS:
        sys.exit(f"expected some committed rows of the first driver, found {before} of {RECORDS}")
    (directory / "gate").touch()
    throttled_job(directory, parallelism=3).wait(DEADLINE_S)
    check(rows_of(directory / "out"), counted(range(RECORDS)))


def first_driver(directory: Path) -> None:
    """Run until a worker has been killed and a checkpoint completed afterwards; then wait to be killed."""
    job = throttled_job(directory, parallelism=2)
    until(lambda: job.checkpoints(), "the first checkpoint")
    os.kill(job.report().workers[0].pid, signal.SIGKILL)
    until(lambda: job.report().recoveries, "the failover")
    newest = max(one.checkpoint_id for one in job.checkpoints())
    until(
        lambda: max(one.checkpoint_id for one in job.checkpoints()) > newest,
        "a checkpoint after the failover",
    )
    (directory / "ready").touch()
    job.wait(DEADLINE_S)


CHECKS = {
    "micro-batch": micro_batch,
    "dataframe": dataframe,
    "restore": restore,
    "first-driver": first_driver,
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](Path(sys.argv[2]))
