"""A job that is stopped while its sink can't prepare or commit: nothing is taken back, nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, pending_handles, until

import crosscut as cc
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext, SinkWriter
from crosscut.errors import CheckpointError
from crosscut.store.checkpoint_store import open_store


@dataclass(frozen=True)
class Unreachable(cc.Sink):
    """`inner`, whose service refuses some tasks while there is a file `broken`: to prepare or to commit."""

    inner: Any
    broken: Path
    tasks: frozenset[int]
    call: str

    def writer(self, context: SinkContext) -> SinkWriter:
        broken = self.broken if context.task.index in self.tasks else None
        return _UnreachableWriter(self.inner.writer(context), broken, self.call)


class _UnreachableWriter(SinkWriter):
    def __init__(self, inner: SinkWriter, broken: Path | None, call: str) -> None:
        self._inner = inner
        self._broken = broken
        self._call = call

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._inner.recover(permit, handles)

    def write(self, records: list[Any]) -> None:
        self._inner.write(records)

    def rotate(self, checkpoint_id: Any) -> Any:
        return self._inner.rotate(checkpoint_id)

    def prepare(self, transaction: Any) -> JSON:
        self._reach("prepare")
        return self._inner.prepare(transaction)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._reach("commit")
        self._inner.commit(permit, handles)

    def _reach(self, call: str) -> None:
        if call == self._call and self._broken is not None and self._broken.exists():
            raise ConnectionError("the service is out of reach")

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class UnreachableJob(NumberedJob):
    tasks: frozenset[int] = frozenset()
    call: str = "commit"

    @property
    def broken(self) -> Path:
        return self.directory / "broken"

    def sink(self) -> cc.Sink:
        return Unreachable(super().sink(), self.broken, self.tasks, self.call)


@pytest.mark.parametrize("tasks", [frozenset([1]), frozenset([0, 1])], ids=["one", "all"])
def test_a_stop_whose_output_can_not_be_committed_says_so_and_the_next_start_commits_it(
    tmp_path: Path, started: Any, tasks: frozenset[int]
) -> None:
    """F7, I9, I12, FLINK-26783: no restart from an older checkpoint; a warning names the open one."""
    settings = {"checkpoint_interval": "1h", "commit_attempts": 2}
    numbered = UnreachableJob(tmp_path, held=True, settings=settings, tasks=tasks)
    job = started(numbered)
    until(lambda: job.report().records_read > 500, "records")
    first = job.checkpoint(DEADLINE_S)
    until(lambda: len(list(numbered.out.glob("part-*"))) == 2, "its output")
    read = job.report().records_read
    until(lambda: job.report().records_read > read + 500, "records behind it")
    numbered.broken.touch()
    with pytest.warns(RuntimeWarning) as caught:
        assert job.stop(DEADLINE_S)
    assert job.status == "stopped"
    (newest,) = [one for one in numbered.completed() if one.checkpoint_id > first.checkpoint_id]
    (warning,) = [str(one.message) for one in caught]
    assert f"checkpoint {newest.checkpoint_id} is complete, but not all of its output" in warning
    assert "could not be committed in 2 attempts, the last one: ConnectionError: the service is" in warning
    assert "the next start commits it" in warning
    entries = [entry for _, entry in open_store(str(numbered.checkpoint_dir), create=False).entries()]
    assert {entry.epoch for entry in entries} == {1}
    numbered.check_nothing_is_visible_too_early()
    finals = {handle["final"].rpartition("/")[2] for handle in pending_handles(newest)}
    visible = {path.name for path in numbered.out.glob("part-*")}
    assert len(finals - visible) == len(tasks)
    numbered.broken.unlink()
    numbered.open_gate()
    again = started(numbered)
    started.finish(again, numbered.check_nothing_is_visible_too_early)
    assert finals <= {path.name for path in numbered.out.glob("part-*")}
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()


def test_a_stop_without_a_last_checkpoint_says_why_and_the_next_start_goes_on_from_the_one_before(
    tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """F7, I12: what was read since then is read again, so nothing is lost, and nobody believes otherwise."""
    settings = {"checkpoint_interval": "1h"}
    numbered = UnreachableJob(tmp_path, held=True, settings=settings, tasks=frozenset([1]), call="prepare")
    job = started(numbered)
    until(lambda: job.report().records_read > 500, "records")
    first = job.checkpoint(DEADLINE_S)
    read = job.report().records_read
    until(lambda: job.report().records_read > read + 500, "records behind it")
    numbered.broken.touch()
    with pytest.warns(RuntimeWarning) as caught:
        assert job.stop(DEADLINE_S)
    with pytest.raises(CheckpointError, match=r"has ended \(stopped\): start the flow again"):
        job.restart()
    (warning,) = [str(one.message) for one in caught]
    assert "no last checkpoint was taken: task sums[1] failed" in warning
    assert "the service is out of reach" in warning
    assert warning.endswith(f"the next start goes on from checkpoint {first.checkpoint_id}")
    report = job.report()
    assert (job.status, report.resumes_from) == ("stopped", first.checkpoint_id)
    assert warning.endswith(report.cause)
    assert [one for one in caplog.messages if report.cause in one and "stopped" in one]
    assert [one.checkpoint_id for one in numbered.completed()] == [first.checkpoint_id]
    numbered.broken.unlink()
    numbered.open_gate()
    again = started(numbered)
    started.finish(again, numbered.check_nothing_is_visible_too_early)
    assert again.report().cause == ""
    numbered.check_output_is_exact()
    numbered.check_nothing_is_left_over()
