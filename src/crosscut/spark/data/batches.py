"""The stream readers of PySpark's data sources, by batches: from one offset to the next."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSourceStreamReader, SimpleDataSourceStreamReader

from crosscut.errors import ConnectorError
from crosscut.spark.data.data_source import DataSourceOf

Offset = dict[str, Any]
Rows = Callable[[], Iterator[Any]]
"""Begins to read one partition."""


def batches_of(of: DataSourceOf) -> Batches:
    """Make the stream reader, or the simple one if there is no other.

    Raises:
        ConnectorError: Neither can be made.
    """
    made = of.made()
    try:
        return PlannedBatches(of, made.streamReader(of.columns))
    except PySparkNotImplementedError:
        simple = of.called("simpleStreamReader", lambda: made.simpleStreamReader(of.columns))
        return _Simple(of, simple)
    except Exception as error:
        raise ConnectorError(
            f"data source {of.name}: streamReader() raised {type(error).__name__}: {error}"
        ) from error


class Batches(ABC):
    """One stream reader. Its methods may take their time; whatever they raise is a ConnectorError."""

    def __init__(self, of: DataSourceOf, reader: Any) -> None:
        self._of = of
        self._reader = reader

    def initial(self) -> Offset:
        """Return where the stream begins."""
        return self._checked("initialOffset", self._called("initialOffset"))

    @abstractmethod
    def next(self, start: Offset) -> tuple[Offset | None, list[Rows]]:
        """Return the end of the batch from `start` on, None if there is nothing, and its partitions."""

    @abstractmethod
    def again(self, start: Offset, end: Offset) -> list[Rows]:
        """Return the partitions of a batch that was planned before."""

    def commit(self, end: Offset) -> None:
        """Say that nothing before `end` will be asked for again."""
        self._called("commit", end)

    def stop(self) -> None:
        """Let the reader free what it holds."""
        if isinstance(self._reader, DataSourceStreamReader):
            self._called("stop")

    def _called(self, method: str, *arguments: Any) -> Any:
        return self._of.called(method, lambda: getattr(self._reader, method)(*arguments))

    def _checked(self, method: str, offset: Any) -> Offset:
        try:
            if isinstance(offset, dict) and json.loads(json.dumps(offset)) == offset:
                return offset
        except (TypeError, ValueError):
            pass
        raise ConnectorError(
            f"data source {self._of.name}: {method}() returned the offset {offset!r:.200}: expected a dict "
            f"that JSON can hold, with texts as keys"
        )

    def _forward(self, method: str, start: Offset, end: Any) -> Offset:
        checked = self._checked(method, end)
        if goes_back(start, checked):
            raise ConnectorError(
                f"data source {self._of.name}: {method}() returned the offset {json.dumps(checked)}, which "
                f"lies before {json.dumps(start)}, which the job has already read: has the system lost "
                f"data, or is it a different one? To start over, use another checkpoint_dir"
            )
        return checked


class PlannedBatches(Batches):
    """Of a reader with partitions."""

    _reader: DataSourceStreamReader

    def newest(self, start: Offset) -> Offset | None:
        """Return where a batch from `start` on ends, None if there is nothing new."""
        latest: Any = self._reader.latestOffset
        # Before Spark 4.2 it took no arguments.
        has_limit = len(inspect.signature(latest).parameters) > 0
        arguments = [start, self._called("getDefaultReadLimit")] if has_limit else []
        end = self._forward("latestOffset", start, self._called("latestOffset", *arguments))
        return None if end == start else end

    def partitions(self, start: Offset, end: Offset) -> list[Any]:
        """Return the partitions between two offsets."""
        return self._of.called("partitions", lambda: list(self._reader.partitions(start, end)))

    def next(self, start: Offset) -> tuple[Offset | None, list[Rows]]:
        end = self.newest(start)
        return (None, []) if end is None else (end, self.again(start, end))

    def again(self, start: Offset, end: Offset) -> list[Rows]:
        return [partial(self._reader.read, one) for one in self.partitions(start, end)]


class _Simple(Batches):
    _reader: SimpleDataSourceStreamReader

    def next(self, start: Offset) -> tuple[Offset | None, list[Rows]]:
        found = self._called("read", start)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConnectorError(
                f"data source {self._of.name}: read() returned {found!r:.200}: expected rows and an offset"
            )
        rows, reported_end = found
        end = self._forward("read", start, reported_end)
        if end != start:
            return end, [lambda: iter(rows)]
        if self._of.called("read", lambda: next(iter(rows), None)) is not None:
            raise ConnectorError(
                f"data source {self._of.name}: read() returned rows, and the offset {json.dumps(start)} that "
                f"it was given: these rows would be read repeatedly"
            )
        return None, []

    def again(self, start: Offset, end: Offset) -> list[Rows]:
        return [partial(self._reader.readBetweenOffsets, start, end)]


def goes_back(start: Offset, end: Offset) -> bool:
    """Return whether `end` certainly lies before `start`: some of its numbers are lower, none is higher.

    What else offsets are made of can't be compared.
    """
    before, after = dict(_numbers("", start)), dict(_numbers("", end))
    changes = [after[path] - number for path, number in before.items() if path in after]
    return min(changes, default=0) < 0 and max(changes) <= 0


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _numbers(f"{path}/{key}", one)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _numbers(f"{path}/{number}", one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
