"""Alarms of microseconds on real event loops, and sources that wait for less than a millisecond."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import uvloop
from tests.unit.bare_task import task_of, unread

import crosscut as cc
from crosscut.foundation.ids import Epoch
from crosscut.host.alarms import LoopAlarm, NewAlarm, system_alarm
from crosscut.host.clock import SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.operators.time_budget import TimeBudget
from crosscut.protocol.messages import WorkerMessage
from crosscut.worker.batch_sizer import BatchSizer
from crosscut.worker.pool import TaskPool
from crosscut.worker.runner import REST_NS, RESTS_MAX

DEADLINE_S = 100.0
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
SHORT_NS = 300_000

Scene = Callable[[], Coroutine[Any, Any, None]]


def play(new_loop: Callable[[], asyncio.AbstractEventLoop], scene: Scene) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scene()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(in_time())


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[LoopAlarm, system_alarm], ids=["of the loop", "of the system"])
def new_alarm(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_an_alarm_rings_once_and_can_be_set_again(new_loop: Any, new_alarm: NewAlarm) -> None:
    async def scene() -> None:
        rung = asyncio.Event()
        count = 0

        def ring() -> None:
            nonlocal count
            count += 1
            rung.set()

        alarm = new_alarm(ring)
        for number in range(1, 4):
            alarm.set(SHORT_NS)
            await rung.wait()
            rung.clear()
            # A second one would come before this, which is due later.
            alarm.set(20 * SHORT_NS)
            await rung.wait()
            rung.clear()
            assert count == 2 * number
        alarm.close()

    play(new_loop, scene)


def test_an_alarm_of_no_delay_rings_all_the_same(new_loop: Any, new_alarm: NewAlarm) -> None:
    async def scene() -> None:
        rung = asyncio.Event()
        alarm = new_alarm(rung.set)
        alarm.set(0)
        await rung.wait()
        alarm.close()

    play(new_loop, scene)


def test_an_alarm_rings_at_the_time_that_was_set_last_and_not_when_cancelled_or_closed(
    new_loop: Any, new_alarm: NewAlarm
) -> None:
    async def scene() -> None:
        rung: list[str] = []
        done = asyncio.Event()
        names = ("later", "never", "closed")
        alarms = {name: new_alarm(partial(rung.append, name)) for name in names}
        alarms["later"].set(1)
        alarms["never"].set(1)
        alarms["closed"].set(1)
        alarms["later"].set(3_600 * 10**9)
        alarms["never"].cancel()
        alarms["never"].cancel()
        alarms["closed"].close()
        alarms["closed"].close()
        last = new_alarm(done.set)
        last.set(20_000_000)
        await done.wait()
        assert rung == []
        for one in (*alarms.values(), last):
            one.close()

    play(new_loop, scene)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere alarms are as exact as the loop")
def test_an_alarm_of_the_system_rings_at_its_time_and_not_before(new_loop: Any) -> None:
    async def scene() -> None:
        for delay_ns in (1, 50_000, 999_999, 1_000_000_001):
            rung = asyncio.Event()
            alarm = system_alarm(rung.set)
            began_ns = time.monotonic_ns()
            alarm.set(delay_ns)
            await rung.wait()
            assert time.monotonic_ns() - began_ns >= delay_ns
            alarm.close()

    play(new_loop, scene)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it has no descriptor")
def test_a_closed_alarm_gives_its_descriptor_back(new_loop: Any) -> None:
    async def scene() -> None:
        before = set(os.listdir("/proc/self/fd"))
        alarm = system_alarm(lambda: None)
        alarm.set(10**9)
        assert set(os.listdir("/proc/self/fd")) - before
        alarm.close()
        assert not set(os.listdir("/proc/self/fd")) - before

    play(new_loop, scene)


class Impatient(cc.Source[int]):
    """A source that waits for 0.3 ms again and again, and then ends."""

    def __init__(self, waits: int) -> None:
        self.waits = waits

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("0", 0)]

    def reader(self, split: cc.Split, position: cc.JSON) -> cc.SplitReader[int]:
        return ImpatientReader(self.waits)


class ImpatientReader(cc.SplitReader[int]):
    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def position(self) -> cc.JSON:
        return 0

    def read(self, limit: int) -> list[int] | cc.Wait | cc.EndOfSplit:
        self.left -= 1
        return cc.Wait(SHORT_NS / 1e6) if self.left >= 0 else cc.EndOfSplit()


class CountedClock(SystemClock):
    """The machine's clock. Every round of the scheduler looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic_ns(self) -> int:  # type: ignore[override]
        self.looks += 1
        return time.monotonic_ns()


class SteadyBatchSizer(BatchSizer):
    """A full batch each time."""

    def __init__(self) -> None:
        self.rows, self.patience_ns, self.time_budget = 100, 10**12, TimeBudget()

    def took(self, rows: int, elapsed_ns: int) -> None: ...

    def start_over(self) -> None: ...


