"""What workers measure, beside what they count: part of their reports, and of no snapshot.

No decision reads any of it.
"""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Reading:
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
