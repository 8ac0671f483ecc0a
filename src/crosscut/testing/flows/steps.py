"""The steps of a described flow: one for each call of the API, which names the steps it reads by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from crosscut.graph.specs import Emit

MapName = Literal["same", "plain", "add", "mix", "number", "energise"]
FilterName = Literal["multiples", "others", "energy", "exhausted", "all", "none"]
FlatMapName = Literal["copies", "some", "spread", "yielded"]
KeyName = Literal["number", "text", "bytes", "bool", "one", "with energy", "nested with energy"]
ReduceName = Literal["newest", "most", "merged"]
SumName = Literal["weight", "number", "itself"]
AggregateName = Literal["length", "last", "both", "cell", "pair", "numbers"]
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
    | Map
    | Filter
    | FlatMap
    | Union
    | Rebalance
    | Broadcast
    | KeyBy
    | Count
    | Sum
    | Reduce
    | Aggregate
    | Loop
    | Leave
    | Sink
)
Keyed = Count | Sum | Reduce | Aggregate

OPERATORS: Mapping[str, type[Any]] = {
    "source": Source,
    "map": Map,
    "filter": Filter,
    "flat_map": FlatMap,
    "union": Union,
    "rebalance": Rebalance,
    "broadcast": Broadcast,
    "key_by": KeyBy,
    "count": Count,
    "sum": Sum,
    "reduce": Reduce,
    "aggregate": Aggregate,
    "loop": Loop,
    "leave": Leave,
    "sink": Sink,
}
OPERATOR_OF = {kind: name for name, kind in OPERATORS.items()}
