"""Keyed state that only ever grows: keys without an end fill memory or disk, and people must be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crosscut.foundation.ids import VertexId
from crosscut.protocol.messages import TaskStatistics

WINDOW_S = 60.0
WINDOWS_MIN = 5
"""Windows in a row in each of which the state has grown, before that is said."""
GROWTH_MIN = 0.01
"""By which part it has to grow in a window: less takes hours to matter."""


@dataclass(frozen=True, slots=True)
class GrowingState:
    """The state of a vertex has `rows` rows, and has grown without a pause for `seconds`."""

    vertex: VertexId
    rows: int
    rows_per_second: float
    seconds: float


@dataclass(slots=True)
class _Growth:
    """Since when, and from how many rows on; and where the present window began."""

    since_ns: int
    since_rows: int
    window_ns: int
    window_rows: int
    windows: int = 0
    rows: int = 0


class Growths:
    """How long the state of each vertex has been growing, by the clock of the driver."""

    def __init__(self) -> None:
        self._of: dict[VertexId, _Growth] = {}
        self._warned: set[VertexId] = set()

    def note(self, now_ns: int, tasks: Iterable[TaskStatistics]) -> list[str]:
        """Note the counters of all tasks; return lines for people, once for each growth."""
        rows: dict[VertexId, int] = {}
        for one in tasks:
            rows[one.task.vertex] = rows.get(one.task.vertex, 0) + one.state_keys
        return [text for vertex, count in sorted(rows.items()) if (text := self._note(now_ns, vertex, count))]

    def status(self) -> tuple[GrowingState, ...]:
        """Return those that have been growing for long enough to be mentioned."""
        found = []
        for vertex, one in sorted(self._of.items()):
            if one.windows >= WINDOWS_MIN:
                seconds = (one.window_ns - one.since_ns) / 1e9
                rate = (one.window_rows - one.since_rows) / seconds
                found.append(GrowingState(vertex, one.rows, round(rate, 1), round(seconds, 1)))
        return tuple(found)

    def _note(self, now_ns: int, vertex: VertexId, rows: int) -> str:
        one = self._of.setdefault(vertex, _Growth(now_ns, rows, now_ns, rows))
        one.rows = rows
        if now_ns - one.window_ns < WINDOW_S * 1e9:
            return ""
        if rows <= one.window_rows * (1 + GROWTH_MIN):
            self._of[vertex] = _Growth(now_ns, rows, now_ns, rows, rows=rows)
            self._warned.discard(vertex)
            return ""
        one.windows += 1
        one.window_ns, one.window_rows = now_ns, rows
        if one.windows < WINDOWS_MIN or vertex in self._warned:
            return ""
        self._warned.add(vertex)
        minutes = (now_ns - one.since_ns) / 60e9
        return (
            f"the state of {vertex!r} has grown for {minutes:.0f} minutes without a pause, from "
            f"{one.since_rows:,} to {rows:,} rows: if its keys have no end, let values expire (ttl=), or "
            f"clear them"
        )
