"""CSV files as a source."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.files.input_files import FileSource, InputFile, InputFiles, input_pattern
from crosscut.connectors.files.lines import (
    LINE_BYTES_MAX,
    Lines,
    LinesReader,
    LongLine,
    checked_bytes_max,
    checked_encoding,
)
from crosscut.connectors.files.malformed import TEXT_MAX, Malformed, checked_malformed, set_aside
from crosscut.connectors.files.rows import checked_columns
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.callables import function_problem
from crosscut.foundation.suggestions import checks_options

_WHOLE = 1 << 62
"""A file is one split: where a row starts in the middle of it can't be told, as text may hold line ends."""


@checks_options("files.read_csv")
def read_csv(
    pattern: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Callable[[str], Any]] | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    malformed: Malformed = "fail",
    row_bytes_max: int = LINE_BYTES_MAX,
) -> Source[dict[str, Any]]:
    """Return a source of the rows of all CSV files that match `pattern`, as dicts of text by column.

    Fields may be quoted with ", and then hold delimiters, line ends and "" for a quote. A quote within a
    field that does not begin with one is text. Each file is one
    split, so order is kept within it. A line end in a quoted field comes out as a newline.

    Args:
        pattern: As for `crosscut.files.read_text`; packed files and URLs, too.
        columns: Names, if the files have no header. Default: the first row of each file has them.
        types: What makes a value of a text, by column, such as {"count": int}.
        delimiter: One character.
        encoding: As for `crosscut.files.read_text`.
        malformed: What becomes of a row that has more or fewer fields than there are columns, one that its
            type refuses, a quote that is never closed, or more than `row_bytes_max`: "fail" the job, "skip"
            it with a warning, or a function of its text and the error, whose result becomes the record. Of a
            row that is too long the text is its beginning.
        row_bytes_max: It bounds the memory of a reader.

    Raises:
        SettingsError: `encoding`, `malformed` or `row_bytes_max` can't be used.
        ConnectorError: Another argument can't be used. Later, in the job: a header or row can't be read;
            names file, byte and row.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.files.read_csv("in/*.csv", types={"count": int})
    """
    checked_encoding(encoding, "read_csv")
    checked_malformed(malformed, "read_csv")
    checked_bytes_max(row_bytes_max, "read_csv(row_bytes_max=")
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise SettingsError(f"delimiter={delimiter!r}: expected one character that is no quote or line end")
    found = dict(types or {})
    if wrong := [name for name, convert in found.items() if not callable(convert)]:
        raise SettingsError(
            f"types: {found[wrong[0]]!r} of column {wrong[0]!r}: expected a function of a str"
        )
    for name, convert in found.items():
        if problem := function_problem(convert, "text"):
            raise SettingsError(f"types: column {name!r}: {problem}")
    names = None if columns is None else checked_columns(columns)
    if names is not None and (unknown := sorted(found.keys() - set(names))):
        raise SettingsError(f"types: there is no column {', '.join(unknown)}; columns are {', '.join(names)}")
    lines = Lines(
        input_pattern(pattern, "pattern of the CSV source"),
        os.getcwd(),
        "strict",
        encoding,
        row_bytes_max,
        split_bytes=_WHOLE,
    )
    return CsvSource(lines, names, found, delimiter, malformed)


