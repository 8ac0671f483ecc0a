"""Graphs with several loops: which edges go back, and what is a regular input of a head."""

from __future__ import annotations

from collections.abc import Callable

import crosscut as cc
from crosscut.graph.specs import JobGraph


def around(name: str) -> Callable[[cc.Stream], tuple[cc.Stream, cc.Stream]]:
    def body(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        counted = loop.named(f"{name}-head").key_by(str).count().named(f"{name}-counts")
        again = counted.filter(bool).named(f"{name}-again")
        return again, counted.filter(bool).named(f"{name}-out")

    return body


def source_of(flow: cc.Flow, name: str = "numbers") -> cc.Stream:
    return flow.source(cc.generate(str, count=1)).named(name)


def back_edges(graph: JobGraph) -> list[tuple[str, str]]:
    return sorted((edge.source, edge.target) for edge in graph.edges if edge.back_edge)


def is_acyclic_without_back_edges(graph: JobGraph) -> bool:
    left = {vertex.vertex_id for vertex in graph.vertices}
    edges = [(edge.source, edge.target) for edge in graph.edges if not edge.back_edge]
    while ready := {
        one for one in left if all(source not in left for source, target in edges if target == one)
    }:
        left -= ready
    return not left


def test_two_loops_in_a_row_have_one_back_edge_each() -> None:
    flow = cc.Flow("two")
    source_of(flow).iterate(around("a")).iterate(around("b")).sink(cc.collect())
    graph = flow.compile(2, 8)
    assert back_edges(graph) == [("a-again", "a-head"), ("b-again", "b-head")]
    assert is_acyclic_without_back_edges(graph)


def test_a_loop_inside_another_has_its_own_back_edge_and_a_regular_way_in() -> None:
    def outer(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        through = loop.named("outer-head").map(str).iterate(around("inner"))
        return through.filter(bool).named("outer-again"), through.filter(bool).named("outer-out")

    flow = cc.Flow("nested")
    source_of(flow).iterate(outer).sink(cc.collect())
    graph = flow.compile(2, 8)
    assert back_edges(graph) == [("inner-again", "inner-head"), ("outer-again", "outer-head")]
    assert is_acyclic_without_back_edges(graph)
    for head in ("inner-head", "outer-head"):
        assert [edge.source for edge in graph.edges if edge.target == head and not edge.back_edge]


def test_two_loops_that_share_what_leaves_the_first_are_apart() -> None:
    flow = cc.Flow("apart")
    first = source_of(flow).iterate(around("a"))
    first.iterate(around("b")).sink(cc.collect())
    first.iterate(around("c")).sink(cc.collect())
    graph = flow.compile(2, 8)
    assert [target for _, target in back_edges(graph)] == ["a-head", "b-head", "c-head"]
    assert is_acyclic_without_back_edges(graph)


def test_a_loop_fed_by_two_sources_has_neither_of_them_on_a_back_edge() -> None:
    flow = cc.Flow("merged")
    source_of(flow, "left").union(source_of(flow, "right")).iterate(around("a")).sink(cc.collect())
    assert back_edges(flow.compile(2, 8)) == [("a-again", "a-head")]


def test_the_same_loops_have_the_same_back_edges_whatever_the_parallelism() -> None:
    flow = cc.Flow("same")
    source_of(flow).iterate(around("a")).iterate(around("b")).sink(cc.collect())
    assert back_edges(flow.compile(1, 8)) == back_edges(flow.compile(5, 8))
