"""The compiler: chains, edges, checks, fingerprint; channels; back edges; explain."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.endpoints import Nothing, Nowhere

from crosscut.contracts.connectors import Guarantee
from crosscut.errors import FlowError
from crosscut.flow.flow import Flow
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.graph.back_edges import back_edges
from crosscut.graph.channels import channels_of, inputs_of, outputs_of
from crosscut.graph.explain import explained
from crosscut.graph.specs import Edge, JobGraph, KeyBySpec


def word_count(**options: Any) -> Flow:
    flow = Flow("word-count")
    (
        flow.source(Nothing())
        .flat_map(str.split)
        .key_by(lambda word: word)
        .count(**options)
        .named("counts")
        .map(str)
        .sink(Nowhere())
    )
    return flow


def chains(graph: JobGraph) -> dict[str, list[str]]:
    return {vertex.vertex_id: [node.uid for node in vertex.chain] for vertex in graph.vertices}


def links(graph: JobGraph) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.target, edge.partitioning) for edge in graph.edges]


# Chaining


def test_operators_between_two_shuffles_are_one_vertex_called_by_its_first_operator() -> None:
    graph = word_count().compile(2, 128)
    assert chains(graph) == {
        "1-source": ["1-source", "2-flat_map", "3-key_by"],
        "counts": ["counts", "5-map", "6-sink"],
    }
    assert graph.edges == (Edge(0, "1-source", "counts", "hash"),)
    assert (graph.name, graph.parallelism, graph.max_parallelism) == ("word-count", 2, 128)


def test_a_vertex_is_shown_by_its_first_name_and_its_id_stays() -> None:
    """State is found by the id: another operator may get a name, and does not take the state away."""

    def graph(*names: str | None) -> JobGraph:
        flow = Flow("names")
        stream = flow.source(Nothing(), name=names[0]).map(str, name=names[1]).filter(bool)
        stream.sink(Nowhere(), name=names[2])
        return flow.compile(1, 1)

    shown = {
        (None, None, None): "1-source",
        (None, None, "out"): "out",
        (None, "texts", "out"): "texts",
        ("in", "texts", "out"): "in",
    }
    for names, name in shown.items():
        (vertex,) = graph(*names).vertices
        assert vertex.vertex_id == (names[0] or "1-source")
        assert vertex.name == name
    assert "\n  texts (1-source): 1-source > texts (map) > " in explained(graph(None, "texts", "out"))
    assert "\n  in: in (source) > " in explained(graph("in", "texts", "out"))


def test_a_stream_with_two_consumers_ends_its_chain() -> None:
    flow = Flow("f")
    mapped = flow.source(Nothing()).map(str)
    mapped.sink(Nowhere())
    mapped.filter(bool).sink(Nowhere())
    graph = flow.compile(2, 128)
    assert chains(graph) == {
        "1-source": ["1-source", "2-map"],
        "3-sink": ["3-sink"],
        "4-filter": ["4-filter", "5-sink"],
    }
    assert links(graph) == [("1-source", "3-sink", "forward"), ("1-source", "4-filter", "forward")]


def test_a_union_heads_a_chain_and_is_not_in_that_of_its_inputs() -> None:
    flow = Flow("f")
    left, right = flow.source(Nothing()), flow.source(Nothing()).map(str)
    left.union(right.rebalance()).map(str).sink(Nowhere())
    graph = flow.compile(2, 128)
    assert chains(graph) == {
        "1-source": ["1-source"],
        "2-source": ["2-source", "3-map"],
        "4-union": ["4-union", "5-map", "6-sink"],
    }
    assert links(graph) == [("1-source", "4-union", "forward"), ("2-source", "4-union", "rebalance")]


def test_a_stream_merged_with_itself_has_two_edges() -> None:
    flow = Flow("f")
    stream = flow.source(Nothing())
    stream.union(stream).sink(Nowhere())
    graph = flow.compile(1, 1)
    assert links(graph) == [("1-source", "2-union", "forward")] * 2
    assert len(set(inputs_of(graph, TaskId(VertexId("2-union"), 0)))) == 2


@pytest.mark.parametrize("how", ["rebalance", "broadcast"])
def test_rebalance_and_broadcast_end_a_chain(how: str) -> None:
    flow = Flow("f")
    getattr(flow.source(Nothing()), how)().map(str).sink(Nowhere())
    graph = flow.compile(2, 128)
    assert chains(graph) == {"1-source": ["1-source"], "2-map": ["2-map", "3-sink"]}
    assert links(graph) == [("1-source", "2-map", how)]


def test_a_vertex_knows_its_source_and_its_sink() -> None:
    first, last = word_count().compile(2, 128).vertices
    assert first.source is not None
    assert first.sink is None
    assert last.source is None
    assert last.sink is not None


@pytest.mark.parametrize(
    ("consumers", "keys_only"), [("c", True), ("s", False), ("cs", False), ("cc", False)]
)
def test_only_keys_are_shipped_if_a_count_is_the_only_consumer(consumers: str, keys_only: bool) -> None:
    flow = Flow("f")
    keyed = flow.source(Nothing()).key_by(len)
    for consumer in consumers:
        (keyed.count() if consumer == "c" else keyed.sum()).sink(Nowhere())
    spec = flow.compile(1, 1).vertices[0].chain[-1].spec
    assert isinstance(spec, KeyBySpec)
    assert spec.keys_only is keys_only


# Checks


def test_a_flow_needs_a_source_and_a_sink() -> None:
    flow = Flow("f")
    with pytest.raises(FlowError, match=r"flow 'f' has no source: start a stream with flow\.source"):
        flow.compile(1, 1)
    flow.source(Nothing())
    with pytest.raises(FlowError, match=r"flow 'f' has no sink: end a stream with \.sink"):
        flow.compile(1, 1)


def test_a_stream_that_leads_nowhere_is_refused_by_name() -> None:
    flow = Flow("f")
    stream = flow.source(Nothing())
    stream.sink(Nowhere())
    stream.map(str).named("forgotten")
    with pytest.raises(
        FlowError, match=r"of operator 'forgotten' leads nowhere: go on with \.sink"
    ) as caught:
        flow.compile(1, 1)
    assert caught.value.ids == {"operator": "forgotten"}


def test_a_keyed_stream_that_leads_nowhere_is_refused_by_name() -> None:
    flow = Flow("f")
    stream = flow.source(Nothing())
    stream.sink(Nowhere())
    stream.key_by(len)
    with pytest.raises(FlowError, match=r"of operator '3-key_by' leads nowhere: go on with \.count"):
        flow.compile(1, 1)


# Fingerprint


def test_the_fingerprint_of_a_flow_is_the_same_in_every_release() -> None:
    """H3: a job finds its checkpoints by it; change it only with the format number."""
    assert word_count().compile(2, 128).fingerprint == (
        "64378cf25367c810ce403bb434e71d4d9089be795747095ff6d465ac7fbbd1b8"
    )


def test_the_fingerprint_is_of_structure_not_of_code_name_or_parallelism() -> None:
    flow = Flow("another-name")
    (
        flow.source(Nothing())
        .flat_map(str.splitlines)
        .key_by(len)
        .count()
        .named("counts")
        .map(repr)
        .sink(Nowhere())
    )
    assert flow.compile(7, 128).fingerprint == word_count().compile(2, 128).fingerprint


def test_the_fingerprint_does_not_depend_on_the_order_of_independent_parts() -> None:
    def written(names: str) -> str:
        flow = Flow("f")
        for name in names:
            flow.source(Nothing()).named(f"{name}-in").sink(Nowhere()).named(f"{name}-out")
        return flow.compile(1, 1).fingerprint

    assert written("ab") == written("ba") != written("ac")


def test_uids_kinds_emit_partitioning_and_key_groups_are_in_the_fingerprint() -> None:
    def mapped(how: str, kind: str) -> Flow:
        flow = Flow("f")
        stream = flow.source(Nothing())
        stream = stream if how == "forward" else getattr(stream, how)()
        getattr(stream, kind)(str).named("x").sink(Nowhere())
        return flow

    fingerprints = [
        word_count().compile(2, 128).fingerprint,
        word_count().compile(2, 64).fingerprint,
        word_count(emit="final").compile(2, 128).fingerprint,
        *(
            mapped(how, kind).compile(2, 128).fingerprint
            for how in ("forward", "rebalance", "broadcast")
            for kind in ("map", "filter")
        ),
    ]
    assert len(set(fingerprints)) == len(fingerprints)


# Channels


def task(vertex: str, index: int) -> TaskId:
    return TaskId(VertexId(vertex), index)


def test_a_forward_edge_joins_tasks_of_one_index_and_others_join_all() -> None:
    flow = Flow("f")
    one, two = flow.source(Nothing()).named("one"), flow.source(Nothing()).named("two")
    one.union(two.rebalance()).named("both").sink(Nowhere())
    graph = flow.compile(2, 128)
    forward, rebalance = graph.edges
    assert [str(channel) for channel in channels_of(graph, forward)] == [
        "one[0]->both[0]#0",
        "one[1]->both[1]#0",
    ]
    assert [str(channel) for channel in channels_of(graph, rebalance)] == [
        "two[0]->both[0]#1",
        "two[0]->both[1]#1",
        "two[1]->both[0]#1",
        "two[1]->both[1]#1",
    ]
    assert [str(channel) for channel in inputs_of(graph, task("both", 1))] == [
        "one[1]->both[1]#0",
        "two[0]->both[1]#1",
        "two[1]->both[1]#1",
    ]
    assert [str(channel) for channel in outputs_of(graph, task("two", 1))] == [
        "two[1]->both[0]#1",
        "two[1]->both[1]#1",
    ]
    assert inputs_of(graph, task("one", 0)) == outputs_of(graph, task("both", 0)) == ()


# Back edges: ABS section 4.3


def test_a_graph_without_cycles_has_no_back_edges() -> None:
    assert back_edges("abcd", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")]) == frozenset()


def test_the_edge_that_closes_a_cycle_is_the_back_edge() -> None:
    assert back_edges("abc", [("a", "b"), ("b", "c"), ("c", "b")]) == {("c", "b")}


def test_a_self_loop_is_a_back_edge() -> None:
    assert back_edges("ab", [("a", "b"), ("b", "b")]) == {("b", "b")}


def test_the_search_starts_at_sources_wherever_they_stand() -> None:
    """From "b" on, the edge into the loop's head would seem to close it."""
    assert back_edges("bas", [("s", "a"), ("a", "b"), ("b", "a")]) == {("b", "a")}


