"""A job over time, for plots: a bounded number of points, however long it runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from crosscut.monitoring.metrics import JobMetrics

POINTS_MAX = 600


@dataclass(frozen=True, slots=True)
class Point:
    """One moment; None where nothing is known.

    Attributes:
        at_ms: In milliseconds since 1970.
        blocked: The highest share of any vertex.
        delay_ms: The longest watermark delay of any vertex.
        latency_ms: From a source to a sink, 99 of 100 of late; the longest of any two.
        checkpoint_ms: Duration of the newest completed checkpoint.
    """

    at_ms: int
    epoch: int
    records_per_second: float
    busy: float
    blocked: float
    queued_records: int
    state_rows: int
    lag: int | None
    delay_ms: int | None
    checkpoint_ms: float | None
    latency_ms: float | None = None


def point_of(metrics: JobMetrics) -> Point:
    """Return the point of a job at one moment."""
    vertices = metrics.vertices
    lags = [one.lag for one in vertices if one.lag is not None]
    completed = [one.duration_ms for one in metrics.checkpoints if one.outcome == "completed"]
    return Point(
        at_ms=metrics.at_ms,
        epoch=metrics.summary.epoch,
        records_per_second=round(sum(one.records_in_per_second for one in vertices if one.is_source), 1),
        busy=round(max((one.busy for one in vertices), default=0.0), 3),
        blocked=round(max((one.blocked for one in vertices), default=0.0), 3),
        queued_records=metrics.summary.queued_records,
        state_rows=metrics.summary.state_keys,
        lag=sum(lags) if lags else None,
        delay_ms=max(
            (one.watermark_delay_ms for one in vertices if one.watermark_delay_ms is not None), default=None
        ),
        checkpoint_ms=round(completed[-1], 1) if completed else None,
        latency_ms=max(
            (round(latency.p99_ms, 2) for one in vertices if one.is_sink for latency in one.latencies),
            default=None,
        ),
    )


class Series:
    """The points of a job, oldest first. When there are too many, every second one goes, and from then on
    they are noted half as often."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._every = 1
        self._skipped = 0

    def note(self, point: Point) -> None:
        """Note a moment, unless the last one is too near."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        self._points.append(point)
        if len(self._points) > POINTS_MAX:
            self._points = self._points[::2]
            self._every *= 2

    @property
    def points(self) -> tuple[Point, ...]:
        """All points."""
        return tuple(self._points)

    def as_dict(self) -> dict[str, list[Any]]:
        """Return a column for each field."""
        points = self.points
        return {one.name: [getattr(point, one.name) for point in points] for one in fields(Point)}
