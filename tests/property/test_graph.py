"""The compiler against oracles: reachability for back edges, the chaining rule word by word."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.endpoints import Nothing, Nowhere

from crosscut.flow.flow import Flow
from crosscut.flow.stream import Stream
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.graph.back_edges import back_edges
from crosscut.graph.channels import channels_of, inputs_of, outputs_of
from crosscut.graph.compile import compiled, kind_of
from crosscut.graph.components import component_of, loops_of
from crosscut.graph.specs import Edge, OperatorNode

Links = list[tuple[str, str]]

VERTICES = "abcdefg"
PAIRS = st.lists(st.tuples(st.sampled_from(VERTICES), st.sampled_from(VERTICES)), max_size=20)


def is_acyclic(edges: Links) -> bool:
    left = set(VERTICES)
    while free := {vertex for vertex in left if not any(t == vertex and s in left for s, t in edges)}:
        left -= free
    return not left


def reaches(edges: Links, start: str, end: str) -> bool:
    seen = {start}
    while more := {t for s, t in edges if s in seen} - seen:
        seen |= more
    return end in seen


@given(PAIRS)
def test_without_its_back_edges_a_graph_is_acyclic(edges: Links) -> None:
    closing = back_edges(VERTICES, edges)
    assert is_acyclic([edge for edge in edges if edge not in closing])


@given(PAIRS)
def test_a_back_edge_closes_a_cycle_so_an_acyclic_graph_has_none(edges: Links) -> None:
    closing = back_edges(VERTICES, edges)
    assert all(edge in edges and reaches(edges, edge[1], edge[0]) for edge in closing)
    assert not (is_acyclic(edges) and closing)


@given(PAIRS)
def test_a_loop_is_what_leads_to_each_other_and_its_feeders_are_what_else_leads_to_it(links: Links) -> None:
    closing = back_edges(VERTICES, links)
    edges = [
        Edge(i, source, target, "forward", back_edge=(source, target) in closing)
        for i, (source, target) in enumerate(links)
    ]
    found = loops_of(edges)
    for vertex in VERTICES:
        peers = {one for one in VERTICES if reaches(links, vertex, one) and reaches(links, one, vertex)}
        is_in_loop = len(peers) > 1 or (vertex, vertex) in links
        assert [one.members for one in found if vertex in one.members] == [peers] * is_in_loop
        component = component_of(vertex, edges)
        assert component.members == peers
        assert component.feeders == {source for source, target in links if target in peers} - peers
        assert set(component.heads) == {target for _, target in closing if target in peers}
    assert len({one.members for one in found}) == len(found)


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    """Any flow: each step goes on from any stream so far, whatever else reads from it."""
    flow = Flow("any")
    streams = [flow.source(Nothing())]
    for _ in range(draw(st.integers(0, 12))):
        stream = draw(st.sampled_from(streams))
        how = draw(st.sampled_from(["forward", "forward", "rebalance", "broadcast"]))
        stream = stream if how == "forward" else getattr(stream, how)()
        streams.append(draw(st.sampled_from([source, mapped, united, counted]))(flow, stream, streams))
    for stream in streams:
        stream.sink(Nowhere())
    return flow


def source(flow: Flow, stream: Stream, streams: list[Stream]) -> Stream:
    return flow.source(Nothing())


def mapped(flow: Flow, stream: Stream, streams: list[Stream]) -> Stream:
    return stream.map(str).filter(bool)


def united(flow: Flow, stream: Stream, streams: list[Stream]) -> Stream:
    return stream.union(*streams[-2:])


def counted(flow: Flow, stream: Stream, streams: list[Stream]) -> Stream:
    return stream.key_by(len).count()


@given(flows(), st.integers(1, 4))
def test_every_operator_is_in_one_vertex_and_every_link_in_a_chain_or_an_edge(
    flow: Flow, parallelism: int
) -> None:
    graph = flow.compile(parallelism, 128)
    nodes = [node for vertex in graph.vertices for node in vertex.chain]
    assert len({node.uid for node in nodes}) == len(nodes)
    vertex_of = {node.uid: vertex.vertex_id for vertex in graph.vertices for node in vertex.chain}
    consumer_count = Counter(uid for node in nodes for uid, *_ in node.inputs)

    crossing: Counter[Any] = Counter()
    for vertex in graph.vertices:
        before = None
        for node in vertex.chain:
            for uid, how, _ in node.inputs:
                chained = (
                    how == "forward"
                    and consumer_count[uid] == 1
                    and len(node.inputs) == 1
                    and kind_of(node.spec) != "union"
                )
                assert chained == (uid == before)
                if not chained:
                    crossing[vertex_of[uid], vertex.vertex_id, how] += 1
            before = node.uid
    assert crossing == Counter((edge.source, edge.target, edge.partitioning) for edge in graph.edges)


@given(flows())
def test_vertices_are_in_topological_order_and_no_edge_goes_back(flow: Flow) -> None:
    graph = flow.compile(2, 128)
    place = {vertex.vertex_id: index for index, vertex in enumerate(graph.vertices)}
    assert all(place[edge.source] < place[edge.target] and not edge.back_edge for edge in graph.edges)


@given(flows(), st.integers(1, 3))
def test_each_channel_is_an_output_of_one_task_and_an_input_of_one(flow: Flow, parallelism: int) -> None:
    graph = flow.compile(parallelism, 128)
    tasks = [TaskId(VertexId(v.vertex_id), index) for v in graph.vertices for index in range(parallelism)]
    channels = [channel for edge in graph.edges for channel in channels_of(graph, edge)]
    assert len(set(channels)) == len(channels)
    for task in tasks:
        assert Counter(outputs_of(graph, task)) == Counter(c for c in channels if c.source == task)
        assert list(inputs_of(graph, task)) == sorted(c for c in channels if c.target == task)
    ends = {end for channel in channels for end in (channel.source, channel.target)}
    assert ends <= set(tasks)


def written_otherwise(nodes: list[OperatorNode], dice: random.Random) -> list[OperatorNode]:
    """Return `nodes` in another order, each after all that it reads from."""
    left, written = list(nodes), list[OperatorNode]()
    while left:
        known = {node.uid for node in written}
        free = [node for node in left if all(uid in known for uid, *_ in node.inputs)]
        written.append(dice.choice(free))
        left.remove(written[-1])
    return written


@given(flows(), st.randoms(use_true_random=False))
def test_whatever_the_order_in_which_independent_parts_are_written_channels_are_called_the_same(
    flow: Flow, dice: random.Random
) -> None:
    """Snapshots name channels, and the fingerprint of both is the same."""
    graph = flow.compile(2, 128)
    nodes = [node for vertex in graph.vertices for node in vertex.chain]
    other = compiled("any", written_otherwise(nodes, dice), 2, 128)
    assert other.fingerprint == graph.fingerprint
    assert Counter(map(str, other.edges)) == Counter(map(str, graph.edges))
    for edge in graph.edges:
        (same,) = (one for one in other.edges if str(one) == str(edge))
        assert same == edge
        assert channels_of(other, same) == channels_of(graph, edge)
