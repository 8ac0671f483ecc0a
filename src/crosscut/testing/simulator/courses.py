"""Slices that end where chance has it: what a signal does in a real worker, at the same places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crosscut.batch import Batch
from crosscut.operators.course import Course

_ENDS_ONE_IN = 5


class DrawnCourse(Course):
    """Shortens a list before it is gone through, which looks to the operator as if it were done meanwhile.

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
