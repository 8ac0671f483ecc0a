"""Event time in the explored world: a record happens at its place in its source, and is held until its time.

The combination of watermarks is the real one. A task that holds records has a timer for each, and lets a
record on when the watermark has come to it. What a watermark makes due is said in one step with it.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.proof.explorer.graphs import Graph, once, times

from crosscut.operators.watermarks import CombinedWatermark

WATERMARK = 1 << 29
"""An item with this bit says that nothing older will come than what its other bits are."""


class Kept(NamedTuple):
    """What a snapshot holds of event time.

    Attributes:
        held: The records that wait for their time.
    """

    watermark: int | None = None
    held: int = 0


class TaskTime(NamedTuple):
    """What a task knows of event time.

    Attributes:
        sides: The watermark of each input that has not ended.
    """

    watermark: int | None = None
    held: int = 0
    sides: tuple[tuple[int, int | None], ...] = ()

    @classmethod
    def restored(cls, kept: Kept, inputs: tuple[int, ...]) -> TaskTime:
        """Go on from a snapshot: nothing is older than what it has."""
        return cls(kept.watermark, kept.held, tuple((one, kept.watermark) for one in inputs))

    @property
    def kept(self) -> Kept:
        """What a snapshot holds of it."""
        return Kept(self.watermark, self.held)

    def heard(self, channel: int, watermark: int) -> TaskTime:
        """Take in the watermark of an input."""
        combined = self._combined()
        combined.update(channel, watermark)
        return self._replace(watermark=combined.watermark, sides=tuple(combined.sides.items()))

    def ended(self, channel: int) -> TaskTime:
        """Nothing more comes from an input."""
        combined = self._combined()
        combined.ended(channel)
        return self._replace(watermark=combined.watermark, sides=tuple(combined.sides.items()))

    def _combined(self) -> CombinedWatermark[int]:
        return CombinedWatermark(dict(self.sides), self.watermark)

    def holding(self, record: int) -> TaskTime:
        """Hold `record` until its time."""
        return self._replace(held=self.held + once(record))

    def due(self, graph: Graph, *, at_the_end: bool = False) -> tuple[int, ...]:
        """Return the records whose time has come, oldest first."""
        return tuple(
            sorted(
                (
                    record
                    for record in range(len(graph.routes))
                    for _ in range(times(self.held, record))
                    if at_the_end or (self.watermark is not None and time_of(graph, record) <= self.watermark)
                ),
                key=lambda record: (time_of(graph, record), record),
            )
        )

    def without(self, records: tuple[int, ...]) -> TaskTime:
        """Hold `records` no more."""
        return self._replace(held=self.held - sum(map(once, records)))


NO_TIME, NOTHING_KEPT = TaskTime(), Kept()


def time_of(graph: Graph, record: int) -> int:
    """Return when `record` happened."""
    return 1 + graph.records_of(graph.origins[record]).index(record)
