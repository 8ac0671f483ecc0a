"""What a worker does with the writer of a sink: one call at a time, and nothing forgotten too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.bare_task import task_of
from tests.unit.test_background import TASK, pool_of, run

from crosscut.contracts.connectors import JSON, CommitPermit, HeldData, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.effects import CommitTransactions
from crosscut.protocol.messages import TaskFailed, WorkerMessage
from crosscut.task.requests import PrepareTransaction
from crosscut.task.task import Task
from crosscut.testing.sinks import permit
from crosscut.worker.background import BackgroundWork
from crosscut.worker.pool import TaskPool

N1, N2 = CheckpointId(1), CheckpointId(2)


class Writer(SinkWriter):
    """Waits in each call until it is let go, and notes what it finds held."""

    def __init__(self, held: HeldData, failures: int = 0) -> None:
        self.held = held
        self.failures_left = failures
        self.calls: list[str] = []
        self.found: list[bytes] = []
        self.has_entered = threading.Event()
        self.let_go = threading.Event()

    def _call(self, name: str) -> None:
        self.calls.append(f"{name} begins")
        self.has_entered.set()
        assert self.let_go.wait(100)
        self.calls.append(f"{name} ends")

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        """Nothing is staged."""

    def write(self, records: list[Any]) -> None:
        """Nothing is written."""

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        return None

    def prepare(self, transaction: Any) -> JSON:
        self._call("prepare")
        return "handle"

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._call("commit")
        self.found += [self.held.data(CheckpointId(n)) for n in handles if isinstance(n, int)]
        if self.failures_left:
            self.failures_left -= 1
            raise ConnectorError("the service is down")


class Stage:
    """A task's background work, and what it tells the task."""

    def __init__(self, writer: Writer, task: Task) -> None:
        self.reported: list[WorkerMessage] = []
        self.pool: TaskPool = pool_of(self.reported)
        self.told = 0
        self.writer = writer
        self.work = BackgroundWork(self.pool, task, None, writer, self._tell)
        self.pool.spawn(TASK, self.work.run)

    def _tell(self, _: object) -> None:
        self.told += 1

    async def until(self, condition: Any) -> None:
        while not condition():
            assert not any(isinstance(one, TaskFailed) for one in self.reported), self.reported
            await self.pool.pause()

    async def turns(self) -> None:
        """Let the loop begin whatever it may begin."""
        for _ in range(100):
            await asyncio.sleep(0)

    def under_way(self) -> list[str]:
        return [name.rpartition(".")[2] for name in self.pool.threads._calls.under_way.values()]


PREPARE = PrepareTransaction(N2, "transaction")
COMMIT = CommitTransactions(permit(1), ("handle",))


@pytest.mark.parametrize(
    ("first", "second"), [(PREPARE, COMMIT), (COMMIT, PREPARE)], ids=["prepare", "commit"]
)
def test_a_writer_is_called_by_one_thread_at_a_time(first: Any, second: Any) -> None:
    """P11. `prepare` of a checkpoint and `commit` of the one before it may be asked for together."""

    async def work() -> None:
        task = task_of()
        writer = Writer(task.held)
        stage = Stage(writer, task)
        stage.work.start(first, 0)
        await stage.until(writer.has_entered.is_set)
        stage.work.start(second, 0)
        await stage.turns()
        assert len(stage.under_way()) == 1
        writer.let_go.set()
        await stage.until(lambda: stage.told == 2)
        names = ["prepare", "commit"] if first is PREPARE else ["commit", "prepare"]
        assert writer.calls == [f"{name} {what}" for name in names for what in ("begins", "ends")]
        await stage.pool.close()

    run(work)


def test_held_records_are_there_until_their_commit_has_succeeded() -> None:
    """P11. A commit that fails is tried again, with the same records."""

    async def work() -> None:
        task = task_of()
        task.held.keep(N1, b"one")
        task.held.keep(N2, b"two")
        writer = Writer(task.held, failures=2)
        writer.let_go.set()
        stage = Stage(writer, task)
        for attempt in range(3):
            assert task.held.up_to(N2) == [(N1, b"one"), (N2, b"two")]
            stage.work.start(CommitTransactions(permit(1), (1,)), 0)
            await stage.until(lambda attempt=attempt: stage.told == attempt + 1)
        assert writer.found == [b"one"] * 3
        # That of the next checkpoint has not been committed.
        assert task.held.up_to(N2) == [(N2, b"two")]
        await stage.pool.close()

    run(work)
