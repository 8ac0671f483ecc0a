"""Event time below the operators: timestamps and watermarks on their way, combined, kept and restored."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import bare_task
from tests.unit.barriers import HERE, N1, A, B

import crosscut as cc
from crosscut.errors import FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.foundation.timestamps import END_OF_TIME, TIMESTAMP_MAX, TIMESTAMP_MIN, as_timestamp
from crosscut.graph.explain import explained
from crosscut.graph.specs import AssignTimestampsSpec, Partitioning, SideOutput
from crosscut.operators.dead_letters import AttemptedTimestamps
from crosscut.operators.keyed import Aggregate
from crosscut.operators.operator import Operator
from crosscut.operators.sides import Sides
from crosscut.operators.stateless import Filter, FlatMap, KeyBy, Map, Split
from crosscut.operators.time_budget import TimeBudget
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.operators.watermarks import CombinedWatermark
from crosscut.protocol.snapshots import Snapshot
from crosscut.state.keyed import KeyedState
from crosscut.task.chain import Chain
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, EndOfInput
from crosscut.task.outputs import Output, build_output, pieces
from crosscut.task.requests import StoreFrozen
from crosscut.task.splits import SplitQueue
from crosscut.task.task import Task
from crosscut.wire.batches import decode_batch, encode_batch

OUT = tuple(ChannelId(1, HERE, TaskId(VertexId("after"), index)) for index in range(3))


def shown(batch: Batch) -> tuple[Any, ...]:
    return batch.records, batch.keys, batch.timestamps, batch.watermark, batch.idle


# Batches.


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A batch of a stream with keys and times, as it comes on a channel: news alone has neither."""
    rows = draw(st.lists(st.integers(0, 99), max_size=6))
    news = {"watermark": draw(st.none() | st.integers(0, 99)), "idle": draw(st.none() | st.booleans())}
    if not rows:
        return Batch([], **news)
    keys = rows if draw(st.booleans()) else [-row for row in rows]
    return Batch(rows, keys, [row * 10 for row in rows], **news)


def told(some: list[Batch]) -> list[tuple[int, int | None, bool | None]]:
    """Return the timestamp of each record, with the watermark and the idleness that it finds."""
    found, watermark, idle = [], None, None
    for batch in some:
        for timestamp in batch.timestamps or []:
            found.append((timestamp, watermark, idle))
        watermark = watermark if batch.watermark is None else batch.watermark
        idle = idle if batch.idle is None else batch.idle
    return [*found, (-1, watermark, idle)]


@given(batches(), st.integers(0, 6))
def test_when_a_batch_is_divided_its_news_stays_behind_its_last_record(batch: Batch, rows: int) -> None:
    head, rest = batch.split(rows)
    assert told([head, rest]) == told([batch])
    assert not head.has_news
    assert head.records + rest.records == batch.records
    if 0 < rows <= len(batch):
        whole = told([batch])
        dropped = batch.drop(rows)
        assert told([batch, dropped]) == whole
        assert len(dropped) == len(dropped.timestamps or []) == rows


@given(st.lists(batches(), min_size=1, max_size=5))
def test_merged_batches_tell_no_record_more_than_it_knew_and_in_the_end_all(some: list[Batch]) -> None:
    before = told(some)
    merged = Batch([])
    for one in some:
        merged.extend(one)
    assert merged.timestamps == [timestamp for timestamp, _, _ in before[:-1]] or not merged.records
    assert told([merged])[-1] == before[-1]


@given(batches())
def test_a_batch_with_times_and_news_is_the_same_after_the_wire(batch: Batch) -> None:
    assert shown(decode_batch(encode_batch(batch))) == shown(batch)


def test_a_batch_without_event_time_is_not_a_byte_longer() -> None:
    assert encode_batch(Batch([1, 2])) == encode_batch(Batch([1, 2], None, None, None, idle=None))
    assert len(encode_batch(Batch([1, 2]))) < len(encode_batch(Batch([1, 2], None, [0, 0])))


def test_pieces_of_a_large_batch_keep_their_times_and_the_news_comes_last() -> None:
    batch = Batch(list(range(10)), None, list(range(10)), 9, idle=True)
    found = list(pieces(batch, 3))
    assert [piece.timestamps for piece in found] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [(piece.watermark, piece.idle) for piece in found] == [(None, None)] * 3 + [(9, True)]


# Outputs.


def output(partitioning: Partitioning) -> Output:
    return build_output(
        partitioning,
        OUT,
        batch_rows=4,
        router=KeyRouter(16, len(OUT)),
        key_by_uid="by-key",
        task_index=0,
    )


