"""Spark's Python daemon with our code loaded: a fork of it must find one thread and nothing half begun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from crosscut.spark.cluster.installed_pyspark import with_archives_last
from crosscut.spark.cluster.session import DAEMON_MODULE

SPARK_HOME = Path(pyspark.__file__).parent
ARCHIVES = [str(one) for one in sorted((SPARK_HOME / "python" / "lib").glob("*.zip"))]

LOADED = f"""
import sys, threading
from pathlib import Path
import {DAEMON_MODULE}
threads = threading.active_count()
if sys.platform == "linux":
    threads = len(list(Path("/proc/self/task").iterdir()))
assert "crosscut.worker.worker" in sys.modules
kept_out = {{"numpy", "pandas", "pyarrow", "polars", "rocksdict", "pyspark.worker"}}
print(threads, *sorted(kept_out & set(sys.modules)))
"""


def test_loading_the_daemon_starts_no_thread_and_loads_nothing_that_does() -> None:
    command = [sys.executable, "-c", LOADED]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == ["1"]


def test_the_daemon_loads_the_package_and_not_its_archive_which_would_be_compiled_in_every_process() -> None:
    """As Spark starts it: with the archives before everything else."""
    program = f"import sys, {DAEMON_MODULE}, py4j, pyspark; print(pyspark.__file__, py4j.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(ARCHIVES)}
    assert len(ARCHIVES) == 2
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=environment,
    )
    assert ".zip" not in found.stdout


def test_archives_of_the_package_go_behind_it_and_those_of_another_spark_stay() -> None:
    site = str(SPARK_HOME.parent)
    other = "/opt/spark/python/lib/pyspark.zip"
    jar = str(SPARK_HOME / "jars" / "spark-core.jar")
    assert with_archives_last([*ARCHIVES, jar, "/app", site]) == [jar, "/app", site, *ARCHIVES]
    assert with_archives_last([other, "/app", site]) == [other, "/app", site]
    assert with_archives_last([*ARCHIVES, "/app"]) == [*ARCHIVES, "/app"], "the package is not on the path"
    assert with_archives_last(["", "/app.zip", site]) == ["", "/app.zip", site]
