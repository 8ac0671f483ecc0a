"""All questions of Nexmark in one job on Spark, under each engine, against a batch oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from examples.nexmark import QUERIES, asked, event
from tests.simulation.test_nexmark import answers, told

import crosscut as cc

EVENTS = 2_000


@pytest.mark.parametrize(
    "engine", [cc.Continuous(), cc.MicroBatch(records_max=800)], ids=["continuous", "batches"]
)
def test_all_questions_at_once_are_answered_as_by_a_batch(started: Any, tmp_path: Path, engine: Any) -> None:
    flow = cc.Flow("nexmark")
    events = flow.source(cc.generate(event, count=EVENTS)).named("events")
    found: dict[str, Any] = {}
    for name in QUERIES:
        found[name] = cc.collect(tmp_path / name)
        asked(events, name).sink(found[name]).named(name)
    settings = cc.Settings(
        parallelism=2,
        engine=engine,
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_interval="200ms",
    )
    started.finish(started.flow(flow, settings))
    happened = [event(number) for number in range(EVENTS)]
    for name, out in found.items():
        assert Counter(told(name, out.records())) == Counter(answers(name, happened)), name
