"""Conformance suite for sinks: is output exactly-once, whatever is repeated, late, or killed?

Point it at a sink of your own. Every check needs a target of its own, with nothing in it yet:

    @pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
    def test_my_sink_conforms(check, tmp_path):
        check(SinkTarget(MySink(tmp_path), visible=lambda: read_committed(tmp_path)))

A check plays the runtime: it makes writers as workers do (from a pickled sink), hands handles over as
the job log does (as JSON), and makes the permits that in a job only a durable log entry yields. Every
check raises AssertionError that says what was visible and what should have been.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from crosscut.errors import ConnectorError
from crosscut.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.interfaces import JSON, CommitPermit, HeldData, Sink, SinkContext, SinkWriter
from crosscut.testing.sources import shipped

_LINEAGE = Lineage("lineage-of-this-job")
_TASK = TaskId(VertexId("write-out"), 1)
_SINK_UID = "sink"


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """A sink, and how to see what it wrote.

    Attributes:
        sink: Writes to a place where nothing is yet.
        visible: Returns the committed records: those of one task in the order of its checkpoints, and
            within one as written. Called at any time, also while transactions are open.
        record: Makes the i-th record to write; different for different i, and equal to what `visible`
            returns for it.
    """

    sink: Sink
    visible: Callable[[], list[Any]]
    record: Callable[[int], Any] = "record {}".format

    def records(self, start: int, stop: int) -> list[Any]:
        """Return records `start` to `stop`, exclusive."""
        return [self.record(index) for index in range(start, stop)]


def open_writer(
    sink: Sink,
    epoch: int,
    *,
    task: TaskId = _TASK,
    lineage: str = _LINEAGE,
    sink_uid: str = _SINK_UID,
    restore: int = 0,
    handles: Sequence[JSON] = (),
) -> SinkWriter:
    """Make a writer as a worker does, and let it recover from checkpoint `restore` (0: from none)."""
    held = _held(sink, (lineage, task, sink_uid))
    writer = shipped(sink).writer(SinkContext(Lineage(lineage), Epoch(epoch), task, sink_uid, held))
    writer.recover(permit(restore, epoch, lineage) if restore else None, handles)
    return writer


def _held(sink: Sink, task: tuple[str, TaskId, str]) -> HeldData:
    """Return what snapshots hold of a logical task: it is there again for every writer of `sink`."""
    # With the sink itself, or another one might come to have its id.
    return _HELD.setdefault(id(sink), (sink, {}))[1].setdefault(task, HeldData())


_HELD: dict[int, tuple[Sink, dict[tuple[str, TaskId, str], HeldData]]] = {}


def permit(checkpoint_id: int, epoch: int = 1, lineage: str = _LINEAGE) -> CommitPermit:
    """Return the permit for a checkpoint that the check declares complete."""
    return CommitPermit(Lineage(lineage), Epoch(epoch), CheckpointId(checkpoint_id))


def stage(writer: SinkWriter, records: Sequence[Any], checkpoint_id: int) -> JSON:
    """Write `records` as one transaction and return its handle as the job log would."""
    writer.write(list(records))
    return prepare(writer, writer.rotate(CheckpointId(checkpoint_id)))


def prepare(writer: SinkWriter, transaction: Any) -> JSON:
    """Prepare a rotated transaction and return its handle as the job log would."""
    _require(transaction is not None, "rotate() returned None although records were written")
    handle = writer.prepare(transaction)
    restored: JSON = json.loads(json.dumps(handle))
    _require(restored == handle, f"handle {handle!r} is not JSON")
    return restored


def check_nothing_is_visible_before_commit(target: SinkTarget) -> None:
    """I3: not after write, not after rotate, not after prepare, not after close; all of it after commit."""
    _require_visible(target, [])
    writer = open_writer(target.sink, 1)
    writer.write(target.records(0, 500))
    _require_visible(target, [])
    transaction = writer.rotate(CheckpointId(1))
    _require_visible(target, [])
    handle = prepare(writer, transaction)
    _require_visible(target, [])
    writer.close()
    _require_visible(target, [])
    open_writer(target.sink, 2, restore=1, handles=[handle]).close()
    _require_visible(target, target.records(0, 500))


def check_order_is_kept(target: SinkTarget) -> None:
    """Records come out as they went in, over batches, transactions and epochs."""
    written = 0
    for epoch in (1, 2):
        writer = open_writer(target.sink, epoch)
        for checkpoint_id in range(10 * epoch, 10 * epoch + 3):
            for size in (1, 0, 30, 2):
                writer.write(target.records(written, written + size))
                written += size
            handle = prepare(writer, writer.rotate(CheckpointId(checkpoint_id)))
            writer.commit(permit(checkpoint_id, epoch), [handle])
            _require_visible(target, target.records(0, written))
        writer.close()


def check_rotation_cuts_at_once(target: SinkTarget) -> None:
    """What is written after rotate is in a later transaction, even if it is written before prepare."""
    writer = open_writer(target.sink, 1)
    writer.write(target.records(0, 10))
    transaction = writer.rotate(CheckpointId(1))
    writer.write(target.records(10, 20))
    handle = prepare(writer, transaction)
    writer.write(target.records(20, 30))
    writer.commit(permit(1), [handle])
    _require_visible(target, target.records(0, 10))
    writer.commit(permit(2), [prepare(writer, writer.rotate(CheckpointId(2)))])
    _require_visible(target, target.records(0, 30))
    writer.close()


def check_caller_may_reuse_the_list(target: SinkTarget) -> None:
    """The list given to write belongs to the caller again when write returns."""
    writer = open_writer(target.sink, 1)
    records = target.records(0, 5)
    writer.write(records)
    records.clear()
    writer.commit(permit(1), [prepare(writer, writer.rotate(CheckpointId(1)))])
    _require_visible(target, target.records(0, 5))
    writer.close()


def check_empty_transaction_is_none(target: SinkTarget) -> None:
    """F8: a checkpoint without records has no transaction, first, in between and after an empty write."""
    writer = open_writer(target.sink, 1)
    _require(writer.rotate(CheckpointId(1)) is None, "rotate() without a write returned a transaction")
    handle = stage(writer, target.records(0, 3), 2)
    _require(writer.rotate(CheckpointId(3)) is None, "a second rotate() returned a transaction")
    writer.write([])
    _require(writer.rotate(CheckpointId(4)) is None, "rotate() after write([]) returned a transaction")
    writer.commit(permit(4), [])
    writer.commit(permit(4), [handle])
    writer.close()
    _require_visible(target, target.records(0, 3))


def check_commit_may_be_repeated(target: SinkTarget) -> None:
    """F1: the reply to a commit is lost; the same attempt and a new one commit again."""
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1)]
    for _ in range(3):
        writer.commit(permit(1), handles)
        _require_visible(target, target.records(0, 10))
    handles.append(stage(writer, target.records(10, 20), 2))
    writer.commit(permit(2), handles)
    _require_visible(target, target.records(0, 20))
    writer.close()
    successor = open_writer(target.sink, 2, restore=2, handles=handles)
    _require_visible(target, target.records(0, 20))
    successor.commit(permit(2, 2), handles)
    successor.close()
    _require_visible(target, target.records(0, 20))


def check_everything_pending_is_committed(target: SinkTarget) -> None:
    """F2, F8: two transactions are pending at once; the notification of the first never came."""
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1), stage(writer, target.records(10, 20), 2)]
    open_transaction = stage(writer, target.records(20, 30), 3)
    writer.commit(permit(2), handles)
    _require_visible(target, target.records(0, 20))
    writer.commit(permit(3), [open_transaction])
    writer.close()
    _require_visible(target, target.records(0, 30))


def check_checkpoint_may_be_restored_twice(target: SinkTarget) -> None:
    """F4: recovery fails after it committed, and starts again; the handles are a successor's only facts."""
    writer = open_writer(target.sink, 1)
    handles = [stage(writer, target.records(0, 10), 1), stage(writer, target.records(10, 20), 2)]
    writer.close()
    for epoch in (2, 3, 4):
        open_writer(target.sink, epoch, restore=2, handles=handles).close()
        _require_visible(target, target.records(0, 20))


