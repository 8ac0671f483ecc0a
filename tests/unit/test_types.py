"""A type checker knows what the records of a stream are: what is right passes, what is wrong does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "typed"


def test_mypy_passes_what_is_right_and_finds_each_thing_that_is_wrong(tmp_path: Path) -> None:
    """Both in one run, since most of it is reading the library."""
    options = [
        "--strict",
        "--config-file=",
        f"--cache-dir={tmp_path}",
        "--no-error-summary",
        "--no-color-output",
    ]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=PROGRAMS,
        capture_output=True,
        text=True,
        timeout=100,
    )
    found = re.findall(r"^(\S+):(\d+): error: .*\[([\w-]+)\]$", checked.stdout, re.MULTILINE)
    expected = [
        ("wrong.py", str(number), kind)
        for number, line in enumerate((PROGRAMS / "wrong.py").read_text().splitlines(), 1)
        if (mark := re.search(r"# wrong: (.*)$", line))
        for kind in mark[1].split(", ")
    ]
    assert len(expected) > 10
    assert sorted(found) == sorted(expected), checked.stdout + checked.stderr
