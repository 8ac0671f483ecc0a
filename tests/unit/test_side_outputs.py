"""Side outputs: what an operator says under names leaves its task on edges of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.endpoints import Nothing, Nowhere

import crosscut as cc
from crosscut.contracts.dead_letters import OnError
from crosscut.errors import FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.graph.channels import read_aside
from crosscut.graph.explain import explained
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import Edge, JobGraph, OperatorNode, ProcessSpec, SideOutput, SplitSpec
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import Map
from crosscut.protocol.log.identity import AnotherJob, compared
from crosscut.task.chain import Chain


class Parity(cc.KeyedProcess[int, int]):
    """Returns what is even, and says what is odd, and its square."""

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[int]:
        if record % 2:
            ctx.output("odd", record)
            ctx.output("squares", record * record)
        else:
            yield record


PREDICATES = (("large", lambda n: n > 100), ("even", lambda n: n % 2 == 0))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(FlowError) as caught:
        action()
    return str(caught.value)


def chains(graph: JobGraph) -> dict[str, list[str]]:
    return {vertex.vertex_id: [node.uid for node in vertex.chain] for vertex in graph.vertices}


def parted(names: Sequence[str] = ("large", "even"), *, rest: bool = True) -> cc.Flow:
    flow = cc.Flow("f")
    parts = flow.source(Nothing()).split(**dict(PREDICATES))
    for name in names:
        parts[name].sink(Nowhere())
    if rest:
        parts.rest.sink(Nowhere())
    return flow


# What a user writes


def test_each_stream_of_a_split_leaves_by_an_edge_of_its_own_and_the_rest_stays_in_the_chain() -> None:
    graph = parted().compile(2, 128)
    assert chains(graph) == {
        "1-source": ["1-source", "2-split", "5-sink"],
        "3-sink": ["3-sink"],
        "4-sink": ["4-sink"],
    }
    assert graph.edges == (
        Edge(0, "1-source", "3-sink", "forward", side=SideOutput("2-split", "large")),
        Edge(0, "1-source", "4-sink", "forward", side=SideOutput("2-split", "even")),
    )
    assert read_aside(graph, "2-split") == {"large", "even"}


def test_a_side_output_in_the_middle_of_a_chain_does_not_end_it() -> None:
    flow = cc.Flow("f")
    stream = flow.source(Nothing()).key_by(abs).process(Parity())
    stream.side_output("odd").rebalance().sink(Nowhere())
    stream.map(str).sink(Nowhere())
    graph = flow.compile(2, 128)
    assert chains(graph)["3-process"] == ["3-process", "5-map", "6-sink"]
    assert graph.edges[1] == Edge(0, "3-process", "4-sink", "rebalance", side=SideOutput("3-process", "odd"))


def test_a_side_output_may_go_round_a_loop_and_be_merged_and_keyed() -> None:
    flow = cc.Flow("f")

    def body(loop: cc.Stream[int]) -> tuple[cc.Stream[int], cc.Stream[int]]:
        parts = loop.split(large=lambda n: n > 3)
        return parts["large"].map(lambda n: n - 1), parts.rest

    out = flow.source(Nothing()).iterate(body)
    out.union(out.side_output("large")).key_by(abs).count().sink(Nowhere())
    edges = {str(edge): edge.back_edge for edge in flow.compile(1, 1).edges}
    assert edges["2-loop ('large' of 3-split) -> 4-map#0"] is False
    assert edges["4-map -> 2-loop#1"] is True
    assert edges["2-loop ('large' of 3-split) -> 5-union#1"] is False


def test_every_stream_of_a_split_leads_somewhere_but_the_rest_may_be_nothing() -> None:
    assert "the stream 'even' of operator '2-split' leads nowhere" in refusal(
        lambda: parted(["large"]).compile(1, 1)
    )
    graph = parted(rest=False).compile(1, 1)
    spec = graph.vertices[0].chain[1].spec
    assert isinstance(spec, SplitSpec) and not spec.has_rest


def test_a_split_is_a_mapping_of_its_streams() -> None:
    stream = cc.Flow("f").source(Nothing())
    parts = stream.split(**dict(PREDICATES))
    assert list(parts) == ["large", "even"] and len(parts) == 2 and "even" in parts and "odd" not in parts
    assert parts.named("by-size") is parts
    assert "'by-size' has no stream 'small': expected one of 'large', 'even'" in refusal(
        lambda: parts["small"]
    )
    assert "go on with one of them, as in parts['name'].map(...)" in refusal(
        lambda: parts.map(str)  # type: ignore[attr-defined]
    )


def test_what_is_no_split_or_side_output_is_refused_at_once() -> None:
    stream = cc.Flow("f").source(Nothing())
    parts = stream.split(large=lambda n: n > 100)
    assert "expected a predicate for each stream" in refusal(lambda: stream.split())
    assert "large=3 of type int: expected a function" in refusal(
        lambda: stream.split(large=3)  # type: ignore[arg-type]
    )
    assert "is no name: expected 1 to 64 printable characters" in refusal(
        lambda: stream.split(**{"a\nb": bool})
    )
    assert "operator '1-source' has no side output 'late'; it has none" in refusal(
        lambda: stream.side_output("late")
    )
    assert "of the stream 'large' of operator '2-split': that has no operator of its own" in refusal(
        lambda: parts["large"].side_output("large")
    )
    assert "is no operator and can't be named 'big'; name the operator" in refusal(
        lambda: parts["large"].named("big")
    )


def test_people_are_shown_what_is_read_of_whom() -> None:
    text = explained(parted().compile(2, 128))
    assert "1-source: 1-source > 2-split (large, even, rest) > 5-sink" in text
    assert "1-source ('large' of 2-split) -> 3-sink#0: forward, 2 channels" in text
    assert "2-split (large, even)" in explained(parted(rest=False).compile(2, 128))


def test_who_reads_which_output_is_part_of_what_a_flow_is() -> None:
    def flow(name: str, other: str) -> JobGraph:
        made = cc.Flow("f")
        parts = made.source(Nothing()).split(**dict(PREDICATES))
        parts.rest.sink(Nowhere())
        parts[name].sink(Nowhere()).named("one")
        parts[other].sink(Nowhere()).named("other")
        return made.compile(1, 1)

    then, now = flow("large", "even"), flow("even", "large")
    assert then.fingerprint != now.fingerprint
    same = then.fingerprint == now.fingerprint
    found = compared(identity_of(then), identity_of(now), is_same_structure=same)
    assert isinstance(found, AnotherJob)
    assert (
        "'one' reads from 'even' of '2-split' (forward), and read from 'large' of '2-split'" in found.reason
    )


# What runs


def operator_of(node: OperatorNode, *names: str) -> Operator:
    built = build(node, keyed_state(node), None, names)
    assert built is not None
    return built


def said(operator: Operator) -> dict[str, list[Any]]:
    assert operator.sides is not None
    return {side.name: batch.records for side, batch in operator.sides.take()}


def test_a_record_goes_to_the_first_predicate_that_is_true_of_it() -> None:
    operator = operator_of(OperatorNode("s", SplitSpec(PREDICATES, has_rest=True), ()), "large", "even")
    assert operator.process(Batch([102, 4, 3, 101, 6])).records == [3]
    assert said(operator) == {"large": [102, 101], "even": [4, 6]}
    assert said(operator) == {}


def test_a_record_that_fits_nowhere_fails_the_job_where_nobody_reads_the_rest() -> None:
    operator = operator_of(OperatorNode("s", SplitSpec(PREDICATES), ()), "large", "even")
    with pytest.raises(UserCodeError, match="a record fits none of 'large', 'even'") as caught:
        operator.process(Batch([102, 3]))
    assert caught.value.record == "3"


def test_a_process_says_records_under_names_and_one_that_nobody_reads_is_an_error() -> None:
    node = OperatorNode("p", ProcessSpec(Parity(), ()), ())
    operator = operator_of(node, "odd", "squares")
    assert operator.process(Batch([1, 2, 3], ["k"] * 3)).records == [2]
    assert said(operator) == {"odd": [1, 3], "squares": [1, 9]}
    with pytest.raises(UserCodeError, match="gives a record to 'squares', which no stream reads"):
        operator_of(node, "odd").process(Batch([1], ["k"]))


def test_the_chain_hands_on_what_its_operators_say_whoever_stops_it() -> None:
    """A snapshot may follow any slice: nothing that has been said waits in an operator for the next one."""
    split = operator_of(OperatorNode("s", SplitSpec(PREDICATES, has_rest=True), ()), "large", "even")
    out: list[Any] = []
    aside: list[Any] = []

    def take_aside(batch: Batch, side: SideOutput) -> None:
        aside.extend((side, record) for record in batch.records)

    def stopping(n: int) -> int:
        if n == 4:
            chain._time_budget.stop()
        return n

    chain = Chain(
        [Map("m", stopping), split, Map("n", str)], lambda batch: out.extend(batch.records), take_aside
    )
    chain.begin(10)
    rest = chain.process(Batch([102, 3, 4, 5, 6]))
    assert rest is not None and rest.records == [5, 6]
    assert (out, aside) == ([], [])
    chain.begin(10)
    chain.go_on()
    assert out == ["3"]
    assert aside == [(SideOutput("s", "even"), 4), (SideOutput("s", "large"), 102)]
    assert not chain.is_halfway


def test_a_split_that_is_stopped_has_said_what_it_has_taken() -> None:
    site: list[Chain] = []

    def stopping(n: int) -> bool:
        if n == 2:
            site[0]._time_budget.stop()
        return n % 2 == 0

    spec = SplitSpec((("even", stopping),), has_rest=True)
    out: list[Any] = []
    aside: list[Any] = []
    chain = Chain(
        [operator_of(OperatorNode("s", spec, ()), "even")],
        lambda batch: out.extend(batch.records),
        lambda batch, side: aside.extend(batch.records),
    )
    site.append(chain)
    chain.begin(10)
    rest = chain.process(Batch([0, 1, 2, 3, 4]))
    assert rest is not None and (out, aside, rest.records) == ([1], [0, 2], [3, 4])


DEAD: OnError = "dead letters"
OPERATORS = ("m", "times", "later", "slow", "slow-times")


class Slow(cc.KeyedProcess[int, int]):
    def on_record(self, record: int, ctx: cc.Context) -> None:
        ctx.output("seen", record)
        ctx.set_processing_timer(1)

    def on_processing_timer(self, time: int, ctx: cc.Context) -> None:
        ctx.output("seen", time)


def test_what_is_said_before_timestamps_are_assigned_has_none_and_may_meet_other_such_records() -> None:
    flow = cc.Flow("f")
    numbers = (
        flow.source(Nothing()).named("numbers").map(lambda n: 1 // n, on_error="dead letters").named("m")
    )
    timed = numbers.assign_timestamps(lambda n: 5).named("times").map(lambda n: 1 // (n - 2), on_error=DEAD)
    timed.named("later").sink(Nowhere()).named("out")
    timed.side_output(DEAD).sink(Nowhere()).named("later-letters")
    letters = numbers.side_output(DEAD).union(flow.source(Nothing()).named("others"))
    letters.key_by(str).count().sink(Nowhere()).named("all-letters")
    slow = flow.source(Nothing()).named("slow-numbers").key_by(abs).process(Slow()).named("slow")
    slow.assign_timestamps(lambda n: 5).named("slow-times").sink(Nowhere()).named("slow-out")
    slow.side_output("seen").sink(Nowhere()).named("seen")
    graph = flow.compile(1, 8)

    said: list[tuple[str, list[int] | None]] = []

    def chain_of(vertex_id: str) -> Chain:
        (vertex,) = (one for one in graph.vertices if one.vertex_id == vertex_id)
        operators = [operator_of(one, DEAD, "seen") for one in vertex.chain if one.uid in OPERATORS]
        chain = Chain(
            operators,
            lambda batch: None,
            lambda batch, side: said.append((side.uid, batch.timestamps)) if batch.records else None,
            has_event_time=vertex.has_event_time,
            untimed=vertex.untimed,
        )
        chain.restore(None, None, [], is_new=True)
        chain.begin(10)
        return chain

    chain_of("numbers").process(Batch([0, 1 / 2]))
    assert said == [("m", None), ("later", [5])]
    said.clear()
    chain = chain_of("slow")
    chain.process(Batch([7], [7]))
    chain.set_clock(1)
    chain.begin(10)
    chain.ring(is_fed=True)
    assert said == [("slow", None), ("slow", None)]
