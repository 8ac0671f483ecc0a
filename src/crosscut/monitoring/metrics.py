"""A job in numbers: one frozen value, which pages, exporters and the terminal show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from crosscut.contracts.settings import Settings
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.foundation.urls import shown_url
from crosscut.graph.compile import kind_of
from crosscut.graph.specs import Edge, JobGraph, Vertex
from crosscut.monitoring.latency import LatencyMetrics
from crosscut.monitoring.meter import TaskRates, TaskTotals
from crosscut.monitoring.observer import Seen, SeenDeadLetter, SeenError
from crosscut.monitoring.plain import plain
from crosscut.monitoring.status import JobStatus
from crosscut.monitoring.traces import CheckpointTrace, FailoverTrace
from crosscut.monitoring.worker_logs import WorkerLine
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import TaskStatistics
from crosscut.protocol.telemetry import HotKey, MetricSample

BOTTLENECK_BUSY_MIN = 0.5
"""A vertex that is less busy than this is no bottleneck, whatever waits for it."""
HOT_KEY_SHARE = 0.2
"""Of the records of a vertex; a key with less is not named."""


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """One task; see `TaskStatistics`, `TaskRates` and `TaskTotals` for what the numbers mean.

    Attributes:
        state_bytes: Of its part of the newest checkpoint.
        state_memory_bytes: About how much memory its keyed state takes.
        watermark: In milliseconds since 1970, None if there is none.
        watermark_delay_ms: How far it is behind the driver's clock.
        barrier: The newest checkpoint whose barrier has come to it, in this epoch; 0: none yet.
        captured: The newest that has its state.
        latencies: By the name of each source, how long its records took to get here, in seconds, since the
            driver started.
        hot_keys: Keys that have at least a fifth of its newest records, as a sample tells; the most frequent
            first.
    """

    task: TaskId
    rates: TaskRates
    totals: TaskTotals
    queued_records: int
    spilled_bytes: int
    state_rows: int
    state_bytes: int
    state_memory_bytes: int
    timers: int
    watermark: int | None
    watermark_delay_ms: int | None
    held_up_by: str
    lag: int | None
    readings: tuple[MetricSample, ...] = ()
    barrier: int = 0
    captured: int = 0
    latencies: tuple[MetricSample, ...] = ()
    hot_keys: tuple[HotKey, ...] = ()


@dataclass(frozen=True, slots=True)
class VertexMetrics:
    """All tasks of a vertex: sums, but for shares (the mean, and the highest), and watermarks (the lowest).

    Attributes:
        operators: uid and kind of each, in order.
        name: The first operator with a name of the user's, else the same as `vertex`.
        lag: Records known to wait in the splits of a source, None if it can't tell.
        lag_seconds: In how long it would have read them at its present rate; None: it can't tell, or does not
            move.
        is_bottleneck: It is busy, and who sends to it has to wait for it.
        latencies: How long records take from each source to here, of late; empty without `latency_interval`.
        hot_keys: Keys that have at least a fifth of the vertex's newest records, with their shares of them.
    """

    vertex: VertexId
    operators: tuple[tuple[str, str], ...]
    is_source: bool
    is_sink: bool
    records_in_per_second: float
    records_out_per_second: float
    records_in: int
    records_out: int
    busy: float
    busy_most: float
    blocked: float
    blocked_most: float
    waiting: float
    queued_records: int
    spilled_bytes: int
    state_rows: int
    state_bytes: int
    state_memory_bytes: int
    timers: int
    watermark: int | None
    watermark_delay_ms: int | None
    lag: int | None
    lag_seconds: float | None
    late_records: int
    dead_letters: int
    is_bottleneck: bool
    latencies: tuple[LatencyMetrics, ...] = ()
    name: str = ""
    hot_keys: tuple[HotKey, ...] = ()


@dataclass(frozen=True, slots=True)
class EdgeMetrics:
    """What goes from one vertex to another; `side` is the name of a side output, "" for results."""

    source: VertexId
    target: VertexId
    input: int
    partitioning: str
    is_back_edge: bool
    side: str
    records: int
    records_per_second: float


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """A job at one moment.

    Attributes:
        at_ms: When, in milliseconds since 1970.
        status: A phase, or how the job has ended.
        started_ms: When the tasks first ran; 0: not yet.
        summary: As `Job.report` gives it.
        vertices: In topological order.
        checkpoints: The newest 100, oldest first; failed ones and those under way, too.
        failovers: The newest 100, oldest first.
        errors: The newest 100, oldest first.
        settings: As text, without passwords.
        dead_letters: The newest 100 that are known of: a task that sets many aside says a few a second.
        logs: The newest 200 lines that workers have logged, oldest first.
    """

    name: str
    at_ms: int
    status: str
    started_ms: int
    parallelism: int
    summary: JobStatus
    vertices: tuple[VertexMetrics, ...]
    edges: tuple[EdgeMetrics, ...]
    tasks: tuple[TaskMetrics, ...]
    checkpoints: tuple[CheckpointTrace, ...]
    failovers: tuple[FailoverTrace, ...]
    errors: tuple[SeenError, ...]
    settings: Mapping[str, str]
    dead_letters: tuple[SeenDeadLetter, ...] = ()
    logs: tuple[WorkerLine, ...] = ()

    @property
    def bottleneck(self) -> VertexMetrics | None:
        """The vertex that the others wait for, None if there is none."""
        return next((one for one in self.vertices if one.is_bottleneck), None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON-like data. What the summary repeats of the rest is left out of it."""
        # Emptied first: a long job has thousands of them, and this is asked for each second.
        summary = replace(self.summary, tasks=(), checkpoints=(), recoveries=())
        data: dict[str, Any] = plain(replace(self, summary=summary))
        for repeated in ("tasks", "checkpoints", "recoveries"):
            del data["summary"][repeated]
        data["settings"] = dict(self.settings)
        return data


