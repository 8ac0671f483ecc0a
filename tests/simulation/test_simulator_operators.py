"""deduplicate, top_n, rate_limit and dead letters in virtual worlds: exact, whoever is killed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.graphs import Graph

import crosscut as cc
from crosscut.foundation.timestamps import TIMESTAMP_MAX
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.world import World

EXACTLY_ONCE: tuple[ProtocolKind, ...] = ("aligned", "unaligned", "switching")
NUMBERS = [n * n % 23 for n in range(24)]
"""Most of them come several times."""


class Setting:
    """A world in which a worker is killed, for a flow with two splits of `records` and two sinks."""

    def __init__(self, seed: int, protocol: ProtocolKind, records: Sequence[int]) -> None:
        options = options_of(seed, ("chain",), (protocol,), kinds=("kill a worker",))
        self._options = replace(options, is_periodic=True, rescaled_to=())
        self.source = ReplayedSource(
            {f"s{split}": records[split::2] for split in range(2)}, options.source_ms
        )
        self.sinks = SimulatedSink(), SimulatedSink()

    def world(self, flow: cc.Flow, expected: dict[str, list[Any]]) -> World:
        judged_as = Graph(lambda *_: None, survives_duplicates=False)
        graph = flow.compile(self._options.parallelism, MAX_PARALLELISM)
        return World(
            self._options, SimulatedJob(graph, (self.source,), self.sinks, judged_as, expected=expected)
        )


def world(seed: int, protocol: ProtocolKind) -> World:
    setting = Setting(seed, protocol, NUMBERS)
    flow = cc.Flow("operators")
    numbers = flow.source(setting.source).named("in").rate_limit(2_000, per="1s").named("slowly")
    keyed = numbers.key_by(lambda n: n)
    keyed.deduplicate().named("first").sink(setting.sinks[0]).named("each-once")
    by_rest = numbers.key_by(lambda n: n % 3)
    by_rest.top_n(2, emit="final").named("best").sink(setting.sinks[1]).named("best-out")
    expected = {
        "each-once": sorted({*NUMBERS}),
        "best-out": [
            (rest, sorted((n for n in NUMBERS if n % 3 == rest), reverse=True)[:2]) for rest in range(3)
        ],
    }
    return setting.world(flow, expected)


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


class Reminders(cc.KeyedProcess[int, tuple[int, int]]):
    """Counts each number, and says so later; for those that 3 divides that fails, after a change of state."""

    count = cc.ValueState[int](0)

    def on_record(self, record: int, ctx: cc.Context) -> None:
        if record == 2:
            raise ValueError("an unlucky number")
        self.count.set(self.count.get() + 1)
        ctx.set_timer(record + 10)

    def on_timer(self, time: int, ctx: cc.Context) -> Iterator[tuple[int, int]]:
        yield ctx.key, time
        if time < 100:
            self.count.set(-1)
            ctx.set_timer(time + 100)
            if ctx.key % 3 == 0:
                raise ValueError("divided by 3")
        else:
            yield ctx.key, self.count.get()


def reminding(seed: int, protocol: ProtocolKind) -> World:
    setting = Setting(seed, protocol, sorted(set(NUMBERS)))
    flow = cc.Flow("reminders")
    numbers = (
        flow.source(setting.source)
        .named("in")
        .assign_timestamps(lambda n: n, out_of_orderness="1s")
        .named("times")
    )
    said = numbers.key_by(lambda n: n).process(Reminders(), on_error="dead letters").named("reminders")
    said.sink(setting.sinks[0]).named("said")
    letters = (
        said.side_output("dead letters").map(lambda one: (one.key, one.timer, one.record)).named("short")
    )
    letters.sink(setting.sinks[1]).named("letters")
    lucky = sorted({*NUMBERS} - {2})
    expected = {
        "said": [one for n in lucky if n % 3 for one in ((n, n + 10), (n, n + 110), (n, -1))],
        "letters": [*((n, n + 10, None) for n in lucky if n % 3 == 0), (2, None, 2)],
    }
    return setting.world(flow, expected)


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
def test_k1_a_record_or_timer_for_which_user_code_raises_is_one_letter_whoever_is_killed(
    protocol: ProtocolKind,
) -> None:
    epochs = 0
    for seed in range(1, 7):
        one = reminding(seed, protocol)
        one.run()
        lost, added = one.checkers.difference()
        assert not lost and not added, f"seed {seed}"
        epochs += one.seen["epoch"]
    assert epochs > 6


MIXED: list[Any] = [None, 0, False, 0.0, 1, True, 1.0, "1", b"1", (1,), (True,), (1.0,), ((),), "", -1, 2**70]
"""Keys of all kinds. Those that are equal are one, in whichever form they come."""


def of_mixed(number: int) -> Any:
    return MIXED[number % len(MIXED)]


class Heard(cc.KeyedProcess[int, Any]):
    """Counts, and says at the end under which key."""

    count = cc.ValueState[int](0)

    def on_record(self, record: int, ctx: cc.Context) -> None:
        self.count.set(self.count.get() + 1)
        ctx.set_processing_timer(TIMESTAMP_MAX)

    def on_processing_timer(self, time: int, ctx: cc.Context) -> Iterator[Any]:
        yield ctx.key, self.count.get()


def mixing(seed: int, protocol: ProtocolKind) -> World:
    setting = Setting(seed, protocol, range(48))
    flow = cc.Flow("mixing")
    keyed = flow.source(setting.source).named("in").rebalance().key_by(of_mixed)
    keyed.count(emit="final").named("counts").sink(setting.sinks[0]).named("counted")
    keyed.process(Heard()).named("heard").sink(setting.sinks[1]).named("said")
    expected = [*Counter(map(of_mixed, range(48))).items()]
    return setting.world(flow, {"counted": expected, "said": expected})


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
def test_k2_keys_of_all_kinds_are_one_where_python_says_so_whoever_is_killed(protocol: ProtocolKind) -> None:
    for seed in range(1, 4):
        one = mixing(seed, protocol)
        one.run()
        lost, added = one.checkers.difference()
        assert not lost and not added, f"seed {seed}"
