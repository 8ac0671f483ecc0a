"""A job is copied into a savepoint at some moment; another one begins with it, at another parallelism.

What the first had committed by then, and what the second commits, is together what the flow has to give.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_options
from tests.proof.worlds.graphs import built
from tests.proof.worlds.shrinking import live, report

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.protocol.snapshots import Snapshot
from crosscut.savepoints import starting, writing
from crosscut.savepoints.manifest import opened
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.writing import write_savepoint
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.testing.simulator.job import assignments_of
from crosscut.testing.simulator.options import Options, options_of
from crosscut.testing.simulator.violation import Violation
from crosscut.testing.simulator.world import World

CHANGED: dict[str, Any] = {
    "faults": (),
    "parallelism": 2,
    "rescaled_to": (),
    "is_periodic": True,
    "interval_ms": 20,
    "pause_ms": 0,
    "in_flight_max": 1,
    "record_count": 15,
    "batch_rows": 3,
    "channel_bytes": 50,
    "step_us": 1_000,
    "latency_us": 100,
    "store_us": 200,
    "checkpoint_timeout_ms": 1_000,
    "source_ms": 150,
    "safety_ms": 400,
    "retain": 3,
    "is_encrypted": False,
}


def options(seed: int, graph: str, protocol: ProtocolKind) -> Options:
    # With an even seed the job log is not signed.
    return replace(options_of(2 * seed, (graph,), (protocol,)), graph=graph, snapshots=protocol, **CHANGED)


def store_of(world: World) -> CheckpointStore:
    return CheckpointStore(world.files, world.options.inline_bytes)


def stopped_in_the_midst(of: Options, checkpoints: int) -> World:
    world = World(of, built(of))
    while len(world.checkers.completed) < checkpoints and not world.has_finished:
        world.go_on()
    world.close()
    return world


@pytest.mark.parametrize("protocol", ["aligned", "unaligned"])
@pytest.mark.parametrize("graph", ["chain", "union", "totals", "loop", "two sinks"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_that_begins_with_a_savepoint_gives_what_was_still_to_come(
    graph: str, protocol: ProtocolKind, parallelism: int, tmp_path: Path
) -> None:
    for seed in range(2):
        first = options(seed, graph, protocol)
        world = stopped_in_the_midst(first, 2 + seed)
        checkpoint: CheckpointCompleted = world.checkers.completed[-1]
        path = str(tmp_path / f"savepoint {seed}")
        claim = claims_in(world.checkers.log)[-1]
        manifest = write_savepoint(path, checkpoint, claim, store_of(world).read_part)
        assert manifest.parallelism == 2 and manifest.ancestors[-1].checkpoint_id == checkpoint.checkpoint_id

        after = World(replace(first, parallelism=parallelism), built(first))
        handles = {one.handle for task in checkpoint.snapshots for one in task.snapshot.pending}
        for handle, written in (*world.resource.committed.items(), *world.resource.staged.items()):
            n = CheckpointId(int(handle.rpartition("/")[2]))
            if handle in handles or (handle in world.resource.committed and n <= checkpoint.checkpoint_id):
                after.resource.committed[f"before/{handle}"] = written
        look = after.resource.outputs
        store, compiled = store_of(after), after.graph
        begun = begin_with(opened(path), store, compiled, discover=assignments_of, look=look, is_fresh=True)
        assert begun == manifest
        after.run()
        assert after.has_finished
        assert after.checkers.completed[0].checkpoint_id == checkpoint.checkpoint_id + 1


def without_what_was_on_its_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(starting, "_logs", lambda *arguments: {})


def with_state_of_one_task_only(patch: pytest.MonkeyPatch) -> None:
    plain = starting.parts_of
    patch.setattr(starting, "parts_of", lambda *arguments: () if arguments[1].index else plain(*arguments))


def with_splits_from_their_beginning(patch: pytest.MonkeyPatch) -> None:
    plain = writing._without_files

    def rewound(snapshot: Snapshot) -> Snapshot:
        found: Any = snapshot.positions
        rows = None if found is None else [[*row[:4], 0] for row in found]
        return replace(plain(snapshot), positions=rows)

    patch.setattr(writing, "_without_files", rewound)


@pytest.mark.parametrize(
    "plant", [without_what_was_on_its_way, with_state_of_one_task_only, with_splits_from_their_beginning]
)
def test_a_savepoint_that_is_wrong_is_found(
    plant: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match=r"I1|I2"):
        test_a_job_that_begins_with_a_savepoint_gives_what_was_still_to_come(
            "union", "unaligned", 3, tmp_path
        )


def test_a_drawn_flow_goes_on_from_a_savepoint_with_whatever_state_it_has() -> None:
    seen: Counter[str] = Counter()
    for seed in (1, 3, 4, 8, 11, 13, 14, 16):
        life = live(replace(drawn_options(seed), is_periodic=True, savepoint_after=1 + seed % 3))
        assert not life.failure, report(life)
        seen += life.seen
    assert seen["began with a savepoint"] >= 5
    assert seen["began with a savepoint of another parallelism"]
