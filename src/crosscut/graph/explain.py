"""The compiled graph as text, for people: what `Flow.explain` prints."""

from __future__ import annotations

import re

from crosscut.contracts.connectors import Guarantee, Source
from crosscut.contracts.dead_letters import DEAD_LETTERS
from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.foundation.frame_rows import schema_text
from crosscut.foundation.keys import groups_of_task
from crosscut.graph.channels import channels_of
from crosscut.graph.compile import kind_of
from crosscut.graph.frames import FrameAggregateSpec, FrameMapSpec, FrameSpec
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.graph.specs import (
    AggregateSpec,
    AssignTimestampsSpec,
    AsyncMapSpec,
    ConnectSpec,
    CountSpec,
    ForEachSpec,
    JobGraph,
    KeyBySpec,
    OperatorNode,
    ProcessSpec,
    ReduceSpec,
    SinkSpec,
    SourceSpec,
    SplitSpec,
    StreamProcessSpec,
    SumSpec,
    dead_letters_of,
)
from crosscut.graph.windows import WindowSpec

_TASKS_SHOWN = 4
_KEYED = (CountSpec, SumSpec, ReduceSpec, AggregateSpec)
_TIMED = (WindowSpec, IntervalJoinSpec, WindowJoinSpec, LatestJoinSpec)
_PROCESSES = (ProcessSpec, StreamProcessSpec, ConnectSpec)
_WITH_STATE = (*_KEYED, FrameAggregateSpec, *_PROCESSES, *_TIMED, AsyncMapSpec, SourceSpec, SinkSpec)


def explained(graph: JobGraph) -> str:
    """Return vertices, channels, key groups, back edges and guarantees of `graph`, one a line.

    The same graph gives the same text in every process; the format is for people and may change.
    """
    keyed = [v.vertex_id for v in graph.vertices if any(read.how == "hash" for read in v.chain[0].inputs)]
    backward = [str(edge) for edge in graph.edges if edge.back_edge]
    lines = [
        f"flow {graph.name}, fingerprint {graph.fingerprint[:12]}",
        "",
        f"vertices: {len(graph.vertices)}, each of {_counted(graph.parallelism, 'task')}",
        *(f"  {vertex.title}: {' > '.join(map(_operator, vertex.chain))}" for vertex in graph.vertices),
        "",
        f"channels: {sum(len(channels_of(graph, edge)) for edge in graph.edges)}",
        *(
            f"  {edge}: {edge.partitioning}, {_counted(len(channels_of(graph, edge)), 'channel')}"
            for edge in graph.edges
        ),
        "",
        f"key groups: {graph.max_parallelism if keyed else 'none'}",
        *(f"  {vertex_id}: {_groups(graph)}" for vertex_id in keyed),
        "",
        f"back edges: {', '.join(backward) or 'none'}",
        "",
        *_guarantees(graph),
    ]
    if unnamed := _unnamed(graph):
        lines += [
            "",
            f"without a name: {', '.join(unnamed)}",
            "  They have state, and are called by a position that changes with the flow: use .named(...)",
        ]
    lines += _far_from_the_source(graph)
    lines += _inexact(graph)
    return "\n".join(lines)


def _far_from_the_source(graph: JobGraph) -> list[str]:
    """Return a warning of timestamps that are assigned where records of all splits have been mixed."""
    uids = [
        node.uid
        for vertex in graph.vertices
        if vertex.source is None
        for node in vertex.chain
        if isinstance(node.spec, AssignTimestampsSpec)
    ]
    if not uids:
        return []
    return [
        "",
        f"timestamps assigned far from the source: {', '.join(uids)}",
        "  Splits are mixed there, so one that is read ahead makes records of others late: assign them in",
        "  front of the first key_by, rebalance, union or second reader: there each split has a watermark.",
    ]


_WEAKER_AND_WEAKER: tuple[Guarantee, ...] = ("exactly once", "idempotent", "at least once")
_GUARANTEES: dict[Guarantee, str] = {
    "exactly once": "exactly once",
    "idempotent": "exactly once only if the flow is deterministic",
    "at least once": "at least once",
}


_READ_AGAIN = {
    True: "read again from its positions after a failure",
    False: "can't be read again; what it gave since the last checkpoint is lost in a failure",
}


