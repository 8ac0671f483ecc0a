"""The demo: count the words of a real text, kill workers meanwhile, and prove the result exact."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from crosscut.cli.demo.corpus import write_corpus
from crosscut.cli.demo.verdict import (
    Difference,
    committed_updates,
    differences,
    line_count,
    word_counts,
)
from crosscut.cli.follow import follow
from crosscut.cli.view import JobView, job_view
from crosscut.connectors.files.jsonl import write_jsonl
from crosscut.connectors.files.lines import read_text
from crosscut.contracts.connectors import Source
from crosscut.contracts.settings import Settings
from crosscut.errors import SettingsError
from crosscut.flow.flow import Flow
from crosscut.monitoring.status import JobStatus, Recovery

_LOCAL_HOST = "127.0.0.1"
_KILLS_WITHIN = 0.8
"""The share of the input within which all kills happen, evenly spread: a single one at 40 %."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for.

    Attributes:
        pattern: Files to count the words of; None: the sources of the standard library.
        kills: Workers to kill, one after the other.
        directory: Where to work, new or empty, and kept; None: a temporary one, removed in the end.
        plain: No live display.
    """

    pattern: str | None = None
    parallelism: int = 2
    checkpoint_interval: str | float = "200ms"
    kills: int = 1
    directory: str | None = None
    plain: bool = False


@dataclass(slots=True)
class Kill:
    """One worker killed with SIGKILL; times of the monotonic clock."""

    pid: int
    epoch: int
    killed_ns: int
    recovery: Recovery | None = None

    @property
    def flowing_s(self) -> float | None:
        """Seconds from the kill until records flowed again; None if that was not seen."""
        return None if self.recovery is None else (self.recovery.flowing_ns - self.killed_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured, and whether the output is exact.

    Attributes:
        started_s: From the call of `Flow.start` to the first records: Java, Spark, workers.
        running_s: From the first records until everything was committed, failures included.
        committed: Updates in the committed output.
        plain_s: How long the same count took in one plain Python process.
    """

    request: Request
    status: JobStatus
    bytes: int
    lines: int
    words: int
    distinct_words: int
    started_s: float
    running_s: float
    kills: Sequence[Kill]
    committed: int
    differences: Sequence[Difference]
    plain_s: float
    kept: Path | None

    @property
    def is_exact(self) -> bool:
        """Whether the output is identical to the plain count, in spite of as many kills as asked for."""
        return not self.differences and len(self.kills) == self.request.kills


def run(request: Request, console: Console) -> Result | None:
    """Run the demo.

    Returns:
        None if it was interrupted (Ctrl-C).

    Raises:
        CrosscutError: It could not start, or the job failed.
    """
    with _workspace(request.directory) as space:
        pattern = request.pattern
        if pattern is None:
            console.print("Collecting the sources of Python's standard library ...", style="dim")
            pattern = write_corpus(space.path / "corpus")
        source = read_text(pattern, errors="replace")
        paths = _files_of(source)
        size_bytes, total = sum(map(os.path.getsize, paths)), line_count(paths)
        console.print(
            f"Counting the words of {size_bytes / 1e6:,.1f} MB of text ({total:,} lines) with "
            f"{request.parallelism} workers and a checkpoint every {request.checkpoint_interval}."
        )
        output = space.path / "out"
        flow = word_count(source, output)
        view = job_view(console, plain=request.plain, total=total)
        killer = _Killer(request.kills, total, view)
        with view:
            view.note("starting Spark", style="")
            asked_ns = time.monotonic_ns()
            job = flow.start(
                Settings(
                    parallelism=request.parallelism,
                    checkpoint_dir=str(space.path / "checkpoints"),
                    checkpoint_interval=request.checkpoint_interval,
                )
            )
            if follow(job, view, interrupted=lambda count: job.cancel(), watch=killer.watch):
                return None
            ended_ns = killer.ended_ns or time.monotonic_ns()
            status = job.report()
        console.print("Counting once more, in one plain Python process ...", style="dim")
        plain_ns = time.monotonic_ns()
        expected = word_counts(paths)
        plain_s = (time.monotonic_ns() - plain_ns) / 1e9
        updates = _Counted(committed_updates(output))
        wrong = differences(expected, updates)
        result = Result(
            request=request,
            status=status,
            bytes=size_bytes,
            lines=total,
            words=expected.total(),
            distinct_words=len(expected),
            started_s=(status.first_flow_ns - asked_ns) / 1e9,
            running_s=(ended_ns - status.first_flow_ns) / 1e9,
            kills=killer.with_recoveries(status.recoveries),
            committed=updates.count,
            differences=wrong,
            plain_s=plain_s,
            kept=space.path if wrong or request.directory else None,
        )
        space.is_kept = result.kept is not None
        return result


