"""From operators to the graph that runs: checks, chains, edges, fingerprint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from hashlib import sha256
from typing import assert_never

from crosscut.contracts.dead_letters import DEAD_LETTERS
from crosscut.contracts.frames import FrameSource
from crosscut.errors import FlowError, invariant
from crosscut.graph.back_edges import back_edges
from crosscut.graph.components import check_loops
from crosscut.graph.event_time import timed_operators
from crosscut.graph.frames import (
    FrameAggregateSpec,
    FrameKeyBySpec,
    FrameMapSpec,
    FrameRowsSpec,
    FrameSpec,
)
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.graph.lookup import LookupSpec
from crosscut.graph.rate_limit import shared_turns
from crosscut.graph.repeatable import check_repeatable
from crosscut.graph.source_groups import check_alignment
from crosscut.graph.specs import (
    AggregateSpec,
    AssignTimestampsSpec,
    AsyncMapSpec,
    CombineSpec,
    ConnectSpec,
    CountSpec,
    Edge,
    FilterSpec,
    FlatMapSpec,
    ForEachSpec,
    Input,
    InspectSpec,
    JobGraph,
    KeyBySpec,
    LoopSpec,
    MapSpec,
    OperatorNode,
    OperatorSpec,
    ProcessSpec,
    ReduceSpec,
    SideOutput,
    SinkSpec,
    SourceSpec,
    SplitSpec,
    StreamProcessSpec,
    SumSpec,
    UnionSpec,
    Vertex,
    dead_letters_of,
)
from crosscut.graph.windows import CountFold, WindowSpec

_TO_TEXT = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_FINGERPRINT_FORMAT = 2
"""Grows when what a vertex is changes, so that snapshots of older releases are refused by name."""


def kind_of(spec: OperatorSpec) -> str:
    """Return what the user calls this operator: the name of the method that adds it."""
    match spec:
        case SourceSpec():
            return "source"
        case LookupSpec():
            return "lookup"
        case MapSpec():
            return "map"
        case FilterSpec():
            return "filter"
        case FlatMapSpec():
            return "flat_map"
        case SplitSpec():
            return "split"
        case AsyncMapSpec():
            return spec.kind
        case ForEachSpec():
            return "for_each"
        case InspectSpec():
            return "inspect"
        case AssignTimestampsSpec():
            return "assign_timestamps"
        case KeyBySpec():
            return "key_by"
        case LoopSpec():
            return "loop"
        case UnionSpec():
            return "union"
        case CountSpec():
            return "count"
        case SumSpec():
            return "sum"
        case ReduceSpec():
            return "reduce"
        case AggregateSpec():
            return spec.kind
        case CombineSpec():
            return "combine"
        case ProcessSpec() | StreamProcessSpec():
            return "process"
        case WindowSpec():
            return "window"
        case IntervalJoinSpec():
            return "interval_join"
        case WindowJoinSpec():
            return "window_join"
        case LatestJoinSpec():
            return "latest_join"
        case ConnectSpec():
            return "connect"
        case FrameSpec():
            return "frame"
        case FrameMapSpec():
            return spec.kind
        case FrameRowsSpec():
            return "rows"
        case FrameKeyBySpec():
            return "key_by"
        case FrameAggregateSpec():
            return "agg"
        case SinkSpec():
            return "sink"
    assert_never(spec)


def compiled(name: str, nodes: Sequence[OperatorNode], parallelism: int, max_parallelism: int) -> JobGraph:
    """Return the graph that runs `nodes`.

    Args:
        name: Of the flow.
        nodes: Each after all that it reads from; the head of a loop comes before what comes around to it.
        parallelism: Tasks per vertex.
        max_parallelism: Number of key groups, at least `parallelism`.

    Raises:
        FlowError: There is no source or sink, or an operator leads nowhere, or a final result leads back
            to itself.
    """
    consumers: dict[str, list[OperatorNode]] = {node.uid: [] for node in nodes}
    invariant(len(consumers) == len(nodes), f"flow {name!r} has two operators with one uid")
    read_aside: dict[str, set[str]] = {node.uid: set() for node in nodes}
    for node in nodes:
        for read in node.inputs:
            if read.output:
                read_aside[read.uid].add(read.output)
            else:
                consumers[read.uid].append(node)
    _check(name, nodes, consumers, read_aside)
    check_repeatable(name, nodes)

    timed = timed_operators(name, nodes)
    vertices = tuple(
        replace(
            vertex,
            has_event_time=vertex.chain[-1].uid in timed,
            untimed=tuple(node.uid for node in vertex.chain if not _sets_aside_with_times(node, timed)),
        )
        for vertex in _chained(nodes, consumers, parallelism)
    )
    check_alignment(name, vertices)
    vertex_of = {node.uid: vertex.vertex_id for vertex in vertices for node in vertex.chain}
    # Only the head of a chain reads from other vertices; they read what its end returns, and side outputs.
    edges = [
        Edge(
            position,
            vertex_of[read.uid],
            vertex.vertex_id,
            read.how,
            side=SideOutput(read.uid, read.output) if read.output else None,
        )
        for vertex in vertices
        for position, read in enumerate(vertex.chain[0].inputs)
    ]
    closing = back_edges([v.vertex_id for v in vertices], [(one.source, one.target) for one in edges])
    edges = [replace(one, back_edge=(one.source, one.target) in closing) for one in edges]
    graph = JobGraph(
        name, vertices, tuple(edges), parallelism, max_parallelism, _fingerprint(vertices, max_parallelism)
    )
    check_loops(graph)
    return graph


def _check(
    name: str,
    nodes: Sequence[OperatorNode],
    consumers: Mapping[str, Sequence[OperatorNode]],
    read_aside: Mapping[str, Set[str]],
) -> None:
    if not any(isinstance(node.spec, SourceSpec) for node in nodes):
        raise FlowError(f"flow {name!r} has no source: start a stream with flow.source(...)")
    if not any(isinstance(node.spec, SinkSpec | ForEachSpec) for node in nodes):
        raise FlowError(f"flow {name!r} has no sink: end a stream with .sink(...)")
    for node in nodes:
        for output in _promised_aside(node.spec):
            if output not in read_aside[node.uid]:
                raise FlowError(
                    f"flow {name!r}: the stream {output!r} of operator {node.uid!r} leads nowhere: go on "
                    f"with it, or leave it out",
                    operator=node.uid,
                )
        if not consumers[node.uid] and not isinstance(node.spec, SinkSpec | SplitSpec | ForEachSpec):
            hint = "count, sum, ..." if isinstance(node.spec, KeyBySpec) else "sink"
            hint = "agg" if isinstance(node.spec, FrameKeyBySpec) else hint
            raise FlowError(
                f"flow {name!r}: the stream of operator {node.uid!r} leads nowhere: "
                f"go on with .{hint} or remove the operator",
                operator=node.uid,
            )


def _sets_aside_with_times(node: OperatorNode, timed: frozenset[str]) -> bool:
    """Whether the side outputs of an operator have timestamps; of `assign_timestamps`, those that came."""
    if isinstance(node.spec, AssignTimestampsSpec):
        return any(read.uid in timed for read in node.inputs)
    return node.uid in timed


def _promised_aside(spec: OperatorSpec) -> tuple[str, ...]:
    """Return the names of the side outputs that somebody must read."""
    names = tuple(name for name, _ in spec.predicates) if isinstance(spec, SplitSpec) else ()
    if (late := getattr(spec, "late", None)) is not None:
        names = (*names, late)
    return (*names, DEAD_LETTERS) if dead_letters_of(spec) else names


def _chained(
    nodes: Sequence[OperatorNode], consumers: Mapping[str, Sequence[OperatorNode]], parallelism: int
) -> tuple[Vertex, ...]:
    """Put each operator into its predecessor's chain if nothing else feeds it or reads from that.

    The id of a vertex is the uid of its first operator: keyed state and source positions are found by the
    uid of the operator they belong to. Heads in the order of writing are a topological order.
    """
    chains: dict[str, list[OperatorNode]] = {}
    chain_of: dict[str, list[OperatorNode]] = {}
    for node in nodes:
        chain: list[OperatorNode] | None = None
        if len(node.inputs) == 1:
            (read,) = node.inputs
            # These begin a vertex: state is found by the vertex, one for each.
            is_chained = read.how == "forward" and not isinstance(node.spec, StreamProcessSpec | AsyncMapSpec)
            if is_chained and not read.output and len(consumers[read.uid]) == 1:
                chain = chain_of[read.uid]
        if chain is None:
            chain = chains[node.uid] = []
        chain.append(_fitted(node, consumers[node.uid], parallelism))
        chain_of[node.uid] = chain
    return tuple(Vertex(uid, tuple(chain)) for uid, chain in chains.items())


def _fitted(node: OperatorNode, consumers: Sequence[OperatorNode], parallelism: int) -> OperatorNode:
    """Return the operator as one that knows what those ask of it that read from it, and how many it is."""
    match node.spec:
        case SourceSpec(FrameSource() as source) if (columns := _columns_read(consumers)) is not None:
            return replace(node, spec=SourceSpec(source.in_frames(columns)))
        case KeyBySpec() as spec:
            keys_only = len(consumers) == 1 and _needs_only_keys(consumers[0].spec)
            return replace(node, spec=replace(spec, keys_only=keys_only))
        case SplitSpec() as spec:
            return replace(node, spec=replace(spec, has_rest=bool(consumers)))
        case AsyncMapSpec() as spec:
            return replace(node, spec=shared_turns(spec, parallelism))
        case _:
            return node


def _columns_read(consumers: Sequence[OperatorNode]) -> tuple[str, ...] | None:
    """Return the columns that a frame takes of a source, None if anything else reads that, or far from it."""
    match consumers:
        case [OperatorNode(spec=FrameSpec() as spec, inputs=(Input(how="forward"),))]:
            # All of them, where another one is an error.
            return () if spec.is_closed else tuple(spec.schema)
        case _:
            return None


def _needs_only_keys(spec: OperatorSpec) -> bool:
    if isinstance(spec, WindowSpec):
        # What is late is handed on as it came.
        return isinstance(spec.fold, CountFold) and spec.late is None
    return isinstance(spec, CountSpec)


def _fingerprint(vertices: Sequence[Vertex], max_parallelism: int) -> str:
    """Return the digest of what state depends on: of structure, not of code or parallelism.

    Vertices are sorted: the order in which independent parts were written does not matter.
    """
    structure = {
        "format": _FINGERPRINT_FORMAT,
        "max_parallelism": max_parallelism,
        "vertices": [
            [
                {
                    "uid": node.uid,
                    "kind": kind_of(node.spec),
                    "emit": getattr(node.spec, "emit", None),
                    "states": getattr(node.spec, "states", ()),
                    "inputs": [_link(read) for read in node.inputs],
                }
                for node in vertex.chain
            ]
            for vertex in sorted(vertices, key=lambda vertex: vertex.vertex_id)
        ],
    }
    return sha256(_TO_TEXT(structure).encode()).hexdigest()


def _link(read: Input) -> list[str]:
    return [read.uid, read.how, read.output] if read.output else [read.uid, read.how]
