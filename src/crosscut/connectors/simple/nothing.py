"""A source that has nothing, and a sink that keeps nothing: what a backfill puts in place of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    Split,
    SplitReader,
    Wait,
)
from crosscut.foundation.ids import CheckpointId

_WAIT_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Nothing(Source[Any]):
    """Has nothing to read, and never ends: its reader waits for ever."""

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Return one split for each task: one without any would say that its input has ended."""
        return [Split(f"nothing-{index}", 0) for index in range(parallelism)]

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Return what waits."""
        return _Waiting()


class _Waiting(SplitReader[Any]):
    position = 0
    lag = 0

    def read(self, limit: int) -> Wait:
        return Wait(_WAIT_MS)


@dataclass(frozen=True, slots=True)
class Discarding(Sink[object]):
    """Takes all, and keeps nothing."""

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task."""
        return _Discarder()


class _Discarder(SinkWriter):
    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        """Nothing was staged."""

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Attempts have nothing to share."""

    def write(self, records: list[Any]) -> None:
        """Discard the records: the flow of a backfill does not ask for them."""

    def rotate(self, checkpoint_id: CheckpointId) -> None:
        """Nothing was written."""

    def prepare(self, transaction: Any) -> JSON:
        """There is no transaction; see `rotate`."""
        return None

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        """Nothing is staged."""