def _guarantees(graph: JobGraph) -> list[str]:
    """Return what readers of each output may rely on, and for all of the flow that of the weakest."""
    nodes = [node for vertex in graph.vertices for node in vertex.chain]
    outputs: dict[str, Guarantee] = {}
    for node in nodes:
        if isinstance(node.spec, SinkSpec):
            outputs[node.uid] = node.spec.sink.guarantee
        elif isinstance(node.spec, ForEachSpec):
            outputs[node.uid] = "at least once"
    inputs = {node.uid: node.spec.source for node in nodes if isinstance(node.spec, SourceSpec)}
    weakest: Guarantee = max(outputs.values(), key=_WEAKER_AND_WEAKER.index, default="exactly once")
    guarantee = _GUARANTEES[weakest]
    because = [uid for uid, one in outputs.items() if one == weakest and one != "exactly once"]
    if losing := [uid for uid, source in inputs.items() if not source.is_replayable]:
        repeats = weakest == "at least once"
        guarantee = f"records may be lost{', or come again,' if repeats else ''} after a failure"
        because = losing + because
    return [
        f"guarantee: {guarantee}" + (f", because of {', '.join(because)}" if because else ""),
        *(f"  {uid}: {_READ_AGAIN[source.is_replayable]}{_looks(source)}" for uid, source in inputs.items()),
        *(f"  {uid}: {_GUARANTEES[one]}" for uid, one in outputs.items()),
    ]


def _looks(source: Source) -> str:
    if not isinstance(source, DynamicSource):
        return ""
    return f"; looks for new splits every {source.discover_every}"


def _inexact(graph: JobGraph) -> list[str]:
    """Return a warning of outputs that a failure may show in."""
    specs = [(node.uid, node.spec) for vertex in graph.vertices for node in vertex.chain]
    inexact: dict[str, list[str]] = {"idempotent": [], "at least once": []}
    for uid, spec in specs:
        if isinstance(spec, ForEachSpec):
            inexact["at least once"].append(uid)
        elif isinstance(spec, SinkSpec) and spec.sink.guarantee in inexact:
            inexact[spec.sink.guarantee].append(uid)
    lines = []
    if uids := inexact["idempotent"]:
        lines += [
            "",
            f"exactly once only if the flow is deterministic: {', '.join(uids)}",
            "  They show records at once, and others after a failure if functions give other results then (a",
            "  time of day, a random number, a look-up), or records come in another order. Both stay.",
        ]
    if uids := inexact["at least once"]:
        lines += ["", f"at least once: {', '.join(uids)}", "  Records may come again after a failure."]
    return lines


def _unnamed(graph: JobGraph) -> list[str]:
    """Return the operators that have state, positions or transactions, and no name of their own."""
    nodes = [node for vertex in graph.vertices for node in vertex.chain]
    return [
        node.uid
        for node in nodes
        if isinstance(node.spec, _WITH_STATE) and re.fullmatch(rf"\d+-{kind_of(node.spec)}", node.uid)
    ]


def _operator(node: OperatorNode) -> str:
    kind = kind_of(node.spec)
    details = [] if node.uid.endswith(f"-{kind}") else [kind]
    if isinstance(node.spec, KeyBySpec) and node.spec.keys_only:
        details.append("keys only")
    if isinstance(node.spec, AsyncMapSpec):
        details += [f"{node.spec.capacity} calls", "ordered" if node.spec.ordered else "unordered"]
    if isinstance(node.spec, SplitSpec):
        details += [name for name, _ in node.spec.predicates] + ["rest"] * node.spec.has_rest
    if isinstance(node.spec, _KEYED):
        details.append(node.spec.emit)
    if isinstance(node.spec, FrameAggregateSpec):
        details.append(node.spec.emit)
    if isinstance(node.spec, FrameSpec | FrameMapSpec | FrameAggregateSpec):
        details.append(schema_text(node.spec.schema))
    if isinstance(node.spec, _PROCESSES):
        details += [f"{name}: {kind}" for name, kind in node.spec.states]
    if dead_letters_of(node.spec):
        details.append(DEAD_LETTERS)
    if isinstance(node.spec, _TIMED):
        details += [what for _, what in node.spec.states]
    return f"{node.uid} ({', '.join(details)})" if details else node.uid


def _groups(graph: JobGraph) -> str:
    shown = [
        f"task {index}: {groups.start}-{groups.stop - 1}"
        for index in range(min(graph.parallelism, _TASKS_SHOWN))
        for groups in [groups_of_task(index, graph.max_parallelism, graph.parallelism)]
    ]
    return ", ".join(shown) + (", ..." if graph.parallelism > _TASKS_SHOWN else "")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
