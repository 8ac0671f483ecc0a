"""deduplicate, top_n and rate_limit in virtual worlds: exact, whoever is killed meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

import crosscut as cc
from crosscut.protocol.barriers.choosing import ProtocolKind
from crosscut.testing.simulator.graphs import MAX_PARALLELISM, Graph, SimulatedJob
from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.world import World

EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching")
NUMBERS = [n * n % 23 for n in range(24)]
"""Most of them come several times."""


def world(seed: int, protocol: ProtocolKind) -> World:
    options = options_of(seed, ("chain",), (protocol,), kinds=("kill a worker",))
    options = replace(options, is_periodic=True, rescaled_to=())
    splits = {f"s{split}": NUMBERS[split::2] for split in range(2)}
    source = ReplayedSource(splits, options.source_ms)
    sinks = SimulatedSink(), SimulatedSink()
    flow = cc.Flow("operators")
    numbers = flow.source(source).named("in").rate_limit(2_000, per="1s").named("slowly")
    keyed = numbers.key_by(lambda n: n)
    keyed.deduplicate().named("first").sink(sinks[0]).named("each-once")
    by_rest = numbers.key_by(lambda n: n % 3)
    by_rest.top_n(2, emit="final").named("best").sink(sinks[1]).named("best-out")
    expected = {
        "each-once": sorted({*NUMBERS}),
        "best-out": [
            (rest, sorted((n for n in NUMBERS if n % 3 == rest), reverse=True)[:2]) for rest in range(3)
        ],
    }
    job = SimulatedJob(
        flow.compile(options.parallelism, MAX_PARALLELISM),
        (source,),
        sinks,
        Graph(lambda *_: None, survives_duplicates=False),
        expected=expected,
    )
    return World(options, job)


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
def test_operators_are_exact_whoever_is_killed(protocol: ProtocolKind) -> None:
    epochs = 0
    for seed in range(1, 9):
        one = world(seed, protocol)
        one.run()
        lost, added = one.checkers.difference()
        assert not lost and not added, f"seed {seed}"
        epochs += one.seen["epoch"]
    assert epochs > 8
