"""What other users of the machine can read of a running job."""

from __future__ import annotations

import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import readable
import theirs
from jobs import DEADLINE_S, children_of, until

from crosscut.savepoints.manifest import check, opened
from crosscut.store.log_key import VARIABLE

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can enter: pytest's own are private."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_another_user_can_read_no_file_of_a_running_job_but_its_output(place: Path, engine: str) -> None:
    """Nor is anything left of a local Spark when the driver has been killed."""
    temporary = place / "tmp"
    temporary.mkdir(0o755)
    job = subprocess.Popen(
        [sys.executable, readable.__file__, str(place), engine],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        umask=0o022,
        text=True,
    )
    try:
        assert job.stdout is not None
        lines = (line.strip() for line in job.stdout)
        assert any(line.isdecimal() and int(line) >= 6 for line in lines), "the job has ended"
        private = [path for path in files_below(place) if holds_canary(path)]
        if engine == "micro-batch":
            shuffled = [path for path in files_below(place) if path.name.startswith("shuffle_")]
            assert shuffled, "no shuffle file was looked at"
        assert private, "no checkpoint was looked at"
        assert any("out" in Path(path).parts for path in readable_for_others(place)), "nothing was looked at"
        assert [path for path in readable_for_others(place) if "out" not in Path(path).parts] == []
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait(DEADLINE_S)
        if job.stdout is not None:
            job.stdout.close()
    until(lambda: not list(temporary.glob("crosscut-spark-*")), "Spark's directories to be removed")


def test_a_job_is_stopped_from_another_terminal_and_its_processes_have_no_key(place: Path) -> None:
    """S8: neither the JVM nor a worker has the key of the job log in its environment."""
    key = secrets.token_hex(32)
    environment = {**os.environ, "TMPDIR": str(place), VARIABLE: key}
    job = subprocess.Popen(
        [sys.executable, readable.__file__, str(place), "continuous"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout is not None
        lines = (line.strip() for line in job.stdout)
        assert any(line.isdecimal() and int(line) >= 2 for line in lines), "the job has ended"
        family = children_of(job.pid)
        assert len(family) >= 3
        for pid in family:
            with suppress(FileNotFoundError, ProcessLookupError):
                assert key.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert key.encode() in Path(f"/proc/{job.pid}/environ").read_bytes()
        command = [sys.executable, "-m", "crosscut", "savepoint", str(place / "checkpoints"), "saved"]
        how: dict[str, Any] = {"env": environment, "capture_output": True, "text": True, "check": True}
        said = subprocess.run(command, cwd=place, timeout=DEADLINE_S, **how)
        assert str(place / "saved") in said.stdout
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, key)
            check(opened(place / "saved"))
        command = [sys.executable, "-m", "crosscut", "stop", str(place / "checkpoints")]
        said = subprocess.run(command, timeout=DEADLINE_S, **how)
        assert said.stdout.endswith("the job has ended: stopped\n")
        assert job.wait(DEADLINE_S) == 0
        assert not (place / "checkpoints" / "page.json").exists()
    finally:
        job.kill()
        job.wait(DEADLINE_S)
        if job.stdout is not None:
            job.stdout.close()
    until(lambda: not list(place.glob("crosscut-spark-*")), "Spark's directories to be removed")


def files_below(place: Path) -> list[Path]:
    # Not `rglob`, which ends at the first directory that it may not enter.
    found = (Path(directory, name) for directory, _, names in os.walk(place) for name in names)
    return [path for path in found if path.is_file()]


def holds_canary(path: Path) -> bool:
    try:
        return readable.CANARY.encode() in path.read_bytes()
    except FileNotFoundError:
        return False


def readable_for_others(place: Path) -> list[str]:
    """Return the files below `place` that another user can open; tried out, if this user can become one."""
    if os.geteuid() != 0:
        return [str(path) for path in files_below(place) if mode_lets_others_read(path, place)]
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(sender, json.dumps([str(one) for one in files_below(place) if opens(one)]).encode())
        finally:
            os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as answer:
        found: list[str] = json.loads(answer.read())
    os.waitpid(child, 0)
    return found


def opens(path: Path) -> bool:
    try:
        path.open("rb").close()
    except OSError:
        return False
    return True


def mode_lets_others_read(path: Path, place: Path) -> bool:
    try:
        passes = all(
            one.stat().st_mode & stat.S_IXOTH for one in path.parents if place in (one, *one.parents)
        )
        return passes and bool(path.stat().st_mode & stat.S_IROTH)
    except FileNotFoundError:
        return False


def test_a_users_own_spark_whose_files_others_can_read_is_named_and_refused_under_strict(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, theirs.__file__, str(place)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=3 * DEADLINE_S,
        check=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["private"] == {"error": "", "warnings": []}
    assert report["encrypted"] == {"error": "", "warnings": []}
    (warning,) = report["public"]["warnings"]
    for text in (warning, report["strict"]["error"]):
        assert str(place / "public") in text
        assert "spark.io.encryption.enabled=true" in text
    assert report["public"]["error"] == ""
