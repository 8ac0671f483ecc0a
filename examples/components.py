"""Connected components of a graph, from a file with one edge a line, while the edges stream in.

python examples/components.py edges.txt

Every vertex keeps its neighbours and the smallest vertex it has heard of. Whenever that gets smaller it
tells its neighbours, through the loop; so in the end every vertex knows the smallest one of its
component, in whatever order the edges and the news came. The loop runs empty when nobody has news.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import crosscut as cc

News = tuple[int, str, int]
"""(to whom, "neighbour" or "smallest", a vertex)"""

Vertex = tuple[frozenset[int], int | None, tuple[News, ...]]
"""(its neighbours, the smallest it has heard of, what it has to say now)"""

NEW: Vertex = (frozenset(), None, ())


def both_ends(line: str) -> Iterator[News]:
    """Tell both ends of an edge "a b" about it."""
    one, other = map(int, line.split())
    yield one, "neighbour", other
    yield other, "neighbour", one


def told(vertex: Vertex, news: News) -> Vertex:
    me, kind, other = news
    neighbours, smallest, _ = vertex
    known = me if smallest is None else smallest
    if kind == "neighbour":
        neighbours |= {other}
        return neighbours, min(known, other), says(neighbours, min(known, other))
    if other >= known:
        return neighbours, known, ()
    return neighbours, other, says(neighbours, other)


def says(neighbours: frozenset[int], smallest: int) -> tuple[News, ...]:
    return tuple((one, "smallest", smallest) for one in sorted(neighbours))


def once_round(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
    vertices = loop.named("loop").key_by(lambda news: news[0]).aggregate(NEW, told).named("vertices")
    news = vertices.flat_map(lambda update: update[1][2]).named("news")
    # The last word on a vertex is the smallest one: it never grows.
    return news, vertices.map(lambda update: (update[0], update[1][1])).named("labels")


def components(pattern: str, sink: cc.Sink) -> cc.Flow:
    """Write (vertex, smallest vertex of its component so far) whenever a vertex hears anything."""
    flow = cc.Flow("components")
    (
        flow.source(cc.files.read_text(pattern))
        .named("edges")
        .flat_map(both_ends)
        .iterate(once_round)
        .sink(sink)
        .named("out")
    )
    return flow


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python components.py EDGES, a file with two numbers a line")
    out = cc.collect()
    flow = components(sys.argv[1], out)
    job = flow.start(cc.Settings(parallelism=2))
    job.wait()
    smallest: dict[int, int] = {}
    for vertex, label in out.records():
        smallest[vertex] = min(label, smallest.get(vertex, label))
    print(f"{job.status}: {len(smallest)} vertices in {len(set(smallest.values()))} components")
