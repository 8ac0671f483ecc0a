"""CSV files as a source."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.input_files import FileSource, InputFile, InputFiles, input_pattern
from crosscut.connectors.lines import Lines, LinesReader, checked_encoding
from crosscut.connectors.rows import checked_columns
from crosscut.errors import ConnectorError, SettingsError
from crosscut.interfaces import JSON, EndOfSplit, Source, Split, SplitReader, Wait

_WHOLE = 1 << 62
"""A file is one split: where a row starts in the middle of it can't be told, as text may hold line ends."""


def read_csv(
    pattern: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Callable[[str], Any]] | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
) -> Source[dict[str, Any]]:
    """Return a source of the rows of all CSV files that match `pattern`, as dicts of text by column.

    Fields may be quoted with ", and then hold delimiters, line ends and "" for a quote. Each file is one
    split, so order is kept within it. A line end in a quoted field comes out as a newline.

    Args:
        pattern: As for `crosscut.files.lines`; packed files and URLs, too.
        columns: Names, if the files have no header. Default: the first row of each file has them.
        types: What makes a value of a text, by column, such as {"count": int}.
        delimiter: One character.
        encoding: As for `crosscut.files.lines`.

    Raises:
        SettingsError: `encoding` can't be used.
        ConnectorError: Another argument can't be used. Later, in the job: a row has more or fewer fields than
            there are columns, or one that its type refuses; names file and row.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.files.read_csv("in/*.csv", types={"count": int})
    """
    checked_encoding(encoding, "read_csv")
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise SettingsError(f"delimiter={delimiter!r}: expected one character that is no quote or line end")
    found = dict(types or {})
    if wrong := [name for name, convert in found.items() if not callable(convert)]:
        raise SettingsError(
            f"types: {found[wrong[0]]!r} of column {wrong[0]!r}: expected a function of a str"
        )
    names = None if columns is None else checked_columns(columns)
    if names is not None and (unknown := sorted(found.keys() - set(names))):
        raise SettingsError(f"types: there is no column {', '.join(unknown)}; columns are {', '.join(names)}")
    lines = Lines(
        input_pattern(pattern, "pattern of the CSV source"),
        os.getcwd(),
        "strict",
        encoding,
        split_bytes=_WHOLE,
    )
    return CsvSource(lines, names, found, delimiter)


@dataclass(frozen=True, slots=True)
class CsvSource(FileSource[dict[str, Any]]):
    """See `read_csv`. A position is the byte offset of a row."""

    lines: Lines
    columns: tuple[str, ...] | None = None
    types: dict[str, Callable[[str], Any]] = field(default_factory=dict)
    delimiter: str = ","

    @property
    def files(self) -> InputFiles:
        """Where they are."""
        return self.lines.files

    def parts(self, one: InputFile) -> Iterator[Split]:
        """Yield the splits of a file; see `Lines.parts`."""
        return self.lines.parts(one)

    def reader(self, split: Split, position: JSON) -> SplitReader[dict[str, Any]]:
        """Open a file at the row that starts at byte `position`."""
        return _CsvReader(self, split, position)


class _Rows:
    """Puts rows together out of lines: one ends with the line that closes its last quote."""

    def __init__(self) -> None:
        self.open: list[str] = []

    def whole(self, lines: list[str]) -> list[str]:
        """Return the rows that are whole with `lines`; the rest waits for more."""
        rows: list[str] = []
        for line in lines:
            has_odd = line.count('"') % 2 == 1
            if self.open:
                self.open.append(line)
                if has_odd:
                    rows.append("\n".join(self.open))
                    self.open = []
            elif has_odd:
                self.open.append(line)
            elif line:
                rows.append(line)
        return rows


class _CsvReader(SplitReader[dict[str, Any]]):
    def __init__(self, source: CsvSource, split: Split, position: JSON) -> None:
        self._source = source
        self._split = split
        self._lines = self._opened(position)
        self._position = position
        self._rows = _Rows()
        self._names = source.columns
        # Who begins in the middle has to look up what the columns are called.
        is_inside = self._names is None and position != 0
        try:
            self._head = self._opened(0) if is_inside else None
        except BaseException:
            self._lines.close()
            raise
        self._head_rows = _Rows()

    def _opened(self, position: JSON) -> LinesReader:
        found = self._source.lines.reader(self._split, position)
        assert isinstance(found, LinesReader)
        return found

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        if self._head is not None:
            outcome = self._read_head(self._head)
            if outcome is not None:
                return outcome
        was_open = bool(self._rows.open)
        lines = self._lines.read(limit)
        if isinstance(lines, Wait):
            return lines
        if isinstance(lines, EndOfSplit):
            if self._rows.open:
                raise ConnectorError(
                    f"{self._name}: the row at byte {self._position} has a quote that is never closed: "
                    f"{shortened(self._rows.open[0])}; mend the file",
                    split_id=self._name,
                )
            return lines
        rows = self._rows.whole(lines)
        records = self._records(rows)
        if not self._rows.open:
            self._position = self._lines.position
        elif rows or not was_open:
            self._position = self._lines.start_of_last(len(self._rows.open))
        return records or Wait(0, is_coming=True)

    def close(self) -> None:
        self._lines.close()
        if self._head is not None:
            self._head.close()

    @property
    def _name(self) -> str:
        return self._split.split_id

    def _read_head(self, head: LinesReader) -> Wait | EndOfSplit | None:
        while self._names is None:
            lines = head.read(1)
            if isinstance(lines, Wait | EndOfSplit):
                return lines
            if rows := self._head_rows.whole(lines):
                self._names = self._header(self._fields(rows)[0])
        head.close()
        self._head = None
        return None

    def _records(self, rows: list[str]) -> list[dict[str, Any]]:
        found = self._fields(rows)
        if self._names is None:
            if not found:
                return []
            self._names = self._header(found.pop(0))
        names, width = self._names, len(self._names)
        for fields in found:
            if len(fields) != width:
                raise self._refused(fields, f"it has {len(fields)} fields, and there are {width} columns")
        records = [dict(zip(names, fields, strict=True)) for fields in found]
        for name, convert in self._source.types.items():
            for record in records:
                try:
                    record[name] = convert(record[name])
                except Exception as error:
                    # Of the user's own function, perhaps.
                    raise self._refused(
                        list(record.values()), f"column {name!r}: {type(error).__name__}: {error}"
                    ) from error
        return records

    def _fields(self, rows: list[str]) -> list[list[str]]:
        try:
            return list(csv.reader(rows, delimiter=self._source.delimiter, strict=True))
        except csv.Error:
            for row in rows:
                try:
                    list(csv.reader([row], delimiter=self._source.delimiter, strict=True))
                except csv.Error as error:
                    raise self._refused(row, str(error)) from error
            raise

    def _header(self, names: list[str]) -> tuple[str, ...]:
        if len(set(names)) < len(names) or not all(names):
            raise self._refused(names, "as a header it has a name twice, or none; give columns=")
        if unknown := sorted(self._source.types.keys() - set(names)):
            raise self._refused(names, f"as a header it lacks {', '.join(unknown)}, which types= names")
        return tuple(names)

    def _refused(self, row: object, why: str) -> ConnectorError:
        return ConnectorError(
            f"{self._name}: row {shortened(row)}: {why}; mend the file", split_id=self._name
        )
