"""`ctx.metrics`: counters, gauges and histograms of user code."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.metrics import BUCKETS_MAX, METRICS_MAX, Metrics
from crosscut.errors import FlowError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import Epoch, TaskId, VertexId
from crosscut.graph.specs import OperatorNode, ProcessSpec
from crosscut.monitoring.meter import Meter
from crosscut.operators.building import build, keyed_state
from crosscut.protocol.messages import TaskStatistics, WorkerHeartbeat
from crosscut.protocol.telemetry import MetricReporter, MetricSample
from crosscut.task.chain import Chain
from crosscut.wire.control import WORKER_MESSAGES, decode_control, encode_control


class Orders(cc.KeyedProcess[int, int]):
    def on_record(self, record: int, ctx: cc.Context) -> Any:
        ctx.metrics.counter("orders").add()
        ctx.metrics.gauge("newest").set(record)
        ctx.metrics.histogram("amount", (1, 10)).observe(record)


def test_a_process_counts_and_its_task_reports_it_all() -> None:
    node = OperatorNode("orders", ProcessSpec(Orders(), ()), ())
    operator = build(node, keyed_state(node), None)
    assert operator is not None
    chain = Chain([operator], lambda batch: None, lambda batch, side: None)
    assert chain.metric_samples == ()
    chain.process(Batch([1, 5, 10, 11], [0, 1, 0, 1]))
    assert chain.metric_samples == (
        MetricSample("orders", "orders", "counter", 4.0),
        MetricSample("orders", "newest", "gauge", 11.0),
        MetricSample("orders", "amount", "histogram", 27.0, (1.0, 10.0), (1, 2, 1)),
    )


def test_metrics_are_said_once_a_second_if_they_have_changed_and_again_for_who_has_not_heard() -> None:
    said = MetricReporter()
    tenth_ns = 100_000_000

    def at(tenths: int, count: int, *, is_over: bool = False) -> bool:
        """Whether they are said at a heartbeat."""
        now_ns = tenths * tenth_ns
        if not said.is_due(now_ns, is_over=is_over):
            return False
        readings = (MetricSample("orders", "seen", "counter", count),) if count else ()
        news = said.news(now_ns, readings)
        assert news in (None, readings)
        return news is not None

    assert [tenths for tenths in range(50) if at(tenths, 0)] == []
    assert [tenths for tenths in range(53, 100) if at(tenths, tenths)] == [53, 63, 73, 83, 93]
    assert [tenths for tenths in range(100, 310) if at(tenths, 99)] == [103, 203, 303]
    # The last ones are not missed because a second has not passed.
    assert [tenths for tenths in range(311, 319) if at(tenths, min(tenths, 315), is_over=True)] == [
        311, 312, 313, 314, 315,
    ]  # fmt: skip


def test_a_driver_goes_by_what_it_was_told_last_in_the_epoch() -> None:
    task = TaskId(VertexId("orders"), 0)
    meter = Meter()
    told = (MetricSample("orders", "seen", "counter", 5.0),)
    meter.note(0, Epoch(1), [TaskStatistics(task)])
    assert meter.samples(task) == ()
    for readings in (told, None, None):
        meter.note(1, Epoch(1), [TaskStatistics(task, readings=readings)])
        assert meter.samples(task) == told
    meter.note(2, Epoch(2), [TaskStatistics(task)])
    assert meter.samples(task) == told
    meter.note(3, Epoch(2), [TaskStatistics(task, readings=told)])
    assert [one.value for one in meter.samples(task)] == [10.0]


def test_a_context_outside_of_a_job_counts_as_well() -> None:
    context = cc.Context(lambda name, record, timestamp: None)
    context.metrics.counter("orders").add(2.5)
    assert context.metrics.counter("orders").value == 2.5


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda metrics: metrics.counter("no name"), "counter 'no name': expected a name of letters"),
        (lambda metrics: metrics.counter(""), "counter '': expected a name"),
        (lambda metrics: metrics.counter("x" * 65), "expected a name"),
        (lambda metrics: metrics.counter(7), "counter 7: expected a name"),
        (lambda metrics: metrics.counter("depth"), "counter 'depth': it is a gauge already"),
        (lambda metrics: metrics.histogram("took", ()), "expected 1 to 50 growing finite numbers"),
        (lambda metrics: metrics.histogram("took", (2, 1)), "growing finite numbers"),
        (lambda metrics: metrics.histogram("took", (1, float("inf"))), "growing finite numbers"),
        (lambda metrics: metrics.histogram("took", range(BUCKETS_MAX + 1)), "growing finite numbers"),
        (lambda metrics: metrics.counter("n").add(-1), "a counter was given -1"),
        (lambda metrics: metrics.counter("n").add(float("nan")), "a counter was given nan"),
        (lambda metrics: metrics.gauge("depth").set(float("inf")), "a gauge was set to inf"),
        (lambda metrics: metrics.histogram("took").observe(float("nan")), "a histogram was given nan"),
    ],
)
def test_what_can_not_be_shown_is_refused_in_words(ask: Any, said: str) -> None:
    metrics = Metrics("orders")
    metrics.gauge("depth").set(-1)
    with pytest.raises(FlowError, match=said):
        ask(metrics)


def test_a_name_for_each_record_is_refused_before_it_fills_the_reports() -> None:
    metrics = Metrics("orders")
    for number in range(METRICS_MAX):
        metrics.counter(f"order_{number}").add()
    with pytest.raises(FlowError, match="has 100 metrics: a name must not depend on a record"):
        metrics.counter("one_more")
    assert metrics.counter("order_7").value == 1


class Number(float):
    """Adds up to one of its kind, as NumPy's do."""

    def __radd__(self, other: float) -> Number:
        return Number(float(other) + float(self))


class Name(StrEnum):
    ORDERS = "orders"


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram"])
@pytest.mark.parametrize("value", [Number(2.5), 1e308, 3, True])
def test_whatever_numbers_and_names_user_code_has_a_report_can_hold_them(kind: str, value: float) -> None:
    """A worker that can not say how it is doing is taken for lost, again and again."""
    metrics = Metrics("orders")
    for _ in range(3):
        one: Any = getattr(metrics, kind)(Name.ORDERS)
        (one.add if kind == "counter" else one.set if kind == "gauge" else one.observe)(value)
    ((name, found),) = metrics.metrics.items()
    task = TaskStatistics(
        TaskId(VertexId("orders"), 0), readings=(MetricSample("orders", name, kind, found.value),)
    )
    beat = WorkerHeartbeat(Epoch(1), (task,))
    assert decode_control(encode_control(beat), WORKER_MESSAGES) == beat
