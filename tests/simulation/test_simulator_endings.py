"""Loops and final results, in front of each other: a job ends when nothing can be said any more, not before.

A final result is said when the input has ended, so a loop behind it is empty until then, and may not be
closed; what a loop lets out last is in the results behind it. Every snapshot protocol sees the end of the
input travel in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.graphs import Graph, built
from tests.proof.worlds.shrinking import live, report
from tests.simulation.seeds import some_of

from crosscut.flow.flow import Flow
from crosscut.flow.stream import Stream
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import PROTOCOLS, FaultKind, Options, options_of
from crosscut.testing.simulator.world import World

Source = Callable[[], Stream]
Sink = Callable[[Stream], None]
ROUNDS = 4
FAILURES: tuple[FaultKind, ...] = (
    "kill a worker",
    "kill the driver",
    "raise in user code",
    "slow channel",
    "repeat a word",
    "repeat a message",
    "break a control link",
    "refuse a log append",
    "refuse a part",
)


def numbered(source: Source) -> Stream:
    """Records as (what, rounds to go)."""
    return source().map(lambda record: (str(record[0]), record[1] % ROUNDS + 1))


def totals(stream: Stream) -> Stream:
    """The number of records of each kind, at the end, as records of the same form."""
    counted = stream.key_by(lambda record: record[0]).count(emit="final")
    return counted.map(lambda total: (f"{total[0]} {total[1]}", total[1] % ROUNDS + 1))


def one_less(record: Any) -> Any:
    return (record[0], record[1] - 1)


def rounds(stream: Stream) -> Stream:
    """Each record goes round as often as it says."""

    def body(loop: Stream) -> tuple[Stream, Stream]:
        less = loop.rebalance().map(one_less)
        return less.filter(lambda record: record[1] > 0), less.filter(lambda record: record[1] <= 0)

    return stream.iterate(body).map(lambda record: (record[0], len(record[0]) % ROUNDS + 1))


def rounds_within_rounds(stream: Stream) -> Stream:
    def inner(loop: Stream) -> tuple[Stream, Stream]:
        less = loop.rebalance().map(one_less)
        return less.filter(lambda record: record[1] % 2 == 1), less.filter(lambda record: record[1] % 2 == 0)

    def outer(loop: Stream) -> tuple[Stream, Stream]:
        out = loop.iterate(inner)
        return out.filter(lambda record: record[1] > 0), out.filter(lambda record: record[1] <= 0)

    return stream.iterate(outer).map(lambda record: (record[0], len(record[0]) % ROUNDS + 1))


def on_the_spot(stream: Stream) -> Stream:
    """A loop of one vertex: what goes round is what leaves, too."""

    def body(loop: Stream) -> tuple[Stream, Stream]:
        less = loop.flat_map(lambda record: [one_less(record)] if record[1] > 0 else [])
        return less, less

    return stream.iterate(body).map(lambda record: (f"{record[0]}.{record[1]}", record[1] + 1))


def in_a_row(flow: Flow, source: Source, sink: Sink) -> None:
    sink(totals(rounds(totals(rounds(numbered(source))))))


def in_front_and_behind(flow: Flow, source: Source, sink: Sink) -> None:
    sink(totals(rounds(totals(numbered(source)))))


def loop_into_loop(flow: Flow, source: Source, sink: Sink) -> None:
    sink(totals(rounds(rounds(numbered(source)))))


def nested(flow: Flow, source: Source, sink: Sink) -> None:
    sink(totals(rounds_within_rounds(totals(rounds_within_rounds(numbered(source))))))


def of_one_vertex(flow: Flow, source: Source, sink: Sink) -> None:
    sink(totals(on_the_spot(totals(on_the_spot(numbered(source))))))


def out_of_a_body(flow: Flow, source: Source, sink: Sink) -> None:
    """The total stands in the body of the loop, and only leads out of it."""

    def body(loop: Stream) -> tuple[Stream, Stream]:
        less = loop.rebalance().map(one_less)
        return less.filter(lambda record: record[1] > 0), totals(less)

    sink(totals(rounds(totals(numbered(source)).iterate(body))))


def diamond(flow: Flow, source: Source, sink: Sink) -> None:
    """Two ways to the last loop: one at once, one by way of totals; the shorter source ends much sooner."""
    first, second = rounds(numbered(source)), numbered(source)
    both = first.union(totals(first), totals(rounds(second)))
    last = rounds(both)
    sink(last)
    sink(totals(last.union(second)))


FLOWS = (in_a_row, in_front_and_behind, loop_into_loop, nested, of_one_vertex, out_of_a_body, diamond)


def options_for(seed: int, protocol: ProtocolKind, kinds: tuple[FaultKind, ...]) -> Options:
    options = options_of(seed, ("chain",), (protocol,), kinds=kinds or FAILURES)
    options = replace(options, record_count=min(options.record_count, 5))
    return options if kinds else replace(options, faults=())


def check(flow: Any, protocol: ProtocolKind, seed: int, kinds: tuple[FaultKind, ...] = ()) -> None:
    graph = Graph(flow, survives_duplicates=False)
    life = live(
        options_for(seed, protocol, kinds), make=lambda options: World(options, built(options, graph))
    )
    assert not life.failure, report(life)
    assert life.seen["job finished"]


@some_of(2, few=1)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("flow", FLOWS, ids=lambda one: one.__name__)
def test_a_job_ends_with_all_that_its_loops_and_totals_have_to_say(
    flow: Any, protocol: ProtocolKind, seeds: range
) -> None:
    """G4, F5"""
    for seed in seeds:
        check(flow, protocol, seed)


@some_of(2, few=1)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("flow", FLOWS, ids=lambda one: one.__name__)
def test_whatever_goes_wrong_while_loops_are_being_closed(
    flow: Any, protocol: ProtocolKind, seeds: range
) -> None:
    """G4, F5: a closed loop is closed again by what the next epoch finds on its own cuts."""
    for seed in seeds:
        check(flow, protocol, seed, FAILURES)
