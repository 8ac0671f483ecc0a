"""Counters, gauges and histograms of user code: `ctx.metrics`."""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from crosscut.errors import FlowError

METRICS_MAX = 100
"""Of one operator: each of its tasks reports them all, once a second if one has changed."""

BUCKETS_MAX = 50
DEFAULT_BUCKETS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0)

_MOST = sys.float_info.max
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    kind = "counter"

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        """Add `amount`, which is not negative.

        Raises:
            FlowError: It is, or is no finite number.
        """
        if not 0 <= amount < math.inf:
            raise FlowError(f"a counter was given {amount!r:.100}: expected a number from 0 on")
        # A float and no number of NumPy's, and finite: what else a report held would end the job.
        self.value = min(self.value + float(amount), _MOST)


class Gauge:
    """A number that goes up and down; of a vertex, the sum of its tasks is shown."""

    __slots__ = ("value",)

    kind = "gauge"

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Set it.

        Raises:
            FlowError: `value` is no finite number.
        """
        if not -math.inf < value < math.inf:
            raise FlowError(f"a gauge was set to {value!r:.100}: expected a finite number")
        self.value = float(value)


class Histogram:
    """How often a value fell into which bucket."""

    __slots__ = ("bounds", "counts", "value")

    kind = "histogram"

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.value = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound is not below it.

        Raises:
            FlowError: It is no finite number.
        """
        if not -math.inf < value < math.inf:
            raise FlowError(f"a histogram was given {value!r:.100}: expected a finite number")
        self.counts[bisect_left(self.bounds, value)] += 1
        self.value = max(-_MOST, min(self.value + float(value), _MOST))


Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of an operator in one task. The same name gives the same metric: ask for it each time, or
    once, in `open`.

    They are no state: what a checkpoint does not hold is counted again after a failure, and what a worker
    has counted since its last report is lost with it. They travel with the reports of the workers, once a
    second if they have changed, and cost nothing in between.
    """

    __slots__ = ("_uid", "metrics")

    def __init__(self, uid: str = "") -> None:
        self._uid = uid
        self.metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str) -> Counter:
        """Return the counter of that name: letters, digits and "_", at most 64.

        Raises:
            FlowError: The name is something else, or another kind of metric has it, or there are 100 already.
        """
        found = self.metrics.get(name)
        return found if type(found) is Counter else self._added(name, Counter())

    def gauge(self, name: str) -> Gauge:
        """Return the gauge of that name; see `counter`."""
        found = self.metrics.get(name)
        return found if type(found) is Gauge else self._added(name, Gauge())

    def histogram(self, name: str, buckets: Iterable[float] = DEFAULT_BUCKETS) -> Histogram:
        """Return the histogram of that name; see `counter`.

        Args:
            buckets: Their upper bounds, growing, at most 50; a last one takes what is above. They count only
                when the name is first asked for.
        """
        found = self.metrics.get(name)
        if type(found) is Histogram:
            return found
        bounds = tuple(float(one) for one in buckets)
        is_growing = all(low < high for low, high in pairwise(bounds))
        if not 1 <= len(bounds) <= BUCKETS_MAX or not is_growing or not all(map(math.isfinite, bounds)):
            raise FlowError(
                f"histogram {name!r:.100}: buckets={bounds!r:.200}: expected 1 to {BUCKETS_MAX} growing "
                f"finite numbers",
                operator=self._uid,
            )
        return self._added(name, Histogram(bounds))

    def _added(self, name: str, metric: Metric) -> Metric:
        known = self.metrics.get(name)
        if known is not None:
            problem = f"it is a {known.kind} already"
        elif not isinstance(name, str) or not _NAME.fullmatch(name):
            problem = "expected a name of letters, digits and '_', of at most 64 characters"
        elif len(self.metrics) >= METRICS_MAX:
            problem = f"the operator has {METRICS_MAX} metrics: a name must not depend on a record"
        else:
            # Of a member of an enumeration, its text.
            self.metrics[str.__str__(name)] = metric
            return metric
        raise FlowError(f"operator {self._uid!r}: {metric.kind} {name!r:.100}: {problem}", operator=self._uid)
