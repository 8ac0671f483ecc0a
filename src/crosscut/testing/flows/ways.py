"""Which way records go through the steps of a flow: who reads whom, what turns, what leads nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import NamedTuple

from crosscut.testing.flows.steps import (
    Aggregate,
    Broadcast,
    Count,
    KeyBy,
    Keyed,
    Leave,
    Rebalance,
    Reduce,
    Sink,
    Source,
    Step,
    Sum,
    Union,
)

Steps = tuple[Step, ...]


class Way(NamedTuple):
    """Where the records of a step go, and whether it is back to the head of a loop."""

    target: int
    is_round: bool


def inputs_of(step: Step) -> tuple[int, ...]:
    """Return the steps whose streams `step` reads; of a `Leave` both that the body returned."""
    match step:
        case Source():
            return ()
        case Union(streams):
            return streams
        case Count() | Sum() | Reduce() | Aggregate():
            return (step.keyed,)
        case Leave(_, again, out):
            return (again, out)
        case _:
            return (step.stream,)


def key_by_of(steps: Steps, step: Keyed) -> KeyBy:
    """Return what gives the records of `step` their keys."""
    key_by = steps[step.keyed]
    if not isinstance(key_by, KeyBy):
        raise TypeError(f"{step} does not follow a key_by")
    return key_by


def resolved(steps: Steps, number: int) -> int:
    """Return the step that makes the stream called `number`: not a `Leave`, which has that of its `out`."""
    step = steps[number]
    while isinstance(step, Leave):
        number = step.out
        step = steps[number]
    return number


def is_open(steps: Steps, number: int) -> bool:
    """Whether operators may follow: the step's stream is neither keyed nor at its end."""
    return not isinstance(steps[resolved(steps, number)], KeyBy | Sink)


def is_dealt(steps: Steps, number: int) -> bool:
    """Whether the stream is distributed already, so that it can't be once more."""
    return isinstance(steps[resolved(steps, number)], Rebalance | Broadcast)


def ways(steps: Steps) -> list[list[Way]]:
    """Return, by step, where its records go; as often as the target reads it."""
    found: list[list[Way]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        if isinstance(step, Leave):
            found[resolved(steps, step.again)].append(Way(step.loop, is_round=True))
            continue
        for one in inputs_of(step):
            found[resolved(steps, one)].append(Way(number, is_round=False))
    return found


def reached(found: list[list[Way]], start: int, *, also_round: bool = True) -> set[int]:
    """Return the steps that `start` leads to; itself only if it is on a cycle."""
    targets: set[int] = set()
    waiting = [start]
    while waiting:
        for target, is_round in found[waiting.pop()]:
            if target not in targets and (also_round or not is_round):
                targets.add(target)
                waiting.append(target)
    return targets


def on_cycles(steps: Steps) -> frozenset[int]:
    """Return the steps that a record may come to twice."""
    found = ways(steps)
    return frozenset(number for number in range(len(steps)) if number in reached(found, number))


def cycles(steps: Steps) -> Iterator[tuple[int, ...]]:
    """Yield the steps in groups, each after all that feed it; two are in one if each leads to the other."""
    found = ways(steps)
    after = [reached(found, number) for number in range(len(steps))]
    first = [
        min((one for one in after[number] if number in after[one]), default=number)
        for number in range(len(steps))
    ]
    order: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(first, ()))
    for number, targets in enumerate(found):
        for target, _ in targets:
            if first[target] != first[number]:
                order.add(first[target], first[number])
    for cycle in order.static_order():
        yield tuple(number for number, one in enumerate(first) if one == cycle)


def unread(steps: Steps) -> list[int]:
    """Return the steps whose streams lead nowhere."""
    found = ways(steps)
    return [
        number
        for number, step in enumerate(steps)
        if not isinstance(step, Sink | Leave) and not found[number]
    ]
