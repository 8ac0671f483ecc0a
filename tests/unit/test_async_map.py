"""map_async: records are in the state until their results go on; calls are asked for, told of, made again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.bare_task import X, offer, output, sent, task_of
from tests.unit.barriers import N1, A, B

import crosscut as cc
from crosscut.contracts.connected_process import FROM_NOTHING, Begins
from crosscut.contracts.dead_letters import DEAD_LETTERS, DeadLetter, OnError
from crosscut.errors import FlowError, InternalError, UserCodeError, WorkersError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch
from crosscut.graph.explain import explained
from crosscut.graph.specs import AsyncMapSpec, OperatorNode
from crosscut.host.calls import start_thread
from crosscut.operators.async_map import AsyncMap, StartCall
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshot.stop_the_world import StopTheWorldBarriers
from crosscut.state.keyed import KeyedState
from crosscut.task.items import Barrier, EndOfInput
from crosscut.task.requests import StoreFrozen
from crosscut.worker import background
from crosscut.worker.async_calls import Outcome, outcome_of
from crosscut.worker.background import Threads


class Site:
    """The operator, with what it has asked for."""

    def __init__(
        self,
        capacity: int = 2,
        retries: int = 0,
        *,
        ordered: bool = True,
        on_error: OnError = "fail",
        state: KeyedState | None = None,
        begins: Begins = FROM_NOTHING,
    ) -> None:
        spec = AsyncMapSpec(str, capacity, 1_000, retries, ordered, on_error)
        node = OperatorNode("calls", spec, ())
        self.state = state or keyed_state(node) or KeyedState(int)
        operator = build(node, self.state, None, (DEAD_LETTERS,), begins)
        assert isinstance(operator, AsyncMap)
        self.operator = operator
        self.asked: list[StartCall] = []

    def take(self, *records: Any, timestamps: list[int] | None = None) -> None:
        assert self.operator.process(Batch(list(records), None, timestamps)).records == []

    def asks(self) -> list[Any]:
        """The records that calls are asked for now."""
        new, self.operator.requests = self.operator.requests, []
        self.asked += new
        return [one.record for one in new]

    def call(self, record: Any) -> StartCall:
        return next(one for one in reversed(self.asked) if one.record == record)

    def returned(self, record: Any, result: Any = None) -> None:
        self.operator.returned(self.call(record).call_id, result or f"<{record}>")

    def raised(self, record: Any, error: BaseException) -> None:
        self.operator.raised(self.call(record).call_id, error)

    def gives(self) -> list[Any]:
        return self.operator.release(100).records

    @property
    def rows(self) -> list[Any]:
        return sorted(record for _, (record, _) in self.state.items())


def test_as_many_calls_as_may_be_are_asked_for_and_the_others_when_results_have_gone_on() -> None:
    site = Site(capacity=2)
    site.take(1, 2, 3)
    assert site.asks() == [1, 2]
    assert site.operator.room == -1
    site.returned(1)
    assert site.asks() == [] and site.operator.has_results
    assert site.gives() == ["<1>"]
    assert site.asks() == [3] and site.operator.room == 0


def test_ordered_results_wait_for_older_ones_and_unordered_ones_do_not() -> None:
    for ordered, early, late in ((True, [], ["<1>", "<2>"]), (False, ["<2>"], ["<1>"])):
        site = Site(ordered=ordered)
        site.take(1, 2)
        site.asks()
        site.returned(2)
        assert site.operator.has_results is not ordered
        assert site.gives() == early
        site.returned(1)
        assert site.gives() == late
        assert not site.operator.is_calling


def test_a_record_is_in_the_state_until_its_result_has_gone_on() -> None:
    site = Site(capacity=9)
    site.take(1, 2)
    site.asks()
    site.returned(1)
    assert site.rows == [1, 2]
    site.gives()
    assert site.rows == [2]


def test_what_was_under_way_is_asked_for_again_by_whoever_has_the_rows_and_first() -> None:
    first, other = Site(capacity=9), Site(capacity=9, begins=Begins(0, 1))
    first.take(1, 2)
    other.take(3)
    merged = KeyedState(int)
    for site in (first, other):
        for call_id, row in site.state.items():
            merged.main.put(call_id, row)
    assert len(merged) == 3
    restored = Site(capacity=9, state=merged, begins=Begins(7, 0))
    assert restored.asks() == [1, 2, 3]
    restored.take(4)
    assert restored.asks() == [4] and len(merged) == 4
    for record in (4, 3, 2, 1):
        restored.returned(record)
    assert restored.gives() == ["<1>", "<2>", "<3>", "<4>"] and len(merged) == 0


def test_a_snapshot_holds_what_was_there_and_a_rolled_back_task_asks_for_just_that() -> None:
    site = Site(capacity=9)
    site.take(1, 2)
    site.asks()
    site.state.freeze(CheckpointId(1))
    site.returned(1)
    site.gives()
    site.take(3)
    for _ in site.state.complete(CheckpointId(1)):
        pass
    site.state.roll_back(CheckpointId(1))
    assert Site(capacity=9, state=site.state, begins=Begins(1, 0)).asks() == [1, 2]


def test_a_call_that_has_failed_is_made_again_later_and_later_as_often_as_may_be() -> None:
    site = Site(retries=2)
    site.take(1)
    site.asks()
    delays = []
    for _ in range(2):
        site.raised(1, ConnectionError("refused"))
        assert site.asks() == [1]
        delays.append(site.asked[-1].delay_ms)
    assert delays == [100, 200]
    with pytest.raises(UserCodeError, match="operator 'calls' raised ConnectionError: refused") as caught:
        site.raised(1, ConnectionError("refused"))
    assert caught.value.record == "1"
    assert not site.gives()


def test_a_call_that_has_failed_so_often_is_a_dead_letter_in_its_turn() -> None:
    site = Site(on_error=DEAD_LETTERS)
    site.take(1, 2)
    site.asks()
    site.raised(2, ValueError("no"))
    assert site.gives() == [] and site.rows == [1, 2]
    site.returned(1)
    assert site.gives() == ["<1>"] and site.rows == []
    assert site.operator.sides is not None
    (taken,) = site.operator.sides.take()
    assert taken[1].records == [DeadLetter(2, "ValueError: no", "calls")]


@pytest.mark.parametrize("error", [SystemExit(1), FlowError("wrong"), MemoryError()])
def test_what_is_not_about_the_record_is_not_tried_again(error: BaseException) -> None:
    site = Site(retries=5, on_error=DEAD_LETTERS)
    site.take(1)
    site.asks()
    with pytest.raises(UserCodeError):
        site.raised(1, error)


def test_as_long_as_no_call_has_returned_it_may_be_the_service_that_is_to_blame() -> None:
    """A service that is down fails the call of the same record after each restart."""
    site = Site()
    site.take(1, 2)
    site.asks()
    with pytest.raises(UserCodeError) as raised:
        site.raised(2, ValueError("not 2"))
    assert raised.value.is_first
    site.returned(1)
    site.take(3)
    site.gives()
    site.asks()
    with pytest.raises(UserCodeError) as raised:
        site.raised(3, ValueError("not 3"))
    assert not raised.value.is_first


def test_a_call_ends_once() -> None:
    site = Site()
    site.take(1)
    site.asks()
    site.returned(1)
    with pytest.raises(InternalError, match="which is not under way"):
        site.returned(1)


def test_results_have_the_time_of_their_records_and_a_watermark_waits_for_them() -> None:
    site = Site(capacity=9)
    site.take("a", "b", timestamps=[10, 20])
    site.operator.hold(Batch([], watermark=15))
    site.take("c", timestamps=[30])
    site.operator.hold(Batch([], watermark=25, idle=True))
    site.asks()
    site.returned("a")
    first = site.operator.release(100)
    assert (first.records, first.timestamps, first.watermark) == (["<a>"], [10], None)
    site.returned("b")
    second = site.operator.release(100)
    assert (second.timestamps, second.watermark, second.idle) == ([20], 15, None)
    site.returned("c")
    third = site.operator.release(100)
    assert (third.timestamps, third.watermark, third.idle) == ([30], 25, True)


def test_of_the_watermarks_that_wait_for_one_call_only_the_newest_is_kept() -> None:
    site = Site()
    site.take("a", timestamps=[10])
    site.asks()
    site.operator.hold(Batch([], watermark=5, idle=True))
    for watermark in range(10, 20):
        site.operator.hold(Batch([], watermark=watermark, idle=False))
    assert len(site.operator._news) == 1
    site.returned("a")
    made = site.operator.release(9)
    assert (made.watermark, made.idle) == (19, False)


# The task around it


class Running:
    """A task with room for two calls, and what has left it."""

    def __init__(self, protocol: Callable[..., SnapshotProtocol], *others: Operator) -> None:
        self.site = Site(capacity=2)
        self.task = task_of(
            self.site.operator,
            *others,
            protocol=protocol,
            outputs=[output(X, rows=1)],
            state=self.site.state,
        )

    def offer(self, channel: ChannelId, *items: Any) -> None:
        offer(self.task, channel, *items)
        self.work()

    def work(self) -> None:
        while self.task.has_work:
            self.task.run()

    def asked(self) -> list[Any]:
        jobs, self.task.task_effects.background_jobs = self.task.task_effects.background_jobs, []
        calls = [one for one in jobs if isinstance(one, StartCall)]
        self.site.asked += calls
        self.stored = [one.frozen for one in jobs if isinstance(one, StoreFrozen)]
        return [one.record for one in calls]

    def returned(self, record: Any) -> None:
        self.task.calls.returned(self.site.call(record).call_id, f"<{record}>")
        self.work()

    def sent(self) -> list[Any]:
        return [item for _, item in sent(self.task)]


def test_records_wait_in_the_inputs_while_all_calls_are_under_way_and_a_barrier_does_not() -> None:
    running = Running(AlignedBarriers)
    running.offer(A, [1, 2, 3, 4, 5])
    assert running.asked() == [1, 2] and running.task.input_gate.queued_rows == 3
    running.offer(A, Barrier(N1))
    assert running.task.input_gate.queued_rows == 0 and running.site.rows == [1, 2, 3, 4, 5]
    running.offer(B, [6], Barrier(N1))
    assert running.sent() == [Barrier(N1)]
    assert running.asked() == [] and [one.is_calling for one in running.stored] == [True]
    assert running.site.rows == [1, 2, 3, 4, 5, 6]
    running.offer(A, [7])
    assert running.task.input_gate.queued_rows == 1


def test_a_task_is_at_rest_when_all_results_have_gone_on() -> None:
    """A loop around it is not closed before."""
    running = Running(AlignedBarriers)
    running.offer(A, [1])
    running.asked()
    found = []
    for n in (N1, CheckpointId(2)):
        running.offer(A, Barrier(n))
        running.offer(B, Barrier(n))
        running.task.snapshots.stored(n, None, 0)
        found += [one.snapshot.at_rest for one in running.task.task_effects.messages]  # type: ignore[union-attr]
        running.task.task_effects.messages.clear()
        if n == N1:
            running.returned(1)
    assert found == [False, True]


def test_the_end_of_input_waits_for_all_results() -> None:
    running = Running(AlignedBarriers)
    running.offer(A, [1], EndOfInput())
    running.offer(B, EndOfInput())
    running.asked()
    assert running.sent() == []
    running.returned(1)
    assert running.sent() == [["<1>"], EndOfInput()]


def test_who_waits_for_a_call_is_not_idle() -> None:
    """Its records would be late when the call returns."""
    times = AssignTimestamps("times", int, 0, idle_after_ms=100)
    running = Running(AlignedBarriers, times)
    running.task.set_clock(1_000)
    running.offer(A, [1])
    running.asked()
    for clock_ms in (1_000, 1_100, 1_200):
        running.task.set_clock(clock_ms)
        while running.task.alarm_in_ms == 0:
            running.task.run()
    assert times.next_alarm_ms == 1_300
    running.task.calls.returned(running.site.call(1).call_id, 7)
    running.work()
    assert times.watermark == 7


def test_no_result_goes_on_while_the_task_stands_still_for_a_snapshot() -> None:
    """A task after it may not have captured yet: it would have the result, and this one the call."""
    running = Running(StopTheWorldBarriers)
    running.offer(A, [1], Barrier(N1))
    running.offer(B, Barrier(N1))
    running.asked()
    assert running.sent() == [Barrier(N1)]
    running.returned(1)
    assert running.sent() == []
    running.task.snapshots.capture(N1)
    assert running.site.rows == [1]
    running.task.snapshots.abort(N1)
    running.work()
    assert running.sent() == [["<1>"]]


# The calls themselves


async def doubled(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


async def endless(n: int) -> int:
    await asyncio.get_running_loop().create_future()
    return n


async def stubborn(n: int) -> int:
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if n:
                n -= 1
                continue
            raise


async def exiting(n: int) -> int:
    raise SystemExit(n)


def outcome(function: Callable[[Any], Any], timeout_ms: float = 60_000) -> Outcome:
    async def run() -> Outcome:
        threads = Threads(Epoch(1), 1_000, start_thread)
        try:
            return await outcome_of(StartCall((0, 0, 1), function, 1, timeout_ms), threads)
        finally:
            await threads.close()

    return asyncio.run(run())


def test_calls_that_never_return_do_not_take_threads_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "UNHEARD_CALLS_MAX", 3)
    is_free = threading.Event()
    begun = []

    def wait(n: int) -> None:
        begun.append(n)
        is_free.wait(60)

    async def run() -> list[BaseException | None]:
        threads = Threads(Epoch(1), 1_000, start_thread)
        errors = [
            (await outcome_of(StartCall((0, 0, n), wait, n, timeout_ms=1), threads)).error for n in range(5)
        ]
        is_free.set()
        await threads.close()
        errors.append(
            (await outcome_of(StartCall((0, 0, 9), len, "", 60_000), Threads(Epoch(2), 1_000))).error
        )
        return errors

    *late, fourth, fifth, after = asyncio.run(run())
    assert [type(one) for one in late] == [TimeoutError] * 3 and begun == [0, 1, 2]
    assert "3 calls have not returned long after their timeout" in str(fourth)
    # It fails the job, also where records for which calls fail are set aside.
    assert isinstance(fourth, WorkersError) and isinstance(fifth, WorkersError)
    assert after is None


def raising(n: int) -> int:
    raise ValueError(n)


def stopping(n: int) -> int:
    raise StopIteration


def coroutine_of(n: int) -> Any:
    return doubled(n)


def test_a_coroutine_is_awaited_and_a_plain_function_is_called_in_a_thread() -> None:
    assert outcome(doubled) == Outcome(2)
    here = threading.get_ident()
    assert outcome(lambda n: (2 * n, threading.get_ident() == here)) == Outcome((2, False))


@pytest.mark.parametrize("function", [endless, stubborn])
def test_a_coroutine_that_takes_too_long_has_raised_whether_it_hears_of_that_or_not(
    function: Callable[[Any], Any],
) -> None:
    found = outcome(function, timeout_ms=1)
    assert isinstance(found.error, TimeoutError)
    assert "has not returned within timeout=0.001 s" in str(found.error)


def test_a_thread_that_takes_too_long_has_raised_and_nobody_hears_what_it_returns() -> None:
    is_free = threading.Event()

    async def run() -> Outcome:
        threads = Threads(Epoch(1), 1_000, start_thread)
        try:
            return await outcome_of(StartCall((0, 0, 1), lambda n: is_free.wait(60), 3, 1), threads)
        finally:
            is_free.set()
            await threads.close()

    assert isinstance(asyncio.run(run()).error, TimeoutError)


@pytest.mark.parametrize(
    ("function", "kind"),
    [(raising, ValueError), (exiting, SystemExit), (stopping, RuntimeError), (coroutine_of, TypeError)],
)
def test_what_a_call_raises_does_not_reach_the_event_loop(
    function: Callable[[Any], Any], kind: type[BaseException]
) -> None:
    assert type(outcome(function).error) is kind


def test_whoever_stops_waiting_for_a_call_does_not_wait_for_its_end() -> None:
    """As at the end of an epoch: a coroutine that does not heed its cancellation holds nobody up."""

    async def run() -> bool:
        threads = Threads(Epoch(1), 1_000, start_thread)
        waiting = asyncio.ensure_future(outcome_of(StartCall((0, 0, 1), stubborn, 1, 60_000), threads))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=30)
        return waiting.cancelled()

    assert asyncio.run(run())


# What a user writes


def test_map_async_begins_a_vertex_and_says_what_it_does() -> None:
    flow = cc.Flow("f")
    stream = flow.source(cc.generate(lambda i: i, count=3)).map(str)
    stream.map_async(doubled, capacity=7, ordered=False).map(str).sink(cc.files.write_jsonl("out"))
    graph = flow.compile(1, 1)
    assert [[node.uid for node in vertex.chain] for vertex in graph.vertices] == [
        ["1-source", "2-map"],
        ["3-map_async", "4-map", "5-sink"],
    ]
    text = explained(graph)
    assert "3-map_async (7 calls, unordered)" in text and "without a name: 1-source, 3-map_async" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"capacity": 0}, "capacity=0 of type int: expected an int of at least 1"),
        ({"capacity": True}, "capacity=True of type bool"),
        ({"retries": -1}, "retries=-1 of type int: expected an int of at least 0"),
        ({"timeout": 0}, "timeout=0: expected at least 1 ms"),
        ({"timeout": "soon"}, "expected a duration such as"),
        ({"on_error": "skip"}, "on_error='skip': expected 'fail' or 'dead letters'"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, Any], problem: str) -> None:
    stream = cc.Flow("f").source(cc.generate(lambda i: i, count=3))
    with pytest.raises(FlowError) as caught:
        stream.map_async(doubled, **arguments)
    assert problem in str(caught.value)


def test_a_function_that_yields_or_takes_too_much_is_refused() -> None:
    async def yielding(n: int) -> Any:
        yield n

    stream = cc.Flow("f").source(cc.generate(lambda i: i, count=3))
    with pytest.raises(FlowError, match="function yields"):
        stream.map_async(yielding)
    with pytest.raises(FlowError, match="it is called with"):
        stream.map_async(lambda a, b: a)  # type: ignore[arg-type, misc]
