"""JSON lines as a sink with a two-phase commit."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import orjson

from crosscut.connectors.files.file_encoders import Compression, FileEncoder, Plain
from crosscut.connectors.files.file_sink import FileSink, checked_compression, sink_directory
from crosscut.connectors.files.json_values import (
    OPTIONS,
    check_finite,
    dumped,
    fields_of,
    has_cut_offset,
    with_fields,
)
from crosscut.connectors.files.partitions import (
    PARTITIONS_MAX,
    Divider,
    Division,
    layout_of,
    undivided,
)
from crosscut.contracts.connectors import Sink
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options

_RAW_NEWLINE = orjson.Fragment(b"\n")


@checks_options("files.write_jsonl")
def write_jsonl(
    directory: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
    partition_by: str | Sequence[str] = (),
    partitions_max: int = PARTITIONS_MAX,
    roll_bytes: int | None = None,
) -> Sink:
    """Return a sink that writes one JSON value a line into files of `directory`, exactly once.

    Each task adds one `part-*.jsonl` file a checkpoint, if it has records; by name they sort by task,
    then checkpoint. Visible files are final, and may be taken away at once. Output that is not committed yet
    is in the hidden directory `.crosscut`, and so is the job's memory of what it has committed: it stays for
    as long as the job's checkpoints do. Tuples become arrays; str, int (of any size), float, bool, None,
    list, dict, dataclasses, enums, dates and UUIDs can be written.

    Args:
        directory: A path, or file:///path, on a POSIX file system that the driver and all workers
            share. Relative to the working directory of this process. Made if missing. Or s3:// or gs://: the
            guide to files says what differs there.
        compression: "gzip" (files are called `*.jsonl.gz`) or "zstd" (`*.jsonl.zst`; needs `crosscut[zstd]`).
        partition_by: Fields of the records, which are dicts or dataclasses then, whose values name
            directories: `country=DE/part-*.jsonl`, as Hive has them. They are not in the lines. Values are
            str, int, bool, date or None.
        partitions_max: How many such directories one task may have rows for in one checkpoint.
        roll_bytes: A file of so many bytes, as they are written, is followed by another one of the same
            checkpoint; from 1 MiB on.

    Raises:
        ConnectorError: `directory` is neither a path nor in such an object store. Later, in the job: a
            record can't be JSON (NaN and infinity can't: they would come back as null).

    Examples:
        >>> import crosscut as cc
        >>> sink = cc.files.write_jsonl("out")
    """
    return JsonLines(
        sink_directory(directory, "JSON lines"),
        checked_compression(compression),
        layout_of(partition_by, partitions_max, roll_bytes),
    )


@dataclass(frozen=True, slots=True, repr=False)
class JsonLines(FileSink):
    """See `write_jsonl`."""

    @property
    def format(self) -> str:
        return "jsonl"

    def encoder(self) -> FileEncoder:
        return Plain(partial(encoded_lines, directory=self.describe()))

    def divider(self) -> Divider:
        columns = self.layout.partition_by
        if not columns:
            return undivided
        rows, location = _Rows(columns, self.describe()), f"JSON lines in {self.describe()}"
        return Division(columns, itemgetter(*columns), rows.rest, location, before=rows.of)


class _Rows:
    """Records as dicts, of which some fields name directories."""

    def __init__(self, columns: tuple[str, ...], directory: str) -> None:
        self._columns = frozenset(columns)
        self._directory = directory

    def of(self, record: Any) -> Any:
        """Return a record as a dict that has these fields.

        Raises:
            ConnectorError: It is none, or lacks one.
        """
        found = record
        if is_dataclass(record) and not isinstance(record, type):
            found = {field.name: getattr(record, field.name) for field in fields(record)}
        if not isinstance(found, dict):
            raise _refused(record, self._directory, "it has no fields to partition by")
        if not found.keys() >= self._columns:
            missing = ", ".join(sorted(self._columns - found.keys()))
            raise _refused(
                record, self._directory, f"it has no {missing}, by which the output is partitioned"
            )
        return found

    def rest(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return what the line holds."""
        return {name: value for name, value in row.items() if name not in self._columns}


def encoded_lines(records: Sequence[Any], directory: str) -> bytes:
    """Return `records`, at least one, as JSON lines; `directory` is what errors call the sink by.

    Raises:
        ConnectorError: A record can't be JSON; the message shows it.
    """
    # One call for all records is ten times as fast as one for each. They are told apart by the raw
    # newlines put between them: within a record orjson escapes newlines.
    spaced: list[Any] = [_RAW_NEWLINE] * (2 * len(records) - 1)
    try:
        spaced[::2] = with_fields(records)
        encoded = orjson.dumps(spaced, fields_of, OPTIONS)[1:-1].replace(b",\n,", b"\n") + b"\n"
        is_complete = encoded.count(b"\n") == len(records) and not has_cut_offset(spaced, encoded)
    except TypeError:
        # orjson's own is one.
        is_complete = False
    if not is_complete:
        encoded = b"".join(_line(record, directory) for record in records)
    # orjson writes NaN and infinity as null, which would lose data silently. Where there is no null
    # there is nothing to check, so records without None cost one search of the whole batch.
    if b"null" in encoded:
        for record, line in zip(records, encoded[:-1].split(b"\n"), strict=True):
            if b"null" in line:
                try:
                    check_finite(record)
                except ValueError as error:
                    raise _refused(record, directory, str(error)) from error
    return encoded


def _line(record: Any, directory: str) -> bytes:
    try:
        line = dumped(record)
    except ValueError as error:
        raise _refused(record, directory, str(error)) from error
    if b"\n" in line:
        raise _refused(record, directory, "it holds a JSON fragment of several lines")
    return line + b"\n"


def _refused(record: Any, directory: str, reason: str) -> ConnectorError:
    shown = reprlib.repr(record)
    return ConnectorError(
        f"record {shown} can't be written as JSON to {directory}: {reason}; map it to str, number, bool, "
        f"None, list or dict before the sink",
        record=shown,
        directory=directory,
        is_permanent=True,
    )
