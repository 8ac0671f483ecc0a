"""What watermarks promise, judged by what is in the checkpoints and by what passes between workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import Epoch, TaskId, VertexId
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.snapshots import Snapshot
from crosscut.testing.simulator.violation import ensure


@dataclass(slots=True)
class ChannelTime:
    """Event time on one channel, in one epoch.

    Attributes:
        watermark: The newest that has passed.
    """

    watermark: int | None = None

    def passed(self, batch: Batch, where: Callable[[], str], *, is_punctual: bool) -> None:
        """Judge a batch.

        Args:
            where: Tells where it passes.
            is_punctual: No record is late: the sources keep to what was said of them.
        """
        if is_punctual and self.watermark is not None and batch.timestamps:
            oldest = min(batch.timestamps)
            ensure(
                oldest >= self.watermark,
                f"I14: {where()}: a record of {oldest} comes after watermark {self.watermark}",
            )
        if batch.watermark is not None:
            # Not above it: a restored task says again what its unsent records may have said before.
            ensure(
                self.watermark is None or batch.watermark >= self.watermark,
                f"I14: {where()}: watermark {batch.watermark} comes after {self.watermark}",
            )
            self.watermark = batch.watermark


class WatermarksKept:
    """Watermarks never go back from one completed checkpoint to the next, whatever went wrong in between.

    At another parallelism the slowest task of a vertex is where the slowest one was, or further.
    """

    def __init__(self) -> None:
        self.restored_count = 0
        """How often tasks have gone on from a watermark in another epoch."""
        self._known: dict[TaskId, dict[str, int]] = {}
        self._splits: dict[tuple[VertexId, str, str], int | None] = {}
        self._epoch = Epoch(0)

    def completed(self, entry: CheckpointCompleted) -> None:
        """Judge the snapshots of a checkpoint."""
        found = {one.task: _watermarks(one.snapshot) for one in entry.snapshots}
        if found.keys() == self._known.keys():
            for task, watermarks in found.items():
                _check(entry, str(task), self._known[task], watermarks)
        else:
            slowest, before = _slowest(found), _slowest(self._known)
            for vertex in slowest.keys() & before.keys():
                _check(entry, f"the slowest task of {vertex}", before[vertex], slowest[vertex])
        splits = dict(_splits(entry))
        for (vertex, uid, split), known in self._splits.items():
            if (vertex, uid, split) in splits and known is not None:
                now = splits[vertex, uid, split]
                _check(entry, f"split {split} at {vertex}", {f" ({uid})": known}, {f" ({uid})": now})
        self.restored_count += entry.epoch > self._epoch and any(self._known.values())
        self._epoch, self._known, self._splits = entry.epoch, found, splits


def _check(
    entry: CheckpointCompleted, where: str, before: Mapping[str, int], after: Mapping[str, int | None]
) -> None:
    for name, known in before.items():
        now = after.get(name)
        ensure(
            now is not None and now >= known,
            f"I14: checkpoint {entry.checkpoint_id} has the watermark {now} of {where}{name}; it was {known}",
        )


def _slowest(found: Mapping[TaskId, Mapping[str, int]]) -> dict[VertexId, dict[str, int]]:
    """Return the lowest watermark by vertex and name, where all tasks of the vertex have one."""
    by_vertex: dict[VertexId, list[Mapping[str, int]]] = {}
    for task, watermarks in found.items():
        by_vertex.setdefault(task.vertex, []).append(watermarks)
    return {
        vertex: {name: min(one[name] for one in all_of_it) for name in set.intersection(*map(set, all_of_it))}
        for vertex, all_of_it in by_vertex.items()
    }


def _splits(entry: CheckpointCompleted) -> Iterator[tuple[tuple[VertexId, str, str], int | None]]:
    """Yield the watermark of each split, by vertex, operator and split."""
    for one in entry.snapshots:
        assigned: Any = one.snapshot.assigned or {}
        for uid, (_, sides, *_) in assigned.items():
            # What is no source has one side without a name, which belongs to a task.
            yield from (((one.task.vertex, uid, split), known) for split, known in sides.items() if split)


def _watermarks(snapshot: Snapshot) -> dict[str, int]:
    """Return the combined watermark of the inputs under "", and those made in the task by operator."""
    assigned: Any = snapshot.assigned or {}
    found = {"": snapshot.watermark} | {f" ({uid})": saved[0] for uid, saved in assigned.items()}
    return {name: watermark for name, watermark in found.items() if watermark is not None}
