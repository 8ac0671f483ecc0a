"""Watermarks that never move, though records come: then no window closes and no timer of event time fires.

Mostly a split or a channel gives nothing, and everybody waits for it: people must be told which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crosscut.foundation.ids import TaskId
from crosscut.protocol.messages import TaskStatistics

STILL_S = 30.0
"""How long a watermark stands still while records come before that is said."""


@dataclass(frozen=True, slots=True)
class StillWatermark:
    """The watermark of a task has stood still for `seconds`, while records came.

    Attributes:
        watermark: In milliseconds since 1970; None: there is none.
        held_up_by: The split, or the task before it, that everybody waits for.
    """

    task: TaskId
    watermark: int | None
    held_up_by: str
    seconds: float


@dataclass(slots=True)
class _Known:
    watermark: int | None
    since_ns: int
    records_in: int
    held_up_by: str
    has_come: bool = False
    is_warned: bool = False


class StillWatermarks:
    """Since when which watermarks have not moved, by the clock of the driver."""

    def __init__(self) -> None:
        self._known: dict[TaskId, _Known] = {}

    def note(self, now_ns: int, tasks: Iterable[TaskStatistics]) -> list[str]:
        """Note a worker's word on its tasks; return lines for people, once for each standstill."""
        texts = []
        for one in tasks:
            if not one.held_up_by:
                self._known.pop(one.task, None)
                continue
            known = self._known.get(one.task)
            if known is None or known.watermark != one.watermark or one.records_in < known.records_in:
                self._known[one.task] = _Known(one.watermark, now_ns, one.records_in, one.held_up_by)
                continue
            known.has_come = known.has_come or one.records_in > known.records_in
            known.held_up_by = one.held_up_by
            if self._is_still(known, now_ns) and not known.is_warned:
                known.is_warned = True
                if self._is_task_still(one.held_up_by, now_ns):
                    # The input that holds that one up is the cause, and is reported.
                    continue
                texts.append(
                    f"the watermark of {one.task} has not moved for {(now_ns - known.since_ns) / 1e9:.0f} s "
                    f"though records came (it is {one.watermark}): {one.held_up_by} holds it up, so no "
                    f"window closes and no timer fires; if nothing comes from there for long, say so: "
                    f"assign_timestamps(..., idle_after='30s')"
                )
        return texts

    def status(self, now_ns: int) -> tuple[StillWatermark, ...]:
        """Return those that have stood still for long enough to be mentioned."""
        return tuple(
            StillWatermark(task, one.watermark, one.held_up_by, round((now_ns - one.since_ns) / 1e9, 1))
            for task, one in sorted(self._known.items())
            if self._is_still(one, now_ns)
        )

    def _is_task_still(self, name: str, now_ns: int) -> bool:
        return any(str(task) == name and self._is_still(one, now_ns) for task, one in self._known.items())

    def _is_still(self, known: _Known, now_ns: int) -> bool:
        return known.has_come and now_ns - known.since_ns >= STILL_S * 1e9
