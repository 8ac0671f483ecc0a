"""A running job in the terminal: a live display, or occasional lines where that makes no sense."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from crosscut.cli.numbers import vertex_line, vertex_table
from crosscut.foundation.text import escaped
from crosscut.monitoring.metrics import JobMetrics
from crosscut.monitoring.status import JobStatus
from crosscut.protocol.job.phases import Phase

_LINE_EVERY_S = 1.0
_ENDED = Phase.ENDED.name.lower()
_WIDTH_OF_A_FILE = 200
_BAR_WIDTH = 40


class _SafeConsole(Console):
    """Writes control characters in texts out: no name or record of others is an order to a terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for one in super().render(renderable, options):
            if one.control is None and not one.text.isprintable() and (text := escaped(one.text)) != one.text:
                yield Segment(text, one.style)
            else:
                yield one


def make_console() -> Console:
    """Return a console; into a file or pipe it writes lines that are not cut at 80 columns."""
    console = _SafeConsole(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_A_FILE
    return console


class JobView(ABC):
    """Shows a job. A context manager; `show` is called with every status, some times a second.

    Meanwhile the warnings of the journal stand in the view, and not beside it.

    Args:
        total: Records there are to read, if that is known.
        clock_s: Says how long ago something was.
    """

    def __init__(
        self, console: Console, total: int | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._total = total
        self._clock_s = clock_s
        self._words = _Words(self)
        self._started_s = clock_s()
        self._vertices: list[dict[str, Any]] = []
        self._look_due_s = 0.0

    def show(self, status: JobStatus, look: Callable[[], JobMetrics] | None = None) -> None:
        """Show what the job looks like now.

        Args:
            look: Returns its numbers; asked about once a second.
        """
        if look is not None and self._clock_s() >= self._look_due_s:
            self._look_due_s = self._clock_s() + _LINE_EVERY_S
            self._vertices = [asdict(one) for one in look().vertices]
        self._show(status)

    @abstractmethod
    def _show(self, status: JobStatus) -> None:
        """Show what the job looks like now."""

    def note(self, text: str, style: str = "bold") -> None:
        """Print a line that stays."""
        self._console.print(Text(f"{self._elapsed():6.1f} s  {text}", style=style))

    def __enter__(self) -> Self:
        logging.getLogger("crosscut").addHandler(self._words)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("crosscut").removeHandler(self._words)

    def _elapsed(self) -> float:
        return self._clock_s() - self._started_s

    def _share(self, status: JobStatus) -> float | None:
        return min(1.0, status.records_read / self._total) if self._total else None


class _Words(logging.Handler):
    """Shows warnings. How the job ended, and errors, the command says itself."""

    def __init__(self, view: JobView) -> None:
        super().__init__(logging.WARNING)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        # What a worker has written to the same terminal stands there already.
        if record.levelno < logging.ERROR and not getattr(record, "is_on_standard_error", False):
            self._view.note(record.getMessage(), style="red")


def _pids(status: JobStatus) -> list[int]:
    """Return the processes: one may stand for several workers, as the driver does for a batch."""
    return list(dict.fromkeys(one.pid for one in status.workers))


def job_view(console: Console, *, plain: bool, total: int | None = None) -> JobView:
    """Return the view that suits the console: a live one needs a terminal."""
    return LineView(console, total) if plain or not console.is_terminal else LiveView(console, total)


class LineView(JobView):
    """A line a second, and one whenever the phase or the epoch changes."""

    def __init__(
        self, console: Console, total: int | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, total, clock_s)
        self._last = ("", 0)
        self._due_s = 0.0

    def _show(self, status: JobStatus) -> None:
        now = (status.phase, status.epoch)
        # Of a job that has ended there is no news, though Spark takes its time to stop.
        if now == self._last and (status.phase == _ENDED or self._clock_s() < self._due_s):
            return
        self._last, self._due_s = now, self._clock_s() + _LINE_EVERY_S
        share = self._share(status)
        workers = " ".join(map(str, _pids(status)))
        fields = (
            f"{status.phase:<9}",
            f"epoch {status.epoch}",
            f"records {status.records_read:,}" + (f" ({share:.0%})" if share is not None else ""),
            f"{status.records_per_second:,.0f} records/s",
            vertex_line(self._vertices),
            f"checkpoints {status.checkpoints_completed}",
            f"workers {workers or 'none'}",
        )
        self.note("  ".join(filter(None, fields)), style="")


class LiveView(JobView):
    """A display that changes in place, below the lines that stay."""

    def __init__(self, console: Console, total: int | None = None) -> None:
        super().__init__(console, total)
        self._live = Live(console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._live.stop()

    def _show(self, status: JobStatus) -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column()
        grid.add_row("phase", f"{status.phase}, epoch {status.epoch}, {self._elapsed():.1f} s")
        grid.add_row("records", f"{status.records_read:,}, {status.records_per_second:,.0f} records/s")
        grid.add_row("checkpoints", _checkpoints(status))
        grid.add_row("workers", ", ".join(f"pid {pid}" for pid in _pids(status)) or "none yet")
        parts: list[Text | ProgressBar | Table] = [Text(status.name, style="bold"), grid]
        share = self._share(status)
        if share is not None:
            parts.insert(1, ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH))
        if self._vertices:
            parts.append(vertex_table(self._vertices))
        self._live.update(Group(*parts))


def _checkpoints(status: JobStatus) -> str:
    text = f"{status.checkpoints_completed} completed, {status.checkpoints_failed} failed"
    if not status.checkpoints:
        return text
    newest = status.checkpoints[-1]
    freeze_ms = status.longest_freeze_us / 1_000
    return (
        f"{text}; the last: {decimal(newest.state_bytes)} in {newest.duration_ms} ms; "
        f"no task stood still for longer than {freeze_ms:.1f} ms"
    )
