"""Failed checkpoints: how many, how many in a row, and whether the job must end for that."""

from __future__ import annotations

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.entries import CHECKPOINT_IDS_LEAD_MAX
from crosscut.protocol.messages import FailureCause


class CheckpointFailures:
    """The failed checkpoints of one driver.

    Attributes:
        failed_count: All of them.
        last_failure: Which checkpoint has failed last, and why; "" if one was completed since.
    """

    def __init__(self, spec: CheckpointSpec) -> None:
        # Each one uses an id up, as those under way do, and ids may not go further ahead of the log than
        # the lead.
        lead_max = CHECKPOINT_IDS_LEAD_MAX + 1 - spec.in_flight_max
        self._failures_max = min(spec.failures_max, lead_max)
        self.failed_count = 0
        self._failures_in_a_row = 0
        self.last_failure = ""

    def note(self, n: CheckpointId, reason: str) -> None:
        """Note that n has failed."""
        self.failed_count += 1
        self._failures_in_a_row += 1
        self.last_failure = f"checkpoint {n} has failed: {reason}"

    def note_completion(self) -> None:
        """Note that a checkpoint is complete."""
        self._failures_in_a_row, self.last_failure = 0, ""

    @property
    def cause(self) -> FailureCause | None:
        """Why the job must end: too many have failed in a row; None: it goes on."""
        if self._failures_in_a_row <= self._failures_max:
            return None
        message = f"{self._failures_in_a_row} checkpoints in a row failed; {self.last_failure}"
        return FailureCause("CheckpointsFailed", message, is_transient=True)