@pytest.mark.parametrize("partitioning", ["broadcast", "rebalance", "hash"])
def test_a_watermark_waits_for_the_records_and_leaves_behind_them_on_all_channels(
    partitioning: Partitioning,
) -> None:
    out = output(partitioning)
    assert not out.has_buffered
    assert not out.add(Batch([7], [7], [70], 60))
    assert not out.add(Batch([], watermark=65, idle=False))
    assert out.has_buffered
    taken = dict(out.take())
    assert [(taken[one].watermark, taken[one].idle) for one in OUT] == [(65, False)] * 3
    times = {one: taken[one].timestamps for one in OUT if taken[one].records}
    assert set(map(str, times.values())) == {"[70]"}
    assert len(times) == (3 if partitioning == "broadcast" else 1)
    assert not out.has_buffered
    assert out.take() == []


def test_news_alone_is_sent_as_well_and_none_of_it_is_forgotten() -> None:
    out = output("hash")
    assert not out.add(Batch([], watermark=5))
    assert not out.add(Batch([], idle=True))
    assert [shown(batch) for _, batch in out.take()] == [([], None, None, 5, True)] * 3


# Operators.


def test_what_is_made_of_a_record_has_its_timestamp() -> None:
    def batch() -> Batch:
        return Batch([1, 2, 3], [1, 2, 3], [10, 20, 30])

    count = Aggregate("sum", KeyedState(int), "updates", lambda total, n: total + n)
    for operator, times in (
        (Map("m", str), [10, 20, 30]),
        (Filter("f", lambda n: n != 2), [10, 30]),
        (FlatMap("fm", range), [10, 20, 20, 30, 30, 30]),
        (FlatMap("gen", lambda n: (one for one in range(n - 1))), [20, 30, 30]),
        (KeyBy("k", str, keys_only=False), [10, 20, 30]),
        (count, [10, 20, 30]),
    ):
        made = operator.process(batch())
        assert made.timestamps == times
        assert len(made.records) == len(times)


class Alarms(Operator):
    """At most `rows_max` of what is due, with each call, and twice what it is given."""

    uses_watermarks = True

    def __init__(self, *due: int) -> None:
        super().__init__("alarms")
        self.waiting = list(due)
        self.heard: list[int | None] = []

    def process(self, batch: Batch) -> Batch:
        remaining = self.time_budget.through(batch)
        made = [record * 2 for record in remaining]
        return Batch(made, None, batch.timestamps)

    def advance(self, watermark: int | None) -> Batch | None:
        if watermark is not None:
            self.heard.append(watermark)
        latest = max((one for one in self.heard if one is not None), default=-1)
        if not self.waiting or self.waiting[0] > latest:
            return None
        said = []
        for _ in self.time_budget.through(Batch([None] * self.time_budget.rows_max)):
            if not self.waiting or self.waiting[0] > latest:
                break
            said.append(self.waiting.pop(0))
        return Batch([f"at {time}" for time in said], None, said)


class Site:
    def __init__(self, *operators: Operator, rows_max: int = 100) -> None:
        self.out: list[Any] = []
        self.time_budget = TimeBudget()
        self.chain = Chain(operators, self._emit, self._emit_aside, has_event_time=True)
        self.aside: list[Any] = []
        self.chain.follow(self.time_budget)
        self.rows_max = rows_max
        self.chain.begin(rows_max)

    def _emit(self, batch: Batch) -> None:
        self.out += batch.records
        if batch.watermark is not None:
            self.out.append(("watermark", batch.watermark))
        if batch.idle is not None:
            self.out.append(("idle", batch.idle))

    def _emit_aside(self, batch: Batch, side: SideOutput) -> None:
        self.aside.append((side.name, *shown(batch)))

    def finish(self) -> None:
        while self.chain.is_midway:
            self.chain.begin(self.rows_max)
            self.chain.go_on()


def test_a_watermark_goes_on_when_all_is_said_that_it_makes_due_and_a_snapshot_may_come_between() -> None:
    site = Site(Alarms(1, 2, 3, 9), Map("after", str), rows_max=1)
    assert site.chain.process(Batch([5], None, [50])) is None
    site.chain.forward_news(Batch([], watermark=3, idle=False))
    assert site.out == ["10", "at 1"]
    assert site.chain.is_midway
    assert not site.chain.is_halfway
    site.finish()
    assert site.out == ["10", "at 1", "at 2", "at 3", ("watermark", 3), ("idle", False)]


def test_what_is_made_of_records_comes_before_what_falls_due_after_them() -> None:
    site = Site(Alarms(1, 2, 3), Map("after", str), rows_max=2)
    assert site.chain.process(Batch([5], None, [50], 3)) is None
    site.finish()
    assert site.out == ["10", "at 1", "at 2", "at 3", ("watermark", 3)]


def test_at_the_end_each_operator_is_told_of_the_end_of_time_after_all_that_those_before_it_say() -> None:
    first, second = Alarms(7, 8), Alarms(TIMESTAMP_MAX)
    site = Site(first, Map("m", str), FlatMap("none", lambda text: [text]), second, rows_max=1)

    steps = site.chain.end()
    for _ in steps:
        site.finish()
        site.chain.begin(1)
    assert site.out == ["at 7at 7", "at 8at 8", f"at {TIMESTAMP_MAX}"]
    assert first.heard[-1] == second.heard[-1] == END_OF_TIME


