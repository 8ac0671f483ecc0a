"""A flow over its history: the same graph with bounded input in place of one source. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crosscut.connectors.simple.nothing import Discarding, Nothing
from crosscut.contracts.connectors import Source
from crosscut.errors import FlowError
from crosscut.graph.components import reached_from
from crosscut.graph.specs import (
    AggregateSpec,
    AssignTimestampsSpec,
    AsyncMapSpec,
    CountSpec,
    FilterSpec,
    FlatMapSpec,
    ForEachSpec,
    Input,
    JobGraph,
    KeyBySpec,
    MapSpec,
    OperatorNode,
    OperatorSpec,
    ReduceSpec,
    SinkSpec,
    SourceSpec,
    SplitSpec,
    SumSpec,
    UnionSpec,
    Vertex,
    WatermarkHold,
)
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import TaskSnapshot


def history_source(graph: JobGraph, uid: str | None) -> str:
    """Return the uid of the source that a history stands for.

    Args:
        uid: As the user says it; None: there is only one.

    Raises:
        FlowError: There is no such source, or there are several and none was named.
    """
    sources = [one.chain[0].uid for one in graph.vertices if one.source is not None]
    named = ", ".join(map(repr, sources))
    if uid is None and len(sources) > 1:
        raise FlowError(
            f"flow {graph.name!r} has {len(sources)} sources: say with source= which one the DataFrame "
            f"stands for, of {named}"
        )
    if uid is not None and uid not in sources:
        raise FlowError(
            f"flow {graph.name!r} has no source {uid!r}: expected {named} (name sources with .named())",
            operator=str(uid),
        )
    return uid or sources[0]


def has_event_time(graph: JobGraph) -> bool:
    """Tell whether records of the flow get timestamps."""
    return any(
        isinstance(node.spec, AssignTimestampsSpec) for vertex in graph.vertices for node in vertex.chain
    )


def over_history(
    graph: JobGraph,
    uid: str,
    source: Source[Any],
    *,
    record: Callable[[Any], Any] | None = None,
    writes: bool = False,
    hold: WatermarkHold,
) -> JobGraph:
    """Return `graph` to be run over its history.

    Other sources have nothing and don't end. What keeps step with the present is left out: limits of rates,
    idleness, alignment. The records of a history come in no order, so no watermark is said but that of
    `hold`.

    Args:
        uid: Of the source that `source` stands for.
        record: Makes what the flow's own source would have given.
        writes: Sinks write, and functions of `for_each` are called.
    """
    found = replace(
        graph, vertices=tuple(_vertex(one, uid, source, writes=writes, hold=hold) for one in graph.vertices)
    )
    if not writes:
        found = _without_updates(found)
    return found if record is None else _with_records(found, uid, record)


def _vertex(vertex: Vertex, uid: str, source: Source[Any], *, writes: bool, hold: WatermarkHold) -> Vertex:
    def spec_of(node: OperatorNode) -> OperatorSpec:
        match node.spec:
            case SourceSpec():
                return SourceSpec(source if node.uid == uid else Nothing())
            case SinkSpec() if not writes:
                return SinkSpec(Discarding())
            case ForEachSpec() if not writes:
                return ForEachSpec(_ignored)
            case AssignTimestampsSpec(function, on_error=on_error):
                return AssignTimestampsSpec(function, hold=hold, on_error=on_error)
            case AsyncMapSpec(kind="rate_limit"):
                return MapSpec(_same)
            case spec:
                return spec

    return replace(vertex, chain=tuple(replace(node, spec=spec_of(node)) for node in vertex.chain))


def _without_updates(graph: JobGraph) -> JobGraph:
    """Return `graph` with counts, sums, ... that say nothing where all that hears them keeps nothing."""
    keeping = {one.vertex_id for one in graph.vertices if not all(map(_keeps_nothing, one.chain))}
    vertices = []
    for vertex in graph.vertices:
        first, *others = vertex.chain
        after = reached_from(vertex.vertex_id, graph.edges) - {vertex.vertex_id}
        is_observed = bool(after & keeping) or not all(map(_keeps_nothing, others))
        match first.spec:
            case CountSpec() | SumSpec() | ReduceSpec() | AggregateSpec() if not is_observed:
                silent = replace(first, spec=replace(first.spec, emit="final"))
                vertices.append(replace(vertex, chain=(silent, *others)))
            case _:
                vertices.append(vertex)
    return replace(graph, vertices=tuple(vertices))


def _keeps_nothing(node: OperatorNode) -> bool:
    """Whether the operator, after the end, holds no trace of any record."""
    match node.spec:
        case MapSpec() | FilterSpec() | FlatMapSpec() | SplitSpec() | UnionSpec() | KeyBySpec():
            return True
        case SinkSpec(Discarding()):
            return True
        case ForEachSpec(function):
            return function is _ignored
        case _:
            return False


def _with_records(graph: JobGraph, uid: str, record: Callable[[Any], Any]) -> JobGraph:
    """Return `graph` with a map right after the source; no edge leads to it, so nothing else changes."""
    vertices = []
    for vertex in graph.vertices:
        if vertex.source is not None and vertex.chain[0].uid == uid:
            made = OperatorNode(f"{uid}.record", MapSpec(record), (Input(uid, "forward"),))
            vertex = replace(
                vertex,
                chain=(vertex.chain[0], made, *vertex.chain[1:]),
                untimed=(*vertex.untimed, made.uid),
            )
        vertices.append(vertex)
    return replace(graph, vertices=tuple(vertices))


def _same(record: Any) -> Any:
    return record


def _ignored(record: Any) -> None:
    """Do nothing with a record, in place of a function whose effects the backfill does not want."""


def unread_rows(checkpoint: CheckpointCompleted) -> int:
    """Return how many rows of the history are not in the checkpoint."""
    left = 0
    for one in checkpoint.snapshots:
        rows: Any = one.snapshot.positions or []
        for _, _, detail, _, position in rows:
            if isinstance(detail, dict) and isinstance(count := detail.get("rows"), int):
                left += count - position
    return left


def without_input(checkpoint: CheckpointCompleted) -> CheckpointCompleted:
    """Return the checkpoint as the beginning of a job whose sources begin with all their splits.

    What was read is of the history: the sources that it stood for know no such splits.
    """
    snapshots = tuple(
        TaskSnapshot(one.task, replace(one.snapshot, positions=None)) for one in checkpoint.snapshots
    )
    return replace(checkpoint, snapshots=snapshots, known_splits=())
