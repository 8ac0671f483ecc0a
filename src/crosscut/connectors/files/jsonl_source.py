"""JSON lines as a source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.files.input_files import FileSource, InputFile, InputFiles, input_pattern
from crosscut.connectors.files.json_decoding import json_value, json_values
from crosscut.connectors.files.lines import (
    LINE_BYTES_MAX,
    Lines,
    LinesReader,
    LongLine,
    checked_bytes_max,
)
from crosscut.connectors.files.malformed import Malformed, checked_malformed, set_aside
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError


def read_jsonl(
    pattern: str | os.PathLike[str],
    *,
    malformed: Malformed = "fail",
    line_bytes_max: int = LINE_BYTES_MAX,
) -> Source[Any]:
    """Return a source of the JSON values that stand in the lines of all files that match `pattern`.

    What files, splits and order are is as for `crosscut.files.lines`; empty lines are left out.

    Args:
        pattern: As for `crosscut.files.lines`; packed files and URLs, too.
        malformed: What becomes of a line that is no JSON, is nested more than 200 levels deep, or is longer
            than `line_bytes_max`: "fail" the job, "skip" it with a warning, or a function of its text and
            the error, whose result becomes the record. Of a line that is too long the text is its beginning.
        line_bytes_max: It bounds the memory of a reader.

    Raises:
        SettingsError: `malformed` or `line_bytes_max` can't be used.
        ConnectorError: `pattern` is not a path. Later, in the job: a line can't be decoded; names the file
            and the byte.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.files.read_jsonl("in/*.jsonl.gz")
    """
    checked_malformed(malformed, "read_jsonl")
    checked_bytes_max(line_bytes_max, "read_jsonl(line_bytes_max=")
    place = input_pattern(pattern, "pattern of the JSON lines source")
    return JsonLinesSource(Lines(place, os.getcwd(), line_bytes_max=line_bytes_max), malformed)


@dataclass(frozen=True, slots=True)
class JsonLinesSource(FileSource[Any]):
    """See `read_jsonl`."""

    lines: Lines
    malformed: Malformed = "fail"

    @property
    def files(self) -> InputFiles:
        """Where they are."""
        return self.lines.files

    def parts(self, one: InputFile) -> Iterator[Split]:
        """Yield the splits of a file; see `Lines.parts`."""
        return self.lines.parts(one)

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Open a file; see `Lines.reader`."""
        return _JsonLinesReader(self.lines.reader(split, position), self.malformed)


class _JsonLinesReader(SplitReader[Any]):
    def __init__(self, lines: LinesReader, malformed: Malformed) -> None:
        self._lines = lines
        self._malformed = malformed

    @property
    def position(self) -> JSON:
        return self._lines.position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        lines = self._lines.read_on(limit, skips=self._malformed != "fail")
        if isinstance(lines, Wait | EndOfSplit):
            return lines
        if isinstance(lines, LongLine):
            records = set_aside(self._malformed, lines.text, lines.error)
        else:
            try:
                records = json_values([line for line in lines if line])
            except ValueError:
                records = self._decoded_singly(lines)
        return records or Wait(0, is_coming=True)

    def close(self) -> None:
        self._lines.close()

    def _decoded_singly(self, lines: list[str]) -> list[Any]:
        records: list[Any] = []
        for index, line in enumerate(lines):
            try:
                if line:
                    records.append(json_value(line))
            except ValueError as error:
                offset = self._lines.start_of_last(len(lines) - index)
                refusal = ConnectorError(
                    f"{self._lines.path}: the line at byte {offset}, {shortened(line)}, can't be "
                    f"read as JSON: {error}; mend the file, or set malformed='skip' or a function to go on "
                    f"without it",
                    path=self._lines.path,
                    offset=offset,
                    is_permanent=True,
                )
                records += set_aside(self._malformed, line, refusal)
        return records
