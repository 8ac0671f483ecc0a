"""Graphs with several loops: which edges go back, what is a regular input of a head, what goes together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import crosscut as cc
from crosscut.errors import FlowError
from crosscut.graph.components import loops_of
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


# What goes round together, and what leads into it.


def loops(graph: JobGraph) -> list[tuple[list[str], list[str], list[str]]]:
    """Members, feeders and heads of each loop."""
    return [(sorted(one.members), sorted(one.feeders), list(one.heads)) for one in loops_of(graph.edges)]


def test_loops_in_a_row_are_apart_and_the_first_feeds_the_second() -> None:
    flow = cc.Flow("two")
    totals = source_of(flow).iterate(around("a")).key_by(str).count(emit="final").named("totals")
    totals.iterate(around("b")).sink(cc.collect())
    a = ["a-again", "a-counts", "a-head"]
    b = ["b-again", "b-counts", "b-head"]
    assert loops(flow.compile(2, 8)) == [(a, ["numbers"], ["a-head"]), (b, ["totals"], ["b-head"])]


def test_loops_within_each_other_are_one_with_several_heads() -> None:
    def outer(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        through = loop.named("outer-head").map(str).iterate(around("inner"))
        return through.filter(bool).named("outer-again"), through.filter(bool).named("outer-out")

    flow = cc.Flow("nested")
    source_of(flow).iterate(outer).sink(cc.collect())
    ((members, feeders, heads),) = loops(flow.compile(2, 8))
    assert {"inner-head", "inner-again", "inner-out", "outer-head", "outer-again"} <= set(members)
    assert "outer-out" not in members
    assert (feeders, heads) == (["numbers"], ["inner-head", "outer-head"])


def test_whatever_comes_in_anywhere_feeds_the_loop() -> None:
    flow = cc.Flow("joined")
    other = source_of(flow, "other")

    def body(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        merged = loop.named("head").union(other).named("merged")
        return merged.filter(bool).named("again"), merged.filter(bool).named("out")

    source_of(flow).iterate(body).sink(cc.collect())
    ((members, feeders, _),) = loops(flow.compile(2, 8))
    assert (members, feeders) == (["again", "head", "merged"], ["numbers", "other"])


def test_a_flow_without_loops_has_none() -> None:
    flow = cc.Flow("plain")
    source_of(flow).key_by(str).count().sink(cc.collect())
    assert loops(flow.compile(2, 8)) == []


def test_a_final_result_that_leads_back_to_what_it_is_the_result_of_is_refused() -> None:
    def body(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        counted = loop.key_by(str).count(emit="final").named("totals")
        return counted.filter(bool), counted.filter(bool)

    flow = cc.Flow("circular")
    source_of(flow).iterate(body).sink(cc.collect())
    with pytest.raises(FlowError, match="'totals' says its results at the end") as error:
        flow.compile(2, 8)
    assert error.value.ids["operator"] == "totals"


def test_a_final_result_may_stand_in_the_body_of_a_loop_and_lead_out_of_it() -> None:
    def body(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
        return loop.filter(bool).named("again"), loop.key_by(str).count(emit="final").named("totals")

    flow = cc.Flow("leading-out")
    source_of(flow).iterate(body).sink(cc.collect())
    assert [members for members, _, _ in loops(flow.compile(2, 8))] == [["2-loop", "again"]]
