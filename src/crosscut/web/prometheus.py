"""The metrics of a job for Prometheus. The names are documented, and stay: docs/guide/seeing.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from crosscut.monitoring.latency import merged
from crosscut.monitoring.metrics import JobMetrics, TaskMetrics, VertexMetrics
from crosscut.protocol.telemetry import MetricSample

Value = Callable[[Any], float | int | None]

_OF_VERTEX: tuple[tuple[type[Metric], str, str, Value], ...] = (
    (CounterMetricFamily, "records_in", "Records taken; again after a failover", lambda v: v.records_in),
    (CounterMetricFamily, "records_out", "Records sent on, or written", lambda v: v.records_out),
    (CounterMetricFamily, "late_records", "Records too late for a window or join", lambda v: v.late_records),
    (CounterMetricFamily, "dead_letters", "Records set aside", lambda v: v.dead_letters),
    (GaugeMetricFamily, "state_rows", "Rows of keyed state", lambda v: v.state_rows),
    (GaugeMetricFamily, "state_bytes", "Of the newest checkpoint", lambda v: v.state_bytes),
    (
        GaugeMetricFamily,
        "state_memory_bytes",
        "About how much memory keyed state takes",
        lambda v: v.state_memory_bytes,
    ),
    (GaugeMetricFamily, "timers", "Timers that are set", lambda v: v.timers),
    (GaugeMetricFamily, "lag_records", "Records that wait in the splits of a source", lambda v: v.lag),
    (GaugeMetricFamily, "lag_seconds", "In how long they will be read", lambda v: v.lag_seconds),
    (
        GaugeMetricFamily,
        "watermark_delay_seconds",
        "How far the lowest watermark is behind the clock",
        lambda v: None if v.watermark_delay_ms is None else v.watermark_delay_ms / 1e3,
    ),
)
_OF_TASK: tuple[tuple[str, str, Value], ...] = (
    ("busy_ratio", "Share of time in which the task ran", lambda t: t.rates.busy),
    (
        "blocked_ratio",
        "Share of time in which an output took no more",
        lambda t: t.rates.blocked,
    ),
    ("waiting_ratio", "Share of time in which it had nothing to do", lambda t: t.rates.waiting),
    ("queued_records", "Records that wait in the inputs", lambda t: t.queued_records),
    ("spilled_bytes", "What inputs have written to disk", lambda t: t.spilled_bytes),
)
_PHASES = ("total", "alignment", "freeze", "store", "append", "commit")


def exposed(metrics: JobMetrics | None, accepted: str) -> tuple[bytes, str]:
    """Return the exposition and its content type.

    Args:
        accepted: The header "Accept" of the request.
    """
    registry = CollectorRegistry()
    if metrics is not None:
        registry.register(_Collected(metrics))
    encode, content_type = choose_encoder(accepted)
    return encode(registry), content_type


class _Collected(Collector):
    def __init__(self, metrics: JobMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield from _of_job(metrics)
        yield from _of_checkpoints(metrics)
        for kind, name, text, value in _OF_VERTEX:
            yield _family(kind, name, text, ("vertex",), metrics, _vertices(metrics.vertices, value))
        names = [((one.vertex, one.name or one.vertex), 1) for one in metrics.vertices]
        text = "1; the label name is what the page calls the vertex"
        yield _family(GaugeMetricFamily, "vertex_info", text, ("vertex", "name"), metrics, names)
        for name, text, value in _OF_TASK:
            labels = ("vertex", "task")
            yield _family(GaugeMetricFamily, name, text, labels, metrics, _tasks(metrics.tasks, value))
        edges = [((e.source, e.target, str(e.input), e.side), e.records) for e in metrics.edges]
        ends = ("source", "target", "input", "side")
        text = "Records from one vertex to another; again after a failover"
        yield _family(CounterMetricFamily, "edge_records", text, ends, metrics, edges)
        yield _latencies(metrics)
        yield from _of_user_code(metrics)


def _family(
    kind: type[Metric],
    name: str,
    text: str,
    labels: tuple[str, ...],
    metrics: JobMetrics,
    samples: Iterable[tuple[tuple[str, ...], float | int | None]],
) -> Metric:
    family: Any = kind(f"crosscut_{name}", text, labels=("job", *labels))  # type: ignore[call-arg]
    for values, value in samples:
        if value is not None:
            family.add_metric((metrics.name, *values), value)
    return family  # type: ignore[no-any-return]


def _vertices(
    vertices: Iterable[VertexMetrics], value: Value
) -> Iterator[tuple[tuple[str, ...], float | None]]:
    for one in vertices:
        yield (one.vertex,), value(one)


def _tasks(tasks: Iterable[TaskMetrics], value: Value) -> Iterator[tuple[tuple[str, ...], float | None]]:
    for one in tasks:
        yield (one.task.vertex, str(one.task.index)), value(one)


def _of_job(metrics: JobMetrics) -> Iterator[Metric]:
    summary = metrics.summary
    yield _family(
        GaugeMetricFamily,
        "status",
        "1 for the phase, or the end, that the job is in",
        ("status",),
        metrics,
        [((metrics.status,), 1)],
    )
    gauges = (
        ("epoch", "Grows with each start and failover", summary.epoch),
        ("workers", "Workers that the job has", len(summary.workers)),
        ("parallelism", "Workers that it wants", metrics.parallelism),
        (
            "records_read",
            "By the sources since the beginning; back at a failover",
            summary.records_read,
        ),
        (
            "uncommitted_checkpoints",
            "Completed checkpoints that not all sinks have committed yet",
            summary.uncommitted,
        ),
    )
    for name, text, value in gauges:
        yield _family(GaugeMetricFamily, name, text, (), metrics, [((), value)])
    text = "Failovers since the driver started"
    yield _family(CounterMetricFamily, "restarts", text, (), metrics, [((), summary.restarts)])
    over = [one.flowing_ms / 1e3 for one in metrics.failovers if one.flowing_ms is not None]
    text = "Of the last failover, from noticing it until records flowed"
    yield _family(GaugeMetricFamily, "failover_seconds", text, (), metrics, [((), over[-1])] if over else [])


def _of_checkpoints(metrics: JobMetrics) -> Iterator[Metric]:
    summary = metrics.summary
    counters = (
        ("checkpoints_completed", "Since the driver started", summary.checkpoints_completed),
        ("checkpoints_failed", "Since the driver started", summary.checkpoints_failed),
    )
    for name, text, value in counters:
        yield _family(CounterMetricFamily, name, text, (), metrics, [((), value)])
    completed = [one for one in metrics.checkpoints if one.outcome == "completed"]
    last = completed[-1] if completed else None
    committed = next((one.commit_ms for one in reversed(completed) if one.commit_ms is not None), None)
    text = "Of the newest completed checkpoint, by phase; of the newest one whose output is committed"
    took_ms = (
        ()
        if last is None
        else (
            last.duration_ms,
            last.alignment_ms,
            last.freeze_ms,
            last.store_ms,
            last.append_ms,
            committed,
        )
    )
    by_phase = [
        ((phase,), None if value is None else value / 1e3)
        for phase, value in zip(_PHASES, took_ms, strict=False)
    ]
    yield _family(GaugeMetricFamily, "checkpoint_seconds", text, ("phase",), metrics, by_phase)
    sizes = [] if last is None else [(("state",), last.state_bytes), (("new",), last.new_bytes)]
    text = "Of the newest completed checkpoint: all that a restore reads, and what it has added"
    yield _family(GaugeMetricFamily, "checkpoint_bytes", text, ("kind",), metrics, sizes)
    text = "Since the newest checkpoint was complete, or since the start of a job that has completed none"
    # `started_ms` is 0 until tasks run.
    since_ms = last.began_ms + (last.duration_ms or 0) if last is not None else metrics.started_ms
    age = [((), max(0.0, (metrics.at_ms - since_ms) / 1e3))] if since_ms else []
    yield _family(GaugeMetricFamily, "checkpoint_age_seconds", text, (), metrics, age)


def _of_user_code(metrics: JobMetrics) -> Iterator[Metric]:
    """Yield the metrics of `ctx.metrics`, by operator: all tasks together."""
    found: dict[tuple[str, str], dict[str, list[MetricSample]]] = {}
    for task in metrics.tasks:
        for one in task.readings:
            # Operators may give the same name to metrics of another kind.
            found.setdefault((one.name, one.kind), {}).setdefault(one.operator, []).append(one)
    taken: set[str] = set()
    for (name, kind), by_operator in sorted(found.items()):
        shown = _free_name(name, kind, taken)
        match kind:
            case "histogram":
                yield _histogram(shown, metrics, by_operator)
            case _:
                family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                sums = [((uid,), sum(one.value for one in them)) for uid, them in sorted(by_operator.items())]
                yield _family(family, shown, "Of the flow's own code", ("operator",), metrics, sums)


def _free_name(name: str, kind: str, taken: set[str]) -> str:
    """Return what a metric of user code is called, and take that name.

    Prometheus adds "_total" to a counter, and "_bucket", "_sum" and "_count" to a histogram: a gauge
    `paid_total` beside a counter `paid` would be the same series, and who scrapes that refuses all.
    """
    found, count = f"user_{name}", 1
    while not _series(found, kind).isdisjoint(taken):
        found = f"user_{name}_{kind}" if count == 1 else f"user_{name}_{kind}_{count}"
        count += 1
    taken |= _series(found, kind)
    return found


def _series(name: str, kind: str) -> set[str]:
    match kind:
        case "counter":
            base = name.removesuffix("_total")
            return {base, f"{base}_total"}
        case "histogram":
            return {name, *(f"{name}_{part}" for part in ("bucket", "sum", "count"))}
        case _:
            return {name}


def _latencies(metrics: JobMetrics) -> Metric:
    text = "From reading records at a source until they are processed here, by marks that follow them"
    family = HistogramMetricFamily("crosscut_latency_seconds", text, labels=("job", "vertex", "source"))
    by_vertex: dict[str, list[MetricSample]] = {}
    for task in metrics.tasks:
        by_vertex.setdefault(task.task.vertex, []).extend(task.latencies)
    for vertex, readings in by_vertex.items():
        for one in merged(readings):
            family.add_metric((metrics.name, vertex, one.operator), _buckets([one]), one.value)
    return family


def _histogram(name: str, metrics: JobMetrics, by_operator: dict[str, list[MetricSample]]) -> Metric:
    family = HistogramMetricFamily(f"crosscut_{name}", "Of the flow's own code", labels=("job", "operator"))
    for uid, readings in sorted(by_operator.items()):
        bounds = readings[0].bounds
        alike = [one for one in readings if one.bounds == bounds]
        family.add_metric((metrics.name, uid), _buckets(alike), sum(one.value for one in alike))
    return family


def _buckets(alike: list[MetricSample]) -> list[tuple[str, float]]:
    """Return how many observations of histograms with the same buckets stay within each bound."""
    running, buckets = 0, []
    for index, bound in enumerate((*alike[0].bounds, float("inf"))):
        running += sum(one.counts[index] for one in alike)
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
    return buckets