def shown_settings(settings: Settings) -> dict[str, str]:
    """Return the settings as text; URLs without what must not be seen."""
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    return {
        name: shown_url(value) if isinstance(value, str) else repr(value) for name, value in values.items()
    }


def build_metrics(
    graph: JobGraph,
    status: JobStatus,
    phase: str,
    seen: Seen,
    completed: CheckpointCompleted | None,
    settings: Mapping[str, str],
    now_ms: int,
    logs: tuple[WorkerLine, ...] = (),
) -> JobMetrics:
    """Return the metrics of a job. At many tasks that takes its time, in whatever thread.

    Args:
        phase: Or how it has ended.
        completed: The newest checkpoint.
        now_ms: Milliseconds since 1970.
        logs: What workers have logged.
    """
    sizes = _state_bytes(completed)
    of: dict[str, list[TaskMetrics]] = {vertex.vertex_id: [] for vertex in graph.vertices}
    for one in status.tasks:
        if one.task.vertex in of:
            of[one.task.vertex].append(_task(one, seen, sizes.get(one.task, 0), now_ms))
    edges = _edges(graph, of)
    tasks = tuple(task for vertex in of.values() for task in vertex)
    return JobMetrics(
        name=status.name,
        at_ms=now_ms,
        status=phase,
        started_ms=seen.started_ms,
        parallelism=graph.parallelism,
        summary=status,
        vertices=_vertices(graph, of, seen, sizes),
        edges=edges,
        tasks=tasks,
        checkpoints=seen.checkpoints,
        failovers=seen.failovers,
        errors=seen.errors,
        settings=settings,
        dead_letters=seen.dead_letters,
        logs=logs,
    )


def _task(one: TaskStatistics, seen: Seen, state_bytes: int, now_ms: int) -> TaskMetrics:
    return TaskMetrics(
        task=one.task,
        rates=seen.meter.rates(one.task),
        totals=seen.meter.totals(one.task),
        queued_records=one.queued_records,
        spilled_bytes=one.spilled_bytes,
        state_rows=one.state_keys,
        state_bytes=state_bytes,
        state_memory_bytes=one.state_memory_bytes,
        timers=one.timers,
        watermark=one.watermark,
        watermark_delay_ms=_delay_ms(one.watermark, now_ms),
        held_up_by=one.held_up_by,
        lag=one.lag,
        readings=seen.meter.samples(one.task),
        barrier=max(one.barrier, one.captured),
        captured=one.captured,
        latencies=seen.latencies.totals(one.task),
        hot_keys=one.hot_keys,
    )


def _delay_ms(watermark: int | None, now_ms: int) -> int | None:
    return None if watermark is None or watermark >= END_OF_TIME else now_ms - watermark


def _state_bytes(completed: CheckpointCompleted | None) -> dict[TaskId, int]:
    if completed is None:
        return {}
    return {
        one.task: sum(part.size_bytes for part in (*one.snapshot.parts, *one.snapshot.log))
        for one in completed.snapshots
    }


def _edges(graph: JobGraph, of: Mapping[str, list[TaskMetrics]]) -> tuple[EdgeMetrics, ...]:
    found = []
    place: dict[str, int] = {}
    for edge in graph.edges:
        output = place.get(edge.source, 0)
        place[edge.source] = output + 1
        found.append(_edge(edge, output, of[edge.source]))
    return tuple(found)