def check_orphans_are_never_visible(target: SinkTarget) -> None:
    """F6: staged, but in no complete checkpoint: gone after the next start, which writes it again."""
    writer = open_writer(target.sink, 1)
    kept = stage(writer, target.records(0, 10), 1)
    stage(writer, target.records(10, 20), 2)
    writer.write(target.records(20, 30))
    writer.close()
    successor = open_writer(target.sink, 2, restore=1, handles=[kept])
    _require_visible(target, target.records(0, 10))
    successor.commit(permit(3, 2), [stage(successor, target.records(10, 30), 3)])
    successor.close()
    _require_visible(target, target.records(0, 30))


def check_others_are_left_alone(target: SinkTarget) -> None:
    """F6: recovery of one task aborts nothing of another task, sink or lineage."""
    others: dict[str, dict[str, Any]] = {
        "same vertex": {"task": TaskId(_TASK.vertex, 0)},
        "similar index": {"task": TaskId(_TASK.vertex, 11)},
        "other vertex": {"task": TaskId(VertexId("other"), _TASK.index)},
        "similar vertex": {"task": TaskId(VertexId(f"{_TASK.vertex}-1"), _TASK.index)},
        "other sink": {"sink_uid": "sink-2"},
        "other lineage": {"lineage": "another-lineage"},
    }
    staged: list[tuple[str, dict[str, Any], JSON]] = []
    for index, (name, identity) in enumerate(others.items()):
        writer = open_writer(target.sink, 1, **identity)
        staged.append((name, identity, stage(writer, target.records(index, index + 1), 1)))
        writer.close()
    open_writer(target.sink, 7).close()
    _require_visible(target, [])
    for _, identity, handle in staged:
        open_writer(target.sink, 8, **identity, restore=1, handles=[handle]).close()
    found, expected = target.visible(), target.records(0, len(staged))
    _require(
        sorted(map(repr, found)) == sorted(map(repr, expected)),
        f"recovery of one task touched others {list(others)}: visible {found!r}, expected {expected!r}",
    )