def test_a_side_output_has_the_timestamps_of_its_records_and_the_watermark_behind_them() -> None:
    sides = Sides("split", ["odd", "large"])
    odd = Split("split", (("odd", lambda n: n % 2), ("large", lambda n: n > 5)), sides, has_rest=True)
    site = Site(odd, Map("m", str))
    batch = Batch([1, 2, 7, 8], None, [10, 20, 70, 80], 60)
    assert site.chain.process(batch) is None
    assert site.out == ["2", ("watermark", 60)]
    assert site.aside == [
        ("large", [8], None, [80], None, None),
        ("odd", [1, 7], None, [10, 70], None, None),
        ("large", [], None, None, 60, None),
        ("odd", [], None, None, 60, None),
    ]


def test_final_results_have_the_last_timestamp_of_all_so_nobody_finds_them_late() -> None:
    times: list[Any] = []

    class Look(Operator):
        def process(self, batch: Batch) -> Batch:
            times.append(batch.timestamps)
            return batch

    total = Aggregate("sum", KeyedState(int), "final", lambda total, n: total + n)
    site = Site(total, Look("look"))
    site.chain.process(Batch([1, 2], ["a", "b"], [10, 20]))
    for _ in site.chain.end():
        site.finish()
        site.chain.begin(100)
    assert times == [[TIMESTAMP_MAX, TIMESTAMP_MAX]]


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_wherever_slices_end_the_same_is_said_and_no_watermark_overtakes(seed: int, rows_max: int) -> None:
    chance = random.Random(seed)

    def run(*, is_stopped: bool) -> list[Any]:
        def stop(record: Any) -> Any:
            if is_stopped and chance.random() < 0.4:
                site.time_budget.stop()
            return record

        site = Site(Map("m", stop), Alarms(*range(0, 40, 3)), Map("n", stop), rows_max=rows_max)
        for start in range(0, 40, 4):
            batch: Batch | None = Batch([start, start + 1], None, [start, start + 1])
            while batch is not None:
                site.chain.begin(rows_max)
                batch = site.chain.process(batch)
                site.finish()
            site.chain.begin(rows_max)
            site.chain.forward_news(Batch([], watermark=start))
            site.finish()
        return site.out

    assert run(is_stopped=True) == run(is_stopped=False)


# Watermarks combined.


def test_splits_ahead_of_the_watermark_that_a_task_begins_with_move_it() -> None:
    """P1: at another parallelism the task begins with the lowest watermark of all that there were."""
    assigner = AssignTimestamps("times", lambda record: record, 0)
    assigner.begin(["ahead"], [1_000, {"ahead": 101_000, "behind": 1_000}])
    assert assigner.watermark == 101_000
    assigner.reads("ahead")
    assert assigner.process(Batch([101_500])).watermark == 101_500


def test_a_watermark_below_that_of_all_sides_does_not_stand_still() -> None:
    """P1: as in snapshots of jobs that have stood still; the lowest side counts, whoever speaks first."""
    combined = CombinedWatermark({"a": 101_000, "b": 102_000}, 1_000)
    assert combined.watermark == 101_000
    assert combined.update("b", 103_000) is None
    news = combined.update("a", 102_500)
    assert news is not None
    assert news.watermark == 102_500


@given(st.data())
def test_the_combined_watermark_is_the_lowest_of_all_that_may_still_say_something(
    data: st.DataObject,
) -> None:
    sides = ["a", "b", "c"]
    floor = data.draw(st.none() | st.integers(0, 20))
    # A task of another parallelism begins with the lowest of all, and splits that had come further.
    watermarks = {side: data.draw(st.just(floor) | st.none() | st.integers(0, 20)) for side in sides}
    combined = CombinedWatermark(watermarks, floor)
    idle: set[str] = set()
    is_idle = False
    begun = [one for one in watermarks.values() if one is not None]
    lowest = min(begun) if len(begun) == len(sides) else None
    expected = max((one for one in (floor, lowest) if one is not None), default=None)
    assert combined.watermark == expected
    for _ in range(data.draw(st.integers(0, 12))):
        side = data.draw(st.sampled_from(sides))
        if data.draw(st.integers(0, 9)) == 0:
            sides.remove(side)
            del watermarks[side]
            idle.discard(side)
            news = combined.ended(side)
        else:
            watermark = data.draw(st.none() | st.integers(0, 20))
            idleness = data.draw(st.none() | st.booleans())
            news = combined.update(side, watermark, idle=idleness)
            if watermark is not None:
                watermarks[side] = max(watermark, -1 if watermarks[side] is None else watermarks[side])  # type: ignore[type-var]
            if idleness is not None:
                (idle.add if idleness else idle.discard)(side)
        # In plain words.
        active = [watermarks[one] for one in watermarks if one not in idle]
        known = [one for one in watermarks.values() if one is not None]
        if active:
            now = None if None in active else min(one for one in active if one is not None)
        else:
            now = max(known, default=None)
        said = None if now is None or (expected is not None and now <= expected) else now
        expected = expected if said is None else said
        told_idle = bool(watermarks) and not active
        assert (news.watermark if news is not None else None) == said
        assert (news.idle if news is not None else None) == (told_idle if told_idle != is_idle else None)
        is_idle = told_idle
        assert combined.watermark == expected
        if not sides:
            break


