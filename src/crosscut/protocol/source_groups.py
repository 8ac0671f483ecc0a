"""Fast sources wait for slow ones: which splits are not read until others have come near. Pure decisions.

Sources that are read ahead of others fill windows and joins with what can't be finished yet. In a group of
them (the tasks of one source, or of several that share a name) a split waits while its watermark is more than
a limit above the lowest of the group.

Only splits count that are being read, whose watermark is known, and that are neither idle nor at their end.
So the lowest one never waits, and as long as it can be read or falls idle, the group goes on. What is known
of other tasks is older than what is known of one's own: it is lower, which makes nobody wait for ever, since
whoever has come further says so. It says so once: so a word that comes again after a newer one must not be
believed, and words are numbered.
"""

from __future__ import annotations

from collections.abc import Mapping

from crosscut.ids import Epoch, TaskId, VertexId, WorkerIndex
from crosscut.protocol.messages import AlignSources, SlowestSource, SourcesReached

PAUSE_MS = 200
"""The coordinator says how far groups are as often, at most: for P workers that is 5 P messages a second."""


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
        self._newest = 0

    def heard(self, task: TaskId, news: AlignSources) -> None:
        """The coordinator says how far groups are; `task` is the one that these splits belong to."""
        if news.number <= self._newest:
            return
        self._newest = news.number
        for one in news.groups:
            if one.group == self.group:
                self._others = one.next_watermark if one.task == task else one.watermark

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
        self._epoch = Epoch(0)
        self._heard: dict[WorkerIndex, int] = {}
        self._reached: dict[str, dict[TaskId, int]] = {}
        self._touched: dict[str, None] = {}
        self._said: dict[str, SlowestSource] = {}
        self._said_count = 0
        self._pauses = False

    def begin(self, epoch: Epoch) -> None:
        """An epoch begins: nothing is known of its tasks."""
        self._epoch = epoch
        self._heard.clear()
        self._reached.clear()
        self._touched.clear()
        self._said.clear()
        self._said_count = 0
        self._pauses = False

    @property
    def pause_ms(self) -> int:
        """For how long nothing is said now. Short at first: until tasks know of each other, none waits."""
        return min(PAUSE_MS, 1 << min(self._said_count, 8))

    def note(self, worker: WorkerIndex, said: SourcesReached) -> bool:
        """Note how far tasks of `worker` are; return whether that is newer than what it has said before."""
        if said.number <= self._heard.get(worker, 0):
            return False
        self._heard[worker] = said.number
        for one in said.tasks:
            group = self._groups.get(one.task.vertex)
            if group is None:
                continue
            self._touched[group] = None
            reached = self._reached.setdefault(group, {})
            if one.watermark is None:
                reached.pop(one.task, None)
            else:
                reached[one.task] = one.watermark
        return True

    def news(self) -> AlignSources | None:
        """Return what is to be said of groups now. After it nothing is, until `pause_ms` are over."""
        if self._pauses:
            return None
        found = (self._slowest(group) for group in self._touched)
        news = tuple(one for one in found if one != self._said.get(one.group))
        self._touched.clear()
        if not news:
            return None
        self._said |= {one.group: one for one in news}
        self._said_count += 1
        self._pauses = True
        return AlignSources(self._epoch, self._said_count, news)

    def pause_over(self) -> None:
        """So long nothing has been said."""
        self._pauses = False

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