@dataclass(frozen=True, slots=True, repr=False)
class CsvSource(FileSource[dict[str, Any]]):
    """See `read_csv`. A position is the byte offset of a row."""

    lines: Lines
    columns: tuple[str, ...] | None = None
    types: dict[str, Callable[[str], Any]] = field(default_factory=dict)
    delimiter: str = ","
    malformed: Malformed = "fail"

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
    """Puts rows together out of lines: one ends with the line that closes its last quote.

    A quote opens a field only where the field begins; in any other place of it, as in `5" disk`, it is text.

    Args:
        size_max: Characters of one row; of a longer one only the beginning is kept.
    """

    def __init__(self, delimiter: str, size_max: int) -> None:
        end = re.escape(delimiter)
        text = r'[^"]*+(?:""[^"]*+)*+'
        whole = rf'(?:[^"{end}][^{end}]*+|"{text}"[^{end}]*+)?+'
        self._opens = re.compile(rf'(?:{whole}{end})*+"{text}\Z')
        self._closes = re.compile(rf'{text}"[^{end}]*+')
        self._size_max = size_max
        self._blocks: list[str] = []
        self._lines: list[str] = []
        self._size = 0
        self.open_count = 0
        """Lines of a row that is not whole yet."""

    @property
    def head(self) -> str:
        """How that row begins."""
        return "\n".join((*self._blocks[:TEXT_MAX], *self._lines[:TEXT_MAX]))[:TEXT_MAX]

    @property
    def is_too_long(self) -> bool:
        """Whether that row is longer than allowed."""
        return self._size > self._size_max

    def drop(self) -> str:
        """Forget that row; return how it begins."""
        head = self.head
        self._blocks, self._lines, self._size, self.open_count = [], [], 0, 0
        return head

    def whole(self, lines: list[str]) -> Iterator[tuple[int, str | LongRow]]:
        """Yield the rows that are whole with `lines`; the rest waits for more.

        Before each comes the index of its first line, -1 for one that was open before.
        """
        first = -1
        for index, line in enumerate(lines):
            if self.open_count:
                if self._add(line):
                    is_long, row = self.is_too_long, "\n".join((*self._blocks, *self._lines))
                    self.drop()
                    yield first, LongRow(row) if is_long else row
            elif '"' in line and self._opens.match(line):
                first = index
                self._add(line)
            elif line:
                yield index, line
        if self._lines:
            # Short lines take far more memory than their text.
            self._blocks.append("\n".join(self._lines))
            self._lines = []

    def _add(self, line: str) -> bool:
        """Add a line to the open row, or open one; return whether it is whole."""
        is_first = not self.open_count
        self.open_count += 1
        if not self.is_too_long:
            self._lines.append(line)
            self._size += len(line) + 1
            if self.is_too_long:
                self._blocks, self._lines = [self.head], []
        if is_first or '"' not in line or (found := self._closes.match(line)) is None:
            return False
        return found.end() == len(line) or self._opens.match(line, found.end() + 1) is None


@dataclass(frozen=True, slots=True)
class LongRow:
    """A row that is longer than allowed.

    Attributes:
        head: How it begins.
    """

    head: str