# Timestamps.


def assigner(function: Callable[[Any], Any], out_of_orderness_ms: int = 0) -> AssignTimestamps:
    return AssignTimestamps("times", function, out_of_orderness_ms)


def news(times: AssignTimestamps) -> Batch:
    found = times.take_news()
    assert found is not None
    return found


def test_the_watermark_follows_the_newest_record_at_the_distance_that_was_said() -> None:
    times = assigner(lambda n: n, out_of_orderness_ms=5)
    assert shown(times.process(Batch([20, 12]))) == ([20, 12], None, [20, 12], 15, None)
    # It does not go back.
    assert shown(times.process(Batch([11]))) == ([11], None, [11], None, None)
    assert times.process(Batch([31])).watermark == 26


def test_no_watermark_is_before_the_year_1_since_records_get_it_as_their_timestamp() -> None:
    times = assigner(lambda n: n, out_of_orderness_ms=100)
    assert times.process(Batch([TIMESTAMP_MIN + 50])).watermark == TIMESTAMP_MIN
    assert times.process(Batch([20])).watermark == -80


def test_times_before_1970_are_negative() -> None:
    last = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    assert as_timestamp(datetime.datetime(1, 1, 1, tzinfo=UTC)) == TIMESTAMP_MIN
    assert as_timestamp(last) == -1 == as_timestamp(-1)
    assert as_timestamp(last.replace(microsecond=999_999)) == -1, "rounded down, as later ones"


def test_each_split_has_a_watermark_and_one_that_is_not_begun_holds_it_up() -> None:
    times = assigner(lambda n: n)
    times.begin(["one", "two", "three"], None)
    times.origin = "one"
    assert times.process(Batch([50])).watermark is None
    times.origin = "two"
    assert times.process(Batch([10])).watermark is None
    times.end_of("three")
    assert shown(news(times)) == ([], None, None, 10, None)
    times.end_of("two")
    assert news(times).watermark == 50


def test_a_split_that_has_had_nothing_to_read_for_long_is_not_waited_for_until_it_has() -> None:
    times = AssignTimestamps("times", lambda n: n, 0, idle_after_ms=100)
    times.begin(["one", "two", "three"], None)
    times.time_budget.now_ms = 1_000
    times.origin = "one"
    assert times.process(Batch([50])).watermark is None
    times.waits_for("two")
    times.time_budget.now_ms = 1_099
    times.waits_for("two")
    times.time_budget.now_ms = 1_100
    times.waits_for("two")
    # The third has not been asked yet: nobody knows.
    assert times.take_news() is None
    times.end_of("three")
    assert news(times).watermark == 50
    times.origin = "two"
    # It is back, and late; it counts again.
    assert times.process(Batch([20])).watermark is None
    times.origin = "one"
    assert times.process(Batch([70])).watermark is None
    times.origin = "two"
    assert times.process(Batch([60])).watermark == 60


def test_a_source_of_which_nothing_comes_says_that_it_is_idle_and_when_it_is_so_no_more() -> None:
    times = AssignTimestamps("times", lambda n: n, 0, idle_after_ms=100)
    times.begin(["one"], None)
    times.waits_for("one")
    times.time_budget.now_ms = 100
    times.waits_for("one")
    assert shown(news(times)) == ([], None, None, None, True)
    times.origin = "one"
    assert shown(times.process(Batch([50]))) == ([50], None, [50], 50, False)


def test_what_was_known_of_splits_is_known_after_a_restore() -> None:
    times = assigner(lambda n: n)
    times.begin(["one", "two"], None)
    for split, record in (("one", 50), ("two", 10)):
        times.origin = split
        times.process(Batch([record]))
    saved = times.saved
    again = assigner(lambda n: n)
    again.begin(["one", "two"], saved)
    assert again.watermark == 10
    again.origin = "two"
    assert again.process(Batch([70])).watermark == 50


UTC = datetime.UTC


