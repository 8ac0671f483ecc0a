"""Whole jobs in virtual worlds: exact output whatever goes wrong, as far as the seeds of a batch reach.

The worlds are made by `crosscut.testing.simulator`; a failure prints the command that replays it. What
reliability.md names is in `test_simulator_scenarios.py`, one test a scenario.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from asyncio import events
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.proof.worlds.graphs import GRAPHS, OTHERS, built
from tests.proof.worlds.shrinking import COMMAND, live
from tests.simulation.exact import all_exact
from tests.simulation.seeds import some_of

from crosscut.protocol.effects import CommitterEffect, JobEffect, Outcome, TaskEffect
from crosscut.protocol.job.coordinator import Phase
from crosscut.protocol.log.writer import LogWriter, Verdict
from crosscut.protocol.messages import CoordinatorMessage, WorkerMessage
from crosscut.protocol.snapshot import aligned
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.worker.lifecycle import WorkerEffect, WorkerLifecycle
from crosscut.testing.simulator.driver import WatchedDriver
from crosscut.testing.simulator.options import FAULT_KINDS, MOMENTS, PROTOCOLS, THEMES, options_of
from crosscut.testing.simulator.oracle import Cut, run_from
from crosscut.testing.simulator.worker import WatchedWorker

SOURCE = Path(aligned.__file__).parents[2]
SEEDS = 480
GROUPS = 12

IMPOSSIBLE = {
    "drop: stored after abort": "a task does not pass on that a snapshot is stored which it has discarded",
    "drop: log answer before the claim": "nothing is asked of the log while there is no writer, and every "
    "question is answered once",
    "drop: message about another worker's task": "no virtual worker lies; some do in tests/unit",
    "drop: registration as somebody else": "likewise",
    "drop: failed start of somebody else": "likewise",
    "drop: failed start that does not matter": "virtual workers unpickle nothing, so no start fails",
    "message: WorkerFailed": "likewise; tests/process has real ones",
    "drop: repeated verdict": "each cut is judged once; the graphs of the simulator have no invariants",
}
"""What no world can show, and why."""

MADE_FOR: dict[str, str] = {
    "drop: failure after the last commit": "lost at the end",
    "task failed: SinkHungError": "sinks in trouble",
}
"""What a batch as small as this may not come to, and the theme of the worlds that are made for it."""

ALIGNED = {
    "message: SourcesReached",
    "message: AlignSources",
    "drop: late message of how far sources are",
}
"""What worlds with sources that wait for each other are for, in `test_simulator_time`."""

FOUND = {
    "effect: FindSplits",
    "message: AssignSplits",
    "drop: split that the job has already",
    "drop: splits found for another epoch",
}
"""What worlds in which splits come are for, in `test_dynamic_sources`."""

LOGGED = {
    "message: UnitFinished",
    "drop: end of a worker without a log",
    "message: UnitProgressed",
    "drop: late progress of a worker",
}
"""What worlds whose workers have logs are for, in `test_simulator_logged`."""

RARE = {"drop: failed after abort", *MADE_FOR, *ALIGNED, *FOUND, *LOGGED}
"""The same, and what scenarios and unit tests show on purpose."""

THEMED_MAX = 60


@pytest.fixture(scope="module")
def seen() -> Iterator[Counter[str]]:
    """What all worlds of this module have seen: what every machine said, and what was said to whom."""
    found: Counter[str] = Counter()

    def watch(patch: pytest.MonkeyPatch, kind: type, method: str, prefix: str) -> None:
        plain = getattr(kind, method)

        def watched(self: Any, *arguments: Any) -> Any:
            result = plain(self, *arguments)
            said = result if isinstance(result, list) else [result[1]] if result else [arguments[-1]]
            found.update(f"{prefix}: {type(one).__name__}" for one in said)
            return result

        patch.setattr(kind, method, watched)

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, SnapshotProtocol, "handle", "effect")
        watch(patch, Committer, "handle", "effect")
        watch(patch, WorkerLifecycle, "handle", "effect")
        watch(patch, LogWriter, "handle", "verdict")
        watch(patch, WatchedWorker, "_receive", "message")
        watch(patch, WatchedDriver, "link_message", "message")
        yield found


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_output_is_exact_in_every_world(group: int, seen: Counter[str]) -> None:
    seeds = range(group * SEEDS // GROUPS, (group + 1) * SEEDS // GROUPS)
    worlds = [options_of(seed, tuple(GRAPHS)) for seed in seeds]
    seen.update(f"theme: {one.theme}" for one in worlds)
    seen += all_exact(worlds)


def _drop_reasons() -> set[str]:
    # The worlds run the continuous engine: what batches drop is searched for in tests/unit/test_batches.py.
    # They make no `JobRun` yet: what that drops is shown in tests/unit/test_job_run.py.
    # The unit log is not in use: what it drops is shown in tests/unit/protocol.
    paths = [
        path
        for path in (SOURCE / "protocol").rglob("*.py")
        if path.parent.name not in ("microbatch", "unit_log") and path.name != "job_run.py"
    ]
    texts = [path.read_text() for path in sorted(paths)]
    return {reason for text in texts for reason in re.findall(r'dropped\["([^"]+)"\]', text)}


def test_everything_that_can_happen_has_happened(seen: Counter[str]) -> None:
    if not seen:
        pytest.skip("only meaningful behind the worlds")
    expected = {f"phase: {phase.name}" for phase in Phase}
    expected |= {f"fault: {kind}" for kind in FAULT_KINDS}
    expected |= {f"moment: {moment}" for moment in MOMENTS}
    expected |= {f"theme: {theme}" for theme in THEMES}
    expected |= {f"drop: {reason}" for reason in _drop_reasons()}
    kinds = (JobEffect, TaskEffect, CommitterEffect, WorkerEffect)
    effects = (one for kind in kinds for one in get_args(kind))
    expected |= {f"effect: {kind.__name__}" for kind in effects}
    expected |= {f"verdict: {kind.__name__}" for kind in get_args(Verdict)}
    messages = (*get_args(WorkerMessage), *get_args(CoordinatorMessage))
    expected |= {f"message: {kind.__name__}" for kind in messages}
    expected |= {f"job {outcome}" for outcome in get_args(Outcome)}
    expected |= {
        "Spark gave the job up",
        "connection: STALE_EPOCH",
        "ended loudly after a broken promise",
        "request that outlived its sender",
        "spilled",
        "two drivers at once",
        "part given up and deleted",
        "zombie left by Spark",
    }
    assert sorted(expected - seen.keys() - IMPOSSIBLE.keys() - RARE) == []
    assert sorted(seen.keys() & IMPOSSIBLE.keys()) == [], "possible after all"
    assert IMPOSSIBLE.keys() <= expected, "no such thing"


@pytest.mark.parametrize("what", MADE_FOR)
def test_worlds_that_are_made_for_it_come_to_it(what: str) -> None:
    every = (options_of(seed, tuple(GRAPHS)) for seed in count(SEEDS))
    themed = islice((options for options in every if options.theme == MADE_FOR[what]), THEMED_MAX)
    assert any(live(options).seen[what] for options in themed)


@some_of(200, few=60)
def test_small_worlds_are_exact_and_recover(seeds: range) -> None:
    worlds = (options_of(seed, tuple(GRAPHS), size="small") for seed in seeds)
    found = all_exact(worlds, f"{COMMAND} --size small")
    # A job that nothing happens to has one epoch.
    assert found["epoch"] > 1.3 * len(seeds)


TRACE = """
from tests.proof.worlds.graphs import GRAPHS, OTHERS, built
from crosscut.testing.simulator.options import options_of
from tests.proof.worlds.shrinking import live
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
        world = World(options, built(options))
        world.run()
        if not world.files.damaged:
            assert world.checkers.difference() == (Counter(), Counter())


