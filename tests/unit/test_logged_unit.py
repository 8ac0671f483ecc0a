"""A worker with a log, as a whole: what it reports, how it stops, when it makes its log shorter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.proof.unit_log.stored import UNIT
from tests.unit.bare_task import task_of
from tests.unit.test_unit_runner import ManualClock, scene
from tests.unit.unit_site import Numbers

import crosscut as cc
from crosscut.errors import StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId, WorkerIndex
from crosscut.host.calls import start_thread
from crosscut.host.failpoints import Failpoints
from crosscut.operators.sink import SinkOperator
from crosscut.operators.stateless import Map
from crosscut.protocol.messages import UnitFinished, UnitProgressed, WorkerMessage
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.spec import UnitLogSpec
from crosscut.store.unit_log import ObjectUnitLog
from crosscut.task.splits import SplitQueue
from crosscut.testing.simulator.memory_files import MemoryFiles
from crosscut.worker.logged_unit import LoggedUnit
from crosscut.worker.pool import TaskPool
from crosscut.worker.unit_tasks import RETRY_SNAPSHOT_NS

E1 = Epoch(1)
TASK = TaskId(VertexId("numbers"), 0)
S = 10**9


class Gated(cc.SinkWriter):
    """Shows what is committed once the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.records: list[Any] = []
        self.visible: list[Any] = []

    def recover(self, permit: Any, handles: Any) -> None: ...

    def write(self, records: Any) -> None:
        self.records += records

    def rotate(self, n: int) -> Any:
        cut_off, self.records = self.records, []
        return cut_off or None

    def prepare(self, transaction: Any) -> Any:
        return list(transaction)

    def commit(self, permit: Any, handles: Any) -> None:
        assert self.gate.wait(60)
        for one in handles:
            self.visible += one

    def abort(self, transaction: Any) -> None: ...

    def close(self) -> None: ...


class Parts:
    """A store of parts that can be out of order."""

    def __init__(self) -> None:
        self.is_full = False
        self.attempts = 0

    def write_part(self, n: CheckpointId, task: TaskId, epoch: Epoch, chunks: Iterable[bytes]) -> Part:
        self.attempts += 1
        if self.is_full:
            raise StoreError("no space left")
        return Part(f"parts/{n}/{task.vertex}", len(b"".join(chunks)), "00")

    def delete_parts(self, paths: Iterable[str]) -> list[str]:
        return []


class NoChannels:
    """The connections of a worker that is alone."""

    def __init__(self) -> None:
        self.numbered_outgoing: dict[Any, Any] = {}
        self.numbered_incoming: dict[Any, Any] = {}


