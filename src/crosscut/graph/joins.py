"""Joins of two keyed streams, as plain data. Input 0 is the stream whose method was called, on the left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crosscut.contracts.windows import Window

LEFT, RIGHT = 0, 1
How = Literal["inner", "left", "right", "outer"]
"""Which records are sent without a partner as well: none, those of the left, of the right, of both."""
LatestHow = Literal["inner", "left"]


@dataclass(frozen=True, slots=True)
class IntervalJoinSpec:
    """Joins a record at t with those of the right from `t + lower_ms` to `t + upper_ms`, both included.

    Attributes:
        late: The side output for records older than the watermark; None: they are counted and dropped.
    """

    lower_ms: int
    upper_ms: int
    how: How
    late: str | None = None

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        """What the state depends on: another join can't go on from it."""
        return (("records", f"{self.how} join from {self.lower_ms} to {self.upper_ms} ms"),)


@dataclass(frozen=True, slots=True)
class WindowJoinSpec:
    """Joins the records that are in the same window; `late` as in `WindowSpec`."""

    window: Window
    how: How
    lateness_ms: int = 0
    late: str | None = None

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        """As in `IntervalJoinSpec`."""
        return (("windows", f"{self.window}: {self.how} join"),)


@dataclass(frozen=True, slots=True)
class LatestJoinSpec:
    """Joins a record of the left with the latest one of the right."""

    how: LatestHow
    late: str | None = None

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        """As in `IntervalJoinSpec`."""
        return (("versions", f"{self.how} join with the latest"),)


def keeps_left(how: How) -> bool:
    """Whether records of the left without a partner are sent."""
    return how in ("left", "outer")


def keeps_right(how: How) -> bool:
    """Whether records of the right without a partner are sent."""
    return how in ("right", "outer")