def _edge(edge: Edge, output: int, senders: Iterable[TaskMetrics]) -> EdgeMetrics:
    totals = [one.totals.sent for one in senders]
    rates = [one.rates.sent_per_second for one in senders]
    return EdgeMetrics(
        source=VertexId(edge.source),
        target=VertexId(edge.target),
        input=edge.input,
        partitioning=edge.partitioning,
        is_back_edge=edge.back_edge,
        side=edge.side.name if edge.side is not None else "",
        records=sum(sent[output] for sent in totals if len(sent) > output),
        records_per_second=sum(sent[output] for sent in rates if len(sent) > output),
    )


def _vertices(
    graph: JobGraph, of: Mapping[str, list[TaskMetrics]], seen: Seen, sizes: Mapping[TaskId, int]
) -> tuple[VertexMetrics, ...]:
    slow = _bottleneck(graph, of)
    # Not those of its tasks: the checkpoint may be one at another parallelism, which had more.
    stored: Counter[str] = Counter()
    for task, size in sizes.items():
        stored[task.vertex] += size
    found = []
    for vertex in graph.vertices:
        tasks = of[vertex.vertex_id]
        one = _vertex(vertex, tasks, stored[vertex.vertex_id], vertex.vertex_id == slow)
        found.append(replace(one, latencies=seen.latencies.recent(task.task for task in tasks)))
    return tuple(found)


def _vertex(vertex: Vertex, tasks: list[TaskMetrics], state_bytes: int, is_bottleneck: bool) -> VertexMetrics:
    rates, totals = [one.rates for one in tasks], [one.totals for one in tasks]
    lags = [one.lag for one in tasks if one.lag is not None]
    lag = sum(lags) if lags else None
    rate = sum(one.records_in_per_second for one in rates)
    watermarks = [one.watermark for one in tasks]
    known = [one for one in watermarks if one is not None]
    delays = [one.watermark_delay_ms for one in tasks if one.watermark_delay_ms is not None]
    return VertexMetrics(
        vertex=VertexId(vertex.vertex_id),
        name=vertex.name,
        operators=tuple((node.uid, kind_of(node.spec)) for node in vertex.chain),
        is_source=vertex.source is not None,
        is_sink=vertex.sink is not None,
        records_in_per_second=rate,
        records_out_per_second=sum(one.records_out_per_second for one in rates),
        records_in=sum(one.records_in for one in totals),
        records_out=sum(one.records_out for one in totals),
        busy=_mean([one.busy for one in rates]),
        busy_most=max((one.busy for one in rates), default=0.0),
        blocked=_mean([one.blocked for one in rates]),
        blocked_most=max((one.blocked for one in rates), default=0.0),
        waiting=_mean([one.waiting for one in rates]),
        queued_records=sum(one.queued_records for one in tasks),
        spilled_bytes=sum(one.spilled_bytes for one in tasks),
        state_rows=sum(one.state_rows for one in tasks),
        state_bytes=state_bytes,
        state_memory_bytes=sum(one.state_memory_bytes for one in tasks),
        timers=sum(one.timers for one in tasks),
        watermark=min(known) if known and len(known) == len(watermarks) else None,
        watermark_delay_ms=max(delays, default=None),
        lag=lag,
        lag_seconds=None if lag is None else 0.0 if lag == 0 else lag / rate if rate > 0 else None,
        late_records=sum(one.late_records for one in totals),
        dead_letters=sum(one.dead_letters for one in totals),
        is_bottleneck=is_bottleneck,
        hot_keys=_hot_keys(tasks, rate),
    )


def _hot_keys(tasks: Iterable[TaskMetrics], rate: float) -> tuple[HotKey, ...]:
    # A key is of one task only.
    found = [
        HotKey(key.key, key.share * one.rates.records_in_per_second / rate)
        for one in tasks
        for key in one.hot_keys
        if rate > 0
    ]
    return tuple(sorted((one for one in found if one.share >= HOT_KEY_SHARE), key=lambda one: -one.share))


def _bottleneck(graph: JobGraph, of: Mapping[str, list[TaskMetrics]]) -> str:
    """Return the vertex that others wait for, "" if there is none.

    Somebody who sends to it is held up by back pressure, and it is not itself, or less. Of several it is the
    busiest. A vertex of which one task has all the work counts as that task.
    """
    blocked = {vertex: max((one.rates.blocked for one in tasks), default=0.0) for vertex, tasks in of.items()}
    busy = {vertex: max((one.rates.busy for one in tasks), default=0.0) for vertex, tasks in of.items()}
    held_up = {edge.target for edge in graph.edges if blocked[edge.source] > max(0.1, blocked[edge.target])}
    most = max(held_up, key=lambda vertex: (busy[vertex], vertex), default="")
    return most if most and busy[most] >= BOTTLENECK_BUSY_MIN else ""


def _mean(shares: list[float]) -> float:
    return sum(shares) / len(shares) if shares else 0.0
