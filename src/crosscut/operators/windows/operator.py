"""What all operators over windows have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import TIMESTAMP_MAX
from crosscut.operators.operator import user_code_error
from crosscut.operators.timed import TimedOperator
from crosscut.operators.windows.folding import Folding
from crosscut.state.encoding import owned_copy
from crosscut.state.keyed import KeyedState


class WindowOperator(TimedOperator):
    """An operator over windows."""

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        folding: Folding,
        emit_late: Callable[[Any, int], None] | None = None,
    ) -> None:
        super().__init__(uid, state, emit_late)
        self._folding = folding
        self._is_saying = False
        self._has_emitted = False

    def process(self, batch: Batch) -> Batch:
        if self._folding.note_input is not None:
            self._folding.note_input(batch.input)
        return self._take_batch(batch)

    @abstractmethod
    def _take_batch(self, batch: Batch) -> Batch:
        """See `Operator.process`."""

    def _results(self, key: Any, start: int, end: int, value: Any, *, is_last: bool) -> Iterable[Any]:
        """Return what a window says; unless it is the last time, nothing that its accumulator is part of."""
        self._is_saying = True
        results = self._folding.results(key, start, end, value if is_last else owned_copy(value))
        self._is_saying = False
        self._has_emitted = True
        return results

    def blamed(self, error: BaseException, records: list[Any], remaining: Iterator[Any]) -> UserCodeError:
        found = super().blamed(error, records, remaining)
        if self._is_saying:
            found.is_first = not self._has_emitted
        return found

    def result_failed(self, error: BaseException, key: Any, value: Any) -> UserCodeError:
        """Return `error`, which the function of the results has raised, as one that names key and value."""
        # However many records have got through: what that function needs may be down.
        return user_code_error(self.uid, error, (key, value), is_first=not self._has_emitted)


def time_of(end: int) -> int:
    """Return the time of the results of a window that ends there: of the last record it might have had."""
    return min(end - 1, TIMESTAMP_MAX)
