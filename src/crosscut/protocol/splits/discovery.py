"""Splits that are found while a job runs: when to look, who reads which, and what a checkpoint knows of it.

Each split has exactly one owner. None is lost between its discovery and the first checkpoint that has it,
none is read twice:

* What a source knows moves on in the step in which the splits it has found leave for their tasks. Links
  keep the order of messages: each task has them before it is asked for a checkpoint that is triggered later.
* They say since which checkpoint they count. A task that was asked for an older one before they came, and
  takes its snapshot after that, leaves them out. Until then it reads none of them: nothing runs between.
* The entry of a checkpoint holds what was known when it was triggered, and so neither more nor less than the
  positions in it. What was found later is found again after a restore.

The source itself says what is new. An id that was assigned or restored in this epoch is dropped; of splits
that have ended only the newest ids are remembered.

What is not read yet is part of each checkpoint and of the messages that deploy tasks, so there is a bound: a
source that has said enough is asked again when newer checkpoints have less of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, assert_never

from crosscut.contracts.connectors import JSON
from crosscut.errors import ProtocolError
from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId, WorkerIndex
from crosscut.protocol.effects import CancelTimer, FindSplits, JobEffect, StartTimer
from crosscut.protocol.events import DiscoveryFailed, SplitsFound, Timer, TimerFired
from crosscut.protocol.job.phases import JobState, Phase
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.messages import AssignSplits, FailureCause, SplitAssignment
from crosscut.protocol.snapshots import KnownSplits, TaskSnapshot

_ID, _WEIGHT = 0, 3
"""Where they stand in the row of a split (as `SplitQueue.positions` has them)."""

UNREAD_BYTES_MAX = 8 << 20
"""Of all splits of a source that have not ended, in a checkpoint: with more it is not asked for others.

