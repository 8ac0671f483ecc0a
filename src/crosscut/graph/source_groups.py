"""Which sources wait for each other, so that none is read far ahead of the slowest.

Those for which the user says so (`align_within`), and those of one join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from crosscut.contracts.windows import LocalDays, Session, Sliding, Tumbling
from crosscut.errors import FlowError
from crosscut.foundation.ids import VertexId
from crosscut.foundation.local_days import DAY_MS
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.graph.specs import AssignTimestampsSpec, JobGraph, Vertex
from crosscut.protocol.splits.alignment import AlignedSplits, JoinedSplits

Join = IntervalJoinSpec | WindowJoinSpec | LatestJoinSpec


def aligned_splits(graph: JobGraph, vertex: Vertex) -> AlignedSplits | None:
    """Return what decides which splits of a source's task wait; None: none ever does."""
    asked = _asked(vertex)
    if asked is not None:
        return asked
    for joined in _joined(graph):
        if vertex.vertex_id in joined.sources:
            return JoinedSplits(joined.name, VertexId(vertex.vertex_id), joined.reach_ms)
    return None


def source_groups(graph: JobGraph) -> tuple[tuple[VertexId, str], ...]:
    """Return the group of each source for which the user has asked for one."""
    found = ((vertex, _asked(vertex)) for vertex in graph.vertices)
    return tuple((VertexId(vertex.vertex_id), one.group) for vertex, one in found if one is not None)


def joined_sources(graph: JobGraph) -> tuple[tuple[VertexId, str], ...]:
    """Return the join, or several that share sources, of each source that is joined with others."""
    return tuple((VertexId(source), one.name) for one in _joined(graph) for source in one.sources)


def _asked(vertex: Vertex) -> AlignedSplits | None:
    for node in vertex.chain:
        if isinstance(node.spec, AssignTimestampsSpec) and node.spec.align_within_ms is not None:
            return AlignedSplits(_group(vertex, node.spec), node.spec.align_within_ms)
    return None


@dataclass(slots=True)
class _Joined:
    """Sources that meet in a join.

    Attributes:
        reach_ms: How far apart in event time two records are at most that can meet.
    """

    name: str
    sources: tuple[str, ...]
    reach_ms: int


def _joined(graph: JobGraph) -> list[_Joined]:
    """Return the sources that meet in joins; those of several joins together, if they share one."""
    by_id = {vertex.vertex_id: vertex for vertex in graph.vertices}
    before: dict[str, list[str]] = {}
    for edge in graph.edges:
        before.setdefault(edge.target, []).append(edge.source)
    found: list[_Joined] = []
    for vertex in graph.vertices:
        for node in vertex.chain:
            if not isinstance(node.spec, Join):
                continue
            one = _Joined(f"join {node.uid}", _timed_sources(vertex, by_id, before), _reach_ms(node.spec))
            for other in [other for other in found if set(other.sources) & set(one.sources)]:
                found.remove(other)
                sources = dict.fromkeys((*other.sources, *one.sources))
                one = _Joined(other.name, tuple(sources), max(other.reach_ms, one.reach_ms))
            found.append(one)
    return [one for one in found if len(one.sources) > 1]


def _timed_sources(
    join: Vertex, by_id: Mapping[str, Vertex], before: Mapping[str, list[str]]
) -> tuple[str, ...]:
    """Return the sources in front of `join` whose own watermarks reach it, and that wait for no others."""
    found, seen, ahead = [], {join.vertex_id}, list(before.get(join.vertex_id, ()))
    while ahead:
        name = ahead.pop(0)
        if name in seen:
            continue
        seen.add(name)
        vertex = by_id.get(name)
        if vertex is None:
            # Of another stage, in batches: no task waits there.
            continue
        specs = [node.spec for node in vertex.chain if isinstance(node.spec, AssignTimestampsSpec)]
        if vertex.source is not None:
            if specs and all(one.hold is None and one.align_within_ms is None for one in specs):
                found.append(name)
        elif not specs:
            ahead += before.get(name, ())
    return tuple(sorted(found))


def _reach_ms(spec: Join) -> int:
    match spec:
        case IntervalJoinSpec(lower_ms, upper_ms):
            return max(abs(lower_ms), abs(upper_ms), upper_ms - lower_ms)
        case WindowJoinSpec():
            match spec.window:
                case Tumbling(size_ms=size_ms) | Sliding(size_ms=size_ms):
                    return size_ms + spec.lateness_ms
                case LocalDays(days):
                    return days * DAY_MS + spec.lateness_ms
                case Session(gap_ms):
                    return gap_ms + spec.lateness_ms
                case _:
                    return spec.lateness_ms
        case LatestJoinSpec():
            return 0
        case _:
            assert_never(spec)


def check_alignment(name: str, vertices: Iterable[Vertex]) -> None:
    """Refuse `align_within` where it can have no effect.

    Raises:
        FlowError: It is not in the chain of a source, or other timestamps are assigned after it.
    """
    for vertex in vertices:
        specs = [node for node in vertex.chain if isinstance(node.spec, AssignTimestampsSpec)]
        for node in specs:
            if getattr(node.spec, "align_within_ms", None) is None:
                continue
            if vertex.source is None:
                raise FlowError(
                    f"flow {name!r}, operator {node.uid!r}: align_within makes splits of a source wait, and "
                    f"they are mixed here: call assign_timestamps in front of the first key_by, rebalance, "
                    f"union or second reader",
                    operator=node.uid,
                )
            if node is not specs[-1]:
                raise FlowError(
                    f"flow {name!r}, operator {node.uid!r}: {specs[-1].uid!r} assigns timestamps again: say "
                    f"align_within there",
                    operator=node.uid,
                )


def _group(vertex: Vertex, spec: AssignTimestampsSpec) -> str:
    return f"group {spec.align_group}" if spec.align_group else f"source {vertex.vertex_id}"
