"""How long records take from the sources to each vertex, by the latency markers that tasks receive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from crosscut.foundation.ids import Epoch, TaskId
from crosscut.protocol.messages import TaskStatistics
from crosscut.protocol.telemetry import MetricSample

WINDOW_NS = 30_000_000_000


@dataclass(frozen=True, slots=True)
class LatencyMetrics:
    """From one source to the tasks of a vertex, over the last 30 seconds: the median and the 99th
    percentile of the latency markers.

    Attributes:
        source: The vertex where the records were read.
        marks: How many latency markers arrived.
    """

    source: str
    marks: int
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class _Known:
    epoch: Epoch
    past: tuple[MetricSample, ...]
    """At the end of older epochs."""
    reports: deque[tuple[int, tuple[MetricSample, ...]]] = field(default_factory=deque)


class LatencyMeter:
    """The newest reports of every task."""

    def __init__(self) -> None:
        self._of: dict[TaskId, _Known] = {}

    def note(self, now_ns: int, epoch: Epoch, tasks: Iterable[TaskStatistics]) -> None:
        """Note what a worker reports of its tasks in `epoch`."""
        for one in tasks:
            if one.latencies is None:
                continue
            known = self._of.get(one.task)
            if known is None or known.epoch != epoch:
                known = self._of[one.task] = _Known(epoch, self.totals(one.task))
                known.reports.append((now_ns, ()))
            known.reports.append((now_ns, one.latencies))
            while known.reports[1][0] <= now_ns - WINDOW_NS:
                known.reports.popleft()

    def copied(self) -> LatencyMeter:
        """Return one that says the same, and goes on saying it."""
        copy = LatencyMeter()
        copy._of = {
            task: _Known(known.epoch, known.past, deque((known.reports[0], known.reports[-1])))
            for task, known in self._of.items()
        }
        return copy

    def totals(self, task: TaskId) -> tuple[MetricSample, ...]:
        """Return the histograms of `task`, by source, since the driver started."""
        known = self._of.get(task)
        return () if known is None else merged([*known.past, *known.reports[-1][1]])

    def recent(self, tasks: Iterable[TaskId]) -> tuple[LatencyMetrics, ...]:
        """Return what `tasks` together have measured of late, by source."""
        changes: list[MetricSample] = []
        for task in tasks:
            known = self._of.get(task)
            if known is not None and len(known.reports) > 1:
                changes += _since(known.reports[0][1], known.reports[-1][1])
        return tuple(
            LatencyMetrics(one.operator, count, quantile_ms(one, 0.5), quantile_ms(one, 0.99))
            for one in merged(changes)
            if (count := sum(one.counts))
        )


def merged(samples: Iterable[MetricSample]) -> tuple[MetricSample, ...]:
    """Return one histogram for each source; those with other buckets than the first are left out, and what is
    none: a worker may say anything."""
    found: dict[str, MetricSample] = {}
    for one in samples:
        if len(one.counts) != len(one.bounds) + 1:
            continue
        known = found.setdefault(one.operator, one)
        if known is not one and known.bounds == one.bounds:
            counts = tuple(a + b for a, b in zip(known.counts, one.counts, strict=True))
            found[one.operator] = replace(known, value=known.value + one.value, counts=counts)
    return tuple(found[source] for source in sorted(found))


def quantile_ms(histogram: MetricSample, share: float) -> float:
    """Return the time that `share` of what was observed stays within, as near as the buckets tell."""
    wanted = share * sum(histogram.counts)
    bounds = (0.0, *histogram.bounds)
    for index, reached in enumerate(accumulate(histogram.counts)):
        if reached >= wanted and histogram.counts[index]:
            if index == len(histogram.bounds):
                break
            low, high = bounds[index], bounds[index + 1]
            before = reached - histogram.counts[index]
            return 1e3 * (low + (high - low) * (wanted - before) / histogram.counts[index])
    return 1e3 * bounds[-1]


def _since(before: Sequence[MetricSample], after: Sequence[MetricSample]) -> list[MetricSample]:
    then = {one.operator: one for one in before}
    changes = []
    for one in after:
        old = then.get(one.operator)
        if old is not None:
            counts = tuple(b - a for a, b in zip(old.counts, one.counts, strict=False))
            one = replace(one, value=one.value - old.value, counts=counts)
        changes.append(one)
    return changes