def test_a_datetime_with_a_time_zone_is_a_timestamp() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    when = datetime.datetime(2024, 5, 1, 14, 0, 0, 123_999, tzinfo=zone)
    assert as_timestamp(when) == 1_714_564_800_123
    times = assigner(lambda one: one)
    assert times.process(Batch([when, 1_714_564_800_124])).timestamps == [
        1_714_564_800_123,
        1_714_564_800_124,
    ]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            TIMESTAMP_MIN - 1,
            "no timestamp: expected whole milliseconds .* before the year 1",
        ),
        (TIMESTAMP_MAX + 1, "after the year 9999: is it in microseconds or nanoseconds?"),
        (None, "there is no timestamp"),
        (1.5, "1.5 of type float is no timestamp"),
        (True, "True of type bool is no timestamp"),
        ("2024-01-01", "'2024-01-01' of type str is no timestamp"),
        (datetime.datetime(2024, 1, 1), "has no time zone"),
        (
            datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            "before the year 1",
        ),
    ],
)
def test_what_is_no_timestamp_is_named_with_its_record(value: Any, problem: str) -> None:
    records = [("good", 1), ("bad", value), ("good", 2)]
    with pytest.raises(UserCodeError, match=problem) as caught:
        assigner(lambda record: record[1]).process(Batch(records))
    assert "operator 'times'" in str(caught.value)
    assert caught.value.record == repr(records[1])


def test_the_record_is_to_blame_for_what_is_no_timestamp_though_it_is_the_first() -> None:
    """Else a job whose first record has none is started again ten times, and not three."""
    with pytest.raises(UserCodeError) as returned:
        assigner(lambda record: record).process(Batch([None]))
    assert not returned.value.is_first
    with pytest.raises(UserCodeError) as raised:
        assigner(lambda record: int(record)).process(Batch(["then"]))
    assert raised.value.is_first


def test_a_function_that_raises_is_named_with_its_record() -> None:
    with pytest.raises(UserCodeError, match="operator 'times' raised KeyError") as caught:
        assigner(lambda record: record["time"]).process(Batch([{"time": 1}, {}]))
    assert caught.value.record == "{}"


# Flows.


def test_records_with_and_without_timestamps_cannot_meet() -> None:
    flow = cc.Flow("mixed")
    timed = flow.source(cc.items([1])).named("one").assign_timestamps(lambda n: n).named("times")
    timed.union(flow.source(cc.items([2])).named("two")).sink(cc.printing())
    with pytest.raises(FlowError, match="records of 'times' have timestamps, those of 'two' have none"):
        flow.compile(1, 1)


def test_explain_warns_of_timestamps_that_are_assigned_where_splits_are_mixed() -> None:
    flow = cc.Flow("far")
    source = flow.source(cc.items([1])).named("numbers")
    source.assign_timestamps(lambda n: n).named("near").sink(cc.printing()).named("one")
    far = source.rebalance().map(lambda n: n).named("map").assign_timestamps(lambda n: n).named("far")
    far.sink(cc.printing()).named("other")
    text = explained(flow.compile(2, 8))
    assert "timestamps assigned far from the source: near, far" in text

    flow = cc.Flow("near")
    source = flow.source(cc.items([1])).named("numbers")
    source.assign_timestamps(lambda n: n).named("near").sink(cc.printing()).named("one")
    assert "far from the source" not in explained(flow.compile(2, 8))


def test_arguments_are_checked_where_they_are_written() -> None:
    stream = cc.Flow("arguments").source(cc.items([1]))
    with pytest.raises(FlowError, match=r"2-assign_timestamps.*out_of_orderness='soon'"):
        stream.assign_timestamps(lambda n: n, out_of_orderness="soon")
    with pytest.raises(FlowError, match="expected a function"):
        stream.assign_timestamps("time")  # type: ignore[arg-type]


# Tasks.


def task_of(*chain: Operator, inputs: tuple[ChannelId, ...] = (A, B), rows: int = 100, **others: Any) -> Task:
    return bare_task.task_of(
        *chain,
        inputs=inputs,
        queues={channel: InputQueue(channel, batch_rows=rows) for channel in inputs},
        outputs=[bare_task.output(OUT[0], rows=rows)],
        rows=rows,
        has_event_time=True,
        **others,
    )


def work(task: Task) -> list[Any]:
    """Run until there is nothing to do; return what was sent: records, watermarks, idleness, items."""
    while task.has_work:
        task.run()
    task.output_buffers.flush()
    items, task.task_effects.outbox = task.task_effects.outbox, []
    found: list[Any] = []
    for _, item in items:
        if not isinstance(item, Batch):
            found.append(item)
            continue
        found += item.records
        found += [] if item.watermark is None else [("watermark", item.watermark)]
        found += [] if item.idle is None else [("idle", item.idle)]
    return found


def frozen(task: Task) -> Any:
    return next(one.frozen for one in task.task_effects.background_jobs if isinstance(one, StoreFrozen))


def test_a_task_goes_by_the_lowest_watermark_of_its_inputs_and_says_so_behind_the_records() -> None:
    task = task_of(Alarms(3, 8))
    task.offer(A, Batch([1], None, [4], 9))
    assert work(task) == [2]
    task.offer(B, Batch([2], None, [5], 5))
    assert work(task) == [4, "at 3", ("watermark", 5)]
    task.offer(B, EndOfInput())
    assert work(task) == ["at 8", ("watermark", 9)]
    task.offer(A, EndOfInput())
    assert work(task) == [EndOfInput()]


