"""How a job with bounded input finds out that it has come to its end, a loop at a time.

Chandy and Lamport's use for a snapshot: a stable property that holds on a consistent cut holds ever
after. Two are used, and both are read off what the tasks say of themselves on one cut, nothing else:

* *exhausted*, of a strongly connected component: no record is in it, and none can come to it any more.
  Every task that feeds it is drained, and every task of it is at rest. Then its back edges may end.
* *final*, of the job: every task is drained. Nothing is left anywhere.

A task is *drained* if it has had the end of all its inputs, has said all that it says then, and is at
rest; *at rest* if nothing of its own is still to come out: no record in a log of the snapshot, no open
buffer, no timer, no asynchronous call. "Every source is drained and no channel holds a record" is not
stable: an operator may still have its results to say, because the end of the input has not reached it.

`Ending` remembers what else must be known before a job may end: whose output is committed (the
coordinator's side of `crosscut.protocol.commit`), and what the invariants say of the last cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from crosscut.ids import CheckpointId, TaskId, VertexId
from crosscut.protocol.events import CutJudged
from crosscut.protocol.messages import CheckpointCompleted, FailureCause, TaskSnapshot

FIRST_LOOK_MS = 10
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
    """What is not still on a cut.

    Attributes:
        speaking: Vertices with a task that is not drained.
        restless: Vertices with a task that is not at rest.
    """

    speaking: frozenset[VertexId]
    restless: frozenset[VertexId]


def stillness(snapshots: Iterable[TaskSnapshot]) -> Stillness:
    """Return what is not still on the cut of `snapshots`, which are of all tasks."""
    speaking, restless = set(), set()
    for one in snapshots:
        if not one.snapshot.drained:
            speaking.add(one.task.vertex)
        if not one.snapshot.at_rest:
            restless.add(one.task.vertex)
    return Stillness(frozenset(speaking), frozenset(restless))


def is_exhausted(component: Component, shown: Stillness) -> bool:
    """Whether no record is in `component`, and none can come to it any more.

    What a task sends after its capture, it makes of a record that it takes after its capture. A drained
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


class Looks:
    """When to look again at a job whose sources are drained: a look costs a checkpoint.

    Nobody is told when the last record has been processed. So the pauses grow with what has been
    waited already, and a job that takes long is not bothered by checkpoints on end.

    Args:
        interval_ms: Between periodic checkpoints: the longest pause.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._pause_ms = 0
        self._closing = frozenset[VertexId]()

    def restart(self) -> None:
        """Nothing has been seen yet in this epoch."""
        self._pause_ms = 0
        self._closing = frozenset()

    def after(self, closing: tuple[VertexId, ...]) -> int:
        """Return how long to wait after a cut that is not final.

        Args:
            closing: The heads whose back edges end now; with a new one, it is worth looking soon.
        """
        if not self._closing.issuperset(closing):
            self._closing |= frozenset(closing)
            self._pause_ms = 0
        self._pause_ms = min(self._interval_ms, self._pause_ms * 2 or FIRST_LOOK_MS)
        return self._pause_ms


class Ending:
    """The newest checkpoint that each sink task has committed everything of, and the newest cut judged.

    Args:
        dropped: Where to count what is dropped.
        awaits_verdict: An invariant may end the job as failed, so the final cut must be judged first.
    """

    def __init__(self, sinks: frozenset[TaskId], dropped: Counter[str], *, awaits_verdict: bool) -> None:
        self._sinks = sinks
        self._awaits_verdict = awaits_verdict
        self._committed: dict[TaskId, CheckpointId] = {}
        self._judged = CheckpointId(0)
        self.dropped = dropped

    def committed(self, task: TaskId, n: CheckpointId) -> None:
        """Note that `task` has committed everything at or below n."""
        self._committed[task] = max(self._committed.get(task, CheckpointId(0)), n)

    def restored(self, n: CheckpointId) -> None:
        """Note that every task was restored to n: that replays the commits of n."""
        self._committed = dict.fromkeys(sorted(self._sinks), n)

    def judged(self, event: CutJudged, *, is_final: bool) -> FailureCause | None:
        """Note a verdict; return why the job has to end, if it has to.

        Args:
            is_final: There will be no other cut.
        """
        n = event.checkpoint_id
        if n <= self._judged:
            self.dropped["repeated verdict"] += 1
            return None
        self._judged = n
        broken = next((one for one in event.broken if one.stop), None)
        if broken is not None:
            message = f"invariant {broken.name!r} is broken on the cut of checkpoint {n}: {broken.message}"
            return FailureCause("InvariantBroken", message)
        if is_final and event.unjudged:
            return _not_judged(n, f"{', '.join(map(repr, event.unjudged))} could not be evaluated on it")
        return None

    def is_committed(self, n: CheckpointId) -> bool:
        """Whether everything at or below n is known to be committed."""
        return all(self._committed.get(task, 0) >= n for task in self._sinks)

    def is_finished(self, n: CheckpointId) -> bool:
        """Whether nothing stands between the final checkpoint n and the end of the job."""
        return self.is_committed(n) and not self.is_unjudged(n)

    def is_unjudged(self, n: CheckpointId) -> bool:
        """Whether everything is committed, and only the verdict on the final checkpoint n is missing."""
        return self._awaits_verdict and self._judged < n and self.is_committed(n)

    def uncommitted(self, n: CheckpointId, why: str = "") -> FailureCause | None:
        """Return what a job that stops now, because of `why`, has to say of the output of n, if anything."""
        if self.is_committed(n):
            return None
        return FailureCause(
            "Uncommitted",
            f"checkpoint {n} is complete, but not all of its output is known to be committed"
            f"{f' ({why})' if why else ''}; the next start commits it",
        )

    def without_last(
        self, newest: CheckpointId | None, perhaps: CheckpointId | None, cause: FailureCause
    ) -> FailureCause:
        """Return what a job says that stops without a last checkpoint, because of `cause`.

        Args:
            newest: The newest completed checkpoint.
            perhaps: One whose entry may be in the log, or not.
        """
        where = "begins from the beginning" if newest is None else f"goes on from checkpoint {newest}"
        if newest is not None and not self.is_committed(newest):
            where += ", and commits what is not known to be committed of its output"
        if perhaps is not None:
            where += f"; or it goes on from checkpoint {perhaps}, if the job log holds that after all"
        message = f"no last checkpoint was taken: {cause.message}; the next start {where}"
        return replace(cause, kind="NoLastCheckpoint", message=message)

    def overdue(self, n: CheckpointId, timeout_ms: int) -> FailureCause:
        """Return why the job, which has not finished within `timeout_ms`, has not."""
        if self.is_unjudged(n):
            return _not_judged(n, f"its invariants were not evaluated within {timeout_ms / 1000:g} s")
        what = "the output of the final checkpoint was not committed"
        return FailureCause("Timeout", f"{what} within {timeout_ms / 1000:g} s")


def _not_judged(n: CheckpointId, why: str) -> FailureCause:
    return FailureCause(
        "InvariantNotJudged",
        f"nothing can be said of the cut of the final checkpoint {n}: {why}. All output is committed; start "
        f"the job again to have the cut judged again, with a predicate that returns sooner, or a longer "
        f"checkpoint_timeout",
    )
