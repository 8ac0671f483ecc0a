"""JSON lines as a source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any

import orjson

from crosscut.connectors.input_files import FileSource, InputFile, InputFiles, input_pattern
from crosscut.connectors.lines import Lines
from crosscut.errors import ConnectorError
from crosscut.interfaces import JSON, EndOfSplit, Source, Split, SplitReader, Wait


def read_jsonl(pattern: str | os.PathLike[str]) -> Source[Any]:
    """Return a source of the JSON values that stand in the lines of all files that match `pattern`.

    What files, splits and order are is as for `crosscut.files.lines`; empty lines are left out.

    Args:
        pattern: As for `crosscut.files.lines`; packed files and URLs, too.

    Raises:
        ConnectorError: `pattern` is not a path. Later, in the job: a line is no JSON. For lines of which some
            may be broken use `crosscut.files.lines` and a function that deals with them.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.files.read_jsonl("in/*.jsonl.gz")
    """
    return JsonLinesSource(Lines(input_pattern(pattern, "pattern of the JSON lines source"), os.getcwd()))


@dataclass(frozen=True, slots=True)
class JsonLinesSource(FileSource[Any]):
    """See `read_jsonl`."""

    lines: Lines

    @property
    def files(self) -> InputFiles:
        """Where they are."""
        return self.lines.files

    def parts(self, one: InputFile) -> Iterator[Split]:
        """Yield the splits of a file; see `Lines.parts`."""
        return self.lines.parts(one)

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Open a file; see `Lines.reader`."""
        return _JsonLinesReader(self.lines.reader(split, position), split.split_id)


class _JsonLinesReader(SplitReader[Any]):
    def __init__(self, lines: SplitReader[str], name: str) -> None:
        self._lines = lines
        self._name = name

    @property
    def position(self) -> JSON:
        return self._lines.position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        lines = self._lines.read(limit)
        if isinstance(lines, Wait | EndOfSplit):
            return lines
        try:
            return [orjson.loads(line) for line in lines if line] or Wait(0, is_coming=True)
        except orjson.JSONDecodeError:
            raise self._refused(lines) from None

    def close(self) -> None:
        self._lines.close()

    def _refused(self, lines: list[str]) -> ConnectorError:
        for line in lines:
            try:
                orjson.loads(line or "null")
            except orjson.JSONDecodeError as error:
                return ConnectorError(
                    f"{self._name}: line {shortened(line)} is no JSON ({error}); mend the file, or read it "
                    f"with crosscut.files.lines and a function that deals with such lines",
                    split_id=self._name,
                    is_permanent=True,
                )
        raise AssertionError("a line is JSON only if it stands alone")
