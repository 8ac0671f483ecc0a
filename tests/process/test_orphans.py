"""Files that no manifest refers to are deleted while the job runs: an epoch may last for months (I11)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, Once, until

import crosscut as cc
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.microbatch import batches
from crosscut.store.checkpoint_store import open_store

CHECKPOINTS_MAX = 50
"""So many later a file must be gone."""


def completed(checkpoint_dir: Path) -> list[CheckpointCompleted]:
    entries = open_store(str(checkpoint_dir), create=False).entries()
    return [entry for _, entry in entries if isinstance(entry, CheckpointCompleted)]


def check_goes(checkpoint_dir: Path, path: Path, job: Any) -> None:
    """Check that a file of the first epoch goes in this epoch."""
    first = completed(checkpoint_dir)[-1].checkpoint_id

    def is_over() -> bool:
        return not path.exists() or completed(checkpoint_dir)[-1].checkpoint_id > first + CHECKPOINTS_MAX

    until(is_over, f"{path} to go")
    assert not path.exists()
    assert job.report().epoch == 1


def parts_of(checkpoint_dir: Path, n: CheckpointId, context: SinkContext) -> list[Path]:
    """Return the files that a task has stored for a checkpoint."""
    task = context.task
    return list((checkpoint_dir / "parts" / str(n)).glob(f"{task.vertex}-{task.index}-{context.epoch}-*"))


def wait_for(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > ends_s:
            raise TimeoutError("the sink has waited in vain")
        # A file appears without notice, and the sink runs in a process of Spark, without a loop.
        time.sleep(0.001)


@dataclass(frozen=True)
class KillsAfterStoring(cc.Sink):
    """Kills its process, once, at the end of an attempt that has stored its state and staged its output.

    Spark has not got the attempt's result then: that comes after the writer is closed.

    Attributes:
        noted: Where the name of the stored file goes.
    """

    inner: Any
    checkpoint_dir: Path
    noted: Path
    once: Once

    def writer(self, context: SinkContext) -> SinkWriter:
        return _KillingWriter(self, self.inner.writer(context), context)


class _KillingWriter(SinkWriter):
    def __init__(self, sink: KillsAfterStoring, inner: SinkWriter, context: SinkContext) -> None:
        self._sink = sink
        self._inner = inner
        self._context = context
        self._checkpoint_id = CheckpointId(0)
        self._is_attempt = False

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._inner.recover(permit, handles)

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        self._is_attempt = True
        self._inner.begin_attempt(handles)

    def write(self, records: list[Any]) -> None:
        self._inner.write(records)

    def rotate(self, checkpoint_id: CheckpointId) -> Any:
        self._checkpoint_id = checkpoint_id
        return self._inner.rotate(checkpoint_id)

    def prepare(self, transaction: Any) -> JSON:
        return self._inner.prepare(transaction)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._inner.commit(permit, handles)

    def abort(self, handles: Sequence[JSON]) -> None:
        self._inner.abort(handles)

    def sweep(self) -> None:
        self._inner.sweep()

    def close(self) -> None:
        self._inner.close()
        stored = parts_of(self._sink.checkpoint_dir, self._checkpoint_id, self._context)
        if self._is_attempt and stored and self._sink.once():
            note(self._sink.noted, stored[0])
            os.kill(os.getpid(), signal.SIGKILL)


def note(noted: Path, path: Path) -> None:
    """Write the path down; whoever finds the file finds all of it."""
    written = noted.with_name(f"{noted.name}.new")
    written.write_text(str(path))
    os.replace(written, noted)


def newer(before: int, number: int) -> int:
    return number


def test_what_an_attempt_that_died_has_stored_is_deleted(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has returned nothing, so the driver does not know of its files."""
    monkeypatch.setattr(batches, "SWEEP_EVERY", 2)
    checkpoint_dir, noted = tmp_path / "checkpoints", tmp_path / "noted"
    out = cc.files.write_jsonl(tmp_path / "out")
    sink = KillsAfterStoring(out, checkpoint_dir, noted, Once(tmp_path / "killed"))
    flow = cc.Flow("dying")
    numbers = flow.source(cc.generate(int, rate=20_000))
    numbers.key_by(lambda number: number % 4_000).reduce(newer).sink(sink)
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=8_000),
        parallelism=2,
        checkpoint_dir=checkpoint_dir,
        checkpoint_interval="50ms",
        **PATIENT,
    )
    job = started.flow(flow, settings)
    until(lambda: noted.exists() and bool(completed(checkpoint_dir)), "an attempt to die")
    check_goes(checkpoint_dir, Path(noted.read_text()), job)
    assert job.report().restarts == 0
    job.cancel()


class SlowToStore(bytes):
    """Held records that take as long to store as `is_done` takes to come true.

    The store asks for the length before it writes. So does the loop of the worker, which must not wait.
    """

    is_done: Callable[[], bool] = staticmethod(lambda: True)

    def __len__(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            wait_for(self.is_done)
        return super().__len__()


@dataclass(frozen=True)
class HeldRecords(cc.Sink):
    """Holds all records. Once, a transaction is committed while the snapshot after it is stored.

    Attributes:
        noted: Where the name of the file goes that the snapshot holds the committed records in.
    """

    checkpoint_dir: Path
    noted: Path

    def writer(self, context: SinkContext) -> SinkWriter:
        return _HoldingWriter(self, context)


class _HoldingWriter(SinkWriter):
    def __init__(self, sink: HeldRecords, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._records: list[Any] = []
        self._prepared: list[CheckpointId] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        """Nothing is visible anywhere."""

    def write(self, records: list[Any]) -> None:
        self._records += records

    def rotate(self, checkpoint_id: CheckpointId) -> Any:
        self._records = []
        return checkpoint_id

    def prepare(self, transaction: Any) -> JSON:
        held = self._context.held
        data = SlowToStore(bytes(10_000))
        if len(self._prepared) == 1:
            (first,) = self._prepared
            data.is_done = lambda: first not in [n for n, _ in held.up_to(first)]
        held.keep(transaction, data)
        self._prepared.append(transaction)
        return int(transaction)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        if self._sink.noted.exists():
            return
        stored: list[Path] = []
        if len(self._prepared) > 1:
            stored = parts_of(self._sink.checkpoint_dir, self._prepared[1], self._context)
        if not stored:
            raise ConnectorError("the next snapshot does not hold these records yet")
        note(self._sink.noted, stored[0])


def test_held_records_that_are_committed_while_a_snapshot_is_stored_are_deleted(
    tmp_path: Path, started: Any
) -> None:
    """The snapshot is acknowledged after the commit, so its manifest does not refer to them."""
    checkpoint_dir, noted = tmp_path / "checkpoints", tmp_path / "noted"
    flow = cc.Flow("holding")
    flow.source(cc.generate(int, rate=1_000)).sink(HeldRecords(checkpoint_dir, noted))
    settings = cc.Settings(
        parallelism=1,
        checkpoint_dir=checkpoint_dir,
        checkpoint_interval="50ms",
        commit_attempts=1_000,
        checkpoints_uncommitted=8,
        checkpoints_in_flight=2,
        **PATIENT,
    )
    job = started.flow(flow, settings)
    until(noted.exists, "a commit beside a snapshot")
    path = Path(noted.read_text())
    n = int(path.parent.name)
    until(lambda: any(one.checkpoint_id >= n for one in completed(checkpoint_dir)), "the checkpoint")
    check_goes(checkpoint_dir, path, job)
    assert job.report().restarts == 0
    job.cancel()
