"""Sinks of which the first task commits what all have staged."""

from __future__ import annotations

from crosscut.foundation.ids import VertexId
from crosscut.graph.specs import JobGraph


def sinks_together(graph: JobGraph) -> frozenset[VertexId]:
    """Return the vertices whose tasks all write, of which the first commits."""
    return frozenset(
        VertexId(one.vertex_id)
        for one in graph.vertices
        if one.sink is not None and one.sink.sink.commits_together
    )
