"""Breadth first over all states of a world: the first violation found is one of the shortest."""

from __future__ import annotations

import gc
import time
from array import array
from dataclasses import dataclass, field

from crosscut.errors import ProtocolError
from crosscut.testing.explorer.tasks import Step, Violation
from crosscut.testing.explorer.world import State, World


@dataclass
class Found:
    """What a search has found.

    Attributes:
        violation: What broke, or "".
        path: The states up to the one in which it broke, if it did.
        steps: What happened between them.
        is_complete: Every reachable state within the bounds was visited.
        finished: How many of the states are the end of the job.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    finished: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    violation: str = ""
    path: list[State] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def transitions_per_second(self) -> float:
        return self.transitions / max(self.seconds, 1e-9)


def explore(world: World, states_max: int = 10_000_000) -> Found:
    """Visit every state of `world`, nearest first, until something breaks.

    Nothing ever goes back to where it was (positions, ids, epochs and budgets only grow or shrink), so a
    world without a stuck state ends whatever happens: termination needs no search of its own.
    """
    # States are tuples of numbers, without a cycle: there is nothing for the collector to find.
    gc.disable()
    try:
        return _explored(world, states_max)
    finally:
        gc.enable()


def _explored(world: World, states_max: int) -> Found:
    began = time.perf_counter()
    found = Found()
    first = world.first()
    seen = {first}
    order = [first]
    parents = array("q", [-1])
    successors, is_finished = world.successors, world.is_finished
    level_end, at = 1, 0
    while at < len(order) and len(order) <= states_max:
        if at == level_end:
            found.depth += 1
            level_end = len(order)
        state = order[at]
        try:
            following = successors(state)
        except (Violation, ProtocolError) as error:
            found.violation = str(error)
            found.path = _path(order, parents, at)
            break
        if is_finished(state):
            found.finished += 1
        found.transitions += len(following)
        for _, after in following:
            if after not in seen:
                seen.add(after)
                order.append(after)
                parents.append(at)
        at += 1
    found.states = len(order)
    found.is_complete = at == len(order) and not found.violation
    found.seconds = time.perf_counter() - began
    found.steps = [_step(world, *pair) for pair in zip(found.path, found.path[1:], strict=False)]
    return found


def _path(order: list[State], parents: array[int], at: int) -> list[State]:
    path = []
    while at >= 0:
        path.append(order[at])
        at = parents[at]
    return path[::-1]


def _step(world: World, before: State, after: State) -> Step:
    return next(step for step, state in world.successors(before) if state == after)
