"""What a command says of itself: the options that one needs first, all of them on request, and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.test_cli import claim, completed, store_with
from tests.unit.test_seen import watched

from crosscut import Restart, Settings
from crosscut.cli.commands import program
from crosscut.cli.option_groups import GROUPS
from crosscut.contracts.engines import ENGINES
from crosscut.web.record import write_record


def invoked(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": None}).invoke(program, [str(one) for one in arguments])


def options_in(text: str) -> set[str]:
    return {line.split()[0].partition("/")[0] for line in text.splitlines() if line.startswith("  --")}


def test_help_of_run_has_the_options_that_one_needs_in_groups() -> None:
    assert invoked("run", "--help-all").exit_code == 0, "which changes nothing for the next call"
    text = invoked("run", "--help").output
    needed = {name for group in GROUPS for name in group.needed}
    assert len(needed) == 11
    shown = {name.removeprefix("--").replace("-", "_") for name in options_in(text)}
    assert shown == needed | {"plain", "keep", "help_all"}
    for group in GROUPS:
        assert (f"\n{group.title}:\n" in text) == bool(group.needed)
    assert len(text.splitlines()) < 60
    assert "--help-all" in text


def test_help_all_of_run_has_every_setting_in_one_group() -> None:
    text = invoked("run", "--help-all").output
    options = [
        one for kind in (Settings, *ENGINES) for one in fields(kind) if one.metadata.get("is_option", True)
    ]
    settings = [one.metadata.get("option", one.name) for one in options]
    settings += [f"restart_{one.name}" for one in fields(Restart)]
    grouped = [name for group in GROUPS for name in (*group.needed, *group.others)]
    of_spark = {"master", "configuration", "py_files", "archives"}
    assert sorted(grouped) == sorted([*settings, *of_spark])
    assert {f"--{name.replace('_', '-')}" for name in settings} <= options_in(text)


@pytest.mark.parametrize(
    ("option", "engines"),
    [
        ("--linger", "continuous or auto"),
        ("--batch-records-max", "micro-batch or auto"),
        ("--trigger", "micro-batch"),
        ("--behind-at", "auto"),
    ],
)
def test_help_all_says_which_engine_an_option_is_of(option: str, engines: str) -> None:
    text = " ".join(invoked("run", "--help-all").output.split())
    _, _, after = text.partition(f" {option} ")
    assert f"With --engine {engines}: " in after[:90]


def lines_of(*arguments: object) -> list[dict[str, Any]]:
    result = invoked(*arguments)
    assert result.exit_code in (0, 1), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_checkpoints_can_be_read_by_programs(tmp_path: Path) -> None:
    store_with(tmp_path, claim(2), completed(1), completed(2))
    listed = lines_of("checkpoints", "ls", tmp_path, "--json")
    assert listed
    assert {"checkpoint", "epoch", "completed", "duration_ms", "state_bytes", "is_final"} <= listed[0].keys()
    (shown,) = lines_of("checkpoints", "show", tmp_path, "--json")
    assert shown["checkpoint"] == listed[-1]["checkpoint"]
    assert {"task", "parts", "state_bytes", "rows", "positions"} <= shown["snapshots"][0].keys()


def test_pending_transactions_can_be_read_by_programs(tmp_path: Path) -> None:
    store_with(tmp_path, claim(2), completed(1), completed(2))
    listed = lines_of("transactions", "ls", tmp_path, "--json")
    assert listed
    for one in listed:
        assert {"task", "checkpoint", "held_bytes", "state", "handle"} <= one.keys()


def test_doctor_can_be_read_by_programs() -> None:
    found = lines_of("doctor", "--json")
    assert {"what", "level", "found", "advice"} == found[0].keys()
    assert any(one["what"].lower().startswith("python") for one in found)


def test_top_can_be_read_by_programs(tmp_path: Path) -> None:
    write_record(str(tmp_path), {"job": watched().metrics().as_dict()})
    (job,) = lines_of("top", tmp_path, "--json")
    assert job["status"] == "running"
    assert job["age_s"] >= 0
    assert [one["vertex"] for one in job["vertices"]]


@pytest.mark.parametrize(
    ("words", "incomplete", "kinds"),
    [
        ("crosscut top ", "", {"dir"}),
        ("crosscut run ", "app", {"file"}),
        ("crosscut run app.py --checkpoint-dir ", "", {"dir"}),
        ("crosscut run app.py --engine ", "mi", {"plain"}),
        ("crosscut ", "bro", {"plain"}),
        ("crosscut broker --dir ", "", {"dir"}),
    ],
)
def test_a_shell_is_told_what_to_complete(words: str, incomplete: str, kinds: set[str]) -> None:
    environment = {
        **os.environ,
        "_CROSSCUT_COMPLETE": "bash_complete",
        "COMP_WORDS": words + incomplete,
        "COMP_CWORD": str(len(words.split())),
    }
    program = "import sys; sys.argv = ['crosscut']; from crosscut.cli.commands import main; main()"
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert {line.partition(",")[0] for line in shown.stdout.splitlines()} == kinds, shown


@pytest.mark.parametrize("name", ["", "a/b", "a:0", "a:", "a:x", "..", "ö", "x" * 250])
def test_a_topic_that_can_not_be_made_is_refused_before_a_broker_starts(name: str) -> None:
    result = invoked("broker", "--topic", name)
    assert result.exit_code == 2
    assert "--topic" in result.output
    assert "as in orders:3" in result.output
