"""What a driver promises to whoever starts, stops and asks a job, judged by what it hears and asks for.

Output may be exact and the job still misbehave: it fails over for nothing, it stops without a last
checkpoint and says nothing, it fails a request that it could answer, it takes checkpoints that nobody
wants. None of that shows in the store or at the sink.
"""

from __future__ import annotations

from collections.abc import Iterable

from crosscut.foundation.ids import CheckpointId, TaskId
from crosscut.protocol.effects import AnswerRequest, EndJob, JobEffect, SendMessage
from crosscut.protocol.events import (
    CheckpointRequested,
    JobEvent,
    LinkId,
    MessageReceived,
    StopRequested,
    TimerFired,
)
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.job.phases import Phase
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.messages import (
    CommitCheckpoint,
    HaltTasks,
    SourceDrained,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerMessage,
)
from crosscut.testing.simulator.violation import ensure, violate

STOPS_WAIT_SHARE = 4
"""A stop tries again within this share of the time that it has."""


class Promises:
    """Those of one driver.

    Args:
        coordinator: To be looked at.
    """

    def __init__(self, terms: CoordinatorSpec, coordinator: Coordinator) -> None:
        self._terms = terms
        self._coordinator = coordinator
        self._phase = coordinator.phase
        self._failed_count = 0
        self._drained: set[tuple[int, TaskId]] = set()
        self._committed: dict[tuple[int, TaskId], CheckpointId] = {}
        self._completed: set[tuple[int, CheckpointId]] = set()
        self._asked: set[int] = set()
        self._triggered = CheckpointId(0)
        # The last checkpoint of a stop is this one or a later one.
        self._last_from: CheckpointId | None = None

    def note(self, event: JobEvent, effects: Iterable[JobEffect]) -> None:
        """Judge what the coordinator asks for because of `event`, which it has handled."""
        before, self._phase = self._phase, self._coordinator.phase
        match event:
            case MessageReceived(link, message):
                self._note_message(link, message)
            case StopRequested() if before is Phase.RUNNING:
                # Between two batches nothing is read, so the newest one is the last.
                is_batch = self._terms.checkpoints.are_batches and self._triggered
                self._last_from = CheckpointId(self._triggered + (not is_batch))
            case CheckpointRequested(request) if before is not Phase.ENDED:
                self._asked.add(request)
            case _:
                pass
        for effect in effects:
            match effect:
                case SendMessage(_, HaltTasks()) if _is_finish_timer(event):
                    ensure(not self._is_all_done, "F5: a job that has done everything fails over")
                case SendMessage(_, TriggerCheckpoint(_, n)):
                    self._triggered = max(self._triggered, n)
                    self._check_trigger(n)
                case SendMessage(_, CommitCheckpoint(epoch, n)):
                    self._completed.add((epoch, n))
                case AnswerRequest(request, completed, reason):
                    is_answered = completed is not None or before is Phase.ENDED or not self._is_final
                    ensure(is_answered, f"F5: a request fails that the final checkpoint answers: {reason}")
                    self._asked.discard(request)
                case EndJob("stopped", None) if self._terms.identity.unit_log:
                    # The logs have all, so there is no last checkpoint: `Checkers.check_committed`.
                    pass
                case EndJob("stopped", None) if self._last_from is not None:
                    ensure(self._has_last, "F7: stopped without a last checkpoint, and nothing is said")
                case _:
                    pass
        if self._phase is Phase.ENDED and self._asked:
            violate(f"F5: the job has ended, and requests {sorted(self._asked)} are never answered")
        failed_before, self._failed_count = (
            self._failed_count,
            self._coordinator.checkpoints.failed.failed_count,
        )
        if before is Phase.FINISHING:
            is_same = self._failed_count <= failed_before
            ensure(is_same, "D4: what nobody needs any more is a failure")

    def _note_message(self, link: LinkId, message: WorkerMessage) -> None:
        match message:
            case SourceDrained(epoch, task) if self._is_received(link):
                self._drained.add((epoch, task))
            case TransactionsCommitted(epoch, n, task) if self._is_received(link):
                self._committed[epoch, task] = max(n, self._committed.get((epoch, task), CheckpointId(0)))
            case _:
                pass

    def check_wait(self, retry_ms: int | None) -> None:
        """Judge how long a stop waits until it takes its last checkpoint, if it waits.

        Args:
            retry_ms: Until a checkpoint is triggered, as far as timers say.
        """
        if self._phase is not Phase.STOPPING or self._coordinator.checkpoints.under_way or self._has_last:
            return
        if self._terms.identity.unit_log:
            return
        timeout_ms = self._terms.checkpoints.timeout_ms
        is_soon = retry_ms is not None and retry_ms <= timeout_ms // STOPS_WAIT_SHARE
        ensure(is_soon, f"F7: a stop that may take {timeout_ms} ms waits {retry_ms} ms for its checkpoint")

    def _check_trigger(self, n: CheckpointId) -> None:
        epoch = self._coordinator.epoch
        is_drained = all((epoch, task) in self._drained for task in self._terms.sources)
        is_wanted = self._terms.checkpoints.periodic or self._phase is Phase.STOPPING or self._asked
        ensure(bool(is_wanted) or is_drained, f"checkpoint {n} is triggered, and nobody wants one")
        if self._phase is Phase.RUNNING:
            self._check_uncommitted(n)

    def _check_uncommitted(self, n: CheckpointId) -> None:
        epoch, most = self._coordinator.epoch, self._terms.checkpoints.uncommitted_max
        done = min((self._committed.get((epoch, task), 0) for task in self._terms.sinks), default=n)
        waiting = sorted(m for of, m in self._completed if of == epoch and m > done)
        ensure(len(waiting) < most, f"P4: checkpoint {n} is triggered, and {waiting} are not committed")

    def _is_received(self, link: int) -> bool:
        return self._coordinator.registry.index_of(link) is not None

    @property
    def _is_final(self) -> bool:
        completed = self._coordinator.completed
        return completed is not None and completed.is_final

    @property
    def _has_last(self) -> bool:
        completed, last_from = self._coordinator.completed, self._last_from
        return completed is not None and last_from is not None and completed.checkpoint_id >= last_from

    @property
    def _is_all_done(self) -> bool:
        completed = self._coordinator.completed
        epoch, n = self._coordinator.epoch, completed.checkpoint_id if completed else 0
        return all(self._committed.get((epoch, task), 0) >= n for task in self._terms.sinks)


def _is_finish_timer(event: JobEvent) -> bool:
    return isinstance(event, TimerFired) and event.timer.kind == "finish"
