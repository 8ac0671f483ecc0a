"""A job that reads a topic by way of Spark's own Kafka source, in a process of its own, which can be killed.

As a program: `python spark_kafka_jobs.py SERVERS TOPIC DIRECTORY ENGINE COUNT`; it ends when COUNT lines are
visible.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from jobs import DEADLINE_S, until
from pyspark.sql import SparkSession

import crosscut as cc
from crosscut.testing.kafka import spark_jars


def lines(directory: Path) -> list[str]:
    found = sorted((directory / "out").glob("*.txt"))
    return [line for one in found for line in one.read_text().splitlines()]


def main(servers: str, topic: str, directory: str, engine: str, count: str) -> None:
    spark = (
        SparkSession.builder.master("local[4,1000000]")
        .config("spark.jars", ",".join(map(str, spark_jars())))
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 250,
    }
    flow = cc.Flow("by-spark")
    source = flow.source(cc.spark.stream("kafka", options, every="100ms")).named("kafka")
    source.map(lambda row: row.value.decode()).sink(cc.files.write_text(f"{directory}/out"))
    settings = cc.Settings(
        engine=engine,  # type: ignore[arg-type]
        parallelism=2,
        checkpoint_dir=f"{directory}/checkpoints",
        checkpoint_interval="200ms",
    )
    job = flow.start(settings, spark=spark)
    until(lambda: len(lines(Path(directory))) >= int(count), "all of the topic", DEADLINE_S)
    job.stop(DEADLINE_S)


def run(arguments: list[str], environment: dict[str, str]) -> int:
    """Run the program; return its exit code. Nothing of it outlives this."""
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments], env={**os.environ, **environment}, start_new_session=True
    )
    try:
        return process.wait(2 * DEADLINE_S)
    finally:
        # The JVM, too, which notices only in a while that its program has died.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
