"""What can run in a job whose workers have logs of their own (`snapshots="logged"`), so far.

All else is refused when the job is built: better a flow that does not run than one that runs nearly right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crosscut.contracts.connectors import Sink
from crosscut.contracts.dynamic_source import DynamicSource
from crosscut.contracts.snapshot_protocols import Logged
from crosscut.errors import FlowError
from crosscut.graph.specs import JobGraph

_INSTEAD = "use snapshots='aligned' for this flow"


def check_logged(graph: JobGraph) -> None:
    """Refuse what a log of a worker can't hold yet.

    Raises:
        FlowError: It names the operator, the reason, and what to use instead.
    """
    for uid, why in reasons_against_logs(graph):
        raise FlowError(
            f"flow {graph.name!r}: operator {uid!r} {why}: snapshots='logged' can't run it yet; {_INSTEAD}",
            operator=uid,
        )


def reasons_against_logs(graph: JobGraph) -> Iterator[tuple[str, str]]:
    """Yield each operator that can't run yet, by uid, and why."""
    for edge in graph.edges:
        if edge.back_edge:
            uid = next(one.chain[0].uid for one in graph.vertices if one.vertex_id == edge.target)
            yield uid, "is the head of a loop, whose end is found by checkpoints alone"
    for vertex in graph.vertices:
        if vertex.source is not None and isinstance(vertex.source.source, DynamicSource):
            yield vertex.chain[0].uid, "is a source that finds splits while the job runs, in checkpoints"
        if vertex.sink is not None and (why := _against_sink(vertex.sink.sink)):
            yield vertex.chain[-1].uid, why


def _against_sink(sink: Sink[Any]) -> str:
    if sink.has_one_task or sink.commits_together:
        return "commits for all tasks at a checkpoint, and there are none"
    if sink.guarantee != "exactly once" or sink.shows_at_once:
        return "shows records before a log holds them"
    return ""


def explained_logs(graph: JobGraph, logged: Logged) -> str:
    """Return what `snapshots="logged"` does with a flow, one thing a line, for people."""
    against = list(reasons_against_logs(graph))
    if against:
        lines = [f"can't run it yet; {_INSTEAD}", *(f"{uid}: {why}" for uid, why in against)]
    else:
        between = [str(edge) for edge in graph.edges if edge.partitioning != "forward"]
        tasks = len(graph.vertices)
        of_each = "vertex" if tasks == 1 else f"of the {tasks} vertices"
        waits = ", ".join(between) or "none: output waits for one entry"
        lines = [
            f"logs: {graph.parallelism}, one for each worker, which has a task of each {of_each}",
            f"kept as: {_kept_as(logged)}",
            f"a group of records ends: after {logged.interval_ms:g} ms, or when there is no more to do",
            "each group: an entry of the log, and a transaction of each sink with output",
            f"records that wait for an entry on their way to other workers: {waits}",
        ]
    return "\n".join(['snapshots="logged":', *(f"  {line}" for line in lines)])


def _kept_as(logged: Logged) -> str:
    match logged.log:
        case "files":
            return "files that grow, in checkpoint_dir"
        case "objects":
            return "an object for each entry, in checkpoint_dir"
        case "auto":
            return (
                "files that grow, if Spark is in local mode and checkpoint_dir on a local file system; else "
                "an object for each entry"
            )
