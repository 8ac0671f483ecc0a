"""Which output of a job is all visible, for who follows it checkpoint by checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.files.committed_files import (
    CommittedFile,
    committed_files,
    grouped,
    newest_visible,
)
from crosscut.connectors.files.stage import Stage
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import PendingTransaction, Snapshot, TaskSnapshot

LINEAGE = Lineage("a1")
NOTHING, ONE, TWO, THREE = map(CheckpointId, range(4))


def task(index: int) -> TaskId:
    # Of the vertex that the sink is the end of.
    return TaskId(VertexId("shown"), index)


def writer(directory: Path, index: int, uid: str = "out") -> Any:
    made = cc.files.write_jsonl(directory).writer(
        SinkContext(LINEAGE, Epoch(1), task(index), uid, driver="d")
    )
    made.recover(None, [])
    return made


def staged(made: Any, n: CheckpointId) -> JSON:
    made.write([f"record of {n}"])
    handle: JSON = made.prepare(made.rotate(n))
    return handle


def commit(made: Any, n: CheckpointId, *handles: JSON) -> None:
    made.commit(CommitPermit(LINEAGE, Epoch(1), n), handles)


def checkpoint(n: CheckpointId, *pending: tuple[int, CheckpointId, JSON]) -> CheckpointCompleted:
    snapshots = {index: [PendingTransaction(m, handle)] for index, m, handle in pending}
    return CheckpointCompleted(
        Epoch(1),
        n,
        tuple(TaskSnapshot(task(index), Snapshot(pending=tuple(of))) for index, of in snapshots.items()),
    )


def test_a_checkpoint_is_visible_when_all_tasks_have_committed_it(tmp_path: Path) -> None:
    first, second = writer(tmp_path, 0), writer(tmp_path, 1)
    ones = staged(first, ONE), staged(second, ONE)
    complete = [checkpoint(ONE, (0, ONE, ones[0]), (1, ONE, ones[1]))]
    assert newest_visible(tmp_path.as_posix(), "out", complete) == NOTHING
    commit(first, ONE, ones[0])
    assert newest_visible(tmp_path.as_posix(), "out", complete) == NOTHING
    commit(second, ONE, ones[1])
    assert newest_visible(tmp_path.as_posix(), "out", complete) == ONE
    two = staged(first, TWO)
    complete.append(checkpoint(TWO, (0, TWO, two)))
    assert newest_visible(tmp_path.as_posix(), "out", complete) == ONE
    commit(first, TWO, two)
    assert newest_visible(tmp_path.as_posix(), "out", complete) == TWO


def test_output_that_is_noted_and_not_moved_yet_is_not_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: a worker dies after it has noted what it publishes; who follows the output waits for it."""
    made = writer(tmp_path, 0)
    one = staged(made, ONE)

    def died(*_: Any, **directories: Any) -> None:
        raise OSError("the worker has died")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", died)
        with pytest.raises(ConnectorError, match="the worker has died"):
            commit(made, ONE, one)
    complete = [checkpoint(ONE, (0, ONE, one))]
    assert committed_files(str(tmp_path), "out") == []
    assert newest_visible(tmp_path.as_posix(), "out", complete) == NOTHING
    commit(made, ONE, one)
    assert newest_visible(tmp_path.as_posix(), "out", complete) == ONE


def test_a_checkpoint_without_new_output_is_visible_at_once(tmp_path: Path) -> None:
    assert newest_visible(tmp_path.as_posix(), "out", [checkpoint(THREE)]) == THREE
    assert newest_visible(tmp_path.as_posix(), "out", []) == NOTHING


def test_a_file_that_is_only_about_to_be_moved_is_not_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path, 0)
    one = staged(made, ONE)
    complete = [checkpoint(ONE, (0, ONE, one))]
    seen: list[CheckpointId] = []

    def publish(stage: Stage, name: str, target: int, final: str) -> None:
        # The ledger knows of it by now. Whoever went on behind it here would never read it.
        seen.append(newest_visible(tmp_path.as_posix(), "out", complete))
        raise OSError("killed")

    with monkeypatch.context() as patched, pytest.raises(ConnectorError, match="killed"):
        patched.setattr(Stage, "publish", publish)
        commit(made, ONE, one)
    assert seen == [NOTHING]
    commit(made, ONE, one)
    assert newest_visible(tmp_path.as_posix(), "out", complete) == ONE


def test_output_in_an_object_store_is_refused_instead_of_empty() -> None:
    with pytest.raises(
        ConnectorError, match="'out' has committed to s3://bucket/lines is in an object store"
    ):
        committed_files("s3://bucket/lines", "out")


def test_output_that_was_taken_away_was_visible(tmp_path: Path) -> None:
    made = writer(tmp_path, 0)
    one = staged(made, ONE)
    commit(made, ONE, one)
    (file,) = committed_files(str(tmp_path), "out")
    assert (Path(file.path).read_text(), file.checkpoint_id) == ('"record of 1"\n', ONE)
    Path(file.path).unlink()
    assert newest_visible(tmp_path.as_posix(), "out", [checkpoint(ONE, (0, ONE, one))]) == ONE


def test_small_files_are_read_together_in_order() -> None:
    files = [CommittedFile(f"{n}", size, ONE, ONE) for n, size in enumerate([5, 5, 9, 30, 1, 1])]
    assert list(grouped(files, 10)) == [["0", "1"], ["2"], ["3"], ["4", "5"]]
    assert list(grouped([], 10)) == []


def test_what_another_sink_has_in_the_same_directory_does_not_count(tmp_path: Path) -> None:
    made, other = writer(tmp_path, 0), writer(tmp_path, 0, "other")
    one, others = staged(made, ONE), staged(other, ONE)
    commit(other, ONE, others)
    assert newest_visible(tmp_path.as_posix(), "out", [checkpoint(ONE, (0, ONE, one))]) == NOTHING
    assert newest_visible(tmp_path.as_posix(), "out", [checkpoint(ONE, (0, ONE, others))]) == ONE
    assert committed_files(str(tmp_path), "out") == []
