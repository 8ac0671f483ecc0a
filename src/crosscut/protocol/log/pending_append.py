"""One entry on its way into a log, until its fate is known: the rules of put-if-absent, for every log.

An append has four outcomes: appended, taken, certainly not applied, and unknown. Unknown is never treated as
failure: the entry is read back (FLINK-22494). The machine that owns the log performs the steps; this one only
says which step is next.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Generic, TypeVar

from crosscut.foundation.frozen import dataclass

RETRY_APPEND_MS = 200
RETRY_MAX_MS = 5_000
UNCERTAIN_ATTEMPTS_MAX = 20

Entry = TypeVar("Entry")


class Fate(Enum):
    """What is known about the entry, and so what its writer does next."""

    WRITTEN = auto()
    """It is durable."""

    OVERTAKEN = auto()
    """Another entry has its index."""

    REFUSED = auto()
    """It is certainly not in the log, and no attempt has been made to put it there since."""

    UNDECIDED = auto()
    """Its outcome was unknown too often: nothing may be assumed."""

    WAIT = auto()
    """Its outcome is unknown: wait, then read its index."""

    READ = auto()
    """Something is at its index: read it."""

    APPEND = auto()
    """It is not there: append it again."""


@dataclass(slots=True)
class PendingAppend(Generic[Entry]):
    """The append of `entry`. Each answer of the store has one consequence.

    Attributes:
        attempts_max: After so many unknown outcomes in a row, the entry is undecided, ...
        patience_ms: ... but not before it has waited for so long.
        waited_ms: How long it has waited since the first of them, as far as its timers tell.
        reason: What the store said about the newest attempt that did not succeed.
        winner: What has the index of the entry, if it is overtaken.
    """

    entry: Entry
    attempts_max: int = UNCERTAIN_ATTEMPTS_MAX
    patience_ms: int = 0
    waited_ms: int = 0
    reason: str = ""
    winner: Entry | None = None
    uncertain_attempts: int = 0
    is_reported_to_exist: bool = False

    def taken(self) -> Fate:
        """The index exists already. By whom? Perhaps by an attempt of our own whose outcome was unknown."""
        self.is_reported_to_exist = True
        return Fate.READ

    def read(self, found: Entry | None, *, contradiction: str) -> Fate:
        """The index holds `found`.

        Args:
            contradiction: The reason to give if the store has said before that the index is taken, and now
                that there is no entry.
        """
        if found == self.entry:
            return Fate.WRITTEN
        if found is not None:
            self.winner = found
            return Fate.OVERTAKEN
        if not self.is_reported_to_exist:
            return Fate.APPEND
        # One of the two answers is stale. Asked at once, the store would say the same again.
        self.is_reported_to_exist = False
        return self.uncertain(contradiction)

    def refused(self, reason: str) -> Fate:
        """An attempt was certainly not applied."""
        if self.uncertain_attempts:
            # An earlier attempt at this very entry may still have been applied.
            return self.uncertain(reason)
        self.reason = reason
        return Fate.REFUSED

    def uncertain(self, reason: str) -> Fate:
        """An attempt may or may not have been applied, now or later."""
        self.reason = reason
        self.uncertain_attempts += 1
        is_over = self.uncertain_attempts >= self.attempts_max and self.waited_ms >= self.patience_ms
        return Fate.UNDECIDED if is_over else Fate.WAIT

    @property
    def retry_ms(self) -> int:
        """How long to wait now: longer each time, if there is much time."""
        grown_ms = RETRY_APPEND_MS << min(max(self.uncertain_attempts - 1, 0), 10)
        return min(grown_ms, RETRY_MAX_MS) if self.patience_ms else RETRY_APPEND_MS
