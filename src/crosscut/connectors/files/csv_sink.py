"""CSV files as a sink with a two-phase commit."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from io import StringIO
from reprlib import repr as shortened
from typing import Any
from uuid import UUID

from crosscut.connectors.files.file_encoders import Compression, FileEncoder
from crosscut.connectors.files.file_sink import FileSink, checked_compression, sink_directory
from crosscut.connectors.files.partitions import (
    PARTITIONS_MAX,
    Divider,
    layout_of,
    row_division,
    undivided,
)
from crosscut.connectors.files.rows import checked_columns, checked_row, row_maker
from crosscut.contracts.connectors import Sink
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options

_AS_IT_IS = frozenset((str, int, float, type(None)))


@checks_options("files.write_csv")
def write_csv(
    directory: str | os.PathLike[str],
    columns: Sequence[str],
    *,
    row: Callable[[Any], Any] | None = None,
    delimiter: str = ",",
    header: bool = True,
    compression: Compression | None = None,
    partition_by: str | Sequence[str] = (),
    partitions_max: int = PARTITIONS_MAX,
    roll_bytes: int | None = None,
) -> Sink:
    r"""Return a sink that writes records as rows of CSV files in `directory`, exactly once.

    Files come to be as those of `crosscut.files.write_jsonl` do: one a task and checkpoint, visible as a
    whole. They are UTF-8; a row ends with "\n"; text with a delimiter, a quote or a line end in it is quoted.
    None is an empty field, True is "true"; dates and times are as in ISO 8601.

    Args:
        directory: See `crosscut.files.write_jsonl`.
        columns: Names, in the order of the values of a record.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.
        delimiter: One character.
        header: Whether each file begins with the names.
        compression: "gzip" (files are called `*.csv.gz`) or "zstd" (`*.csv.zst`; needs `crosscut[zstd]`).
        partition_by: Columns whose values name directories, and which are not in the files; see
            `crosscut.files.write_jsonl`, for the next two as well.
        partitions_max: How many such directories one task may have rows for in one checkpoint.
        roll_bytes: A file of so many bytes is followed by another one of the same checkpoint.

    Raises:
        ConnectorError: An argument is not as described. Later, in the job: a record is no row, or a value has
            no form in CSV (bytes, lists, dicts).

    Examples:
        >>> import crosscut as cc
        >>> sink = cc.files.write_csv("out", ["word", "count"])
    """
    checked_row(row)
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise ConnectorError(f"delimiter={delimiter!r}: expected one character that is no quote or line end")
    names = checked_columns(columns)
    return CsvFiles(
        sink_directory(directory, "CSV"),
        checked_compression(compression),
        layout_of(partition_by, partitions_max, roll_bytes, names),
        names,
        row,
        delimiter,
        header,
    )


@dataclass(frozen=True, slots=True, repr=False)
class CsvFiles(FileSink):
    """See `csv_sink`."""

    columns: tuple[str, ...] = ()
    row: Callable[[Any], Any] | None = None
    delimiter: str = ","
    header: bool = True

    @property
    def format(self) -> str:
        return "csv"

    def encoder(self) -> FileEncoder:
        return CsvEncoder(self)

    def divider(self) -> Divider:
        columns, location = self.layout.partition_by, f"CSV files in {self.describe()}"
        if not columns:
            return undivided
        return row_division(columns, self.columns, location, row_maker(self.columns, self.row, location))

    @property
    def columns_of_files(self) -> tuple[str, ...]:
        """The columns, without those that divide the output."""
        return tuple(name for name in self.columns if name not in self.layout.partition_by)


class CsvEncoder(FileEncoder):
    """Encodes one file."""

    def __init__(self, sink: CsvFiles) -> None:
        self._sink = sink
        # What is divided comes as rows.
        row = None if sink.layout.partition_by else sink.row
        self._to_row = row_maker(sink.columns_of_files, row, f"CSV files in {sink.describe()}")
        self._is_empty = True

    def add(self, records: list[Any]) -> bytes:
        rows: list[Any] = [
            row if _AS_IT_IS.issuperset(map(type, row)) else [self._cell(value, row) for value in row]
            for row in map(self._to_row, records)
        ]
        if self._is_empty and self._sink.header:
            rows.insert(0, self._sink.columns_of_files)
        text = self._text(rows, "\n")
        if "\r" in text:
            # Python quotes a carriage return only where it is a part of what ends rows.
            text = "".join(self._text([row], "\r\n").removesuffix("\r\n") + "\n" for row in rows)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ConnectorError(
                f"CSV files in {self._sink.describe()}: text is not valid Unicode: {error}"
            ) from error
        self._is_empty = False
        return data

    def _text(self, rows: list[Any], line_end: str) -> str:
        text = StringIO()
        csv.writer(text, delimiter=self._sink.delimiter, lineterminator=line_end).writerows(rows)
        return text.getvalue()

    def _cell(self, value: Any, row: tuple[Any, ...]) -> str | int | float | None:
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, Enum):
            return self._cell(value.value, row)
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        if isinstance(value, Decimal | UUID):
            return str(value)
        raise ConnectorError(
            f"CSV files in {self._sink.describe()}: {shortened(value)} of type {type(value).__name__} in row "
            f"{shortened(row)} has no form in CSV; expected None, bool, int, float, str, a date or time, "
            f"Decimal or UUID"
        )
