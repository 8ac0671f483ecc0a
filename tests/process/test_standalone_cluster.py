"""Micro-batches on a standalone cluster of real processes: a master, two workers, and executors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clustered
import pyspark
import pytest
from jobs import DEADLINE_S, children_of, is_gone, until

from crosscut.spark.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = ("127.0.0.1", "127.0.0.2")
"""Spark runs a copy of a task on another host only. To Linux all of 127/8 is this machine."""


class Process:
    """One process of the cluster, and what it says."""

    def __init__(self, java_home: Path, host: str, kind: str, *arguments: str) -> None:
        self.host = host
        self.said = ""
        self._process = subprocess.Popen(
            [
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
                "SPARK_DAEMON_JAVA_OPTS": f"{clustered.QUICK_TO_START} -Dspark.ui.reverseProxy=true",
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
    """A master: where it is, and where its pages are, which are those of all others, too."""

    master_url: str
    web_url: str


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with find_java().launch_home() as java_home:
        processes = [Process(java_home, "127.0.0.1", "Master")]
        try:
            url = processes[0].has_said(r"Starting Spark master at (spark://\S+)")
            for host in WORKERS:
                where = ("--cores", "2", "--memory", "2g", "--work-dir", str(tmp_path / host))
                processes.append(Process(java_home, host, "Worker", url, *where))
            for worker in processes[1:]:
                worker.has_said(r"(Successfully registered) with master")
            web_url = processes[0].has_said(r"MasterWebUI to .*, and started at (http://\S+)")
            yield Cluster(url, web_url)
        finally:
            for one in reversed(processes):
                one.end()


def executor_of(pid: int) -> int:
    """Return the executor that a process of the job's code belongs to."""
    while True:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid


def asked(link: str, path: str, body: Any = None, *, origin: str = "", status: int = 200) -> bytes:
    """Return what the page says, to a browser that has its link."""
    address, _, token = link.partition("#")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    if origin:
        headers["Origin"] = origin
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            found = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        found = error.code, error.read()
    assert found[0] == status, found
    return bytes(found[1])


def test_stragglers_are_overtaken_and_a_killed_executor_is_made_up_for_and_output_is_exact(
    tmp_path: Path, cluster: Cluster
) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    driver = subprocess.Popen(
        [sys.executable, clustered.__file__, str(directory), cluster.master_url, cluster.web_url],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    numbered = clustered.troubled(directory)
    try:
        # The straggler's batch is over by then, though the attempt that straggles has not come to its end.
        until(lambda: (directory / "waiting").exists() or driver.poll() is not None, "the second half")
        assert driver.poll() is None, driver.communicate()[1]
        assert (directory / "straggled").exists()
        pid = int(until((directory / "waiting").read_text, "the waiting attempt"))
        # Meanwhile the page is found through the master's proxy, and who has its link may act.
        written = directory / "link"
        link = until(lambda: written.exists() and written.read_text(), "the link of the page")
        assert re.fullmatch(rf"{re.escape(cluster.web_url)}/proxy/app-[^/]+/crosscut/numbered/#.+", link)
        assert b"page.js" in asked(link, "")
        assert json.loads(asked(link, "api/job"))["job"]["name"] == "numbered"
        told = asked(link, "api/savepoint", {"path": str(directory)}, origin=cluster.web_url, status=409)
        assert "a savepoint needs a directory of its own" in json.loads(told)["said"]
        killed = executor_of(pid)
        os.kill(killed, signal.SIGKILL)
        until(lambda: is_gone(killed), "the end of the executor")
        numbered.check_nothing_is_visible_too_early()
        (directory / "go on").touch()
        out, errors = driver.communicate(timeout=2 * DEADLINE_S)
    finally:
        (directory / "never").touch()
        if driver.poll() is None:
            driver.kill()
            driver.communicate()
    assert driver.returncode == 0, errors
    # Spark has made up for all of it: the job has not gone back once.
    assert json.loads(out.splitlines()[-1])["status"] == "finished"
    assert json.loads(out.splitlines()[-1])["epoch"] == 1
    numbered.check_output_is_exact()
