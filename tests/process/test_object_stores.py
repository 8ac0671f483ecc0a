"""Checkpoints and output in an object store, on a real S3 server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, until
from pyspark import SparkContext

import crosscut as cc
from crosscut.testing.s3 import S3Server

pytest.importorskip("s3fs", reason="pip install 'crosscut[s3]'")
pytest.importorskip("moto", reason="pip install 'moto[s3]' flask flask-cors")


@pytest.fixture
def bucket(s3: S3Server, spark: SparkContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a bucket that this process and the workers of its jobs can use."""
    before = dict(spark.environment)
    spark.environment.update(s3.environment)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    yield s3.bucket()
    spark.environment.clear()
    spark.environment.update(before)


def test_a_job_with_its_checkpoints_in_s3_is_exact_under_kills(
    bucket: str, started: Any, arm: Any, tmp_path: Path
) -> None:
    """B2, B3, I1, I2, I3: workers die before and after a checkpoint is complete, and after its commit."""
    armed = arm("snapshot.stored:kill:2:1", "commit.before:kill:3:0", "commit.after:kill:4:1")
    settings = {"checkpoint_dir": f"{bucket}/checkpoints", "restart": cc.Restart(failures=100)}
    job = NumberedJob(tmp_path, count=6_000, held=1, settings=settings)
    running = started(job)
    until(armed.all_fired, "every kill", DEADLINE_S)
    job.open_gate()
    started.finish(running, deadline_s=DEADLINE_S)
    # Spark keeps the processes for a minute, and fsspec keeps an event loop in them, which is no worker.
    started.pids.clear()
    assert running.status == "finished"
    job.check_records_are_exact()
    assert running.progress()["restarts"] >= 3
