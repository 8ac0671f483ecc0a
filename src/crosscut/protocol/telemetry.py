"""What workers measure, beside what they count: part of their reports, and of no snapshot.

No decision reads any of it.
"""

from __future__ import annotations

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId


@dataclass(frozen=True, slots=True)
class SnapshotTimes:
    """How long a task took for its snapshot, in microseconds of its worker's clock.

    Attributes:
        alignment_us: From the first barrier on an input to the freeze.
        prepare_us: The sink made its transaction durable.
        store_us: From the freeze until everything was durable; the transaction, too.
    """

    alignment_us: int = 0
    prepare_us: int = 0
    store_us: int = 0


LOOK_EVERY_NS = 1_000_000_000
REPORT_AGAIN_NS = 10_000_000_000
"""What has not changed is said again as often, for a driver that has not heard it."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A metric of user code, in one operator of one task.

    Attributes:
        operator: uid.
        kind: "counter" (the sum in this epoch), "gauge", or "histogram".
        value: The sum or the value; of a histogram, the sum of all that was observed.
        bounds: Of a histogram: the upper bounds of its buckets, the last one without a bound left out.
        counts: Of a histogram: how many observations fell into each bucket, the last one too.
    """

    operator: str
    name: str
    kind: str
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that much of the input of a task has, as far as a sample of its newest records tells.

    Attributes:
        key: Its repr, shortened.
        share: Of the records, between 0 and 1.
    """

    key: str
    share: float


@dataclass(frozen=True, slots=True)
class ShownDeadLetter:
    """A dead letter as people see it: everything is text, and shortened.

    Attributes:
        operator: uid.
        record: "" of a timer.
        key: "" if it has none.
        timer: The time of the timer, None of a record.
    """

    operator: str
    record: str
    error: str
    key: str = ""
    timer: int | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that was logged in a worker.

    Attributes:
        at_ms: Milliseconds since 1970, by the worker's clock.
        level: One of the module `logging`: 30 is a warning.
        logger: Its name.
        text: Shortened; with the end of a traceback.
        task: That was at work, None: none was.
        epoch: Of that task; 0 without one.
        checkpoint_id: The newest that has the state of that task, in this epoch; 0: none yet.
    """

    at_ms: int
    level: int
    logger: str
    text: str
    task: TaskId | None = None
    epoch: Epoch = Epoch(0)
    checkpoint_id: CheckpointId = CheckpointId(0)


class MetricReporter:
    """When a task says the metrics of user code, which may be many: seldom, and if they have changed."""

    def __init__(self) -> None:
        self._looked_ns = self._reported_ns = 0
        self._reported: tuple[MetricSample, ...] = ()

    def is_due(self, now_ns: int, *, is_over: bool) -> bool:
        """Whether to look at them.

        Args:
            is_over: The task has come to its end: what it has counted last must not be missed.
        """
        return is_over or not self._reported or now_ns - self._looked_ns >= LOOK_EVERY_NS

    def news(self, now_ns: int, samples: tuple[MetricSample, ...]) -> tuple[MetricSample, ...] | None:
        """Return what is to be said; None: what was said last still holds."""
        self._looked_ns = now_ns
        is_old = now_ns - self._reported_ns >= REPORT_AGAIN_NS
        if samples == self._reported and not (is_old and samples):
            return None
        self._reported_ns, self._reported = now_ns, samples
        return samples
