"""Timers that are due as soon as they are set, timers that have no end, timers of which there are many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit import bare_task
from tests.unit.barriers import A, B

import crosscut as cc
from crosscut.contracts.process import states_of
from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.graph.specs import OperatorNode, ProcessSpec
from crosscut.operators.building import build, keyed_state
from crosscut.operators.process import TIMERS_AT_ONCE_MAX, Process
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.stop_the_world import StopTheWorldBarriers
from crosscut.state.keyed import KeyedState
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier
from crosscut.task.requests import StoreFrozen
from crosscut.task.task import Task

N1 = CheckpointId(1)


class Site:
    """A process as the operator that runs it, over a state that outlives it."""

    def __init__(self, process: cc.KeyedProcess[Any, Any], *, rows_max: int = 1_000) -> None:
        self._node = OperatorNode("process", ProcessSpec(process, states_of(process)), ())
        self._rows_max = rows_max
        state = keyed_state(self._node)
        assert state is not None
        self.begin(state)

    def begin(self, state: KeyedState, watermark: int | None = None) -> None:
        self.state = state
        operator = build(self._node, state, None)
        assert isinstance(operator, Process)
        self.operator = operator
        operator.time_budget.begin(self._rows_max)
        for _ in operator.loading():
            pass
        operator.begin_at(watermark)

    def restore(self, watermark: int) -> None:
        """Go on from a snapshot of what there is now."""
        self.state.freeze(N1)
        part = b"".join(self.state.encoded(N1, CheckpointId(0)))
        state = keyed_state(self._node)
        assert state is not None
        for _ in state.loading([(N1, part)], N1):
            pass
        self.begin(state, watermark)

    def takes(self, *records: tuple[Any, int]) -> list[Any]:
        keys, timestamps = [key for key, _ in records], [timestamp for _, timestamp in records]
        return shown(self.operator.process(Batch(list(records), keys, timestamps)))

    def step(self, watermark: int | None) -> list[Any] | None:
        made = self.operator.advance(watermark)
        self.operator.time_budget.rest = None
        return None if made is None else shown(made)

    def says(self, watermark: int | None) -> list[Any]:
        said: list[Any] = []
        while (made := self.step(watermark)) is not None:
            said += made
        return said


def shown(batch: Batch) -> list[Any]:
    return list(zip(batch.records, batch.timestamps or [], strict=True))


class Back(cc.KeyedProcess[Any, Any]):
    """Sets timers at its records' times, and each of these one 2 ms before itself, `steps` times."""

    left = cc.ValueState[int](0)

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_timer(record[1])
        self.left.set(self.steps)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield ctx.key, time
        if left := self.left.get():
            self.left.set(left - 1)
            ctx.set_timer(time - 2)


def test_what_a_timer_in_the_past_says_is_punctual_also_if_a_restore_comes_before_it() -> None:
    site = Site(Back(), rows_max=1)
    assert site.says(100) == []
    site.takes(("a", 10), ("b", 20), ("c", 150))
    # The slice ends after one of them; what comes next has been told of 100, and not yet of 200.
    assert site.step(200) == [(("a", 10), 100)]
    site.restore(watermark=200)
    assert site.says(200) == [(("b", 20), 100), (("c", 150), 150)]


def test_a_timer_that_is_set_back_by_another_one_says_nothing_that_is_older() -> None:
    site = Site(Back(steps=2), rows_max=1)
    site.says(100)
    site.takes(("a", 103))
    assert site.step(200) == [(("a", 103), 103)]
    # 101 would do, and 99 would be late: whoever is next has heard of 100. After a restore nobody knows.
    site.restore(watermark=200)
    assert site.says(200) == [(("a", 101), 103), (("a", 99), 103)]


class Again(cc.KeyedProcess[Any, Any]):
    """Sets each of its timers again."""

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_timer(record[1])

    def on_timer(self, time: int, ctx: cc.Context) -> None:
        ctx.set_timer(time)


