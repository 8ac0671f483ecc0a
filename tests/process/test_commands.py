"""Commands of another terminal to a job with default settings: no page, in either engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, until

from crosscut.web.endpoint import NAME


def said(command: str, *arguments: str) -> str:
    """Return what a command prints that another process runs."""
    line = [sys.executable, "-m", "crosscut", command, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    return done.stdout


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_a_job_without_a_page_is_stopped_from_another_terminal(
    tmp_path: Path, started: Any, engine: str
) -> None:
    numbered = NumberedJob(tmp_path, count=20_000, held=1, settings={"engine": engine})
    job = started(numbered)
    assert job.page == ""
    until(lambda: job.report().records_read > 0, "records")
    directory = Path(numbered.checkpoint_dir)
    until((directory / NAME).exists, "the file that commands read")
    assert (directory / NAME).stat().st_mode & 0o777 == 0o600
    assert "complete" in said("checkpoint", str(directory))
    saved = str(tmp_path / "saved")
    assert saved in said("savepoint", str(directory), saved)
    assert os.listdir(saved)
    assert said("stop", str(directory)).endswith("the job has ended: stopped\n")
    assert not job.wait(DEADLINE_S) or job.status == "stopped"
    assert not (directory / NAME).exists()
