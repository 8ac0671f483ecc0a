"""Failed checkpoints: how many, for how long, when to try again, and whether that is a failure of the job."""

from __future__ import annotations

from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.job.spec import CheckpointSpec
from crosscut.protocol.log.entries import CHECKPOINT_IDS_LEAD_MAX
from crosscut.protocol.messages import FailureCause

PERMANENT_MAX = 10
"""Checkpoints in a row that may fail since some state can't be stored: it may be gone by the next one."""

BACKOFF_MAX_MS = 10_000


class CheckpointFailures:
    """The failed checkpoints of one driver.

    Attributes:
        failed_count: All of them.
        last_failure: Which checkpoint has failed last, and why; "" if one was completed since.
    """

    def __init__(self, spec: CheckpointSpec) -> None:
        self._spec = spec
        # Each one uses an id up, as those under way do, and ids may not go further ahead of the log than
        # the lead.
        self._lead_max = CHECKPOINT_IDS_LEAD_MAX + 1 - spec.in_flight_max
        self.failed_count = 0
        self._failures_in_a_row = self._permanent_in_a_row = 0
        self._since_ms = self._newest_ms = 0
        self.last_failure = ""

    def note(self, n: CheckpointId, reason: str, now_ms: int, *, is_permanent: bool = False) -> None:
        """Note that n has failed."""
        if self._failures_in_a_row == 0:
            self._since_ms = now_ms
        self._newest_ms = now_ms
        self.failed_count += 1
        self._failures_in_a_row += 1
        self._permanent_in_a_row = self._permanent_in_a_row + 1 if is_permanent else 0
        self.last_failure = f"checkpoint {n} has failed: {reason}"

    def note_completion(self) -> None:
        """Note that a checkpoint is complete."""
        self._failures_in_a_row = self._permanent_in_a_row = 0
        self.last_failure = ""

    def begin_again(self) -> None:
        """Note that the job goes back to its newest checkpoint, since too many have failed."""
        self._failures_in_a_row = 0

    @property
    def backoff_ms(self) -> int:
        """How long to wait after the newest failure: none after the first one in a row."""
        doublings = self._failures_in_a_row - 2
        return min(self._spec.interval_ms << min(doublings, 20), BACKOFF_MAX_MS) if doublings >= 0 else 0

    @property
    def are_final(self) -> bool:
        """Whether no restart helps: as many have failed as the user allows, or state can't be stored."""
        limit = self._spec.failures_max
        return self._permanent_in_a_row > PERMANENT_MAX or (
            limit is not None and self._failures_in_a_row > min(limit, self._lead_max)
        )

    @property
    def cause(self) -> FailureCause | None:
        """Why the job can't go on in this epoch: too many have failed in a row; None: it goes on."""
        lasting_ms = self._newest_ms - self._since_ms
        is_outage = self._spec.failures_max is None and (
            self._failures_in_a_row > self._lead_max or 0 < self._spec.outage_ms <= lasting_ms
        )
        if self._failures_in_a_row == 0 or not (self.are_final or is_outage):
            return None
        for_so_long = f" for {lasting_ms // 1000} s" if is_outage else ""
        message = f"{self._failures_in_a_row} checkpoints in a row failed{for_so_long}; {self.last_failure}"
        return FailureCause("CheckpointsFailed", message, is_transient=self._permanent_in_a_row == 0)
