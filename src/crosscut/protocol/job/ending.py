"""How a job ends for its driver: with everything committed and judged, or with a word on the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.effects import Outcome
from crosscut.protocol.events import CutJudged
from crosscut.protocol.job.commits import Commits
from crosscut.protocol.log.entries import CheckpointCompleted, JobEntry
from crosscut.protocol.messages import FailureCause


@dataclass(frozen=True, slots=True)
class Over:
    """The job is over for this driver."""

    outcome: Outcome
    cause: FailureCause | None = None


class Ending:
    """What is still to be done before a job can end: commits, and the verdict on the newest cut.

    Args:
        commits: Knows what the sinks have committed.
        dropped: Counts stale and repeated input.
        awaits_verdict: An invariant may end the job as failed, so the final cut must be judged first.
    """

    def __init__(self, commits: Commits, dropped: Counter[str], *, awaits_verdict: bool) -> None:
        self._commits = commits
        self._awaits_verdict = awaits_verdict
        self._judged = CheckpointId(0)
        self.dropped = dropped

    def judged(self, event: CutJudged, *, is_final: bool) -> FailureCause | None:
        """Note a verdict; return why the job has to end, if it has to.

        Args:
            is_final: There will be no other cut.
        """
        n = event.checkpoint_id
        if n <= self._judged:
            self.dropped["repeated verdict"] += 1
            return None
        self._judged = n
        broken = next((one for one in event.broken if one.stop), None)
        if broken is not None:
            message = f"invariant {broken.name!r} is broken on the cut of checkpoint {n}: {broken.message}"
            return FailureCause("InvariantBroken", message)
        if is_final and event.unjudged:
            return _not_judged(n, f"{', '.join(map(repr, event.unjudged))} could not be evaluated on it")
        return None

    def is_committed(self, n: CheckpointId) -> bool:
        """Whether everything at or below n is known to be committed."""
        return self._commits.is_committed(n)

    def is_finished(self, n: CheckpointId) -> bool:
        """Whether nothing stands between the final checkpoint n and the end of the job."""
        return self.is_committed(n) and not self.is_unjudged(n)

    def is_unjudged(self, n: CheckpointId) -> bool:
        """Whether everything is committed, and only the verdict on the final checkpoint n is missing."""
        return self._awaits_verdict and self._judged < n and self.is_committed(n)

    def stopped_between_epochs(self, newest: CheckpointId | None) -> Over:
        """End a job that is stopped while no records flow.

        Args:
            newest: The newest completed checkpoint.
        """
        return Over("stopped", self._uncommitted(newest) if newest is not None else None)

    def stopped_short(
        self,
        newest: CheckpointId | None,
        undecided: JobEntry | None,
        cause: FailureCause,
        *,
        is_last_complete: bool,
    ) -> Over:
        """End a stop whose last checkpoint, or the commit of it, is not to be had because of `cause`.

        Args:
            newest: The newest completed checkpoint.
            undecided: The entry that may be in the log, or not.
            is_last_complete: `newest` is the last checkpoint of the stop.
        """
        if newest is not None and is_last_complete:
            return Over("stopped", self._uncommitted(newest, cause.message))
        perhaps = undecided.checkpoint_id if isinstance(undecided, CheckpointCompleted) else None
        return Over("stopped", self.without_last(newest, perhaps, cause))

    def _uncommitted(self, n: CheckpointId, why: str = "") -> FailureCause | None:
        """Return the cause of a job that stops now, because of `why`; None if all of n is committed."""
        if self.is_committed(n):
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
        if newest is not None and not self.is_committed(newest):
            where += ", and commits what is not known to be committed of its output"
        if perhaps is not None:
            where += f"; or it goes on from checkpoint {perhaps}, if the job log holds that after all"
        message = f"no last checkpoint was taken: {cause.message}; the next start {where}"
        return replace(cause, kind="NoLastCheckpoint", message=message)

    def overdue(self, n: CheckpointId, timeout_ms: int) -> FailureCause:
        """Return why the job, which has not finished within `timeout_ms`, has not."""
        if self.is_unjudged(n):
            return _not_judged(n, f"its invariants were not evaluated within {timeout_ms / 1000:g} s")
        what = "the output of the final checkpoint was not committed"
        return FailureCause("Timeout", f"{what} within {timeout_ms / 1000:g} s", is_transient=True)


def _not_judged(n: CheckpointId, why: str) -> FailureCause:
    return FailureCause(
        "InvariantNotJudged",
        f"nothing can be said of the cut of the final checkpoint {n}: {why}. All output is committed; start "
        f"the job again to have the cut judged again, with a predicate that returns sooner, or a longer "
        f"checkpoint_timeout",
    )
