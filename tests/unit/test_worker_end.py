"""The end of a worker: in which order it gives things back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from crosscut.graph.specs import JobGraph
from crosscut.host.clock import SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.ids import AttemptId, Epoch, WorkerIndex
from crosscut.net.connections import Credentials
from crosscut.protocol.messages import HaltTasks, ShutDown
from crosscut.worker import worker as worker_module
from crosscut.worker.backends import InMemory
from crosscut.worker.worker import Surroundings, Worker, WorkerPlan


class Pool:
    """Tasks whose calls go on for a while after the end of their epoch."""

    epoch = Epoch(1)

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.are_over = asyncio.Event()

    def statistics(self) -> tuple[()]:
        return ()

    async def close(self) -> None:
        await self.are_over.wait()
        self._said.append("calls are over")


class Backend(InMemory):
    def __init__(self, said: list[str]) -> None:
        self._said = said

    def close(self) -> None:
        self._said.append("state is closed")


def test_state_is_closed_after_the_calls_of_an_epoch_that_is_being_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A database that is closed while it is written stays open, and its directory is taken away."""

    async def connected(*_: Any) -> None:
        """Nobody is there."""

    async def scenario() -> list[str]:
        said: list[str] = []
        nothing: Any = lambda *_: SimpleNamespace(close=lambda: None)  # noqa: E731
        process: Any = SimpleNamespace(pid=1, is_orphaned=lambda: False, watch=nothing, settle=nothing)
        graph = JobGraph("flow", (), (), 1, 8, "")
        store: Any = None
        terms: Any = None
        surroundings = Surroundings(
            graph, store, Failpoints(None, WorkerIndex(0)), SystemClock(), process, nothing, nothing, nothing,
            backend=Backend(said),
        )  # fmt: skip
        plan = WorkerPlan(Credentials(b"s" * 32, b"j" * 16), "", 0, None, b"", "", terms, 1.0, 10_000, None)
        worker = Worker(plan, WorkerIndex(0), AttemptId(0), surroundings)
        pool: Any = Pool(said)
        worker._pool = pool
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)
        worker._told(HaltTasks(Epoch(1)))
        await asyncio.sleep(0)
        worker._told(ShutDown("the job is over"))
        for _ in range(10):
            await asyncio.sleep(0)
        pool.are_over.set()
        await running
        return said

    monkeypatch.setattr(worker_module, "connect", connected)
    assert asyncio.run(scenario()) == ["calls are over", "state is closed"]
