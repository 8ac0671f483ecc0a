"""The end of a worker: in which order it gives things back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from crosscut.foundation.ids import AttemptId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.graph.specs import JobGraph, Vertex
from crosscut.host.clock import SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.net.connections import Credentials
from crosscut.protocol.messages import HaltTasks, ShutDown
from crosscut.worker import worker as worker_module
from crosscut.worker.backends import InMemory
from crosscut.worker.lines import LogSettings
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


async def connected(*_: Any) -> None:
    """Nobody is there."""


def worker_of(
    said: list[str],
    is_orphaned: Callable[[], bool] = lambda: False,
    watch: Callable[[float | None], None] = lambda timeout_s: None,
) -> Worker:
    nothing: Any = lambda *_: SimpleNamespace(close=lambda: None)  # noqa: E731
    process: Any = SimpleNamespace(
        pid=1, is_orphaned=is_orphaned, watch=watch, tidy=nothing, processor_ns=time.process_time_ns
    )
    graph = JobGraph("flow", (Vertex("first", ()),), (), 1, 8, "")
    store: Any = None
    terms: Any = SimpleNamespace(unit_log=None)
    ports = Surroundings(
        graph, store, Failpoints(None, WorkerIndex(0)), SystemClock(), process, nothing, nothing, nothing,
        backend=Backend(said),
    )  # fmt: skip
    log = LogSettings("flow")
    plan = WorkerPlan(
        Credentials(b"s" * 32, b"j" * 16), "", 0, None, b"", "", terms, 1.0, 0.0, 10_000, None, log
    )
    return Worker(plan, WorkerIndex(0), AttemptId(0), ports)


def test_a_heartbeat_that_fails_ends_the_worker_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing was heard of it until the timeout, and then nobody knew why."""
    failed: list[tuple[Any, str]] = []
    asked = iter([False, False])

    def is_orphaned() -> bool:
        found = next(asked, None)
        if found is None:
            raise OSError("no such process table")
        return found

    async def scenario() -> None:
        worker = worker_of([], is_orphaned)
        pool: Any = Pool([])
        pool.are_over.set()
        pool.failed = lambda task, error: failed.append((task, str(error)))
        worker._pool = pool
        with pytest.raises(OSError, match="no such process table"):
            await worker.run()

    monkeypatch.setattr(worker_module, "connect", connected)
    asyncio.run(scenario())
    assert failed == [(TaskId(VertexId("first"), 0), "no such process table")]


def test_state_is_closed_after_the_calls_of_an_epoch_that_is_being_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A database that is closed while it is written stays open, and its directory is taken away."""

    async def scenario() -> list[str]:
        said: list[str] = []
        worker = worker_of(said)
        pool: Any = Pool(said)
        worker._pool = pool
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)
        worker._receive(HaltTasks(Epoch(1)))
        await asyncio.sleep(0)
        worker._receive(ShutDown("the job is over"))
        for _ in range(10):
            await asyncio.sleep(0)
        pool.are_over.set()
        await running
        return said

    monkeypatch.setattr(worker_module, "connect", connected)
    assert asyncio.run(scenario()) == ["calls are over", "state is closed"]


def test_a_heartbeat_while_the_last_epoch_halts_does_not_arm_the_watch_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark runs something else in the process afterwards, which would be killed for not ending the watch."""
    watched: list[float | None] = []

    async def scenario() -> None:
        worker = worker_of([], watch=watched.append)
        pool: Any = Pool([])
        worker._pool = pool
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)
        worker._receive(ShutDown("the job is over"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert watched == [10.0, None]
        worker._beat()
        pool.are_over.set()
        await running

    monkeypatch.setattr(worker_module, "connect", connected)
    asyncio.run(scenario())
    assert watched == [10.0, None]
