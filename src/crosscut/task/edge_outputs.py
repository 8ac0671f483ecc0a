"""From the edges of a graph to the outputs of a task."""

from __future__ import annotations

from crosscut.foundation.ids import TaskId
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.channels import leaving
from crosscut.graph.frames import FrameKeyBySpec, gives_frame
from crosscut.graph.specs import JobGraph, KeyBySpec, Vertex
from crosscut.task.outputs import Output, build_output


def outputs_of_task(
    graph: JobGraph, vertex: Vertex, task: TaskId, router: KeyRouter, batch_rows: int
) -> list[Output]:
    """Return the outputs of a task, one for each edge that leaves its vertex."""
    # A fold that begins before the shuffle stands after the operator that made the keys.
    key_by_uid = next(
        (node.uid for node in vertex.chain if isinstance(node.spec, KeyBySpec | FrameKeyBySpec)),
        vertex.chain[-1].uid,
    )
    outputs = []
    for edge in graph.edges:
        if edge.source != vertex.vertex_id:
            continue
        channels = leaving(graph, edge, task.index)
        if edge.side is None and gives_frame(vertex.chain[-1].spec):
            # Not above: a worker loads what its graph needs.
            from crosscut.task.frame_output import build_frame_output

            outputs.append(
                build_frame_output(
                    edge.partitioning,
                    channels,
                    batch_rows=batch_rows,
                    router=router,
                    key_by_uid=key_by_uid,
                )
            )
            continue
        outputs.append(
            build_output(
                edge.partitioning,
                channels,
                batch_rows=batch_rows,
                router=router,
                key_by_uid=key_by_uid,
                task_index=task.index,
                side=edge.side,
            )
        )
    return outputs
