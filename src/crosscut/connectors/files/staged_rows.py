"""Rows that were staged as Parquet in the job's own checkpoint store, as a source; needs pyarrow.

The staging job (a Spark job, `crosscut.spark.data.staging`) writes each file as a part of checkpoint 0, which
is none, before the first record is read. A split is one file and has its digest: what is read is what was
staged. The job's retention deletes a file once no checkpoint that is kept has still to read it
(`crosscut.protocol.splits.staged`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from crosscut.connectors.extras import required
from crosscut.connectors.files.read_ahead import BatchesAhead, from_row
from crosscut.contracts.columns import ColumnSource, Field, Rows
from crosscut.contracts.connectors import JSON, EndOfSplit, Split, SplitReader, Wait
from crosscut.errors import ConnectorError, StoreError
from crosscut.foundation.ids import CheckpointId, TaskId
from crosscut.protocol.snapshots import Part
from crosscut.protocol.splits.staged import BEFORE_ALL, FILE
from crosscut.store.checkpoint_store import open_store

FILE_BYTES = 32 * 1024 * 1024
"""About so large is a file, compressed: a reader holds it in memory."""

GROUP_ROWS = 1 << 20
GROUP_BYTES = 32 * 1024 * 1024
"""A group of rows in a file has at most about so many: a reader decodes one at a time, whole. A long one has
each text of a column once."""

_DICTIONARY_BYTES = 4
"""A text takes at least so much if it is not a number that stands for one of few."""

_WAIT_FOR_EVER_MS = 1_000


class Records(Protocol):
    """Makes records of rows."""

    def __call__(self, batch: Any) -> list[Any]:
        """Return the records of a `pyarrow.RecordBatch`: as many as it has rows, or the batch itself."""

    def column_of(self, schema: Any, field: Field) -> int | None:
        """Return the position of the column that holds what `field` is of each; None: there is none."""


@dataclass(frozen=True, slots=True)
class StagedRows(ColumnSource):
    """Reads what was staged. A position is the number of rows of the file that were read.

    Attributes:
        store_url: Of the checkpoint store of the job that reads.
        records: What the rows become. One that gives less records than rows gives one for all.
        ends: Else a split that was read to its end goes on waiting, as the input that a history is of would.
        gives_columns: Its readers return `Rows`.
    """

    store_url: str = field(repr=False)
    records: Records
    ends: bool = True
    gives_columns: bool = False

    def in_columns(self) -> StagedRows:
        """Return the same, in columns."""
        return replace(self, gives_columns=True)

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Nothing is staged by this: see `split_of`."""
        raise ConnectorError("a DataFrame is staged when a job that reads it is started: there is none here")

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Go on at row `position` of a file."""
        match split.detail, position:
            case {"rows": 0}, 0:
                return _Nothing(ends=self.ends)
            case (
                {"staged": str(path), "size_bytes": int(size), "sha256": str(sha256), "rows": int(rows)},
                int(row),
            ) if 0 <= row <= rows:
                return _FileReader(self, Part(path, size, sha256, "", BEFORE_ALL), row, rows)
        raise ConnectorError(
            f"split {split} at position {position!r} is not of a staged DataFrame; is the checkpoint of "
            f"another source?",
            split_id=split.split_id,
        )


def split_of(number: int, part: Part, rows: int) -> Split:
    """Return the split that a staged file is.

    Args:
        number: Of the file, within the source.
    """
    detail: dict[str, JSON] = {
        FILE: part.path,
        "size_bytes": part.size_bytes,
        "sha256": part.sha256,
        "rows": rows,
    }
    return Split(f"{number:06}", 0, detail, weight=max(1, part.size_bytes))


def empty_split() -> Split:
    """Return the split of a source that has no rows."""
    return Split("empty", 0, {"rows": 0})


def staged(
    batches: Iterator[Any],
    *,
    store_url: str,
    task: TaskId,
    epoch: Any,
    number: CheckpointId = BEFORE_ALL,
    file_bytes: int = FILE_BYTES,
) -> Iterator[tuple[Part, int]]:
    """Write Arrow batches into files of about `file_bytes`; yield each, durable by then, with its rows.

    Args:
        task: Whose files they are named after: the source, and the partition.
        number: What they are kept with: nothing, or the batch of a stream.

    Raises:
        StoreError: One can't be stored.
    """
    arrow, parquet = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
    store = open_store(store_url, create=False, inline_bytes=0)
    writer: Any = None
    rows = 0

    def finished() -> tuple[Part, int]:
        writer.close()
        return store.write_part(number, task, epoch, [end.getvalue().to_pybytes()]), rows

    for group in _groups(batches, min(GROUP_BYTES, file_bytes)):
        table = arrow.Table.from_batches(group)
        if writer is None:
            end, rows = arrow.BufferOutputStream(), 0
            writer = parquet.ParquetWriter(end, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=table.num_rows)
        rows += table.num_rows
        if end.tell() >= file_bytes:
            yield finished()
            writer = None
    if writer is not None:
        yield finished()


def _groups(batches: Iterator[Any], bytes_max: int) -> Iterator[list[Any]]:
    """Yield Arrow batches with rows, as many at a time as make a group."""
    group: list[Any] = []
    rows = size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            group.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
        if rows >= GROUP_ROWS or (rows and size_bytes >= bytes_max):
            yield group
            group, rows, size_bytes = [], 0, 0
    if group:
        yield group


class _Nothing(SplitReader[Any]):
    position = 0
    lag = 0

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends

    def read(self, limit: int) -> Wait | EndOfSplit:
        return EndOfSplit() if self._ends else Wait(_WAIT_FOR_EVER_MS)


class _FileReader(SplitReader[Any]):
    """Fetches and decodes in a thread, a batch ahead."""

    def __init__(self, source: StagedRows, part: Part, position: int, rows: int) -> None:
        self._source = source
        self._part = part
        self._position = position
        self._rows = rows
        self._ahead = BatchesAhead(self._read(position))

    @property
    def position(self) -> JSON:
        return self._position

    @property
    def lag(self) -> int:
        return self._rows - self._position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        if self._position >= self._rows:
            return EndOfSplit() if self._source.ends else Wait(_WAIT_FOR_EVER_MS)
        some = self._ahead.take_rows(limit)
        if isinstance(some, Wait):
            return some
        if some is None:
            raise ConnectorError(
                f"{self._part.path} has fewer than {self._rows} rows, and was staged with as many"
            )
        batch, start, end = some
        self._position += end - start
        records = self._source.records
        if self._source.gives_columns:
            return Rows(batch, start, end, records.column_of, records)
        return records(batch.slice(start, end - start))

    def close(self) -> None:
        self._ahead.close()

    def _read(self, position: int) -> Generator[Any, None, None]:
        """Yield record batches from row `position` on. Runs in the thread, all of it."""
        arrow, parquet = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
        try:
            data = open_store(self._source.store_url, create=False).read_part(self._part)
        except StoreError as error:
            raise ConnectorError(
                f"the rows that a DataFrame was staged in can't be read: {error}; they are deleted when no "
                f"checkpoint of their own job needs them",
                path=self._part.path,
            ) from error
        file = parquet.ParquetFile(arrow.BufferReader(data))
        if self._source.gives_columns:
            file = parquet.ParquetFile(
                arrow.BufferReader(data), read_dictionary=_of_few_values(file.metadata)
            )
        first = 0
        for group in range(file.num_row_groups):
            end = first + file.metadata.row_group(group).num_rows
            if position < end:
                table = file.read_row_group(group, use_threads=False).combine_chunks()
                yield from from_row(table.to_batches(), max(0, position - first))
            first = end


def _of_few_values(metadata: Any) -> list[str]:
    """Return the columns of texts, by their paths, whose values were stored as numbers of a dictionary.

    To read others so would look up each text, and find that it is the only one.
    """
    if not metadata.num_row_groups:
        return []
    columns = [metadata.row_group(0).column(index) for index in range(metadata.num_columns)]
    return [
        one.path_in_schema
        for one in columns
        if one.physical_type == "BYTE_ARRAY"
        and one.total_uncompressed_size < _DICTIONARY_BYTES * one.num_values
    ]
