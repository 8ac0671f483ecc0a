"""A program that brings a Spark of its own, as a notebook does: `local[4]`, which gives a lost worker up.

And its JVM dies. Each test looks at what one run of `sessions` has reported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jobs
import pytest
import sessions
from jobs import DEADLINE_S, NumberedJob


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a program with a session of its own has to say: see `sessions`."""
    directory = tmp_path_factory.mktemp("sessions")
    ran = subprocess.run(
        [sys.executable, sessions.__file__, str(directory)],
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_S,
    )
    assert ran.returncode == 0, ran.stderr
    found = {report.pop("step"): report for report in map(json.loads, ran.stdout.splitlines())}
    return {**found, "directory": {"path": directory}}


def test_it_is_run_on_with_a_warning_at_the_users_line(reports: dict[str, Any]) -> None:
    (warning,) = reports["started"]["warnings"]
    assert warning.startswith(jobs.__file__)
    assert "Spark's master is 'local[4]', which allows a Spark task one attempt" in warning
    assert "'local[4,1000000]'" in warning


def test_sparks_pages_show_it_by_the_name_of_the_flow(reports: dict[str, Any]) -> None:
    assert reports["started"]["stages"] == ["crosscut: numbered"]


def test_the_workers_run_with_the_programs_own_python(reports: dict[str, Any]) -> None:
    assert reports["finished"]["python"] == "/usr/bin/no-such-python3", "what else it runs is its business"


def test_a_second_flow_is_told_which_job_holds_the_slots(reports: dict[str, Any]) -> None:
    error = reports["second"]["error"]
    assert error.startswith(
        "parallelism=3, but Spark has 4 task slots in all, of which job 'numbered' holds 2"
    )
    assert "master 'local[5,1000000]'" in error


def test_a_lost_worker_costs_all_of_them_and_the_job_goes_on_exactly(reports: dict[str, Any]) -> None:
    assert reports["recovered"]["lost"] not in reports["recovered"]["pids"]
    assert reports["finished"]["error"] == ""
    NumberedJob(reports["directory"]["path"] / "first", rate=None, held=1).check_output_is_exact()


def test_the_end_of_its_jvm_is_a_named_error_of_a_job_that_can_still_be_asked(
    reports: dict[str, Any],
) -> None:
    """N4."""
    lost = reports["lost"]
    assert lost["kind"] == "WorkersError"
    assert "Spark's JVM is gone" in lost["error"]
    assert lost["status"] == "failed"
    assert lost["checkpoints"] >= 1


def test_the_dead_session_is_refused_by_name_and_the_next_start_has_a_new_one(
    reports: dict[str, Any],
) -> None:
    """N4."""
    assert reports["their dead one"]["error"].startswith("Spark's JVM is gone")
    assert reports["again"] == {"error": "", "kind": "", "own": True}
    NumberedJob(reports["directory"]["path"] / "last", rate=None, held=1).check_output_is_exact()
