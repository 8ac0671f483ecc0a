"""The steps of a described flow: one for each call of the API, which names the steps it reads by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from crosscut.dead_letters import DEAD_LETTERS
from crosscut.graph.specs import Emit

MapName = Literal["same", "plain", "add", "mix", "number", "energise"]
FilterName = Literal["multiples", "others", "energy", "exhausted", "all", "none"]
FlatMapName = Literal["copies", "some", "spread", "yielded"]
KeyName = Literal["number", "text", "bytes", "bool", "one", "with energy", "nested with energy"]
ReduceName = Literal["newest", "most", "merged"]
SumName = Literal["weight", "number", "itself"]
AggregateName = Literal["length", "last", "both", "cell", "pair", "numbers"]
AttemptName = Literal["map", "filter", "flat_map", "inspect"]
TimeName = Literal["in order", "scattered"]
ClockName = Literal["event time", "processing time"]
WindowName = Literal["tumbling", "sliding", "session"]
FoldName = Literal["count", "sum", "reduce", "aggregate", "process"]
JoinName = Literal["interval", "window", "latest"]
HowName = Literal["inner", "left", "right", "outer"]
CallName = Literal["coroutine", "thread"]
OrderName = Literal["ordered", "unordered"]
TireName = Literal["flat_map first", "flat_map last", "filter and map last"]

UPDATES_ONLY = frozenset({"newest", "last", "both"})
"""Whose value at the end depends on the order of the records."""
FINAL_ONLY = frozenset({"most", "merged", "number", "itself", "numbers"})
"""Whose values on the way depend on the order of the records."""
KEYS_WITH_ENERGY = frozenset({"with energy", "nested with energy"})


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
class Side:
    """What a `split`, `process`, `attempt` or `map_async` says under the name of a part."""

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
    """A process that keeps each record until a timer fires, `delay` ms after it happened or came."""

    keyed: int
    clock: ClockName
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
    | Times
    | Hold
    | Window
    | Join
    | Loop
    | Leave
    | Sink
)
Keyed = Count | Sum | Reduce | Aggregate | Process
Timed = Window | Join
AfterKeyBy = Keyed | Hold | Timed

OPERATORS: Mapping[str, type[Any]] = {
    "source": Source,
    "map": Map,
    "filter": Filter,
    "flat_map": FlatMap,
    "split": Split,
    "attempt": Attempt,
    "map_async": MapAsync,
    "side_output": Side,
    "union": Union,
    "rebalance": Rebalance,
    "broadcast": Broadcast,
    "key_by": KeyBy,
    "count": Count,
    "sum": Sum,
    "reduce": Reduce,
    "aggregate": Aggregate,
    "process": Process,
    "times": Times,
    "hold": Hold,
    "window": Window,
    "join": Join,
    "loop": Loop,
    "leave": Leave,
    "sink": Sink,
    "timed_source": TimedSource,
}
OPERATOR_OF = {kind: name for name, kind in OPERATORS.items()}


def part_name(step: Step, part: int) -> str:
    """Return what the side output of a part is called in the flow."""
    has_letters = isinstance(step, Attempt | MapAsync) or (isinstance(step, Process) and part == 1)
    return DEAD_LETTERS if has_letters else f"part {part}"


def part_count(step: Step) -> int:
    """Return how many side outputs a step has."""
    match step:
        case Split():
            return step.parts
        case Attempt() | MapAsync():
            return 1
        case Process():
            return 2
        case _:
            return 0
