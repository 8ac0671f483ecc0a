"""What partitions tell the driver is data: S6, nothing of it is unpickled."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from crosscut.errors import WireError
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.microbatch.shuffle import (
    Failure,
    PartitionResult,
    ShuffleBlock,
    decoded_result,
    encoded_result,
)
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.attempts import Attempt, Partition
from crosscut.protocol.snapshots import PendingTransaction, Snapshot, TaskSnapshot

TASK = TaskId(VertexId("counts"), 1)


def brought(handle: Any) -> tuple[Attempt, ...]:
    snapshot = Snapshot(pending=(PendingTransaction(CheckpointId(3), handle),))
    return (Attempt(Partition(1, 1), "a", ("b", "c"), (TaskSnapshot(TASK, snapshot),), is_full=True),)


def test_a_result_comes_back_as_it_was() -> None:
    attempts = brought({"path": "x", "rows": [1, 2.5, None]})
    data = encoded_result(1, ShuffleBlock(Partition(1, 1), "a", 0, is_last=True, brought=attempts))
    assert decoded_result(data) == PartitionResult(1, attempts)
    failure = Failure(TASK, FailureCause("ValueError", "no", "traceback"))
    data = encoded_result(1, ShuffleBlock(Partition(1, 1), "a", 0, is_last=True, failure=failure))
    assert decoded_result(data) == PartitionResult(1, failure=failure)


def test_a_handle_that_is_no_json_is_a_failure_of_its_task() -> None:
    data = encoded_result(
        1, ShuffleBlock(Partition(1, 1), "a", 0, is_last=True, brought=brought({"rows": {1}}))
    )
    failure = decoded_result(data).failure
    assert failure is not None
    assert failure.task == TASK
    assert "can't be written as JSON" in failure.cause.message


class Attack:
    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._witness),)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"type":"PartitionResult"}', b"[" * 100_000, b"\xff"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decoded_result(data)


def test_a_pickle_in_place_of_a_result_is_refused_and_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="not JSON"):
        decoded_result(pickle.dumps(Attack(tmp_path / "witness")))
    assert not (tmp_path / "witness").exists()
