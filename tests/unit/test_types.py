"""A type checker knows what the records of a stream are: what is right passes, what is wrong does not."""

from __future__ import annotations

import json
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


def test_pyright_passes_what_is_right_and_the_examples_and_finds_each_thing_that_is_wrong(
    tmp_path: Path,
) -> None:
    """basedpyright, with the rules of pyright: it is pyright with its Node in the package."""
    root = PROGRAMS.parents[2]
    right = [PROGRAMS / "right.py", *sorted((root / "examples").glob("*.py"))]
    wrong = PROGRAMS / "wrong.py"
    project = tmp_path / "pyrightconfig.json"
    project.write_text(
        json.dumps(
            {
                "typeCheckingMode": "standard",
                "include": [str(path) for path in (*right, wrong)],
                "extraPaths": [str(root / "src")],
            }
        )
    )
    program = Path(sys.executable).with_name("basedpyright")
    options = ["--outputjson", "--project", str(project), "--pythonpath", sys.executable]
    checked = subprocess.run([program, *options], capture_output=True, text=True, timeout=100)
    report = json.loads(checked.stdout)
    assert report["summary"]["filesAnalyzed"] == len(right) + 1
    found = [
        (one["file"], one["range"]["start"]["line"] + 1, one["message"])
        for one in report["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert [one for one in found if one[0] != str(wrong)] == []
    marked = [number for number, line in enumerate(wrong.read_text().splitlines(), 1) if "# wrong: " in line]
    assert sorted({line for _, line, _ in found}) == marked, found
