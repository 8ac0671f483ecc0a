"""A flow as plain data, and what it has to be so that its output is determined.

The output is the same, as a bag of records, in whatever order records meet, and the flow comes to an end.
Both follow from the steps alone:

* Each step makes of a bag of records a bag that does not depend on their order. So a running count is one
  (1 to n for each key); a running maximum is none, and is only asked for at the end of the input.
* A record has an *energy*. Each time round a loop costs one, and without energy nothing goes round. On a
  cycle nothing gets more of it. A key may hold the energy of its records: what comes of them has as much.
* Nothing on a cycle waits for the end of its input: that would have to come before what it then says.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tests.proof.flows.added_steps import TRIAL_EMITS, Stray, Transform, Trial
from tests.proof.flows.steps import (
    FINAL_ONLY,
    OPERATOR_OF,
    OPERATORS,
    UPDATES_ONLY,
    Aggregate,
    Attempt,
    Broadcast,
    Counted,
    Deduplicate,
    ForEach,
    Hold,
    Join,
    KeyBy,
    Keyed,
    Leave,
    Loop,
    Map,
    MapAsync,
    Mortal,
    Newest,
    OfTwoKeyed,
    Patient,
    Process,
    RateLimit,
    Rebalance,
    Reduce,
    Rules,
    Side,
    Sift,
    Sink,
    Source,
    Split,
    Step,
    Sum,
    Timed,
    TimedSource,
    Times,
    Tolerant,
    TopN,
    Union,
    Window,
    part_count,
)
from tests.proof.flows.ways import (
    Steps,
    downstream,
    has_determined_times,
    inputs_of,
    is_dealt,
    keyed_inputs_of,
    on_cycles,
    resolved,
    timed,
    unread,
    ways,
)

from crosscut.errors import FlowError

_HINTS = {kind: get_type_hints(kind) for kind in OPERATORS.values()}


@dataclass(frozen=True, slots=True)
class Description:
    """A flow. `str` of it is what `parsed` takes.

    Raises:
        FlowError: It is none that can be built, or its output would not be determined.
    """

    steps: Steps

    def __post_init__(self) -> None:
        for number, step in enumerate(self.steps):
            _check_inputs(self.steps, number)
            if isinstance(step, Keyed):
                _check_emit(self.steps, number, step)
        _check_keys(self.steps)
        _check_windows(self.steps)
        _check_sides(self.steps)
        _check_loops(self.steps)
        _check_times(self.steps)
        _check_ages(self.steps)
        _check_ends(self.steps)

    def __str__(self) -> str:
        return "; ".join(map(_shown, self.steps))

    @property
    def numbered(self) -> str:
        """The steps, one a line, with the numbers by which others name them."""
        return "\n".join(f"{number}: {_shown(step)}" for number, step in enumerate(self.steps))


def parsed(text: str) -> Description:
    """Return the description that `text` shows: steps as `str` and `numbered` show them.

    Raises:
        FlowError: It shows none.
    """
    lines = [one.strip() for one in text.replace("\n", ";").split(";")]
    return Description(tuple(_parsed_step(one) for one in lines if one))


def _parsed_step(line: str) -> Step:
    words = line.split(": ", 1)[-1].split(" ", 1)
    kind = OPERATORS.get(words[0])
    if kind is None:
        raise FlowError(f"{line!r} is no step: expected one of {', '.join(OPERATORS)}")
    rest = words[1] if len(words) > 1 else ""
    values = []
    for name, hint in _HINTS[kind].items():
        value, rest = _taken(hint, rest)
        if value is None:
            raise FlowError(f"{line!r}: {name} is missing or not what it may be; expected {_expected(hint)}")
        values.append(value)
    if rest:
        raise FlowError(f"{line!r}: {rest!r} is too much")
    step: Step = kind(*values)
    return step


def _taken(hint: Any, text: str) -> tuple[Any, str]:
    """Return the value that `text` begins with, None if there is none, and what follows it."""
    if get_origin(hint) is Literal:
        # The longest first: a name may have several words.
        for name in sorted(get_args(hint), key=len, reverse=True):
            if text == name or text.startswith(f"{name} "):
                return name, text[len(name) + 1 :]
        return None, text
    word, _, rest = text.partition(" ")
    numbers = word.split(",")
    if not all(one.isascii() and one.isdigit() for one in numbers):
        return None, text
    if hint is int:
        return (int(word), rest) if len(numbers) == 1 else (None, text)
    return tuple(map(int, numbers)), rest


def _expected(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return "a number" if hint is int else "numbers, as in 3,5"


def _shown(step: Step) -> str:
    values = (getattr(step, one.name) for one in fields(step))
    words = (",".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in values)
    return " ".join((OPERATOR_OF[type(step)], *words))


# What a description has to be.


_AT_LEAST_ONE: dict[type[Any], str] = {
    Attempt: "modulus",
    Counted: "rows",
    ForEach: "modulus",
    KeyBy: "modulus",
    MapAsync: "capacity",
    Patient: "size",
    Process: "every",
    RateLimit: "records",
    Sift: "size",
    Split: "parts",
    Stray: "unfit",
    Transform: "modulus",
    Tolerant: "size",
    Trial: "modulus",
    TopN: "n",
    Window: "size",
    Join: "size",
}


def _refused(steps: Steps, number: int, problem: str) -> FlowError:
    return FlowError(f"step {number}, {_shown(steps[number])!r}: {problem}")


def _check_inputs(steps: Steps, number: int) -> None:
    step = steps[number]
    for place, one in enumerate(inputs_of(step)):
        if not 0 <= one < number:
            raise _refused(steps, number, f"there is no step {one} before it")
        source = steps[resolved(steps, one)]
        is_keyed = place < len(keyed_inputs_of(step))
        # It has no stream of its own; but a part of it is one.
        is_end = isinstance(source, Sink) or (isinstance(source, ForEach) and not isinstance(step, Side))
        if is_end or isinstance(source, KeyBy) != is_keyed:
            raise _refused(steps, number, f"it can't follow step {one}")
        is_deal = isinstance(step, Rebalance | Broadcast) or (isinstance(step, Rules) and not is_keyed)
        if is_deal and is_dealt(steps, one):
            raise _refused(steps, number, f"step {one} is distributed already")
        if isinstance(step, Side) and step.part >= part_count(source):
            raise _refused(steps, number, f"step {one} has no part {step.part}")
    for kind, name in _AT_LEAST_ONE.items():
        if isinstance(step, kind) and getattr(step, name) < 1:
            raise _refused(steps, number, f"{name}: expected 1 at least")
    if isinstance(step, Union) and len(step.streams) < 2:
        raise _refused(steps, number, "expected two streams at least")
    if isinstance(step, Source) and not step.splits:
        raise _refused(steps, number, "expected one split at least")


def _check_emit(steps: Steps, number: int, step: Keyed) -> None:
    name = step.function if isinstance(step, Sum | Reduce | Aggregate) else ""
    if name in (UPDATES_ONLY if step.emit == "final" else FINAL_ONLY):
        raise _refused(steps, number, "what it sends depends on the order of the records")
    if isinstance(step, Trial) and TRIAL_EMITS.get(step.fold, step.emit) != step.emit:
        raise _refused(steps, number, "which records it raises for depends on their order")
    if name == "itself":
        key_by = steps[step.keyed]
        before = steps[resolved(steps, key_by.stream)] if isinstance(key_by, KeyBy) else None
        if not (isinstance(before, Map) and before.function == "number"):
            raise _refused(steps, number, "only numbers can be added up: expected 'map ... number' before it")


def _check_windows(steps: Steps) -> None:
    sources = [step for step in steps if isinstance(step, Source)]
    is_timed = any(isinstance(step, TimedSource) for step in sources)
    for number, step in enumerate(steps):
        if isinstance(step, Source) and isinstance(step, TimedSource) != is_timed:
            raise _refused(steps, number, "the records of all sources have times, or of none")
        is_of_a_moment = isinstance(step, Deduplicate) and step.within == "a moment"
        if not (isinstance(step, Timed) or is_of_a_moment):
            continue
        if not is_timed:
            raise _refused(steps, number, "the records have no times")
        if not all(has_determined_times(steps, one) for one in inputs_of(step)):
            raise _refused(steps, number, "which record has which time depends on their order")
        if isinstance(step, Join) and step.join == "latest" and step.how not in ("inner", "left"):
            raise _refused(steps, number, "a join with the latest is 'inner' or 'left'")


def _check_keys(steps: Steps) -> None:
    for number, step in enumerate(steps):
        if isinstance(step, OfTwoKeyed):
            left, right = steps[step.keyed], steps[step.other]
            if not (isinstance(left, KeyBy) and isinstance(right, KeyBy)) or left != replace(
                right, stream=left.stream
            ):
                raise _refused(steps, number, "expected the same keys on both sides")


def _check_sides(steps: Steps) -> None:
    for number, found in enumerate(ways(steps)):
        for part in range(part_count(steps[number])):
            if not any(way.part == part for way in found):
                raise _refused(steps, number, f"nobody reads part {part}")


def _check_loops(steps: Steps) -> None:
    entered: list[int] = []
    for number, step in enumerate(steps):
        if isinstance(step, Loop):
            entered.append(number)
        elif isinstance(step, Leave) and (not entered or entered.pop() != step.loop):
            raise _refused(steps, number, f"loop {step.loop} is not the innermost one that is open")
    if entered:
        raise _refused(steps, entered[-1], "the loop is never left")
    for number, step in enumerate(steps):
        if isinstance(step, Leave):
            for one in (step.again, step.out):
                if resolved(steps, one) not in downstream(steps, step.loop):
                    raise _refused(steps, number, f"step {one} does not come from loop {step.loop}")
    turning = on_cycles(steps)
    for number, step in enumerate(steps):
        if number not in turning:
            continue
        if isinstance(step, Map) and step.function == "energise":
            raise _refused(steps, number, "on a cycle nothing gets more energy")
        has_timers = isinstance(step, Transform) and step.state in ("timers", "event timers")
        if isinstance(step, Hold) or has_timers or (isinstance(step, Deduplicate) and step.within != "ever"):
            raise _refused(steps, number, "what its timers say leads back there")
        if getattr(step, "emit", "") == "final":
            raise _refused(steps, number, "what it says at the end of its input leads back there")


def _check_times(steps: Steps) -> None:
    having = timed(steps)
    for number, step in enumerate(steps):
        inputs = [resolved(steps, one) for one in inputs_of(step)]
        if isinstance(step, Leave):
            inputs = [step.loop, resolved(steps, step.again)]
        if not isinstance(step, Times) and len({one in having for one in inputs}) > 1:
            raise _refused(steps, number, "records with timestamps and records without would meet there")
        if _needs_times(step) and number not in having:
            raise _refused(steps, number, "its records have no timestamps")
        if isinstance(step, Newest) and number in having:
            raise _refused(steps, number, "its records have timestamps, and may be late")


def _needs_times(step: Step) -> bool:
    if isinstance(step, Hold | Mortal):
        return step.clock != "processing time"
    if isinstance(step, Transform):
        return step.state == "event timers"
    return isinstance(step, Sift | Patient | Tolerant)


def _check_ages(steps: Steps) -> None:
    for number, step in enumerate(steps):
        if isinstance(step, Deduplicate) and step.within == "for long":
            for one, before in enumerate(steps):
                if getattr(before, "emit", "") == "final" and number in downstream(steps, one):
                    raise _refused(
                        steps, number, f"what step {one} says at the end happens long after all else"
                    )


def _check_ends(steps: Steps) -> None:
    for number in unread(steps):
        raise _refused(steps, number, "it leads nowhere")
    for kind in (Source, Sink):
        if not any(isinstance(step, kind) for step in steps):
            raise FlowError(f"expected one {OPERATOR_OF[kind]} at least")
