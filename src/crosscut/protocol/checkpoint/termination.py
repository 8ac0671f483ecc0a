"""How a job with bounded input finds out that it has come to its end, a loop at a time.

Chandy and Lamport's use for a snapshot: a stable property that holds on a consistent cut holds ever
after. Two are used, and both are read off the tasks' own words on one cut, nothing else:

* *exhausted*, of a strongly connected component: no record is in it, and none can come to it any more.
  Every task that feeds it is drained, and every task of it is at rest. Then its back edges may end.
* *final*, of the job: every task is drained. Nothing is left anywhere.

A task is *drained* if it has had the end of all its inputs, has said all that it says then, and is at
rest; *at rest* if no record is on its way to it or in it: none in a log of the snapshot, and none of
`map_async` whose result has not gone on. (Timers and open windows are no matter: the end of input calls all
of them, and the compiler lets none into a loop.) "Every source is drained and no channel holds a record" is
not stable: an operator may still have its results to say, because the end of the input has not reached it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import VertexId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import TaskSnapshot

FIRST_PAUSE_MS = 10
"""Before the second look at a job whose sources are drained; each pause is twice the one before."""


class Termination(Enum):
    """How near a job is to the end of its input."""

    OPEN = "a source may have more"
    DRAINED = "every source has been read to its end; records may still be on their way"
    QUIET = "a cut has shown every loop to be exhausted; their back edges end, and final results come"
    FINAL = "a cut has shown that nothing is left anywhere: the checkpoint is the final one"


@dataclass(frozen=True, slots=True)
class Component:
    """A strongly connected component of the graph: loops that share a vertex, or a vertex in no loop.

    Attributes:
        members: Its vertices.
        feeders: The vertices outside of it that lead into it.
        heads: Where its back edges lead to, in order; none: it is a vertex in no loop.
    """

    members: frozenset[VertexId]
    feeders: frozenset[VertexId]
    heads: tuple[VertexId, ...] = ()


@dataclass(frozen=True, slots=True)
class Stillness:
    """The vertices that are not still on a cut.

    Attributes:
        speaking: Vertices with a task that is not drained.
        restless: Vertices with a task that is not at rest.
    """

    speaking: frozenset[VertexId]
    restless: frozenset[VertexId]


def stillness(snapshots: Iterable[TaskSnapshot]) -> Stillness:
    """Return the vertices that are not still on the cut of `snapshots`, which are of all tasks."""
    speaking, restless = set(), set()
    for one in snapshots:
        if not one.snapshot.drained:
            speaking.add(one.task.vertex)
        if not one.snapshot.at_rest:
            restless.add(one.task.vertex)
    return Stillness(frozenset(speaking), frozenset(restless))


def is_exhausted(component: Component, shown: Stillness) -> bool:
    """Whether no record is in `component`, and none can come to it any more.

    A task makes each record that it sends after its capture of one that it takes after its capture. A drained
    feeder sends none. So the first such record within the component had been sent before its sender's
    capture and was not processed before its receiver's: it is in one of their logs, and they are not
    at rest. Ends of input that are on their way make no record of a member: none of them has had the end
    of its back edges, or of inputs that come from there.
    """
    return not (component.feeders & shown.speaking or component.members & shown.restless)


def heads_to_close(loops: Iterable[Component], shown: Stillness) -> tuple[VertexId, ...]:
    """Return where the back edges of exhausted loops lead to, of those that have not all ended.

    It is derived from each cut anew: a word that was lost is said again, and a new epoch, whose back
    edges are open whatever the cut that it was restored from, finds out for itself.
    """
    return tuple(
        head
        for loop in loops
        if loop.members & shown.speaking and is_exhausted(loop, shown)
        for head in loop.heads
    )


def termination(
    completed: CheckpointCompleted | None, loops: Iterable[Component], *, is_drained: bool
) -> Termination:
    """Return how near the end a job is.

    Args:
        completed: The newest completed checkpoint.
        is_drained: Whether every source says that it is drained.
    """
    if completed is not None and completed.is_final:
        return Termination.FINAL
    if not is_drained:
        return Termination.OPEN
    loops = tuple(loops)
    if completed is not None and loops:
        shown = stillness(completed.snapshots)
        if all(is_exhausted(loop, shown) for loop in loops):
            return Termination.QUIET
    return Termination.DRAINED


class DrainBackoff:
    """When to take another checkpoint of a job whose sources are drained, to see whether it is at its end.

    No task reports that the last record has been processed. So the pauses grow with the time waited, and a
    job that takes long is not slowed down by checkpoints.

    Args:
        interval_ms: Between periodic checkpoints: the longest pause.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._pause_ms = 0
        self._closing = frozenset[VertexId]()

    def restart(self) -> None:
        """Note that an epoch begins."""
        self._pause_ms = 0
        self._closing = frozenset()

    def next_ms(self, closing: tuple[VertexId, ...]) -> int:
        """Return how long to wait after a cut that is not final.

        Args:
            closing: The heads whose back edges end now; with a new one, the end may be near.
        """
        if not self._closing.issuperset(closing):
            self._closing |= frozenset(closing)
            self._pause_ms = 0
        self._pause_ms = min(self._interval_ms, self._pause_ms * 2 or FIRST_PAUSE_MS)
        return self._pause_ms
