"""From specs to running operators."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar, assert_never

from crosscut.contracts.connected_process import FROM_NOTHING, SHARED_KINDS, Begins, BroadcastState
from crosscut.contracts.connectors import SinkWriter
from crosscut.contracts.process import declared, timer_tables
from crosscut.contracts.state import MapState
from crosscut.errors import InternalError
from crosscut.graph.frames import (
    FrameAggregateSpec,
    FrameKeyBySpec,
    FrameMapSpec,
    FrameRowsSpec,
    FrameSpec,
)
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.graph.specs import (
    AggregateSpec,
    AssignTimestampsSpec,
    AsyncMapSpec,
    CombineSpec,
    ConnectSpec,
    CountSpec,
    FilterSpec,
    FlatMapSpec,
    ForEachSpec,
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
    StreamProcessSpec,
    SumSpec,
    UnionSpec,
    dead_letters_of,
)
from crosscut.graph.windows import WindowSpec
from crosscut.operators.async_map import AsyncMap
from crosscut.operators.connected import Connected, StreamProcessing
from crosscut.operators.dead_letters import (
    AttemptedAggregate,
    AttemptedKeys,
    AttemptedProcess,
    AttemptedSplit,
    AttemptedTimestamps,
    Attempts,
    filtering,
    flat_mapping,
    inspecting,
    mapping,
    only_calling,
)
from crosscut.operators.keyed import Aggregate, Count, nothing_yet, reducing, summing
from crosscut.operators.operator import Operator
from crosscut.operators.process import Process
from crosscut.operators.sides import Sides
from crosscut.operators.sink import SinkOperator
from crosscut.operators.stateless import Filter, FlatMap, ForEach, Inspect, KeyBy, Map, Split
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.state.keyed import KeyedState
from crosscut.state.named import NamedTable
from crosscut.state.timers import TimerTable

T = TypeVar("T")

_NAMED = frozenset({MapState.kind, BroadcastState.kind})


NewState = Callable[..., KeyedState]
"""Makes empty state; called as `KeyedState` is."""


def keyed_state(node: OperatorNode, new: NewState = KeyedState) -> KeyedState | None:
    """Return empty state for the operator, or None if it keeps none by key."""
    match node.spec:
        case CountSpec() | SumSpec():
            return new(int, keeps_keys=True)
        case ReduceSpec() | FrameAggregateSpec():
            return new(nothing_yet, keeps_keys=True)
        case AggregateSpec(initial):
            return new(initial, keeps_keys=True)
        case ProcessSpec(process) | StreamProcessSpec(process) | ConnectSpec(process):
            states = declared(process)
            state = new(
                nothing_yet,
                {name: nothing_yet for name, one in states.items() if one.kind not in _NAMED},
                [
                    *(NamedTable(name) for name, one in states.items() if one.kind in _NAMED),
                    *(TimerTable(name, lists_names=process._lists_timers) for name in timer_tables(process)),
                ],
                shared=[name for name, one in states.items() if one.kind in SHARED_KINDS],
                alike=[name for name, one in states.items() if one.kind == BroadcastState.kind],
            )
            for name, one in states.items():
                if one.ttl_ms is not None:
                    state.tables[name].expire_after(one.ttl_ms)
            return state
        case WindowSpec() | IntervalJoinSpec() | WindowJoinSpec() | LatestJoinSpec():
            # Not above: a worker loads what its graph needs.
            from crosscut.operators.timed_building import timed_state

            return timed_state(node.spec, new)
        case AsyncMapSpec():
            # Few records for a short time, all of which are in memory anyway.
            return KeyedState(nothing_yet)
        case _:
            return None


def build(
    node: OperatorNode,
    state: KeyedState | None,
    writer: SinkWriter | None,
    read_aside: Collection[str] = (),
    begins: Begins = FROM_NOTHING,
) -> Operator | None:
    """Return the running operator of `node`; None for those that do nothing to a batch.

    Args:
        state: For keyed operators.
        writer: For sinks.
        read_aside: The names of those of its side outputs that somebody reads.
        begins: Which task it is for, and from where that goes on.
    """
    spec = node.spec
    if isinstance(spec, AsyncMapSpec):
        return AsyncMap(node.uid, spec, _present(state, node), begins, Sides(node.uid, read_aside))
    if dead_letters_of(spec):
        return _attempting(node, state, Sides(node.uid, read_aside))
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
        case ForEachSpec(function):
            return ForEach(node.uid, function)
        case AssignTimestampsSpec(function, out_of_orderness_ms, idle_after_ms, hold=hold):
            return AssignTimestamps(node.uid, function, out_of_orderness_ms, idle_after_ms, hold)
        case KeyBySpec(function, keys_only, field=field):
            if field is not None:
                from crosscut.operators.combining import ColumnKeys

                return ColumnKeys(node.uid, function, field)
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
        case CombineSpec(fold):
            # Not above: only batches have it.
            from crosscut.operators.combining import combining

            return combining(node.uid, node.inputs[0].uid, fold)
        case ProcessSpec(process):
            return Process(node.uid, process, _present(state, node), Sides(node.uid, read_aside))
        case WindowSpec() | IntervalJoinSpec() | WindowJoinSpec() | LatestJoinSpec():
            from crosscut.operators.timed_building import timed_operator

            return timed_operator(node.uid, spec, _present(state, node), Sides(node.uid, read_aside))
        case FrameAggregateSpec():
            from crosscut.operators.frame_aggregates import AggregateFrame

            return AggregateFrame(node.uid, _present(state, node), spec)
        case FrameSpec() | FrameMapSpec() | FrameRowsSpec() | FrameKeyBySpec():
            # Not above: a worker loads what its graph needs.
            from crosscut.operators.frames import frame_operator

            return frame_operator(node.uid, spec)
        case StreamProcessSpec(process):
            sides = Sides(node.uid, read_aside)
            return StreamProcessing(node.uid, process, _present(state, node), sides, begins)
        case ConnectSpec(process):
            sides = Sides(node.uid, read_aside)
            return Connected(node.uid, process, _present(state, node), sides, begins)
        case _:
            assert_never(spec)


def _attempting(node: OperatorNode, state: KeyedState | None, sides: Sides) -> Operator:
    """Return the operator that sets records aside for which user code raises."""
    match node.spec:
        case MapSpec(function):
            return Attempts(node.uid, mapping(function), sides)
        case FilterSpec(function):
            return Attempts(node.uid, filtering(function), sides)
        case FlatMapSpec(function):
            return Attempts(node.uid, flat_mapping(function), sides)
        case InspectSpec(function):
            return Attempts(node.uid, inspecting(function), sides)
        case ForEachSpec(function):
            return Attempts(node.uid, only_calling(function), sides)
        case SplitSpec(predicates, has_rest):
            return AttemptedSplit(node.uid, predicates, sides, has_rest=has_rest)
        case AssignTimestampsSpec() as spec:
            return AttemptedTimestamps(node.uid, spec, sides)
        case KeyBySpec(function, keys_only):
            return AttemptedKeys(node.uid, function, sides, keys_only=keys_only)
        case SumSpec(function, emit):
            kept = _present(state, node)
            return AttemptedAggregate(node.uid, kept, emit, summing(function), None, sides)
        case ReduceSpec(function, emit):
            kept = _present(state, node)
            return AttemptedAggregate(node.uid, kept, emit, reducing(function), None, sides)
        case AggregateSpec(_, add, result, emit):
            return AttemptedAggregate(node.uid, _present(state, node), emit, add, result, sides)
        case ProcessSpec(process):
            return AttemptedProcess(node.uid, process, _present(state, node), sides)
        case _:
            raise InternalError(f"operator {node.uid!r} has no dead letters")


def _present(part: T | None, node: OperatorNode) -> T:
    if part is None:
        raise TypeError(f"operator {node.uid!r} was built without what it needs")
    return part
