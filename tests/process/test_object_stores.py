"""Checkpoints and output in an object store, on a real S3 server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from jobs import DEADLINE_S, NumberedJob, until
from pyspark import SparkContext

import crosscut as cc
from crosscut.testing.proxy import Storm, TcpProxy
from crosscut.testing.s3 import S3Server

S3FileSystem = pytest.importorskip("s3fs", reason="pip install 'crosscut[s3]'").S3FileSystem
pytest.importorskip("moto", reason="pip install 'moto[s3]' flask flask-cors")


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[TcpProxy]:
    server = urlsplit(s3.environment["AWS_ENDPOINT_URL"])
    assert server.hostname is not None and server.port is not None
    with TcpProxy(server.hostname, server.port) as one:
        yield one


@pytest.fixture
def bucket(
    s3: S3Server, proxy: TcpProxy, spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Make a bucket that this process and the workers of its jobs can use, all of it through the proxy."""
    before = dict(spark.environment)
    # s3fs asks again by itself; that botocore does so too, after seconds, only takes time.
    environment = {
        **s3.environment,
        "AWS_ENDPOINT_URL": f"http://{proxy.address}",
        "AWS_MAX_ATTEMPTS": "1",
    }
    spark.environment.update(environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # It keeps the file systems that it has made, with the address they had.
    S3FileSystem.clear_instance_cache()
    yield s3.bucket()
    S3FileSystem.clear_instance_cache()
    spark.environment.clear()
    spark.environment.update(before)


class FarJob(NumberedJob):
    """The numbered job with checkpoints and output in a bucket; `out` is a copy of what is visible there."""

    files: Any
    bucket: str

    def sink(self) -> cc.Sink:
        return cc.files.write_jsonl(f"{self.bucket}/out")

    def look(self) -> int:
        """Copy what is new; nothing that was visible has gone. Return how many objects there are."""
        self.out.mkdir(exist_ok=True)
        keys = {key.rpartition("/")[2]: key for key in self.files.glob(f"{self.bucket}/out/*.jsonl")}
        copied = {path.name for path in self.out.iterdir()}
        assert copied <= keys.keys()
        for name in keys.keys() - copied:
            (self.out / name).write_bytes(self.files.cat_file(keys[name]))
        return len(keys)


def test_a_job_with_checkpoints_and_output_in_s3_is_exact_under_kills_over_a_bad_network(
    bucket: str, s3: S3Server, proxy: TcpProxy, started: Any, arm: Any, tmp_path: Path
) -> None:
    """B2, B3, D7, F1, I1, I2, I3: workers die before and after a checkpoint is complete, and at its commit.

    Meanwhile the network cuts connections to the store, at any byte.
    """
    proxy.cut_when(Storm(seed=4, share=0.05), again=True)
    armed = arm(
        "snapshot.stored:kill:2:1", "commit.before:kill:3:0", "commit.after:kill:4:1", "commit.told:kill:6:0"
    )
    settings = {"checkpoint_dir": f"{bucket}/checkpoints", "restart": cc.Restart(failures=100)}
    job = FarJob(tmp_path, count=6_000, held=1, settings=settings)
    object.__setattr__(job, "files", s3.files())
    object.__setattr__(job, "bucket", bucket)
    running = started(job)
    until(lambda: job.look() >= 0 and armed.all_fired(), "every kill", DEADLINE_S)
    job.open_gate()
    started.finish(running, job.look, deadline_s=DEADLINE_S)
    assert running.status == "finished"
    assert proxy.cuts > 10
    job.look()
    job.check_records_are_exact()
    assert running.report().restarts >= 4
    left = [key for key in s3.files().find(f"{bucket}/out") if ".crosscut" in key]
    assert len(left) == job.parallelism
    assert all(key.endswith(".ledger") for key in left)
