"""A job on a standalone cluster, one of whose hosts is to vanish: `python vanishing.py DIRECTORY MASTER`.

It reports its workers and restarts, a line each time they change. It is judged in test_vanished_hosts.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from clustered import session_on
from jobs import DEADLINE_S, NumberedJob

import crosscut as cc

SPARK_NOTICES_NOTHING = {"spark.network.timeout": "3600s", "spark.executor.heartbeatInterval": "10s"}
"""Within the time of a test: whoever replaces the workers of the host is not Spark's own detection."""


def numbered_in(directory: Path) -> NumberedJob:
    settings = {
        "heartbeat_timeout": "10s",
        "start_timeout": DEADLINE_S,
        "restart": cc.Restart(failures=20),
        "shared": True,
    }
    return NumberedJob(directory, held=True, settings=settings)


def main(directory: Path, master: str) -> None:
    with session_on(master, SPARK_NOTICES_NOTHING) as spark:
        job = numbered_in(directory).start(spark)
        told = None
        ends_s = time.monotonic() + 3 * DEADLINE_S
        while time.monotonic() < ends_s:
            report = job.report()
            now = {
                "status": job.status,
                "pids": [one.pid for one in job.workers()],
                "restarts": report.restarts,
                "checkpoints": len(job.checkpoints()),
                "failure": report.last_failure,
            }
            if now != told:
                told = now
                print(json.dumps(now | {"at": time.monotonic()}), flush=True)
            if job.wait(0.05):
                break
        print(json.dumps({"status": job.status, "at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
