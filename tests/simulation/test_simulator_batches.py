"""Worlds whose job runs in batches, or under both engines: what ships runs on a virtual cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner
from tests.proof.simulate import main
from tests.proof.worlds.batches import ENGINES, IN_BATCHES, batch_options
from tests.proof.worlds.shrinking import COMMAND
from tests.simulation.exact import all_exact

from crosscut.contracts.engines import EngineName
from crosscut.testing.simulator.options import OF_BATCHES, PlannedFault

WORLDS = 24


@pytest.mark.parametrize("engine", ENGINES)
def test_the_output_is_exact_whatever_happens(engine: EngineName) -> None:
    """B1, B2, B3, F1, I1 to I3, I5, I10: drivers, executors and blocks are lost, attempts come twice."""
    seen = all_exact(
        (batch_options(seed, (engine,)) for seed in range(WORLDS)), f"{COMMAND} --engine {engine}"
    )
    assert seen["job finished"] >= WORLDS
    for what in ("second attempt at a partition", "attempt that outlived its run", "fault: kill the driver"):
        assert seen[what], what
    assert engine == "micro-batch" or seen["over to continuous"] > WORLDS // 4


@pytest.mark.parametrize("moment", IN_BATCHES)
def test_a_driver_that_dies_at_any_step_of_a_batch_or_a_switch_leaves_it_whole_or_undone(moment: str) -> None:
    """B1 to B3."""
    kind = "kill a worker" if moment in ("batch.begin", "batch.read", "batch.staged") else "kill the driver"
    faults = tuple(PlannedFault(0, kind, choice, moment, choice) for choice in (1, 2, 3))
    worlds = [
        replace(batch_options(seed, ("auto",)), faults=faults, knows_lag=True, caught_up_at=1_000)
        for seed in range(4)
    ]
    seen = all_exact(worlds)
    assert seen[f"moment: {moment}"] and seen[f"fault: {kind}"]


def test_faults_of_batches_are_drawn_and_happen() -> None:
    planned = Counter(fault.kind for seed in range(60) for fault in batch_options(seed).faults)
    assert all(planned[kind] for kind in OF_BATCHES)
    faults = tuple(PlannedFault(20 * n, kind, n) for n in range(1, 8) for kind in OF_BATCHES)
    worlds = (replace(batch_options(seed), faults=faults, interval_ms=10) for seed in range(6))
    seen = all_exact(worlds)
    for kind in OF_BATCHES:
        assert seen[f"fault: {kind}"], kind
    assert seen["two drivers at once"] and seen["shuffle blocks lost"]


def test_the_command_runs_worlds_of_an_engine() -> None:
    found = CliRunner().invoke(main, ["--engine", "auto", "--seeds", "2", "--jobs", "1"])
    assert found.exit_code == 0, found.output
    assert "2 jobs finished; 0 of 2 failed" in " ".join(found.output.split())
    assert CliRunner().invoke(main, ["--engine", "auto", "--size", "small"]).exit_code == 2


@pytest.mark.parametrize("seed", [1197, 1246])
def test_a_part_that_the_store_refuses_is_no_error_of_our_own(seed: int) -> None:
    """It was reported as an internal error."""
    assert all_exact([batch_options(seed, ("auto",))])["task failed: SnapshotDeclined"]