def test_what_goes_round_a_loop_does_not_hold_the_watermark_up() -> None:
    task = task_of(Alarms(), back_edges=frozenset({B}))
    task.offer(A, Batch([], watermark=5))
    assert work(task) == [("watermark", 5)]
    task.offer(B, Batch([1], None, [1], 2))
    assert work(task) == [2]


def test_news_that_is_still_in_a_loop_when_that_is_closed_harms_nobody() -> None:
    task = task_of(Alarms(), back_edges=frozenset({B}))
    task.offer(A, EndOfInput())
    task.close_loops([HERE.vertex])
    task.offer(B, Batch([], watermark=5))
    assert work(task) == [EndOfInput()]


def test_a_channel_that_is_idle_is_not_waited_for_until_it_says_otherwise() -> None:
    task = task_of(Alarms())
    task.offer(A, Batch([], watermark=5))
    task.offer(B, Batch([], watermark=3))
    assert work(task) == [("watermark", 3)]
    task.offer(B, Batch([], idle=True))
    assert work(task) == [("watermark", 5)]
    task.offer(A, Batch([], idle=True))
    assert work(task) == [("idle", True)]
    task.offer(B, Batch([], watermark=4, idle=False))
    assert work(task) == [("idle", False)]


def test_a_task_says_how_far_it_is_and_who_holds_it_up() -> None:
    task = task_of(Alarms())
    task.offer(A, Batch([], watermark=9))
    work(task)
    assert (task.statistics().watermark, task.statistics().held_up_by) == (None, "before[1]")
    task.offer(B, Batch([], watermark=12))
    work(task)
    assert (task.statistics().watermark, task.statistics().held_up_by) == (9, "before[0]")
    task.offer(A, Batch([], idle=True))
    work(task)
    assert (task.statistics().watermark, task.statistics().held_up_by) == (12, "before[1]")
    for channel in (A, B):
        task.offer(channel, EndOfInput())
    work(task)
    assert task.statistics().held_up_by == ""


def test_a_watermark_stays_behind_the_records_of_its_batch_when_a_slice_takes_only_some() -> None:
    task = task_of(Map("m", lambda n: n), inputs=(A,))
    task.rows_max = 2
    task.offer(A, Batch([1, 2, 3], None, [1, 2, 3], 3))
    task.run()
    assert task.statistics().records_in == 2
    task.output_buffers.flush()
    assert work(task) == [1, 2, 3, ("watermark", 3)]


def test_a_snapshot_has_the_watermark_and_a_restored_task_never_goes_below_it() -> None:
    task = task_of(Alarms())
    task.offer(A, Batch([], watermark=7))
    task.offer(B, Batch([], watermark=9))
    for channel in (A, B):
        task.offer(channel, Barrier(N1))
    assert work(task) == [("watermark", 7), Barrier(N1)]
    assert frozen(task).watermark == 7

    alarms = Alarms(6, 8)
    again = task_of(alarms, restored=Snapshot(watermark=7))
    # First of all: what was due then, and then the watermark, for whoever has not heard of it.
    assert work(again) == ["at 6", ("watermark", 7), ("idle", False)]
    again.offer(A, Batch([], watermark=5))
    again.offer(B, Batch([], watermark=8))
    assert work(again) == []
    again.offer(A, Batch([], watermark=8))
    assert work(again) == ["at 8", ("watermark", 8)]
    assert alarms.heard == [7, 7, 8, 8]


class _Listed(cc.Source[Any]):
    """Splits that give what is listed, step by step."""

    def __init__(self, steps: dict[str, list[Any]]) -> None:
        self.steps = steps

    @staticmethod
    def unread(*names: str) -> list[tuple[cc.Split, Any]]:
        return [(cc.Split(name, 0), 0) for name in names]

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [split for split, _ in self.unread(*self.steps)]

    def reader(self, split: cc.Split, position: Any) -> Any:
        return _ListedReader(list(self.steps[split.split_id]))


class _ListedReader(cc.SplitReader):
    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    @property
    def position(self) -> Any:
        return 0

    def read(self, limit: int) -> Any:
        return self.steps.pop(0) if self.steps else cc.EndOfSplit()

    def close(self) -> None:
        pass


class Alarm(Operator):
    """Says when it is told of a time that has come."""

    uses_watermarks = True
    uses_clock = True

    def __init__(self, *due: int) -> None:
        super().__init__("alarm")
        self.due = list(due)

    def process(self, batch: Batch) -> Batch:
        return batch

    @property
    def next_alarm_ms(self) -> int | None:
        return self.due[0] if self.due else None

    def advance(self, watermark: int | None) -> Batch | None:
        if watermark != END_OF_TIME and (not self.due or self.due[0] > self.time_budget.now_ms):
            return None
        return Batch([f"at {self.due.pop(0)}"], None, [0]) if self.due else None


