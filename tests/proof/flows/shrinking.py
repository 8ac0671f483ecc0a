"""Smaller flows than one that fails: each leaves out something, or makes something plainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tests.proof.flows.added_steps import Stray, Transform
from tests.proof.flows.description import Description
from tests.proof.flows.steps import (
    AfterKeyBy,
    Attempt,
    Broadcast,
    Counted,
    Filter,
    FlatMap,
    ForEach,
    Hold,
    Join,
    KeyBy,
    Leave,
    Loop,
    Map,
    MapAsync,
    Merge,
    OfTwoKeyed,
    Process,
    RateLimit,
    Rebalance,
    Remember,
    Rules,
    Side,
    Sink,
    Source,
    Split,
    Step,
    Tally,
    Times,
    TopN,
    Union,
    Window,
)
from tests.proof.flows.ways import Steps, inputs_of, key_by_of, unread, ways

from crosscut.errors import FlowError


def smaller_flows(description: Description) -> Iterator[Description]:
    """Yield what is smaller than `description` by one thing, what promises most first. All are valid."""
    for steps in _candidates(description.steps):
        steps = _without_dead_ends(steps)
        if steps == description.steps:
            continue
        try:
            yield Description(steps)
        except FlowError:
            # What was left out was needed.
            continue


def shrunk_flow(
    description: Description, fails: Callable[[Description], bool], runs_max: int = 200
) -> Description:
    """Return the smallest flow that a bounded search finds and that still `fails`."""
    runs = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in smaller_flows(description):
            runs += 1
            if runs > runs_max:
                return description
            if fails(candidate):
                description, is_smaller = candidate, True
                break
    return description


def _candidates(steps: Steps) -> Iterator[Steps]:
    for number, step in enumerate(steps):
        if isinstance(step, Sink):
            yield _without(steps, {number}, {})
    # From the end: what is in front of it goes as well, if nothing else reads it.
    for number in reversed(range(len(steps))):
        step = steps[number]
        match step:
            case Loop(stream):
                for end, leave in enumerate(steps):
                    if isinstance(leave, Leave) and leave.loop == number:
                        yield _without(steps, {number, end}, {number: stream, end: leave.out})
            case Source() | Leave() | Sink() | KeyBy() | Side():
                pass
            case Split(stream):
                sides = _sides(steps, number)
                yield _without(steps, {number, *sides}, dict.fromkeys((number, *sides), stream))
                if step.parts > 1:
                    last = [one for one in sides if steps[one] == Side(number, step.parts - 1)]
                    parted = (*steps[:number], Split(stream, step.parts - 1), *steps[number + 1 :])
                    yield _without(parted, set(last), dict.fromkeys(last, number))
            case Attempt(stream) | MapAsync(stream) | ForEach(stream):
                sides = _sides(steps, number)
                yield _without(steps, {number, *sides}, dict.fromkeys((number, *sides), stream))
            case Union(streams):
                for one in streams:
                    yield _without(steps, {number}, {number: one})
                if len(streams) > 2:
                    for left_out in range(len(streams)):
                        fewer = streams[:left_out] + streams[left_out + 1 :]
                        yield (*steps[:number], Union(fewer), *steps[number + 1 :])
            case Merge(stream, other):
                yield _without(steps, {number}, {number: stream})
                yield _without(steps, {number}, {number: other})
            case _ if isinstance(step, OfTwoKeyed | Rules):
                for one in inputs_of(step):
                    key_by = steps[one]
                    stream = key_by.stream if isinstance(key_by, KeyBy) else one
                    yield _without(steps, {number}, {number: stream})
            case Window():
                for one in inputs_of(step):
                    if isinstance(key_by := steps[one], KeyBy):
                        yield _without(steps, {number}, {number: key_by.stream})
            case Stray() | Transform():
                yield _without(steps, {number}, {number: step.stream})
            case (
                Map() | Filter() | FlatMap() | Rebalance() | Broadcast() | Times() | RateLimit() | Remember()
            ):
                yield _without(steps, {number}, {number: step.stream})
            case _:
                sides = _sides(steps, number)
                stream = key_by_of(steps, step).stream
                yield _without(steps, {number, *sides}, dict.fromkeys((number, *sides), stream))
    for number, step in enumerate(steps):
        for plainer in _plainer(step):
            yield (*steps[:number], plainer, *steps[number + 1 :])


def _sides(steps: Steps, number: int) -> list[int]:
    return [way.target for way in ways(steps)[number] if way.part is not None]


def _plainer(step: Step) -> Iterator[Step]:
    match step:
        case Source(splits, energy):
            if len(splits) > 1:
                yield replace(step, splits=splits[:1])
                yield replace(step, splits=splits[:-1])
            for split, count in enumerate(splits):
                for fewer in sorted({0, count // 2, count - 1} - {count, -1}):
                    yield replace(step, splits=(*splits[:split], fewer, *splits[split + 1 :]))
            if energy:
                yield replace(step, energy=energy - 1)
        case Map(_, function) if function not in {"same", "energise", "number"}:
            yield replace(step, function="same", argument=0)
        case Filter(_, function) if function != "all":
            yield replace(step, function="all", argument=0)
        case FlatMap(_, function, argument) if (function, argument) != ("copies", 1):
            yield replace(step, function="copies", argument=1)
        case Window(_, window, _, fold) if (window, fold) != ("tumbling", "count"):
            yield replace(step, window="tumbling", fold="count")
        case Join(_, _, _, how) if how != "inner":
            yield replace(step, how="inner")
        case MapAsync() if (step.call, step.order) != ("coroutine", "ordered"):
            yield replace(step, call="coroutine", order="ordered")
        case Process(_, every) if every > 1:
            yield replace(step, every=1)
        case TopN(_, n) if n > 1:
            yield replace(step, n=1)
        case Counted(_, _, rows) if rows > 1:
            yield replace(step, rows=1)
        case Tally(_, state) if state != "value":
            yield replace(step, state="value")
        case Transform(_, _, _, state) if state != "value":
            yield replace(step, state="value")
        case Rules(_, _, "told"):
            yield replace(step, said="silent")
        case KeyBy(_, key, modulus) if modulus > 1:
            yield replace(step, modulus=1)
            if key == "nested with energy":
                yield replace(step, key="with energy")
        case Times(_, function, out_of_orderness):
            if function != "in order":
                yield replace(step, function="in order")
            if out_of_orderness:
                yield replace(step, out_of_orderness=0)
        case Hold(_, _, delay) if delay:
            yield replace(step, delay=0)
        case Loop(_, tire) if tire != "flat_map first":
            yield replace(step, tire="flat_map first")
        case _:
            pass


def _without_dead_ends(steps: Steps) -> Steps:
    """Leave out what leads nowhere, and then what leads nowhere any more."""
    while dead := set(_dead_ends(steps)):
        steps = _without(steps, dead, {})
    return steps


def _dead_ends(steps: Steps) -> Iterator[int]:
    for number in unread(steps):
        if not isinstance(steps[number], Loop) and not _sides(steps, number):
            yield number


def _without(steps: Steps, left_out: set[int], instead: Mapping[int, int]) -> Steps:
    """Leave out some steps; who reads one of them reads another one `instead`."""
    new_numbers: dict[int, int] = {}
    for number in range(len(steps)):
        if number not in left_out:
            new_numbers[number] = len(new_numbers)

    def renumbered(old: int) -> int:
        while old in instead:
            old = instead[old]
        # What is not there any more is no step: the description is refused.
        return new_numbers.get(old, len(steps))

    return tuple(reading(step, renumbered) for number, step in enumerate(steps) if number not in left_out)


def reading(step: Step, renumbered: Callable[[int], int]) -> Step:
    """Return `step` with other inputs; `renumbered` says which step takes the place of which."""
    match step:
        case Source():
            return step
        case Union(streams):
            return Union(tuple(map(renumbered, streams)))
        case Leave(loop, again, out):
            return Leave(renumbered(loop), renumbered(again), renumbered(out))
        case Merge(stream, other):
            return Merge(renumbered(stream), renumbered(other))
        case _ if isinstance(step, OfTwoKeyed | Rules):
            return replace(step, keyed=renumbered(step.keyed), other=renumbered(step.other))
        case _ if isinstance(step, AfterKeyBy):
            return replace(step, keyed=renumbered(step.keyed))
        case _:
            (stream,) = inputs_of(step)
            return replace(step, stream=renumbered(stream))
