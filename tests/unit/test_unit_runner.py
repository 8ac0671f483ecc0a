"""The runner of a unit: real tasks in the real scheduler, over the real logs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from tests.proof.unit_log.stored import UNIT
from tests.unit.unit_site import ROW_BYTES, Numbers, Sink, UnitSite, expected

import crosscut as cc
from crosscut.errors import CrosscutError, InternalError, StateError, StoreError, WorkersError
from crosscut.foundation.ids import LogIndex
from crosscut.host.clock import SystemClock
from crosscut.operators.operator import Operator
from crosscut.protocol.events import EntryUncertain
from crosscut.protocol.messages import TaskFailed
from crosscut.protocol.unit_log.entries import GroupCommitted
from crosscut.protocol.unit_log.events import CompactionRequested, GroupEnded, UnitCommitted, UnitEntryRead
from crosscut.store.files import LocalFiles
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log import ObjectUnitLog, UnitLogStore
from crosscut.testing.simulator.memory_files import Fault, MemoryFiles
from crosscut.worker.log_thread import LogThread
from crosscut.worker.unit_runner import GroupLimits

DEADLINE_S = 100.0


def scene(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def played(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), DEADLINE_S))

    return played


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


async def turns(count: int = 50) -> None:
    """Let everything happen that can happen by itself."""
    for _ in range(count):
        await asyncio.sleep(0)


class ManualThreads:
    """Threads whose calls are made when the test says so, each in one go."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def start(self, work: Callable[[], None], name: str) -> None:
        self.waiting.append(work)

    def run(self, at: int = 0) -> None:
        self.waiting.pop(at)()

    async def begin(self, site: UnitSite) -> None:
        beginning = asyncio.ensure_future(site.begin())
        await self.run_until(beginning.done)
        await beginning

    async def run_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self.waiting:
                self.run()
            await asyncio.sleep(0)


class ManualClock(SystemClock):
    def __init__(self) -> None:
        self.now_ns = 10**9

    def monotonic_ns(self) -> int:  # type: ignore[override]
        return self.now_ns


Open = Callable[[], UnitLogStore]


