"""When the next checkpoint starts: due, on request, at the end of the input, for a stop, after a failure."""

from __future__ import annotations

from crosscut.ids import CheckpointId, VertexId
from crosscut.protocol.effects import JobEffect, StartTimer
from crosscut.protocol.events import ClockRead, Timer
from crosscut.protocol.job.checkpoints import Checkpoints, Failed
from crosscut.protocol.job.collecting import Completion
from crosscut.protocol.job.ending import Looks
from crosscut.protocol.job.phases import CHECKPOINTED, Phase
from crosscut.protocol.job.rules import CheckpointRules

RETRY_SHARE = 4
"""A job that is to end tries again within this share of `timeout_ms`, however long the interval is."""


class Triggering:
    """Decides for one job when a checkpoint starts; `checkpoints` knows whether there is room for it."""

    def __init__(self, rules: CheckpointRules, checkpoints: Checkpoints) -> None:
        self._rules = rules
        self._checkpoints = checkpoints
        self._looks = Looks(rules.interval_ms)
        # The last one of a stop: only one that began after the stop was asked for.
        self._last: CheckpointId | None = None

    def begin(self) -> None:
        """An epoch begins."""
        self._looks.restart()

    def started(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        """Records flow: the first periodic one is due after the interval, unless one is wanted at once."""
        effects: list[JobEffect] = [self._after(self._rules.interval_ms)] if self._rules.periodic else []
        if self._checkpoints.is_drained or self._checkpoints.is_wanted:
            effects += self.trigger(phase, now)
        return effects

    def is_last(self, n: CheckpointId) -> bool:
        """Whether n is the last checkpoint of a stop."""
        return n == self._last

    def trigger(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        """Start one at once, if there is room for it; while stopping, only the last one."""
        if phase not in CHECKPOINTED or (phase is Phase.STOPPING and self._last is not None):
            return []
        before = self._checkpoints.newest
        effects = self._checkpoints.trigger(now)
        if phase is Phase.STOPPING and self._checkpoints.newest > before:
            self._last = self._checkpoints.newest
        return effects

    def due(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        """The timer says that one is due; in the pause after another, at its end."""
        again: list[JobEffect] = [self._after(self._rules.interval_ms)] if self._rules.periodic else []
        if phase is Phase.RUNNING and self._checkpoints.waits_for_pause():
            return again
        return [*again, *self.trigger(phase, now)]

    def pause_over(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        """The pause is over."""
        return self.trigger(phase, now) if self._checkpoints.pause_over() else []

    def after_completion(
        self, phase: Phase, now: ClockRead, shown: Completion, *, heads: tuple[VertexId, ...]
    ) -> list[JobEffect]:
        """One that is not final is complete.

        Args:
            heads: Of loops whose back edges end now.
        """
        effects: list[JobEffect] = []
        if phase is Phase.STOPPING:
            return self.trigger(phase, now)
        if phase is not Phase.RUNNING:
            return effects
        if self._checkpoints.is_drained and shown.is_after_drain:
            effects.append(self._after(self._looks.after(heads)))
        elif self._checkpoints.is_drained:
            # It was due when the last source was drained, and found no room.
            effects += self.trigger(phase, now)
        return [*effects, *self._wanted(phase, now)]

    def after_failure(self, phase: Phase, now: ClockRead, failed: Failed) -> list[JobEffect]:
        """One has failed."""
        is_ending = failed.is_after_drain
        if phase is Phase.STOPPING:
            is_ending = self.is_last(failed.checkpoint_id)
            self._last = None if is_ending else self._last
        elif phase is not Phase.RUNNING or not self._checkpoints.is_drained:
            return self._wanted(phase, now)
        # The job is to end with a checkpoint. An older one may have been in its place.
        retry_ms = min(self._rules.interval_ms, self._rules.timeout_ms // RETRY_SHARE)
        retry = [self._after(retry_ms)] if is_ending else self.trigger(phase, now)
        return [*retry, *self._wanted(phase, now)]

    def _wanted(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        return self.trigger(phase, now) if self._checkpoints.is_wanted else []

    def _after(self, delay_ms: int) -> StartTimer:
        return StartTimer(Timer("trigger", self._checkpoints.epoch), delay_ms)