def test_each_of_several_roots_is_searched() -> None:
    edges = [("r", "a"), ("a", "r2"), ("s", "b"), ("b", "b"), ("s", "a")]
    assert back_edges(["r", "s", "a", "b", "r2"], edges) == {("b", "b")}


def test_a_cycle_that_no_source_leads_to_is_found() -> None:
    assert back_edges("abc", [("b", "c"), ("c", "b")]) == {("c", "b")}


def test_nested_loops_have_a_back_edge_each() -> None:
    edges = [("s", "a"), ("a", "b"), ("b", "c"), ("c", "b"), ("c", "a"), ("c", "t")]
    assert back_edges("sabct", edges) == {("c", "b"), ("c", "a")}


def test_a_graph_deeper_than_pythons_stack_is_searched() -> None:
    names = [str(index) for index in range(5_000)]
    ring = [*pairwise(names), (names[-1], names[0])]
    assert back_edges(names, ring) == {(names[-1], names[0])}


# Explain


def test_explain_shows_vertices_channels_key_groups_and_back_edges() -> None:
    graph = word_count().compile(2, 128)
    assert explained(graph) == (
        f"flow word-count, fingerprint {graph.fingerprint[:12]}\n"
        "\n"
        "vertices: 2, each of 2 tasks\n"
        "  1-source: 1-source > 2-flat_map > 3-key_by (keys only)\n"
        "  counts: counts (count, updates) > 5-map > 6-sink\n"
        "\n"
        "channels: 4\n"
        "  1-source -> counts#0: hash, 4 channels\n"
        "\n"
        "key groups: 128\n"
        "  counts: task 0: 0-63, task 1: 64-127\n"
        "\n"
        "back edges: none\n"
        "\n"
        "guarantee: exactly once\n"
        "  1-source: read again from its positions after a failure\n"
        "  6-sink: exactly once\n"
        "\n"
        "without a name: 1-source, 6-sink\n"
        "  They have state, and are called by a position that changes with the flow: use .named(...)"
    )


