"""The conversation about checkpoints, epoch after epoch: when one starts, who hears of it, who waits for it.

`crosscut.protocol.checkpoint.pending` keeps the books of one epoch; this machine knows the timers, the words
to the workers, how many have failed in a row, and the users who asked for a checkpoint. What a completed one
means for the job is the coordinator's business.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.protocol.checkpoint import retention
from crosscut.protocol.checkpoint.global_committer import GlobalCommitter
from crosscut.protocol.checkpoint.pending import Completion, GivenUp, PendingCheckpoints
from crosscut.protocol.checkpoint.savepoints import Savepoints
from crosscut.protocol.effects import CancelTimer, JobEffect, StartTimer
from crosscut.protocol.events import ClockRead, Timer
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.log.entries import CHECKPOINT_IDS_LEAD_MAX, CheckpointCompleted
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CommitCheckpoint,
    FailureCause,
    PauseSources,
    ResumeSources,
    TriggerCheckpoint,
)
from crosscut.protocol.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class Failed:
    """A checkpoint has failed.

    Attributes:
        is_after_drain: It was triggered when every source was drained.
    """

    checkpoint_id: CheckpointId
    is_after_drain: bool
    effects: tuple[JobEffect, ...]


class Checkpoints:
    """Checkpoints of one job. `begin` opens an epoch, `end` closes it; in between there is `current`.

    Args:
        tasks: Every task of the job.
        sources: Those that must be drained before a final checkpoint is worth taking.
        registry: Whom to tell.
        savepoints: Knows who wants one.
        together: Knows what first tasks commit.
    """

    def __init__(
        self,
        terms: CheckpointSpec,
        tasks: frozenset[TaskId],
        sources: frozenset[TaskId],
        registry: WorkerRegistry,
        savepoints: Savepoints,
        together: GlobalCommitter,
    ) -> None:
        self._terms = terms
        self._tasks = tasks
        self._sources = sources
        self._registry = registry
        self._savepoints = savepoints
        self._together = together
        self.epoch = Epoch(0)
        self.current: PendingCheckpoints | None = None
        self.next_id = CheckpointId(1)
        self.failed_count = 0
        self._failures_in_a_row = 0
        self.last_failure = ""
        """Which one failed last, and why; "" if one was completed since."""
        self._is_pausing = False
        self._is_due = False
        self._is_final_complete = False
        # Requests that no checkpoint has been triggered for yet; the others, with theirs.
        self._waiting: list[int] = []
        self._requests: dict[int, CheckpointId] = {}
        # Parts of checkpoints that were given up, until somebody takes them.
        self._void: set[str] = set()
        self.dropped: Counter[str] = Counter()

    @property
    def under_way(self) -> CheckpointId | None:
        """The oldest checkpoint that has been triggered and is not decided."""
        return self.current.under_way if self.current else None

    @property
    def newest(self) -> CheckpointId:
        """The checkpoint triggered last."""
        return CheckpointId(self.next_id - 1)

    @property
    def is_drained(self) -> bool:
        """Whether every source has read all of its input in this epoch."""
        return self.current is not None and self.current.is_drained

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for a checkpoint to be triggered."""
        return bool(self._waiting)

    @property
    def failure(self) -> FailureCause | None:
        """Why the job has to fail: too many checkpoints have failed in a row."""
        in_a_row = self._failures_in_a_row
        # Each one uses an id up, as those under way do, and ids may not go further ahead of the log than
        # the lead.
        lead_max = CHECKPOINT_IDS_LEAD_MAX + 1 - self._terms.in_flight_max
        if in_a_row <= min(self._terms.failures_max, lead_max):
            return None
        message = f"{in_a_row} checkpoints in a row failed; {self.last_failure}"
        return FailureCause("CheckpointsFailed", message, is_transient=True)

    def begin(self, epoch: Epoch) -> None:
        """The tasks of `epoch` are being deployed."""
        self.epoch = epoch
        self._together.begin()
        self._is_pausing = self._is_due = self._is_final_complete = False
        self.current = PendingCheckpoints(
            epoch, self._tasks, self._sources, self.next_id, self._terms.in_flight_max
        )

    def end(self, reason: str) -> list[JobEffect]:
        """The epoch is over: checkpoints under way will not complete, except those in the log already."""
        self.current = None
        return self._answer(self._requests, None, reason)

    def dismiss(self, reason: str, final: CheckpointCompleted | None) -> list[JobEffect]:
        """The job is over: nobody needs to wait any more. `final` has all that anybody asked for."""
        return self._answer_all(final, reason)

    # When.

    def waits_for_pause(self) -> bool:
        """Whether the pause is not over; then it is noted that one is due."""
        self._is_due |= self._is_pausing
        return self._is_pausing

    def pause_over(self) -> bool:
        """Note the end of the pause; return whether a checkpoint has become due in it."""
        was_due, self._is_pausing, self._is_due = self._is_due, False, False
        return was_due

    def request(self, request: int) -> None:
        """Note that somebody wants the next checkpoint that is triggered."""
        self._waiting.append(request)

    def trigger(self, now: ClockRead) -> list[JobEffect]:
        """Start a checkpoint, unless enough are under way."""
        triggered = self.current.trigger(now.now_ms) if self.current else None
        if triggered is None or self.current is None:
            return []
        n = triggered.checkpoint_id
        self.next_id = self.current.next_id
        self._requests |= dict.fromkeys(self._waiting, n)
        self._waiting = []
        return [
            *self._registry.to_holders(TriggerCheckpoint(self.epoch, n)),
            StartTimer(Timer("checkpoint-timeout", self.epoch, n), self._terms.timeout_ms),
        ]

    def pause_sources(self, *, is_paused: bool) -> list[JobEffect]:
        """Have sources wait, or read on."""
        return self._registry.to_holders(PauseSources(self.epoch, is_paused))

    # It becomes whole, complete, or fails.

    def quiet(self, n: CheckpointId, task: TaskId) -> list[JobEffect]:
        """Note that `task` stands still for n; once all do, they capture."""
        if self.current is None or not self.current.quiet(n, task):
            return []
        return self._registry.to_holders(CaptureSnapshots(self.epoch, n))

    def acknowledge(
        self, n: CheckpointId, task: TaskId, snapshot: Snapshot, now: ClockRead
    ) -> CheckpointCompleted | None:
        """Note the snapshot of `task`; return the entry to append if that makes n whole."""
        if self.current is None:
            self.dropped["late acknowledgement"] += 1
            return None
        if not self.current.is_under_way(n):
            # Given up before this came: the parts that were written for it alone are of no use.
            self._void.update(retention.written_for(n, snapshot))
        whole = self.current.acknowledge(n, task, snapshot, now.now_ms, now.wall_clock)
        return whole.entry if whole else None

    def completed(self, entry: CheckpointCompleted) -> tuple[list[JobEffect], Completion | None]:
        """The log entry is durable; None if its epoch is over: the next one restores it."""
        n = entry.checkpoint_id
        self._failures_in_a_row, self.last_failure = 0, ""
        if self.current is None or not self.current.is_under_way(n):
            return [], None
        shown = self.current.completed(n)
        effects: list[JobEffect] = [
            CancelTimer(Timer("checkpoint-timeout", self.epoch, n)),
            *self._commit(entry),
        ]
        if shown.is_halted:
            effects += self._registry.to_holders(ResumeSources(self.epoch, n))
        for one in shown.subsumed:
            effects += self._abort(one)
        effects += self._answer([one for one, m in self._requests.items() if m <= n], entry)
        return [*effects, *self._pause()], shown

    def _commit(self, entry: CheckpointCompleted) -> list[JobEffect]:
        together = self._together.completed(entry)
        all_of_it = CommitCheckpoint(self.epoch, entry.checkpoint_id, together)
        nothing = tuple(replace(one, pending=()) for one in together)
        return self._registry.to_first_holder(all_of_it, replace(all_of_it, together=nothing))

    def refused(
        self, n: CheckpointId, reason: str, now: ClockRead
    ) -> tuple[Failed | None, CheckpointCompleted | None]:
        """The log entry of n is certainly not written; return what may be appended instead, if anything."""
        if self.current is None or not self.current.is_under_way(n):
            return None, None
        failed = self._failed(self.current.append_refused(n), reason)
        whole = self.current.next_whole(now.now_ms, now.wall_clock)
        return failed, whole.entry if whole else None

    def give_up(self, n: CheckpointId, reason: str) -> Failed | None:
        """Abort n, and only n, as a failure; None if its entry is being appended, or it is not under way."""
        given_up = self.current.give_up(n) if self.current else None
        return self._failed(given_up, reason) if given_up else None

    def timed_out(self, n: CheckpointId) -> Failed | None:
        """Abort n, which has taken too long."""
        return self.give_up(n, f"not whole after {self._terms.timeout_ms / 1000:g} s{self._missing(n)}")

    @property
    def overdue(self) -> str:
        """Why the awaited checkpoint is not complete, for people; "" if there is nothing to say."""
        n = self.under_way
        if n is None:
            return self.last_failure
        waiting = self._missing(n) or "; the job log has not said whether it holds its entry"
        return f"checkpoint {n} is not complete after {self._terms.timeout_ms / 1000:g} s{waiting}"

    def _missing(self, n: CheckpointId) -> str:
        missing = sorted(self.current.missing(n)) if self.current else []
        return "; no acknowledgement from " + ", ".join(map(str, missing[:5])) if missing else ""

    def finish(self, final: CheckpointCompleted) -> list[JobEffect]:
        """The final checkpoint is complete: it has all that anybody asked for, and no other is of use.

        One whose entry is being appended is left to the log; that it fails means nothing any more.
        """
        self._is_final_complete = True
        given_up = self.current.give_up_waiting() if self.current else ()
        effects = [effect for one in given_up for effect in self._abort(one)]
        return [*effects, *self._answer_all(final)]

    def in_use(self) -> frozenset[str]:
        """Return the parts that the checkpoints under way build on: not to be deleted."""
        snapshots = self.current.snapshots() if self.current else ()
        return frozenset(path for one in snapshots for path in retention.paths_of(one))

    @property
    def has_void(self) -> bool:
        """Whether checkpoints with parts were given up since the last call of `take_void`."""
        return bool(self._void)

    def take_void(self) -> set[str]:
        """Return the parts of checkpoints that were given up since the last call."""
        void, self._void = self._void, set()
        return void

    def _failed(self, given_up: GivenUp, reason: str) -> Failed:
        n, effects = given_up.checkpoint_id, self._abort(given_up)
        if not self._is_final_complete:
            effects += self._note_failure(n, reason)
        return Failed(n, given_up.is_after_drain, tuple(effects))

    def _note_failure(self, n: CheckpointId, reason: str) -> list[JobEffect]:
        self.failed_count += 1
        self._failures_in_a_row += 1
        self.last_failure = f"checkpoint {n} has failed: {reason}"
        asked = [one for one, m in self._requests.items() if m == n]
        answers = self._answer(asked, None, self.last_failure)
        return [*answers, *self._pause()]

    def _abort(self, given_up: GivenUp) -> list[JobEffect]:
        n = given_up.checkpoint_id
        self._void |= {path for one in given_up.snapshots for path in retention.paths_of(one)}
        return [
            CancelTimer(Timer("checkpoint-timeout", self.epoch, n)),
            *self._registry.to_holders(AbortCheckpoint(self.epoch, n)),
        ]

    def _pause(self) -> list[JobEffect]:
        if not self._terms.pause_ms:
            return []
        self._is_pausing = True
        return [StartTimer(Timer("pause", self.epoch), self._terms.pause_ms)]

    def _answer(
        self,
        requests: list[int] | dict[int, CheckpointId],
        entry: CheckpointCompleted | None,
        reason: str = "",
    ) -> list[JobEffect]:
        answers = [
            effect for one in sorted(requests) for effect in self._savepoints.answer(one, entry, reason)
        ]
        self._requests = {one: n for one, n in self._requests.items() if one not in set(requests)}
        return answers

    def _answer_all(self, entry: CheckpointCompleted | None, reason: str = "") -> list[JobEffect]:
        waiting, self._waiting = self._waiting, []
        answers = self._answer(self._requests, entry, reason)
        return answers + [effect for one in waiting for effect in self._savepoints.answer(one, entry, reason)]
