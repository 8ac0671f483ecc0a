"""`crosscut doctor`: what is there, what is missing, and what to do."""

from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from crosscut.cli import doctor
from crosscut.cli.commands import program
from crosscut.cli.doctor import Finding


def of(name: str, found: list[Finding]) -> Finding:
    (one,) = [one for one in found if one.what == name]
    return one


def test_a_machine_that_runs_these_tests_has_all_that_is_needed(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    found = list(doctor.findings(2, str(directory), 4400))
    assert [one.what for one in found if one.level == "problem"] == []
    assert of("pyspark", found).level == "ok"
    assert of("checkpoint directory", found).found == f"{directory}: files are created once and stay"
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    assert "pyarrow" in of("parquet", found).found


def test_a_directory_that_is_there_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    assert doctor.directory_found(str(tmp_path)).level == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_what_is_missing_is_a_problem_with_a_reason_and_the_exit_code_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = CliRunner().invoke(program, ["doctor", "--checkpoint-dir", str(file)], env={"COLUMNS": "300"})
    assert result.exit_code == 1
    (line,) = [one for one in result.output.splitlines() if "checkpoint directory" in one]
    assert line.startswith("problem")
    assert "is not a directory; move that file away" in line


def test_a_file_system_without_put_if_absent_is_named() -> None:
    found = list(doctor.findings(2, "ftp://host/job", 4400))
    assert of("checkpoint directory", found).level == "problem"


def test_a_port_in_use_is_no_problem_and_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = doctor.port_found(taken.getsockname()[1])
    assert (found.level, found.advice) == ("warning", "the next free one is taken; or set web_port")


def test_more_workers_than_processors_are_a_warning() -> None:
    assert doctor.slots_found(10_000).level == "warning"
    assert doctor.slots_found(1).level == "ok"


def test_nothing_that_is_said_is_cut_off_however_narrow_the_terminal() -> None:
    path = "/usr/lib/jvm/java-17-openjdk-amd64-with-a-long-name"
    console = Console(file=io.StringIO(), width=60, color_system=None)
    console.print(doctor.shown([Finding("java", "warning", path, "pip install 'crosscut[something]'")]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "…" not in "".join(lines)
    assert sorted("".join("".join(lines).split())) == sorted(
        "".join(f"warning java {path} pip install 'crosscut[something]'".split())
    )


def test_a_package_that_is_not_there_has_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        "nowhere-to-be-found==1.2",
        'pyarrow>=20; extra == "parquet"',
        'none-such[x]>=1; extra == "lake"',
    ]
    monkeypatch.setattr(doctor, "requires", lambda name: wanted)
    assert doctor.package_found("nowhere-to-be-found") == Finding(
        "nowhere-to-be-found", "problem", "not installed", "pip install 'nowhere-to-be-found==1.2'"
    )
    lake, parquet = doctor.extras_found()
    assert (lake.level, lake.found) == ("optional", "not installed: none-such")
    assert lake.advice == "for lake: pip install 'crosscut[lake]'"
    assert parquet.advice == ""