class Weaker(Nowhere):
    """A sink that shows what it gets at once."""

    def __init__(self, guarantee: Guarantee) -> None:
        self._guarantee = guarantee

    @property
    def guarantee(self) -> Guarantee:
        return self._guarantee


def test_explain_names_the_outputs_that_weaken_the_guarantee_of_the_flow() -> None:
    def said(*guarantees: Guarantee) -> list[str]:
        flow = Flow("f")
        stream = flow.source(Nothing()).named("in")
        for index, one in enumerate(guarantees):
            stream.sink(Weaker(one)).named(f"out-{index}")
        lines = explained(flow.compile(1, 1)).splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith("guarantee: "))
        return lines[start : start + 2 + len(guarantees)]

    source = "  in: read again from its positions after a failure"
    assert said("exactly once") == ["guarantee: exactly once", source, "  out-0: exactly once"]
    assert said("exactly once", "idempotent") == [
        "guarantee: exactly once only if the flow is deterministic, because of out-1",
        source,
        "  out-0: exactly once",
        "  out-1: exactly once only if the flow is deterministic",
    ]
    mixed = said("at least once", "exactly once", "idempotent", "at least once")
    assert mixed[0] == "guarantee: at least once, because of out-0, out-3"


def test_explain_of_a_flow_without_keys_says_so_and_long_lists_are_cut() -> None:
    flow = Flow("f")
    flow.source(Nothing()).sink(Nowhere())
    assert "key groups: none" in explained(flow.compile(1, 1))
    assert "counts: task 0: 0-1, task 1: 2-3, task 2: 4-5, task 3: 6-7, ..." in explained(
        word_count().compile(64, 128)
    )


def test_explain_lists_back_edges() -> None:
    graph = word_count().compile(2, 128)
    looped = replace(graph, edges=(*graph.edges, Edge(1, "counts", "counts", "rebalance", back_edge=True)))
    assert "\nback edges: counts -> counts#1\n" in explained(looped)
