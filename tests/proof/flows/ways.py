"""Which way records go through the steps of a flow: who reads whom, what turns, what leads nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.proof.flows.added_steps import Transform
from tests.proof.flows.steps import (
    AfterKeyBy,
    Broadcast,
    Counted,
    Deduplicate,
    ForEach,
    Hold,
    Join,
    KeyBy,
    Leave,
    Loop,
    Merge,
    Newest,
    Pairs,
    Patient,
    Process,
    Rebalance,
    Rules,
    Side,
    Sift,
    Sink,
    Source,
    Step,
    TimedSource,
    Times,
    Tolerant,
    Union,
)

from crosscut.testing.simulator.cycles import grouped, reached

Steps = tuple[Step, ...]

_CHANGING_TIMES = (
    Loop,
    Process,
    Times,
    Hold,
    Sift,
    Patient,
    Tolerant,
    Deduplicate,
    Pairs,
    Rules,
    Counted,
    Transform,
)
"""After these it is up to the order in which records meet which of them has which time."""


class Way(NamedTuple):
    """Where the records of a step go, and whether it is back to the head of a loop.

    `part`: which of its side outputs goes there; None: what the step returns. `place`: where it stands among
    the inputs of the target.
    """

    target: int
    is_round: bool
    part: int | None = None
    place: int = 0


def inputs_of(step: Step) -> tuple[int, ...]:
    """Return the steps whose streams `step` reads; of a `Leave` both that the body returned."""
    match step:
        case Source():
            return ()
        case Union(streams):
            return streams
        case Merge():
            return (step.stream, step.other)
        case Rules():
            return (step.keyed, step.other)
        case Leave(_, again, out):
            return (again, out)
        case _ if isinstance(step, AfterKeyBy):
            return keyed_inputs_of(step)
        case _:
            return (step.stream,)


def keyed_inputs_of(step: Step) -> tuple[int, ...]:
    """Return those of `inputs_of` that have to be keyed; they come first there."""
    if isinstance(step, Join | Pairs | Newest):
        return (step.keyed, step.other)
    return (step.keyed,) if isinstance(step, AfterKeyBy) else ()


def key_by_of(steps: Steps, step: AfterKeyBy) -> KeyBy:
    """Return what gives the records of `step` their keys."""
    key_by = steps[step.keyed]
    if not isinstance(key_by, KeyBy):
        raise TypeError(f"{step} does not follow a key_by")
    return key_by


def has_determined_times(steps: Steps, number: int) -> bool:
    """Whether it follows from the flow alone which record of the step's stream has which time.

    A running count does not say which record was the first, and what goes round a loop may come late.
    """
    upstream = {one for one in range(len(steps)) if number in downstream(steps, one)}
    return not any(
        isinstance(steps[one], _CHANGING_TIMES) or getattr(steps[one], "emit", "") == "updates"
        for one in upstream
    )


def resolved(steps: Steps, number: int) -> int:
    """Return the step that makes the stream called `number`: not a `Leave`, which has that of its `out`."""
    step = steps[number]
    while isinstance(step, Leave):
        number = step.out
        step = steps[number]
    return number


def is_open(steps: Steps, number: int) -> bool:
    """Whether operators may follow: the step's stream is neither keyed nor at its end."""
    return not isinstance(steps[resolved(steps, number)], KeyBy | Sink | ForEach)


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
        part = step.part if isinstance(step, Side) else None
        for place, one in enumerate(inputs_of(step)):
            found[resolved(steps, one)].append(Way(number, is_round=False, part=part, place=place))
    return found


def timed(steps: Steps) -> frozenset[int]:
    """Return the steps whose records have timestamps."""
    found: set[int] = set()
    for number, step in enumerate(steps):
        if isinstance(step, Times | TimedSource) or any(
            resolved(steps, one) in found for one in inputs_of(step)
        ):
            found.add(number)
    return frozenset(found)


def downstream(steps: Steps, start: int) -> set[int]:
    """Return the steps that the records of `start` come to without going back in a loop; it, too."""
    once = {
        number: [way.target for way in found if not way.is_round] for number, found in enumerate(ways(steps))
    }
    return {start, *reached(once, start)}


def on_cycles(steps: Steps) -> frozenset[int]:
    """Return the steps that a record may come to twice."""
    found = ways(steps)
    leads_to_itself = {way.target for number, one in enumerate(found) for way in one if way.target == number}
    return frozenset(leads_to_itself.union(*(group for group in cycles(steps) if len(group) > 1)))


def cycles(steps: Steps) -> Iterator[tuple[int, ...]]:
    """Yield the steps in groups, each after all that feed it; two are in one if each leads to the other."""
    return grouped({number: [way.target for way in found] for number, found in enumerate(ways(steps))})


def unread(steps: Steps) -> list[int]:
    """Return the steps whose streams lead nowhere."""
    found = ways(steps)
    return [
        number
        for number, step in enumerate(steps)
        if not isinstance(step, Sink | ForEach | Leave) and all(way.part is not None for way in found[number])
    ]
