"""Which sources wait for each other, so that none is read far ahead of the slowest (`align_within`)."""

from __future__ import annotations

from collections.abc import Iterable

from crosscut.errors import FlowError
from crosscut.graph.specs import AssignTimestampsSpec, JobGraph, Vertex
from crosscut.ids import VertexId
from crosscut.protocol.source_groups import AlignedSplits


def aligned_splits(vertex: Vertex) -> AlignedSplits | None:
    """Return what decides which splits of a source's task wait; None: none ever does."""
    for node in vertex.chain:
        if isinstance(node.spec, AssignTimestampsSpec) and node.spec.align_within_ms is not None:
            return AlignedSplits(_group(vertex, node.spec), node.spec.align_within_ms)
    return None


def source_groups(graph: JobGraph) -> tuple[tuple[VertexId, str], ...]:
    """Return the group of each source that is in one."""
    found = ((vertex, aligned_splits(vertex)) for vertex in graph.vertices)
    return tuple((VertexId(vertex.vertex_id), one.group) for vertex, one in found if one is not None)


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
