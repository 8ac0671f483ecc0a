"""Neither a log nor a file holds the job's secret or the key of its TLS, whatever is logged and wherever
Spark writes its closures."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import debugged
from debugged import forms_of, found_in, secrets_of
from jobs import DEADLINE_S

from crosscut.net.connections import Credentials
from crosscut.net.encryption import make_certificate
from crosscut.store.log_key import VARIABLE


def test_what_is_looked_for_is_found_wherever_it_begins(tmp_path: Path) -> None:
    """The control of the test below: a log holds base64 of something that holds the secret."""
    secrets = secrets_of(Credentials(os.urandom(32), os.urandom(16), make_certificate()))
    secret = secrets["secret"]
    for before in range(6):
        for name, one in secrets.items():
            (tmp_path / "log").write_bytes(base64.b64encode(bytes(before) + one + b"behind"))
            assert list(found_in(tmp_path, {name: one})) == [f"{name} in log"]
    (tmp_path / "log").write_bytes(f"debug: {secret!r}".encode())
    assert list(found_in(tmp_path, {"secret": secret})) == ["secret in log"]
    (tmp_path / "log").write_bytes(os.urandom(100))
    assert list(found_in(tmp_path, {"secret": secret})) == []
    assert min(map(len, forms_of(secret))) >= 32


def test_no_log_at_debug_and_no_file_holds_the_secret_or_the_key_of_a_job(tmp_path: Path) -> None:
    """S1. py4j logs every command, and PySpark writes closures to files beyond a size that is a setting.

    Nor what the user's own functions hold.
    """
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, debugged.__file__, str(tmp_path)],
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "PYSPARK_PYTHON": sys.executable,
            VARIABLE: secrets.token_hex(32),
        },
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    report = json.loads(done.stdout.splitlines()[-1])
    everything = ["key as DER", "key as PEM", "log key", "secret", "the user's"]
    assert report == {
        "plain": {"looked for": ["log key", "secret", "the user's"], "found": []},
        "encrypted": {"looked for": everything, "found": []},
        "in files": {"looked for": everything, "found": []},
        "control": ["Spark", "a command", "a worker"],
    }