Together with one answer more, which may be as large as a message, they fit into the message that deploys a
single worker. A rescaled job may have no more than that one."""

ENDED_IDS_MAX = 10_000
"""Splits that have ended whose ids are remembered; a source that goes by what it knows never repeats one."""


@dataclass(frozen=True, slots=True)
class DiscoveryState:
    """How the search for splits of a source stands.

    Attributes:
        call: The number of the call that is under way; 0: none is.
        unread_count: Splits that the newest checkpoint has, and those that have come since.
        unread_bytes: What they take in it.
        is_held: The source is not asked, since that is too much.
        is_coming: Others are on their way, by the newest answer of this epoch; or there was none yet, since
            the checkpoint has so much that the source was not asked.
    """

    source: VertexId
    call: int
    unread_count: int
    unread_bytes: int
    is_held: bool
    is_coming: bool = False


@dataclass(frozen=True, slots=True)
class _Share:
    """Splits of one task: how many, what they weigh, and what they take in a checkpoint."""

    count: int = 0
    weight: int = 0
    size_bytes: int = 0

    def __add__(self, other: _Share) -> _Share:
        return _Share(
            self.count + other.count, self.weight + other.weight, self.size_bytes + other.size_bytes
        )


@dataclass(slots=True)
class _Search:
    """One dynamic source.

    Attributes:
        number: Of its timers.
        known: What was known from which checkpoint on, oldest first; the last is what it is asked with.
        ids: Splits that were restored or assigned in this epoch, with the checkpoint since which they count.
        learned: The newest checkpoint that was looked at; 0: the one that was restored, or none.
        shares: What each task had then.
        assigned: What each has been given since, by the checkpoint from which on it counts.
        is_asking: A call is under way, perhaps one of an older epoch.
        calls: How many there were.
        is_coming: See `DiscoveryState`.
        known_since: The first checkpoint that says what is known; None: the restored one does not, nor has
            the source since.
    """

    number: int
    every_ms: int
    known: list[tuple[CheckpointId, KnownSplits]]
    ids: dict[str, CheckpointId] = field(default_factory=dict)
    learned: CheckpointId = CheckpointId(0)
    shares: list[_Share] = field(default_factory=list)
    assigned: dict[tuple[CheckpointId, WorkerIndex], _Share] = field(default_factory=dict)
    is_asking: bool = False
    calls: int = 0
    is_coming: bool = False
    known_since: CheckpointId | None = CheckpointId(0)

    @property
    def newest(self) -> KnownSplits:
        return self.known[-1][1]

    @property
    def unread(self) -> _Share:
        return sum((*self.shares, *self.assigned.values()), _Share())


class SplitDiscovery:
    """The dynamic sources of a job.

    Args:
        sources: Each with the milliseconds between two calls.
        timeout_ms: How long one call may take.
        job: Where the job is.
        registry: The workers.
        dropped: Counts stale and repeated input.
        is_bounded: Checkpoints tell what has been read. Without them all that is found is taken.
    """

    def __init__(
        self,
        sources: Iterable[tuple[VertexId, int]],
        timeout_ms: int,
        job: JobState,
        registry: WorkerRegistry,
        dropped: Counter[str],
        *,
        is_bounded: bool = True,
    ) -> None:
        self._is_bounded = is_bounded
        self._timeout_ms = timeout_ms
        self._job = job
        self._registry = registry
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
            coming = {one.task.vertex for one in splits if one.is_coming}
        else:
            known = {one.source: one for one in restored.known_splits}
            rows = {one.task: one.snapshot.positions for one in snapshots}
            coming = set()
        for source, search in self._searches.items():
            mine = [_rows(rows.get(TaskId(source, index))) for index in range(parallelism)]
            # Checkpoints of an older release say it by what was read.
            has_found = any(mine) or any(
                one.task.vertex == source and one.snapshot.records_in for one in snapshots
            )
            first = known.get(source, KnownSplits(source, None))
            first = replace(first, has_found=first.has_found or has_found)
            search.known = [(CheckpointId(0), first)]
            search.known_since = CheckpointId(0) if restored is None or source in known else None
            search.ids = {row[_ID]: CheckpointId(0) for share in mine for row in share}
            search.learned = CheckpointId(0)
            search.shares = list(map(_share, mine))
            search.assigned = {}
            # With a checkpoint sources are asked at once, but for those that have enough: of these it is
            # unknown until they are asked.
            is_held = restored is not None and not search.newest.is_last and self._is_enough(search)
            search.is_coming = source in coming or is_held

    @property
    def searches(self) -> tuple[DiscoveryState, ...]:
        """How the search for splits of each source stands."""
        return tuple(
            DiscoveryState(
                source,
                search.calls if search.is_asking else 0,
                unread.count,
                unread.size_bytes,
                not search.is_asking and not search.newest.is_last and self._is_enough(search),
                search.is_coming,
            )
            for source, search in self._searches.items()
            for unread in (search.unread,)
        )

    def started(self, *, is_restored: bool) -> list[JobEffect]:
        """Records flow: look for what has come meanwhile; tell those that there is nothing to look for."""
        effects: list[JobEffect] = []
        for source, search in self._searches.items():
            if search.newest.is_last or search.newest.has_found:
                effects += self._assign(source, search, {}, CheckpointId(0), to_all=True)
            if search.newest.is_last:
                continue
            if search.is_asking:
                # The answer to the epoch before has still to come.
                effects.append(self._timeout(search))
            elif is_restored:
                effects += self._ask_or_wait(source, search)
            else:
                effects.append(self._later(search))
        return effects

    def handle(
        self,
        event: SplitsFound | DiscoveryFailed | TimerFired,
        next_id: CheckpointId,
        newest: CheckpointCompleted | None,
    ) -> tuple[list[JobEffect], FailureCause | None]:
        """Take an answer of a source, or one of the timers; return the effects, and a failure of the job.

        Args:
            next_id: Of the checkpoint that is triggered next.
            newest: The newest completed one, of whatever epoch.

        Raises:
            ProtocolError: The source was not asked; nothing has changed.
        """
        match event:
            case SplitsFound():
                return self._found(event, next_id, newest), None
            case DiscoveryFailed():
                return self._failed(event)
            case TimerFired(timer) if not self._is_running:
                self.dropped["stale timer"] += 1
                return [], None
            case TimerFired(timer) if timer.kind == "find":
                return self._due(timer, newest), None
            case TimerFired(timer):
                return [], self._overdue(timer)
            case _:
                assert_never(event)

    @property
    def _is_running(self) -> bool:
        return self._job.phase is Phase.RUNNING

    def _due(self, timer: Timer, newest: CheckpointCompleted | None) -> list[JobEffect]:
        """Look again."""
        for source, search in self._searches.items():
            if search.number == timer.number and not search.is_asking and not search.newest.is_last:
                self._learn(source, search, newest)
                return self._ask_or_wait(source, search)
        self.dropped["stale timer"] += 1
        return []

    def _overdue(self, timer: Timer) -> FailureCause | None:
        """Return why the job has failed: a source that was asked has not answered, if that is so."""
        for source, search in self._searches.items():
            if search.number == timer.number and search.is_asking:
                return FailureCause(
                    "ConnectorError",
                    f"source {source!r} has not said within start_timeout={self._timeout_ms / 1000:g} s "
                    f"which splits have come; raise it if there is that much to list",
                    is_transient=True,
                )
        self.dropped["stale timer"] += 1
        return None

    def _found(
        self, event: SplitsFound, next_id: CheckpointId, newest: CheckpointCompleted | None
    ) -> list[JobEffect]:
        """Give the splits that were found to tasks."""
        source, search, is_stale = self._answered(event)
        if is_stale:
            return self._ask_or_wait(source, search) if self._is_running else []
        search.is_coming = event.is_coming
        rows = _rows(event.splits)
        new = {row[_ID]: row for row in rows if row[_ID] not in search.ids}
        if len(new) < len(rows):
            self.dropped["split that the job has already"] += 1
        self._learn(source, search, newest)
        loads = self._loads(search)
        given: dict[WorkerIndex, list[Any]] = {}
        for row in sorted(new.values(), key=lambda one: (-one[_WEIGHT], one[_ID])):
            index = WorkerIndex(loads.index(min(loads)))
            given.setdefault(index, []).append(row)
            loads[index] += max(row[_WEIGHT], 1)
        for index, share in given.items():
            before = search.assigned.get((next_id, index), _Share())
            search.assigned[next_id, index] = before + _share(share)
        search.ids |= dict.fromkeys(new, next_id)
        if search.known_since is None:
            search.known_since = next_id
        before_this = search.newest
        # Decision moment: from checkpoint `next_id` on these splits are theirs.
        if search.known[-1][0] == next_id:
            # No checkpoint was triggered since the last answer: none needs to know that one.
            search.known.pop()
        had_found = before_this.has_found
        has_found = had_found or bool(new)
        search.known.append((next_id, KnownSplits(source, event.known, event.is_last, has_found)))
        effects: list[JobEffect] = [CancelTimer(Timer("find-timeout", self._epoch, search.number))]
        is_news_to_all = event.is_last or has_found > had_found
        effects += self._assign(source, search, given, next_id, to_all=is_news_to_all)
        return effects if event.is_last else [*effects, self._later(search)]

    def _failed(self, event: DiscoveryFailed) -> tuple[list[JobEffect], FailureCause | None]:
        """Return the cause of a source that can't say, unless another epoch has asked it."""
        source, search, is_stale = self._answered(event)
        if is_stale:
            return (self._ask_or_wait(source, search) if self._is_running else []), None
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

    def _answered(self, event: SplitsFound | DiscoveryFailed) -> tuple[VertexId, _Search, bool]:
        """Return whose answer it is, and whether it comes too late."""
        search = self._searches.get(event.source)
        if search is None or not search.is_asking:
            raise ProtocolError(f"splits of source {event.source!r} were found, unasked")
        search.is_asking = False
        is_stale = event.epoch != self._epoch or not self._is_running
        if is_stale:
            self.dropped["splits found for another epoch"] += 1
        return event.source, search, is_stale

    def _learn(self, source: VertexId, search: _Search, newest: CheckpointCompleted | None) -> None:
        """Note what has been read to its end, as far as `newest` tells, if it is of this epoch."""
        if newest is None or newest.epoch != self._epoch or newest.checkpoint_id == search.learned:
            return
        n = search.learned = newest.checkpoint_id
        unread: set[str] = set()
        for one in newest.snapshots:
            if one.task.vertex == source:
                rows = _rows(one.snapshot.positions)
                search.shares[one.task.index] = _share(rows)
                unread.update(row[_ID] for row in rows)
        search.assigned = {
            (since, index): one for (since, index), one in search.assigned.items() if since > n
        }
        if search.known_since is None:
            # Its first answer is compared with all that were restored.
            return
        ended = [uid for uid, since in search.ids.items() if since <= n and uid not in unread]
        for split_id in ended[:-ENDED_IDS_MAX]:
            del search.ids[split_id]

    def _loads(self, search: _Search) -> list[int]:
        """Return what each task has to read, as far as is known: splits that have ended weigh nothing."""
        loads = [share.weight for share in search.shares]
        for (_, index), share in search.assigned.items():
            loads[index] += share.weight
        return loads

    def _is_enough(self, search: _Search) -> bool:
        return self._is_bounded and search.unread.size_bytes > UNREAD_BYTES_MAX

    def _assign(
        self,
        source: VertexId,
        search: _Search,
        given: Mapping[WorkerIndex, list[Any]],
        since: CheckpointId,
        *,
        to_all: bool,
    ) -> list[JobEffect]:
        """Give splits to tasks.

        Args:
            to_all: All are told: the first split was found, and tasks without one hold the watermark no
                more; or no others come.
        """
        is_last = search.newest.is_last
        indexes = range(len(search.shares)) if to_all else sorted(given)
        return [
            self._registry.to_holder(
                index,
                AssignSplits(self._epoch, TaskId(source, index), since, given.get(index, []), is_last),
            )
            for index in map(WorkerIndex, indexes)
        ]

    def _ask_or_wait(self, source: VertexId, search: _Search) -> list[JobEffect]:
        if self._is_enough(search):
            return [self._later(search)]
        search.is_asking = True
        search.calls += 1
        restored = frozenset(search.ids) if search.known_since is None else None
        return [FindSplits(self._epoch, source, search.newest.known, restored), self._timeout(search)]

    def _timeout(self, search: _Search) -> StartTimer:
        return StartTimer(Timer("find-timeout", self._epoch, search.number), self._timeout_ms)

    def _later(self, search: _Search) -> StartTimer:
        return StartTimer(Timer("find", self._epoch, search.number), search.every_ms)


def _rows(splits: JSON) -> list[Any]:
    return splits if isinstance(splits, list) else []


def _share(rows: Sequence[Any]) -> _Share:
    size_bytes = len(json.dumps(rows, separators=(",", ":"))) if rows else 0
    return _Share(len(rows), sum(max(row[_WEIGHT], 1) for row in rows), size_bytes)
