"""Reads one partition of a data source of PySpark, whose methods may take their time: in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.spark.data.data_source import DataSourceOf
from crosscut.spark.data.python_rows import PythonRows

WAIT_MS = 1


class ThreadedReader(SplitReader[Any]):
    """Does whatever may take time in a thread, one thing at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-read")
        self._coming: Future[Any] | None = None

    def _result(self, work: Callable[[], Any]) -> Any | None:
        """Begin `work`, or return what it has returned; None: not yet."""
        if self._coming is None:
            self._coming = self._thread.submit(work)
        if not self._coming.done():
            return None
        future, self._coming = self._coming, None
        return future.result()


class PartitionReader(ThreadedReader):
    """One partition of a batch reader. A position is the number of rows read."""

    def __init__(
        self, of: DataSourceOf, read: Callable[[], Iterator[Any]], rows: PythonRows, position: int
    ) -> None:
        super().__init__()
        self._of = of
        self._rows = rows.of(read, skip=position)
        self._position = position

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        found = self._result(lambda: taken(self._of, self._rows, limit))
        if found is None:
            return Wait(WAIT_MS, is_coming=True)
        self._position += len(found)
        return found or EndOfSplit()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def taken(of: DataSourceOf, rows: Iterator[Any], limit: int) -> list[Any]:
    """Return the next rows, at most `limit`."""
    return of.called("read", lambda: list(islice(rows, limit)))
