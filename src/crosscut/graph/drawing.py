"""The compiled graph as a picture: SVG, as notebooks show it."""

from __future__ import annotations

from html import escape

from crosscut.graph.compile import kind_of
from crosscut.graph.specs import Edge, JobGraph, OperatorNode

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 56, 70, 20, 24
_CHARACTERS_MAX = 27


def svg_of(graph: JobGraph) -> str:
    """Return vertices and edges of `graph` as an SVG element; every name in it is escaped.

    Each vertex stands one column behind the last of those that send to it; back edges are dashed.
    """
    column = {vertex.vertex_id: 0 for vertex in graph.vertices}
    for vertex in graph.vertices:
        for edge in graph.edges:
            if edge.target == vertex.vertex_id and not edge.back_edge:
                column[edge.target] = max(column[edge.target], column[edge.source] + 1)
    rows: dict[int, int] = {}
    at: dict[str, tuple[int, int]] = {}
    for vertex in graph.vertices:
        x = column[vertex.vertex_id]
        y = rows.get(x, 0)
        rows[x] = y + 1
        at[vertex.vertex_id] = (_MARGIN + x * (_WIDTH + _GAP_X), _MARGIN + y * (_HEIGHT + _GAP_Y))
    width = 2 * _MARGIN + len(rows) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + max(rows.values()) * (_HEIGHT + _GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="none" '
        f'stroke="currentColor">',
        *(_edge(edge, at) for edge in graph.edges),
        *(_vertex(vertex.name, vertex.chain, at[vertex.vertex_id]) for vertex in graph.vertices),
        "</svg>",
    ]
    return "\n".join(parts)


def _edge(edge: Edge, at: dict[str, tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = at[edge.source], at[edge.target]
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    bend, low = max(30, (x2 - x1) // 2), 0
    if edge.back_edge:
        bend, low = 50, _HEIGHT
    path = f"M {x1} {y1} C {x1 + bend} {y1 + low}, {x2 - bend} {y2 + low}, {x2} {y2} m -6 -3 l 6 3 l -6 3"
    dashes = ' stroke-dasharray="5 4"' if edge.back_edge else ""
    text = f"{edge}: {edge.partitioning}"
    return f'<path d="{path}"{dashes}><title>{escape(text)}</title></path>'


def _vertex(name: str, chain: tuple[OperatorNode, ...], at: tuple[int, int]) -> str:
    x, y = at
    kinds = " > ".join(kind_of(node.spec) for node in chain)
    title = " > ".join(f"{node.uid} ({kind_of(node.spec)})" for node in chain)
    return (
        f'<g><title>{escape(title)}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
        f'<g fill="currentColor" stroke="none"><text x="{x + 8}" y="{y + 22}" font-weight="bold">'
        f'{escape(_short(name))}</text><text x="{x + 8}" y="{y + 42}">{escape(_short(kinds))}</text></g></g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS_MAX else f"{text[: _CHARACTERS_MAX - 1]}…"