def test_a_task_says_when_it_is_to_be_called_and_says_then_what_is_due() -> None:
    task = task_of(Alarm(1_000, 1_500))
    task.set_clock(900)
    assert task.alarm_in_ms == 100
    assert work(task) == []
    task.set_clock(1_000)
    assert task.alarm_in_ms == 0
    task.run()
    assert work(task) == ["at 1000"]
    assert task.alarm_in_ms == 500
    for channel in (A, B):
        task.offer(channel, EndOfInput())
    assert work(task) == ["at 1500", EndOfInput()]
    assert task.alarm_in_ms is None


def test_a_split_is_not_idle_because_what_comes_after_is_slow() -> None:
    """J1: it had nothing once, and was not asked since. What it has by now must not be late."""
    stream = [[10], cc.Wait(1), [70]]
    splits = SplitQueue(_Listed({"a": stream, "b": [[90], [91], [92], [93]]}), _Listed.unread("a", "b"))
    times = AssignTimestamps("times", lambda n: n, 0, idle_after_ms=100)
    task = task_of(times, inputs=(), splits=splits, source_uid="listed")
    for clock_ms in (1_000, 1_001, 1_002):
        task.set_clock(clock_ms)
        task.run()
    # For a second the outputs take nothing, so nobody runs the task.
    task.set_clock(2_000)
    task.run()
    assert times.watermark == 70


def test_a_split_of_which_all_is_filtered_out_is_idle_until_something_comes() -> None:
    """Whoever reads a topic of which it wants only rare records would hold up all time behind it."""
    steps = [[10], *[[-n] for n in range(1, 30)], [70]]
    times = AssignTimestamps("times", lambda n: n, 0, idle_after_ms=100)
    splits = SplitQueue(_Listed({"a": steps}), _Listed.unread("a"))
    task = task_of(Filter("positive", lambda n: n > 0), times, inputs=(), splits=splits, source_uid="listed")
    said: list[tuple[int, Any]] = []
    for clock_ms in range(1_000, 1_310, 10):
        task.set_clock(clock_ms)
        task.run()
        task.output_buffers.flush()
        items, task.task_effects.outbox = task.task_effects.outbox, []
        said += [(clock_ms, one.records or one.idle) for _, one in items if isinstance(one, Batch)]
    # Since 1010 nothing has come: at 1110 that is long enough, which is known when it is asked again.
    assert said == [(1_000, [10]), (1_120, True), (1_300, [70])]
    assert (times.watermark, times.awaited(["a"])) == (70, {"a": 70})


def test_a_split_of_which_all_is_filtered_out_is_not_idle_because_what_comes_after_is_slow() -> None:
    times = AssignTimestamps("times", lambda n: n, 0, idle_after_ms=100)
    splits = SplitQueue(_Listed({"a": [[10], [-1], [70]]}), _Listed.unread("a"))
    task = task_of(Filter("positive", lambda n: n > 0), times, inputs=(), splits=splits, source_uid="listed")
    # For a second the outputs take nothing, so nobody runs the task.
    for clock_ms in (1_000, 1_001, 2_000):
        task.set_clock(clock_ms)
        task.run()
        assert times.awaited(["a"])
    assert times.watermark == 70


def test_what_is_no_source_is_idle_when_nothing_has_come_for_long() -> None:
    task = task_of(AssignTimestamps("times", lambda n: n, 0, idle_after_ms=100))

    def at(clock_ms: int) -> list[Any]:
        task.set_clock(clock_ms)
        while task.alarm_in_ms == 0:
            task.run()
        return work(task)

    assert at(1_000) == [] and task.alarm_in_ms == 100
    assert at(1_100) == [("idle", True)] and task.alarm_in_ms is None
    task.offer(A, Batch([7]))
    assert at(1_150) == [7, ("watermark", 7), ("idle", False)] and task.alarm_in_ms == 100
    # What waits there has come.
    task.offer(A, Batch([8]))
    assert at(1_300) == [8, ("watermark", 8)]
    assert at(1_400) == [("idle", True)]


def test_i1_processing_time_goes_on_from_its_snapshot_wherever_the_clock_is() -> None:
    """Scenario I-1: clocks jump and differ."""
    task = task_of(Alarm(), restored=Snapshot(now_ms=5_000))
    task.set_clock(1_400)
    for channel in (A, B):
        task.offer(channel, Barrier(N1))
    work(task)
    assert frozen(task).now_ms == 5_000
    # It stands still for no longer than the clock does.
    task.set_clock(1_500)
    alarm = Alarm(5_100)
    task = task_of(alarm, restored=Snapshot(now_ms=5_000))
    task.set_clock(1_400)
    task.set_clock(1_300)
    assert task.alarm_in_ms == 100
    task.set_clock(1_500)
    assert task.alarm_in_ms == 0
    # A clock that is ahead is believed.
    task = task_of(Alarm(9_100), restored=Snapshot(now_ms=5_000))
    task.set_clock(9_000)
    assert task.alarm_in_ms == 100


