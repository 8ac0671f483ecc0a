"""Brings time into a drawn flow: timestamps at its sources or further on, and processes with timers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import get_args

from tests.proof.flows.description import Description
from tests.proof.flows.shrinking import reading
from tests.proof.flows.steps import (
    Filter,
    FlatMap,
    Hold,
    HoldName,
    KeyBy,
    KeyName,
    Leave,
    Loop,
    Map,
    Mortal,
    Patient,
    Sift,
    Source,
    Step,
    TimeName,
    Times,
    Tolerant,
    Union,
)
from tests.proof.flows.ways import Steps

from crosscut.errors import FlowError

_ATTEMPTS_MAX = 20


def with_time(description: Description, dice: random.Random) -> Description:
    """Return the flow with time in it; as it is, if no place is found for that."""
    for _ in range(_ATTEMPTS_MAX):
        try:
            return Description(_drawn(description.steps, dice))
        except FlowError:
            # Records with and without timestamps would meet, or timers would stand in a loop.
            continue
    return description


def _drawn(steps: Steps, dice: random.Random) -> Steps:
    sources = [number for number, step in enumerate(steps) if isinstance(step, Source)]
    others = [number for number, step in enumerate(steps) if isinstance(step, Map | Filter | FlatMap | Union)]
    after: dict[int, list[Step]] = {}
    is_timed = dice.random() < 0.7
    if is_timed:
        for number in sources:
            after[number] = [_times(dice)]
    for number in dice.sample(sources + others, min(len(sources + others), dice.choice((1, 2, 2)))):
        is_event_time = dice.random() < 0.7
        before: list[Step] = [_times(dice)] if is_event_time and not is_timed else []
        key_by = KeyBy(0, dice.choice(get_args(KeyName)), dice.choice((1, 2, 3, 5)))
        after.setdefault(number, []).extend([*before, key_by, _of_time(dice, is_event_time=is_event_time)])
    return put_in(steps, after)


def _of_time(dice: random.Random, *, is_event_time: bool) -> Step:
    kind = dice.choice(("hold", "mortal", "sift", "sift"))
    if kind == "sift" and is_event_time:
        size = dice.choice((1, 20, 20, 1_000))
        if size != 20:
            return Sift(0, size)
        return dice.choice((Patient(0, size), Tolerant(0, dice.choice((20, 200, 300_000)))))
    if kind == "mortal":
        return Mortal(0, "event time" if is_event_time else "processing time")
    clocks: tuple[HoldName, ...] = ("event time", "both times") if is_event_time else ("processing time",)
    return Hold(0, dice.choice(clocks), dice.choice((0, 1, 5, 20, 1_000)))


def _times(dice: random.Random) -> Times:
    return Times(0, dice.choice(get_args(TimeName)), dice.choice((0, 0, 0, 3, 10, 1_000_000)))


def put_in(steps: Steps, after: Mapping[int, list[Step]]) -> Steps:
    """Return `steps` with others after some: whoever has read one of those reads the last of these."""
    made: list[Step] = []
    new_numbers: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Loop | Leave) and number in after:
            raise TypeError(f"step {number} is the beginning or the end of a loop")
        made.append(reading(step, new_numbers.__getitem__))
        for one in after.get(number, ()):
            made.append(reading(one, lambda _: len(made) - 1))
        new_numbers[number] = len(made) - 1
    return tuple(made)
