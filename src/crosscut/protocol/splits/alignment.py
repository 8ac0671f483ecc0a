"""Fast sources wait for slow ones: which splits are not read until others have come near. Pure decisions.

Sources that are read ahead of others fill windows and joins with what can't be finished yet. In a group of
them (the tasks of one source, or of several that share a name) a split waits while its watermark is more than
a limit above the lowest of the group.

Only splits count that are being read, whose watermark is known, and that are neither idle nor at their end.
So the lowest one never waits, and as long as it can be read or falls idle, the group goes on. What is known
of other tasks is older than what is known of one's own: it is lower, which makes no task wait for ever, since
a task that has come further says so. It says so once: a word that comes again after a newer one must not
be believed, so words are numbered.

The sources of a join wait for each other without being asked to (`JoinedSplits`). There whole sources are
compared, not splits: records of one source that are far apart are the user's choice. And a source counts only
while it has always had something to read: one that has caught up with what there is is not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping

from crosscut.foundation.ids import Epoch, TaskId, VertexId, WorkerIndex
from crosscut.protocol.messages import AlignSources, SlowestSource, SourcesReached

PAUSE_MS = 200
"""The coordinator says how far groups are as often, at most: for P workers that is 5 P messages a second."""


class AlignedSplits:
    """The splits of one source task.

    Args:
        group: Its name.
        within_ms: How far a split may be ahead of the slowest one.
    """

    only_counts_busy = False
    """Whether a split counts only while it has something to read each time it is asked."""

    def __init__(self, group: str, within_ms: int) -> None:
        self.group = group
        self._within_ms = within_ms
        self._others: int | None = None
        self._newest = 0

    def apply(self, task: TaskId, news: AlignSources) -> None:
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


LEAD_NEWS = 5
"""A source of a join may be ahead of the slowest by what that one makes in the time of so many words: about a
second. A lead fixed in event time would stop a source that makes days of it in a second at each word."""


def joined_name(group: str, vertex: VertexId) -> str:
    """Return what the news of one source of a join is called."""
    return f"{group}: {vertex}"


class JoinedSplits(AlignedSplits):
    """The splits of one task of a source that is joined with others: all of them wait, or none does.

    Args:
        within_ms: How far the join reaches: so far ahead its partners are needed at once.
    """

    def __init__(self, group: str, vertex: VertexId, within_ms: int) -> None:
        super().__init__(joined_name(group, vertex), within_ms)
        self._own: int | None = None
        self._lead_ms = 0

    only_counts_busy = True

    def apply(self, task: TaskId, news: AlignSources) -> None:
        if news.number <= self._newest:
            return
        self._newest = news.number
        for one in news.groups:
            if one.group != self.group:
                continue
            before, self._own, self._others = self._others, one.watermark, one.next_watermark
            if before is not None and self._others is not None:
                made_ms = max(0, self._others - before)
                self._lead_ms = max(LEAD_NEWS * made_ms, self._lead_ms // 2)

    def held(self, watermarks: Mapping[str, int]) -> frozenset[str]:
        if self._own is None or self._others is None:
            return frozenset()
        if self._own <= self._others + max(self._within_ms, self._lead_ms):
            return frozenset()
        return frozenset(watermarks)


class SourceGroups:
    """How far the groups of a job are, in one epoch; for the coordinator.

    Args:
        groups: The group of each source that is in one.
        joined: The same for each source that is joined with others.
    """

    def __init__(self, groups: Mapping[VertexId, str], joined: Mapping[VertexId, str] | None = None) -> None:
        self._joined = frozenset((joined or {}).values())
        self._groups = {**groups, **(joined or {})}
        self._epoch = Epoch(0)
        self._newest_numbers: dict[WorkerIndex, int] = {}
        self._reached: dict[str, dict[TaskId, int]] = {}
        self._touched: dict[str, None] = {}
        self._announced: dict[str, SlowestSource] = {}
        self._announced_count = 0
        self._pauses = False

    def begin(self, epoch: Epoch) -> None:
        """An epoch begins: nothing is known of its tasks."""
        self._epoch = epoch
        self._newest_numbers.clear()
        self._reached.clear()
        self._touched.clear()
        self._announced.clear()
        self._announced_count = 0
        self._pauses = False

    @property
    def pause_ms(self) -> int:
        """For how long nothing is said now. Short at first: until tasks know of each other, none waits."""
        return min(PAUSE_MS, 1 << min(self._announced_count, 8))

    def note(self, worker: WorkerIndex, report: SourcesReached) -> bool:
        """Note how far tasks of `worker` are; return whether that is newer than its previous report."""
        if report.number <= self._newest_numbers.get(worker, 0):
            return False
        self._newest_numbers[worker] = report.number
        for one in report.tasks:
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
        found = (one for group in self._touched for one in self._found(group))
        news = tuple(one for one in found if one != self._announced.get(one.group))
        self._touched.clear()
        if not news:
            return None
        self._announced |= {one.group: one for one in news}
        self._announced_count += 1
        self._pauses = True
        return AlignSources(self._epoch, self._announced_count, news)

    def pause_over(self) -> None:
        """So long nothing has been said."""
        self._pauses = False

    def _found(self, group: str) -> list[SlowestSource]:
        return self._sides(group) if group in self._joined else [self._slowest(group)]

    def _sides(self, group: str) -> list[SlowestSource]:
        """Return for each source of a join where it is, and where the slowest of the others is."""
        slowest: dict[VertexId, tuple[int, TaskId]] = {}
        for task, watermark in self._reached[group].items():
            here = watermark, task
            slowest[task.vertex] = min(here, slowest.get(task.vertex, here))
        found = []
        for vertex in sorted(one for one, name in self._groups.items() if name == group):
            name = joined_name(group, vertex)
            others = min((at for one, (at, _) in slowest.items() if one != vertex), default=None)
            if vertex in slowest:
                watermark, task = slowest[vertex]
                found.append(SlowestSource(name, task, watermark, others))
            else:
                found.append(SlowestSource(name, next_watermark=others))
        return found

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
