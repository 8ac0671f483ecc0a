"""Processes with two inputs, or without keys, in worlds where things go wrong: their output stays exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from tests.proof.worlds.graphs import Graph
from tests.proof.worlds.shrinking import live, report
from tests.simulation.planted import must_break

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.operators import connected
from crosscut.operators.connected import Connected
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.state.keyed import KeyedState
from crosscut.testing.simulator.options import Options
from crosscut.testing.simulator.shrink import Life
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.world import World
from test_simulator_scenarios import EXACTLY_ONCE, at, when, world

Record = tuple[tuple[int, int], int]
"""((source, split), number): numbers rise within a split."""

FAULTS = (
    when("kill a worker", "snapshot.stored", nth=2),
    at("kill a worker", 90, choice=1),
    at("kill the driver", 150),
    at("break a channel", 190, choice=3),
)


def key_of(record: Record) -> int:
    return record[1] % 3


class Pairs(cc.ConnectedProcess[Record, Record, tuple[Record, Record]]):
    left = cc.ListState[Record]()
    right = cc.MapState[str, Record]()

    def on_record(self, record: Record, ctx: cc.Context) -> Iterator[tuple[Record, Record]]:
        self.left.append(record)
        for name in self.right:
            yield record, self.right[name]

    def on_other(self, record: Record, ctx: cc.Context) -> Iterator[tuple[Record, Record]]:
        self.right[str(record)] = record
        for other in self.left:
            yield other, record


class Counts(cc.ConnectedProcess[Record, Record, Any]):
    """Counts the records of a key, and in each task those that were broadcast."""

    rules = cc.BroadcastState[int, int]()
    seen = cc.ValueState(default=0)

    def on_record(self, record: Record, ctx: cc.Context) -> Iterator[Any]:
        self.seen.set(self.seen.get() + 1)
        yield "key", ctx.key, self.seen.get()

    def on_other(self, record: Record, ctx: cc.Context) -> Iterator[Any]:
        rule = key_of(record)
        self.rules[rule] = self.rules.get(rule, 0) + 1
        yield "rule", rule, self.rules[rule]


class Remembers(cc.StreamProcess[Record, Any]):
    """Says with each record how many of its split it holds: as many as there were before."""

    items = cc.SplitState[Record]()
    shared = cc.UnionState[Record]()

    def on_record(self, record: Record, ctx: cc.Context) -> Iterator[Any]:
        split, _ = record
        yield record, *(sum(one == split for one, _ in state) for state in (self.items, self.shared))
        self.items.append(record)
        self.shared.append(record)


class Merges(cc.ConnectedProcess[Record, Record, Any]):
    """Two streams without keys: what comes from the other one is counted by split."""

    items = cc.SplitState[Record]()

    def on_record(self, record: Record, ctx: cc.Context) -> Iterator[Any]:
        yield "first", record

    def on_other(self, record: Record, ctx: cc.Context) -> Iterator[Any]:
        yield "other", record, sum(one == record[0] for one, _ in self.items)
        self.items.append(record)


Records = list[list[Record]]
"""By source."""


def pairs(one: Any, other: Any) -> Any:
    return one.key_by(key_of).connect(other.key_by(key_of)).process(Pairs())


def all_pairs(records: Records, parallelism: int) -> Iterable[Any]:
    return [(left, right) for left in records[0] for right in records[1] if key_of(left) == key_of(right)]


def counts(one: Any, other: Any) -> Any:
    return one.key_by(key_of).connect(other.broadcast()).process(Counts())


def all_counts(records: Records, parallelism: int) -> Iterable[Any]:
    for key in range(3):
        count, rules = (sum(key_of(one) == key for one in some) for some in records)
        yield from (("key", key, number + 1) for number in range(count))
        yield from (("rule", key, number + 1) for number in range(rules) for _ in range(parallelism))


def remembers(one: Any, other: Any) -> Any:
    return one.union(other).process(Remembers()).map(lambda said: said)


def all_remembered(records: Records, parallelism: int) -> Iterable[Any]:
    return [(record, record[1], record[1]) for some in records for record in some]


def merges(one: Any, other: Any) -> Any:
    return one.connect(other).process(Merges())


def all_merged(records: Records, parallelism: int) -> Iterable[Any]:
    return [
        *(("first", record) for record in records[0]),
        *(("other", record, record[1]) for record in records[1]),
    ]


class Sides(cc.ConnectedProcess[Record, Record, Any]):
    def on_record(self, record: Record, ctx: cc.Context) -> list[Any]:
        return [("first", record)]

    def on_other(self, record: Record, ctx: cc.Context) -> list[Any]:
        return [("other", record)]


def sides(one: Any, other: Any) -> Any:
    return one.connect(other).process(Sides())


def all_sides(records: Records, parallelism: int) -> Iterable[Any]:
    return [(side, record) for side, some in zip(("first", "other"), records, strict=True) for record in some]


Make = Callable[[Any, Any], Any]
Expected = Callable[[Records, int], Iterable[Any]]


def job_of(options: Options, make: Make, expected: Expected) -> SimulatedJob:
    flow = cc.Flow("connected")
    records: Records = []
    sources = []
    for number in range(2):
        splits = {
            f"s{number}-{split}": [((number, split), n) for n in range(options.record_count)]
            for split in range(options.parallelism * options.splits_per_task)
        }
        records.append([record for one in splits.values() for record in one])
        sources.append(ReplayedSource(splits, options.source_ms // (1 + number)))
    sink = SimulatedSink()
    one, other = (flow.source(source) for source in sources)
    make(one, other).named("it").sink(sink).named("out")
    return SimulatedJob(
        flow.compile(options.parallelism, MAX_PARALLELISM),
        tuple(sources),
        (sink,),
        Graph(lambda *_: None),
        expected={"out": list(expected(records, options.parallelism))},
    )


def lived(seed: int, protocol: ProtocolKind, make: Make, expected: Expected) -> Life:
    options = world(seed, "chain", protocol, faults=FAULTS, batch_rows=2)
    return live(options, make=lambda options: World(options, job_of(options, make, expected)))


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
@pytest.mark.parametrize(
    ("make", "expected"),
    [(pairs, all_pairs), (counts, all_counts), (remembers, all_remembered), (merges, all_merged)],
    ids=["pairs", "counts", "remembers", "merges"],
)
def test_the_output_is_exact_whatever_goes_wrong(
    make: Make, expected: Expected, protocol: ProtocolKind
) -> None:
    for seed in range(2):
        life = lived(seed, protocol, make, expected)
        assert not life.failure, report(life)
        assert life.seen["fault: kill a worker"], life.seen


# Planted bugs.


def input_not_told(patch: pytest.MonkeyPatch) -> None:
    plain = Connected.process

    def process(self: Connected, batch: Batch) -> Batch:
        batch.input = 0
        return plain(self, batch)

    patch.setattr(Connected, "process", process)


def broadcast_state_left_out_of_snapshots(patch: pytest.MonkeyPatch) -> None:
    plain = KeyedState.encoded

    def encoded(self: KeyedState, *arguments: Any) -> Iterator[bytes]:
        tables, self.tables = self.tables, {n: t for n, t in self.tables.items() if n not in self.shared}
        yield from plain(self, *arguments)
        self.tables = tables

    patch.setattr(KeyedState, "encoded", encoded)


def new_rows_called_as_older_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connected, "begin_lists", lambda *arguments: None)


@pytest.mark.parametrize(
    ("plant", "make", "expected", "invariant"),
    [
        (input_not_told, pairs, all_pairs, "I1|I2"),
        (broadcast_state_left_out_of_snapshots, counts, all_counts, "I1|I2"),
        (new_rows_called_as_older_ones, remembers, all_remembered, "I4"),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    make: Make,
    expected: Expected,
    invariant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    must_break(invariant, (lived(seed, "aligned", make, expected).failure for seed in range(5)))


# At another parallelism.


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
@pytest.mark.parametrize(
    ("make", "expected"), [(pairs, all_pairs), (sides, all_sides)], ids=["pairs", "sides"]
)
def test_a_record_on_its_way_stays_on_its_input_at_another_parallelism(
    make: Make, expected: Expected, protocol: ProtocolKind
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        deaths = [at("kill the driver", ms) for ms in (60, 140, 220, 300)]
        options = world(
            seed,
            "chain",
            protocol,
            faults=tuple(deaths),
            rescaled_to=(3, 1),
            batch_rows=2,
            channel_bytes=50,
            record_count=25,
            source_ms=20,
            interval_ms=10,
            step_us=2_000,
            latency_us=100,
            store_us=200,
            checkpoint_timeout_ms=1_000,
        )
        life = live(options, make=lambda options: World(options, job_of(options, make, expected)))
        assert not life.failure, report(life)
        seen += life.seen
    assert seen["rescaled"]
    if protocol == "unaligned":
        assert seen["rescaled: records on their way"]
