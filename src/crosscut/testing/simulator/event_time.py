"""What watermarks promise, judged by what is in the checkpoints and by what passes between workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import Epoch, TaskId
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
    """Watermarks never go back from one completed checkpoint to the next, whatever went wrong in between."""

    def __init__(self) -> None:
        self.restored_count = 0
        """How often tasks have gone on from a watermark in another epoch."""
        self._known: dict[TaskId, dict[str, int]] = {}
        self._epoch = Epoch(0)

    def completed(self, entry: CheckpointCompleted) -> None:
        """Judge the snapshots of a checkpoint."""
        found = {one.task: _watermarks(one.snapshot) for one in entry.snapshots}
        if found.keys() == self._known.keys():
            for task, watermarks in found.items():
                for name, before in self._known[task].items():
                    now = watermarks.get(name)
                    ensure(
                        now is not None and now >= before,
                        f"I14: checkpoint {entry.checkpoint_id} has the watermark {now} of {task}{name}; it "
                        f"was {before}",
                    )
        self.restored_count += entry.epoch > self._epoch and any(self._known.values())
        self._epoch, self._known = entry.epoch, found


def _watermarks(snapshot: Snapshot) -> dict[str, int]:
    """Return the combined watermark of the inputs under "", and those made in the task by operator."""
    assigned: Any = snapshot.assigned or {}
    found = {"": snapshot.watermark} | {f" ({uid})": saved[0] for uid, saved in assigned.items()}
    return {name: watermark for name, watermark in found.items() if watermark is not None}
