"""The performer of the coordinator, on a real event loop and a real store: what hangs, and what breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.proof.stores import at
from tests.simulation.conversation import K0, S0, SPLITS, coordinator_spec, registration

from crosscut.contracts.connectors import CommittedOutput
from crosscut.driver.driver import CoordinatorDriver
from crosscut.errors import ConnectorError, CrosscutError
from crosscut.foundation.ids import (
    AttemptId,
    CheckpointId,
    Epoch,
    Lineage,
    LogIndex,
    TaskId,
    VertexId,
    WorkerIndex,
)
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.net.connections import Credentials
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, LinkOpened, MessageReceived, SplitsDiscovered
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.entries import EpochClaimed, LogEntry, SegmentOpened
from crosscut.protocol.log.writer import AppendOutcome
from crosscut.protocol.messages import ShutDown, TaskStatistics, WorkerHeartbeat
from crosscut.store.checkpoint_store import CheckpointStore, open_store

DEADLINE_S = 100.0
TIMEOUT_MS = 50
HUNG_CALLS = 9


@dataclass
class Supply:
    submitted: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self) -> None:
        self.submitted.set()

    def replace(self, worker: WorkerIndex, attempt: AttemptId) -> None:
        """Nothing to replace."""


class HangingStore:
    """A real store whose first calls of the log do what they are asked and do not return before `well`."""

    def __init__(self, store: CheckpointStore, hung_calls: int) -> None:
        self._store = store
        self.hung_calls = hung_calls
        self.hangs = threading.Event()
        self.well = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, index: LogIndex, entry: LogEntry, since: LogIndex | None = None) -> AppendOutcome:
        return self._hang(self._store.append(index, entry, since))

    def read(self, index: LogIndex) -> LogEntry | None:
        return self._hang(self._store.read(index))

    def _hang(self, answer: Any) -> Any:
        if self.hung_calls:
            self.hung_calls -= 1
            self.hangs.set()
            self.well.wait(DEADLINE_S)
        return answer


def run(work: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(in_time())


@dataclass
class SetClock:
    """A clock that goes when a test says so."""

    now_ns: int = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


def driver_of(
    store: Any, supply: Supply, clock: Clock | None = None, look: Callable[[], Any] = tuple
) -> CoordinatorDriver:
    terms = coordinator_spec()
    return CoordinatorDriver(
        name="a job",
        terms=replace(terms, checkpoints=CheckpointSpec(True, 1_000, TIMEOUT_MS, 2)),
        store=store,
        credentials=Credentials(b"s" * 32, b"j" * 16),
        supply=supply,
        discover=lambda epoch: SPLITS,
        look=look,
        failpoints=Failpoints(None, None),
        clock=clock or SystemClock(),
    )


@contextmanager
def hanging_store(directory: Path, hung_calls: int) -> Iterator[HangingStore]:
    store = HangingStore(open_store(str(directory)), hung_calls)
    try:
        yield store
    finally:
        store.well.set()


def test_the_sinks_are_asked_before_the_log_is_read(tmp_path: Path) -> None:
    """N1: else what another driver commits in between would look like output that the log does not know."""

    async def work() -> None:
        store = open_store(str(tmp_path))
        ours = EpochClaimed(Epoch(1), Lineage("ours"), "driver 0", "graph", 2, 8, CheckpointId(1))

        def look() -> tuple[CommittedOutput, ...]:
            store.append(at(0), SegmentOpened(ours, None))
            task = TaskId(VertexId("out"), 0)
            return (CommittedOutput("/out", Lineage("theirs"), "out", task, Epoch(1), "", CheckpointId(1)),)

        driver = driver_of(store, supply := Supply(), look=look)
        driver.start()
        await supply.submitted.wait()
        assert store.read(at(1)) is not None, "it goes on from the log, which was not empty when it was read"
        driver.post(CancelRequested())
        await driver.ended
        await driver.close()

    run(work())


def test_a_sink_that_can_not_say_what_it_has_committed_ends_the_start_with_its_own_error(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        refusal = ConnectorError("sink 'out' can't say what it has committed: no route to host")

        def look() -> tuple[CommittedOutput, ...]:
            raise refusal

        driver = driver_of(open_store(str(tmp_path)), Supply(), look=look)
        driver.start()
        end: EndJob = await driver.ended
        assert end.outcome == "failed"
        assert end.cause is not None and end.cause.message == str(refusal)
        assert driver.error is refusal
        await driver.close()
        assert not list((tmp_path / "log").glob("*")), "nothing was claimed"

    run(work())


def test_a_log_whose_calls_hang_is_read_back_and_the_job_goes_on(tmp_path: Path) -> None:
    """D3: each call that hangs keeps a thread; the next has one all the same."""

    async def work() -> None:
        supply = Supply()
        driver = driver_of(store, supply)
        driver.start()
        await supply.submitted.wait()
        assert store.hung_calls == 0
        assert driver.status().phase == "gathering"
        driver.post(CancelRequested())
        await driver.ended
        await driver.close()

    with hanging_store(tmp_path, HUNG_CALLS) as store:
        run(work())


def test_a_call_that_returns_after_the_end_of_the_job_is_ignored(tmp_path: Path) -> None:
    """D3: neither does it keep the process from ending."""

    async def work() -> None:
        driver = driver_of(store, Supply())
        driver.start()
        await asyncio.to_thread(store.hangs.wait, DEADLINE_S)
        driver.post(CancelRequested())
        assert (await driver.ended).outcome == "cancelled"
        await driver.close()

    with hanging_store(tmp_path, 1) as store:
        run(work())
        (hung,) = [one for one in threading.enumerate() if one.name.startswith("crosscut-store")]
        assert hung.daemon
    hung.join(DEADLINE_S)
    assert not hung.is_alive()


@dataclass
class Link:
    number: int = 1
    said: list[object] = field(default_factory=list)

    def send_message(self, message: object) -> None:
        self.said.append(message)

    def close_gently(self, reason: str) -> None:
        """Nothing to close."""


def test_a_coordinator_that_finds_something_impossible_ends_the_job_by_name(tmp_path: Path) -> None:
    """I12: the workers are told, whoever waits is answered, and nothing is done any more."""

    async def work() -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        supply = Supply()
        driver = driver_of(open_store(str(tmp_path)), supply)
        driver.start()
        await supply.submitted.wait()
        link = Link()
        driver._links[link.number] = link  # type: ignore[assignment]
        asked = asyncio.ensure_future(driver.checkpoint())
        await asyncio.sleep(0)
        driver.post(SplitsDiscovered(()))
        end: EndJob = await driver.ended
        assert end.outcome == "failed"
        assert end.cause is not None
        assert (end.cause.kind, end.cause.message) == ("ProtocolError", "splits were discovered, unasked")
        assert link.said == [ShutDown("the coordinator has failed")]
        with pytest.raises(CrosscutError, match="the coordinator has failed"):
            await asked
        with pytest.raises(CrosscutError, match="the coordinator has failed"):
            await driver.checkpoint()
        driver.post(CancelRequested())
        await asyncio.sleep(0)
        assert driver._coordinator.phase.name == "GATHERING", "it is not asked any more"
        assert [type(one["exception"]).__name__ for one in unhandled] == ["ProtocolError"]
        await driver.close()

    run(work())


def test_a_source_that_gives_nothing_and_does_not_say_why_is_logged_and_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        supply, clock = Supply(), SetClock()
        driver = driver_of(open_store(str(tmp_path)), supply, clock)
        driver.start()
        await supply.submitted.wait()
        driver.post(LinkOpened(1, WorkerIndex(0), AttemptId(1)))
        driver.post(MessageReceived(1, registration(0, 1)))
        for seconds in (1, 5, 12, 13):
            clock.now_ns = seconds * 1_000_000_000
            statistics = (TaskStatistics(S0, empty_split="orders-7"), TaskStatistics(K0))
            driver.post(MessageReceived(1, WorkerHeartbeat(driver.status().epoch, statistics)))
            await asyncio.sleep(0)
        (silent,) = driver.status().silent_sources
        assert (silent.task, silent.split, silent.seconds) == (S0, "orders-7", 12.0)
        said = [one.getMessage() for one in caplog.records if one.name.startswith("crosscut")]
        (warning,) = [text for text in said if "has waited" not in text]
        assert warning.startswith("job 'a job': source numbers[0] has given nothing for 11 s")
        driver.post(CancelRequested())
        await driver.ended
        await driver.close()

    run(work())
