"""What the newest batches have come to: for people, and for the decision on what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosscut.foundation.ids import CheckpointId, TaskId
from crosscut.graph.specs import JobGraph
from crosscut.host.clock import Clock
from crosscut.monitoring.query_progress import BatchTimes, QueryIds, progress_of
from crosscut.protocol.microbatch.attempts import Attempt
from crosscut.protocol.microbatch.engine_switch import BatchVisible, SourceRead, waiting
from crosscut.protocol.snapshots import Snapshot

Snapshots = Mapping[TaskId, Snapshot]


class NewestBatch:
    """The batch that runs, and the one whose output became visible last.

    Args:
        sources: The source tasks.

    Attributes:
        visible: How far behind the job was when output became visible last; None: none has.
    """

    def __init__(self, graph: JobGraph, sources: Sequence[TaskId], clock: Clock) -> None:
        self._clock = clock
        self._graph = graph
        self._sources = frozenset(sources)
        self._started_ns = self._returned_ns = self._completed_ns = 0
        self._before_ns: int | None = None
        self._started_at = ""
        self._taken: tuple[Attempt, ...] = ()
        self.visible: BatchVisible | None = None

    @property
    def is_full(self) -> bool:
        """Whether the newest batch that is complete could hold no more."""
        return any(one.is_full for one in self._taken)

    def started(self) -> None:
        """The first run of a batch begins."""
        self._before_ns = self._started_ns or None
        self._started_ns = self._clock.monotonic_ns()
        self._started_at = self._clock.now().isoformat()

    def returned(self) -> None:
        """Its attempts have been taken."""
        self._returned_ns = self._clock.monotonic_ns()

    def completed(self, taken: tuple[Attempt, ...]) -> None:
        """Its entry is durable."""
        self._completed_ns = self._clock.monotonic_ns()
        self._taken = taken

    def committed(
        self, n: CheckpointId, ids: QueryIds, before: Snapshots, after: Snapshots
    ) -> dict[str, Any]:
        """Note that its output is visible; return what it came to, in the shape of `progress_of`.

        Args:
            before: What it began with.
            after: What it has led to.
        """
        read = [
            SourceRead(one.lag, attempt.is_full)
            for attempt in self._taken
            for one in attempt.statistics
            if one.task in self._sources
        ]
        is_drained = all(after[task].drained for task in self._sources)
        self.visible = BatchVisible(n, waiting(read), is_drained)
        times = BatchTimes(
            None if self._before_ns is None else self._started_ns - self._before_ns,
            self._started_ns,
            self._returned_ns,
            self._completed_ns,
            self._clock.monotonic_ns(),
        )
        return progress_of(self._graph, ids, n, before, after, times, self._started_at)
