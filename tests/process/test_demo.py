"""The demo, as users run it: real workers, a real kill, an exact result."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import DEADLINE_S

from crosscut.cli.demo.corpus import write_corpus

PROGRAM = [sys.executable, "-c", "from crosscut.cli.commands import main; main()"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return os.environ | {"TMPDIR": str(temporary)}


def left_over(environment: dict[str, str]) -> list[Path]:
    return list(Path(environment["TMPDIR"]).glob("crosscut-*"))


def test_the_count_is_exact_although_a_worker_is_killed(tmp_path: Path, environment: dict[str, str]) -> None:
    text = write_corpus(tmp_path / "corpus", 8_000_000)
    ran = subprocess.run(
        [*PROGRAM, "demo", "--input", text, "--checkpoint-interval", "50ms"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"killed worker 0, pid \d+, with SIGKILL at \d+% of the input", ran.stdout)
    assert re.search(r"epoch \d+: records flow again", ran.stdout)
    assert re.search(r"kill +\d+\.\d+ s +until records flow again after SIGKILL", ran.stdout)
    assert "identical: every word has its updates 1, 2, ... n, each exactly once" in ran.stdout
    assert left_over(environment) == []


def test_ctrl_c_stops_the_demo_and_cleans_up(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo", "--plain"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any("running" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "interrupted"
    assert "Traceback" not in errors
    assert left_over(environment) == []
