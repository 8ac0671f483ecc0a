"""How a job ends for its driver: with everything committed and judged, or with a word on the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.checkpoint.scheduler import CheckpointScheduler
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CutJudged
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.job.phases import JobState, Phase
from crosscut.protocol.job.spec import CoordinatorSpec
from crosscut.protocol.log.entries import CheckpointCompleted, JobFinished
from crosscut.protocol.log.ownership import Ownership
from crosscut.protocol.messages import FailureCause


class Ending:
    """What is still to be done before a job can end: commits, and the verdict on the newest cut.

    Args:
        job: Where the job is.
        log: Its last entries decide.
        checkpoints: Knows the newest one.
        commits: Knows what the sinks have committed.
        dropped: Counts stale and repeated input.
    """

    def __init__(
        self,
        terms: CoordinatorSpec,
        job: JobState,
        log: Ownership,
        checkpoints: CheckpointScheduler,
        commits: Commits,
        dropped: Counter[str],
    ) -> None:
        # An invariant may end the job as failed, so the final cut must be judged first.
        self._awaits_verdict = terms.awaits_verdict
        self._are_batches = terms.checkpoints.are_batches
        self._timeout_ms = terms.checkpoints.timeout_ms
        self._has_unit_logs = bool(terms.identity.unit_log)
        self._job = job
        self._log = log
        self._checkpoints = checkpoints
        self._commits = commits
        self._judged = CheckpointId(0)
        self.dropped = dropped

    def due(self) -> EndJob | JobFinished | None:
        """Return how the job ends now, or the entry that must be in the log before; None: it goes on."""
        n = self._newest
        if n is None or not self._log.is_idle:
            return None
        if self._job.phase is Phase.FINISHING and self.is_finished(n):
            return JobFinished(self._job.epoch, n)
        is_last = self._job.phase is Phase.STOPPING and self._checkpoints.is_last(n)
        return EndJob("stopped") if is_last and self._commits.is_committed(n) else None

    @property
    def rests(self) -> bool:
        """Whether a batch of this epoch has all that was read, and its output is visible."""
        newest = self._checkpoints.newest
        if newest is None or not self._are_batches or newest.epoch != self._job.epoch:
            return False
        is_idle = self._checkpoints.under_way is None and self._log.is_idle
        return is_idle and self._commits.is_committed(newest.checkpoint_id)

    @property
    def _newest(self) -> CheckpointId | None:
        newest = self._checkpoints.newest
        return newest.checkpoint_id if newest is not None else None

    def judged(self, event: CutJudged) -> FailureCause | None:
        """Note a verdict; return why the job has to end, if it has to.

        Raises:
            ProtocolError: That checkpoint is not complete; nothing has changed.
        """
        n, newest = event.checkpoint_id, self._checkpoints.newest
        if newest is None or n > newest.checkpoint_id:
            raise ProtocolError(f"the cut of checkpoint {n} was judged, which is not complete")
        if n <= self._judged:
            self.dropped["repeated verdict"] += 1
            return None
        self._judged = n
        broken = next((one for one in event.broken if one.stop), None)
        if broken is not None:
            message = f"invariant {broken.name!r} is broken on the cut of checkpoint {n}: {broken.message}"
            return FailureCause("InvariantBroken", message)
        # There will be no other cut.
        is_final = newest.is_final and n == newest.checkpoint_id
        if is_final and event.unjudged:
            return _not_judged(n, f"{', '.join(map(repr, event.unjudged))} could not be evaluated on it")
        return None

    def is_finished(self, n: CheckpointId) -> bool:
        """Whether nothing stands between the final checkpoint n and the end of the job."""
        return self._commits.is_committed(n) and not self.is_unjudged(n)

    def is_unjudged(self, n: CheckpointId) -> bool:
        """Whether everything is committed, and only the verdict on the final checkpoint n is missing."""
        return self._awaits_verdict and self._judged < n and self._commits.is_committed(n)

    def stopped_between_epochs(self) -> EndJob:
        """End a job that is stopped while no records flow."""
        if self._has_unit_logs:
            has_run = self._job.epoch > 1 or self._job.phase is Phase.WAITING
            return EndJob("stopped", _owed("the job was restarting") if has_run else None)
        newest = self._newest
        return EndJob("stopped", self._uncommitted(newest) if newest is not None else None)

    @property
    def stop_overdue(self) -> str:
        """Why a stop has taken too long, for people."""
        if self._has_unit_logs:
            return f"not all of it was committed within checkpoint_timeout={self._timeout_ms / 1000:g} s"
        return self._checkpoints.overdue

    def stopped_short(self, cause: FailureCause) -> EndJob:
        """End a stop whose last checkpoint, or the commit of it, is not to be had because of `cause`."""
        if self._has_unit_logs:
            return EndJob("stopped", _owed(cause.message))
        newest, undecided = self._newest, self._log.newest
        if newest is not None and self._checkpoints.is_last(newest):
            return EndJob("stopped", self._uncommitted(newest, cause.message))
        perhaps = undecided.checkpoint_id if isinstance(undecided, CheckpointCompleted) else None
        return EndJob("stopped", self.without_last(newest, perhaps, cause))

    def _uncommitted(self, n: CheckpointId, why: str = "") -> FailureCause | None:
        """Return the cause of a job that stops now, because of `why`; None if all of n is committed."""
        if self._commits.is_committed(n):
            return None
        return FailureCause(
            "Uncommitted",
            f"checkpoint {n} is complete, but not all of its output is known to be committed"
            f"{f' ({why})' if why else ''}; the next start commits it",
            is_transient=True,
        )

    def without_last(
        self, newest: CheckpointId | None, perhaps: CheckpointId | None, cause: FailureCause
    ) -> FailureCause:
        """Return the cause of a job that stops without a last checkpoint, because of `cause`.

        Args:
            newest: The newest completed checkpoint.
            perhaps: One whose entry may be in the log, or not.
        """
        where = "begins from the beginning" if newest is None else f"goes on from checkpoint {newest}"
        if newest is not None and not self._commits.is_committed(newest):
            where += ", and commits what is not known to be committed of its output"
        if perhaps is not None:
            where += f"; or it goes on from checkpoint {perhaps}, if the job log holds that after all"
        message = f"no last checkpoint was taken: {cause.message}; the next start {where}"
        return replace(cause, kind="NoLastCheckpoint", message=message)

    def overdue(self, n: CheckpointId) -> FailureCause:
        """Return why the job has not finished in time."""
        if self.is_unjudged(n):
            return _not_judged(n, f"its invariants were not evaluated within {self._timeout_ms / 1000:g} s")
        what = "the output of the final checkpoint was not committed"
        return FailureCause("Timeout", f"{what} within {self._timeout_ms / 1000:g} s", is_transient=True)


def _owed(why: str) -> FailureCause:
    return FailureCause(
        "Uncommitted",
        f"the logs of the workers may hold output that is not known to be committed ({why}); the next start "
        f"commits it",
        is_transient=True,
    )


def _not_judged(n: CheckpointId, why: str) -> FailureCause:
    return FailureCause(
        "InvariantNotJudged",
        f"nothing can be said of the cut of the final checkpoint {n}: {why}. All output is committed; start "
        f"the job again to have the cut judged again, with a predicate that returns sooner, or a longer "
        f"checkpoint_timeout",
    )
