"""What of a flow no copy of a process tries: see `crosscut.operators.probing`."""

from __future__ import annotations

from crosscut.graph.compile import kind_of
from crosscut.graph.specs import AsyncMapSpec, JobGraph, SinkSpec, SourceSpec
from crosscut.operators.building import keyed_state


def untried_in_copies(graph: JobGraph, *, state_is_in_memory: bool) -> str:
    """Return the operators that a copy could not run without harm, in words."""
    found = []
    for vertex in graph.vertices:
        for node in vertex.chain:
            if isinstance(node.spec, SourceSpec | AsyncMapSpec | SinkSpec):
                found.append(f"{kind_of(node.spec)} {node.uid!r}")
            elif not state_is_in_memory and keyed_state(node) is not None:
                found.append(f"{kind_of(node.spec)} {node.uid!r} with its state on disk")
    return ", ".join(found)
