"""JSON lines as a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any, Literal

from crosscut.connectors.extras import ExtraMissing
from crosscut.connectors.files.decode_functions import decode_problem
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
from crosscut.connectors.files.typed_json import TypedJson
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.contracts.decoding import DecodingTrial, ProcessDiedError, TriedDecoding
from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.suggestions import checks_options


@checks_options("files.read_jsonl")
def read_jsonl(
    pattern: str | os.PathLike[str],
    *,
    decode: Literal["json"] | Callable[[str], Any] = "json",
    malformed: Malformed = "fail",
    line_bytes_max: int = LINE_BYTES_MAX,
) -> Source[Any]:
    """Return a source of the JSON values that stand in the lines of all files that match `pattern`.

    What files, splits and order are is as for `crosscut.files.read_text`; empty lines are left out.

    Args:
        pattern: As for `crosscut.files.read_text`; packed files and URLs, too.
        decode: What records are: the values of "json", those of a class with `crosscut.json(Payment)`, or a
            function of the line.
        malformed: What becomes of a line that can't be decoded, is nested more than 200 levels deep, or is
            longer than `line_bytes_max`: "fail" the job, "skip" it with a warning, or a function of its text
            and the error, whose result becomes the record. Of a line that is too long the text is its
            beginning.
        line_bytes_max: It bounds the memory of a reader.

    Raises:
        SettingsError: An argument can't be used.
        ConnectorError: `pattern` is not a path. Later, in the job: a line can't be decoded; names the file
            and the byte.

    Examples:
        >>> import crosscut as cc
        >>> source = cc.files.read_jsonl("in/*.jsonl.gz")
    """
    if decode != "json" and not callable(decode):
        raise SettingsError(
            f"read_jsonl(decode={shortened(decode)}): expected 'json', crosscut.json(class), or a function "
            f"of the text of a line"
        )
    if decode != "json" and not isinstance(decode, TypedJson) and (problem := decode_problem(decode, "line")):
        raise SettingsError(f"read_jsonl(decode={shortened(decode)}): {problem}")
    checked_malformed(malformed, "read_jsonl")
    checked_bytes_max(line_bytes_max, "read_jsonl(line_bytes_max=")
    place = input_pattern(pattern, "pattern of the JSON lines source")
    return JsonLinesSource(Lines(place, os.getcwd(), line_bytes_max=line_bytes_max), malformed, decode)


@dataclass(frozen=True, slots=True, repr=False)
class JsonLinesSource(FileSource[Any]):
    """See `read_jsonl`."""

    lines: Lines
    malformed: Malformed = "fail"
    decode: Literal["json"] | Callable[[str], Any] = "json"

    @property
    def files(self) -> InputFiles:
        """Where they are."""
        return self.lines.files

    def parts(self, one: InputFile) -> Iterator[Split]:
        """Yield the splits of a file; see `Lines.parts`."""
        return self.lines.parts(one)

    def reader(self, split: Split, position: JSON) -> SplitReader[Any]:
        """Open a file; see `Lines.reader`."""
        return _JsonLinesReader(self.lines.reader(split, position), self.malformed, self.decode)


class _JsonLinesReader(SplitReader[Any]):
    def __init__(
        self, lines: LinesReader, malformed: Malformed, decode: Literal["json"] | Callable[[str], Any]
    ) -> None:
        self._lines = lines
        self._malformed = malformed
        self._decode = json_value if decode == "json" else decode
        self._is_any = decode == "json"
        self._trial: DecodingTrial | None = None

    @property
    def position(self) -> JSON:
        return self._lines.position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        lines = self._lines.read_on(limit, skips=self._malformed != "fail")
        if isinstance(lines, Wait | EndOfSplit):
            return lines
        if isinstance(lines, LongLine):
            records = set_aside(self._malformed, lines.text, lines.error)
        elif self._trial is not None:
            records = self._decoded_singly(lines)
        else:
            found = [line for line in lines if line]
            try:
                records = json_values(found) if self._is_any else list(map(self._decode, found))
            except Exception:  # noqa: BLE001 - a user's function may raise anything
                records = self._decoded_singly(lines)
        return records or Wait(0, is_coming=True)

    def try_decoding(self, trial: DecodingTrial | None) -> None:
        self._trial = trial

    def close(self) -> None:
        self._lines.close()

    def _decoded_singly(self, lines: list[str]) -> list[Any]:
        records: list[Any] = []
        decode: Callable[[str], Any] = self._decode
        if self._trial is not None:
            decode = TriedDecoding(decode, self._trial, [line for line in lines if line])
        for index, line in enumerate(lines):
            try:
                if line:
                    records.append(decode(line))
            except (ExtraMissing, SettingsError):
                # No line is to blame for that.
                raise
            except Exception as error:  # noqa: BLE001 - as above
                offset = self._lines.start_of_last(len(lines) - index)
                died = error if isinstance(error, ProcessDiedError) else None
                reason = died.sentence if died is not None else f"can't be read as JSON: {error}"
                refusal = ConnectorError(
                    f"{self._lines.path}: the line at byte {offset}, {shortened(line)}, {reason}; correct "
                    f"the file, or set malformed='skip' or a function to skip the line",
                    path=self._lines.path,
                    offset=offset,
                    # A function of the user may need a service that is down.
                    is_permanent=self._is_any or died is not None or isinstance(self._decode, TypedJson),
                )
                if died is not None:
                    # Of others the traceback has the exception of the user's function.
                    refusal.__cause__ = died
                records += set_aside(self._malformed, line, refusal)
        return records
