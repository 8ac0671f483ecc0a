"""Parquet files as a sink with a two-phase commit; needs pyarrow (`crosscut[parquet]`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from crosscut.connectors.extras import required
from crosscut.connectors.files.arrow_values import RowBatches, schema_of
from crosscut.connectors.files.file_encoders import FileEncoder
from crosscut.connectors.files.file_sink import FileSink, sink_directory
from crosscut.connectors.files.partitions import (
    PARTITIONS_MAX,
    Divider,
    layout_of,
    row_division,
    undivided,
)
from crosscut.connectors.files.rows import checked_row, row_maker
from crosscut.contracts.connectors import Sink, SinkContext, SinkWriter
from crosscut.contracts.frames import TakesFrames, is_same_type
from crosscut.errors import ConnectorError
from crosscut.foundation.frame_rows import FrameRows, schema_text
from crosscut.foundation.suggestions import checks_options

ROW_GROUP_ROWS = 16_384
"""So many rows are compressed in one call, on the event loop: it takes some 10 ms."""

Codec = Literal["snappy", "zstd", "gzip", "none"]
_CODECS = ("snappy", "zstd", "gzip", "none")


@checks_options("files.write_parquet")
def write_parquet(
    directory: str | os.PathLike[str],
    schema: Mapping[str, str] | Any,
    *,
    row: Callable[[Any], Any] | None = None,
    codec: Codec = "snappy",
    partition_by: str | Sequence[str] = (),
    partitions_max: int = PARTITIONS_MAX,
    roll_bytes: int | None = None,
) -> Sink:
    """Return a sink that writes records as rows of Parquet files in `directory`, exactly once.

    Files come to be as those of `crosscut.files.write_jsonl` do: one a task and checkpoint, visible as a
    whole, so that Spark, Polars, DuckDB and all others that read a directory of Parquet see exactly what is
    committed.

    Args:
        directory: See `crosscut.files.write_jsonl`.
        schema: Names and types of the columns: "int64", "float64", "string", "bool", "binary", "date32",
            "timestamp[us]", "timestamp[us, tz=UTC]" and what else pyarrow calls by a name; or a
            `pyarrow.Schema`, for lists, structs and decimals.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.
        codec: "snappy", "zstd", "gzip" or "none".
        partition_by: Columns whose values name directories, and which are not in the files; of type string,
            bool, date32 or an integer. See `crosscut.files.write_jsonl`, for the next two as well.
        partitions_max: How many such directories one task may have rows for in one checkpoint. Each takes
            some memory for the rows that are not written yet.
        roll_bytes: A file of so many bytes is followed by another one of the same checkpoint.

    Raises:
        ConnectorError: pyarrow is missing, an argument is not as described, or Parquet has no form for a
            type. Later, in the job: a record
            is no row, or a value is not of its column's type.

    Examples:
        >>> import crosscut as cc
        >>> sink = cc.files.write_parquet("out", {"word": "string", "count": "int64"})
    """
    checked_row(row)
    if codec not in _CODECS:
        raise ConnectorError(f"codec={codec!r}: expected one of {', '.join(map(repr, _CODECS))}")
    found = sink_directory(directory, "Parquet")
    types = schema_of(schema)
    layout = layout_of(partition_by, partitions_max, roll_bytes, types.names)
    check_partitions(types, layout.partition_by)
    _check_types(types)
    return ParquetFiles(found, layout=layout, schema=types, row=row, codec=codec)


def _check_types(schema: Any) -> None:
    """Raise ConnectorError if Parquet has no form for a column: else the first file would not be written."""
    arrow, library = required("pyarrow", "parquet"), required("pyarrow.parquet", "parquet")
    for field in schema:
        try:
            library.ParquetWriter(_End(), arrow.schema([field])).close()
        except (arrow.ArrowException, NotImplementedError, ValueError) as error:
            raise ConnectorError(
                f"schema: Parquet has no form for column {field.name!r} of type {field.type}: {error}; "
                f"expected another type"
            ) from error


def check_partitions(schema: Any, columns: Sequence[str]) -> None:
    """Raise ConnectorError if values of one of these columns have no name."""
    types = required("pyarrow", "parquet").types
    for column in columns:
        kind = schema.field(column).type
        if not any(
            test(kind) for test in (types.is_string, types.is_integer, types.is_boolean, types.is_date32)
        ):
            raise ConnectorError(
                f"partition_by: column {column!r} is of type {kind}, and values of string, bool, date32 and "
                f"integers have names; make a column of text of it"
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ParquetFiles(FileSink, TakesFrames):
    """See `write_parquet`."""

    schema: Any
    row: Callable[[Any], Any] | None
    codec: Codec

    @property
    def format(self) -> str:
        return "parquet"

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        # Here and not with the first records: it takes a tenth of a second.
        required("pyarrow.parquet", "parquet")
        return FileSink.writer(self, context)

    def encoder(self) -> FileEncoder:
        return ParquetEncoder(self)

    @property
    def encodes_frames(self) -> bool:
        return self.row is None and not self.layout.partition_by

    def takes_frame(self, schema: Any) -> bool:
        if self.row is not None:
            return False
        problems = [
            f"no column {field.name!r}"
            if field.name not in schema
            else f"{field.name!r} of type {schema[field.name]}, expected {field.type}"
            for field in self.schema
            if field.name not in schema or not is_same_type(schema[field.name], field)
        ]
        if problems:
            raise ConnectorError(
                f"{self.location}: the frame has {'; '.join(problems)}; select and cast its columns to those "
                f"of the sink, or change schema=. It has ({schema_text(schema)})"
            )
        return self.encodes_frames

    @property
    def location(self) -> str:
        """What errors call it."""
        return f"Parquet files in {self.describe()}"

    @property
    def schema_of_files(self) -> Any:
        """The columns, without those that divide the output."""
        arrow = required("pyarrow", "parquet")
        return arrow.schema([one for one in self.schema if one.name not in self.layout.partition_by])

    def divider(self) -> Divider:
        columns = self.layout.partition_by
        if not columns:
            return undivided
        arrow = required("pyarrow", "parquet")
        values = RowBatches(arrow.schema([self.schema.field(one) for one in columns]), self.location)

        def check(found: tuple[Any, ...]) -> None:
            values.batch([found])

        to_row = row_maker(self.schema.names, self.row, self.location)
        return row_division(columns, self.schema.names, self.location, to_row, check)


class ParquetEncoder(FileEncoder):
    """Encodes one file: rows become columns at once, and row groups when there are enough."""

    def __init__(self, sink: ParquetFiles) -> None:
        self._arrow = required("pyarrow", "parquet")
        self._codec = sink.codec
        self._schema = sink.schema_of_files
        self._location = sink.location
        self._rows = RowBatches(self._schema, sink.location)
        # What is divided comes as rows.
        row = None if sink.layout.partition_by else sink.row
        self._to_row = row_maker(self._schema.names, row, sink.location)
        self._batches: list[Any] = []
        self._row_count = 0
        self._end = _End()
        self._writer: Any = None

    def add(self, records: list[Any]) -> bytes:
        if isinstance(records, FrameRows):
            return self._add_columns(records)
        rows = [self._to_row(record) for record in records]
        self._batches.append(self._rows.batch(rows))
        self._row_count += len(rows)
        if self._row_count >= ROW_GROUP_ROWS:
            self._write_group()
        return self._end.taken()

    def _add_columns(self, rows: FrameRows) -> bytes:
        for field in self._schema:
            if not field.nullable and rows.frame[field.name].null_count():
                # By rows the first one is found.
                return self.add(list(rows))
        try:
            table = rows.frame.select(self._schema.names).to_arrow().cast(self._schema)
        except self._arrow.ArrowException as error:
            raise ConnectorError(f"{self._location}: a value does not fit its column: {error}") from error
        self._batches += table.to_batches()
        self._row_count += len(rows)
        if self._row_count >= ROW_GROUP_ROWS:
            self._write_group()
        return self._end.taken()

    def finish(self) -> bytes:
        self._write_group()
        self._writer.close()
        return self._end.taken()

    def _write_group(self) -> None:
        if self._writer is None:
            library = required("pyarrow.parquet", "parquet")
            self._writer = library.ParquetWriter(self._end, self._schema, compression=self._codec)
        if self._batches:
            self._writer.write_table(self._arrow.Table.from_batches(self._batches), self._row_count)
        self._batches, self._row_count = [], 0


class _End:
    """The end of the file that is being written: what has not been taken yet."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._parts)
        self._parts = []
        return data
