"""What workers have logged, on the driver."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, WorkerIndex
from crosscut.protocol.telemetry import LogLine

LOGGER = logging.getLogger("crosscut.worker")

KEPT_MAX = 200


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A line that a worker has logged.

    Attributes:
        at_ms: Milliseconds since 1970, by the worker's clock.
        level: "WARNING", ...
        logger: Its name.
        text: Shortened; with the end of a traceback.
        task: That was at work, None: none was.
        epoch: Of that task; 0 without one.
        checkpoint_id: The newest that has the state of that task, in this epoch; 0: none yet.
    """

    at_ms: int
    worker: WorkerIndex
    level: str
    logger: str
    text: str
    task: TaskId | None
    epoch: Epoch
    checkpoint_id: CheckpointId


class WorkerLines:
    """Those of one job: keeps the newest, and says them again with the `logging` of this program.

    Args:
        are_seen: The workers write to the standard error of this program: where it has set up no logging,
            they would stand there twice.
    """

    def __init__(self, job: str, *, are_seen: bool) -> None:
        self._job = job
        self._are_seen = are_seen
        self.kept: deque[WorkerLine] = deque(maxlen=KEPT_MAX)

    def note(self, worker: WorkerIndex, lines: Iterable[LogLine]) -> None:
        """A worker has logged `lines`."""
        for one in lines:
            self.kept.append(
                WorkerLine(
                    one.at_ms,
                    worker,
                    logging.getLevelName(one.level),
                    one.logger,
                    one.text,
                    one.task,
                    one.epoch,
                    one.checkpoint_id,
                )
            )
            if LOGGER.hasHandlers() or not self._are_seen:
                self._log(worker, one)

    def _log(self, worker: WorkerIndex, line: LogLine) -> None:
        fields: dict[str, object] = {"job": self._job, "worker": int(worker)}
        if (task := line.task) is not None:
            fields |= {"vertex": str(task.vertex), "task": str(task), "epoch": int(line.epoch)}
            fields["checkpoint"] = int(line.checkpoint_id)
        who = f"worker {worker}" if line.task is None else str(line.task)
        extra = {**fields, "is_on_standard_error": self._are_seen}
        LOGGER.log(line.level, "job %r: %s: %s: %s", self._job, who, line.logger, line.text, extra=extra)
