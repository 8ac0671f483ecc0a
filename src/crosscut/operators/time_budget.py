"""The records that an operator goes through, one by one, until they or its time are over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crosscut.foundation.batch import Batch

_NO_BATCH = Batch([])
_NO_RECORDS: Iterator[Any] = iter([])


class TimeBudget:
    """What the operators of a task have before them; one at a time.

    An operator that loops over records asks for its iterator here, and has no other cost. When the slice has
    taken long enough, a signal handler, or the code between two records, shortens the list that is being
    iterated. The loop ends after the record that is under way, as if there were no more.

    Attributes:
        is_over: The time is up: no other operator is to begin.
        rest: What the operator has not taken.
        begun: How often user code was handed something.
        now_ms: The processing time, in milliseconds since 1970, when the slice began.
        rows_max: How many records an operator may make at once that makes them of none.
    """

    __slots__ = ("_batch", "_remaining", "begun", "is_over", "now_ms", "rest", "rows_max")

    def __init__(self) -> None:
        self.leave()
        self.begun = 0
        self.is_over = False
        self.rest: Batch | None = None
        self.rows_max = 1
        self.now_ms = 0

    def begin(self, rows_max: int) -> None:
        """A slice begins."""
        self.rows_max = rows_max
        self.is_over = False
        self.rest = None

    def through(self, batch: Batch) -> Iterator[Any]:
        """Return an iterator over the records of `batch`, which may come to hold fewer of them."""
        # In this order: a signal between the two finds nothing left in the old iterator.
        self._batch = batch
        self._remaining = remaining = iter(batch.records)
        self.begun += 1
        return remaining

    def leave(self) -> None:
        """The operator is through: nothing may keep its records alive until the next one begins."""
        self._remaining = _NO_RECORDS
        self._batch = _NO_BATCH

    def step(self) -> None:
        """User code is handed a whole batch, or something else that has no parts."""
        self.begun += 1

    @property
    def progress(self) -> tuple[int, int]:
        """Something that changes with each call of user code, where calls can be told apart."""
        return self.begun, len(self._batch.records) - self._left

    @property
    def _left(self) -> int:
        left: int = self._remaining.__length_hint__()  # type: ignore[attr-defined]
        return left

    def stop(self) -> None:
        """Let the operator end after the record that it is at."""
        self.is_over = True
        if left := self._left:
            self.rest = self._batch.drop(left)
