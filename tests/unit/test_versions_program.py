"""What `python -m tests.versions` does before it makes an environment, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.versions import CommandError, Pair, interpreter, main, matrix, pythons, run, sparks


def test_all_supported_versions_are_tried() -> None:
    assert sparks() == ["4.1", "4.2", "4.3"]
    assert pythons() == ["3.11", "3.12", "3.13", "3.14"]


def test_a_python_that_this_machine_lacks_is_named_and_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A shim of another version, as pyenv has one for each name.
    shim = tmp_path / "python3.14"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert main(["--python", "3.14"]) == 2
    assert "Python 3.14 is left out: this machine has none" in capsys.readouterr().out


def test_an_interpreter_of_pyenv_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = tmp_path / "versions" / f"{version}.99" / "bin" / "python"
    found.parent.mkdir(parents=True)
    found.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert interpreter(version) == found


def test_a_command_that_fails_is_told_with_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"exit code 3\nlast words"):
        run(sys.executable, "-c", "print('last words'); raise SystemExit(3)", cwd=tmp_path, timeout_s=60)


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """As Spark's JVM is left by a driver that was killed."""
    child = "import time; time.sleep(600)"
    program = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.DEVNULL, "
        "stderr=subprocess.DEVNULL).pid)"
    )
    pid = int(run(sys.executable, "-c", program, cwd=tmp_path, timeout_s=60))
    # A signal is on its way for a moment.
    deadline_s = time.monotonic() + 60
    while _state(pid) not in ("", "Z"):
        assert time.monotonic() < deadline_s, "it goes on"
        time.sleep(0.01)


def _state(pid: int) -> str:
    """Return the state of a process as `ps` has it, "" if there is none."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1]


def test_the_matrix_has_a_row_for_each_pair_and_says_what_failed() -> None:
    pair = Pair("4.1", "3.12", {"demo": "exact, 9 s", "micro-batch": "failed"}, "4.1.4, 3.12.1", "why")
    assert pair.has_failed
    cells = [list(column.cells) for column in matrix([pair]).columns]
    assert [one for (one,) in cells] == [
        "4.1",
        "3.12",
        "yes",
        "exact, 9 s",
        "failed",
        "-",
        "-",
        "4.1.4, 3.12.1",
    ]
