"""Every operator can be named where it is added: `name=` does what `named` does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import polars
import pytest

import crosscut as cc
from crosscut.errors import FlowError
from crosscut.flow.connected_streams import ConnectedStreams

NO_OPERATOR = {"side_output", "named", "connect", "window", "rebalance", "broadcast"}
"""What follows them has a name, or they name themselves."""
BY_NAMED = {"split"}
"""Its keywords are the names of its streams."""


class Same(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        yield record


class SameAlone(cc.StreamProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        yield record


class SameOfBoth(cc.ConnectedProcess[Any, Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        yield record

    def on_other(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        yield record


def started(flow: cc.Flow) -> Any:
    return flow.source(cc.items([1]))


def keyed(flow: cc.Flow) -> Any:
    return started(flow).assign_timestamps(abs).key_by(abs)


def windowed(flow: cc.Flow) -> Any:
    return keyed(flow).window(cc.tumbling("1s"))


def framed(flow: cc.Flow) -> Any:
    return started(flow).frame({"n": "int64"})


Added = Callable[[cc.Flow, str], Any]
STREAM: dict[str, Added] = {
    "map": lambda f, name: started(f).map(abs, name=name),
    "filter": lambda f, name: started(f).filter(abs, name=name),
    "flat_map": lambda f, name: started(f).flat_map(range, name=name),
    "process": lambda f, name: started(f).process(SameAlone(), name=name),
    "map_async": lambda f, name: started(f).map_async(abs, name=name),
    "rate_limit": lambda f, name: started(f).rate_limit(5, name=name),
    "for_each": lambda f, name: started(f).for_each(abs, name=name),
    "for_each_checkpoint": lambda f, name: started(f).for_each_checkpoint(
        lambda records, checkpoint_id: None, name=name
    ),
    "lookup": lambda f, name: started(f).lookup(cc.lookup({1: "one"}), abs, name=name),
    "inspect": lambda f, name: started(f).inspect(abs, name=name),
    "assign_timestamps": lambda f, name: started(f).assign_timestamps(abs, name=name),
    "key_by": lambda f, name: started(f).key_by(abs, name=name),
    "union": lambda f, name: started(f).union(started(f), name=name),
    "iterate": lambda f, name: started(f).iterate(
        lambda loop: (loop.filter(lambda n: n), loop.filter(lambda n: not n)), name=name
    ),
    "frame": lambda f, name: started(f).frame({"n": "int64"}, name=name),
    "sink": lambda f, name: started(f).sink(cc.printing(), name=name),
}
FRAME: dict[str, Added] = {
    "select": lambda f, name: framed(f).select("n", name=name),
    "with_columns": lambda f, name: framed(f).with_columns(m="n", name=name),
    "filter": lambda f, name: framed(f).filter(True, name=name),
    "drop": lambda f, name: framed(f).with_columns(m="n").drop("m", name=name),
    "rename": lambda f, name: framed(f).rename({"n": "m"}, name=name),
    "map_batches": lambda f, name: framed(f).map_batches(abs, {"n": "int64"}, name=name),
    "key_by": lambda f, name: framed(f).key_by("n", name=name),
    "rows": lambda f, name: framed(f).rows(name=name),
    "sink": lambda f, name: framed(f).sink(cc.printing(), name=name),
}
KEYED_FRAME: dict[str, Added] = {
    "agg": lambda f, name: framed(f).key_by("n").agg(polars.len(), name=name),
}
KEYED: dict[str, Added] = {
    **{
        kind: lambda f, name, kind=kind: getattr(keyed(f), kind)(name=name)  # type: ignore[misc]
        for kind in (
            "count", "sum", "min", "max", "mean", "collect_list", "approx_distinct", "deduplicate"
        )
    },
    "reduce": lambda f, name: keyed(f).reduce(max, name=name),
    "aggregate": lambda f, name: keyed(f).aggregate(0, max, name=name),
    "process": lambda f, name: keyed(f).process(Same(), name=name),
    "stateful": lambda f, name: keyed(f).stateful(lambda state, record: (state, []), name=name),
    "top_n": lambda f, name: keyed(f).top_n(3, name=name),
    "interval_join": lambda f, name: keyed(f).interval_join(keyed(f), "-1s", "1s", name=name),
    "window_join": lambda f, name: keyed(f).window_join(keyed(f), cc.tumbling("1s"), name=name),
    "latest_join": lambda f, name: keyed(f).latest_join(keyed(f), name=name),
}  # fmt: skip
WINDOWED: dict[str, Added] = {
    **{
        kind: lambda f, name, kind=kind: getattr(windowed(f), kind)(name=name)  # type: ignore[misc]
        for kind in ("count", "sum", "min", "max", "mean", "collect_list", "approx_distinct")
    },
    "reduce": lambda f, name: windowed(f).reduce(max, name=name),
    "aggregate": lambda f, name: windowed(f).aggregate(0, max, name=name),
    "process": lambda f, name: windowed(f).process(lambda window: window.value, name=name),
}
OTHERS: dict[str, Added] = {
    "source": lambda f, name: f.source(cc.items([1]), name=name),
    "connect": lambda f, name: keyed(f).connect(started(f).broadcast()).process(SameOfBoth(), name=name),
}
CASES = {
    f"{kind}.{method}": added
    for kind, methods in (
        ("Stream", STREAM), ("KeyedStream", KEYED), ("WindowedStream", WINDOWED), ("Frame", FRAME),
        ("KeyedFrame", KEYED_FRAME),
        ("Flow", OTHERS)
    )
    for method, added in methods.items()
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_operator_is_called_as_it_is_named(case: str) -> None:
    flow = cc.Flow("names")
    CASES[case](flow, "my-own")
    assert [node.uid for node in flow._draft.nodes()].count("my-own") == 1


@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        (cc.Stream, STREAM),
        (cc.KeyedStream, KEYED),
        (cc.WindowedStream, WINDOWED),
        (cc.Frame, FRAME),
        (cc.KeyedFrame, KEYED_FRAME),
    ],
)
def test_every_method_that_adds_an_operator_takes_a_name(kind: type, methods: dict[str, Added]) -> None:
    public = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
    with_name = {name for name in public if "name" in inspect.signature(getattr(kind, name)).parameters}
    assert public - with_name - NO_OPERATOR == (BY_NAMED if kind is cc.Stream else set())
    assert with_name - {"side_output"} - {"transform_with_state"} == set(methods)


def test_two_streams_that_are_connected_are_one_named_operator() -> None:
    assert "name" in inspect.signature(ConnectedStreams.process).parameters


def test_a_name_that_is_taken_or_no_name_is_refused_as_with_named() -> None:
    flow = cc.Flow("names")
    stream = flow.source(cc.items([1]), name="one")
    with pytest.raises(FlowError, match=r"'one' and '2-map' would both have uid 'one'|'1-source'"):
        stream.map(abs, name="one")
    with pytest.raises(FlowError, match="no / in"):
        stream.map(abs, name="no / in")


def test_an_operator_with_a_name_keeps_it_unless_it_is_renamed() -> None:
    flow = cc.Flow("names")
    flow.source(cc.items([1]), name="one").named("two").map(abs, name="three").sink(cc.printing())
    assert [node.uid for node in flow._draft.nodes()] == ["two", "three", "3-sink"]
