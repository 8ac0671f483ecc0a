"""Code that is not deterministic: exact with staged sinks, and not with one that shows records at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.graphs import Graph
from tests.simulation.by_chance import Numbering, Upserts

import crosscut as cc
from crosscut.contracts.connectors import Sink
from crosscut.graph.explain import explained
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.world import World

EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching")
RECORDS = [(split, n) for split in range(2) for n in range(15)]
KEYS = 3
SEEDS = range(1, 13)


def flow_of(source: cc.Source[Any], sink: Sink, key_of: Callable[[Any], int]) -> cc.Flow:
    flow = cc.Flow("by-chance")
    keyed = flow.source(source).named("in").key_by(key_of)
    keyed.process(Numbering()).named("numbered").sink(sink).named("out")
    return flow


def world(seed: int, protocol: ProtocolKind, sink: Sink, key_of: Callable[[Any], int]) -> World:
    options = options_of(seed, ("chain",), (protocol,), kinds=("kill a worker",))
    options = replace(options, is_periodic=True, rescaled_to=())
    splits = {f"s{split}": [one for one in RECORDS if one[0] == split] for split in range(2)}
    source = ReplayedSource(splits, options.source_ms)
    graph = flow_of(source, sink, key_of).compile(options.parallelism, MAX_PARALLELISM)
    sinks = (sink,) if isinstance(sink, SimulatedSink) else ()
    judged_as = Graph(lambda *_: None)
    return World(options, SimulatedJob(graph, (source,), sinks, judged_as, is_comparable=False))


def at_random(seed: int) -> Callable[[Any], int]:
    dice = random.Random(seed)
    return lambda record: dice.randrange(KEYS)


def is_exact(rows: Sequence[tuple[int, int, Any]]) -> bool:
    """Each record once, and the numbers of each key without a gap."""
    numbers: dict[int, list[int]] = {}
    for key, number, _ in rows:
        numbers.setdefault(key, []).append(number)
    has_no_gap = all(sorted(found) == list(range(1, len(found) + 1)) for found in numbers.values())
    return has_no_gap and Counter(record for *_, record in rows) == Counter(RECORDS)


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
def test_random_keys_and_kills_show_in_no_staged_output(protocol: ProtocolKind) -> None:
    epochs = 0
    for seed in SEEDS:
        one = world(seed, protocol, SimulatedSink(), at_random(seed))
        one.run()
        assert is_exact(one.resource.records("out")), f"seed {seed}"
        epochs += one.seen["epoch"]
    assert epochs > 2 * len(SEEDS)


def by_number() -> Upserts:
    return Upserts(lambda one: (one[:2], one[2]))


def rows_of(sink: Upserts) -> list[tuple[int, int, Any]]:
    return [(*place, record) for place, record in sink.rows.items()]


def test_random_keys_and_kills_show_where_each_record_is_seen_at_once() -> None:
    found = []
    for seed in SEEDS:
        sink = by_number()
        world(seed, "aligned", sink, at_random(seed)).run()
        found.append(is_exact(rows_of(sink)))
    assert False in found


def test_explain_warns_of_sinks_that_show_records_at_once() -> None:
    source = ReplayedSource({"s": []})
    warning = "exactly once only if the flow is deterministic: out"
    assert warning in explained(flow_of(source, by_number(), len).compile(1, 1))
    assert warning not in explained(flow_of(source, SimulatedSink(), len).compile(1, 1))
    flow = cc.Flow("f")
    records = flow.source(source)
    records.for_each(print)
    records.sink(cc.kafka.sink("localhost:9092", "t", guarantee="at least once")).named("topic")
    assert "at least once: 2-for_each, topic" in explained(flow.compile(1, 1))
