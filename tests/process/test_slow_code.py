"""User code that is far slower than the sources: barriers pass all the same, at default settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import NumberedJob, until
from test_overload import SlowUntil, in_flight

import crosscut as cc
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext, SinkWriter

DEFAULTS = {"checkpoint_interval": "1s"}


@dataclass(frozen=True)
class SlowSink(cc.Sink):
    """`inner`, which calls `hook` with each record that it writes."""

    inner: Any
    hook: SlowUntil

    def writer(self, context: SinkContext) -> SinkWriter:
        return _SlowWriter(self.inner.writer(context), self.hook)


class _SlowWriter(SinkWriter):
    def __init__(self, inner: SinkWriter, hook: SlowUntil) -> None:
        self._inner = inner
        self._hook = hook

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._inner.recover(permit, handles)

    def write(self, records: list[Any]) -> None:
        for record in records:
            self._hook(record)
            self._inner.write([record])

    def rotate(self, checkpoint_id: Any) -> Any:
        return self._inner.rotate(checkpoint_id)

    def prepare(self, transaction: Any) -> JSON:
        return self._inner.prepare(transaction)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._inner.commit(permit, handles)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class SlowSinkJob(NumberedJob):
    wait_s: float = 0.05

    def sink(self) -> cc.Sink:
        return SlowSink(super().sink(), SlowUntil(self.directory / "gate", self.wait_s))


def numbered_with(directory: Path, slow: str, count: int = 50_000) -> NumberedJob:
    match slow:
        case "keyed":
            hook = SlowUntil(directory / "gate", 0.01)
            return NumberedJob(directory, count=count, rate=None, keyed_hook=hook, settings=DEFAULTS)
        case "sink":
            return SlowSinkJob(directory, count=count, rate=None, settings=DEFAULTS)
        case _:
            raise ValueError(slow)


@pytest.mark.parametrize("slow", ["keyed", "sink"])
def test_checkpoints_and_a_stop_pass_slow_code_behind_a_fast_source(
    tmp_path: Path, started: Any, slow: str
) -> None:
    """K3, P4, I15: 10 ms a record, 50 ms a record; the rest after a second start, exactly once."""
    numbered = numbered_with(tmp_path, slow)
    job = started(numbered)
    until(lambda: job.report().checkpoints_completed >= 3, "checkpoints")
    assert in_flight(job) <= 5_000, "a channel holds what its receiver takes in about a second"
    assert job.report().checkpoints_failed == 0
    job.stop()
    job.wait()
    newest = numbered.completed()[-1]
    assert sum(one.snapshot.in_flight for one in newest.snapshots) == 0
    assert job.report().cause == "", "its last checkpoint was taken, and committed"
    numbered.open_gate()
    job = started(numbered)
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
