"""Marks that tell how long records take: they travel with records, are seen by nobody, and kept nowhere."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit import bare_task
from tests.unit.bare_task import X, Y, Z, unread
from tests.unit.barriers import HERE, N1, A, B, L
from tests.unit.watched import E1, MS, Watched

from crosscut.connectors.simple.generate import generate
from crosscut.contracts.connectors import EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.contracts.metrics import Histogram
from crosscut.foundation.batch import Batch, LatencyMarker
from crosscut.foundation.ids import ChannelId, Epoch, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.host.failpoints import Failpoints
from crosscut.monitoring.latency import LatencyMeter, LatencyMetrics, merged, quantile_ms
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import Map
from crosscut.protocol.messages import TaskStatistics, WorkerHeartbeat
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers
from crosscut.protocol.telemetry import MetricSample
from crosscut.task.channel_log import SpilledBlocks
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, EndOfInput
from crosscut.task.outputs import build_output
from crosscut.task.requests import StoreFrozen
from crosscut.task.task import Task
from crosscut.web.prometheus import exposed
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.worker.latencies import BOUNDS
from crosscut.worker.pool import TaskPool
from crosscut.worker.spill_files import DiskSpace

MARK, LATER = LatencyMarker("numbers", 5), LatencyMarker("numbers", 7)


def marked(records: list[Any], mark: LatencyMarker = MARK, watermark: int | None = None) -> Batch:
    batch = Batch(records, watermark=watermark)
    batch.marker = mark
    return batch


def task_of(*chain: Operator, source: Source | None = None, rows: int = 100, **others: Any) -> Task:
    ways = (("rebalance", (X, Y)), ("forward", (Z,)))
    return bare_task.task_of(
        *chain,
        outputs=[
            build_output(way, to, batch_rows=rows, router=KeyRouter(1, 1), key_by_uid="", task_index=0)  # type: ignore[arg-type]
            for way, to in ways
        ],
        rows=rows,
        splits=unread(source) if source else None,
        **others,
    )


def work(task: Task) -> None:
    while task.has_work:
        task.run()


def sent(task: Task) -> list[tuple[ChannelId, list[Any], LatencyMarker | None]]:
    task.output_buffers.flush()
    items, task.task_effects.outbox = task.task_effects.outbox, []
    return [(channel, one.records, one.marker) for channel, one in items if isinstance(one, Batch)]


# A batch with a mark.


def test_a_mark_stays_with_the_last_records_and_the_older_one_where_two_meet() -> None:
    first, rest = marked([1, 2, 3]).split(1)
    assert (first.marker, rest.marker) == (None, MARK)
    whole = marked([1, 2, 3])
    rest = whole.drop(1)
    assert (whole.marker, rest.marker) == (None, MARK)
    assert marked([1, 2]).part(0, 1).marker is None
    for one, other in ((MARK, LATER), (MARK, None), (None, MARK)):
        batch, more = Batch([1]), Batch([2])
        batch.marker, more.marker = one, other
        batch.extend(more)
        assert batch.marker == MARK


@pytest.mark.parametrize("batch", [Batch([]), Batch([1, 2]), Batch([1], [2], [3], 4, idle=False)])
def test_a_mark_is_sent_and_never_kept(batch: Batch) -> None:
    batch.marker = MARK
    there = decode_batch(encode_batch(batch, is_kept=False))
    assert there.marker == MARK
    assert (there.records, there.keys, there.watermark) == (batch.records, batch.keys, batch.watermark)
    plain = encode_batch(batch)
    assert decode_batch(plain).marker is None
    batch.marker = None
    assert encode_batch(batch) == plain == encode_batch(batch, is_kept=False), "nobody pays for none"


# On its way through a task.


def test_a_mark_follows_its_records_through_the_chain_and_on_each_output_one_channel_in_turn() -> None:
    task = task_of(Map("double", lambda n: 2 * n))
    for mark in (MARK, LATER):
        task.offer(A, marked([1, 2], mark))
        work(task)
        assert task.task_effects.markers == [mark]
        task.task_effects.markers.clear()
        way = X if mark == MARK else Y
        assert {channel for channel, _, found in sent(task) if found == mark} == {way, Z}
    assert task.records_in == 4, "no mark is a record"
    assert task.statistics().sent == (4, 4)


def test_a_mark_goes_on_though_no_record_does() -> None:
    task = task_of(Map("double", lambda n: 2 * n))
    task.offer(A, marked([]))
    work(task)
    assert (task.task_effects.markers, task.records_in) == ([MARK], 0)
    assert sent(task) == [(X, [], MARK), (Z, [], MARK)]


def test_a_mark_waits_with_the_records_behind_a_barrier() -> None:
    task = task_of()
    for item in (Barrier(N1), marked([1])):
        task.offer(A, item)
    work(task)
    assert task.task_effects.markers == []
    task.offer(B, Barrier(N1))
    work(task)
    assert task.task_effects.markers == [MARK]


def test_a_mark_waits_for_the_rest_of_its_batch() -> None:
    task = task_of(rows=2)
    task.offer(A, marked([1, 2, 3, 4, 5]))
    seen = []
    while task.has_work:
        task.run()
        seen.append((task.records_in, list(task.task_effects.markers)))
    assert seen == [(2, []), (4, []), (5, [MARK])]


def test_a_mark_does_not_go_round_a_loop() -> None:
    task = task_of(inputs=(A, L))
    task.offer(L, marked([1]))
    work(task)
    assert task.task_effects.markers == []
    assert [mark for _, _, mark in sent(task) if mark] == []


def test_no_mark_comes_after_the_end_of_input() -> None:
    task = task_of(inputs=(A,))
    task.offer(A, EndOfInput())
    work(task)
    task.task_effects.outbox.clear()
    task.offer(A, marked([]))
    work(task)
    assert task.task_effects.markers == [] and sent(task) == []


def test_the_log_of_a_snapshot_holds_records_and_no_mark() -> None:
    """Neither of what waits or comes at an input, nor of what a barrier overtakes at an output."""
    task = task_of(protocol=UnalignedBarriers)
    task.offer(A, marked([1], watermark=3))
    work(task)
    task.output_buffers.flush()
    task.task_effects.markers.clear()
    for item in (marked([2]), marked([], LATER)):
        task.offer(B, item)
    task.offer(A, Barrier(N1))
    task.offer(B, marked([3]))
    task.offer(B, marked([]))
    task.offer(B, Barrier(N1))
    (stored,) = [one.frozen for one in task.task_effects.background_jobs if isinstance(one, StoreFrozen)]
    batches = [decode_batch(one.data) for one in stored.log if not isinstance(one, SpilledBlocks)]
    assert all(one.marker is None for one in batches)
    assert sorted(record for one in batches for record in one.records) == [1, 1, 2, 3]
    assert all(one.records or one.has_news for one in batches), "a mark alone is not worth an entry"


def test_what_is_spilled_has_no_mark() -> None:
    queue = InputQueue(A, DiskSpace(bytes_max=1 << 20), 10)
    queue.append(marked([1]))
    assert queue.spill()
    item = queue.popleft()
    assert isinstance(item, Batch) and item.records == [1] and item.marker is None
    queue.close()


# From a source.


class NowAndThen(Source[int]):
    """Has a record each second time."""

    def splits(self, parallelism: int) -> list[Split]:
        return [Split("one", 0)]

    def reader(self, split: Split, position: Any) -> SplitReader:
        return _NowAndThen()


class _NowAndThen(SplitReader[int]):
    position = 0

    def __init__(self) -> None:
        self._has_some = False

    def read(self, max_records: int) -> list[int] | Wait | EndOfSplit:
        self._has_some = not self._has_some
        return Wait(10.0) if self._has_some else [7]


def test_a_source_marks_the_records_that_it_reads_next_with_the_time_of_that() -> None:
    task = task_of(source=NowAndThen(), inputs=())
    task.markers.ask(100)
    task.run()
    assert task.markers.is_awaited and task.task_effects.markers == []
    task.markers.ask(200)
    task.run()
    assert not task.markers.is_awaited
    assert task.task_effects.markers == [LatencyMarker("here", 200)]
    task.run()
    task.run()
    assert len(task.task_effects.markers) == 1, "once"


class Clock:
    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("marker_interval_ms", [0, 5])
def test_every_task_measures_how_long_records_take_from_their_source(marker_interval_ms: int) -> None:
    clock = Clock()

    def slow(number: int) -> int:
        clock.now_ns += 2 * MS
        return number

    async def scene() -> dict[str, tuple[int, float]]:
        pool = TaskPool(
            epoch=Epoch(1),
            store=None,  # type: ignore[arg-type]
            batch_rows=1,
            linger_ms=0,
            alignment_timeout_ms=1,
            sink_timeout_ms=60_000,
            failpoints=Failpoints(None, None),
            report=lambda message: None,
            give_credit=lambda channel, size_bytes: None,
            clock=clock,
            marker_interval_ms=marker_interval_ms,
        )
        way = ChannelId(0, HERE, TaskId(VertexId("after"), 0))
        for task_id, inputs, outputs in ((HERE, (), (way,)), (way.target, (way,), ())):
            source = generate(lambda number: number, count=10) if not inputs else None
            pool.add(
                bare_task.task_of(
                    Map("slow", slow),
                    task_id=task_id,
                    inputs=inputs,
                    outputs=[bare_task.output(one, rows=1) for one in outputs],
                    rows=1,
                    splits=unread(source) if source else None,
                ),
                None,
                None,
            )
        pool.connect({})
        pool.start()
        while not all(task.is_over for task in pool.tasks):
            await asyncio.sleep(0)
        found = {
            one.task.vertex: (sum(each.counts), each.value)
            for one in pool.statistics()
            for each in one.latencies or ()
        }
        await pool.close()
        return found

    found = asyncio.run(scene())
    if not marker_interval_ms:
        assert found == {}
        return
    assert set(found) == {"here", "after"}
    (here, here_s), (after, after_s) = found["here"], found["after"]
    assert here == after > 1
    assert here_s == pytest.approx(here * 0.002), "what the source's own operators take"
    assert after_s >= after * 0.004, "and those of the next task on top"


# What becomes of it.


def histogram(*seconds: float) -> MetricSample:
    one = Histogram(BOUNDS)
    for each in seconds:
        one.observe(each)
    return MetricSample("numbers", "latency", "histogram", one.value, one.bounds, tuple(one.counts))


def test_latencies_add_up_over_epochs_and_those_of_late_are_of_the_last_half_minute() -> None:
    meter, task = LatencyMeter(), HERE
    second = 1_000_000_000

    def report(at_s: int, epoch: int, *seconds: float) -> None:
        said = TaskStatistics(task, latencies=(histogram(*seconds),) if seconds else None)
        meter.note(at_s * second, Epoch(epoch), [said])

    assert meter.totals(task) == () and meter.recent([task]) == ()
    report(0, 1, 0.003)
    report(1, 1)
    assert [sum(one.counts) for one in meter.totals(task)] == [1]
    report(60, 1, 0.003, 9.0)
    report(100, 1, 0.003, 9.0, 0.004, 0.004, 0.004)
    (recent,) = meter.recent([task])
    assert (recent.source, recent.marks) == ("numbers", 3)
    assert 2.5 < recent.p50_ms < recent.p99_ms <= 5.0
    report(101, 2, 0.02)
    assert [sum(one.counts) for one in meter.totals(task)] == [6]
    assert meter.recent([task])[0].marks == 1, "an epoch begins anew"


def test_a_share_of_what_was_observed_lies_in_the_bucket_where_it_is() -> None:
    seconds = sorted(0.000_13 * 1.3**step for step in range(45))
    reading = histogram(*seconds)
    for share in (0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0):
        exact = seconds[max(0, -(-int(share * 1000) * len(seconds) // 1000) - 1)]
        low = max((bound for bound in (0.0, *BOUNDS) if bound < exact), default=0.0)
        high = min((bound for bound in BOUNDS if bound >= exact), default=BOUNDS[-1])
        assert 1e3 * low <= quantile_ms(reading, share) <= 1e3 * high, share


@pytest.mark.parametrize(("seconds", "within_s"), [(49.0, 50.0), (51.0, 100.0), (3_000.0, 5_000.0)])
def test_records_that_have_waited_for_hours_are_shown_with_that(seconds: float, within_s: float) -> None:
    assert seconds < quantile_ms(histogram(*[seconds] * 200), 0.99) / 1e3 <= within_s


def test_histograms_of_several_tasks_and_sources_are_merged_by_source() -> None:
    other = MetricSample("orders", "latency", "histogram", 1.0, (1.0,), (1, 0))
    strange = MetricSample("numbers", "latency", "histogram", 1.0, (1.0,), (1, 0))
    first, second = merged([histogram(0.1), other, histogram(0.2, 0.3), strange])
    assert (first.operator, sum(first.counts), first.value) == ("numbers", 3, pytest.approx(0.6))
    assert second == other


@pytest.mark.parametrize("counts", [(), (1,), (1,) * 40])
def test_what_a_worker_says_that_is_no_histogram_harms_nobody(counts: tuple[int, ...]) -> None:
    talk = Watched()
    talk.running()
    sink = talk.metrics().tasks[-1].task
    strange = MetricSample("numbers", "latency", "histogram", 1.0, BOUNDS, counts)
    for said in ((histogram(0.1),), (strange,), (strange, strange), (histogram(0.1, 0.2),)):
        talk.message(sink.index, WorkerHeartbeat(E1, (TaskStatistics(sink, latencies=said),)))
        exposed(talk.metrics(), "")
    shown = {one.vertex: one.latencies for one in talk.metrics().vertices}
    assert shown[sink.vertex][0].marks == 2


def test_a_vertex_shows_the_latency_of_its_tasks() -> None:
    talk = Watched()
    talk.running()
    sink = talk.metrics().tasks[-1].task
    talk.message(sink.index, WorkerHeartbeat(E1, (TaskStatistics(sink, latencies=(histogram(0.1),)),)))
    shown = {one.vertex: one.latencies for one in talk.metrics().vertices}
    (latency,) = shown.pop(sink.vertex)
    assert isinstance(latency, LatencyMetrics) and (latency.source, latency.marks) == ("numbers", 1)
    assert set(shown.values()) == {()}
