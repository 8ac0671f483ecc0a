"""What can run in a job whose workers have logs of their own (`snapshots="logged"`), so far.

All else is refused when the job is built: better a flow that does not run than one that runs nearly right.
"""

from __future__ import annotations

from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.errors import FlowError
from crosscut.graph.specs import JobGraph, Vertex

_INSTEAD = "use snapshots='aligned' for this flow"


def check_logged(graph: JobGraph) -> None:
    """Refuse what a log of a worker can't hold yet.

    Raises:
        FlowError: It names the operator, the reason, and what to use instead.
    """
    for edge in graph.edges:
        if edge.back_edge:
            uid = next(one.chain[0].uid for one in graph.vertices if one.vertex_id == edge.target)
            raise _refused(graph, uid, "is the head of a loop, whose end is found by checkpoints alone")
    for vertex in graph.vertices:
        if vertex.source is not None and isinstance(vertex.source.source, DynamicSource):
            raise _refused(
                graph, vertex.chain[0].uid, "is a source that finds splits while the job runs, in checkpoints"
            )
        _check_sink(graph, vertex)


def _check_sink(graph: JobGraph, vertex: Vertex) -> None:
    if vertex.sink is None:
        return
    sink, uid = vertex.sink.sink, vertex.chain[-1].uid
    if sink.has_one_task or sink.commits_together:
        raise _refused(graph, uid, "commits for all tasks at a checkpoint, and there are none")
    if sink.guarantee != "exactly once" or sink.shows_at_once:
        raise _refused(graph, uid, "shows records before a log holds them")


def _refused(graph: JobGraph, uid: str, why: str) -> FlowError:
    return FlowError(
        f"flow {graph.name!r}: operator {uid!r} {why}: snapshots='logged' can't run it yet; {_INSTEAD}",
        operator=uid,
    )
