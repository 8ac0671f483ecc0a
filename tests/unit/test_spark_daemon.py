"""Spark's Python daemon with our code loaded: a fork of it must find one thread and nothing half begun."""

from __future__ import annotations

import subprocess
import sys

from crosscut.spark.cluster.session import DAEMON_MODULE

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
