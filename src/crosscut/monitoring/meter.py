"""Rates and shares of every task, from the counters in the workers' reports.

Counters of a report belong to one epoch, and go back at a failover. The totals here only grow: what is
processed again counts again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import field, replace

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import Epoch, TaskId
from crosscut.protocol.messages import TaskStatistics
from crosscut.protocol.snapshots import TaskSnapshot
from crosscut.protocol.telemetry import MetricSample

WINDOW_NS = 5_000_000_000
EVERY_NS = 200_000_000
"""Reports that come sooner replace the one before, or a window would hold hundreds."""


@dataclass(frozen=True, slots=True)
class TaskRates:
    """One task over the last seconds; shares are between 0 and 1 and add up to 1, and are 0 before it runs.

    Attributes:
        busy: Of the time, it ran. The tasks of a worker share one thread, so theirs add up to 1 at most.
        blocked: It could not run, because an output took no more: back pressure.
        waiting: It had nothing to do, or another task of the worker ran.
        sent_per_second: By output, in the order of the graph's edges.
    """

    records_in_per_second: float = 0.0
    records_out_per_second: float = 0.0
    busy: float = 0.0
    blocked: float = 0.0
    waiting: float = 0.0
    sent_per_second: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """Of one task, since the driver started."""

    records_in: int = 0
    records_out: int = 0
    late_records: int = 0
    dead_letters: int = 0
    sent: tuple[int, ...] = ()


@dataclass(slots=True)
class _Known:
    epoch: Epoch
    last: TaskStatistics
    reports: deque[tuple[int, TaskStatistics]] = field(default_factory=deque)
    totals: TaskTotals = TaskTotals()
    samples: tuple[MetricSample, ...] = ()
    past: dict[tuple[str, str], MetricSample] = field(default_factory=dict)
    """The metrics of user code at the end of older epochs, those that add up."""


class Meter:
    """The newest reports of every task."""

    def __init__(self) -> None:
        self._of: dict[TaskId, _Known] = {}
        self._begun: dict[TaskId, TaskStatistics] = {}

    def begin(self, tasks: Iterable[TaskSnapshot]) -> None:
        """The next epoch begins with these snapshots: their counters go on from there."""
        for one in tasks:
            before = one.snapshot
            self._begun[one.task] = TaskStatistics(
                one.task, before.records_in, before.records_out, late_records=before.late_records
            )

    def note(self, now_ns: int, epoch: Epoch, tasks: Iterable[TaskStatistics]) -> None:
        """Note what a worker reports of its tasks in `epoch`."""
        for one in tasks:
            self._note(now_ns, epoch, one)

    def forget(self) -> None:
        """Nothing runs any more: there are no rates."""
        for known in self._of.values():
            known.reports.clear()

    def copied(self) -> Meter:
        """Return one that says the same, and goes on saying it."""
        copy = Meter()
        for task, known in self._of.items():
            ends = (known.reports[0], known.reports[-1]) if known.reports else ()
            copy._of[task] = _Known(
                known.epoch, known.last, deque(ends), known.totals, known.samples, known.past
            )
        return copy

    def rates(self, task: TaskId) -> TaskRates:
        """Return what `task` did of late."""
        known = self._of.get(task)
        if known is None or len(known.reports) < 2:
            return TaskRates()
        (then_ns, before), (now_ns, after) = known.reports[0], known.reports[-1]
        seconds = (now_ns - then_ns) / 1e9
        running_us = after.running_us - before.running_us
        busy = _share(after.busy_us - before.busy_us, running_us)
        blocked = min(_share(after.blocked_us - before.blocked_us, running_us), 1.0 - busy)
        sent = zip(before.sent, after.sent, strict=False)
        return TaskRates(
            records_in_per_second=_rate(before.records_in, after.records_in, seconds),
            records_out_per_second=_rate(before.records_out, after.records_out, seconds),
            busy=busy,
            blocked=blocked,
            waiting=1.0 - busy - blocked if running_us > 0 else 0.0,
            sent_per_second=tuple(_rate(one, other, seconds) for one, other in sent),
        )

    def totals(self, task: TaskId) -> TaskTotals:
        """Return what `task` has done since the driver started."""
        known = self._of.get(task)
        return known.totals if known is not None else TaskTotals()

    def samples(self, task: TaskId) -> tuple[MetricSample, ...]:
        """Return the metrics of user code in `task`: gauges as they are, the others over all epochs."""
        known = self._of.get(task)
        if known is None:
            return ()
        merged = dict(known.past)
        for one in known.samples:
            merged[one.operator, one.name] = _sum(merged.get((one.operator, one.name)), one)
        return tuple(merged[key] for key in sorted(merged))

    def _note(self, now_ns: int, epoch: Epoch, one: TaskStatistics) -> None:
        known = self._of.get(one.task)
        if known is None or known.epoch != epoch:
            past = {(old.operator, old.name): old for old in self.samples(one.task) if old.kind != "gauge"}
            totals = known.totals if known is not None else TaskTotals()
            known = self._of[one.task] = _Known(
                epoch, one, deque([(now_ns, one)]), totals, one.readings or (), past
            )
            known.totals = _added(totals, self._begun.get(one.task, TaskStatistics(one.task)), one)
            return
        reports = known.reports
        known.totals = _added(known.totals, known.last, one)
        known.last = one
        if one.readings is not None:
            known.samples = one.readings
        if len(reports) > 1 and now_ns - reports[-2][0] < EVERY_NS:
            reports.pop()
        reports.append((now_ns, one))
        while len(reports) > 2 and reports[1][0] <= now_ns - WINDOW_NS:
            reports.popleft()


def _added(totals: TaskTotals, before: TaskStatistics, after: TaskStatistics) -> TaskTotals:
    outputs = range(len(after.sent))
    return TaskTotals(
        records_in=totals.records_in + max(0, after.records_in - before.records_in),
        records_out=totals.records_out + max(0, after.records_out - before.records_out),
        late_records=totals.late_records + max(0, after.late_records - before.late_records),
        dead_letters=totals.dead_letters + max(0, after.dead_letters - before.dead_letters),
        sent=tuple(_at(totals.sent, i) + max(0, after.sent[i] - _at(before.sent, i)) for i in outputs),
    )


def _at(counts: tuple[int, ...], index: int) -> int:
    return counts[index] if index < len(counts) else 0


def _sum(past: MetricSample | None, now: MetricSample) -> MetricSample:
    if past is None or now.kind == "gauge" or past.bounds != now.bounds:
        return now
    counts = tuple(one + other for one, other in zip(past.counts, now.counts, strict=False))
    return replace(now, value=past.value + now.value, counts=counts)


def _share(part_us: int, whole_us: int) -> float:
    return min(1.0, max(0.0, part_us / whole_us)) if whole_us > 0 else 0.0


def _rate(before: int, after: int, seconds: float) -> float:
    return max(0, after - before) / seconds if seconds > 0 else 0.0
