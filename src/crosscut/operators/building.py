"""From specs to running operators."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar, assert_never

from crosscut.graph.specs import (
    AggregateSpec,
    AssignTimestampsSpec,
    CountSpec,
    FilterSpec,
    FlatMapSpec,
    InspectSpec,
    KeyBySpec,
    LoopSpec,
    MapSpec,
    OperatorNode,
    ProcessSpec,
    ReduceSpec,
    SinkSpec,
    SourceSpec,
    SplitSpec,
    SumSpec,
    UnionSpec,
)
from crosscut.interfaces import SinkWriter
from crosscut.keyed_process import MapState
from crosscut.operators.keyed import Aggregate, Count, nothing_yet, reducing, summing
from crosscut.operators.operator import Operator
from crosscut.operators.process import Process
from crosscut.operators.sides import Sides
from crosscut.operators.sink import SinkOperator
from crosscut.operators.stateless import Filter, FlatMap, Inspect, KeyBy, Map, Split
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable

T = TypeVar("T")


NewState = Callable[..., KeyedState]
"""Makes empty state; called as `KeyedState` is."""


def keyed_state(node: OperatorNode, new: NewState = KeyedState) -> KeyedState | None:
    """Return empty state for the operator, or None if it keeps none by key."""
    match node.spec:
        case CountSpec() | SumSpec():
            return new(int)
        case ReduceSpec():
            return new(nothing_yet)
        case AggregateSpec(initial):
            return new(initial)
        case ProcessSpec(_, states):
            return new(
                nothing_yet,
                {name: nothing_yet for name, kind in states if kind != MapState.kind},
                [NamedTable(name) for name, kind in states if kind == MapState.kind],
            )
        case _:
            return None


def build(
    node: OperatorNode,
    state: KeyedState | None,
    writer: SinkWriter | None,
    read_aside: Collection[str] = (),
) -> Operator | None:
    """Return the running operator of `node`; None for those that do nothing to a batch.

    Args:
        state: For keyed operators.
        writer: For sinks.
        read_aside: The names of those of its side outputs that somebody reads.
    """
    spec = node.spec
    match spec:
        case SourceSpec() | UnionSpec() | LoopSpec():
            return None
        case MapSpec(function):
            return Map(node.uid, function)
        case FilterSpec(function):
            return Filter(node.uid, function)
        case FlatMapSpec(function):
            return FlatMap(node.uid, function)
        case SplitSpec(predicates, has_rest):
            return Split(node.uid, predicates, Sides(node.uid, read_aside), has_rest=has_rest)
        case InspectSpec(function):
            return Inspect(node.uid, function)
        case AssignTimestampsSpec(function, out_of_orderness_ms):
            return AssignTimestamps(node.uid, function, out_of_orderness_ms)
        case KeyBySpec(function, keys_only):
            return KeyBy(node.uid, function, keys_only=keys_only)
        case SinkSpec():
            return SinkOperator(node.uid, _present(writer, node))
        case CountSpec(emit):
            return Count(node.uid, _present(state, node), emit)
        case SumSpec(function, emit):
            return Aggregate(node.uid, _present(state, node), emit, summing(function))
        case ReduceSpec(function, emit):
            return Aggregate(node.uid, _present(state, node), emit, reducing(function))
        case AggregateSpec(_, add, result, emit):
            return Aggregate(node.uid, _present(state, node), emit, add, result)
        case ProcessSpec(process):
            return Process(node.uid, process, _present(state, node), Sides(node.uid, read_aside))
        case _:
            assert_never(spec)


def _present(part: T | None, node: OperatorNode) -> T:
    if part is None:
        raise TypeError(f"operator {node.uid!r} was built without what it needs")
    return part
