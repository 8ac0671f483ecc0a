"""What is logged in a worker: by whom, on its standard error, and kept until a heartbeat takes it along.

User code logs with `logging`, as anywhere. Which task speaks is in a context variable: coroutines and threads
that a task starts have it too.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, WorkerIndex
from crosscut.foundation.logs import LogFormat, LogLevel, error_text, log_formatter
from crosscut.protocol.telemetry import LogLine

TEXT_CHARS_MAX = 2_000
"""Of a line that is sent to the driver; of a traceback the end is kept."""
LINES_MAX = 100
"""That may be sent at once ..."""
LINES_PER_S = 10
"""... and for how many more a second. User code may log each record: the driver must not feel it."""


class Progress(Protocol):
    """How far a task's checkpoints are."""

    @property
    def newest_captured(self) -> CheckpointId: ...


@dataclass(frozen=True, slots=True)
class Speaking:
    """A task that is at work, in an epoch."""

    epoch: Epoch
    task: TaskId
    at: Progress | None = None


SPEAKING: ContextVar[Speaking | None] = ContextVar("speaking", default=None)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings that concern what workers log."""

    job: str
    level: LogLevel = "WARNING"
    format: LogFormat = "text"


class Lines(logging.Handler):
    """Keeps what is logged until `take`; a flood is cut, and that is said.

    Args:
        now_ns: A clock that never goes back.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        super().__init__()
        self._now_ns = now_ns
        self._kept: deque[LogLine] = deque()
        self._left_out = 0
        self._room = float(LINES_MAX)
        self._looked_ns = now_ns()
        self._news: Callable[[], object] | None = None

    def follow(self, news: Callable[[], object] | None) -> None:
        """Have `news` called, in any thread, when there is something to take where there was nothing."""
        self._news = news

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, if there is room. Called with the handler's lock held."""
        if not self._has_room():
            self._left_out += 1
            return
        try:
            line = _line(record)
        except Exception:  # noqa: BLE001 - arguments that don't fit, as any handler takes them
            self.handleError(record)
            return
        is_first = not self._kept
        if self._left_out:
            text = f"{self._left_out} lines were left out here: they are on standard error"
            self._kept.append(LogLine(line.at_ms, logging.WARNING, "crosscut", text))
            self._left_out = 0
        self._kept.append(line)
        if is_first and self._news is not None:
            # If the event loop has ended meanwhile, there is nowhere to send it.
            with suppress(RuntimeError):
                self._news()

    def _has_room(self) -> bool:
        now_ns = self._now_ns()
        self._room = min(LINES_MAX, self._room + (now_ns - self._looked_ns) / 1e9 * LINES_PER_S)
        self._looked_ns = now_ns
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def take(self) -> tuple[LogLine, ...]:
        """Return what has been logged since the last call."""
        self.acquire()
        try:
            kept = tuple(self._kept)
            self._kept.clear()
        finally:
            self.release()
        return kept


def _line(record: logging.LogRecord) -> LogLine:
    text = record.getMessage()[:TEXT_CHARS_MAX]
    if error := error_text(record):
        text = f"{text}\n{error[-TEXT_CHARS_MAX:]}"
    speaking = SPEAKING.get()
    return LogLine(
        at_ms=int(record.created * 1_000),
        level=record.levelno,
        logger=record.name[:200],
        # Lone surrogates would stop a writer of it to a file.
        text=text.encode("utf-8", "backslashreplace").decode(),
        task=speaking.task if speaking is not None else None,
        epoch=speaking.epoch if speaking is not None else Epoch(0),
        checkpoint_id=_checkpoint(speaking),
    )


def _checkpoint(speaking: Speaking | None) -> CheckpointId:
    return (
        speaking.at.newest_captured if speaking is not None and speaking.at is not None else CheckpointId(0)
    )


class _Shown(logging.Handler):
    """Writes to standard error, whatever that is at the moment: user code may put something in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - nobody reads it, or arguments that don't fit
            self.handleError(record)


class _About(logging.Filter):
    """Says in each record what it is about. At the handlers: what user code has said itself stays."""

    def __init__(self, job: str, worker: WorkerIndex) -> None:
        super().__init__()
        self._job = job
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        found: dict[str, object] = {"job": self._job, "worker": int(self._worker)}
        if (speaking := SPEAKING.get()) is not None:
            found |= {
                "vertex": str(speaking.task.vertex),
                "task": str(speaking.task),
                "epoch": int(speaking.epoch),
                "checkpoint": int(_checkpoint(speaking)),
            }
        for name, value in found.items():
            record.__dict__.setdefault(name, value)
        return True


@contextmanager
def logging_of(worker: WorkerIndex, terms: LogSettings, now_ns: Callable[[], int]) -> Iterator[Lines]:
    """Take what this process logs, as long as it is a worker: Spark uses it again."""
    root, lines = logging.getLogger(), Lines(now_ns)
    shown = _Shown()
    shown.setFormatter(log_formatter(terms.format))
    before = root.level
    about = _About(terms.job, worker)
    for handler in (shown, lines):
        handler.addFilter(about)
        handler.setLevel(terms.level)
        root.addHandler(handler)
    root.setLevel(terms.level)
    try:
        yield lines
    finally:
        lines.follow(None)
        root.setLevel(before)
        for handler in (shown, lines):
            root.removeHandler(handler)
