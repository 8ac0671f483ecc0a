"""A savepoint is written by a process that has no secret of the driver: S6, S8."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.attacks import Attack, Dying
from tests.unit.test_savepoint_places import KEY, N, job_in, visits_by_task, visits_graph

from crosscut.cli.commands import program
from crosscut.driver.cuts import newest_values
from crosscut.errors import StateError, StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, LogIndex, TaskId, VertexId
from crosscut.graph.shipping import pack_graph
from crosscut.savepoints.child import child_environment, files_by_child
from crosscut.savepoints.manifest import check, opened
from crosscut.savepoints.writing import write_savepoint
from crosscut.spark.data.read_state import read_state
from crosscut.state.encoding import MAGIC, encode_block
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import VARIABLE

pytest.importorskip("pyarrow")


def attacked(tmp_path: Path, value: Any) -> tuple[Any, Any, Any, Any]:
    """Return store, graph, checkpoint and claim of a job whose state a worker has made up."""
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    task = TaskId(VertexId("visits"), 0)
    data = MAGIC + encode_block("last", ["ann"], [value])
    part = store.write_part(CheckpointId(N + 1), task, Epoch(1), [data])
    snapshots = tuple(
        replace(one, snapshot=replace(one.snapshot, parts=(part,))) if one.task == task else one
        for one in checkpoint.snapshots
    )
    return store, graph, replace(checkpoint, checkpoint_id=CheckpointId(N + 1), snapshots=snapshots), claim


def test_a_child_writes_the_same_files(tmp_path: Path) -> None:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    here = write_savepoint(tmp_path / "here", checkpoint, claim, store.read_part)
    files = files_by_child(str(tmp_path / "there"), str(tmp_path / "job"), pack_graph(graph))
    there = write_savepoint(tmp_path / "there", checkpoint, claim, store.read_part, write_files=files)
    assert there.files == here.files
    check(opened(tmp_path / "there"))


def test_code_in_state_runs_in_a_child_that_has_neither_key_nor_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, graph, checkpoint, claim = attacked(tmp_path, Attack(tmp_path / "witness"))
    monkeypatch.setenv(VARIABLE, KEY)
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "of py4j")
    monkeypatch.setenv("CROSSCUT_WEB_TOKEN", "of the page")
    files = files_by_child(str(tmp_path / "savepoint"), str(tmp_path / "job"), pack_graph(graph))
    manifest = write_savepoint(tmp_path / "savepoint", checkpoint, claim, store.read_part, write_files=files)
    assert manifest.files
    found = json.loads((tmp_path / "witness").read_text())
    assert found["pid"] != os.getpid()
    assert not {KEY, "of py4j", "of the page"} & set(found["environment"].values())
    # Signed all the same: the driver writes the manifest.
    check(opened(tmp_path / "savepoint"))


def test_the_child_imports_nothing_from_where_the_driver_happens_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-m` imports from the working directory first: /tmp, say, where anybody can write a json.py."""
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "json.py").write_text(f"open({str(tmp_path / 'witness')!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(shared)
    files = files_by_child(str(tmp_path / "savepoint"), str(tmp_path / "job"), pack_graph(graph))
    write_savepoint(tmp_path / "savepoint", checkpoint, claim, store.read_part, write_files=files)
    assert not (tmp_path / "witness").exists()


def test_code_in_state_does_not_run_where_values_are_read(tmp_path: Path) -> None:
    store, graph, checkpoint, _ = attacked(tmp_path, Attack(tmp_path / "witness"))
    store.append(LogIndex(1, 2), checkpoint)
    with pytest.raises(StateError, match="report"):
        newest_values(store, graph, "visits", "last")
    with pytest.raises(StateError, match="report"):
        read_state(tmp_path / "job", "visits", "last")
    for command in (["state", str(tmp_path / "job"), "visits"], ["diff", *[str(tmp_path / "job")] * 2]):
        result = CliRunner().invoke(program, ["checkpoints", *command])
        assert result.exit_code == 2
        assert "report" in result.output
        assert "--trust" in result.output
    assert not (tmp_path / "witness").exists()
    result = CliRunner().invoke(program, ["checkpoints", "state", str(tmp_path / "job"), "visits", "--trust"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "witness").exists()
    assert read_state(tmp_path / "job", "visits", "last", trust=True)["value"][0] == 1


@pytest.mark.parametrize("inside", ["", "parts"])
def test_whoever_trusts_a_directory_hears_that_others_may_write_there(tmp_path: Path, inside: str) -> None:
    store, _, checkpoint, _ = attacked(tmp_path, 1)
    store.append(LogIndex(1, 2), checkpoint)
    (tmp_path / "job" / inside).chmod(0o777)
    # Warnings are errors here: only data is loaded, so who may write there doesn't matter.
    assert read_state(tmp_path / "job", "visits", "last")["value"][0] == 1
    state = ["checkpoints", "state", str(tmp_path / "job"), "visits"]
    assert CliRunner().invoke(program, state).exit_code == 0
    for path in (tmp_path / "job", f"{tmp_path / 'job'}@{checkpoint.checkpoint_id}"):
        with pytest.warns(RuntimeWarning, match="has mode 0777"):
            read_state(path, "visits", "last", trust=True)
    with pytest.warns(RuntimeWarning, match="has mode 0777"):
        assert CliRunner().invoke(program, [*state, "--trust"]).exit_code == 0


def test_an_error_of_the_child_is_raised_and_nothing_is_left(tmp_path: Path) -> None:
    store, graph, checkpoint, claim = attacked(tmp_path, 1)
    store.delete_parts([one.path for each in checkpoint.snapshots for one in each.snapshot.parts])
    broken = replace(
        checkpoint,
        snapshots=tuple(
            replace(
                one,
                snapshot=replace(
                    one.snapshot, parts=tuple(replace(part, sha256="0" * 64) for part in one.snapshot.parts)
                ),
            )
            for one in checkpoint.snapshots
        ),
    )
    files = files_by_child(str(tmp_path / "savepoint"), str(tmp_path / "job"), pack_graph(graph))
    with pytest.raises(StoreError):
        write_savepoint(tmp_path / "savepoint", broken, claim, store.read_part, write_files=files)
    assert not (tmp_path / "savepoint").exists()


def test_a_child_that_dies_is_named(tmp_path: Path) -> None:
    store, graph, checkpoint, claim = attacked(tmp_path, Dying())
    files = files_by_child(str(tmp_path / "savepoint"), str(tmp_path / "job"), pack_graph(graph))
    with pytest.raises(StoreError, match="exit code 9"):
        write_savepoint(tmp_path / "savepoint", checkpoint, claim, store.read_part, write_files=files)
    assert not (tmp_path / "savepoint").exists()


def test_the_environment_of_the_child_has_its_modules_and_no_secrets() -> None:
    found = child_environment(
        {VARIABLE: "a", "SPARK_X": "b", "PYSPARK_GATEWAY_SECRET": "c", "AWS_PROFILE": "d"}, ["", "/x"]
    )
    assert found == {"AWS_PROFILE": "d", "PYTHONPATH": os.pathsep.join([os.getcwd(), "/x"])}
