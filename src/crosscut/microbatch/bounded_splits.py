"""The input of a source task for one batch: as much as is there, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from crosscut.contracts.connectors import JSON, Source, Split, Wait
from crosscut.host.clock import Clock, SystemClock
from crosscut.protocol.microbatch.reading import SplitRead, empty_splits, is_enough
from crosscut.task.splits import SplitQueue, listens, position_of

READ_SHARE = 0.25
"""Of the time that a checkpoint may take, for reading: later stages need the rest. A batch that is given
up begins where it began before, so it would be given up again and again."""

_NEVER_MS = 3_600_000.0
_SYSTEM_CLOCK = SystemClock()


class BoundedSplits(SplitQueue):
    """Reads at most `records_max` records, for `read_s_max`, and knows when it is enough for a batch.

    The end of a batch is where the reading stops, wherever that is: the positions of the attempt that is
    taken are those of the checkpoint, together with what the attempt has made of the records before them. So
    the end need not be known before (docs/decisions/0053-batches-without-a-plan.md).
    """

    def __init__(
        self,
        source: Source,
        unread: Sequence[tuple[Split, JSON]],
        uid: str,
        records_max: int,
        *,
        is_open: bool = False,
        read_s_max: float = float("inf"),
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        super().__init__(source, unread, uid, is_open=is_open)
        self._now_ns = clock.monotonic_ns
        self._left = records_max
        self._read_s_max = read_s_max
        self._began_s: float | None = None
        self._waits = False
        self._progress_s = self._now_s()
        # Splits that have given something.
        self._non_empty: set[str] = set()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Do nothing: to a batch it is nothing that a record has come a moment sooner."""

    @property
    def is_full(self) -> bool:
        """Whether the batch may hold no more."""
        return self._left <= 0

    @property
    def lag(self) -> int | None:
        """As `SplitQueue.lag`, but None while there are splits that are not known yet."""
        return None if self._unread else super().lag

    @property
    def is_enough(self) -> bool:
        """Whether there is nothing more to be had for this batch."""
        if self.is_full or self.is_drained:
            return True
        return self._waits and is_enough(self._reads(), self._waited_ms, self._read_s_max * 1_000)

    @property
    def empty(self) -> tuple[str, ...]:
        """The open splits that have nothing to read, once it is enough."""
        return empty_splits(self._reads(), self._waited_ms, is_full=self.is_full)

    @property
    def _waited_ms(self) -> float:
        return (self._now_s() - self._progress_s) * 1_000

    def _now_s(self) -> float:
        return self._now_ns() / 1e9

    def _reads(self) -> list[SplitRead]:
        coming = {one.split.split_id for one in self._open if one.is_coming}
        return [SplitRead(one, one in self._non_empty, lag, one in coming) for one, lag in self.lags()]

    def _open_next(self, place: int) -> None:
        super()._open_next(place)
        one = self._open[place]
        if listens(one.reader) and one.reader.position != one.split.start:
            # What a batch begins with is part of a completed checkpoint, and its output is visible; the
            # readers that came so far are gone.
            one.reader.acknowledge(position_of(one.reader))

    def read(self, limit: int, held: Collection[str] = ()) -> list[Any] | Wait:
        """As `SplitQueue.read`; waits for ever once it is full, and opens nothing more then."""
        if self.is_full:
            self.just_ended, self.just_waiting = [], []
            return Wait(_NEVER_MS)
        if self._began_s is None:
            self._began_s = self._now_s()
        found = super().read(min(limit, self._left), held)
        if isinstance(found, Wait):
            self._waits = True
            # At once would be a loop without a pause, when somebody waits for the end of the batch.
            return found if self.is_drained else Wait(max(1.0, found.delay_ms))
        self._waits = False
        self._non_empty.add(self.origin)
        self._progress_s = self._now_s()
        is_late = self._progress_s - self._began_s >= self._read_s_max
        self._left = 0 if is_late else self._left - len(found)
        return found
