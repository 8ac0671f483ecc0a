"""Control links on a real loop and real sockets: who is at the other end, and what he is believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.simulation.conversation import K0, K1, LINKS, SPLITS, coordinator_spec

from crosscut.driver.driver import CoordinatorDriver
from crosscut.foundation.ids import AttemptId, Epoch, WorkerIndex
from crosscut.host.failpoints import Failpoints
from crosscut.net.connections import Credentials
from crosscut.net.control import WorkerLink, report_failed_start
from crosscut.protocol.events import LinkClosed, LinkOpened
from crosscut.protocol.messages import (
    CoordinatorMessage,
    DeployTasks,
    RegisterWorker,
    ShutDown,
    TaskStatistics,
    WorkerHeartbeat,
    WorkerMessage,
)
from crosscut.store.checkpoint_store import open_store

DEADLINE_S = 100.0
CREDENTIALS = Credentials(b"s" * 32, b"j" * 16)


class Supply:
    def submit(self) -> None:
        """The tests connect by themselves."""

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """Nothing to replace."""


class Worker:
    """A worker's end of a control link, with what was said to it."""

    def __init__(self, worker: int, attempt: int) -> None:
        self.told: asyncio.Queue[CoordinatorMessage | str] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.link = WorkerLink(
            CREDENTIALS,
            WorkerIndex(worker),
            AttemptId(attempt),
            self.opened.set,
            self.told.put_nowait,
            self.told.put_nowait,
        )

    async def connect(self, port: int) -> Worker:
        await asyncio.get_running_loop().create_connection(lambda: self.link, "127.0.0.1", port)
        await self.opened.wait()
        return self

    def send_message(self, *messages: WorkerMessage) -> None:
        for message in messages:
            self.link.send_message(message)

    async def hears(self, kind: type) -> Any:
        """Return the next word of this kind; `str`: why the link is over."""
        while not isinstance(found := await self.told.get(), kind):
            pass
        return found


@asynccontextmanager
async def running_driver(directory: Path) -> AsyncIterator[tuple[CoordinatorDriver, int]]:
    driver = CoordinatorDriver(
        name="a job",
        terms=coordinator_spec(),
        store=open_store(str(directory)),
        credentials=CREDENTIALS,
        supply=Supply(),
        discover=lambda epoch: SPLITS,
        look=lambda: (),
        failpoints=Failpoints(None, None),
    )
    port = await driver.listen("127.0.0.1")
    driver.start()
    try:
        await driver.claimed
        yield driver, port
    finally:
        await driver.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(in_time())


def registration(worker: int, attempt: int) -> RegisterWorker:
    return RegisterWorker(WorkerIndex(worker), AttemptId(attempt), "127.0.0.1", attempt, 9_000)


def test_who_registers_as_somebody_else_is_told_to_exit(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_driver(tmp_path) as (driver, port):
            liar = await Worker(0, 7).connect(port)
            liar.send_message(registration(1, 8))
            told = await liar.hears(ShutDown)
            assert told == ShutDown("this link has not proven to be attempt 8 of worker 1", failed=True)
            await liar.hears(str)
            assert driver.status().dropped == {"registration as somebody else": 1}
            honest = await Worker(1, 8).connect(port)
            honest.send_message(registration(1, 8))
            while not driver.status().workers:
                await asyncio.sleep(0)
            assert [one.index for one in driver.status().workers] == [1]

    run(work())


def test_the_counters_of_another_workers_tasks_are_not_believed(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_driver(tmp_path) as (driver, port):
            workers = [await Worker(index, index).connect(port) for index in range(len(LINKS))]
            for index, worker in enumerate(workers):
                worker.send_message(registration(index, index))
            for worker in workers:
                await worker.hears(DeployTasks)
            lie = WorkerHeartbeat(Epoch(1), (TaskStatistics(K0, state_keys=1_000),))
            workers[1].send_message(lie, WorkerHeartbeat(Epoch(1), (TaskStatistics(K1, state_keys=5),)), lie)
            while sum(driver.status().dropped.values()) < 2:
                await asyncio.sleep(0)
            assert driver.status().state_keys == 5

    run(work())


def test_who_was_refused_by_the_driver_and_by_the_workers_is_in_the_status(tmp_path: Path) -> None:
    """S13, M1."""

    async def work() -> None:
        async with running_driver(tmp_path) as (driver, port):
            worker = await Worker(1, 8).connect(port)
            worker.send_message(registration(1, 8))
            seen = {"too many at once": 40, "no proof of the secret": 2}
            worker.send_message(WorkerHeartbeat(Epoch(0), (), {}, seen))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n")
            assert await reader.read() == b""
            writer.close()
            while len(driver.status().refused_peers) < 2:
                await asyncio.sleep(0)
            assert driver.status().refused_peers == {"too many at once": 40, "no proof of the secret": 3}
            assert driver.status().as_dict()["refused_peers"]["no proof of the secret"] == 3

    run(work())


def test_nobody_hears_of_a_peer_before_it_has_proven_who_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    """A peer that says nothing, or nothing true, costs the coordinator no event and no link."""
    heard: list[object] = []
    plain = CoordinatorDriver._handle

    def watched(self: CoordinatorDriver, event: Any) -> None:
        heard.append(event)
        plain(self, event)

    monkeypatch.setattr(CoordinatorDriver, "_handle", watched)

    async def work() -> None:
        async with running_driver(tmp_path) as (driver, port):
            for said in (b"", b"\xff" * 200):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(said)
                if said:
                    assert await reader.read() == b""
                writer.close()
            genuine = await Worker(1, 8).connect(port)
            # The driver has taken this one after those before it.
            links = [one for one in heard if isinstance(one, LinkOpened | LinkClosed)]
            assert links == [LinkOpened(1, WorkerIndex(1), AttemptId(8))]
            assert list(driver._links) == [1]
            genuine.link.close_gently("over")

    run(work())


async def reports(port: int, worker: int, attempt: int, timeout_s: float = DEADLINE_S) -> None:
    """A worker that can't start returns when Spark may start the next attempt."""
    address = ("127.0.0.1", port)
    error = LookupError("not here")
    await report_failed_start(CREDENTIALS, WorkerIndex(worker), AttemptId(attempt), error, address, timeout_s)


def test_a_worker_that_can_not_start_waits_as_long_as_the_coordinator_says(tmp_path: Path) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with running_driver(tmp_path) as (driver, port):
            took_s = []
            for attempt in range(3):
                began = loop.time()
                await reports(port, 0, attempt)
                took_s.append(loop.time() - began)
            # The delays of the restart strategy: 0, 100 ms, 200 ms.
            assert took_s[1] > 0.09 and took_s[2] > 0.19
            assert driver.status().last_failure == "worker 0 could not start: not here"

    run(work())


def test_a_worker_that_can_not_start_waits_no_longer_than_the_job_lasts(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_driver(tmp_path) as (driver, port):
            holder = await Worker(0, 7).connect(port)
            holder.send_message(registration(0, 7))
            while not driver.status().workers:
                await asyncio.sleep(0)
            # It is not answered: its place is held.
            waits = asyncio.create_task(reports(port, 0, 8))
            while not driver.status().dropped:
                await asyncio.sleep(0)
            assert not waits.done()
        await waits

    run(work())


def test_a_worker_that_can_not_start_gives_up_on_a_driver_that_is_gone() -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        await reports(port, 0, 1)

    run(work())
