"""Hosts of a standalone cluster that vanish: nothing on them answers any more, and nobody says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vanishing
from jobs import children_of, until
from standalone import Cluster, standing_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standing_cluster(tmp_path_factory.mktemp("cluster")) as one:
        yield one


class Host:
    """All processes below a worker daemon: to everybody else a host."""

    def __init__(self, daemon: int) -> None:
        self._daemon = daemon
        self._stopped: list[int] = []

    @property
    def pids(self) -> list[int]:
        return [self._daemon, *children_of(self._daemon)]

    def fall_silent(self) -> None:
        # A process that was started meanwhile is found in the second round.
        for _ in range(2):
            for pid in self.pids:
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append(pid)

    def speak_again(self) -> None:
        for pid in self._stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


class VanishingJob:
    """The driver of the job, and what it says."""

    def __init__(self, directory: Path, master: str) -> None:
        self.said: list[dict[str, Any]] = []
        with (directory / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, vanishing.__file__, str(directory), master],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.said.append(json.loads(line))

    @property
    def newest(self) -> dict[str, Any]:
        assert self.process.poll() is None or self.said[-1]["status"] == "finished", self.said[-1:]
        return self.said[-1] if self.said else {}

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


def test_workers_of_a_vanished_host_start_elsewhere_before_spark_finds_out(
    tmp_path: Path, cluster: Cluster
) -> None:
    """P5, I15: Spark itself would wait for an hour; the host is named."""
    directory = tmp_path / "job"
    directory.mkdir()
    numbered = vanishing.numbered_in(directory)
    job = VanishingJob(directory, cluster.master_url)
    hosts = [Host(pid) for pid in cluster.pids[1:]]
    try:
        until(lambda: job.newest.get("checkpoints", 0) >= 3, "checkpoints")
        pids = job.newest["pids"]
        (lost,) = [host for host in hosts if pids[0] in host.pids]
        lost.fall_silent()
        until(lambda: job.newest["restarts"] >= 1, "the loss to be noticed")
        completed = job.newest["checkpoints"]
        until(lambda: job.newest["checkpoints"] > completed + 1, "checkpoints of the next epoch")
        assert not set(job.newest["pids"]) & set(lost.pids)
        assert job.newest["restarts"] == 1
        assert "127.0.0." in job.newest["failure"]
        numbered.open_gate()
        until(lambda: job.newest["status"] == "finished", "the end of the job")
    finally:
        for host in hosts:
            host.speak_again()
        job.end()
    numbered.check_output_is_exact()
    text = (directory / "errors").read_text()
    assert "does not answer" in text and "Spark was told to start its tasks elsewhere" in text
