"""What notebooks show: a flow as its graph, a job as a table. No name in it becomes markup."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from tests.unit.watched import WALL_MS, Watched, heartbeat

import crosscut as cc
from crosscut.foundation.ids import Epoch
from crosscut.graph.drawing import svg_of
from crosscut.monitoring.html import html_of
from crosscut.monitoring.observer import SeenError
from crosscut.protocol.messages import FailureCause

SVG = "{http://www.w3.org/2000/svg}"
MARKUP = '<script>alert("x")</script>'


def looped() -> cc.Flow:
    flow = cc.Flow("collatz")
    numbers = flow.source(cc.items([6, 7])).named("numbers")

    def step(loop: cc.Stream[int]) -> tuple[cc.Stream[int], cc.Stream[int]]:
        halved = loop.map(lambda n: n // 2).named("halve")
        return halved.filter(lambda n: n > 1).named("again"), halved.filter(lambda n: n <= 1).named("done")

    numbers.iterate(step).sink(cc.files.write_jsonl("out")).named("out")
    return flow


def test_a_flow_shows_as_its_graph_with_every_vertex_and_edge() -> None:
    flow = looped()
    graph = flow.compile(2, 128)
    root = ElementTree.fromstring(flow._repr_html_())
    assert root.tag == f"{SVG}svg"
    assert len(root.findall(f".//{SVG}rect")) == len(graph.vertices)
    paths = root.findall(f"{SVG}path")
    assert len(paths) == len(graph.edges)
    dashed = [one for one in paths if one.get("stroke-dasharray")]
    assert len(dashed) == sum(edge.back_edge for edge in graph.edges) == 1
    titles = {one.text for one in root.iter(f"{SVG}title")}
    assert {str(edge) + f": {edge.partitioning}" for edge in graph.edges} <= titles


def test_no_two_vertices_stand_in_one_place_and_all_are_in_the_picture() -> None:
    flow = cc.Flow("wide")
    source = flow.source(cc.items([1])).named("numbers")
    for number in range(12):
        source.rebalance().map(str).named(f"branch-{number}").sink(cc.files.write_jsonl(f"out-{number}"))
    root = ElementTree.fromstring(svg_of(flow.compile(2, 128)))
    boxes = [
        tuple(int(one.get(name, "")) for name in ("x", "y", "width", "height"))
        for one in root.iter(f"{SVG}rect")
    ]
    assert len(set(boxes)) == len(boxes) == 13
    width, height = int(root.get("width", "")), int(root.get("height", ""))
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)


def test_a_flow_that_is_not_complete_says_what_is_missing() -> None:
    shown = cc.Flow("empty")._repr_html_()
    assert shown.startswith("<p>&lt;Flow &#x27;empty&#x27;&gt;: ")


def test_names_are_escaped() -> None:
    graph = looped().compile(2, 128)
    first = graph.vertices[0]
    node = replace(first.chain[0], uid=MARKUP)
    hostile = replace(graph, vertices=(replace(first, chain=(node, *first.chain[1:])), *graph.vertices[1:]))
    shown = svg_of(hostile)
    assert "<script" not in shown
    ElementTree.fromstring(shown)


def test_a_job_shows_as_a_table_of_its_vertices() -> None:
    talk = Watched()
    talk.running()
    for second in range(1, 6):
        heartbeat(talk, second, blocked=0.7, busy=0.95)
    cause = FailureCause("ValueError", MARKUP)
    metrics = replace(talk.metrics(), name=MARKUP, errors=(SeenError(WALL_MS, Epoch(1), cause),))
    shown = html_of(metrics)
    assert "<script" not in shown
    root = ElementTree.fromstring(shown)
    assert [one.text for one in root.iter("b")] == [MARKUP]
    rows = [[cell.text or "" for cell in row] for row in root.findall(".//tbody/tr")]
    assert rows[1][:5] == ["out (bottleneck)", "100", "0", "95%", "0%"]
    assert rows[0][-1] == "80"
