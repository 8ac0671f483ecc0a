"""What exit codes tell a supervisor, and the process that starts a job again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from crosscut import errors
from crosscut.cli.exit_codes import FAILED, FENCED, HOPELESS, REFUSED, STORE, exit_code
from crosscut.cli.keeping import keep
from crosscut.errors import CrosscutError
from crosscut.net.causes import failure_cause
from crosscut.protocol.effects import EndJob
from crosscut.protocol.messages import FailureCause
from crosscut.spark.cluster.endings import failure_of

DEADLINE_S = 60.0


def caused(error: CrosscutError, cause: BaseException) -> CrosscutError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SettingsError("s"), REFUSED),
        (errors.FlowError("f"), REFUSED),
        (errors.StoreError("damaged", damaged=True), REFUSED),
        (errors.AuthenticityError("a"), REFUSED),
        (caused(errors.StoreError("away"), ConnectionError()), STORE),
        (errors.WorkersError("no slots"), FAILED),
    ],
    ids=repr,
)
def test_a_job_that_could_not_start_may_start_later_or_needs_a_change(
    error: CrosscutError, code: int
) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (FailureCause("WorkerLost", "w", is_transient=True), FAILED),
        (FailureCause("CheckpointsFailed", "c", is_transient=True), FAILED),
        (FailureCause("WorkersError", "m", is_final=True, is_transient=True), FAILED),
        (failure_cause(caused(errors.StoreError("away"), ConnectionError())), STORE),
        (FailureCause("StoreError", "damaged", is_final=True), HOPELESS),
        (failure_cause(errors.HistoryError("h")), HOPELESS),
        (FailureCause("InvariantBroken", "m"), HOPELESS),
        (failure_cause(errors.UserCodeError("u", operator="map", record="1", traceback="")), HOPELESS),
    ],
    ids=repr,
)
def test_a_failed_job_says_whether_another_start_may_help(cause: FailureCause, code: int) -> None:
    assert exit_code(failure_of("job", EndJob("failed", cause), None)) == code


def test_a_job_that_another_driver_has_taken_over_says_so() -> None:
    assert exit_code(failure_of("job", EndJob("fenced", FailureCause("Fenced", "f")), None)) == FENCED


# The keeper: a module of the name `crosscut` in the working directory stands for the command.


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that ends as the next line of a file says."""
    (tmp_path / "crosscut").mkdir()
    (tmp_path / "crosscut" / "__init__.py").touch()
    (tmp_path / "crosscut" / "__main__.py").write_text(
        textwrap.dedent(
            """
            import os, pathlib, signal, sys, time
            assert sys.argv[1:] == ["run", "app.py"] and os.environ["CROSSCUT_KEPT"] == "1"
            plan = pathlib.Path("plan")
            code, *rest = plan.read_text().split()
            plan.write_text(" ".join(rest))
            if code == "wait":
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                pathlib.Path("waits").touch()
                while True:
                    time.sleep(0.01)
            if int(code) < 0:
                os.kill(os.getpid(), -int(code))
            sys.exit(int(code))
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    # The directory comes before the real package.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_job_is_started_again_after_what_may_pass_until_it_is_done(
    command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crosscut.cli.keeping.FIRST_PAUSE_S", 0.01)
    (command / "plan").write_text(f"1 4 {-signal.SIGKILL} 0")
    notes: list[str] = []
    assert keep(["run", "app.py"], notes.append) == 0
    assert [one.partition(";")[0] for one in notes] == [
        "the job has ended with exit code 1",
        "the job has ended with exit code 4",
        "the job has ended with signal 9",
    ]
    assert [one.rpartition(" in ")[2] for one in notes] == ["0.01 s", "0.02 s", "0.04 s"]


@pytest.mark.parametrize("code", [2, 3, 5, 130])
def test_a_job_is_not_started_again_after_what_will_not_pass(command: Path, code: int) -> None:
    (command / "plan").write_text(f"{code} 0")
    notes: list[str] = []
    assert keep(["run", "app.py"], notes.append) == code
    assert notes == [] and (command / "plan").read_text() == "0"


def test_a_signal_is_passed_on_and_ends_the_keeping(command: Path) -> None:
    (command / "plan").write_text("wait 1")
    program = "from crosscut.cli.keeping import keep; import sys; sys.exit(keep(['run', 'app.py'], print))"
    source = str(Path(errors.__file__).parents[1])
    # The keeper itself has the real package.
    bootstrap = f"import os, sys; sys.path[:] = [{source!r}, *[one for one in sys.path if one]]; {program}"
    with subprocess.Popen([sys.executable, "-P", "-c", bootstrap], cwd=command) as keeper:
        waited = threading.Event()
        for _ in range(int(DEADLINE_S / 0.02)):
            if (command / "waits").exists():
                break
            waited.wait(0.02)
        os.kill(keeper.pid, signal.SIGTERM)
        assert keeper.wait(DEADLINE_S) == 0
    assert (command / "plan").read_text() == "1"
