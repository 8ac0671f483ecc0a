"""Operators that go by event time: what they say when a watermark has come, and what is too late for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.errors import FlowError, InternalError
from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import BEFORE_ALL_TIME, END_OF_TIME
from crosscut.operators.operator import Operator
from crosscut.state.keyed import KeyedState

NO_TIME = BEFORE_ALL_TIME
"""The watermark before any: nothing is late."""


class Emitted:
    """What an operator says of one batch or in one step: records, each with its time."""

    __slots__ = ("records", "timestamps")

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.timestamps: list[int] = []

    def add(self, records: Iterable[Any], timestamp: int) -> None:
        """Add records of one time."""
        self.records += records
        self.timestamps += [timestamp] * (len(self.records) - len(self.timestamps))

    def batch(self) -> Batch:
        """Return all of it."""
        return Batch(self.records, None, self.timestamps)


class TimedOperator(Operator):
    """An operator that has something to say when the watermark has moved.

    Args:
        state: What it keeps, by key.
        emit_late: Takes a late record and its time. None: it is only counted.

    Attributes:
        watermark: The newest; no older record is expected.
        late_count: Records that came too late, in this epoch.
    """

    uses_watermarks = True

    def __init__(
        self, uid: str, state: KeyedState, emit_late: Callable[[Any, int], None] | None = None
    ) -> None:
        super().__init__(uid)
        self._state = state
        self.watermark = NO_TIME
        self.late_count = 0
        self._emit_late = emit_late
        self._due_batches: Iterator[Batch] | None = None
        # The watermark before the one that is being spoken of.
        self._before = NO_TIME

    def advance(self, watermark: int | None) -> Batch | None:
        if watermark is not None and watermark > self.watermark:
            self._before, self.watermark = self.watermark, watermark
            self._due_batches = self._due(self._before)
        while self._due_batches is not None:
            emitted = next(self._due_batches, None)
            if emitted is None:
                self._due_batches = None
            elif emitted.records or self.time_budget.is_over:
                return emitted
        return None

    def begin_from(self, watermark: int) -> None:
        """Go on from a snapshot that was taken before all was said that a later watermark makes due."""
        self.watermark = watermark

    @property
    def _emitted_up_to(self) -> JSON:
        """What `comes_from` is where something is said each time that a period has passed."""
        # The end of time is never stored: the end of input comes again.
        is_emitted = self._due_batches is None and self.watermark != END_OF_TIME
        up_to = self.watermark if is_emitted else self._before
        return [None if up_to == NO_TIME else up_to, {}]

    def _due(self, before: int) -> Iterator[Batch]:
        """Yield what is to be said now, about `time_budget.rows_max` records at once.

        What has been said has left the state when it is yielded, since a snapshot may be taken then.

        Args:
            before: The watermark until now.
        """
        return iter(())

    def _late(self, record: Any, time: int) -> None:
        self.late_count += 1
        if self._emit_late is not None:
            self._emit_late(record, time)

    def _keys(self, batch: Batch) -> list[Any]:
        if batch.keys is None:
            raise InternalError(f"operator {self.uid!r} got records without keys")
        self._state.fetch(batch.keys)
        return batch.keys

    def _keys_and_times(self, batch: Batch) -> tuple[list[Any], list[int]]:
        keys = self._keys(batch)
        if batch.timestamps is None:
            raise FlowError(
                f"operator {self.uid!r} goes by event time, and its records have none: say when each "
                f"happened, with assign_timestamps(...), before key_by",
                operator=self.uid,
            )
        return keys, batch.timestamps
