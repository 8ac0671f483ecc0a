"""Back edges: the edges that close a cycle (ABS, section 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def back_edges(vertices: Sequence[str], edges: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Return the edges that lead to a vertex which the depth-first search has not left yet.

    Without them the graph is acyclic, and a graph that is acyclic has none. The search starts at the
    vertices without inputs, so that the edge that enters a loop from a source is never one of them;
    ties go by the order of the arguments, so the result is the same in every process.

    Args:
        vertices: All of them, each once.
        edges: Pairs of source and target.
    """
    targets: dict[str, list[str]] = {vertex: [] for vertex in vertices}
    has_input: set[str] = set()
    for source, target in edges:
        targets[source].append(target)
        has_input.add(target)
    roots = [v for v in vertices if v not in has_input] + [v for v in vertices if v in has_input]

    found: set[tuple[str, str]] = set()
    entered: set[str] = set()
    for root in roots:
        if root in entered:
            continue
        entered.add(root)
        # A dict keeps the way from the root in order; its keys are the vertices not left yet.
        way = {root: iter(targets[root])}
        while way:
            vertex = next(reversed(way))
            for target in way[vertex]:
                if target in way:
                    found.add((vertex, target))
                elif target not in entered:
                    entered.add(target)
                    way[target] = iter(targets[target])
                    break
            else:
                del way[vertex]
    return frozenset(found)