@pytest.fixture(params=["memory", "objects", "segment files"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "memory":
        files = MemoryFiles()
        return lambda: ObjectUnitLog(files, UNIT)
    if request.param == "objects":
        return lambda: ObjectUnitLog(LocalFiles(str(tmp_path / "log")), UNIT)
    return lambda: FileUnitLog(str(tmp_path / "log"), UNIT)


# Exact, whatever happens.


@scene
async def test_all_is_committed_once_and_in_order(open_log: Open) -> None:
    source, sink = Numbers(500), Sink()
    site = UnitSite(open_log(), source, sink)
    await site.begin()
    await until(lambda: len(sink.visible) >= 500)
    assert sink.visible == expected(500)
    assert dict(site.state.items()) == dict.fromkeys(range(5), 100)
    await site.end()
    assert site.errors == [] and not any(isinstance(one, TaskFailed) for one in site.said)


@scene
async def test_the_next_incarnation_goes_on_from_the_log_after_each_crash(open_log: Open) -> None:
    """In real threads; what was under way when an incarnation ends is in the log, or not."""
    sink = Sink()
    for number in range(1, 9):
        site = UnitSite(open_log(), Numbers(40 * number), sink, number)
        await site.begin()
        wanted = 20 * number
        await until(lambda wanted=wanted: len(sink.visible) >= wanted)  # type: ignore[misc]
        await site.end()
        assert site.errors == []
    last = UnitSite(open_log(), Numbers(400), sink, 9)
    await last.begin()
    await until(lambda: len(sink.visible) >= 400)
    assert sink.visible == expected(400)
    await last.end()


# The loop goes on.


@scene
async def test_tasks_go_on_while_an_append_is_under_way_and_the_next_group_holds_it_all() -> None:
    threads, sink = ManualThreads(), Sink()
    site = UnitSite(ObjectUnitLog(MemoryFiles(), UNIT), Numbers(100), sink, start=threads.start)
    await threads.begin(site)
    await until(lambda: len(threads.waiting) == 1)
    under_way = site.source.readers[-1].at
    await until(lambda: site.source.readers[-1].at == 100)
    await turns()
    assert 0 < under_way < 100 and sink.visible == []
    assert len(threads.waiting) == 1, "one append at a time"
    threads.run()
    await until(lambda: len(sink.visible) > 0)
    await threads.run_until(lambda: len(sink.visible) == 100)
    assert site.done[:2] == [("acknowledge", site.done[0][1]), ("commit", LogIndex(1, 1))]
    assert [one for one, _ in site.done] == ["acknowledge", "commit"] * 2
    await site.end()


@scene
async def test_a_group_grows_to_a_size_while_the_log_is_away_and_then_no_task_takes_input() -> None:
    threads, sink = ManualThreads(), Sink()
    limits = GroupLimits(hold_bytes=50 * ROW_BYTES)
    site = UnitSite(
        ObjectUnitLog(MemoryFiles(), UNIT), Numbers(10_000), sink, limits=limits, start=threads.start
    )
    await threads.begin(site)
    await until(lambda: len(threads.waiting) == 1 and len(site.made) >= 50)
    await turns(200)
    # The batch that has been begun is finished.
    held = len(site.made)
    assert 50 <= held < 50 + 7 and site.source.readers[-1].at < 100
    assert site.pool is not None and site.pool.is_asleep
    await turns(200)
    assert len(site.made) == held
    await threads.run_until(lambda: len(sink.visible) == 10_000)
    assert sink.visible == expected(10_000)
    await site.end()


@scene
async def test_a_group_grows_to_an_age_while_the_log_is_away() -> None:
    threads, sink, clock = ManualThreads(), Sink(), ManualClock()
    source = Numbers(1_000, let=10)
    site = UnitSite(
        ObjectUnitLog(MemoryFiles(), UNIT),
        source,
        sink,
        limits=GroupLimits(hold_ms=500),
        start=threads.start,
        clock=clock,
    )
    await threads.begin(site)
    await until(lambda: len(threads.waiting) == 1)
    source.let = 20
    clock.now_ns += 2_000_000
    assert site.pool is not None
    site.pool.schedule()
    await until(lambda: source.readers[-1].at == 20)
    source.let = 30
    clock.now_ns += 500_000_000
    site.pool.schedule()
    await turns(200)
    taken = source.readers[-1].at
    assert taken <= 30
    source.let = 1_000
    clock.now_ns += 500_000_000
    site.pool.schedule()
    await turns(200)
    assert source.readers[-1].at == taken
    await threads.run_until(lambda: len(sink.visible) >= taken)
    await site.end()


@scene
async def test_an_interval_collects_and_what_is_idle_does_not_wait() -> None:
    threads, sink, clock = ManualThreads(), Sink(), ManualClock()
    source = Numbers(1_000, let=10)
    limits = GroupLimits(interval_ms=20)
    site = UnitSite(
        ObjectUnitLog(MemoryFiles(), UNIT), source, sink, limits=limits, start=threads.start, clock=clock
    )
    await threads.begin(site)
    # Nothing else is to be done.
    await threads.run_until(lambda: len(sink.visible) == 10)
    source.let = 1_000
    clock.now_ns += 2_000_000
    assert site.pool is not None
    site.pool.schedule()
    await until(lambda: source.readers[-1].at >= 500)
    assert threads.waiting == []
    clock.now_ns += 20_000_000
    await threads.run_until(lambda: len(sink.visible) >= 500)
    await site.end()


@scene
async def test_a_group_ends_between_two_batches() -> None:
    """A slice that is over leaves half a batch: only that task runs, until it is through."""
    threads, sink = ManualThreads(), Sink()
    halves: list[bool] = []

    def stop(operator: Operator) -> None:
        operator.time_budget.stop()

    site = UnitSite(ObjectUnitLog(MemoryFiles(), UNIT), Numbers(60), sink, start=threads.start, slow=stop)
    end_group = site.end_group

    def noting() -> GroupEnded:
        assert site.pool is not None
        halves.append(site.pool.tasks[0].chain.is_halfway)
        return end_group()

    site.end_group = noting  # type: ignore[method-assign]
    await threads.begin(site)
    await threads.run_until(lambda: len(sink.visible) == 60)
    assert sink.visible == expected(60)
    assert halves and not any(halves)
    assert len(halves) >= 3
    await site.end()


@scene
async def test_a_group_whose_sinks_are_not_ready_is_not_looked_at_again_and_again() -> None:
    """The threads that make the output durable would wait for the interpreter."""
    threads, sink = ManualThreads(), Sink()
    site = UnitSite(ObjectUnitLog(MemoryFiles(), UNIT), Numbers(20), sink, start=threads.start)
    end_group, looks, is_ready = site.end_group, 0, False

    def when_ready() -> GroupEnded | None:
        nonlocal looks
        looks += 1
        return end_group() if is_ready else None

    site.end_group = when_ready  # type: ignore[method-assign, assignment]
    await threads.begin(site)
    await until(lambda: looks > 0)
    await turns(200)
    assert looks < 5
    # As the answer of a sink does.
    is_ready = True
    assert site.pool is not None
    site.pool.schedule()
    await threads.run_until(lambda: len(sink.visible) == 20)
    await site.end()


# Failures.


@scene
async def test_a_unit_whose_log_a_newer_one_has_sealed_ends_and_nothing_leaves(
    open_log: Open,
) -> None:
    threads, sink, source = ManualThreads(), Sink(), Numbers(10_000)
    zombie = UnitSite(open_log(), source, sink, 1, start=threads.start)
    await threads.begin(zombie)
    await threads.run_until(lambda: len(sink.visible) > 0)
    newer = UnitSite(open_log(), Numbers(0), sink, 2)
    await newer.begin()
    done, visible = len(zombie.done), len(sink.visible)
    await threads.run_until(lambda: bool(zombie.errors))
    (error,) = zombie.errors
    assert isinstance(error, WorkersError) and zombie.runner.is_over
    at = source.readers[0].at
    await turns(200)
    assert len(zombie.done) == done and len(sink.visible) == visible
    assert source.readers[0].at <= at + 7, "it takes no more input"
    zombie.runner.handle(UnitCommitted(LogIndex(1, 1)))
    assert len(zombie.errors) == 1
    await zombie.end()
    await newer.end()


@scene
async def test_an_older_incarnation_does_not_come_to_claim(open_log: Open) -> None:
    newer = UnitSite(open_log(), Numbers(0), Sink(), 2)
    await newer.begin()
    older = UnitSite(open_log(), Numbers(10), Sink(), 1)
    with pytest.raises(WorkersError, match=r"incarnation 1\.2 of this unit owns the log"):
        await older.begin()
    assert older.errors == [], "it was raised"
    await newer.end()


@scene
async def test_a_damaged_entry_is_raised_by_the_claim_as_it_is() -> None:
    files, sink = MemoryFiles(), Sink()
    site = UnitSite(ObjectUnitLog(files, UNIT), Numbers(100), sink)
    await site.begin()
    await until(lambda: len(sink.visible) == 100)
    await site.end()
    path = next(path for path in sorted(files.content) if path.endswith(f"{1:020d}"))
    files.content[path] = files.content[path][:-1]
    with pytest.raises(StoreError, match=r"entry 1/1 .* is damaged") as raised:
        await UnitSite(ObjectUnitLog(files, UNIT), Numbers(100), sink, 2).begin()
    assert raised.value.ids["damaged"] is True


class FailingLog(ObjectUnitLog):
    """Fails when the test says so."""

    error: Exception | None = None

    def append(self, index: LogIndex, entry: Any) -> Any:
        if self.error is not None and isinstance(entry, GroupCommitted):
            raise self.error
        return super().append(index, entry)


@pytest.mark.parametrize(
    "error",
    [StoreError("entry 1.2 is damaged", damaged=True), StateError("not JSON"), InternalError("a bug")],
)
@scene
async def test_an_append_that_raises_ends_the_unit_with_that_error(error: CrosscutError) -> None:
    threads, sink = ManualThreads(), Sink()
    log = FailingLog(MemoryFiles(), UNIT)
    site = UnitSite(log, Numbers(1_000), sink, start=threads.start)
    await threads.begin(site)
    await threads.run_until(lambda: len(sink.visible) > 0)
    done = len(site.done)
    log.error = error
    await threads.run_until(lambda: bool(site.errors))
    await turns()
    assert site.errors == [error] and len(site.done) == done and site.runner.is_over
    await site.end()


@scene
async def test_a_group_that_cant_be_written_down_ends_the_unit() -> None:
    sink = Sink()
    site = UnitSite(ObjectUnitLog(MemoryFiles(), UNIT), Numbers(10), sink)

    def raises() -> GroupEnded:
        raise StateError("the state of key 3 can't be stored")

    site.end_group = raises  # type: ignore[method-assign]
    await site.begin()
    await until(lambda: bool(site.errors))
    assert "key 3" in str(site.errors[0]) and sink.visible == []
    await site.end()


class UnreadableLog(ObjectUnitLog):
    """Can't be read for a while."""

    is_down = False
    failed = 0

    def read(self, index: LogIndex) -> UnitEntryRead:
        if self.is_down:
            self.failed += 1
            raise StoreError("no route to host", damaged=False)
        return super().read(index)


@scene
async def test_a_read_that_fails_leaves_the_append_uncertain_and_is_tried_again() -> None:
    files, threads, sink = MemoryFiles(), ManualThreads(), Sink()
    log = UnreadableLog(files, UNIT)
    site = UnitSite(log, Numbers(30), sink, start=threads.start)
    await threads.begin(site)
    await until(lambda: len(threads.waiting) == 1)
    files.fail_next("put_if_absent", Fault.APPLIED)
    log.is_down = True
    await threads.run_until(lambda: log.failed == 2)
    assert sink.visible == [] and "no route to host" in site.runner.trouble
    log.is_down = False
    await threads.run_until(lambda: len(sink.visible) == 30)
    assert sink.visible == expected(30) and site.errors == []
    await site.end()


@scene
async def test_a_full_disk_holds_the_unit_up_and_loses_nothing() -> None:
    files, threads, sink = MemoryFiles(), ManualThreads(), Sink()
    site = UnitSite(ObjectUnitLog(files, UNIT), Numbers(30), sink, start=threads.start)
    await threads.begin(site)
    await until(lambda: len(threads.waiting) == 1)
    files.fail_next("put_if_absent", Fault.REFUSED, Fault.REFUSED)
    threads.run()
    await until(lambda: site.runner.trouble != "")
    assert sink.visible == []
    await threads.run_until(lambda: len(sink.visible) == 30)
    assert site.runner.trouble == "" and sink.visible == expected(30)
    await site.end()


@scene
async def test_a_call_that_hangs_is_given_up_and_the_next_one_does_not_wait_for_it() -> None:
    threads, sink = ManualThreads(), Sink()
    site = UnitSite(ObjectUnitLog(MemoryFiles(), UNIT), Numbers(30), sink, start=threads.start, timeout_ms=50)
    await threads.begin(site)
    await until(lambda: len(threads.waiting) == 1)
    hanging = threads.waiting.pop()
    await threads.run_until(lambda: len(sink.visible) == 30)
    # It begins after all, when its entry is in the log.
    hanging()
    await turns()
    assert sink.visible == expected(30) and site.errors == []
    await site.end()


@scene
async def test_what_could_not_be_deleted_is_told_and_nothing_waits_for_a_deletion() -> None:
    class Kept(ObjectUnitLog):
        def delete(self, indices: Any) -> list[str]:
            return ["permission denied"]

    threads, sink, source = ManualThreads(), Sink(), Numbers(200, let=20)
    site = UnitSite(Kept(MemoryFiles(), UNIT), source, sink, start=threads.start)
    await threads.begin(site)
    await threads.run_until(lambda: len(sink.visible) == 20)
    site.runner.handle(CompactionRequested())
    source.let = 40
    await threads.run_until(lambda: bool(site.warnings))
    assert site.warnings == ["permission denied"]
    source.let = 200
    await threads.run_until(lambda: len(sink.visible) == 200)
    await site.end()


@scene
async def test_an_event_that_comes_among_effects_waits_for_its_turn() -> None:
    """A commit is answered at once here: the acknowledgement of the same group comes before the next one."""
    threads, sink = ManualThreads(), Sink()
    site = UnitSite(ObjectUnitLog(MemoryFiles(), UNIT), Numbers(100), sink, start=threads.start)
    acknowledge = site.acknowledge_sources

    def asking(positions: tuple[tuple[str, cc.JSON], ...]) -> None:
        acknowledge(positions)
        # Of another group: it is dropped, and does not come between this one and its commit.
        site.runner.handle(EntryUncertain(LogIndex(0, 1), "late"))
        assert site.unit.dropped["late log answer"] == len(site.done) // 2

    site.acknowledge_sources = asking  # type: ignore[method-assign]
    await threads.begin(site)
    await threads.run_until(lambda: len(sink.visible) == 100)
    assert site.errors == [] and site.unit.dropped["late log answer"] > 0
    await site.end()


# The thread.


def test_calls_are_made_in_one_lasting_thread_one_after_the_other() -> None:
    thread = LogThread("log")
    names: list[int] = []
    answers: list[int] = []
    has_answered = threading.Semaphore(0)

    def call(number: int) -> int:
        names.append(threading.get_ident())
        return number

    def answer(number: int) -> None:
        answers.append(number)
        has_answered.release()

    for number in range(50):
        thread.call(lambda number=number: call(number), answer)  # type: ignore[misc]
        assert has_answered.acquire(timeout=DEADLINE_S)
    assert answers == list(range(50)) and len(set(names)) == 1
    closed = threading.Event()
    thread.close(closed.set)
    assert closed.wait(DEADLINE_S)


def test_a_call_that_hangs_keeps_no_other_one_waiting_and_the_last_one_comes_after_it() -> None:
    thread = LogThread("log")
    go, answered, closed = threading.Event(), threading.Semaphore(0), threading.Event()
    order: list[str] = []

    def hang() -> str:
        assert go.wait(DEADLINE_S)
        return "hung"

    def answer(said: str) -> None:
        order.append(said)
        answered.release()

    thread.call(hang, answer)
    thread.call(lambda: "next", answer)
    assert answered.acquire(timeout=DEADLINE_S) and order == ["next"]
    thread.close(lambda: (order.append("closed"), closed.set())[-1])  # type: ignore[func-returns-value]
    assert order == ["next"]
    go.set()
    assert closed.wait(DEADLINE_S)
    assert order == ["next", "hung", "closed"]