class AgainByClock(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_processing_timer(record[1])

    def on_processing_timer(self, time: int, ctx: cc.Context) -> None:
        ctx.set_processing_timer(time)


class ByTurns(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_timer(record[1])

    def on_timer(self, time: int, ctx: cc.Context) -> None:
        ctx.set_processing_timer(time)

    def on_processing_timer(self, time: int, ctx: cc.Context) -> None:
        ctx.set_timer(time)


@pytest.mark.parametrize("process", [Again(), AgainByClock(), ByTurns()])
def test_a_timer_that_always_sets_one_that_is_due_at_once_fails_the_job_by_name(process: Any) -> None:
    site = Site(process)
    site.operator.time_budget.now_ms = 50
    site.takes(("other", 5_000), ("a", 10))
    with pytest.raises(
        UserCodeError, match="key 'a' has set 10000 timers, each of them due at once"
    ) as caught:
        site.says(100)
    assert caught.value.operator == "process"
    assert caught.value.record == "{'key': 'a', 'timer': 10}"


class Ticks(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_timer(record[1])

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield time
        ctx.set_timer(time + 1)


def test_timers_that_catch_up_with_the_watermark_are_no_such_thing() -> None:
    site = Site(Ticks())
    site.takes(("a", 0))
    last = 2 * TIMERS_AT_ONCE_MAX
    assert [time for time, _ in site.says(last)] == list(range(last + 1))


class TwoSteps(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> None:
        ctx.set_timer(record[1])

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        if time < 1_000_000:
            ctx.set_timer(time + 1_000_000)
        else:
            yield time


def test_many_timers_of_one_key_that_are_left_may_each_set_another_at_the_end_of_input() -> None:
    site = Site(TwoSteps())
    count = TIMERS_AT_ONCE_MAX + 1
    site.takes(*[("a", time) for time in range(count)])
    assert len(site.says(END_OF_TIME)) == count


# Tasks.


class ByClock(cc.KeyedProcess[Any, Any]):
    """As soon as one timer has come, it has another one come, and so on: more than there is time for."""

    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        yield record
        ctx.set_processing_timer(ctx.now())

    def on_processing_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield time
        ctx.set_processing_timer(time + 1)


def task_of(
    process: cc.KeyedProcess[Any, Any],
    protocol: type[AlignedBarriers | StopTheWorldBarriers] = AlignedBarriers,
) -> Task:
    site = Site(process)
    return bare_task.task_of(
        site.operator,
        protocol=protocol,
        queues={channel: InputQueue(channel, batch_rows=100) for channel in (A, B)},
        has_event_time=True,
        state=site.state,
    )


def sent(task: Task) -> list[Any]:
    task.output_buffers.flush()
    items, task.task_effects.outbox = task.task_effects.outbox, []
    found: list[Any] = []
    for _, item in items:
        found += item.records if isinstance(item, Batch) else [item]
    return found


def test_records_and_barriers_have_their_turn_while_timers_come_as_fast_as_the_clock_goes() -> None:
    task = task_of(ByClock())
    task.set_clock(1)
    task.offer(A, Batch(["first"], ["a"], [1]))
    task.run()
    task.offer(A, Batch(["second"], ["b"], [1]))
    for channel in (A, B):
        task.offer(channel, Barrier(N1))
    for now in range(2, 12):
        task.set_clock(now)
        assert task.alarm_in_ms == 0
        task.run()
    said = sent(task)
    assert said.index("second") < said.index(Barrier(N1))
    assert 3 in said


def test_a_barrier_passes_between_two_slices_of_timers_that_are_due() -> None:
    task = task_of(Ticks())
    task.rows_max = 2
    task.offer(A, Batch([("a", 0)], ["a"], [0], 9))
    task.offer(B, Batch([], watermark=9))
    while not task.chain.is_midway:
        task.run()
    for channel in (A, B):
        task.offer(channel, Barrier(N1))
    task.offer(A, Batch([("b", 20)], ["b"], [20]))
    while task.has_work:
        task.run()
    said = sent(task)
    assert [one for one in said if isinstance(one, int)] == list(range(10))
    assert 0 < said.index(Barrier(N1)) < len(said) - 1
    [snapshot] = [job.frozen for job in task.task_effects.background_jobs if isinstance(job, StoreFrozen)]
    assert snapshot.watermark == 9


def test_who_stands_still_says_nothing_though_timers_are_due() -> None:
    """Else what it says is in no snapshot: those that it is for stand still, too."""
    task = task_of(Ticks(), StopTheWorldBarriers)
    task.rows_max = 2
    task.offer(A, Batch([("a", 0)], ["a"], [0], 9))
    task.offer(B, Batch([], watermark=9))
    while not task.chain.is_midway:
        task.run()
    for channel in (A, B):
        task.offer(channel, Barrier(N1))
    while task.has_work:
        task.run()
    before = sent(task)
    assert before[-1] == Barrier(N1) and task.chain.is_midway
    task.snapshots.capture(N1)
    task.snapshots.resume(N1)
    while task.has_work:
        task.run()
    assert [one for one in before + sent(task) if isinstance(one, int)] == list(range(10))
