"""When the next checkpoint starts: due, on request, at the end of the input, for a stop, after a failure."""

from __future__ import annotations

from crosscut.foundation.ids import CheckpointId, VertexId
from crosscut.protocol.checkpoint.checkpoints import Checkpoints, Failed
from crosscut.protocol.checkpoint.pending import Completion
from crosscut.protocol.effects import JobEffect, StartTimer
from crosscut.protocol.events import ClockRead, Timer
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.job.phases import CHECKPOINTED, Phase
from crosscut.protocol.job.spec import CheckpointSpec

FIRST_LOOK_MS = 10
"""Before the second look at a job whose sources are drained; each pause is twice the one before."""

RETRY_SHARE = 4
"""A job that is to end tries again within this share of `timeout_ms`, however long the interval is."""


class Looks:
    """When to look again at a job whose sources are drained: a look costs a checkpoint.

    Nobody is told when the last record has been processed. So the pauses grow with the time
    waited, and a job that takes long is not bothered by checkpoints on end.

    Args:
        interval_ms: Between periodic checkpoints: the longest pause.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._pause_ms = 0
        self._closing = frozenset[VertexId]()

    def restart(self) -> None:
        """Nothing has been seen yet in this epoch."""
        self._pause_ms = 0
        self._closing = frozenset()

    def after(self, closing: tuple[VertexId, ...]) -> int:
        """Return how long to wait after a cut that is not final.

        Args:
            closing: The heads whose back edges end now; with a new one, it is worth looking soon.
        """
        if not self._closing.issuperset(closing):
            self._closing |= frozenset(closing)
            self._pause_ms = 0
        self._pause_ms = min(self._interval_ms, self._pause_ms * 2 or FIRST_LOOK_MS)
        return self._pause_ms


class Triggering:
    """Decides for one job when a checkpoint starts; `checkpoints` knows whether there is room for it.

    While too many are uncommitted none starts, but for the last one of a stop. If the next one has waited for
    long, to start or for a sink that commits an older one, sources wait as well: what they read would all go
    into the one after it.
    """

    def __init__(self, terms: CheckpointSpec, checkpoints: Checkpoints, commits: Commits) -> None:
        self._terms = terms
        self._checkpoints = checkpoints
        self._commits = commits
        # One should have started, and waits for commits; sources wait for it.
        self._is_held_back = self._are_sources_paused = False
        # When the newest one started, or records began to flow.
        self._started_ms = 0
        self._looks = Looks(terms.interval_ms)
        # The last one of a stop: only one that began after the stop was asked for.
        self._last: CheckpointId | None = None

    def begin(self) -> None:
        """An epoch begins."""
        self._looks.restart()
        self._is_held_back = self._are_sources_paused = False

    def started(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        """Records flow: the first periodic one is due after the interval, unless one is wanted at once."""
        self._started_ms = now.now_ms
        effects: list[JobEffect] = [self._after(self._terms.interval_ms)] if self._terms.periodic else []
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
        if phase is Phase.RUNNING and self._commits.is_full:
            self._is_held_back = True
            return []
        before = self._checkpoints.newest
        effects = self._checkpoints.trigger(now)
        if self._checkpoints.newest > before:
            self._is_held_back = False
            self._started_ms = now.now_ms
        if phase is Phase.STOPPING and self._checkpoints.newest > before:
            self._last = self._checkpoints.newest
        return effects

    def due(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        """The timer says that one is due; in the pause after another, at its end."""
        again: list[JobEffect] = [self._after(self._terms.interval_ms)] if self._terms.periodic else []
        if phase is Phase.RUNNING and self._checkpoints.waits_for_pause():
            return again
        before = self._checkpoints.newest
        triggered = self.trigger(phase, now)
        # A sink makes one call at a time: it prepares a checkpoint when it has committed the one before. So
        # with a slow one, the newest is under way for as long as the commit takes.
        is_waiting = self._commits.waiting_count > 0 and self._checkpoints.newest == before
        waits_ms = now.now_ms - self._started_ms
        if phase is not Phase.RUNNING or not is_waiting or waits_ms < self._terms.held_back_ms:
            return [*again, *triggered]
        self._commits.note_delay()
        if self._are_sources_paused:
            return [*again, *triggered]
        self._are_sources_paused = True
        return [*again, *self._checkpoints.pause_sources(is_paused=True)]

    def committed(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        """A sink has committed something: one that has waited for that starts, and sources read on."""
        if phase is not Phase.RUNNING or self._commits.is_full:
            return []
        # First the barrier: what is read from here on belongs to the next one.
        effects = self.trigger(phase, now) if self._is_held_back else []
        if self._are_sources_paused and not self._commits.is_behind:
            self._are_sources_paused = False
            effects += self._checkpoints.pause_sources(is_paused=False)
        return effects

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
        retry_ms = min(self._terms.interval_ms, self._terms.timeout_ms // RETRY_SHARE)
        retry = [self._after(retry_ms)] if is_ending else self.trigger(phase, now)
        return [*retry, *self._wanted(phase, now)]

    def _wanted(self, phase: Phase, now: ClockRead) -> list[JobEffect]:
        return self.trigger(phase, now) if self._checkpoints.is_wanted else []

    def _after(self, delay_ms: int) -> StartTimer:
        return StartTimer(Timer("trigger", self._checkpoints.epoch), delay_ms)
