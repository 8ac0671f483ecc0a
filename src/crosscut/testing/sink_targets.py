"""For all conformance checks of sinks: a sink to look at, and the calls that the runtime makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    CommitProgress,
    HeldData,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.testing.sources import shipped

LINEAGE = Lineage("lineage-of-this-job")
TASK = TaskId(VertexId("write-out"), 1)
SINK_UID = "sink"


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """A sink, and how to see its output.

    Attributes:
        sink: Writes to a location where nothing is yet.
        visible: Returns the committed records: those of one task in the order of its checkpoints, and
            within one as written. Called at any time, also while transactions are open.
        record: Makes the i-th record to write; different for different i, and equal to what `visible`
            returns for it.
        take: Takes everything visible away, as readers may, and returns it as `visible` would have. None:
            readers of this sink can't.
        refused: Makes the i-th record that the system behind the sink refuses: of a wrong type, too long,
            null. None: it takes everything, or its refusals can't be known before the commit.
        shown: Makes of what `SinkWriter.pending_records` yields what `visible` returns. None: the writer
            can't show prepared records.
        backup: Keeps what the system behind the sink holds now, memory of what is committed included, and
            returns a function that sets the system back to it, as a restore from a backup or a failover to
            a replica does. None: the sink keeps no such memory there.
        stalls: Each makes the system answer nothing, or slowly for ever, without closing a connection, and
            returns a function that lets it answer again. Make the sink with short time-outs.
    """

    sink: Sink
    visible: Callable[[], list[Any]]
    record: Callable[[int], Any] = "record {}".format
    take: Callable[[], list[Any]] | None = None
    refused: Callable[[int], Any] | None = None
    shown: Callable[[Any], Any] | None = None
    backup: Callable[[], Callable[[], None]] | None = None
    stalls: Sequence[Callable[[], Callable[[], None]]] = ()

    def records(self, start: int, stop: int) -> list[Any]:
        """Return records `start` to `stop`, exclusive."""
        return [self.record(index) for index in range(start, stop)]


def open_writer(
    sink: Sink,
    epoch: int,
    *,
    task: TaskId = TASK,
    lineage: str = LINEAGE,
    sink_uid: str = SINK_UID,
    driver: str = "driver-1",
    restore: int = 0,
    handles: Sequence[JSON] = (),
    committed: int = 0,
    progress: CommitProgress | None = None,
) -> SinkWriter:
    """Make a writer as a worker does, and let it recover from checkpoint `restore` (0: from none)."""
    writer = unrecovered_writer(
        sink, epoch, task=task, lineage=lineage, sink_uid=sink_uid, driver=driver, progress=progress
    )
    try:
        writer.recover(permit(restore, epoch, lineage, committed) if restore else None, handles)
    except BaseException:
        writer.close()
        raise
    return writer


def unrecovered_writer(
    sink: Sink,
    epoch: int,
    *,
    task: TaskId = TASK,
    lineage: str = LINEAGE,
    sink_uid: str = SINK_UID,
    driver: str = "driver-1",
    progress: CommitProgress | None = None,
) -> SinkWriter:
    """Make a writer as a worker does."""
    held = _held(sink, (lineage, task, sink_uid))
    progress = progress or CommitProgress()
    return shipped(sink).writer(
        SinkContext(Lineage(lineage), Epoch(epoch), task, sink_uid, held, driver, progress=progress)
    )


def _held(sink: Sink, task: tuple[str, TaskId, str]) -> HeldData:
    """Return the data that snapshots hold of a logical task: every writer of `sink` has it again."""
    # With the sink itself, or another one might come to have its id.
    return _HELD.setdefault(id(sink), (sink, {}))[1].setdefault(task, HeldData())


_HELD: dict[int, tuple[Sink, dict[tuple[str, TaskId, str], HeldData]]] = {}


def permit(checkpoint_id: int, epoch: int = 1, lineage: str = LINEAGE, committed: int = 0) -> CommitPermit:
    """Return the permit for a checkpoint that the check declares complete.

    Args:
        committed: The newest transaction of which the sink has confirmed the commit.
    """
    return CommitPermit(Lineage(lineage), Epoch(epoch), CheckpointId(checkpoint_id), CheckpointId(committed))


def stage(writer: SinkWriter, records: Sequence[Any], checkpoint_id: int) -> JSON:
    """Write `records` as one transaction and return its handle as the job log would."""
    writer.write(list(records))
    return prepare(writer, writer.rotate(CheckpointId(checkpoint_id)))


def prepare(writer: SinkWriter, transaction: Any) -> JSON:
    """Prepare a rotated transaction and return its handle as the job log would."""
    require(transaction is not None, "rotate() returned None although records were written")
    handle = writer.prepare(transaction)
    restored: JSON = json.loads(json.dumps(handle))
    require(restored == handle, f"handle {handle!r} is not JSON")
    return restored


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless `condition` holds."""
    if not condition:
        raise AssertionError(message)


def require_visible(target: SinkTarget, expected: list[Any], why: str = "") -> None:
    """Compare the visible output, in order, with the expected one."""
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
