"""The steps of a described flow: one for each call of the API, which names the steps it reads by number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tests.proof.flows.added_steps import KeyName as KeyName
from tests.proof.flows.added_steps import Stray, Transform, Trial

from crosscut.contracts.dead_letters import DEAD_LETTERS
from crosscut.graph.specs import Emit

MapName = Literal["same", "plain", "add", "mix", "number", "energise"]
FilterName = Literal["multiples", "others", "energy", "exhausted", "all", "none"]
FlatMapName = Literal["copies", "some", "spread", "yielded"]
ReduceName = Literal["newest", "most", "merged"]
SumName = Literal["weight", "number", "itself"]
AggregateName = Literal["length", "last", "both", "cell", "pair", "numbers"]
AttemptName = Literal["map", "filter", "flat_map", "inspect", "split"]
TimeName = Literal["in order", "scattered", "idle soon"]
ClockName = Literal["event time", "processing time"]
HoldName = Literal["event time", "processing time", "both times"]
WindowName = Literal["tumbling", "sliding", "session"]
FoldName = Literal["count", "sum", "reduce", "aggregate", "process"]
JoinName = Literal["interval", "window", "latest"]
HowName = Literal["inner", "left", "right", "outer"]
CountedName = Literal["count", "global", "global on count"]
CallName = Literal["coroutine", "thread"]
OrderName = Literal["ordered", "unordered"]
WithinName = Literal["ever", "for long", "a moment"]
StateName = Literal["value", "list", "map", "reducing", "aggregating", "stateful"]
SaidName = Literal["silent", "told"]
TireName = Literal["flat_map first", "flat_map last", "filter and map last"]

UPDATES_ONLY = frozenset({"newest", "last", "both"})
"""Whose value at the end depends on the order of the records."""
FINAL_ONLY = frozenset({"most", "merged", "number", "itself", "numbers"})
"""Whose values on the way depend on the order of the records."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source whose splits hold so many records.

    Attributes:
        energy: Record i has an energy of i modulo (`energy` + 1).
    """

    splits: tuple[int, ...]
    energy: int


@dataclass(frozen=True, slots=True)
class TimedSource(Source):
    """A source whose records have event time; none of them is ever late."""


@dataclass(frozen=True, slots=True)
class Map:
    stream: int
    function: MapName
    argument: int


@dataclass(frozen=True, slots=True)
class Filter:
    stream: int
    function: FilterName
    argument: int


@dataclass(frozen=True, slots=True)
class FlatMap:
    stream: int
    function: FlatMapName
    argument: int


@dataclass(frozen=True, slots=True)
class Split:
    """Part i has the records whose number is i modulo (`parts` + 1), the stream of the step the others."""

    stream: int
    parts: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """An operator that raises for multiples of `modulus`; part 0 has these, as its dead letters."""

    stream: int
    operator: AttemptName
    modulus: int


@dataclass(frozen=True, slots=True)
class MapAsync:
    """Calls that take their time, and fail now and then; part 0 has the records for which all do."""

    stream: int
    call: CallName
    capacity: int
    order: OrderName


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Lets `records` pass in each millisecond, so that some wait."""

    stream: int
    records: int


@dataclass(frozen=True, slots=True)
class ForEach:
    """Ends a stream; each record has to be seen once at least.

    It raises for multiples of `modulus`; part 0 has these, as its dead letters.
    """

    stream: int
    modulus: int


@dataclass(frozen=True, slots=True)
class Remember:
    """A process without keys: it lets all pass, and keeps them in two lists, split and united."""

    stream: int


@dataclass(frozen=True, slots=True)
class Merge:
    """A process of two streams without keys: it lets all pass, and keeps what comes on the second."""

    stream: int
    other: int


@dataclass(frozen=True, slots=True)
class Side:
    """What a step says under the name of a part."""

    stream: int
    part: int


@dataclass(frozen=True, slots=True)
class Union:
    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    stream: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    stream: int


@dataclass(frozen=True, slots=True)
class KeyBy:
    stream: int
    key: KeyName
    modulus: int


@dataclass(frozen=True, slots=True)
class Count:
    keyed: int
    emit: Emit


@dataclass(frozen=True, slots=True)
class Sum:
    keyed: int
    function: SumName
    emit: Emit


@dataclass(frozen=True, slots=True)
class Reduce:
    keyed: int
    function: ReduceName
    emit: Emit


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`both` is followed by a flat_map that separates what has no determined connection."""

    keyed: int
    function: AggregateName
    emit: Emit


@dataclass(frozen=True, slots=True)
class Process:
    """Counts the records of each key, as a process of the user's; part 0 has every so many of the counts.

    It raises for some records, at the end of all that it does for them; part 1 has these, as dead letters.
    """

    keyed: int
    every: int

    @property
    def emit(self) -> Emit:
        return "updates"


@dataclass(frozen=True, slots=True)
class TopN:
    """The `n` best records of each key; a map makes of a list on the way how long it is."""

    keyed: int
    n: int
    emit: Emit


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts the records of each key in a state of one kind; "stateful" begins anew after three."""

    keyed: int
    state: StateName

    @property
    def emit(self) -> Emit:
        return "updates"


