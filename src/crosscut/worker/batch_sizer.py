"""How many records the next slice of a task takes, by the cost of those before it.

A slice has a fixed cost (a request that a source sends for each read, the file that a sink opens for each
write) and one for each record. Only the second is a reason for fewer records: a slice that is long
because of the first is no shorter with fewer, and there are only more of them.

No clock is read here: the runner of the slices tells how long each took.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import median

from crosscut.operators.time_budget import TimeBudget

SLICE_NS = 2_000_000
"""How long a slice should take: barriers and sockets wait meanwhile."""

HOLD_NS_MAX = 250_000_000
"""How long one may take because of its fixed cost."""

ROWS_PER_FIXED = 7
"""The records of a slice may take so many times as long as its fixed cost, which is an eighth of it then."""

TRIAL_NS_MAX = 1_000_000_000
"""Nothing is tried that is expected to take longer."""

_SURPRISE = 3
"""A slice that takes so many times as long as expected, or as short, shows that the costs have changed."""

_WEIGHT_IF_SHORTER, _WEIGHT_IF_LONGER = 0.5, 0.03
"""Of a slice in what its size takes. Whatever else the machine does makes slices longer and none shorter: the
shorter ones say what they cost."""

_WEIGHT_OF_ANY = 0.12
"""The weight where slices vary much whatever the machine does."""

_SURPRISES_MAX = 4
"""So many slices in a row that are far longer than expected are no accident."""

_TRIAL_SLICES = 3
"""Of a size that is tried: a single one may be an accident."""

_NOISE_NS = 250_000
"""Differences below it say nothing."""

_PAIRS = 9
"""Pairs of slices of one size that are compared: how the durations of two in a row differ is chance."""

_PAIRS_MIN = 5
"""Before there are so many pairs, nothing is taken for chance."""

_CHANCE_MUCH = 0.3
"""Where the median of the logarithms of their ratios is above it, slices vary by themselves, not only
because of what else the machine does."""

_DOUBT = 0.3
"""By how many standard errors a record is taken to be cheaper than it seems. Where records are blamed for
what a disk or a service does, slices stay small, and each pays the fixed cost for few records."""

_FAR = 8
"""By which a size that is tried is smaller where slices vary much: the further away, the more it says."""

_SAMPLES_MAX = 8
"""Slices that an estimate stands for at most: older ones have little weight in it."""

_SLICES_BETWEEN_TRIALS = 32
"""When so many long slices had one size, another one is tried: which of the costs it is may have changed."""


class BatchSizer(ABC):
    """Says how much of its input a task takes at a time.

    Attributes:
        rows: Records that the next slice takes at most.
        patience_ns: When the slice has taken so long, the rest of its records goes back.
        time_budget: By which that is done.
    """

    rows: int
    patience_ns: int
    time_budget: TimeBudget

    @abstractmethod
    def took(self, rows: int, elapsed_ns: int) -> None:
        """A slice of `rows` records, at least one, has taken `elapsed_ns`."""

    def widen(self, rows_max: int) -> None:
        """A full batch of this task has `rows_max` records: more than of others, if it takes columns."""

    @abstractmethod
    def start_over(self) -> None:
        """A slice has failed, perhaps because it took too long: the next one is to be small."""


@dataclass(slots=True)
class _Size:
    """The durations of slices of about one size, without the disturbances of the machine.

    Attributes:
        last: The number of the newest one.
        samples: How many there were.
    """

    rows: float
    ns: float
    last: int
    samples: int = 1


class AdaptiveBatchSizer(BatchSizer):
    """Tells the two costs apart by slices of different sizes: a straight line through their means.

    Args:
        rows_max: Records in a full batch. The first slice takes one: nothing is known yet.
        hold_ns_max: As `HOLD_NS_MAX`, for those who want to be served sooner.
    """

    def __init__(self, rows_max: int, hold_ns_max: int = HOLD_NS_MAX) -> None:
        self._rows_max = rows_max
        self._hold_ns_max = hold_ns_max
        # By the binary logarithm of the number of rows.
        self._sizes: dict[int, _Size] = {}
        self._slices = 0
        self._surprises = self._trial_slices_left = 0
        # The newest duration of each size, and how the newest pairs differ: the logarithms of their ratios.
        self._newest_ns: dict[int, int] = {}
        self._differences: deque[float] = deque(maxlen=_PAIRS)
        # Their median.
        self._chance = 0.0
        self.time_budget = TimeBudget()
        self.start_over()

    def widen(self, rows_max: int) -> None:
        self._rows_max = max(self._rows_max, rows_max)

    def start_over(self) -> None:
        self._forget()
        self.rows = 1
        self.patience_ns = 4 * SLICE_NS

    def _forget(self) -> None:
        self._sizes.clear()
        self._fixed_ns = self._row_ns = 0.0
        self._surprises = self._trial_slices_left = 0
        # Whether slices of different sizes have shown which cost it is.
        self._are_costs_known = False

    def took(self, rows: int, elapsed_ns: int) -> None:
        if elapsed_ns <= SLICE_NS and (self.rows == self._rows_max or rows < self.rows):
            # Short, and not because of this sizer.
            return
        self._compare(rows, elapsed_ns)
        expected_ns = self._expected_ns(rows)
        surprise = _SURPRISE * exp(2 * self._chance)
        is_longer = elapsed_ns > surprise * expected_ns + _NOISE_NS
        self._surprises = self._surprises + 1 if is_longer else 0
        is_no_accident = self._surprises >= _SURPRISES_MAX or (is_longer and elapsed_ns > self._hold_ns_max)
        if is_no_accident or expected_ns > surprise * elapsed_ns + _NOISE_NS:
            self._forget()
        self._remember(rows, elapsed_ns)
        self._draw_line()
        self._choose(rows, is_long=elapsed_ns > SLICE_NS)

    def _compare(self, rows: int, elapsed_ns: int) -> None:
        """Learn what is chance: slices of one size, one after another, ought to take as long.

        A median, so that a change of the costs, which is in one pair, is none.
        """
        size = rows.bit_length()
        before_ns = self._newest_ns.get(size)
        self._newest_ns[size] = elapsed_ns
        if before_ns is not None:
            self._differences.append(abs(log((elapsed_ns + _NOISE_NS) / (before_ns + _NOISE_NS))))
            if len(self._differences) >= _PAIRS_MIN:
                self._chance = median(self._differences)

    def _expected_ns(self, rows: float) -> float:
        return self._fixed_ns + self._row_ns * rows

    def _remember(self, rows: int, elapsed_ns: int) -> None:
        self._slices += 1
        size = rows.bit_length()
        known = self._sizes.get(size)
        if known is None or self._slices - known.last >= _SLICES_BETWEEN_TRIALS:
            self._sizes[size] = _Size(rows, elapsed_ns, self._slices)
        else:
            # It follows the sizes along the line, and leaves the line for what slices of them take.
            likely_ns = known.ns + self._row_ns * (rows - known.rows)
            weight = _WEIGHT_IF_LONGER if elapsed_ns > likely_ns else _WEIGHT_IF_SHORTER
            if self._chance > _CHANCE_MUCH:
                # The fixed cost itself varies: its mean counts, not the least of it.
                weight = max(_WEIGHT_OF_ANY, 1 / (known.samples + 1))
            known.rows, known.ns = rows, likely_ns + weight * (elapsed_ns - likely_ns)
            known.last = self._slices
            known.samples = min(known.samples + 1, _SAMPLES_MAX)
        oldest = self._slices - 2 * _SLICES_BETWEEN_TRIALS
        for old in [size for size, one in self._sizes.items() if one.last < oldest]:
            del self._sizes[old]

    def _draw_line(self) -> None:
        """By least squares of relative errors."""
        # Plain loops: where the machine does other work, this is done after each slice.
        points = [(one.rows, one.ns, 1 / (one.ns + _NOISE_NS) ** 2) for one in self._sizes.values()]
        weight = mean_rows = mean_ns = spread = covariance = variance = 0.0
        for rows, ns, w in points:
            weight += w
            mean_rows += w * rows
            mean_ns += w * ns
        mean_rows, mean_ns = mean_rows / weight, mean_ns / weight
        for rows, ns, w in points:
            spread += w * (rows - mean_rows) ** 2
            covariance += w * (rows - mean_rows) * (ns - mean_ns)
        if len(points) > 1 and spread:
            for one, (rows, ns, w) in zip(self._sizes.values(), points, strict=True):
                variance += (w * (rows - mean_rows) * ns * self._chance) ** 2 / one.samples
            # Records are blamed only for what is not chance: with more of them it shows what they cost.
            slope = (covariance - _DOUBT * sqrt(variance)) / spread
            self._row_ns = min(max(0.0, slope), mean_ns / mean_rows)
            self._fixed_ns = mean_ns - self._row_ns * mean_rows
            self._are_costs_known = True
        elif self._are_costs_known:
            # One size says nothing about which it is: both are taken to have changed alike.
            change = mean_ns / self._expected_ns(mean_rows)
            self._row_ns, self._fixed_ns = change * self._row_ns, change * self._fixed_ns
        else:
            self._row_ns, self._fixed_ns = mean_ns / mean_rows, 0.0

    def _choose(self, rows: int, *, is_long: bool) -> None:
        wanted = self._wanted()
        if self._trial_slices_left:
            self._trial_slices_left -= 1
            wanted = rows
        elif wanted < 2 * rows and (is_long or wanted < self._rows_max):
            wanted = self._perhaps_another(rows, wanted)
        # Long slices grow with more care: they may turn out to be dearer than it seems.
        self.rows = int(max(1, min(wanted, (2 if is_long else 4) * rows, self._rows_max)))
        self.patience_ns = int(min(2 * self._hold_ns_max, 4 * SLICE_NS + 2 * self._expected_ns(self.rows)))

    def _wanted(self) -> float:
        """Return how many records fill a slice, or outweigh its fixed cost."""
        fixed_ns = self._fixed_ns
        outweighing_ns = min(ROWS_PER_FIXED * fixed_ns, max(fixed_ns, self._hold_ns_max - fixed_ns))
        budget_ns = max(SLICE_NS - fixed_ns, outweighing_ns)
        return budget_ns / self._row_ns if self._row_ns * self._rows_max > budget_ns else self._rows_max

    def _perhaps_another(self, rows: int, wanted: float) -> float:
        """Return a size that tells the two costs apart, if no other one has lately; else `wanted`."""
        if not self._are_costs_known and rows > 1 and wanted <= rows / 2:
            return wanted
        others = [one.last for one in self._sizes.values() if one.last < self._slices]
        if others and self._slices - max(others) < _SLICES_BETWEEN_TRIALS:
            return wanted
        if self._chance > _CHANCE_MUCH and rows >= _FAR:
            other = rows / _FAR
        elif rows > 1 and (2 * rows > self._rows_max or self._expected_ns(2 * rows) > self._hold_ns_max):
            other = rows / 2
        elif self._expected_ns(2 * rows) < TRIAL_NS_MAX:
            other = 2 * rows
        else:
            return wanted
        self._trial_slices_left = _TRIAL_SLICES - 1
        return other


def hold_ns_max(heartbeat_timeout_ms: int) -> int:
    """Return how long a slice may take because of its fixed cost, so that heartbeats go on."""
    return min(HOLD_NS_MAX, heartbeat_timeout_ms * 1_000_000 // 20)
