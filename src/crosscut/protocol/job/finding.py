"""Splits that are found while a job runs: when to look, who reads which, and what a checkpoint knows of it.

Each split has exactly one owner. None is lost between its discovery and the first checkpoint that has it,
none is read twice:

* What a source knows moves on in the step in which the splits it has found leave for their tasks. Links
  keep the order of messages: each task has them before it is asked for a checkpoint that is triggered later.
* They say since which checkpoint they count. A task that was asked for an older one before they came, and
  takes its snapshot after that, leaves them out. Until then it reads none of them: nothing runs between.
* The entry of a checkpoint holds what was known when it was triggered, and so neither more nor less than the
  positions in it. What was found later is found again by whoever restores it.

The source itself says what is new. An id that was assigned or restored in this epoch is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crosscut.errors import ProtocolError
from crosscut.ids import CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.interfaces import JSON
from crosscut.protocol.effects import CancelTimer, FindSplits, JobEffect, StartTimer
from crosscut.protocol.events import FindingFailed, SplitsFound, Timer
from crosscut.protocol.job.entries import CheckpointCompleted
from crosscut.protocol.job.roster import Roster
from crosscut.protocol.messages import AssignSplits, FailureCause, SplitAssignment
from crosscut.protocol.snapshots import KnownSplits, TaskSnapshot

_ID, _WEIGHT = 0, 3
"""Where they stand in the row of a split (as `SplitQueue.positions` has them)."""


@dataclass(slots=True)
class _Search:
    """One dynamic source.

    Attributes:
        number: Of its timers.
        known: What was known from which checkpoint on, oldest first; the last is what it is asked with.
        ids: Splits that were restored or assigned in this epoch.
        deployed: What each task had then, by weight.
        assigned: What each has been given since, with the checkpoint from which on it counts.
        is_asking: A call is under way, perhaps one of an older epoch.
        known_since: The first checkpoint that says what is known; None: the restored one does not, nor has
            the source since.
    """

    number: int
    every_ms: int
    known: list[tuple[CheckpointId, KnownSplits]]
    ids: set[str] = field(default_factory=set)
    deployed: list[int] = field(default_factory=list)
    assigned: list[tuple[CheckpointId, WorkerIndex, int]] = field(default_factory=list)
    is_asking: bool = False
    known_since: CheckpointId | None = CheckpointId(0)

    @property
    def newest(self) -> KnownSplits:
        return self.known[-1][1]


class SplitFinding:
    """The dynamic sources of a job.

    Args:
        sources: Each with the milliseconds between two calls.
        timeout_ms: How long one call may take.
        roster: Whom to tell.
        dropped: Counts stale and repeated input.
    """

    def __init__(
        self,
        sources: Iterable[tuple[VertexId, int]],
        timeout_ms: int,
        roster: Roster,
        dropped: Counter[str],
    ) -> None:
        self._timeout_ms = timeout_ms
        self._roster = roster
        self._epoch = Epoch(0)
        self._searches = {
            source: _Search(number, every_ms, [(CheckpointId(0), KnownSplits(source, None))])
            for number, (source, every_ms) in enumerate(sorted(sources))
        }
        self.dropped = dropped

    def begin(
        self,
        epoch: Epoch,
        restored: CheckpointCompleted | None,
        snapshots: Sequence[TaskSnapshot],
        splits: Sequence[SplitAssignment],
        parallelism: int,
    ) -> None:
        """Note that the tasks of `epoch` are being deployed.

        Args:
            restored: The checkpoint that they go back to.
            snapshots: Their shares of it.
            splits: What they start with if there is none.
        """
        self._epoch = epoch
        if restored is None:
            known = {one.task.vertex: one.known for one in splits if one.known is not None}
            rows = {one.task: one.splits for one in splits}
        else:
            known = {one.source: one for one in restored.known_splits}
            rows = {one.task: one.snapshot.positions for one in snapshots}
        for source, search in self._searches.items():
            mine = [_rows(rows.get(TaskId(source, index))) for index in range(parallelism)]
            search.known = [(CheckpointId(0), known.get(source, KnownSplits(source, None)))]
            search.known_since = CheckpointId(0) if restored is None or source in known else None
            search.ids = {row[_ID] for share in mine for row in share}
            search.deployed = list(map(_load, mine))
            search.assigned = []

    def started(self, *, is_restored: bool) -> list[JobEffect]:
        """Records flow: look for what has come meanwhile; tell those that there is nothing to look for."""
        effects: list[JobEffect] = []
        for source, search in self._searches.items():
            if search.newest.is_last:
                effects += self._tell(source, search, {}, CheckpointId(0))
            elif search.is_asking:
                # The answer to the epoch before has still to come.
                effects.append(self._timeout(search))
            elif is_restored:
                effects += self._ask(source, search)
            else:
                effects.append(self._later(search))
        return effects

    def due(self, timer: Timer) -> list[JobEffect]:
        """It is time to look again."""
        for source, search in self._searches.items():
            if search.number == timer.number and not search.is_asking and not search.newest.is_last:
                return self._ask(source, search)
        self.dropped["stale timer"] += 1
        return []

    def overdue(self, timer: Timer) -> FailureCause | None:
        """Return why the job has failed: a source that was asked has not answered, if that is so."""
        for source, search in self._searches.items():
            if search.number == timer.number and search.is_asking:
                return FailureCause(
                    "ConnectorError",
                    f"source {source!r} has not said within start_timeout={self._timeout_ms / 1000:g} s "
                    f"which splits have come; raise it if there is that much to list",
                )
        self.dropped["stale timer"] += 1
        return None

    def found(
        self,
        event: SplitsFound,
        next_id: CheckpointId,
        newest: CheckpointCompleted | None,
        *,
        is_running: bool,
    ) -> list[JobEffect]:
        """Give the splits that were found to tasks.

        Args:
            next_id: Of the checkpoint that is triggered next.
            newest: The newest completed one, of whatever epoch.

        Raises:
            ProtocolError: Nobody has asked.
        """
        source, search, is_stale = self._answered(event, is_running=is_running)
        if is_stale:
            return self._ask(source, search) if is_running else []
        rows = _rows(event.splits)
        new = {row[_ID]: row for row in rows if row[_ID] not in search.ids}
        if len(new) < len(rows):
            self.dropped["split that the job has already"] += 1
        loads = self._loads(source, search, newest)
        shares: dict[WorkerIndex, list[Any]] = {}
        for row in sorted(new.values(), key=lambda one: (-one[_WEIGHT], one[_ID])):
            index = WorkerIndex(loads.index(min(loads)))
            shares.setdefault(index, []).append(row)
            loads[index] += max(row[_WEIGHT], 1)
            search.assigned.append((next_id, index, max(row[_WEIGHT], 1)))
        search.ids |= new.keys()
        if search.known_since is None:
            search.known_since = next_id
        # Decision moment: from checkpoint `next_id` on these splits are theirs.
        search.known.append((next_id, KnownSplits(source, event.known, event.is_last)))
        effects: list[JobEffect] = [CancelTimer(Timer("find-timeout", self._epoch, search.number))]
        effects += self._tell(source, search, shares, next_id)
        return effects if event.is_last else [*effects, self._later(search)]

    def failed(
        self, event: FindingFailed, *, is_running: bool
    ) -> tuple[list[JobEffect], FailureCause | None]:
        """Take the word of a source that it can't say; return the cause, if that is a failure of the job.

        Raises:
            ProtocolError: Nobody has asked.
        """
        source, search, is_stale = self._answered(event, is_running=is_running)
        if is_stale:
            return (self._ask(source, search) if is_running else []), None
        return [CancelTimer(Timer("find-timeout", self._epoch, search.number))], event.cause

    def known_at(self, n: CheckpointId) -> tuple[KnownSplits, ...]:
        """Return what was known when checkpoint `n` of this epoch was triggered, as far as it was said."""
        return tuple(
            [known for since, known in search.known if since <= n][-1]
            for search in self._searches.values()
            if search.known_since is not None and search.known_since <= n
        )

    def completed(self, n: CheckpointId) -> None:
        """Forget what only older checkpoints than `n` need."""
        for search in self._searches.values():
            older = sum(since <= n for since, _ in search.known)
            del search.known[: older - 1]

    def _answered(
        self, event: SplitsFound | FindingFailed, *, is_running: bool
    ) -> tuple[VertexId, _Search, bool]:
        """Return whose answer it is, and whether it comes too late."""
        search = self._searches.get(event.source)
        if search is None or not search.is_asking:
            raise ProtocolError(f"splits of source {event.source!r} were found, unasked")
        search.is_asking = False
        is_stale = event.epoch != self._epoch or not is_running
        if is_stale:
            self.dropped["splits found for another epoch"] += 1
        return event.source, search, is_stale

    def _loads(self, source: VertexId, search: _Search, newest: CheckpointCompleted | None) -> list[int]:
        """Return what each task has to read, as far as is known: splits that have ended weigh nothing."""
        loads = list(search.deployed)
        if newest is not None and newest.epoch == self._epoch:
            for one in newest.snapshots:
                if one.task.vertex == source:
                    loads[one.task.index] = _load(_rows(one.snapshot.positions))
            n = newest.checkpoint_id
            search.assigned = [one for one in search.assigned if one[0] > n]
        for _, index, weight in search.assigned:
            loads[index] += weight
        return loads

    def _tell(
        self, source: VertexId, search: _Search, shares: Mapping[WorkerIndex, list[Any]], since: CheckpointId
    ) -> list[JobEffect]:
        is_last = search.newest.is_last
        told = range(len(search.deployed)) if is_last else sorted(shares)
        return [
            self._roster.to_holder(
                index,
                AssignSplits(self._epoch, TaskId(source, index), since, shares.get(index, []), is_last),
            )
            for index in map(WorkerIndex, told)
        ]

    def _ask(self, source: VertexId, search: _Search) -> list[JobEffect]:
        search.is_asking = True
        restored = frozenset(search.ids) if search.known_since is None else None
        return [FindSplits(self._epoch, source, search.newest.known, restored), self._timeout(search)]

    def _timeout(self, search: _Search) -> StartTimer:
        return StartTimer(Timer("find-timeout", self._epoch, search.number), self._timeout_ms)

    def _later(self, search: _Search) -> StartTimer:
        return StartTimer(Timer("find", self._epoch, search.number), search.every_ms)


def _rows(splits: JSON) -> list[Any]:
    return splits if isinstance(splits, list) else []


def _load(rows: Iterable[Any]) -> int:
    return sum(max(row[_WEIGHT], 1) for row in rows)