def word_count(source: Source, output: Path) -> Flow:
    """Return the flow: a running count of every word, each update written once."""
    flow = Flow("word-count-demo")
    (
        flow.source(source)
        .named("lines")
        .flat_map(str.split)
        .key_by(lambda word: word)
        .count()
        .named("counts")
        .sink(write_jsonl(output))
        .named("out")
    )
    return flow


class _Killer:
    """Kills workers, by the pid that the job gives, when their share of the input has been read.

    A kill waits until a checkpoint has been completed in the running epoch: before that, there is
    nothing to see.
    """

    def __init__(self, kills: int, total: int, view: JobView) -> None:
        self._due = [total * _KILLS_WITHIN * (index + 1) / (kills + 1) for index in range(kills)]
        self._total = total
        self._view = view
        self._kills: list[Kill] = []
        self._noted = 0
        self.ended_ns = 0

    def watch(self, status: JobStatus) -> None:
        """Look at the newest status; kill if it is time."""
        read = status.records_read
        if status.phase == "ended" and not self.ended_ns:
            self.ended_ns = time.monotonic_ns()
        for recovery in status.recoveries[self._noted :]:
            self._view.note(f"epoch {recovery.epoch}: records flow again", style="bold green")
            self._noted += 1
        index = len(self._kills)
        if index == len(self._due) or read < self._due[index] or status.phase != "running":
            return
        has_checkpoint = bool(status.checkpoints) and status.checkpoints[-1].epoch == status.epoch
        is_noticed = not self._kills or self._kills[-1].epoch < status.epoch
        if not has_checkpoint or not is_noticed:
            return
        victim = status.workers[index % len(status.workers)]
        if victim.host != _LOCAL_HOST:
            raise SettingsError(
                f"worker {victim.index} is on {victim.host}: the demo kills processes of this machine only; "
                f"run it without a cluster, or with --kills 0"
            )
        killed_ns = time.monotonic_ns()
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It died by itself; the next status shows its replacement.
            return
        self._kills.append(Kill(victim.pid, status.epoch, killed_ns))
        share = read / self._total
        self._view.note(
            f"killed worker {victim.index}, pid {victim.pid}, with SIGKILL at {share:.0%} of the input",
            "bold red",
        )

    def with_recoveries(self, recoveries: Sequence[Recovery]) -> list[Kill]:
        """Return the kills, each with the first recovery after it."""
        for kill in self._kills:
            kill.recovery = next((one for one in recoveries if one.noticed_ns >= kill.killed_ns), None)
        return self._kills


class _Counted:
    """Iterates once, and counts."""

    def __init__(self, updates: Iterator[tuple[str, int]]) -> None:
        self._updates = updates
        self.count = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for update in self._updates:
            self.count += 1
            yield update


def _files_of(source: Source) -> list[str]:
    """Return the files that the job is going to read, each once."""
    details: list[Any] = [split.detail for split in source.splits(1)]
    return sorted({detail["path"] for detail in details})


@dataclass(slots=True)
class _Workspace:
    path: Path
    is_kept: bool


@contextmanager
def _workspace(directory: str | None) -> Iterator[_Workspace]:
    if directory is None:
        space = _Workspace(Path(tempfile.mkdtemp(prefix="crosscut-demo-")), is_kept=False)
    else:
        path = Path(directory).resolve()
        try:
            path.mkdir(parents=True, exist_ok=True)
            is_empty = not any(path.iterdir())
        except OSError as error:
            raise SettingsError(f"can't work in {path}: {error.strerror}") from error
        if not is_empty:
            raise SettingsError(f"{path} is not empty: expected a new or an empty directory")
        space = _Workspace(path, is_kept=True)
    try:
        yield space
    finally:
        if not space.is_kept:
            shutil.rmtree(space.path, ignore_errors=True)
