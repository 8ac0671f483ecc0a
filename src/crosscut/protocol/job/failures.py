"""The failures of a job: how many within the window, how many in a row, and what follows from them."""

from __future__ import annotations

from crosscut.protocol.effects import StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.job import recovery
from crosscut.protocol.messages import FailureCause


class Failures:
    """What `crosscut.protocol.job.recovery.restart` has to know, epoch after epoch."""

    def __init__(self, policy: recovery.RestartPolicy) -> None:
        self._policy = policy
        self.failures: tuple[FailureCause, ...] = ()
        """Those within the window, the newest last."""
        self._failures_seen = 0
        self._failures_in_a_row = 0

    def note(self, cause: FailureCause) -> tuple[StartTimer, recovery.RestartAfter | recovery.GiveUp]:
        """Note a failure; return the timer that has it forgotten, and whether to restart."""
        self.failures = (*self.failures, cause)
        self._failures_seen += 1
        self._failures_in_a_row += 1
        forget = StartTimer(Timer("forget-failure", number=self._failures_seen), self._policy.window_ms)
        return forget, recovery.restart(self.failures, self._failures_in_a_row, self._policy)

    def forget_oldest(self) -> None:
        """Note that the oldest failure has left the window."""
        self.failures = self.failures[1:]

    def note_progress(self) -> None:
        """Note that a checkpoint was completed."""
        self._failures_in_a_row = 0
