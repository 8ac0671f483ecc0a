"""A batch sizer that draws its sizes: the real one adapts to time, and the simulator has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crosscut.foundation.batch import Batch
from crosscut.operators.time_budget import TimeBudget
from crosscut.worker.batch_sizer import BatchSizer

_ENDS_ONE_IN = 5


class DrawnBatchSizer(BatchSizer):
    """Another number of records for each slice.

    Args:
        rows_max: Records in a full batch.
        below: Draws a number from 0 to one less than its argument.
    """

    def __init__(self, rows_max: int, below: Callable[[int], int]) -> None:
        self._rows_max = rows_max
        self._below = below
        self.rows = 1 + below(rows_max)
        self.patience_ns = 0
        self.time_budget = DrawnTimeBudget(below)

    def took(self, rows: int, elapsed_ns: int) -> None:
        self.rows = 1 + self._below(self._rows_max)

    def start_over(self) -> None:
        """There is nothing to learn."""


class DrawnTimeBudget(TimeBudget):
    """Ends slices early, as a signal does in a real worker, at the same places: it shortens a
    list before it is gone through, which looks to the operator as if it were done meanwhile.

    Args:
        below: Draws a number from 0 to one less than its argument.
    """

    __slots__ = ("_below",)

    def __init__(self, below: Callable[[int], int]) -> None:
        super().__init__()
        self._below = below

    def through(self, batch: Batch) -> Iterator[Any]:
        rows = len(batch)
        if rows and self._below(_ENDS_ONE_IN) == 0:
            self.is_over = True
            if left := self._below(rows):
                self.rest = batch.drop(left)
        return super().through(batch)
