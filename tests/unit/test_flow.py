"""What a user writes: every method adds one operator, and refuses wrong arguments at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.endpoints import Nothing, Nowhere

from crosscut.connectors.simple.generate import generate
from crosscut.errors import CrosscutError, FlowError, SettingsError
from crosscut.flow.flow import Flow
from crosscut.flow.keyed_stream import KeyedStream
from crosscut.flow.stream import Stream
from crosscut.graph.specs import AggregateSpec, Input, OperatorNode, SumSpec


def operators(flow: Flow) -> dict[str, OperatorNode]:
    return {node.uid: node for vertex in flow.compile(1, 1).vertices for node in vertex.chain}


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(FlowError) as caught:
        action()
    return str(caught.value)


@pytest.fixture
def flow() -> Flow:
    return Flow("f")


@pytest.fixture
def stream(flow: Flow) -> Stream:
    return flow.source(Nothing())


@pytest.fixture
def keyed(stream: Stream) -> KeyedStream:
    return stream.key_by(len)


def test_operators_are_called_by_place_and_kind(flow: Flow) -> None:
    flow.source(Nothing()).flat_map(str.split).key_by(len).count().sink(Nowhere())
    assert list(operators(flow)) == ["1-source", "2-flat_map", "3-key_by", "4-count", "5-sink"]


def test_a_name_replaces_place_and_kind_and_others_keep_theirs(flow: Flow) -> None:
    (
        flow.source(Nothing())
        .named("in")
        .map(len)
        .key_by(len)
        .named("by-length")
        .count()
        .named("counts")
        .sink(Nowhere())
        .named("out")
    )
    nodes = operators(flow)
    assert list(nodes) == ["in", "2-map", "by-length", "counts", "out"]
    assert nodes["2-map"].inputs == (Input("in", "forward"),)
    assert nodes["counts"].inputs == (Input("by-length", "hash"),)


def test_a_name_can_be_changed_and_is_then_free_again(flow: Flow, stream: Stream) -> None:
    stream.map(len).named("a").named("b").map(len).named("a").sink(Nowhere())
    assert list(operators(flow)) == ["1-source", "b", "a", "4-sink"]


def test_two_operators_with_one_uid_are_refused_and_both_are_named(stream: Stream) -> None:
    mapped = stream.map(len).named("a")
    assert refusal(lambda: mapped.filter(bool).named("a")) == (
        "flow 'f': operators '2-map' and '3-filter' would both have uid 'a': a uid identifies the state "
        "and must be unique; name one of them differently"
    )


def test_a_name_that_is_the_automatic_name_of_another_operator_is_refused(stream: Stream) -> None:
    mapped = stream.map(len)
    assert "'2-map' and '1-source' would both have uid '2-map'" in refusal(lambda: stream.named("2-map"))
    stream.named("3-filter")
    assert "'1-source' and '3-filter'" in refusal(lambda: mapped.filter(bool))


@pytest.mark.parametrize("uid", ["", "a/b", "..", ".a", "a b", "x" * 65, None, 3])
def test_a_uid_or_flow_name_that_can_not_be_part_of_a_path_is_refused(stream: Stream, uid: Any) -> None:
    assert refusal(lambda: stream.named(uid)).startswith(
        f"flow 'f', operator '1-source': uid {uid!r} is not usable"
    )
    assert refusal(lambda: Flow(uid)).startswith(f"flow name {uid!r} is not usable")


@pytest.mark.parametrize("method", ["map", "filter", "flat_map", "inspect"])
def test_a_stream_operator_takes_a_function_only(stream: Stream, method: str) -> None:
    assert refusal(lambda: getattr(stream, method)("word")) == (
        f"flow 'f', operator '2-{method}': function='word' of type str: expected a function"
    )


async def asynchronous(record: Any) -> Any:
    return record


def yielding(record: Any) -> Iterator[Any]:
    yield record


@pytest.mark.parametrize("method", ["map", "filter", "flat_map", "inspect", "key_by"])
def test_an_async_function_is_refused_since_nobody_would_await_it(stream: Stream, method: str) -> None:
    assert "is an async function" in refusal(lambda: getattr(stream, method)(asynchronous))


@pytest.mark.parametrize("method", ["map", "filter", "inspect", "key_by"])
def test_a_generator_function_is_refused_where_one_value_is_taken(stream: Stream, method: str) -> None:
    assert "return it, or use flat_map" in refusal(lambda: getattr(stream, method)(yielding))
    stream.flat_map(yielding)


@pytest.mark.parametrize("method", ["map", "filter", "flat_map", "inspect", "key_by"])
def test_a_function_that_can_not_take_one_record_is_refused_when_the_flow_is_written(
    stream: Stream, method: str
) -> None:
    two = lambda key, value: value  # noqa: E731 - as users write it
    place = f"{two.__qualname__} ({__file__}:{two.__code__.co_firstlineno})"
    assert refusal(lambda: getattr(stream, method)(two)) == (
        f"flow 'f', operator '2-{method}': function: it is called with (record), and {place} takes "
        "(key, value); a record that is a tuple comes as one argument"
    )
    assert "takes ()" in refusal(lambda: getattr(stream, method)(lambda: 1))
    assert "takes (*, key=1)" in refusal(lambda: getattr(stream, method)(partial(lambda key: key, key=1)))


@pytest.mark.parametrize("function", [str, int, max, dict, print, partial(pow, 2), str.split, [].append])
def test_a_function_that_can_take_one_or_does_not_say_is_taken(stream: Stream, function: Any) -> None:
    stream.map(function)


def test_so_are_the_other_functions_of_a_flow(flow: Flow, stream: Stream, keyed: KeyedStream) -> None:
    one: Any = lambda record: record  # noqa: E731 - as users write it
    two: Any = lambda key, value: value  # noqa: E731
    assert "function: it is called with (record)" in refusal(lambda: keyed.sum(two))
    assert "function: it is called with (value so far, record)" in refusal(lambda: keyed.reduce(one))
    assert "initial: it is called with ()" in refusal(lambda: keyed.aggregate(one, two))
    assert "add: it is called with (accumulator, record)" in refusal(lambda: keyed.aggregate(0, one))
    assert "result: it is called with (accumulator)" in refusal(lambda: keyed.aggregate(0, two, two))
    assert "body: it is called with (loop)" in refusal(lambda: stream.iterate(two))
    assert "the predicate: it is called with (cut)" in refusal(lambda: flow.invariant("i", two))
    with pytest.raises(SettingsError, match=r"it is called with \(number\)"):
        generate(two)


def test_a_method_that_belongs_to_a_stream_of_another_kind_says_what_to_write(
    stream: Any, keyed: Any
) -> None:
    assert refusal(lambda: stream.count()) == (
        "flow 'f', operator '3-count': a value is kept for each key: give the records keys first, as in "
        ".key_by(function).count(...)"
    )
    assert "a keyed stream has no map(): put map() in front of key_by" in refusal(lambda: keyed.map(len))
    assert "a keyed stream has no sink()" in refusal(lambda: keyed.sink(Nowhere()))
    ended = stream.sink(Nowhere())
    assert "the stream has ended in a sink" in refusal(lambda: ended.map(len))
    for one in (stream, keyed, ended):
        with pytest.raises(AttributeError, match="has no 'flatmap'"):
            _ = one.flatmap
    assert not hasattr(stream, "_repr_html_")
    assert copy.copy(stream)._operator is stream._operator


def test_sources_and_sinks_are_checked(flow: Flow, stream: Stream) -> None:
    assert refusal(lambda: flow.source("a.txt")) == (  # type: ignore[arg-type]
        "flow 'f', operator '2-source': expected a crosscut.Source, found an object of type str"
    )
    assert refusal(lambda: stream.sink(print)).startswith(  # type: ignore[arg-type]
        "flow 'f', operator '2-sink': expected a crosscut.Sink, found <built-in"
    )


def test_a_refused_operator_is_not_part_of_the_flow(flow: Flow, stream: Stream) -> None:
    refusal(lambda: stream.map(3))  # type: ignore[arg-type]
    stream.sink(Nowhere())
    assert list(operators(flow)) == ["1-source", "2-sink"]


def test_union_takes_streams_of_the_same_flow_only(stream: Stream, keyed: KeyedStream) -> None:
    other = Flow("other").source(Nothing()).named("elsewhere")
    assert (
        refusal(stream.union)
        == "flow 'f', operator '3-union': expected at least one other stream, found none"
    )
    assert "'elsewhere' belongs to flow 'other'" in refusal(lambda: stream.union(other))
    assert "end the keyed stream with count" in refusal(lambda: stream.union(keyed))  # type: ignore[arg-type]
    assert "found 3 of type int" in refusal(lambda: stream.union(3))  # type: ignore[arg-type]


def test_union_keeps_how_each_of_its_streams_is_distributed(flow: Flow, stream: Stream) -> None:
    stream.union(flow.source(Nothing()).rebalance(), flow.source(Nothing()).broadcast()).sink(Nowhere())
    assert operators(flow)["4-union"].inputs == (
        Input("1-source", "forward"),
        Input("2-source", "rebalance"),
        Input("3-source", "broadcast"),
    )


def test_rebalance_and_broadcast_concern_the_next_operator_only(flow: Flow, stream: Stream) -> None:
    stream.rebalance().map(len).map(len).sink(Nowhere())
    stream.broadcast().sink(Nowhere())
    nodes = operators(flow)
    assert nodes["2-map"].inputs == (Input("1-source", "rebalance"),)
    assert nodes["3-map"].inputs == (Input("2-map", "forward"),)
    assert nodes["5-sink"].inputs == (Input("1-source", "broadcast"),)


def test_a_stream_is_distributed_in_one_way(stream: Stream) -> None:
    assert refusal(stream.rebalance().broadcast) == (
        "flow 'f': broadcast() after rebalance(), both after operator '1-source': a stream can be "
        "distributed in one way only; remove one of them"
    )


def test_keyed_operators_check_functions_and_emit(keyed: KeyedStream) -> None:
    number: Any = 3
    assert "'3-sum': function=3 of type int: expected a function" in refusal(lambda: keyed.sum(number))
    assert "'3-reduce': function=3" in refusal(lambda: keyed.reduce(number))
    assert "'3-aggregate': add=3" in refusal(lambda: keyed.aggregate(0, number))
    assert "'3-aggregate': result=3" in refusal(lambda: keyed.aggregate(0, max, number))
    often: Any = "often"
    for action in (
        lambda: keyed.count(emit=often),
        lambda: keyed.sum(emit=often),
        lambda: keyed.reduce(max, emit=often),
        lambda: keyed.aggregate(0, max, emit=often),
    ):
        assert "emit='often': expected 'updates' or 'final'" in refusal(action)


def test_sum_without_a_function_adds_the_records_themselves(flow: Flow, keyed: KeyedStream) -> None:
    keyed.sum().sink(Nowhere())
    spec = operators(flow)["3-sum"].spec
    assert isinstance(spec, SumSpec)
    assert spec.function(17) == 17


@pytest.mark.parametrize("initial", [0, 1.5, "", b"", None, True, 1j, (), (0, ("a", None)), frozenset({1})])
def test_aggregate_starts_from_a_value_that_can_not_change(
    flow: Flow, keyed: KeyedStream, initial: Any
) -> None:
    keyed.aggregate(initial, max).sink(Nowhere())
    spec = operators(flow)["3-aggregate"].spec
    assert isinstance(spec, AggregateSpec)
    assert spec.initial() == initial


def test_aggregate_starts_from_what_a_function_makes_anew(flow: Flow, keyed: KeyedStream) -> None:
    keyed.aggregate(list, lambda found, record: [*found, record]).sink(Nowhere())
    spec = operators(flow)["3-aggregate"].spec
    assert isinstance(spec, AggregateSpec)
    assert spec.initial() == []
    assert spec.initial() is not spec.initial()


@pytest.mark.parametrize(
    "initial",
    [[], {}, set(), bytearray(), (0, []), copy.deepcopy(Nothing())],
    ids=lambda value: type(value).__name__,
)
def test_aggregate_refuses_a_value_that_all_keys_would_share(keyed: KeyedStream, initial: Any) -> None:
    assert "could be changed, and all keys would share it" in refusal(lambda: keyed.aggregate(initial, max))


def test_a_flow_can_be_added_to_after_it_was_compiled(flow: Flow, stream: Stream) -> None:
    stream.sink(Nowhere())
    assert len(operators(flow)) == 2
    stream.map(len).sink(Nowhere())
    assert len(operators(flow)) == 4


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 128), (3, 2), (True, 128), (1, 40_000)])
def test_parallelism_is_checked_when_compiled(
    flow: Flow, stream: Stream, parallelism: int, max_parallelism: int
) -> None:
    stream.sink(Nowhere())
    with pytest.raises(SettingsError):
        flow.compile(parallelism, max_parallelism)


def test_explain_prints_the_compiled_graph(
    flow: Flow, stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.sink(Nowhere())
    flow.explain(parallelism=3)
    assert "vertices: 1, each of 3 tasks" in capsys.readouterr().out


def test_explain_says_what_is_missing(flow: Flow) -> None:
    with pytest.raises(CrosscutError, match="no source"):
        flow.explain()


def test_flows_and_streams_have_a_readable_repr(flow: Flow, keyed: KeyedStream) -> None:
    assert repr(flow) == "<Flow 'f'>"
    assert repr(keyed) == "<KeyedStream '2-key_by' of flow 'f'>"
