"""Arrow record batches, decoded in a thread, one ahead of their reader."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from crosscut.contracts.connectors import Wait

_WAIT_MS = 1


class BatchesAhead:
    """Takes batches from a generator, which runs in a thread of its own, all of it."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches = batches
        self._batch: Any = None
        self._next = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-read")
        self._coming: Future[Any] | None = None

    def take_rows(self, rows_max: int) -> tuple[Any, int, int] | Wait | None:
        """Return the next rows: a record batch, the first one in it, and the one after the last; Wait: they
        are still to come; None: there are no more.

        Raises:
            Exception: Of the generator.
        """
        if self._batch is None or self._next == self._batch.num_rows:
            if self._coming is None:
                self._coming = self._thread.submit(next, self._batches, None)
            if not self._coming.done():
                return Wait(_WAIT_MS, is_coming=True)
            self._batch, self._next = self._coming.result(), 0
            self._coming = self._thread.submit(next, self._batches, None)
            if self._batch is None:
                return None
        start, self._next = self._next, min(self._next + rows_max, self._batch.num_rows)
        return self._batch, start, self._next

    def take(self, rows_max: int) -> Any | Wait | None:
        """Do as `take_rows`, and return the rows as a record batch of their own."""
        some = self.take_rows(rows_max)
        if some is None or isinstance(some, Wait):
            return some
        batch, start, end = some
        return batch.slice(start, end - start)

    def close(self) -> None:
        """Close the generator in its thread, and end that."""
        self._thread.submit(self._batches.close)
        self._thread.shutdown(wait=False)


def from_row(batches: Iterable[Any], row: int) -> Iterator[Any]:
    """Yield the rows of batches from `row` on, without batches that are empty."""
    for batch in batches:
        left = batch.slice(min(row, batch.num_rows))
        row -= batch.num_rows - left.num_rows
        if left.num_rows:
            yield left