def test_the_documented_duplicates_of_at_least_once_do_occur() -> None:
    from crosscut.testing.simulator.world import World

    def added(seed: int) -> Counter[Any]:
        options = options_of(seed, ("union", "diamond"), ("at-least-once",))
        world = World(options, built(options))
        world.run()
        return world.checkers.difference()[1]

    # The seeds before showed none, and took long to say so.
    assert any(added(seed) for seed in range(80, 400))


def test_after_a_world_asyncio_has_no_running_loop() -> None:
    live(options_of(0, tuple(GRAPHS)))
    assert events._get_running_loop() is None


def test_jobs_that_are_known_by_the_same_have_the_same_sequential_run() -> None:
    """It is run once for all of them."""
    found: dict[Any, dict[str, list[Any]]] = {}
    met = 0
    for seed in range(200):
        job = built(options_of(seed, (*GRAPHS, *OTHERS)))
        specs = ((one.vertex_id, one.source) for one in job.graph.vertices)
        sources = [(vertex, spec.source) for vertex, spec in specs if spec is not None]
        unread = [(vertex, part) for vertex, one in sources for part in one.records.values()]  # type: ignore[attr-defined]
        outputs = run_from(job.graph, Cut(unread=unread))
        met += job.known_by in found
        assert found.setdefault(job.known_by, outputs) == outputs
    assert met > 20