def test_a_snapshot_is_taken_while_timers_fire_and_the_rest_of_them_fires_after_a_restore() -> None:
    numbers = cc.generate(lambda number: number, count=1)
    splits = SplitQueue(numbers, [(split, split.start) for split in numbers.splits(1)])
    alarms = Alarms(*range(10))
    task = task_of(
        AssignTimestamps("times", lambda n: 100, 0), alarms, inputs=(), splits=splits, source_uid="numbers"
    )
    task.rows_max = 1
    task.run()
    task.run()
    assert task.chain.is_midway
    fired = 10 - len(alarms.waiting)
    assert 0 < fired < 10
    task.snapshots.trigger(N1)
    snapshot = frozen(task)
    assert snapshot.assigned == {"times": [100, {"0-of-1": 100}]}

    rest = SplitQueue(numbers, [])
    late = Alarms(*alarms.waiting)
    again = task_of(
        AssignTimestamps("times", lambda n: 100, 0),
        late,
        inputs=(),
        splits=rest,
        source_uid="numbers",
        restored=Snapshot(watermark=snapshot.watermark, assigned=snapshot.assigned),
    )
    assert work(again) == [
        *(f"at {time}" for time in range(fired, 10)),
        ("watermark", 100),
        ("idle", False),
        EndOfInput(),
    ]


def test_a_slice_that_is_over_before_the_first_record_leaves_all_of_them() -> None:
    class Over(TimeBudget):
        def through(self, batch: Batch) -> Any:
            remaining = super().through(batch)
            self.stop()
            return remaining

    times = assigner(int)
    times.time_budget = Over()
    assert not times.process(Batch([3, 5])).records
    assert times.time_budget.rest is not None and times.time_budget.rest.records == [3, 5]


# Records without a time.


def test_a_record_without_a_time_is_a_dead_letter_and_moves_no_watermark() -> None:
    sides = Sides("times", ["dead letters"])
    spec = AssignTimestampsSpec(lambda record: record["at"], 1_000, on_error="dead letters")
    operator = AttemptedTimestamps("times", spec, sides)
    operator.begin((), None)
    made = operator.process(Batch([{"at": 5_000}, {"at": "noon"}, {}, {"at": 10**18}, {"at": 4_000}]))
    assert shown(made) == ([{"at": 5_000}, {"at": 4_000}], None, [5_000, 4_000], 4_000, None)
    ((output, letters),) = sides.take()
    assert output == SideOutput("times", "dead letters")
    assert [one.record for one in letters.records] == [{"at": "noon"}, {}, {"at": 10**18}]
    assert letters.timestamps is None
    assert shown(operator.process(Batch([{}]))) == ([], None, None, None, None)


def test_dead_letters_of_a_second_time_have_the_first_one_and_its_watermark() -> None:
    emitted: list[Batch] = []
    aside: list[Batch] = []
    spec = AssignTimestampsSpec(lambda record: record, on_error="dead letters")
    operator = AttemptedTimestamps("times", spec, Sides("times", ["dead letters"]))
    operator.begin((), None)
    chain = Chain([operator], emitted.append, lambda batch, _: aside.append(batch), has_event_time=True)
    chain.begin(100)
    chain.process(Batch([7, None], None, [100, 200], 150))
    assert [shown(batch) for batch in emitted] == [([7], None, [7], 7, None)]
    assert [(batch.timestamps, batch.watermark) for batch in aside] == [([200], None), (None, 150)]


def test_a_flow_tells_letters_with_times_from_those_without() -> None:
    def flow_of(use: Callable[[cc.Stream[Any], cc.Stream[Any]], Any]) -> cc.Flow:
        flow = cc.Flow("times")
        timed = flow.source(cc.items([1])).assign_timestamps(lambda one: one, on_error="dead letters")
        use(timed.named("times"), timed.side_output("dead letters"))
        return flow

    def apart(timed: cc.Stream[Any], letters: cc.Stream[Any]) -> None:
        timed.sink(cc.printing())
        letters.map(str).named("letters").sink(cc.printing())

    graph = flow_of(apart).compile(1, 8)
    has_time = {vertex.vertex_id: vertex.has_event_time for vertex in graph.vertices}
    assert has_time == {"1-source": True, "letters": False}
    with pytest.raises(FlowError, match="records of 'times' have timestamps, those of 'times' have none"):
        flow_of(lambda timed, letters: timed.union(letters).sink(cc.printing())).compile(1, 8)
    with pytest.raises(FlowError, match=r"leads nowhere|side output"):
        flow_of(lambda timed, _: timed.sink(cc.printing())).compile(1, 8)
