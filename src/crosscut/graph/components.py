"""Strongly connected components: which vertices go round together, and what leads into them."""

from __future__ import annotations

from collections.abc import Sequence

from crosscut.contracts.process import TIMERS
from crosscut.errors import FlowError
from crosscut.foundation.ids import VertexId
from crosscut.graph.joins import IntervalJoinSpec, LatestJoinSpec, WindowJoinSpec
from crosscut.graph.specs import Edge, JobGraph, OperatorNode, Vertex
from crosscut.graph.windows import WindowSpec
from crosscut.protocol.checkpoint.termination import Component
from crosscut.protocol.splits.rescaling import Link


def component_of(vertex: str, edges: Sequence[Edge]) -> Component:
    """Return the component of `vertex`: what it leads to that leads to it."""
    after = reached_from(vertex, edges)
    before = _reached(vertex, [(edge.target, edge.source) for edge in edges])
    members = after & before
    return Component(
        members=frozenset(map(VertexId, members)),
        feeders=frozenset(
            VertexId(edge.source) for edge in edges if edge.target in members and edge.source not in members
        ),
        heads=tuple(
            sorted({VertexId(one.target) for one in edges if one.back_edge and one.target in members})
        ),
    )


def reached_from(vertex: str, edges: Sequence[Edge]) -> set[str]:
    """Return `vertex` and all that it leads to."""
    return _reached(vertex, [(edge.source, edge.target) for edge in edges])


def links_of(edges: Sequence[Edge]) -> tuple[Link, ...]:
    """Return the edges as the coordinator sees them."""
    return tuple(
        (VertexId(edge.source), VertexId(edge.target), edge.partitioning == "hash") for edge in edges
    )


def loops_of(edges: Sequence[Edge]) -> tuple[Component, ...]:
    """Return the components that have back edges, in the order of these."""
    found: dict[frozenset[VertexId], Component] = {}
    for edge in edges:
        if edge.back_edge:
            component = component_of(edge.target, edges)
            found[component.members] = component
    return tuple(found.values())


def check_loops(graph: JobGraph) -> None:
    """Refuse what can't be: a final result that leads back to what it is the result of.

    Raises:
        FlowError: An operator of a loop speaks at the end of its input only.
    """
    by_id = {vertex.vertex_id: vertex for vertex in graph.vertices}
    for loop in loops_of(graph.edges):
        for vertex in sorted(loop.members):
            _check_member(graph.name, by_id[vertex])


def _check_member(name: str, vertex: Vertex) -> None:
    for node in vertex.chain:
        if getattr(node.spec, "emit", "") == "final":
            raise FlowError(
                f"flow {name!r}: operator {node.uid!r} says its results at the end of its input "
                f"(emit='final'), and they go round a loop to that very input, so it has no end before "
                f"they are said; use emit='updates', or lead what it says out of the loop only",
                operator=node.uid,
            )
        if _speaks_at_the_end(node, vertex):
            raise FlowError(
                f"flow {name!r}: operator {node.uid!r} says what is left at the end of its input, and that "
                f"goes round a loop to that very input, so it has no end before; lead what it says out of "
                f"the loop only",
                operator=node.uid,
            )
        if any(kind == TIMERS for _, kind in getattr(node.spec, "states", ())):
            raise FlowError(
                f"flow {name!r}: operator {node.uid!r} has timers and stands in a loop: what a timer says "
                f"may go round to it again, and nothing could tell when the loop has run empty; lead its "
                f"output out of the loop only",
                operator=node.uid,
            )


def _speaks_at_the_end(node: OperatorNode, vertex: Vertex) -> bool:
    if isinstance(node.spec, LatestJoinSpec):
        return vertex.has_event_time
    return isinstance(node.spec, WindowSpec | IntervalJoinSpec | WindowJoinSpec)


def _reached(start: str, links: list[tuple[str, str]]) -> set[str]:
    targets: dict[str, list[str]] = {}
    for source, target in links:
        targets.setdefault(source, []).append(target)
    found = {start}
    ahead = [start]
    while ahead:
        for target in targets.get(ahead.pop(), ()):
            if target not in found:
                found.add(target)
                ahead.append(target)
    return found
