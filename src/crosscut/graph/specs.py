"""What the user wrote, as plain data: one spec per operator, a closed set.

`crosscut.operators` builds the running operator from a spec; the graph itself never runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from crosscut.contracts.columns import Field
from crosscut.contracts.connected_process import ConnectedProcess, StreamProcess
from crosscut.contracts.connectors import Sink, Source
from crosscut.contracts.dead_letters import DEAD_LETTERS, OnError
from crosscut.contracts.process import KeyedProcess
from crosscut.graph.frames import AnyFrameSpec
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.graph.windows import WindowSpec

Emit = Literal["updates", "final"]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    source: Source


@dataclass(frozen=True, slots=True)
class MapSpec:
    function: Callable[[Any], Any]
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class FilterSpec:
    function: Callable[[Any], Any]
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class FlatMapSpec:
    function: Callable[[Any], Iterable[Any]]
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """Sends each record out under the first name whose predicate is true.

    `has_rest`: somebody reads the records for which none is; else there must be none.
    """

    predicates: tuple[tuple[str, Callable[[Any], Any]], ...]
    has_rest: bool = False
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class AsyncMapSpec:
    """Replaces each record by what a call returns that others make: a coroutine, or a thread. Always the
    first of its vertex.

    Attributes:
        capacity: Calls of one task that may be under way.
        timeout_ms: How long one may take.
        retries: How often one is made again that has failed.
        ordered: Results leave in the order of the records.
        kind: The method that adds it.
    """

    function: Callable[[Any], Any]
    capacity: int
    timeout_ms: float
    retries: int
    ordered: bool
    on_error: OnError = "fail"
    kind: Literal["map_async", "rate_limit"] = "map_async"


@dataclass(frozen=True, slots=True)
class InspectSpec:
    """Shows each record to a function, and passes it on."""

    function: Callable[[Any], object]
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class WatermarkHold:
    """The watermark does not follow the records, which come in no order.

    Attributes:
        at_ms: It stands there; None: there is none yet.
    """

    at_ms: int | None


@dataclass(frozen=True, slots=True)
class AssignTimestampsSpec:
    """Gives each record its event time; its watermark stays `out_of_orderness_ms` below the newest.

    `idle_after_ms`: A split that has given nothing for so long is not waited for.
    `align_within_ms`: A split waits while it is further ahead of the slowest one, None: never, of all sources
    with the same `align_group`; "": of this one.
    `hold`: Where its watermark stands instead.
    """

    function: Callable[[Any], Any]
    out_of_orderness_ms: int = 0
    idle_after_ms: int | None = None
    align_within_ms: int | None = None
    align_group: str = ""
    hold: WatermarkHold | None = None
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class ForEachSpec:
    """Shows each record to a function. The stream ends there."""

    function: Callable[[Any], object]
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class KeyBySpec:
    """Gives each record its key. Always the last of its vertex; what follows is a hash edge.

    `keys_only`: the only consumer (a count) needs no values, so they are not shipped.
    `field`: what the function takes of a record, where the source gives columns; None: that may be anything.
    """

    function: Callable[[Any], Any]
    keys_only: bool = False
    on_error: OnError = "fail"
    field: Field | None = None


@dataclass(frozen=True, slots=True)
class UnionSpec:
    """Several inputs, one output: has no function of its own."""


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """The head of a loop: what comes in and what comes around again. Has no function of its own."""


@dataclass(frozen=True, slots=True)
class CountSpec:
    emit: Emit


@dataclass(frozen=True, slots=True)
class SumSpec:
    function: Callable[[Any], Any]
    emit: Emit
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class ReduceSpec:
    function: Callable[[Any, Any], Any]
    emit: Emit
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """`initial()` makes an accumulator, `add(accumulator, record)` returns the next one, `result`
    turns one into what is emitted (the accumulator itself if None), `merge` makes one of two (None: nobody
    can). `kind` tells apart those whose accumulators differ."""

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None
    emit: Emit
    on_error: OnError = "fail"
    merge: Callable[[Any, Any], Any] | None = None
    kind: str = "aggregate"


CombinedFold = CountSpec | SumSpec | AggregateSpec


@dataclass(frozen=True, slots=True)
class CombineSpec:
    """Does a part of `fold`, which is behind the shuffle that follows: it folds what a batch of the
    micro-batch engine has of each key, and sends that on in place of the records. In no graph that a flow
    is compiled to; see `crosscut.graph.combining`."""

    fold: CombinedFold


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """`states`: name and kind of each state that the process declares, sorted."""

    process: KeyedProcess[Any, Any]
    states: tuple[tuple[str, str], ...]
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class StreamProcessSpec:
    """A process of records without keys; see `ProcessSpec`."""

    process: StreamProcess[Any, Any]
    states: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ConnectSpec:
    """A process of the records of two inputs; see `ProcessSpec`."""

    process: ConnectedProcess[Any, Any, Any]
    states: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SinkSpec:
    sink: Sink


def dead_letters_of(spec: object) -> bool:
    """Return whether the operator sends records for which it raises to its side output `DEAD_LETTERS`."""
    return getattr(spec, "on_error", "fail") == DEAD_LETTERS


OperatorSpec = (
    SourceSpec
    | MapSpec
    | FilterSpec
    | FlatMapSpec
    | SplitSpec
    | AsyncMapSpec
    | InspectSpec
    | ForEachSpec
    | AssignTimestampsSpec
    | KeyBySpec
    | UnionSpec
    | LoopSpec
    | CountSpec
    | SumSpec
    | ReduceSpec
    | AggregateSpec
    | CombineSpec
    | ProcessSpec
    | StreamProcessSpec
    | ConnectSpec
    | WindowSpec
    | IntervalJoinSpec
    | WindowJoinSpec
    | LatestJoinSpec
    | AnyFrameSpec
    | SinkSpec
)
Partitioning = Literal["forward", "hash", "rebalance", "broadcast"]


class Input(NamedTuple):
    """What an operator reads.

    Attributes:
        uid: Of the operator read from.
        how: How the records are distributed.
        output: The name of the side output that is read; "": what the operator returns.
    """

    uid: str
    how: Partitioning
    output: str = ""


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """One operator of the flow.

    Attributes:
        uid: Unique within the flow, stable across releases of it: state is found by it.
        inputs: In order.
        is_named: Whether the user has given the uid; else it is place and kind, as "3-map".
    """

    uid: str
    spec: OperatorSpec
    inputs: tuple[Input, ...]
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class SideOutput:
    """The records that operator `uid` says under a name, beside those that it returns."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A link between two vertices; becomes channels between their tasks.

    `input` is its position among the inputs of the target; together they call it, whatever the order of the
    vertices. `back_edge`: closes a cycle. `side`: what leaves there; None: what the last operator returns.
    """

    input: int
    source: str
    target: str
    partitioning: Partitioning
    back_edge: bool = False
    side: SideOutput | None = None

    def __str__(self) -> str:
        side_text = f" ({self.side.name!r} of {self.side.uid})" if self.side is not None else ""
        return f"{self.source}{side_text} -> {self.target}#{self.input}"


@dataclass(frozen=True, slots=True)
class Vertex:
    """A chain of operators that run as plain calls on a batch, one after the other.

    `has_event_time`: what leaves it has timestamps.
    `untimed`: its operators, by uid, that come before them: their side outputs have none.
    """

    vertex_id: str
    chain: tuple[OperatorNode, ...]
    has_event_time: bool = False
    untimed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What people are shown: the uid of the first operator that the user has named, else its id.

        It is not the id, since state is found by that, and must be after another operator gets a name.
        """
        return next((node.uid for node in self.chain if node.is_named), self.vertex_id)

    @property
    def title(self) -> str:
        """The name, and the id where that is another one: messages about tasks have the id."""
        return self.name if self.name == self.vertex_id else f"{self.name} ({self.vertex_id})"

    @property
    def source(self) -> SourceSpec | None:
        """The source at the head of the chain, if the vertex has one."""
        spec = self.chain[0].spec
        return spec if isinstance(spec, SourceSpec) else None

    @property
    def sink(self) -> SinkSpec | None:
        """The sink at the end of the chain, if the vertex has one."""
        spec = self.chain[-1].spec
        return spec if isinstance(spec, SinkSpec) else None


@dataclass(frozen=True, slots=True)
class JobGraph:
    """The compiled flow: vertices in topological order (back edges aside), and edges.

    Attributes:
        name: Of the flow.
        fingerprint: Hex digest of the structure (uids, kinds, edges, max_parallelism), not of the
            code: changing a function's body keeps it.
    """

    name: str
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    parallelism: int
    max_parallelism: int
    fingerprint: str
