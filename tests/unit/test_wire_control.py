import pytest

from crosscut.errors import StateError, WireError
from crosscut.foundation.ids import (
    AttemptId,
    CheckpointId,
    Epoch,
    Lineage,
    TaskId,
    VertexId,
    WorkerIndex,
)
from crosscut.protocol.messages import (
    CoordinatorMessage,
    DeployTasks,
    FailureCause,
    Peer,
    RegisterWorker,
    ShutDown,
    SnapshotAcknowledged,
    SplitAssignment,
    StandBy,
    TaskFailed,
    TaskStatistics,
    TriggerCheckpoint,
    WorkerHeartbeat,
    WorkerMessage,
)
from crosscut.protocol.snapshots import Part, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.wire.control import COORDINATOR_MESSAGES, WORKER_MESSAGES, decode_control, encode_control

COUNT = TaskId(VertexId("count"), 1)
SNAPSHOT = Snapshot(
    parts=(Part("", 3, "ab" * 32, "YWJj"), Part("parts/7/count-1", 1 << 40, "cd" * 32)),
    positions={"corpus/caf\udce9.txt": [17, {"line": None}]},
    pending=(PendingTransaction(CheckpointId(7), ["staged", 1.5, True]),),
    drained=True,
)
FROM_WORKER: list[WorkerMessage] = [
    RegisterWorker(WorkerIndex(0), AttemptId(12), "127.0.0.1", 4711, 40_001),
    SnapshotAcknowledged(Epoch(2), CheckpointId(7), COUNT, SNAPSHOT),
    TaskFailed(Epoch(2), COUNT, FailureCause("ValueError", "naïve \udcff", "map", "'x'", "Traceback\n  ...")),
    WorkerHeartbeat(Epoch(2), (TaskStatistics(COUNT, 5, 4),), {"stale epoch": 1}),
]
FROM_COORDINATOR: list[CoordinatorMessage] = [
    DeployTasks(
        Epoch(3),
        Lineage("a1"),
        (Peer(WorkerIndex(0), "::1", 1),),
        CheckpointId(7),
        (TaskSnapshot(COUNT, SNAPSHOT),),
        (SplitAssignment(COUNT, [{"split_id": "a", "start": 0}]),),
    ),
    TriggerCheckpoint(Epoch(3), CheckpointId(8)),
    StandBy(),
    ShutDown("job finished"),
]


@pytest.mark.parametrize("message", FROM_WORKER)
def test_a_message_of_a_worker_comes_back_equal(message: WorkerMessage) -> None:
    assert decode_control(memoryview(encode_control(message)), WORKER_MESSAGES) == message


@pytest.mark.parametrize("message", FROM_COORDINATOR)
def test_a_message_of_the_coordinator_comes_back_equal(message: CoordinatorMessage) -> None:
    assert decode_control(encode_control(message), COORDINATOR_MESSAGES) == message


def test_a_worker_cannot_speak_as_the_coordinator() -> None:
    with pytest.raises(WireError):
        decode_control(encode_control(ShutDown("obey")), WORKER_MESSAGES)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"type": "os.system"}',
        b'{"type": "StartTasks", "epoch": NaN}',
        b'{"type": "StartTasks", "epoch": 1e999}',
        b'{"type": "StartTasks", "epoch": ' + b"9" * 10_000 + b"}",
        b"[" * 200_000,
        b'{"type":' * 200_000,
        b'{"type": "SplitAssignment", "splits": ' + b"[" * 900 + b"]" * 900 + b"}",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_anything_else_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_control(data, COORDINATOR_MESSAGES)


def test_a_position_that_is_not_json_is_named_before_it_is_sent() -> None:
    snapshot = Snapshot(positions=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"Snapshot\.positions"):
        encode_control(SnapshotAcknowledged(Epoch(1), CheckpointId(1), COUNT, snapshot))
