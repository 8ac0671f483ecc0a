"""A job in micro-batches on a cluster that others started: `python clustered.py DIRECTORY MASTER
WEB`, the URL of the master and that of its pages.

Its first half has a straggler that comes to no end by itself, its second half a place where it waits for the
test. It is judged in test_standalone_cluster.py.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs import DEADLINE_S, NumberedJob, Once, Record
from pyspark.sql import SparkSession

import crosscut as cc
from crosscut.spark.cluster.java import find_java

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]

COUNT, STRAGGLES_AT, WAITS_AT = 10_000, 3_000, 7_000

QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java: nothing here runs long enough for its better compiler."""

COPIES_STRAGGLERS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
}
COMES_AND_GOES = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "4",
}


@dataclass(frozen=True)
class Troubled:
    """What happens to attempts: the first at one record never ends, each at another waits for a sign."""

    directory: Path

    def __call__(self, record: Record) -> Record:
        if record[1] == STRAGGLES_AT and Once(self.directory / "straggled")():
            self._wait_for("never")
        if record[1] == WAITS_AT:
            (self.directory / "waiting").write_text(str(os.getpid()))
            self._wait_for("go on")
        return record

    def _wait_for(self, name: str) -> None:
        ends_s = time.monotonic() + 2 * DEADLINE_S
        while not (self.directory / name).exists() and time.monotonic() < ends_s:
            time.sleep(0.05)


def troubled(directory: Path) -> NumberedJob:
    settings = {
        "engine": cc.MicroBatch(records_max=2_000),
        "checkpoint_interval": "50ms",
        "restart": cc.Restart(failures=0),
        "web": True,
        "web_port": 0,
        "web_in_spark_ui": True,
        "shared": True,
    }
    return NumberedJob(directory, count=COUNT, rate=1e9, hook=Troubled(directory), settings=settings)


@contextmanager
def session_on(master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Give a session on a cluster, or on a `local-cluster`, whose executors are small and start soon."""
    builder = (
        SparkSession.builder.master(master)
        .appName("clustered")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.cores", "1")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.extraJavaOptions", QUICK_TO_START)
        .config("spark.executor.extraJavaOptions", QUICK_TO_START)
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(map(str, (HERE, ROOT))))
    )
    # A `local-cluster` starts its executors with it, too.
    with find_java().launch_home() as java_home:
        os.environ["JAVA_HOME"] = str(java_home)
        spark = builder.config(map=dict(conf)).getOrCreate()
        yield spark
        spark.stop()


def main(directory: Path, master: str, proxy_url: str) -> None:
    behind_a_proxy = {
        "spark.ui.port": "0",
        "spark.ui.reverseProxy": "true",
        "spark.ui.reverseProxyUrl": proxy_url,
    }
    with session_on(master, behind_a_proxy | COPIES_STRAGGLERS | COMES_AND_GOES) as spark:
        job = troubled(directory).start(spark)
        (directory / "link").write_text(job.page)
        job.wait(2 * DEADLINE_S)
        report = {"status": job.status, "epoch": job.report().epoch, "batches": len(job.checkpoints())}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
