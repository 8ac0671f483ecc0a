"""Which vertices run together in a stage of a batch, and what can't run in batches at all."""

from __future__ import annotations

from crosscut.errors import FlowError
from crosscut.graph.specs import AssignTimestampsSpec, AsyncMapSpec, JobGraph


def stages_of(graph: JobGraph) -> tuple[tuple[str, ...], ...]:
    """Return the vertices of each stage, in topological order; between two stages records are shuffled.

    A vertex that is led to by `forward` edges only runs with those before it: task i of the one hands its
    records to task i of the other.
    """
    depth: dict[str, int] = {}
    for vertex in graph.vertices:
        depth[vertex.vertex_id] = max(
            (
                depth[edge.source] + (edge.partitioning != "forward")
                for edge in graph.edges
                if edge.target == vertex.vertex_id and not edge.back_edge
            ),
            default=0,
        )
    count = max(depth.values()) + 1
    return tuple(
        tuple(one.vertex_id for one in graph.vertices if depth[one.vertex_id] == stage)
        for stage in range(count)
    )


def check_batches(graph: JobGraph) -> None:
    """Refuse what can't run in batches.

    Raises:
        FlowError: It names the operator.
    """
    for edge in graph.edges:
        if edge.back_edge:
            uid = next(one.chain[0].uid for one in graph.vertices if one.vertex_id == edge.target)
            raise _refused(graph, uid, "is the head of a loop, whose records go round while others come in")
    for vertex in graph.vertices:
        for node in vertex.chain:
            match node.spec:
                case AsyncMapSpec(kind="rate_limit"):
                    raise _refused(graph, node.uid, "lets records through as time passes")
                case AssignTimestampsSpec(align_within_ms=int()):
                    raise _refused(graph, node.uid, "has splits wait for each other while they are read")
                case _:
                    pass


def _refused(graph: JobGraph, uid: str, why: str) -> FlowError:
    return FlowError(
        f"flow {graph.name!r}: operator {uid!r} {why}: engine='micro-batch' can't run it; leave it out, or "
        f"run the flow with engine='continuous'",
        operator=uid,
    )
