"""L3: user code that gives other results each time. A staged sink is exact, whoever is killed.

A sink that shows records at once, in the place of those with the same key, is not: what an attempt has shown
that failed stays, beside what the next one makes of the same records.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from tests.proof.worlds.graphs import Graph
from tests.simulation.by_chance import Numbering, Upserts

import crosscut as cc
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.world import World
from test_simulator_scenarios import EXACTLY_ONCE, at, when, world

ROUTES = 5
FAULTS = (
    when("kill a worker", "snapshot.stored", nth=2),
    at("kill a worker", 90, choice=1),
    at("kill the driver", 150),
    at("kill a worker", 190, choice=1),
)


class Routed:
    """A job that deals its records out by chance.

    Args:
        is_staged: Into a staged sink; else into one that shows them at once.
    """

    def __init__(self, seed: int, *, is_staged: bool) -> None:
        self.dice = random.Random(seed)
        self.is_staged = is_staged
        self.upserts = Upserts(lambda one: ((one[0], one[2]), one[1]))
        self.records: list[Any] = []

    def route(self, record: Any) -> int:
        return self.dice.randrange(ROUTES)

    def flow(self, source: Any, sink: Any) -> cc.Flow:
        flow = cc.Flow("routed")
        flow.source(source).key_by(self.route).process(Numbering()).sink(sink).named("out")
        return flow

    def job(self, options: Options) -> SimulatedJob:
        splits = {
            f"s{split}": [(split, n) for n in range(options.record_count)]
            for split in range(options.parallelism * options.splits_per_task)
        }
        self.records = [record for one in splits.values() for record in one]
        source, staged = ReplayedSource(splits, options.source_ms), SimulatedSink()
        flow = self.flow(source, staged if self.is_staged else self.upserts)
        return SimulatedJob(
            flow.compile(options.parallelism, MAX_PARALLELISM),
            (source,),
            (staged,),
            # Which route a record has taken is not to be known.
            Graph(lambda *_: None, tokens=lambda said: (said[2],)),
            is_comparable=self.is_staged,
            expected={"out": [(0, 0, record) for record in self.records]},
        )

    def live(self, seed: int, protocol: ProtocolKind) -> World:
        options = world(seed, "chain", protocol, faults=FAULTS, batch_rows=2)
        one = World(options, self.job(options))
        one.run()
        assert one.seen["epoch"] > 1
        return one


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
def test_a_staged_sink_has_each_record_once_and_agrees_with_the_state(protocol: ProtocolKind) -> None:
    for seed in range(3):
        routed = Routed(seed, is_staged=True)
        one = routed.live(seed, protocol)
        said = [record for _, records in one.resource.committed.values() for record in records]
        assert Counter(record for _, _, record in said) == Counter(routed.records)
        numbers = defaultdict(list)
        for route, number, _ in said:
            numbers[route].append(number)
        assert all(sorted(found) == list(range(1, len(found) + 1)) for found in numbers.values())


def test_a_sink_that_shows_records_at_once_keeps_what_another_attempt_has_shown() -> None:
    """As `explain` warns: the same flow is not exact with it."""
    most = 0
    for seed in range(4):
        routed = Routed(seed, is_staged=False)
        routed.live(seed, "aligned")
        ways = Counter(record for _, record in routed.upserts.rows)
        assert ways.keys() == {*routed.records}, "no record is lost"
        most = max(most, *ways.values())
    assert most > 1, "no record was ever shown on two routes"


def test_explain_warns_of_the_sink_that_shows_records_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    warning = "exactly once only if the flow is deterministic: out"
    for is_staged in (False, True):
        routed = Routed(0, is_staged=is_staged)
        routed.flow(cc.items([(0, 1)]), cc.collect() if is_staged else routed.upserts).explain()
        assert (warning in capsys.readouterr().out) != is_staged
