"""Parquet files as a sink with a two-phase commit; needs pyarrow (`crosscut[parquet]`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any, Literal

from crosscut.connectors.arrow_values import check_values
from crosscut.connectors.extras import required
from crosscut.connectors.file_encoders import FileEncoder
from crosscut.connectors.file_sink import FileSink, sink_directory
from crosscut.connectors.rows import checked_columns, checked_row, row_maker
from crosscut.errors import ConnectorError
from crosscut.interfaces import Sink, SinkContext, SinkWriter

ROW_GROUP_ROWS = 16_384
"""So many rows are compressed in one call, on the event loop: it takes some 10 ms."""

Codec = Literal["snappy", "zstd", "gzip", "none"]
# Arrow's own exceptions are of these kinds, too.
_REFUSALS = (TypeError, ValueError, OverflowError, AttributeError, NotImplementedError)
_CODECS = ("snappy", "zstd", "gzip", "none")


def parquet(
    directory: str | os.PathLike[str],
    schema: Mapping[str, str] | Any,
    *,
    row: Callable[[Any], Any] | None = None,
    codec: Codec = "snappy",
) -> Sink:
    """Return a sink that writes records as rows of Parquet files in `directory`, exactly once.

    Files come to be as those of `crosscut.files.jsonl` do: one a task and checkpoint, visible as a whole, so
    that Spark, Polars, DuckDB and all others that read a directory of Parquet see exactly what is
    committed.

    Args:
        directory: See `crosscut.files.jsonl`.
        schema: Names and types of the columns: "int64", "float64", "string", "bool", "binary", "date32",
            "timestamp[us]", "timestamp[us, tz=UTC]" and what else pyarrow calls by a name; or a
            `pyarrow.Schema`, for lists, structs and decimals.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.
        codec: "snappy", "zstd", "gzip" or "none".

    Raises:
        ConnectorError: pyarrow is missing, or an argument is not as described. Later, in the job: a record
            is no row, or a value is not of its column's type.

    Examples:
        >>> import crosscut as cc
        >>> sink = cc.files.parquet("out", {"word": "string", "count": "int64"})
    """
    checked_row(row)
    if codec not in _CODECS:
        raise ConnectorError(f"codec={codec!r}: expected one of {', '.join(map(repr, _CODECS))}")
    found = sink_directory(directory, "Parquet")
    return ParquetFiles(found, schema=_schema_of(schema), row=row, codec=codec)


def _schema_of(schema: Any) -> Any:
    arrow = required("pyarrow", "parquet")
    if isinstance(schema, arrow.Schema):
        checked_columns(schema.names)
        return schema
    if not isinstance(schema, Mapping):
        raise ConnectorError(
            f"schema={schema!r:.200}: expected names and types, such as {{'word': 'string', 'count': "
            f"'int64'}}, or a pyarrow.Schema"
        )
    checked_columns(schema)
    return arrow.schema([(name, _type_of(arrow, name, kind)) for name, kind in schema.items()])


def _type_of(arrow: Any, name: str, kind: Any) -> Any:
    if isinstance(kind, arrow.DataType):
        return kind
    if isinstance(kind, str):
        unit, _, zone = kind.removesuffix("]").partition(", tz=")
        if zone and unit.startswith("timestamp["):
            return arrow.timestamp(unit.removeprefix("timestamp["), tz=zone)
        try:
            return arrow.type_for_alias(kind)
        except ValueError:
            pass
    raise ConnectorError(
        f"schema: {kind!r} is no type for {name!r}; expected one such as 'int64', 'string' or "
        f"'timestamp[us]', or give a pyarrow.Schema"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFiles(FileSink):
    """See `parquet`."""

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


class ParquetEncoder(FileEncoder):
    """Encodes one file: rows become columns at once, and row groups when there are enough."""

    def __init__(self, sink: ParquetFiles) -> None:
        self._arrow = required("pyarrow", "parquet")
        self._location = f"Parquet files in {sink.directory}"
        self._sink = sink
        self._to_row = row_maker(sink.schema.names, sink.row, self._location)
        self._batches: list[Any] = []
        self._row_count = 0
        self._end = _End()
        self._writer: Any = None

    def add(self, records: list[Any]) -> bytes:
        rows = [self._to_row(record) for record in records]
        try:
            batch = self._batch(rows)
        except _REFUSALS as error:
            raise self._refused(rows, error) from error
        self._batches.append(batch)
        self._row_count += len(rows)
        if self._row_count >= ROW_GROUP_ROWS:
            self._write_group()
        return self._end.taken()

    def finish(self) -> bytes:
        self._write_group()
        self._writer.close()
        return self._end.taken()

    def _batch(self, rows: list[tuple[Any, ...]]) -> Any:
        schema = self._sink.schema
        columns = list(zip(*rows, strict=True))
        for field, values in zip(schema, columns, strict=True):
            check_values(self._arrow, values, field.type)
        arrays = [
            self._arrow.array(values, field.type) for field, values in zip(schema, columns, strict=True)
        ]
        for field, array in zip(schema, arrays, strict=True):
            if not field.nullable and array.null_count:
                raise ValueError(f"column {field.name!r} takes no None")
        return self._arrow.RecordBatch.from_arrays(arrays, schema=schema)

    def _write_group(self) -> None:
        if self._writer is None:
            library = required("pyarrow.parquet", "parquet")
            self._writer = library.ParquetWriter(self._end, self._sink.schema, compression=self._sink.codec)
        if self._batches:
            self._writer.write_table(self._arrow.Table.from_batches(self._batches), self._row_count)
        self._batches, self._row_count = [], 0

    def _refused(self, rows: list[tuple[Any, ...]], error: Exception) -> ConnectorError:
        for row in rows:
            try:
                self._batch([row])
            except _REFUSALS as found:
                kinds = ", ".join(f"{field.name}: {field.type}" for field in self._sink.schema)
                return ConnectorError(
                    f"{self._location}: row {shortened(row)} does not fit the schema ({kinds}): {found}; map "
                    f"it to one that does, or change the schema"
                )
        return ConnectorError(f"{self._location}: {len(rows)} rows do not fit the schema together: {error}")


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
