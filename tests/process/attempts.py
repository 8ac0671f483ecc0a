"""Workers that Spark knows nothing of, and so does not kill: a zombie has to be one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
from jobs import Armed

RUN_WORKER = """
import pickle, sys
from crosscut.worker.worker_process import run_worker
with open(sys.argv[1], "rb") as file:
    run_worker(pickle.load(file), int(sys.argv[2]), int(sys.argv[3]))
"""


class Attempts:
    """Live attempts of a worker index that Spark knows nothing of, and so does not kill."""

    def __init__(self, job: Any, directory: Path) -> None:
        self._plan = job._run.driver._supply._plan
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, index: int, armed: Armed | None = None) -> subprocess.Popen[str]:
        attempt = 1_000_000 + len(self._processes)
        # Its own watchdog would end a worker that has slept as soon as it wakes up: not this one's.
        plan = replace(self._plan, heartbeat_timeout_ms=60_000, failpoints=armed.plan if armed else None)
        path = self._directory / f"plan-{attempt}"
        path.touch(mode=0o600)
        path.write_bytes(cloudpickle.dumps(plan))
        arguments = [sys.executable, "-c", RUN_WORKER, str(path), str(index), str(attempt)]
        self._processes.append(subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True))
        return self._processes[-1]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
