"""`restore_from` runs no code of whoever wrote the savepoint in the program that starts the job: S6, S8."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.attacks import Attack
from tests.unit.test_savepoint_child import attacked
from tests.unit.test_savepoint_places import KEY, N, job_in, visits_by_task, visits_graph

import crosscut as cc
from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch, LogIndex, TaskId, VertexId
from crosscut.foundation.keys import key_group, owner_of_group
from crosscut.graph.shipping import pack_graph
from crosscut.protocol.snapshots import Snapshot
from crosscut.savepoints.writing import write_savepoint
from crosscut.spark.cluster.restoring import begin_with_savepoint
from crosscut.state.encoding import contents
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import VARIABLE
from crosscut.task.channel_log import decoded_log, encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.wire.batches import decode_batch, encode_batch

pytest.importorskip("pyarrow")

TASK = TaskId(VertexId("visits"), 0)


def restored(path: Path, into: Path, graph: Any, **settings: Any) -> CheckpointStore:
    store = open_store(str(into))
    # Of no source of the flow is asked which splits it has: the savepoint knows them.
    staging: Any = SimpleNamespace()
    chosen = cc.Settings(parallelism=2, checkpoint_dir=into, **settings)
    begin_with_savepoint(path, "visits", graph, store, staging, chosen, pack_graph(graph))
    return store


def snapshot_of(store: CheckpointStore, task: TaskId = TASK) -> Snapshot:
    return {one.task: one.snapshot for one in store.tail()[-1][1].snapshots}[task]


def values_in(store: CheckpointStore) -> dict[Any, Any]:
    """Read the state of a task as its worker does."""
    return contents(map(store.read_part, snapshot_of(store).parts))["last"]


def savepoint_of(tmp_path: Path, value: Any) -> tuple[Path, Any]:
    store, graph, checkpoint, claim = attacked(tmp_path, value)
    write_savepoint(tmp_path / "savepoint", checkpoint, claim, store.read_part)
    (tmp_path / "witness").unlink(missing_ok=True)
    return tmp_path / "savepoint", graph


def edited(path: Path, value: Any) -> None:
    """Put a value of state into a savepoint by hand, as anybody can who has it."""
    import polars

    from crosscut.savepoints.values import to_text

    file = path / "state" / "visits" / "0.parquet"
    frame = polars.read_parquet(file)
    is_it = polars.col("state") == "last"
    value_of = polars.when(is_it).then(polars.lit(to_text(value))).otherwise("value")
    frame.with_columns(value=value_of).write_parquet(file)
    cc.seal_savepoint(path)


def test_code_in_a_savepoint_runs_in_workers_only(tmp_path: Path) -> None:
    path, graph = savepoint_of(tmp_path, 1)
    edited(path, [Attack(tmp_path / "witness"), 7])
    store = restored(path, tmp_path / "new", graph)
    assert not (tmp_path / "witness").exists()
    assert values_in(store) == {"ann": [1, 7]}
    assert (tmp_path / "witness").exists(), "the value gets to the worker as it was"


def test_code_in_a_checkpoint_runs_in_a_child_that_has_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, graph, checkpoint, _ = attacked(tmp_path, Attack(tmp_path / "witness"))
    store.append(LogIndex(1, 2), checkpoint)
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", KEY)
    began = restored(tmp_path / "job", tmp_path / "new", graph)
    found = json.loads((tmp_path / "witness").read_text())
    assert found["pid"] != os.getpid()
    assert KEY not in found["environment"].values()
    assert values_in(began) == {"ann": 1}
    assert VARIABLE not in os.environ


def test_data_in_a_checkpoint_needs_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    job_in(store, graph, "visits", visits_by_task(graph))
    monkeypatch.setattr("sys.executable", "/no/such/python")
    assert values_in(restored(tmp_path / "job", tmp_path / "new", graph))


class Tagged(cc.KeyedProcess[tuple[str, str], None]):
    tags = cc.MapState[Any, int]()

    def on_record(self, record: tuple[str, str], ctx: cc.Context) -> None:
        self.tags[re.compile(record[1])] = len(self.tags)


def tagged_graph() -> Any:
    flow = cc.Flow("tagged")
    records = flow.source(cc.items([("ann", "x")])).named("in").key_by(lambda one: one[0])
    records.process(Tagged()).named("tagged").sink(cc.collect()).named("out")
    return flow.compile(2, 16)


def test_names_that_only_workers_load_are_told_apart_by_what_they_are(tmp_path: Path) -> None:
    """A pattern is pickled as a call, which the driver does not make: it compares the pickles."""
    import polars

    from crosscut.savepoints.values import to_text

    store, graph = open_store(str(tmp_path / "job")), tagged_graph()
    records = [("ann", "x"), ("ann", "y")]
    index = owner_of_group(key_group("ann", 16), 16, 2)
    checkpoint, claim = job_in(
        store, graph, "tagged", {index: Batch(records, ["ann", "ann"]), 1 - index: Batch([], [])}
    )
    path = tmp_path / "savepoint"
    write_savepoint(path, checkpoint, claim, store.read_part)
    begun = restored(path, tmp_path / "new", graph)
    parts = snapshot_of(begun, TaskId(VertexId("tagged"), index)).parts
    tags = contents(map(begun.read_part, parts))["tags"]
    assert tags == {"ann": {re.compile("x"): 0, re.compile("y"): 1}}
    file = path / "state" / "tagged" / f"{index}.parquet"
    name = to_text(re.compile("x"))
    polars.read_parquet(file).with_columns(name=polars.lit(name)).write_parquet(file)
    cc.seal_savepoint(path)
    with pytest.raises(StateError, match="two rows for"):
        restored(path, tmp_path / "other", graph)


def test_code_in_records_on_their_way_runs_in_workers_only(tmp_path: Path) -> None:
    store, graph, checkpoint, _ = attacked(tmp_path, 1)
    channel = ChannelId(0, TaskId(VertexId("clicks"), 0), TASK)
    data = encode_batch(Batch([("ann", Attack(tmp_path / "witness"))], ["ann"], [0]))
    log = encoded_log([LoggedBatch(channel, data, 1, by_sender=False)])
    part = store.write_part(CheckpointId(N + 1), TASK, Epoch(1), log)
    snapshots = tuple(
        replace(one, snapshot=replace(one.snapshot, log=(part,), in_flight=1)) if one.task == TASK else one
        for one in checkpoint.snapshots
    )
    store.append(LogIndex(1, 2), replace(checkpoint, snapshots=snapshots))
    began = restored(tmp_path / "job", tmp_path / "new", graph)
    found = json.loads((tmp_path / "witness").read_text())
    assert found["pid"] != os.getpid()
    (logged,) = [one for part in snapshot_of(began).log for one in decoded_log(began.read_part(part))]
    assert decode_batch(logged.data).records == [("ann", 1)]


def test_a_migration_gets_data_and_never_what_may_be_code(tmp_path: Path) -> None:
    path, graph = savepoint_of(tmp_path, Fraction(1, 2))
    migrate = {"visits": {"last": lambda key, value: float(value)}}
    assert values_in(restored(path, tmp_path / "new", graph, migrate_state=migrate)) == {"ann": 0.5}
    edited(path, Attack(tmp_path / "witness"))
    with pytest.raises(StateError, match=r"(?s)'last' for key '\"ann\"'.*tests.unit.attacks.report"):
        restored(path, tmp_path / "other", graph, migrate_state=migrate)
    assert not (tmp_path / "witness").exists()
