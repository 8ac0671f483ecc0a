"""A standalone cluster of real processes: a master, two workers, and the executors that these start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from clustered import QUICK_TO_START
from jobs import DEADLINE_S, children_of, is_gone, until

from crosscut.spark.cluster.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = ("127.0.0.1", "127.0.0.2")
"""Spark runs a copy of a task on another host only. To Linux all of 127/8 is this machine."""


class Process:
    """One process of the cluster, and what it says."""

    def __init__(
        self, java_home: Path, host: str, kind: str, *arguments: str, inside: tuple[str, ...] = ()
    ) -> None:
        self.host = host
        self.said = ""
        self._process = subprocess.Popen(
            [
                *inside,
                str(SPARK_HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind.lower()}.{kind}",
                *("--host", host, "--port", "0", "--webui-port", "0"),
                *arguments,
            ],
            env={
                **os.environ,
                "SPARK_HOME": str(SPARK_HOME),
                "JAVA_HOME": str(java_home),
                "SPARK_LOCAL_IP": host,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_TO_START} -Dspark.ui.reverseProxy=true",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.said += line

    def has_said(self, pattern: str) -> str:
        """Wait until it has; return the first group."""

        def found() -> str:
            assert self._process.poll() is None, self.said
            match = re.search(pattern, self.said)
            return match[1] if match else ""

        return str(until(found, f"{pattern} of {self.host}"))

    def end(self) -> None:
        family = [self.pid, *children_of(self.pid)]
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        # A worker ends its executors, which end what they have started.
        for pid in family:
            if not is_gone(pid) and not _ends_soon(pid):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(DEADLINE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _ends_soon(pid: int) -> bool:
    pause = threading.Event()
    for _ in range(100):
        if is_gone(pid):
            return True
        pause.wait(0.05)
    return False


@dataclass(frozen=True)
class Cluster:
    """A master: where it is, and where its pages are, which are those of all others, too.

    Attributes:
        pids: Of the master and its workers.
    """

    master_url: str
    web_url: str
    pids: tuple[int, ...]


@contextmanager
def standing_cluster(directory: Path, private: Path | None = None) -> Iterator[Cluster]:
    """Start a cluster, and end all of it.

    Args:
        private: A directory that the second host has for itself. That takes root.
    """
    own = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs "{private}" && exec "$@"', "sh")
    with find_java().launch_home() as java_home:
        processes = [Process(java_home, "127.0.0.1", "Master")]
        try:
            url = processes[0].has_said(r"Starting Spark master at (spark://\S+)")
            for host in WORKERS:
                where = ("--cores", "2", "--memory", "2g", "--work-dir", str(directory / host))
                inside = own if private is not None and host == WORKERS[-1] else ()
                processes.append(Process(java_home, host, "Worker", url, *where, inside=inside))
            for worker in processes[1:]:
                worker.has_said(r"(Successfully registered) with master")
            web_url = processes[0].has_said(r"MasterWebUI to .*, and started at (http://\S+)")
            yield Cluster(url, web_url, tuple(one.pid for one in processes))
        finally:
            for one in reversed(processes):
                one.end()


def executors_of(*pids: int) -> list[int]:
    """Return the executors below these processes that run Python code, the same order at any time."""
    found = [one for pid in pids for one in children_of(pid) if is_executor(one)]
    return sorted({one for one in found if children_of(one)})


def is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