def check_zombie_changes_nothing(target: SinkTarget) -> None:
    """C1: a writer believed dead wakes up after its successor committed, commits again and stages more."""
    zombie = open_writer(target.sink, 1)
    handles = [stage(zombie, target.records(0, 10), 1)]
    zombie.write(target.records(10, 15))
    in_flight = zombie.rotate(CheckpointId(2))
    zombie.write(target.records(15, 20))

    successor = open_writer(target.sink, 2, restore=1, handles=handles)
    later = stage(successor, target.records(10, 30), 3)
    successor.commit(permit(3, 2), [later])

    # To be refused is as good as not to be seen.
    with suppress(ConnectorError):
        zombie.commit(permit(1, 1), handles)
    _require_visible(target, target.records(0, 30))
    with suppress(ConnectorError):
        prepare(zombie, in_flight)
        stage(zombie, target.records(20, 25), 4)
    zombie.close()
    _require_visible(target, target.records(0, 30))
    successor.close()
    open_writer(target.sink, 3, restore=3, handles=[later]).close()
    _require_visible(target, target.records(0, 30))


def check_random_lives(target: SinkTarget, seed: int = 1, steps: int = 120) -> None:
    """I1, I2, I3: writes, checkpoints, aborts, late commits and crashes in any order, against a list.

    After every step the visible records are exactly those of the committed checkpoints.
    """
    choices = random.Random(seed)
    epoch = 1
    writer = open_writer(target.sink, epoch)
    zombies: list[SinkWriter] = []
    checkpoint_id = completed_id = 0
    written = completed = committed = 0
    pending: list[JSON] = []
    completed_handles: list[JSON] = []
    for _ in range(steps):
        match choices.choice(("write", "write", "complete", "complete", "abort", "commit", "crash")):
            case "write":
                size = choices.randint(0, 20)
                writer.write(target.records(written, written + size))
                written += size
            case "complete" | "abort" as outcome:
                checkpoint_id += 1
                transaction = writer.rotate(CheckpointId(checkpoint_id))
                if transaction is not None:
                    pending.append(prepare(writer, transaction))
                if outcome == "complete":
                    completed, completed_id, completed_handles = written, checkpoint_id, list(pending)
            case "commit" if completed_id:
                writer.commit(permit(completed_id, epoch), completed_handles)
                committed = completed
                if choices.random() < 0.7:
                    # Otherwise the reply is lost, and later checkpoints hold them again.
                    pending = [handle for handle in pending if handle not in completed_handles]
            case "crash":
                if choices.random() < 0.5:
                    writer.close()
                else:
                    zombies.append(writer)
                epoch += 1
                writer = open_writer(target.sink, epoch, restore=completed_id, handles=completed_handles)
                written = committed = completed
                pending = []
            case _:
                pass  # a commit before anything is complete
        _require_visible(target, target.records(0, committed), f"seed {seed}")
    for open_one in (writer, *zombies):
        open_one.close()
    _require_visible(target, target.records(0, committed), f"seed {seed}, after close")


SINK_CHECKS: tuple[Callable[[SinkTarget], None], ...] = (
    check_nothing_is_visible_before_commit,
    check_order_is_kept,
    check_rotation_cuts_at_once,
    check_caller_may_reuse_the_list,
    check_empty_transaction_is_none,
    check_commit_may_be_repeated,
    check_everything_pending_is_committed,
    check_checkpoint_may_be_restored_twice,
    check_orphans_are_never_visible,
    check_others_are_left_alone,
    check_zombie_changes_nothing,
    check_random_lives,
)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _require_visible(target: SinkTarget, expected: list[Any], why: str = "") -> None:
    found = target.visible()
    if found != expected:
        index = next(
            (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
            min(len(found), len(expected)),
        )
        raise AssertionError(
            f"{len(found)} records are visible, expected {len(expected)}; they differ from {index} on: "
            f"{found[index : index + 3]!r} instead of {expected[index : index + 3]!r} {why}"
        )
