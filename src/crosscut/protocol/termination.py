"""How a job with bounded input finds out that it has come to its end.

Chandy and Lamport's use for a snapshot: a stable property that holds on a consistent cut holds ever
after. "Every source is drained and no channel holds a record" is one, "nothing is left anywhere" is
another; the second is what `crosscut.protocol.checkpoints` calls final. What sources say outside a cut
starts a checkpoint and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from crosscut.protocol.checkpoints import Completion

LOOP_WATCH_MS = 250
"""Between the checkpoints that watch a loop run empty, once all sources are drained."""


class Termination(Enum):
    """How near a job is to the end of its input."""

    OPEN = "a source may have more"
    DRAINED = "every source has been read to its end; records may still be on their way"
    QUIET = "a cut has shown every loop to be empty, for good; their back edges have ended"
    FINAL = "a cut has shown that nothing is left anywhere: the checkpoint is the final one"


def termination(*, is_final: bool, is_drained: bool, are_loops_closed: bool) -> Termination:
    """Return how near the end a job is, of which so much is known."""
    if is_final:
        return Termination.FINAL
    if not is_drained:
        return Termination.OPEN
    return Termination.QUIET if are_loops_closed else Termination.DRAINED


@dataclass(frozen=True, slots=True)
class CheckAgain:
    """Take another checkpoint at once: it may be the final one."""


@dataclass(frozen=True, slots=True)
class EndLoops:
    """Every loop is empty, for good: have their back edges end, then check again."""


@dataclass(frozen=True, slots=True)
class WatchLoops:
    """Records still go round: look again after `delay_ms`."""

    delay_ms: int


def after_drain(
    shown: Completion, *, has_open_loops: bool, interval_ms: int
) -> CheckAgain | EndLoops | WatchLoops:
    """Decide what follows a completed checkpoint that is not final, once every source is drained.

    Args:
        shown: What its cut shows.
        has_open_loops: Whether the graph has back edges that have not ended.
        interval_ms: Between periodic checkpoints.
    """
    if not has_open_loops or not shown.is_after_drain:
        return CheckAgain()
    if shown.is_quiet:
        # The stable property, once more: a loop that is empty on a cut, with no source left to feed
        # it, is empty for ever.
        return EndLoops()
    return WatchLoops(min(interval_ms, LOOP_WATCH_MS))
