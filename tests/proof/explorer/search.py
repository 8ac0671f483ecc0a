"""Breadth first over all states of a world: the first violation found is one of the shortest."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.proof.explorer.items import Violation
from tests.proof.explorer.reduction import Unreducible
from tests.proof.explorer.world import World

from crosscut.errors import ProtocolError

REPORT_EVERY = 5_000
"""States between two words about how far the search has come."""


class Searched(Protocol):
    """A world that can be searched. Its states are hashable, and equal only if what can follow is."""

    @property
    def is_reduced(self) -> bool:
        """Whether steps that commute are taken in one order only."""

    def first(self) -> Any:
        """Return the state in which everything begins."""

    def successors(self, state: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return what can happen in `state`, and the state after each of these steps.

        Raises:
            Violation: Something that must hold doesn't, in `state` or after a step.
        """

    def is_finished(self, state: Any) -> bool:
        """Whether `state` is the end."""


@dataclass
class Found:
    """What a search has found.

    Attributes:
        frontier: States that have been reached and not been visited yet.
        seconds: Of processor time.
        violation: What broke, or "".
        path: The states up to the one in which it broke, if it did.
        steps: What happened between them.
        is_complete: Every reachable state within the bounds was visited, or one that differs from it only
            in the order of steps that commute.
        is_reduced: Only the latter.
        finished: How many of the states are the end of the job.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    frontier: int = 0
    finished: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    is_reduced: bool = False
    violation: str = ""
    path: list[Any] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)

    @property
    def transitions_per_second(self) -> float:
        return self.transitions / max(self.seconds, 1e-9)


def explore(
    world: Searched,
    states_max: int = 10_000_000,
    *,
    progress: Callable[[Found], bool] | None = None,
    visit: Callable[[Any], None] | None = None,
) -> Found:
    """Visit every state of `world`, nearest first, until something breaks.

    Nothing ever goes back to where it was (positions, ids, epochs and budgets only grow or shrink), so a
    world without a stuck state ends whatever happens: termination needs no search of its own.

    Args:
        states_max: Stop when so many states have been reached.
        progress: Called now and then; the search stops if it returns False.
        visit: Called with each state that is visited.
    """
    # States are tuples of numbers, without a cycle: there is nothing for the collector to find.
    gc.disable()
    try:
        return _explored(world, states_max, progress, visit)
    except Unreducible:
        if not isinstance(world, World):
            raise
        whole = World(world.graph, world.kind, world.bounds, world.make, is_reduced=False)
        world.__dict__.update(whole.__dict__)
        return _explored(world, states_max, progress, visit)
    finally:
        gc.enable()


def _explored(
    world: Searched,
    states_max: int,
    progress: Callable[[Found], bool] | None,
    visit: Callable[[Any], None] | None,
) -> Found:
    began = time.process_time()
    found = Found(is_reduced=world.is_reduced)
    first = world.first()
    seen = {first}
    order = [first]
    parents = array("q", [-1])
    successors, is_finished = world.successors, world.is_finished
    at = level_end = 0
    next_report = REPORT_EVERY

    def note() -> None:
        found.states, found.frontier = len(order), len(order) - at
        found.seconds = time.process_time() - began

    while at < len(order) < states_max:
        if at > level_end:
            found.depth += 1
            level_end = len(order) - 1
        state = order[at]
        if visit is not None:
            visit(state)
        try:
            _, following = successors(state)
        except (Violation, ProtocolError) as error:
            found.violation = str(error)
            found.path = _path(order, parents, at)
            break
        found.finished += is_finished(state)
        found.transitions += len(following)
        for after in following:
            if after not in seen:
                seen.add(after)
                order.append(after)
                parents.append(at)
        at += 1
        if at >= next_report:
            next_report += REPORT_EVERY
            note()
            if progress is not None and not progress(found):
                break
    note()
    found.is_complete = at == len(order) and not found.violation
    found.steps = [_step(world, *pair) for pair in zip(found.path, found.path[1:], strict=False)]
    return found


def _path(order: list[Any], parents: array[int], at: int) -> list[Any]:
    path = []
    while at >= 0:
        path.append(order[at])
        at = parents[at]
    return path[::-1]


def _step(world: Searched, before: Any, after: Any) -> Any:
    steps, states = world.successors(before)
    return steps[states.index(after)]
