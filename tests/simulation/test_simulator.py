"""Whole jobs in virtual worlds: exact output whatever goes wrong, as far as the seeds of a batch reach.

Scenarios A, B, C, E, F, G, I and J of reliability.md, D3 to D7 as far as a store in memory has them. The
worlds are made by `crosscut.testing.simulator`; a failure prints the command that replays it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from crosscut.protocol import aligned
from crosscut.protocol.effects import JobEffect, TaskEffect
from crosscut.protocol.events import TaskEvent
from crosscut.protocol.job import Phase
from crosscut.protocol.snapshotting import SnapshotProtocol
from crosscut.testing.simulator.graphs import GRAPHS
from crosscut.testing.simulator.options import FAULT_KINDS, PROTOCOLS, options_of
from crosscut.testing.simulator.shrink import live, shrunk

# A killed worker does not close the files that its channels have spilled to; a real process need not.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SOURCE = Path(aligned.__file__).parents[1]
SEEDS = 300
GROUPS = 4

UNREACHABLE = {
    # Guards that the network's FIFO, or the order in which a driver speaks, keeps from being needed.
    "obsolete trigger",
    "timeout of another alignment",
    "failed after abort",
    "failure after the last commit",
    "repeated drained",
    "repeated completion",
    "log answer before the claim",
    "unknown message",
    "repeated verdict",
    # Reachable, by a message that is repeated at just the right time; too rare for a batch of this size.
    "late quiet",
    "obsolete leave to capture",
    "obsolete resume",
    "repeated acknowledgement",
    "repeated quiet",
    "stored after abort",
    "abort of a checkpoint that is not waiting",
    # It takes a store that hangs for longer than a call may take, and is well again before it answers.
    "late log answer",
}


@pytest.fixture(scope="module")
def seen() -> Iterator[Counter[str]]:
    """What all worlds of this module have seen, task effects too."""
    found: Counter[str] = Counter()
    plain = SnapshotProtocol.handle

    def watched(self: SnapshotProtocol, event: TaskEvent) -> list[TaskEffect]:
        effects = plain(self, event)
        found.update(f"effect: {type(one).__name__}" for one in effects)
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SnapshotProtocol, "handle", watched)
        yield found


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_output_is_exact_in_every_world(group: int, seen: Counter[str]) -> None:
    for seed in range(group * SEEDS // GROUPS, (group + 1) * SEEDS // GROUPS):
        options = options_of(seed, tuple(GRAPHS))
        life = live(options)
        seen += life.seen
        if life.failure:
            pytest.fail(shrunk(options, life).report(), pytrace=False)


def _drop_reasons() -> set[str]:
    texts = [path.read_text() for path in sorted((SOURCE / "protocol").glob("*.py"))]
    return {reason for text in texts for reason in re.findall(r'dropped\["([^"]+)"\]', text)}


def test_everything_that_can_happen_has_happened(seen: Counter[str]) -> None:
    if not seen:
        pytest.skip("only meaningful behind the worlds")
    expected = {f"phase: {phase.name}" for phase in Phase}
    expected |= {f"fault: {kind}" for kind in FAULT_KINDS}
    expected |= {f"drop: {reason}" for reason in _drop_reasons() - UNREACHABLE}
    expected |= {f"effect: {kind.__name__}" for kind in (*get_args(JobEffect), *get_args(TaskEffect))}
    expected.add("spilled")
    assert not expected - seen.keys(), sorted(expected - seen.keys())


TRACE = """
from crosscut.testing.simulator.graphs import GRAPHS
from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.shrink import live
for seed in range(6):
    life = live(options_of(seed, tuple(GRAPHS)))
    print(life.trace_hash, life.step_count, life.failure)
"""


def test_a_seed_is_one_trace_in_every_process() -> None:
    def traces(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SOURCE.parent)}
        done = subprocess.run(
            [sys.executable, "-c", TRACE], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert traces("1") == traces("2") != ""


def test_a_world_without_faults_is_as_the_sequential_run() -> None:
    for graph in GRAPHS:
        for protocol in PROTOCOLS:
            options = replace(options_of(7, (graph,), (protocol,)), faults=())
            assert live(options).failure == ""


def test_one_input_tasks_have_no_duplicates_at_least_once() -> None:
    from crosscut.testing.simulator.world import World

    for seed in range(15):
        options = replace(options_of(seed, ("chain",), ("at-least-once",)), parallelism=1)
        world = World(options)
        world.run()
        if not world.is_damaged:
            assert world.checkers.difference() == (Counter(), Counter())


def test_the_documented_duplicates_of_at_least_once_do_occur() -> None:
    from crosscut.testing.simulator.world import World

    def added(seed: int) -> Counter[Any]:
        world = World(options_of(seed, ("union", "diamond"), ("at-least-once",)))
        world.run()
        return world.checkers.difference()[1]

    assert any(added(seed) for seed in range(60))