class _CsvReader(SplitReader[dict[str, Any]]):
    def __init__(self, source: CsvSource, split: Split, position: JSON) -> None:
        self._source = source
        self._split = split
        self._skips = source.malformed != "fail"
        self._lines = self._opened(position)
        self._position = position
        self._rows = self._new_rows()
        self._names = source.columns
        # Who begins in the middle has to look up what the columns are called.
        is_inside = self._names is None and position != 0
        try:
            self._head = self._opened(0) if is_inside else None
        except BaseException:
            self._lines.close()
            raise
        self._head_rows = self._new_rows()
        # The field limit of the module is one for the whole process, and far below that of a row here.
        csv.field_size_limit(max(csv.field_size_limit(), min(source.lines.line_bytes_max, sys.maxsize)))

    def _opened(self, position: JSON) -> LinesReader:
        return self._source.lines.reader(self._split, position)

    def _new_rows(self) -> _Rows:
        return _Rows(self._source.delimiter, self._source.lines.line_bytes_max)

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        if self._head is not None:
            outcome = self._read_head(self._head)
            if outcome is not None:
                return outcome
        lines = self._lines.read_on(limit, skips=self._skips)
        if isinstance(lines, Wait):
            return lines
        if isinstance(lines, EndOfSplit):
            if not self._rows.open_count:
                return lines
            error = self._refusal(self._position, self._rows.head, "it has a quote that is never closed")
            records = set_aside(self._source.malformed, self._rows.drop(), error)
        elif isinstance(lines, LongLine):
            # Whether it closes the quote of an open row can't be told: that is set aside with it.
            head = self._rows.drop() if self._rows.open_count else lines.text
            records = set_aside(self._source.malformed, head, lines.error)
        else:
            return self._read_rows(lines)
        self._position = self._lines.position
        return records or Wait(0, is_coming=True)

    def _read_rows(self, lines: list[str]) -> list[Any] | Wait:
        was_open = bool(self._rows.open_count)
        if not was_open and self._names is not None and not any(line.count('"') & 1 for line in lines):
            # Mostly each line is a row. Where one is not, the parser goes on in the next: so the count tells.
            try:
                records = self._made([line for line in lines if line])
            except (_Refused, csv.Error):
                pass
            else:
                self._position = self._lines.position
                return records or Wait(0, is_coming=True)
        rows = list(self._rows.whole(lines))
        records = self._records(rows, len(lines))
        if not self._rows.open_count:
            self._position = self._lines.position
        elif rows or not was_open:
            self._position = self._lines.start_of_last(self._rows.open_count)
        if self._rows.is_too_long and not self._skips and not records:
            raise self._refusal(self._position, self._rows.head, self._longer)
        return records or Wait(0, is_coming=True)

    def close(self) -> None:
        self._lines.close()
        if self._head is not None:
            self._head.close()

    def _read_head(self, head: LinesReader) -> Wait | EndOfSplit | None:
        while self._names is None:
            lines = head.read(1)
            if isinstance(lines, Wait | EndOfSplit):
                return lines
            for _, row in self._head_rows.whole(lines):
                self._names = self._header(row)
        head.close()
        self._head = None
        return None

    def _records(self, rows: list[tuple[int, str | LongRow]], line_count: int) -> list[Any]:
        """Return the records of rows.

        Args:
            rows: As from `_Rows.whole`.
            line_count: Lines that they were found in.
        """
        if self._names is None and rows:
            self._names = self._header(rows.pop(0)[1])
        try:
            return self._made([row for _, row in rows])
        except (_Refused, csv.Error):
            pass
        records: list[Any] = []
        for index, row in rows:
            try:
                records += self._made([row])
            except (_Refused, csv.Error) as error:
                start = self._position if index < 0 else self._lines.start_of_last(line_count - index)
                text = row.head if isinstance(row, LongRow) else row
                refusal = self._refusal(start, text, str(error))
                refusal.__cause__ = error.__cause__
                records += set_aside(self._source.malformed, text, refusal)
        return records

    def _made(self, rows: Sequence[str | LongRow]) -> list[dict[str, Any]]:
        """Raise _Refused or csv.Error if one of `rows` can't be read."""
        texts = [row for row in rows if isinstance(row, str)]
        if len(texts) < len(rows):
            raise _Refused(self._longer)
        if not rows:
            return []
        assert self._names is not None
        names, width = self._names, len(self._names)
        found = list(csv.reader(texts, delimiter=self._source.delimiter, strict=True))
        if len(found) < len(rows):
            raise _Refused("it has a quote that is never closed")
        for fields in found:
            if len(fields) != width:
                raise _Refused(f"it has {len(fields)} fields, and there are {width} columns")
        records = [dict(zip(names, fields, strict=True)) for fields in found]
        for name, convert in self._source.types.items():
            for record in records:
                try:
                    record[name] = convert(record[name])
                except Exception as error:
                    # Of the user's own function, perhaps.
                    raise _Refused(f"column {name!r}: {type(error).__name__}: {error}") from error
        return records

    @property
    def _longer(self) -> str:
        return (
            f"it is longer than {self._source.lines.line_bytes_max} bytes: is there a quote that is never "
            f"closed? If not, raise row_bytes_max"
        )

    def _header(self, row: str | LongRow) -> tuple[str, ...]:
        if isinstance(row, LongRow):
            raise self._refusal(0, row.head, self._longer)
        try:
            (names,) = csv.reader([row], delimiter=self._source.delimiter, strict=True)
        except csv.Error as error:
            raise self._refusal(0, row, str(error)) from error
        if len(set(names)) < len(names) or not all(names):
            raise self._refusal(0, row, "as a header it has a name twice, or none; give columns=")
        if unknown := sorted(self._source.types.keys() - set(names)):
            raise self._refusal(0, row, f"as a header it lacks {', '.join(unknown)}, which types= names")
        return tuple(names)

    def _refusal(self, offset: JSON, row: str, why: str) -> ConnectorError:
        path = self._lines.path
        return ConnectorError(
            f"{path}: the row at byte {offset}, {shortened(row)}: {why}; correct the file, or set "
            f"malformed='skip' or a function to skip the row",
            path=path,
            offset=offset,
            is_permanent=True,
        )


class _Refused(Exception):
    """Why a row can't be read."""
