"""The records of a key keep their order in batches that begin with an unaligned checkpoint (I16, P3)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches
from tests.unit.endless import Goes

import crosscut as cc
from crosscut.driver.job_spec import assignments
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.graph.channels import depths_of
from crosscut.graph.identity import identity_of
from crosscut.microbatch import driver_workers as workers
from crosscut.microbatch import stage
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.microbatch.reading import records_of_batch
from crosscut.protocol.snapshots import Part, Snapshot, TaskSnapshot
from crosscut.savepoints.manifest import opened
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.writing import write_savepoint
from crosscut.store.checkpoint_store import open_store
from crosscut.task.channel_log import encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.wire.batches import encode_batch

KEYS, PROCESSED, READ, RECORDS = 10, 40, 80, 160
"""The snapshot has the records up to `PROCESSED` in its state, and those up to `READ` on their way."""


def flow_of(out: cc.Collect, left: cc.Source[int], right: cc.Source[int]) -> cc.Flow:
    """Return a flow in which records pass a task on an edge that is not by key."""
    flow = cc.Flow("order")
    one, other = flow.source(left).named("left"), flow.source(right).named("right")
    keyed = one.union(other).named("both").key_by(lambda record: record % KEYS).named("keyed")
    keyed.aggregate(list, lambda so_far, record: [*so_far, record], emit="final").named("seen").sink(out)
    return flow


def ran(
    flow: cc.Flow, directory: Path, seed: int, parallelism: int, trigger: Any = "interval", **others: Any
) -> str:
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=1_000, trigger=trigger),
        parallelism=parallelism,
        checkpoint_dir=directory / "checkpoints",
        checkpoint_interval="10ms",
        **others,
    )
    graph = flow.compile(parallelism, 128)
    end, _ = run_batches(
        graph, settings, lambda made, url: LocalJobs(made, url, Random(seed), FaultProfile())
    )
    assert end is not None
    return end.outcome


def order_seen(directory: Path, seed: int) -> list[list[int]]:
    """Return, by key, the order in which records were seen by a job that goes on at another parallelism."""
    past_flow = flow_of(
        cc.collect(directory / "past-out"),
        Goes({"records": list(range(PROCESSED))}),
        Goes({"none": []}),
    )
    assert ran(past_flow, directory / "past", seed, 2, trigger="available_now") == "stopped"
    store = open_store(str(directory / "past" / "checkpoints"))
    entries = [one for _, one in store.tail(1)]
    newest = [one for one in entries if isinstance(one, CheckpointCompleted)][-1]
    # The task that had read the split is not the one that goes on with it.
    left, both = TaskId(VertexId("left"), 1), TaskId(VertexId("both"), 1)
    under_way = LoggedBatch(
        ChannelId(0, left, both), encode_batch(Batch(list(range(PROCESSED, READ)))), READ - PROCESSED, False
    )
    part = store.write_part(newest.checkpoint_id, both, newest.epoch, encoded_log([under_way]))
    changed = {
        both: {"log": (part,), "in_flight": READ - PROCESSED},
        TaskId(VertexId("left"), 0): {"positions": []},
        left: {"positions": [["records", 0, None, RECORDS, READ]]},
    }
    tasks = tuple(
        replace(one, snapshot=replace(one.snapshot, pending=(), **changed.get(one.task, {})))
        for one in newest.snapshots
    )
    out = cc.collect(directory / "out")
    live = flow_of(out, ReplayedSource({"records": list(range(RECORDS))}), ReplayedSource({"none": []}))
    claim = replace(claims_in(entries)[-1], flow=identity_of(live.compile(2, 128)))
    write_savepoint(directory / "savepoint", replace(newest, snapshots=tasks), claim, store.read_part)
    begin_with(
        opened(directory / "savepoint"),
        open_store(str(directory / "live" / "checkpoints")),
        live.compile(2, 128),
        discover=lambda graph: assignments(graph),
        look=lambda: (),
    )
    assert ran(live, directory / "live", seed, 3) == "finished"
    return [seen for _, seen in sorted(out.records())]


IN_ORDER = [list(range(key, RECORDS, KEYS)) for key in range(KEYS)]


@pytest.mark.parametrize("seed", range(3))
def test_what_was_on_its_way_comes_before_anything_new(tmp_path: Path, seed: int) -> None:
    """I16, P3."""
    assert order_seen(tmp_path, seed) == IN_ORDER


def test_a_batch_that_reads_beside_what_was_on_its_way_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: nor does it take older generations first, which would put this right."""
    monkeypatch.setattr(workers, "records_of_batch", lambda records_max, snapshots, **_: records_max)
    monkeypatch.setattr(stage, "depths_of", lambda graph: dict.fromkeys(depths_of(graph), 0))
    seen = [order_seen(tmp_path / str(seed), seed) for seed in range(3)]
    assert any(one != IN_ORDER for one in seen)
    assert all(list(map(sorted, one)) == IN_ORDER for one in seen), "none is lost"


def test_a_batch_reads_nothing_only_if_it_begins_with_records_on_their_way_at_another_parallelism() -> None:
    task = TaskId(VertexId("both"), 0)
    empty = TaskSnapshot(task, Snapshot())
    under_way = TaskSnapshot(task, Snapshot(log=(Part("parts/1/log", 3, ""),)))
    assert records_of_batch(9, [empty, under_way], is_rescaled=True) == 0
    assert records_of_batch(9, [empty, under_way], is_rescaled=False) == 9
    assert records_of_batch(9, [empty], is_rescaled=True) == 9
