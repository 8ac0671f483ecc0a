"""Sources in memory: replayable, in any portions, with pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.contracts.dynamic_source import Discovered, DynamicSource
from crosscut.errors import ConnectorError
from crosscut.testing.simulator.violation import ensure

OPEN_WAIT_MS = 20.0


class ReplayedSource(Source):
    """Splits that are lists of records, read within about `duration_ms`.

    Attributes:
        stays_open: No split comes to its end.
        knows_lag: Readers say how many records wait.
    """

    def __init__(self, records: Mapping[str, Sequence[Any]], duration_ms: int = 0) -> None:
        self.records = records
        self.fail_next = 0
        self.stays_open = False
        self.knows_lag = False
        longest = max((len(one) for one in records.values()), default=0)
        self.wait_ms = duration_ms / longest if longest else 0.0

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Return the splits by name."""
        return [Split(name, 0, weight=len(self.records[name])) for name in sorted(self.records)]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        """Open a split anywhere."""
        ensure(isinstance(position, int), f"split {split} at {position!r}, which is no position of it")
        return _Reader(self, split.split_id, int(str(position)))


class GrowingSource(DynamicSource, ReplayedSource):
    """Splits that come while the job runs: none at first, then one or two at a time.

    Args:
        every_ms: How long the job waits before it looks again.
        empty_looks: So many more looks find nothing at first.
    """

    def __init__(
        self,
        records: Mapping[str, Sequence[Any]],
        duration_ms: int = 0,
        *,
        every_ms: int,
        empty_looks: int = 0,
    ) -> None:
        ReplayedSource.__init__(self, records, duration_ms)
        self._empty_looks = empty_looks
        self.discover_every = f"{every_ms}ms"

    def discover(self, known: JSON) -> Discovered:
        """Find what comes after what is known: how many splits, found by how many looks."""
        if known is not None and self.fail_next:
            self.fail_next -= 1
            raise ConnectorError("it can't be said just now which splits have come")
        looks = known[1] if isinstance(known, list) else 0
        ensure(isinstance(looks, int), f"{known!r} is nothing that this source has known")
        to_come = self.to_come(known)
        names = to_come[: max(0, int(str(looks)) - self._empty_looks) % 3]
        splits = [Split(name, 0, weight=len(self.records[name])) for name in names]
        left = len(to_come) - len(names)
        return Discovered(splits, [len(self.records) - left, int(str(looks)) + 1], is_last=not left)

    def to_come(self, known: JSON) -> list[str]:
        """Return the splits that come after what is known."""
        count = known[0] if isinstance(known, list) else 0
        return sorted(self.records)[int(str(count)) :]


def source_double(
    records: Mapping[str, Sequence[Any]],
    duration_ms: int,
    splits_every_ms: int,
    *,
    stays_open: bool,
    empty_looks: int = 0,
) -> ReplayedSource:
    """Return a source of these splits, which come while the job runs if `splits_every_ms` is not 0."""
    found = ReplayedSource(records, duration_ms)
    if splits_every_ms:
        found = GrowingSource(records, duration_ms, every_ms=splits_every_ms, empty_looks=empty_looks)
    found.stays_open = stays_open
    return found


class _Reader(SplitReader):
    def __init__(self, source: ReplayedSource, name: str, position: int) -> None:
        self._source = source
        self._records = source.records[name]
        self._position = position
        self._is_due = True

    @property
    def position(self) -> JSON:
        return self._position

    @property
    def lag(self) -> int | None:
        return len(self._records) - self._position if self._source.knows_lag else None

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        if self._source.fail_next:
            self._source.fail_next -= 1
            raise ConnectorError("the input can't be read just now")
        if self._position >= len(self._records):
            return Wait(OPEN_WAIT_MS) if self._source.stays_open else EndOfSplit()
        self._is_due = not self._is_due
        if self._is_due and self._source.wait_ms:
            return Wait(self._source.wait_ms * 2)
        # Sometimes one record, sometimes all that is asked for.
        size = 1 + self._position % max(limit, 1)
        found = list(self._records[self._position : self._position + size])
        self._position += len(found)
        return found