def pool_of(clock: Any, source: cc.Source[Any], new_alarm: NewAlarm) -> TaskPool:
    said: list[WorkerMessage] = []
    pool = TaskPool(
        epoch=Epoch(4),
        store=None,  # type: ignore[arg-type] - nothing is stored
        batch_rows=100,
        linger_ms=0,
        alignment_timeout_ms=0,
        sink_timeout_ms=60_000,
        failpoints=Failpoints(None, None),
        report=said.append,
        give_credit=lambda channel, size_bytes: None,
        clock=clock,
        new_alarm=new_alarm,
        sizer_of=lambda task: SteadyBatchSizer(),
    )
    pool.add(task_of(inputs=(), outputs=(), splits=unread(source)), None, None)
    pool.connect({})
    return pool


def test_a_worker_sleeps_while_its_source_waits_for_less_than_a_millisecond(new_loop: Any) -> None:
    """Timers of uvloop round such a delay to nothing; then the scheduler goes round until it is over."""

    async def scene() -> None:
        waits = 200
        clock = CountedClock()
        pool = pool_of(clock, Impatient(waits), system_alarm)
        pool.start()
        while not pool.tasks[0].is_over:
            await asyncio.sleep(0.05)
        # Twice a read and its wait are looked at some ten times, and two more where an alarm comes early.
        assert clock.looks <= 20 * waits
        await pool.close()

    play(new_loop, scene)


class MovedClock(SystemClock):
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 10**9

    def monotonic_ns(self) -> int:  # type: ignore[override]
        return self.now_ns


class Tickets(cc.Source[int]):
    """Returns what the test has put there: so many records, or a wait."""

    def __init__(self, found: list[int | None]) -> None:
        self.found = found

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("0", 0)]

    def reader(self, split: cc.Split, position: cc.JSON) -> cc.SplitReader[int]:
        return TicketReader(self.found)


class TicketReader(cc.SplitReader[int]):
    def __init__(self, found: list[int | None]) -> None:
        self.found = found

    @property
    def position(self) -> cc.JSON:
        return 0

    def read(self, limit: int) -> list[int] | cc.Wait:
        count = self.found.pop(0)
        return cc.Wait(0.01) if count is None else list(range(min(count, limit)))


def rests_of(found: list[int | None]) -> list[int]:
    """Return for how long a source rests after each read."""
    rests: list[int] = []

    async def scene() -> None:
        clock = MovedClock()
        pool = pool_of(clock, Tickets(found), LoopAlarm)
        runner = pool.runners[0]
        while found:
            runner.run(clock.now_ns)
            assert not pool.is_over
            rests.append(max(0, runner.due_ns - clock.now_ns))
        await pool.close()

    play(asyncio.new_event_loop, scene)
    return rests


def test_a_source_that_had_nothing_to_read_rests_a_little_before_each_of_the_next_reads() -> None:
    assert rests_of([None, 1, 1, None, 1]) == [REST_NS, REST_NS, REST_NS, REST_NS, REST_NS]


def test_a_source_that_has_always_something_to_read_never_rests() -> None:
    assert rests_of([1, 2, 3, 1]) == [0, 0, 0, 0]


def test_a_source_that_fills_a_batch_is_behind_and_rests_no_more() -> None:
    assert rests_of([None, 1, 1_000, 1]) == [REST_NS, REST_NS, 0, 0]


def test_after_some_rests_a_source_is_read_at_once_to_see_whether_it_has_caught_up() -> None:
    found: list[int | None] = [None, *[1] * (RESTS_MAX + 2)]
    assert rests_of(found) == [REST_NS] * (RESTS_MAX + 1) + [0, 0]


class HandAlarm:
    """An alarm that the test rings."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.delays_ns: list[int] = []

    def set(self, delay_ns: int) -> None:
        self.delays_ns.append(delay_ns)

    def cancel(self) -> None: ...

    def close(self) -> None: ...


def test_a_paced_source_reads_and_sleeps_again_in_the_call_that_wakes_its_worker() -> None:
    """Rounds by way of the loop's queue, or that find nothing, would cost as much as the records."""
    alarms: list[HandAlarm] = []

    def new_alarm(ring: Callable[[], None]) -> HandAlarm:
        alarms.append(HandAlarm(ring))
        return alarms[-1]

    async def scene() -> None:
        clock = MovedClock()
        pool = pool_of(clock, Tickets([None, 1, 1, 1]), new_alarm)
        (alarm,) = alarms
        pool.start()
        await asyncio.sleep(0)
        for records in range(1, 4):
            assert pool.is_asleep
            clock.now_ns += REST_NS
            alarm.ring()
            assert pool.tasks[0].records_in == records
        assert pool.is_asleep
        assert alarm.delays_ns == [REST_NS] * 4
        await pool.close()

    play(asyncio.new_event_loop, scene)
