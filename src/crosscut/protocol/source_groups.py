"""Fast sources wait for slow ones: which splits are not read until others have come near. Pure decisions.

Sources that are read ahead of others fill windows and joins with what can't be finished yet. In a group of
them (the tasks of one source, or of several that share a name) a split waits while its watermark is more than
a limit above the lowest of the group.

Only splits count that are being read, whose watermark is known, and that are neither idle nor at their end.
So the lowest one never waits, and as long as it can be read or falls idle, the group goes on. What is known
of other tasks is older than what is known of one's own: it is lower, which makes nobody wait for ever, since
whoever has come further says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from crosscut.ids import TaskId, VertexId
from crosscut.protocol.messages import SlowestSource, SourceReached


class AlignedSplits:
    """The splits of one source task.

    Args:
        group: Its name.
        within_ms: How far a split may be ahead of the slowest one.
    """

    def __init__(self, group: str, within_ms: int) -> None:
        self.group = group
        self._within_ms = within_ms
        self._others: int | None = None

    def heard(self, task: TaskId, slowest: SlowestSource) -> None:
        """The coordinator says how far the group is; `task` is the one that these splits belong to."""
        is_mine = slowest.task == task
        self._others = slowest.next_watermark if is_mine else slowest.watermark

    def held(self, watermarks: Mapping[str, int]) -> frozenset[str]:
        """Return the splits that are not to be read now.

        Args:
            watermarks: Of the splits that count.
        """
        lowest = min(watermarks.values(), default=None)
        if lowest is None:
            return frozenset()
        limit = (lowest if self._others is None else min(lowest, self._others)) + self._within_ms
        return frozenset(split for split, watermark in watermarks.items() if watermark > limit)


class SourceGroups:
    """How far the groups of a job are, in one epoch; for the coordinator.

    Args:
        groups: The group of each source that is in one.
    """

    def __init__(self, groups: Mapping[VertexId, str]) -> None:
        self._groups = groups
        self._reached: dict[str, dict[TaskId, int]] = {}
        self._said: dict[str, SlowestSource] = {}

    def begin(self) -> None:
        """An epoch begins: nothing is known of its tasks."""
        self._reached.clear()
        self._said.clear()

    def note(self, tasks: Iterable[SourceReached]) -> tuple[SlowestSource, ...]:
        """Note how far tasks are; return what is news of their groups."""
        touched: dict[str, None] = {}
        for one in tasks:
            group = self._groups.get(one.task.vertex)
            if group is None:
                continue
            touched[group] = None
            reached = self._reached.setdefault(group, {})
            if one.watermark is None:
                reached.pop(one.task, None)
            else:
                reached[one.task] = one.watermark
        found = (self._slowest(group) for group in touched)
        news = tuple(one for one in found if one != self._said.get(one.group))
        self._said |= {one.group: one for one in news}
        return news

    def _slowest(self, group: str) -> SlowestSource:
        first, second = None, None
        for task, watermark in self._reached[group].items():
            if first is None or watermark < first[1]:
                first, second = (task, watermark), first
            elif second is None or watermark < second[1]:
                second = task, watermark
        if first is None:
            return SlowestSource(group)
        return SlowestSource(group, *first, second[1] if second is not None else None)
