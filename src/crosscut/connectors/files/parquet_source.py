"""Parquet files as a source; needs pyarrow (`crosscut[parquet]`)."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.arrow_reading import RowConverter
from crosscut.connectors.files.input_files import (
    FileSource,
    InputFile,
    InputFiles,
    input_pattern,
    unreadable,
)
from crosscut.connectors.files.parquet_limits import rows_at_once
from crosscut.connectors.files.read_ahead import BatchesAhead, from_row
from crosscut.connectors.files.rows import checked_columns
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.contracts.frames import FrameSource, polars_errors
from crosscut.errors import ConnectorError
from crosscut.foundation.frame_rows import FrameRows
from crosscut.foundation.suggestions import checks_options

BATCH_ROWS = 4_096
FRAME_BATCH_ROWS = 65_536
SPLIT_BYTES = 64 * 1024 * 1024


@checks_options("files.read_parquet")
def read_parquet(
    pattern: str | os.PathLike[str], *, columns: Sequence[str] | None = None
) -> Source[dict[str, Any]]:
    """Return a source of the rows of all Parquet files that match `pattern`, as dicts by column.

    Files are found when the job starts with no checkpoint, and must not change while they are read. A file
    is one split, a large one several, by row groups; within a split order is kept. Reading and decoding
    happen in a thread, one batch ahead.

    Args:
        pattern: As for `crosscut.files.read_text`; URLs, too.
        columns: Which to read; default: all. Other columns cost nothing.

    Raises:
        ConnectorError: pyarrow is missing, or an argument can't be used. Later, in the job: a file is no
            Parquet, lacks a column, has two of one name, or holds a value that Python has none for: times
            before year 1 or after 9999, or parts of a microsecond. Names file, column and row.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.files.read_parquet("in/**/*.parquet", columns=["word"])
    """
    required("pyarrow", "parquet")
    names = None if columns is None else checked_columns(columns)
    return ParquetSource(input_pattern(pattern, "pattern of the Parquet source"), os.getcwd(), names)


@dataclass(frozen=True, slots=True, repr=False)
class ParquetSource(FileSource[dict[str, Any]], FrameSource):
    """See `read_parquet`. A position is the number of a row in its file."""

    pattern: str
    directory: str
    columns: tuple[str, ...] | None = None
    split_bytes: int = SPLIT_BYTES
    batch_rows: int = BATCH_ROWS
    as_frames: bool = False

    @property
    def files(self) -> InputFiles:
        """Where they are."""
        return InputFiles(self.pattern, self.directory)

    def frame_schema(self) -> Any:
        """Return the schema of the first file."""
        one = self.files.found()[0]
        file = self.opened(one.path, self.files.raw(one.path))
        try:
            schema = file.schema_arrow
        finally:
            file.close(force=True)
        arrow = required("pyarrow", "parquet")
        names = self.columns or schema.names
        # Another file may have nulls where the first one has none.
        return arrow.schema([schema.field(name).with_nullable(True) for name in names])

    def in_frames(self, columns: Sequence[str]) -> Source[Any]:
        """Return the source of the same rows as columns."""
        known = self.columns
        missing = [name for name in columns if known is not None and name not in known]
        if missing:
            raise ConnectorError(
                f"read_parquet(columns={list(known or ())}) does not read {', '.join(missing)}: add these to "
                f"columns=, or leave columns= out, since a frame reads only the columns of its schema"
            )
        wanted = tuple(columns) or known
        return replace(self, columns=wanted, batch_rows=FRAME_BATCH_ROWS, as_frames=True)

    def reader(self, split: Split, position: JSON) -> SplitReader[dict[str, Any]]:
        """Open a file at row `position`."""
        match split.detail, position:
            case {"path": str(path), "end": int(end)}, int(row) if row >= 0:
                return _ParquetReader(self, path, row, end)
        raise ConnectorError(
            f"split {split} at position {position!r} is not of a Parquet source; is the checkpoint of "
            f"another source?",
            split_id=split.split_id,
        )

    def opened(self, path: str, raw: Any) -> Any:
        """Open a file.

        Args:
            raw: What `files` has opened; it is closed if this raises.

        Raises:
            ConnectorError: It can't be opened, is no Parquet, or lacks a column.
        """
        arrow, library = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
        try:
            # Spark writes INT96 by default. Nanoseconds end in 2262, and what is beyond would come out as
            # another time.
            found = library.ParquetFile(raw, coerce_int96_timestamp_unit="us")
        except (arrow.ArrowException, OSError) as error:
            raw.close()
            raise unreadable(path, error) from error
        names = found.schema_arrow.names
        missing = sorted(set(self.columns or ()) - set(names))
        wanted = set(self.columns or names)
        twice = sorted({name for name in wanted if names.count(name) > 1})
        if missing or twice:
            raw.close()
            raise ConnectorError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(names)}"
                if missing
                else f"{path} has several columns called {', '.join(twice)}, and a row is a dict with one "
                f"value for each name: write the file with different names, or leave them out with columns=",
                path=path,
            )
        return found

    def parts(self, one: InputFile) -> Iterator[Split]:
        """Read where the row groups are, and yield ranges of rows."""
        file = self.opened(one.path, self.files.raw(one.path))
        try:
            start = end = size = 0
            for index in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(index)
                end += group.num_rows
                size += group.total_byte_size
                is_last = index + 1 == file.metadata.num_row_groups
                if size >= self.split_bytes or is_last:
                    yield self._range(one, start, end, size, is_whole=is_last and start == 0)
                    start, size = end, 0
            if file.metadata.num_row_groups == 0:
                yield self._range(one, 0, 0, 1, is_whole=True)
        finally:
            file.close(force=True)

    def _range(self, one: InputFile, start: int, end: int, size: int, *, is_whole: bool) -> Split:
        split_id = one.name if is_whole else f"{one.name}@{start}"
        return Split(split_id, start, {"path": one.path, "end": end}, weight=max(1, size))


class _ParquetReader(SplitReader[dict[str, Any]]):
    def __init__(self, source: ParquetSource, path: str, position: int, end: int) -> None:
        self._source = source
        self._path = path
        self._position = position
        self._end = end
        self._ahead = BatchesAhead(self._read(position))
        self._rows: RowConverter | None = None

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[dict[str, Any]] | Wait | EndOfSplit:
        if self._position >= self._end:
            return EndOfSplit()
        some = self._ahead.take(min(limit, self._end - self._position))
        if isinstance(some, Wait):
            return some
        if some is None:
            raise self._shrank()
        records = self._frame(some) if self._source.as_frames else self._records(some)
        self._position += len(records)
        return records or Wait(0, is_coming=True)

    def _records(self, some: Any) -> list[Any]:
        assert self._rows is not None
        return self._rows.rows(some, self._position)

    def _frame(self, some: Any) -> list[Any]:
        try:
            return FrameRows(required("polars", "polars").from_arrow(some))
        except polars_errors() as error:
            raise ConnectorError(
                f"{self._path}: Polars can't hold the rows from row {self._position} on: {error}. Call "
                f"frame with a schema without the column, or write the file with another type",
                path=self._path,
            ) from error

    def close(self) -> None:
        self._ahead.close()

    def _read(self, position: int) -> Generator[Any, None, None]:
        """Yield record batches from row `position` on. Runs in the thread, all of it."""
        arrow = required("pyarrow", "parquet")
        raw = self._source.files.raw(self._path)
        file = self._source.opened(self._path, raw)
        columns = list(self._source.columns) if self._source.columns else None
        try:
            if file.metadata.num_rows < self._end:
                raise self._shrank()
            first, row, groups = 0, position, []
            for index in range(file.metadata.num_row_groups):
                last = first + file.metadata.row_group(index).num_rows
                if last > position and first < self._end:
                    groups.append((index, max(0, position - first)))
                first = last
            for index, skipped in groups:
                rows_max = rows_at_once(file, raw, index, columns, self._source.batch_rows, self._path)
                batches = file.iter_batches(
                    rows_max,
                    row_groups=[index],
                    columns=columns,
                    use_threads=False,
                )
                for batch in from_row(batches, skipped):
                    if self._rows is None:
                        self._rows = RowConverter(batch.schema, self._path)
                    yield batch if self._source.as_frames else self._rows.plain(batch, row)
                    row += batch.num_rows
        except (arrow.ArrowException, OSError) as error:
            raise unreadable(self._path, error) from error
        finally:
            file.close(force=True)

    def _shrank(self) -> ConnectorError:
        return ConnectorError(
            f"{self._path} has fewer than {self._end} rows: it was replaced while the job was reading it; "
            f"restore the file",
            path=self._path,
        )
