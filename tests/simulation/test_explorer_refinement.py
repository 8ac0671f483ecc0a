"""The explorer's models agree with what they stand for: see `refined_walk`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest
from tests.proof.explorer.bounds import Bounds, Faults
from tests.proof.explorer.graphs import GRAPHS, graph
from tests.proof.explorer.items import Violation
from tests.proof.explorer.tasks import ExploredTask
from tests.proof.explorer.world import World
from tests.simulation import test_explorer_planted_bugs as planted
from tests.simulation.refined_store import walk as walk_with_stores
from tests.simulation.refined_walk import Walk

from crosscut.protocol.snapshot.choosing import ProtocolKind

WALKS = 6
STORE_WALKS = 6
STEPS = 400


@pytest.mark.parametrize("kind", get_args(ProtocolKind))
def test_real_tasks_do_what_the_explored_ones_do(kind: ProtocolKind) -> None:
    seen: Counter[str] = Counter()
    for name in GRAPHS:
        for seed in range(WALKS):
            walk = Walk(graph(name, 2), kind, seed)
            walk.run(STEPS)
            seen.update(walk.seen)
            seen["final"] += walk.is_final
    must = {"run", "store", "prepare", "commit", "hears", "complete", "abort", "failover", "final"}
    must |= {"SourceDrained", "SnapshotAcknowledged", "TransactionsCommitted", "TaskFailed"}
    must |= {"send"} if kind in ("unaligned", "switching") else set()
    must |= {"alignment timeout"} if kind == "switching" else set()
    must |= {"TaskQuiet"} if kind == "halting" else set()
    assert sorted(must - {what for what, count in seen.items() if count}) == []


MODELS = (
    planted.DropsTheLog,
    planted.ForgetsWhatWasOvertaken,
    planted.StartsTheLogLate,
    planted.StartsTheLogEarly,
    planted.SendsBarriersBeforeTheirRecords,
    planted.LogsReplayAndOriginal,
    planted.ReplaysAfterNewInput,
    planted.ReplaysNothing,
    planted.DrainedWithItsSources,
    planted.CommitsAtPrepare,
    planted.ForgetsTransactionsOfAborted,
    planted.DropsStagedOfAborted,
)


def walks(model: type[ExploredTask]) -> Iterator[Walk]:
    for seed in range(WALKS):
        for kind in get_args(ProtocolKind):
            for name in ("edge", "join", "loop", "count, loop, count"):
                yield Walk(graph(name, 2), kind, seed, model)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_does_something_else_is_found(model: type[ExploredTask]) -> None:
    def differs(walk: Walk) -> bool:
        try:
            walk.run(STEPS)
        except (AssertionError, Violation):
            return True
        return False

    assert any(differs(walk) for walk in walks(model))


@pytest.mark.parametrize(
    "faults",
    [
        Faults(crashes=2, failures=1, timeouts=1),
        Faults(drivers=2, zombies=1),
        Faults(drivers=1, unknown=2, repeats=1),
        Faults(crashes=1, drivers=1, zombies=1, unknown=1),
    ],
    ids=str,
)
def test_a_real_store_reads_as_the_explored_one(faults: Faults) -> None:
    ended = deleted = strays = 0
    for entries_max, retain in ((1, 1), (2, 2), (1_000, 1)):
        bounds = Bounds(3, faults, retain=retain, segment_entries_max=entries_max)
        world = World(graph("edge", 1), "aligned", bounds)
        for seed in range(STORE_WALKS):
            state = walk_with_stores(world, seed, STEPS)
            stored = world.store.value(state[0])
            ended += world.is_finished(state)
            deleted += len(stored.deleted)
            strays += len(stored.strays)
    assert ended and deleted, (ended, deleted, strays)