@dataclass(frozen=True, slots=True)
class Counted:
    """Windows by count, or a global one, counted; a map makes a record of each result."""

    keyed: int
    window: CountedName
    rows: int

    @property
    def emit(self) -> Emit:
        return "final"


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """One record of each key; a map makes of it one that says no more than the key: which it is may differ.

    "for long" is longer than any flow takes. For "a moment" it is one record of each key and time.
    """

    keyed: int
    within: WithinName


@dataclass(frozen=True, slots=True)
class Mortal:
    """A process that lets all pass, and says so if what it keeps lives longer or shorter than it should."""

    keyed: int
    clock: ClockName


@dataclass(frozen=True, slots=True)
class Pairs:
    """A process of two keyed streams, which says each record of one with each of the other, once."""

    keyed: int
    other: int


@dataclass(frozen=True, slots=True)
class Rules:
    """A process that counts the records of each key, connected to a stream that is broadcast.

    It counts what it is told there, too, in each task; "told" says the counts.
    """

    keyed: int
    other: int
    said: SaidName


@dataclass(frozen=True, slots=True)
class Newest:
    """A join with the latest of a stream without time. Which one that is, is up to the order."""

    keyed: int
    other: int


@dataclass(frozen=True, slots=True)
class Sift:
    """Tumbling windows of `size` ms, and what is late for them: together these are all records, once."""

    keyed: int
    size: int

    @property
    def emit(self) -> Emit:
        return "final"


@dataclass(frozen=True, slots=True)
class Patient:
    """Tumbling windows of `size` ms that speak early, and take all that is late: each record is counted once.

    They say how many there are as often as they please; a process makes one record of each that is new.
    """

    keyed: int
    size: int

    @property
    def emit(self) -> Emit:
        return "final"


@dataclass(frozen=True, slots=True)
class Tolerant:
    """As `Patient`, but each window takes late records for another `size` ms only.

    What comes later still is set aside, and counted there: each record is counted once.
    """

    keyed: int
    size: int

    @property
    def emit(self) -> Emit:
        return "final"


@dataclass(frozen=True, slots=True)
class Times:
    """assign_timestamps. Records may be late: nothing that a described flow says depends on it.

    Attributes:
        out_of_orderness: In milliseconds.
    """

    stream: int
    function: TimeName
    out_of_orderness: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A process that keeps each record until a timer fires, `delay` ms after it happened or came.

    Of both times, the timer that is first deletes the other.
    """

    keyed: int
    clock: HoldName
    delay: int


@dataclass(frozen=True, slots=True)
class Window:
    """Windows of `size` ms, or sessions with such a gap; a map makes a record of each result."""

    keyed: int
    window: WindowName
    size: int
    fold: FoldName


@dataclass(frozen=True, slots=True)
class Join:
    """Joins two keyed streams; a map makes a record of each result.

    An interval join reaches from `-size` to `size` ms, a window join has tumbling windows of `size`. Of a
    join with the latest only counts whether there was a version: which one may depend on the order.
    """

    keyed: int
    other: int
    join: JoinName
    how: HowName
    size: int


@dataclass(frozen=True, slots=True)
class Loop:
    """The body of a loop begins: what follows, until its `Leave`, is written in the body.

    Attributes:
        tire: Which operators take the energy: the first of the body, or the last on the way back.
    """

    stream: int
    tire: TireName


@dataclass(frozen=True, slots=True)
class Leave:
    """The body of `loop` ends; the stream is `out`. Streams of the body may be read after it, too."""

    loop: int
    again: int
    out: int


@dataclass(frozen=True, slots=True)
class Sink:
    stream: int


Step = (
    Source
    | TimedSource
    | Map
    | Filter
    | FlatMap
    | Split
    | Attempt
    | MapAsync
    | RateLimit
    | ForEach
    | Remember
    | Merge
    | Side
    | Union
    | Rebalance
    | Broadcast
    | KeyBy
    | Count
    | Sum
    | Reduce
    | Aggregate
    | Process
    | TopN
    | Tally
    | Trial
    | Stray
    | Transform
    | Counted
    | Deduplicate
    | Mortal
    | Pairs
    | Rules
    | Newest
    | Sift
    | Patient
    | Tolerant
    | Times
    | Hold
    | Window
    | Join
    | Loop
    | Leave
    | Sink
)
Keyed = Count | Sum | Reduce | Aggregate | Process | TopN | Tally | Trial
Timed = Window | Join
OfTwoKeyed = Join | Pairs | Newest
AfterKeyBy = (
    Keyed | Hold | Timed | Counted | Deduplicate | Mortal | Pairs | Rules | Newest | Sift | Patient | Tolerant
)


def _word(kind: type[Any]) -> str:
    return "side_output" if kind is Side else re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


OPERATORS: Mapping[str, type[Any]] = {_word(kind): kind for kind in get_args(Step)}
"""By the word that a step begins with in a description."""
OPERATOR_OF = {kind: name for name, kind in OPERATORS.items()}


def part_name(step: Step, part: int) -> str:
    """Return what the side output of a part is called in the flow."""
    has_letters = isinstance(step, Attempt | MapAsync | ForEach) or (isinstance(step, Process) and part == 1)
    return DEAD_LETTERS if has_letters else f"part {part}"


def part_count(step: Step) -> int:
    """Return how many side outputs a step has."""
    match step:
        case Split():
            return step.parts
        case Attempt() | MapAsync() | ForEach():
            return 1
        case Process():
            return 2
        case _:
            return 0
