"""How long records take from the sources to a task: what its markers show, as a histogram for each source."""

from __future__ import annotations

from crosscut.contracts.metrics import Histogram
from crosscut.foundation.batch import LatencyMarker
from crosscut.protocol.telemetry import MetricReporter, MetricSample

BOUNDS = tuple(step * 10.0**power for power in range(-4, 5) for step in (1.0, 2.5, 5.0))
"""In seconds: from a tenth of a millisecond to 14 hours, so that what has waited long at a blocked channel is
shown as it is."""


class Latencies:
    """Those of one task, in one epoch."""

    def __init__(self) -> None:
        self._by_source: dict[str, Histogram] = {}
        self._reporter = MetricReporter()

    def note(self, marker: LatencyMarker, now_us: int) -> None:
        """A marker has come by; it is `now_us` by this machine's clock, in microseconds since 1970."""
        histogram = self._by_source.get(marker.source)
        if histogram is None:
            histogram = self._by_source[marker.source] = Histogram(BOUNDS)
        # The source's machine has a clock of its own.
        histogram.observe(max(0, now_us - marker.sent_us) / 1e6)

    def news(self, now_ns: int, *, is_over: bool) -> tuple[MetricSample, ...] | None:
        """Return what is to be said; None: what was said last still holds, or was said just now."""
        if not self._by_source or not self._reporter.is_due(now_ns, is_over=is_over):
            return None
        return self._reporter.news(
            now_ns,
            tuple(
                MetricSample(source, "latency", one.kind, one.value, one.bounds, tuple(one.counts))
                for source, one in self._by_source.items()
            ),
        )
