"""Two sources of one join, of which one can be read far faster than the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import until
from test_overload import SlowUntil, records_in

import crosscut as cc

COUNT = 100_000
KEYS = 100


def number(index: int) -> int:
    return index


def key_of(n: int) -> int:
    return n % KEYS


@dataclass(frozen=True)
class Slowly:
    slow: SlowUntil

    def __call__(self, n: int) -> int:
        self.slow(("", n))
        return n


def test_the_faster_source_of_a_join_waits_for_the_slower_one_and_the_result_is_the_same(
    tmp_path: Path, started: Any
) -> None:
    """Its records would all be in the state of the join by then."""
    gate = tmp_path / "gate"
    flow = cc.Flow("joined")

    def side(name: str) -> Any:
        source = flow.source(cc.generate(number, count=COUNT)).named(name)
        slowed = source.map(Slowly(SlowUntil(gate, 0.001))).named("slowly") if name == "slow" else source
        return slowed.assign_timestamps(number).named(f"{name}-times").key_by(key_of).named(f"{name}-keys")

    pairs = cc.collect(tmp_path / "pairs")
    joined = side("fast").interval_join(side("slow"), 0, 0).named("pairs")
    joined.map(lambda pair: pair[1][0] == pair[1][1]).key_by(key_of).count().sink(pairs).named("out")
    job = started.flow(
        flow,
        cc.Settings(parallelism=2, checkpoint_dir=tmp_path / "checkpoints", heartbeat_timeout="60s"),
    )
    until(lambda: "fast" in job.report().held_splits, "the page to say that one source waits")
    until(lambda: records_in(job, "slow") > 3_000, "what the slower one reads")
    assert records_in(job, "fast") < COUNT // 2
    gate.touch()
    started.finish(job)
    newest = dict(pairs.records())
    assert newest == {1: COUNT}
    assert Counter(job.report().held_splits) == Counter()
