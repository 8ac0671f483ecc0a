"""PySpark's Python data sources as sources: `crosscut.spark.source`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options
from crosscut.spark.data.batches import Batches, Rows, batches_of
from crosscut.spark.data.data_source import DataSourceOf, data_source_of
from crosscut.spark.data.packed import packed, unpacked
from crosscut.spark.data.partition_reader import WAIT_MS, PartitionReader, ThreadedReader, taken
from crosscut.spark.data.planned_source import PlannedSource
from crosscut.spark.data.python_rows import PythonRows

READ_ROWS = 1_000
POLL_MS = 100

ReadMode = Literal["stream", "batch"]

_LOG = logging.getLogger("crosscut")


@checks_options("spark.source")
def source(
    kind: type[DataSource],
    options: Mapping[str, Any] | None = None,
    schema: StructType | str | None = None,
    *,
    read: ReadMode | None = None,
    records: Literal["rows", "dicts"] = "rows",
    parallel: bool = False,
) -> Source[Any]:
    """Return a source that reads a Python data source of PySpark, as it is.

    A stream reader (`streamReader`, or `simpleStreamReader`) is asked for its newest offset by the task that
    reads it, again and again. What lies between two offsets is a batch, whose partitions are read one after
    the other. A position is the batch, the partition and how many rows of it were read: after a failure
    the same partitions are planned again, and read from there on. So both must give the same rows again, as
    Spark demands, too. `commit(end)` is called once a checkpoint is complete that has all before `end`. The
    stream has no end.

    A batch reader (`reader`) is asked for its partitions when the job starts; each is a split, and they are
    read by all tasks.

    Args:
        kind: The class, of `pyspark.sql.datasource.DataSource`. It need not be registered.
        options: As for `spark.readStream.options`: texts.
        schema: Of the rows; default: what the data source says.
        read: "stream" or "batch"; default: "stream" if the class has a stream reader.
        records: What a record is: "rows" a `pyspark.sql.Row`, "dicts" a dict by column.
        parallel: Of a `streamReader`: the driver asks it for its newest offset, ten times a second, and
            plans the batches; their partitions are splits, which all tasks read side by side, each of them
            once, in no order.

    Raises:
        ConnectorError: An argument is not as described, or the class has no such reader. Later, in the
            job: what one of its methods raises, by name; offsets that go back; rows that don't fit.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.spark.source(FakeDataSource, {"numRows": 5}, "name STRING")  # doctest: +SKIP
    """
    found = data_source_of(kind, options, schema)
    if records not in ("rows", "dicts"):
        raise ConnectorError(f"records={records!r}: expected 'rows' or 'dicts'")
    has = {
        "stream": _has(kind, "streamReader") or _has(kind, "simpleStreamReader"),
        "batch": _has(kind, "reader"),
    }
    chosen: ReadMode = read or ("stream" if has["stream"] else "batch")
    if not has.get(chosen):
        raise ConnectorError(
            f"data source {found.name} has no {chosen} reader: expected a class with "
            f"{'streamReader or simpleStreamReader' if chosen == 'stream' else 'reader'}"
        )
    if not parallel:
        return PythonSource(found, chosen, records == "rows")
    if chosen != "stream" or not _has(kind, "streamReader"):
        other = "batch reader, which all tasks read in any case" if chosen == "batch" else "simple reader"
        raise ConnectorError(
            f"parallel=True is for stream readers with partitions, and {found.name} is read with its "
            f"{other}: leave it out"
        )
    return PlannedSource(found, as_rows=records == "rows")


def _has(kind: type[DataSource], method: str) -> bool:
    return getattr(kind, method) is not getattr(DataSource, method)


@dataclass(frozen=True, slots=True)
class PythonSource(Source[Any]):
    """See `source`."""

    of: DataSourceOf
    mode: ReadMode
    as_rows: bool

    def resolved(self) -> PythonSource:
        """Return it with its schema."""
        return replace(self, of=self.of.resolved())

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Ask for the first offset, or for the partitions."""
        if self.mode == "stream":
            reader = batches_of(self.of)
            start = reader.initial()
            reader.stop()
            return [Split("stream", {"start": start, "end": None, "partition": 0, "rows": 0})]
        return [
            Split(f"{number:06}", 0, packed(self.of.name, number, one))
            for number, one in enumerate(self._partitions())
        ]

    def _partitions(self) -> list[Any]:
        reader = self.of.called("reader", lambda: self.of.made().reader(self.of.columns))
        try:
            found = list(reader.partitions())
        except PySparkNotImplementedError:
            # As Spark has it: one partition, None.
            return [None]
        except Exception as error:
            raise ConnectorError(
                f"data source {self.of.name}: partitions() raised {type(error).__name__}: {error}"
            ) from error
        return found or [None]

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Go on in a batch, or in a partition."""
        rows = PythonRows(self.of.name, tuple(self.of.columns.fieldNames()), self.as_rows)
        match split.detail, position:
            case None, {"start": dict(), "partition": int(), "rows": int()} if self.mode == "stream":
                at: Any = position
                is_new = position == split.start
                return _StreamSplit(self, batches_of(self.of), rows, at, is_new=is_new)
            case str(text), int(row) if self.mode == "batch" and row >= 0:
                partition = unpacked(text)
                reader = self.of.called("reader", lambda: self.of.made().reader(self.of.columns))
                return PartitionReader(self.of, partial(reader.read, partition), rows, row)
        raise ConnectorError(
            f"split {split} at position {position!r} is not of the {self.mode} reader of {self.of.name}; "
            f"is the checkpoint of another source?",
            split_id=split.split_id,
        )

    def describe(self) -> str:
        """Return the class and its options."""
        return self.of.describe()


class _StreamSplit(ThreadedReader):
    """All batches of a stream reader, one after the other."""

    def __init__(
        self,
        source: PythonSource,
        batches: Batches,
        rows: PythonRows,
        position: dict[str, Any],
        *,
        is_new: bool,
    ) -> None:
        super().__init__()
        self._of = source.of
        self._batches = batches
        self._to_records = rows
        self._start: dict[str, Any] = position["start"]
        self._end: dict[str, Any] | None = position["end"]
        self._partition: int = position["partition"]
        self._row: int = position["rows"]
        # Of the batch that is read: its partitions, and the rest of the one that is.
        self._partitions: list[Rows] | None = None
        self._rows: Iterator[Any] | None = None
        self._is_at_end = False
        # Whether a restored position was acknowledged is unknown: the failure may have come first.
        self._committed = self._start if is_new else None

    @property
    def position(self) -> JSON:
        return {"start": self._start, "end": self._end, "partition": self._partition, "rows": self._row}

    @property
    def lag(self) -> int | None:
        return 0 if self._is_at_end else None

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        # A loop, since empty partitions and batches follow each other.
        while True:
            if self._partitions is None:
                planned = self._result(self._plan)
                if planned is None:
                    return Wait(WAIT_MS, is_coming=True)
                end, partitions = planned
                self._is_at_end = end is None
                if end is None:
                    return Wait(POLL_MS)
                if self._partition and self._partition >= len(partitions):
                    raise ConnectorError(
                        f"data source {self._of.name}: partitions() returned {len(partitions)} partitions of "
                        f"a batch of which the job has read {self._partition} before, and more was to come: "
                        f"expected the same partitions again"
                    )
                self._end, self._partitions = end, partitions
            if self._partition >= len(self._partitions):
                if self._end is not None:
                    self._start, self._end = self._end, None
                self._partition = self._row = 0
                self._partitions = None
                continue
            if self._rows is None:
                self._rows = self._to_records.of(self._partitions[self._partition], skip=self._row)
            rows = self._rows
            found = self._result(partial(taken, self._of, rows, min(limit, READ_ROWS)))
            if found is None:
                return Wait(WAIT_MS, is_coming=True)
            if found:
                self._row += len(found)
                return list(found)
            self._partition, self._row, self._rows = self._partition + 1, 0, None

    def acknowledge(self, position: JSON) -> None:
        at: Any = position
        end: dict[str, Any] = at["start"]
        if end != self._committed:
            self._committed = end
            # The reader belongs to the thread.
            self._thread.submit(self._commit, end)

    def close(self) -> None:
        with suppress(RuntimeError):
            self._thread.submit(self._batches.stop)
        self._thread.shutdown(wait=False)

    def _plan(self) -> tuple[dict[str, Any] | None, list[Rows]]:
        """Return the end of the batch, None if there is nothing new, and its partitions."""
        if self._end is not None:
            return self._end, self._batches.again(self._start, self._end)
        return self._batches.next(self._start)

    def _commit(self, end: dict[str, Any]) -> None:
        try:
            self._batches.commit(end)
        except ConnectorError as error:
            # A system that keeps what it might have forgotten: the job can go on.
            _LOG.warning("%s; it is not called again for this offset", error)