class Site:
    """A worker of one task: it reads numbers and writes them to a sink."""

    def __init__(self, *, let: int, spec: UnitLogSpec = UnitLogSpec("objects")) -> None:  # noqa: B008 - frozen
        self.clock = ManualClock()
        self.said: list[WorkerMessage] = []
        self.errors: list[Exception] = []
        self.source, self.sink, self.parts = Numbers(10**9, let), Gated(), Parts()
        self.files = MemoryFiles()
        self.pool = TaskPool(
            epoch=E1,
            store=self.parts,
            batch_rows=10,
            linger_ms=0,
            alignment_timeout_ms=0,
            sink_timeout_ms=60_000,
            failpoints=Failpoints(None, None),
            report=self.report,
            give_credit=lambda channel, credit: None,
            clock=self.clock,
            let_threads_run=lambda: None,
        )
        self.unit = LoggedUnit(
            spec,
            ObjectUnitLog(self.files, UNIT),
            WorkerIndex(0),
            E1,
            (),
            channel_bytes=1 << 20,
            commit_attempts=3,
            timeout_ms=60_000,
            connections=NoChannels(),
            report=self.said.append,
            ended=self.errors.append,
            failpoints=Failpoints(None, None),
            clock=self.clock,
            start_thread=start_thread,
            has_lasting_threads=True,
        )

    def report(self, message: WorkerMessage) -> None:
        self.unit.tasks.report(message)

    async def begin(self) -> None:
        await self.unit.claim(self.pool, lambda part: b"")
        task = task_of(
            Map("same", lambda number: number),
            SinkOperator("out", self.sink),
            task_id=TASK,
            inputs=(),
            outputs=(),
            splits=SplitQueue(self.source, [(cc.Split("0", 0), 0)]),
            rows=10,
            committer=Committer(Lineage("lineage"), E1, 3),
        )
        self.pool.add(task, None, self.sink)
        self.pool.connect({})
        self.unit.begin(self.pool)
        self.pool.start()

    async def process(self, count: int) -> None:
        """Let more numbers through, until they are visible."""
        self.source.let += count
        await self.until(lambda: len(self.sink.visible) >= self.source.let or bool(self.errors))
        assert self.errors == []

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass for sources, whose clock stands still."""
        while not is_so():
            self.wake()
            await asyncio.sleep(0)

    def wake(self) -> None:
        for runner in self.pool.runners:
            runner.due_ns = 0
        self.pool.schedule()

    async def end(self) -> None:
        self.unit.close()
        await self.pool.close()

    def progressed(self) -> int:
        return self.said.count(UnitProgressed(E1))


@scene
async def test_progress_is_reported_once_a_second_and_only_if_the_log_grows() -> None:
    """An epoch that fails sooner has made none, and a quiet one makes none."""
    site = Site(let=0)
    await site.begin()
    for _ in range(5):
        await site.process(10)
    assert site.progressed() == 0
    site.clock.now_ns += S
    await site.process(10)
    await site.until(lambda: site.progressed() == 1)
    for _ in range(5):
        await site.process(10)
    assert site.progressed() == 1
    site.clock.now_ns += S
    await site.process(10)
    await site.until(lambda: site.progressed() == 2)
    site.clock.now_ns += 10 * S
    for _ in range(20):
        site.wake()
        await asyncio.sleep(0)
    # The group of the ten before was reported, or is.
    assert site.progressed() <= 3
    await site.end()


@scene
async def test_a_stop_takes_no_more_input_and_reports_when_all_is_visible() -> None:
    site = Site(let=0)
    await site.begin()
    await site.process(30)
    site.sink.gate.clear()
    site.source.let += 50
    await site.until(lambda: site.source.readers[-1].at > 30)
    site.unit.stop()
    site.source.let += 1_000
    for _ in range(200):
        site.wake()
        await asyncio.sleep(0)
    read = site.source.readers[-1].at
    assert UnitFinished(E1) not in site.said and len(site.sink.visible) == 30
    site.sink.gate.set()
    await site.until(lambda: UnitFinished(E1) in site.said)
    # All that was read is visible, and nothing was read after that.
    assert site.sink.visible == list(range(read))
    for _ in range(200):
        site.wake()
        await asyncio.sleep(0)
    assert site.source.readers[-1].at == read < 1_000
    assert site.said.count(UnitFinished(E1)) == 1
    await site.end()


@scene
async def test_groups_leave_no_timers_of_snapshots_behind() -> None:
    site = Site(let=0)
    await site.begin()
    for _ in range(20):
        await site.process(10)
    (runner,) = site.pool.runners
    await site.until(lambda: len(runner.background._began) <= 1)
    await site.end()


@scene
async def test_a_snapshot_that_could_not_be_stored_is_tried_again_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site(let=0, spec=UnitLogSpec("objects", tail_groups_max=5))
    site.parts.is_full = True
    await site.begin()
    while not site.parts.attempts:
        await site.process(10)
    await site.until(lambda: "could not be stored: no space left" in caplog.text)
    for _ in range(10):
        await site.process(10)
    assert site.parts.attempts == 1
    site.parts.is_full = False
    site.clock.now_ns += RETRY_SNAPSHOT_NS
    # The tail is still too long: the next group ends with a snapshot.
    for _ in range(3):
        await site.process(10)
    await site.until(lambda: site.parts.attempts == 2)
    await site.end()


@scene
async def test_a_log_of_too_many_objects_gets_a_snapshot_however_large_the_state_is() -> None:
    site = Site(let=0, spec=UnitLogSpec("objects", tail_groups_max=2, tail_objects_max=6))
    await site.begin()
    site.unit.tasks._snapshot_bytes = 1 << 40
    groups = 0
    while not site.parts.attempts:
        await site.process(10)
        groups += 1
        assert groups <= 20
    assert groups >= 5
    await site.end()
