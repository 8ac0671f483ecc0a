"""A job whose ports are flooded with connections goes on, and replaces a worker that it loses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flood
import pytest
from jobs import DEADLINE_S, NumberedJob, until


@contextmanager
def flooded(ports: list[int]) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process connect to `ports` without end; it ends with the block."""
    process = subprocess.Popen([sys.executable, flood.__file__, *map(str, ports)], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(DEADLINE_S)


@pytest.mark.parametrize("encryption", ["off", "on"])
def test_a_lost_worker_is_replaced_under_a_flood_of_silent_connections(
    tmp_path: Path, started: Any, encryption: str
) -> None:
    """M2, S13: connections that say nothing keep nobody out who proves the secret."""
    settings = {"encryption": encryption}
    numbered = NumberedJob(tmp_path, held=True, settings=settings)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 1, "a checkpoint", DEADLINE_S)
    victim, _ = started.watch(job)
    survivor = job._run.driver._coordinator.registry.held[1].registration.data_port
    with flooded([job._run.driver._listener._server.sockets[0].getsockname()[1], survivor]) as flooding:
        until(lambda: sum(job.report().refused_peers.values()) > 500, "the flood", DEADLINE_S)
        before = len(job.checkpoints())
        os.kill(victim, signal.SIGKILL)
        until(lambda: job.report().restarts >= 1, "the failover", DEADLINE_S)
        until(lambda: job.status == "running" and len(job.checkpoints()) > before + 1, "more", DEADLINE_S)
        assert flooding.poll() is None, "the flood has ended before"
    numbered.open_gate()
    started.finish(job, deadline_s=DEADLINE_S)
    numbered.check_output_is_exact()
