"""Follows a job to its end, and does what Ctrl-C asks for."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from crosscut.cli.view import JobView
from crosscut.monitoring.status import JobStatus

if TYPE_CHECKING:
    from crosscut.spark.cluster.job import Job

_POLL_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts Ctrl-C (and SIGTERM) instead of raising KeyboardInterrupt in the middle of something.

    A context manager, for the main thread.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: list[Any] = []

    def __enter__(self) -> Interrupts:
        self._previous = [signal.signal(number, self._note) for number in _SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in zip(_SIGNALS, self._previous, strict=True):
            signal.signal(number, previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Supervisors send SIGTERM to a whole group, and again: only Ctrl-C ends at once when it is repeated.
        if number != signal.SIGTERM or self.count == 0:
            self.count += 1


def follow(
    job: Job,
    view: JobView,
    *,
    interrupted: Callable[[int], None],
    watch: Callable[[JobStatus], None] = lambda status: None,
) -> int:
    """Show `job` until it has ended.

    Args:
        interrupted: Called after each Ctrl-C, with how many there were; must see to it that the job
            ends. The job is followed meanwhile.
        watch: Called with every status, about 20 times a second while the job runs.

    Returns:
        How often Ctrl-C was pressed.

    Raises:
        JobFailedError: The job has failed, for whatever reason.
    """
    with Interrupts() as interrupts:
        handled = 0
        has_ended = False
        while not has_ended:
            has_ended = job.wait(_POLL_S)
            status = job.report()
            view.show(status, job.metrics)
            if has_ended:
                break
            watch(status)
            if interrupts.count > handled:
                handled = interrupts.count
                interrupted(handled)
        return handled
