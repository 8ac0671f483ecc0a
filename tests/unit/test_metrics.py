"""The numbers of a job: rates, totals, shares; checkpoints and failovers step by step; events."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from tests.simulation.conversation import CAUSE, K0, K1, LINKS, S0, S1, at
from tests.unit.watched import E1, MS, WALL_MS, Watched, acknowledge, graph, heartbeat

import crosscut as cc
from crosscut import events
from crosscut.cli.numbers import vertex_line
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.monitoring.meter import Meter, TaskRates, TaskTotals
from crosscut.monitoring.metrics import JobMetrics, build_metrics, shown_settings
from crosscut.monitoring.observer import DEAD_LETTERS_MAX, Seen
from crosscut.monitoring.plain import plain
from crosscut.monitoring.status import Observations, build_status
from crosscut.monitoring.traces import CheckpointTraces
from crosscut.protocol.effects import SendMessage
from crosscut.protocol.events import (
    CancelRequested,
    EntryAppended,
    LinkClosed,
    RestartRequested,
    StopRequested,
)
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import (
    RecordsFlowing,
    SnapshotDeclined,
    TaskFailed,
    TaskStatistics,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerHeartbeat,
)
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.protocol.telemetry import HotKey, MetricSample, ShownDeadLetter, SnapshotTimes

SECOND = 1_000_000_000
E2 = Epoch(2)
N1 = CheckpointId(1)


# Rates.


def test_a_rate_is_of_the_last_seconds_and_shares_add_up_to_one() -> None:
    meter = Meter()
    for second in range(20):
        busy_us = 250_000 * second if second < 14 else 250_000 * 14 + 750_000 * (second - 14)
        report = TaskStatistics(
            S0,
            records_in=100 * second,
            records_out=300 * second,
            sent=(200 * second, 100 * second),
            running_us=1_000_000 * second,
            busy_us=busy_us,
            blocked_us=200_000 * second,
        )
        meter.note(second * SECOND, E1, [report])
    rates = meter.rates(S0)
    assert (rates.records_in_per_second, rates.records_out_per_second) == (100.0, 300.0)
    assert rates.sent_per_second == (200.0, 100.0)
    assert rates.busy == pytest.approx(0.75), "as of late, not as in the beginning"
    assert rates.blocked == pytest.approx(0.2)
    assert rates.busy + rates.blocked + rates.waiting == pytest.approx(1.0)


def test_there_are_no_rates_before_two_reports_of_an_epoch_nor_after_its_end() -> None:
    meter = Meter()
    assert meter.rates(S0) == TaskRates()
    meter.note(0, E1, [TaskStatistics(S0, records_in=5)])
    assert meter.rates(S0) == TaskRates()
    meter.note(SECOND, E1, [TaskStatistics(S0, records_in=10)])
    assert meter.rates(S0).records_in_per_second == 5.0
    meter.note(2 * SECOND, E2, [TaskStatistics(S0, records_in=3)])
    assert meter.rates(S0) == TaskRates()
    meter.note(3 * SECOND, E2, [TaskStatistics(S0, records_in=4)])
    assert meter.rates(S0).records_in_per_second == 1.0
    meter.forget()
    assert meter.rates(S0) == TaskRates()


def test_totals_never_go_back_though_a_failover_takes_counters_back() -> None:
    """And count from what the epoch began with, or all that is before the first report would be missing."""
    meter = Meter()
    begun = Snapshot(records_in=990, records_out=8)
    meter.begin([TaskSnapshot(S0, begun)])
    meter.note(0, E1, [TaskStatistics(S0, records_in=1_000, records_out=9, sent=(0,))])
    meter.note(1, E1, [TaskStatistics(S0, records_in=1_010, records_out=11, sent=(4,), dead_letters=2)])
    meter.begin([TaskSnapshot(S0, replace(begun, records_in=1_000, records_out=10))])
    meter.note(2, E2, [TaskStatistics(S0, records_in=1_005, records_out=10, sent=(1,), dead_letters=1)])
    meter.note(3, E2, [TaskStatistics(S0, records_in=1_008, records_out=10, sent=(3,), dead_letters=1)])
    assert meter.totals(S0) == TaskTotals(records_in=28, records_out=3, dead_letters=3, sent=(7,))


def test_metrics_of_user_code_add_up_over_epochs_but_for_gauges() -> None:
    def report(count: float, depth: float, *buckets: int) -> TaskStatistics:
        took = MetricSample("orders", "took", "histogram", 2.0 * count, (1.0,), buckets)
        counter = MetricSample("orders", "seen", "counter", count)
        return TaskStatistics(S0, readings=(counter, MetricSample("orders", "depth", "gauge", depth), took))

    meter = Meter()
    meter.note(0, E1, [report(1, 7, 1, 0)])
    meter.note(1, E1, [report(5, 9, 2, 3)])
    meter.forget()
    meter.note(2, E2, [report(2, 4, 1, 1)])
    assert meter.samples(S0) == (
        MetricSample("orders", "depth", "gauge", 4.0),
        MetricSample("orders", "seen", "counter", 7.0),
        MetricSample("orders", "took", "histogram", 14.0, (1.0,), (3, 4)),
    )
    meter.note(3, Epoch(3), [TaskStatistics(S0)])
    assert [one.value for one in meter.samples(S0)] == [7.0, 14.0], "a gauge that nobody sets is none"


def test_a_meter_that_hears_many_reports_keeps_few() -> None:
    meter = Meter()
    for number in range(100_000):
        meter.note(number * MS, E1, [TaskStatistics(S0, records_in=number)])
    assert len(meter._of[S0].reports) < 50
    assert meter.rates(S0).records_in_per_second == pytest.approx(1_000.0, rel=0.1)


# Traces and events.


def test_a_checkpoint_is_split_into_its_steps_and_says_who_was_last() -> None:
    talk = Watched()
    talk.running()
    talk.at(1_000).fire("trigger", 1)
    (under_way,) = talk.watching.checkpoints.all()
    assert (under_way.outcome, under_way.began_ms, under_way.acknowledged) == (
        "under way",
        WALL_MS + 1_000,
        0,
    )
    talk.at(1_010)
    acknowledge(talk, N1, S0, SnapshotTimes(store_us=2_000))
    acknowledge(talk, N1, S1, SnapshotTimes(store_us=3_000))
    acknowledge(talk.at(1_050), N1, K1, SnapshotTimes(alignment_us=5_000, prepare_us=900, store_us=20_000))
    (under_way,) = talk.watching.checkpoints.all()
    assert (under_way.outcome, under_way.last, under_way.acknowledged) == ("under way", K1, 3)
    assert (under_way.duration_ms, under_way.alignment_ms, under_way.store_ms) == (50.0, 5.0, 20.0)
    acknowledge(talk.at(1_090), N1, K0, SnapshotTimes(alignment_us=15_000, store_us=10_000))
    talk.at(1_100).hear(EntryAppended(at(2)))
    talk.at(1_130).message(0, TransactionsCommitted(E1, N1, K0))
    talk.at(1_145).message(1, TransactionsCommitted(E1, N1, K1))
    (trace,) = talk.watching.checkpoints.all()
    assert (trace.outcome, trace.last, trace.acknowledged, trace.epoch) == ("completed", K0, 4, 1)
    assert (trace.alignment_ms, trace.freeze_ms, trace.store_ms) == (15.0, 0.4, 20.0)
    assert (trace.duration_ms, trace.append_ms, trace.commit_ms) == (100.0, 10.0, 45.0)
    assert (trace.state_bytes, trace.new_bytes) == (2, 2)
    way = {str(one.task): (one.barrier_ms, one.freeze_ms, one.acknowledged_ms) for one in trace.tasks}
    assert way["numbers[0]"] == (8.0, 8.0, 10.0)
    assert way["out[1]"] == (25.0, 30.0, 50.0)
    assert way["out[0]"] == (65.0, 80.0, 90.0)
    (told,) = [one for one in talk.told if isinstance(one, events.CheckpointCompleted)]
    assert (told.checkpoint_id, told.state_bytes, told.at_ms, told.is_final) == (1, 2, WALL_MS + 1_100, False)
    assert (told.alignment_ms, told.freeze_ms, told.store_ms, told.append_ms) == (15.0, 0.4, 20.0, 10.0)


def test_a_checkpoint_that_is_declined_has_failed_with_its_reason() -> None:
    talk = Watched()
    talk.running()
    talk.fire("trigger", 1)
    talk.at(30).message(1, SnapshotDeclined(E1, N1, K1, "no space left"))
    (trace,) = talk.watching.checkpoints.all()
    assert (trace.outcome, trace.duration_ms) == ("failed", 30.0)
    assert "no space left" in trace.reason
    (told,) = [one for one in talk.told if isinstance(one, events.CheckpointFailed)]
    assert told.reason == trace.reason


def test_a_failover_has_its_cause_and_its_steps_and_ends_the_checkpoint_under_way() -> None:
    talk = Watched()
    talk.running()
    talk.at(100).message(0, RecordsFlowing(E1))
    talk.fire("trigger", 1)
    talk.at(1_000).message(1, TaskFailed(E1, K1, CAUSE))
    talk.at(1_020).hear(EntryAppended(at(2)))
    talk.at(1_100).ready(2)
    (under_way,) = talk.watching.failovers.all()
    assert under_way.flowing_ms is None
    talk.at(1_250).message(0, RecordsFlowing(E2))
    (trace,) = talk.watching.failovers.all()
    blamed = replace(CAUSE, message="task out[1] failed: bad record")
    assert (trace.epoch, trace.noticed_ms, trace.cause, trace.restores) == (1, WALL_MS + 1_000, blamed, 0)
    assert (trace.claimed_ms, trace.deployed_ms) == (0.0, 20.0)
    assert (trace.started_ms, trace.flowing_ms) == (100.0, 250.0)
    assert [one.outcome for one in talk.watching.checkpoints.all()] == ["failed"]
    assert [(one.at_ms, one.epoch, one.cause) for one in talk.watching.errors] == [
        (WALL_MS + 1_000, 1, blamed)
    ]
    failed = next(one for one in talk.told if isinstance(one, events.FailedOver))
    assert (failed.kind, failed.operator, failed.record) == (CAUSE.kind, CAUSE.operator, CAUSE.record)
    assert failed.traceback == CAUSE.traceback
    recovered = next(one for one in talk.told if isinstance(one, events.Recovered))
    assert (recovered.epoch, recovered.seconds, recovered.resumed_from) == (2, 0.25, None)


def test_the_events_of_a_life_come_in_order_and_the_last_is_the_end() -> None:
    talk = Watched()
    talk.running()
    talk.complete(1, 2)
    talk.committed(1)
    talk.hear(LinkClosed(LINKS[1], "reset"), EntryAppended(at(3)))
    talk.hear(StopRequested())
    kinds = [type(one).__name__ for one in talk.told]
    assert kinds == ["Started", "CheckpointCompleted", "FailedOver", "Ended"]
    started, ended = talk.told[0], talk.told[-1]
    assert isinstance(started, events.Started) and isinstance(ended, events.Ended)
    assert (started.resumed_from, started.parallelism, started.epoch) == (None, 2, 1)
    assert (ended.outcome, ended.resumes_from) == ("stopped", 1)


def test_nothing_is_told_after_the_end_and_no_task_runs_any_more() -> None:
    """A worker may have said something before it heard that the job is over."""
    talk = Watched()
    talk.running()
    talk.hear(LinkClosed(LINKS[1], "reset"), EntryAppended(at(2)))
    talk.ready(2)
    talk.hear(CancelRequested())
    talk.at(10).message(0, RecordsFlowing(E2))
    for second in (1, 2):
        task = TaskStatistics(K0, records_in=50 * second)
        talk.at(1_000 * second).message(0, WorkerHeartbeat(E2, (task,)))
    assert [type(one).__name__ for one in talk.told] == ["Started", "FailedOver", "Ended"]
    assert talk.watching.meter.rates(K0) == TaskRates()


def test_a_checkpoint_that_was_given_up_and_is_complete_after_all_has_no_reason_any_more() -> None:
    talk = Watched()
    talk.running()
    talk.complete(1, 2)
    entry, traces = talk.coordinator.completed, CheckpointTraces()
    assert entry is not None
    traces.performed(0, lambda: 0, [SendMessage(LINKS[0], TriggerCheckpoint(E1, N1))])
    traces.failed(1, N1, "its epoch is over")
    traces.completed(2, entry, 0, 0)
    assert [(one.outcome, one.reason) for one in traces.all()] == [("completed", "")]


def test_a_last_checkpoint_that_fails_is_not_under_way_for_ever() -> None:
    talk = Watched()
    talk.running()
    talk.hear(StopRequested())
    talk.hear(LinkClosed(LINKS[1], "reset"))
    assert [one.outcome for one in talk.watching.checkpoints.all()] == ["failed"]


# The model.


def test_rates_stand_on_the_edges_and_the_bottleneck_has_a_name() -> None:
    talk = Watched()
    talk.running()
    heartbeat(talk, 1, blocked=0.0, busy=0.2)
    heartbeat(talk, 2, blocked=0.0, busy=0.2)
    assert talk.metrics().bottleneck is None, "nobody waits for anybody"
    for second in range(3, 10):
        heartbeat(talk, second, blocked=0.7, busy=0.95)
    metrics = talk.metrics()
    (edge,) = metrics.edges
    assert (edge.source, edge.target, edge.records_per_second, edge.records) == ("numbers", "out", 100.0, 900)
    numbers, out = metrics.vertices
    assert (numbers.is_source, out.is_sink) == (True, True)
    assert out.operators == (("out", "map"), ("sink", "sink"))
    assert numbers.blocked > 0.6 and out.busy > 0.9
    assert metrics.bottleneck is not None and metrics.bottleneck.vertex == VertexId("out")
    assert out.records_in_per_second == 100.0
    assert json.loads(json.dumps(metrics.as_dict()))["vertices"][1]["is_bottleneck"] is True


def test_the_memory_of_state_goes_from_the_tasks_to_the_status_and_to_the_pages() -> None:
    talk = Watched()
    talk.running()
    seen = Observations()
    for index, (source, keyed, size) in enumerate(((S0, K0, 1_000), (S1, K1, 2_500))):
        said = (TaskStatistics(source), TaskStatistics(keyed, state_keys=10, state_memory_bytes=size))
        seen.workers[WorkerIndex(index)] = (E1, said)
    status = build_status("a job", talk.coordinator, seen, frozenset((S0, S1)))
    assert status.state_memory_bytes == 3_500
    metrics = build_metrics(graph(), status, "running", talk.watching.seen(), None, {}, WALL_MS)
    found = json.loads(json.dumps(metrics.as_dict()))
    assert found["summary"]["state_memory_bytes"] == 3_500
    assert [one["state_memory_bytes"] for one in found["vertices"]] == [0, 3_500]
    assert [one["state_memory_bytes"] for one in found["tasks"]] == [0, 0, 1_000, 2_500]


def test_a_hot_key_of_a_task_is_one_of_its_vertex_if_it_has_enough_of_its_records() -> None:
    talk = Watched()
    talk.running()
    for second in range(1, 5):
        talk.at(1_000 * second)
        for index, (source, out, rows, share) in enumerate(((S0, K0, 900, 0.95), (S1, K1, 100, 0.3))):
            hot = (HotKey(f"'key of {index}'", share),)
            of_out = TaskStatistics(
                out, records_in=rows * second, running_us=1_000_000 * second, hot_keys=hot
            )
            talk.message(index, WorkerHeartbeat(E1, (TaskStatistics(source), of_out)))
    metrics = talk.metrics()
    out = metrics.vertices[1]
    assert [one.hot_keys for one in metrics.tasks if one.task.vertex == "out"] == [
        (HotKey("'key of 0'", 0.95),),
        (HotKey("'key of 1'", 0.3),),
    ]
    assert [(one.key, round(one.share, 3)) for one in out.hot_keys] == [("'key of 0'", 0.855)]
    assert "hot key 'key of 0' at out (86%)" in vertex_line(metrics.as_dict()["vertices"])


def test_the_bytes_of_a_vertex_are_those_of_the_checkpoint_whoever_its_tasks_were() -> None:
    """It may have been taken by more tasks than the vertex has now."""
    talk = Watched()
    talk.running()
    status = build_status("a job", talk.coordinator, Observations(), frozenset((S0, S1)))
    status = replace(status, tasks=(TaskStatistics(K0), TaskStatistics(K1)))
    snapshots = tuple(
        TaskSnapshot(TaskId(K0.vertex, index), Snapshot(parts=(Part(f"parts/1/{index}", 100, "00"),)))
        for index in range(3)
    )
    completed = CheckpointCompleted(E1, N1, snapshots)
    metrics = build_metrics(graph(), status, "running", talk.watching.seen(), completed, {}, WALL_MS)
    assert [one.state_bytes for one in metrics.vertices] == [0, 300]
    assert [one.state_bytes for one in metrics.tasks] == [100, 100]


def test_watermarks_have_a_delay_only_as_long_as_there_is_a_time_to_wait_for() -> None:
    talk = Watched()
    talk.running()
    status = build_status("a job", talk.coordinator, Observations(), frozenset((S0, S1)))
    tasks = (
        TaskStatistics(S0, watermark=WALL_MS - 500, lag=7),
        TaskStatistics(S1, watermark=WALL_MS - 9_000),
        TaskStatistics(K0, watermark=END_OF_TIME),
        TaskStatistics(K1),
    )
    status = replace(status, tasks=tasks)
    metrics = build_metrics(graph(), status, "running", talk.watching.seen(), None, {}, WALL_MS)
    numbers, out = metrics.vertices
    assert (numbers.watermark, numbers.watermark_delay_ms) == (WALL_MS - 9_000, 9_000)
    assert (numbers.lag, numbers.lag_seconds) == (7, None), "it does not move"
    assert (out.watermark, out.watermark_delay_ms, out.lag) == (None, None, None)


def test_what_was_looked_at_stays_as_it_was_though_the_job_goes_on() -> None:
    def waited(second: int) -> None:
        heartbeat(talk, second, blocked=0.7, busy=0.95)
        marks = MetricSample("numbers", "latency", "histogram", 1.0, (0.1,), (second, second))
        payments = MetricSample("out", "payments", "counter", second)
        said = TaskStatistics(K0, records_in=50 * second, readings=(payments,), latencies=(marks,))
        talk.message(0, WorkerHeartbeat(E1, (said,)))

    def shown(seen: Seen) -> JobMetrics:
        return build_metrics(graph(), status, "running", seen, None, {}, WALL_MS)

    talk = Watched()
    talk.running()
    for second in range(1, 4):
        waited(second)
    status = talk.metrics().summary
    seen = talk.watching.seen()
    before = shown(seen)
    for second in range(4, 9):
        waited(second)
    talk.message(1, TaskFailed(E1, K1, CAUSE))
    assert shown(seen) == before
    after = shown(talk.watching.seen())
    assert (before.vertices[1].records_in, after.vertices[1].records_in) == (300, 800)
    assert (len(before.errors), len(after.errors)) == (0, 1)
    latency, later = (one.vertices[1].latencies[0].marks for one in (before, after))
    assert (latency, later) == (6, 16)
    assert [[one.value for one in task.readings] for task in before.tasks if task.readings] == [[3]]


def test_settings_are_shown_without_passwords() -> None:
    settings = cc.Settings(
        checkpoint_dir="s3://key:secret@bucket/path", restore_from="https://me:secret@host/s", parallelism=1
    )
    shown = shown_settings(settings)
    assert shown["parallelism"] == "1"
    assert "secret" not in json.dumps(shown)
    assert set(shown) == set(cc.Settings.names())


# What people see of tasks and records.


def test_plain_data_is_what_the_standard_library_makes_of_it() -> None:
    talk = Watched()
    talk.running()
    for second in range(3):
        heartbeat(talk, second, blocked=0.2, busy=0.4)
    talk.fire("trigger")
    acknowledge(talk, N1, S0, SnapshotTimes(1_000, 0, 2_000))
    talk.failed()
    metrics = talk.metrics()
    assert metrics.failovers and metrics.errors and metrics.checkpoints
    assert plain(metrics) == asdict(metrics)


def test_a_restart_that_is_asked_for_is_a_failover_and_no_error() -> None:
    talk = Watched()
    talk.running()
    talk.hear(RestartRequested())
    (failover,) = talk.metrics().failovers
    assert failover.cause.message == "a restart was asked for"
    assert talk.metrics().errors == ()
    assert [type(one).__name__ for one in talk.told] == ["Started", "FailedOver"]


def test_dead_letters_are_remembered_the_newest_of_them_and_each_once() -> None:
    talk = Watched()
    talk.running()
    for number in range(DEAD_LETTERS_MAX + 20):
        letters = (ShownDeadLetter("parse", f"<b>{number}</b>", "ValueError: no"),)
        batch = TaskStatistics(S0, letters=letters)
        # A batch's counters are said again until the next one has some.
        talk.at(number).message(0, WorkerHeartbeat(E1, (batch, TaskStatistics(K0))))
        talk.message(0, WorkerHeartbeat(E1, (batch, TaskStatistics(K0))))
    seen = talk.metrics().dead_letters
    assert [one.letter.record for one in seen] == [f"<b>{n}</b>" for n in range(20, DEAD_LETTERS_MAX + 20)]
    assert (seen[0].task, seen[0].at_ms, seen[0].epoch) == (S0, WALL_MS + 20, E1)


def test_how_far_a_barrier_is_comes_from_each_task() -> None:
    talk = Watched()
    talk.running()
    aligning, source = TaskStatistics(K0, barrier=N1), TaskStatistics(S0, captured=N1)
    talk.message(0, WorkerHeartbeat(E1, (source, aligning)))
    shown = {one.task: (one.barrier, one.captured) for one in talk.metrics().tasks}
    assert shown[S0] == (1, 1), "a source hears of it from the coordinator"
    assert shown[K0] == (1, 0)
    assert shown[K1] == (0, 0)
