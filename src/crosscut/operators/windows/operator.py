"""What all operators over windows have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from crosscut.batch import Batch
from crosscut.operators.timed import TimedOperator
from crosscut.operators.windows.folding import Folding
from crosscut.state.encoding import owned_copy
from crosscut.state.keyed import KeyedState
from crosscut.timestamps import TIMESTAMP_MAX


class WindowOperator(TimedOperator):
    """An operator over windows."""

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        folding: Folding,
        say_late: Callable[[Any, int], None] | None = None,
    ) -> None:
        super().__init__(uid, state, say_late)
        self._folding = folding

    def process(self, batch: Batch) -> Batch:
        if self._folding.note_input is not None:
            self._folding.note_input(batch.input)
        return self._take_batch(batch)

    @abstractmethod
    def _take_batch(self, batch: Batch) -> Batch:
        """See `Operator.process`."""

    def _results(self, key: Any, start: int, end: int, value: Any, *, is_last: bool) -> Iterable[Any]:
        """Return what a window says; unless it is the last time, nothing that its accumulator is part of."""
        return self._folding.results(key, start, end, value if is_last else owned_copy(value))


def time_of(end: int) -> int:
    """Return the time of the results of a window that ends there: of the last record it might have had."""
    return min(end - 1, TIMESTAMP_MAX)
