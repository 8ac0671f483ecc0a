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
from crosscut.protocol.job.restarts import GiveUp
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
        # As the coordinator says it of a log whose store does not answer.
        (FailureCause("StoreError", "the job log can't be written: no answer", is_transient=True), STORE),
        # A client that is no OSError, for as long as the restart strategy lasts.
        (
            GiveUp(FailureCause("OperationalError", "o", operator="map"), "100 failures", "", True).shown,
            FAILED,
        ),
        (
            GiveUp(FailureCause("OperationalError", "o", operator="map"), "the same record failed").shown,
            HOPELESS,
        ),
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


def test_the_error_of_a_start_is_as_transient_as_its_cause() -> None:
    """`flow.start` raises the cause, which was made of text."""
    cause = FailureCause("StoreError", "the job log can't be written: no answer", is_transient=True)
    error = failure_of("job", EndJob("failed", cause), None).__cause__
    assert isinstance(error, errors.StoreError) and exit_code(error) == STORE
    refused = failure_of("job", EndJob("failed", FailureCause("StoreError", "m")), None).__cause__
    assert isinstance(refused, errors.StoreError) and exit_code(refused) == REFUSED


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
            assert sys.argv[1:] == ["run", "app.py"] and os.environ["CROSSCUT_KEPT"] == str(os.getppid())
            plan = pathlib.Path("plan")
            code, *rest = plan.read_text().split()
            plan.write_text(" ".join(rest))
            if code == "wait":
                def end(*_):
                    pathlib.Path("ended").touch()
                    sys.exit(0)
                for number in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, end)
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


@pytest.mark.parametrize("code", [2, 3, 5, 6, 130])
def test_a_job_is_not_started_again_after_what_will_not_pass(command: Path, code: int) -> None:
    (command / "plan").write_text(f"{code} 0")
    notes: list[str] = []
    assert keep(["run", "app.py"], notes.append) == code
    assert notes == [] and (command / "plan").read_text() == "0"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_job_ends_in_order_with_its_keeper(command: Path, number: signal.Signals) -> None:
    """A signal is passed on, and ends the keeping. For a keeper that is killed the system does it."""
    (command / "plan").write_text("wait 1")
    program = "from crosscut.cli.keeping import keep; import sys; sys.exit(keep(['run', 'app.py'], print))"
    source = str(Path(errors.__file__).parents[1])
    # The keeper itself has the real package.
    bootstrap = f"import os, sys; sys.path[:] = [{source!r}, *[one for one in sys.path if one]]; {program}"
    with subprocess.Popen([sys.executable, "-P", "-c", bootstrap], cwd=command) as keeper:
        wait_for(command / "waits")
        os.kill(keeper.pid, number)
        code = keeper.wait(DEADLINE_S)
        wait_for(command / "ended")
    assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    assert (command / "plan").read_text() == "1"


def wait_for(path: Path) -> None:
    waited = threading.Event()
    for _ in range(int(DEADLINE_S / 0.02)):
        if path.exists():
            return
        waited.wait(0.02)
    raise AssertionError(f"there is no {path} after {DEADLINE_S:g} s")
