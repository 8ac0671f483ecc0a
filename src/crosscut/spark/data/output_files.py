"""The committed files of a job, read as rows for Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from time import monotonic, sleep
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, DateType, IntegralType, StringType, StructField, StructType

from crosscut.connectors.extras import required
from crosscut.connectors.files.committed_files import (
    FORMATS,
    committed_files,
    grouped,
    newest_visible,
)
from crosscut.connectors.files.input_files import InputFiles, InputStream
from crosscut.connectors.files.partitions import values_of
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.urls import shown_url
from crosscut.protocol.job.pending_output import restored
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.protocol.log.segments import claims_in
from crosscut.savepoints.manifest import is_savepoint
from crosscut.spark.cluster.versions import arrow_schema
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import LogKey, log_key

NOTHING = CheckpointId(0)

COMMIT_S = 10.0
"""How long a query waits for output that is being committed."""

_LOOK_S = 0.05
_RETAINED_MAX = 20
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OutputOf:
    """The output of one file sink.

    Attributes:
        url: Of the checkpoint store of its job.
        kind: What the files hold: "jsonl", "parquet" or "txt".
        key: Verifies the job log; None: that of the environment does, if there is one.
    """

    url: str
    uid: str
    directory: str
    kind: str
    key: LogKey | None = None

    def newest(self, after: CheckpointId = NOTHING) -> CheckpointId:
        """Return the newest checkpoint whose output is all visible.

        Args:
            after: Up to where it was read before.

        Raises:
            ConnectorError: The job has never come as far as `after`: it is another one.
        """
        retained = self._retained()
        completed = retained[-1].checkpoint_id if retained else NOTHING
        if completed < after:
            raise ConnectorError(
                f"the output of sink {self.uid!r} was read up to checkpoint {after}, and the newest one in "
                f"{shown_url(self.url)} is {completed}: another job has replaced it, and its first "
                f"checkpoints would be skipped. Read it with another checkpointLocation"
            )
        return newest_visible(self.directory, self.uid, retained)

    def newest_there(self, timeout_s: float = COMMIT_S) -> CheckpointId:
        """Return the newest checkpoint whose output is all visible; 0 if none is complete.

        There is none while the output of all retained checkpoints is being committed, so this waits.

        Raises:
            ConnectorError: It takes longer than `timeout_s`.
        """
        deadline = monotonic() + timeout_s
        while (retained := self._retained()) and not (
            found := newest_visible(self.directory, self.uid, retained)
        ):
            if monotonic() >= deadline:
                raise ConnectorError(
                    f"sink {self.uid!r} has not committed all output of checkpoint "
                    f"{retained[0].checkpoint_id}, the oldest one that is retained: is the job running? "
                    f"Start it again to commit the output, or read later"
                )
            sleep(_LOOK_S)
        return found if retained else NOTHING

    def _retained(self) -> list[CheckpointCompleted]:
        tail = open_store(self.url, create=False, key=self.key or log_key()).tail(_RETAINED_MAX)
        completed = [entry for _, entry in tail if isinstance(entry, CheckpointCompleted)]
        newest = restored(tail)
        return completed if newest is None else [*completed[:-1], newest]

    def divided_by(self, path: str) -> dict[str, str | None]:
        """Return what the directories say that a file of it is in, below its own one."""
        below = os.path.relpath(os.path.dirname(path), self.directory)
        return values_of("" if below == os.curdir else below)

    def files(self, after: CheckpointId, through: CheckpointId) -> list[list[str]]:
        """Return the paths of the files of some checkpoints, in their order, in groups for Spark tasks.

        Raises:
            ConnectorError: A file was merged of files of these checkpoints and of others.
        """
        found = committed_files(self.directory, self.uid)
        for one in found:
            for border in (after, through):
                if one.first <= border < one.checkpoint_id:
                    raise ConnectorError(
                        f"{one.path} was merged from files of checkpoints {one.first} to "
                        f"{one.checkpoint_id}, and the requested range ends or begins at checkpoint "
                        f"{border}. Compact only files that all queries on the output have read (older_than)",
                        path=one.path,
                    )
        found.sort(key=lambda one: one.checkpoint_id)
        return list(grouped(one for one in found if after < one.checkpoint_id <= through))


def output_at(url: str, uid: str, key: LogKey | None = None) -> OutputOf | None:
    """Return the output of sink `uid` of the job at `url`, None if that is no sink.

    Raises:
        ConnectorError: It is a sink whose output can't be read here.
        StoreError: There is no job at `url`.
    """
    if is_savepoint(url, key):
        return None
    claims = claims_in([entry for _, entry in open_store(url, create=False, key=key or log_key()).tail(1)])
    found = next((one for one in claims[-1].flow.operators if one.uid == uid), None) if claims else None
    if found is None or found.kind != "sink":
        return None
    if found.connector not in FORMATS:
        raise ConnectorError(
            f"sink {uid!r} is of class {found.connector}: expected one of "
            f"crosscut.files.write_jsonl, write_text and write_parquet"
        )
    return OutputOf(url, uid, found.details, FORMATS[found.connector], key)


def schema_of(output: OutputOf) -> StructType:
    """Return the schema of Parquet files; of others one column of text. Columns that divide output are text.

    Raises:
        ConnectorError: There is no file yet that would say.
    """
    found = committed_files(output.directory, output.uid)
    divided_by = output.divided_by(found[0].path) if found else {}
    if output.kind != "parquet":
        return _with_text(StructType().add("value", StringType()), divided_by)
    if not found:
        raise ConnectorError(
            f"sink {output.uid!r} has committed no file to {output.directory} yet, from which to read its "
            f"schema: pass it with .schema(...)"
        )
    file = required("pyarrow.parquet", "parquet").read_schema(found[0].path)
    return _with_text(from_arrow_schema(file), divided_by)


def _with_text(schema: StructType, names: Iterable[str]) -> StructType:
    return StructType([*schema, *(StructField(name, StringType()) for name in names)])


def check_columns(output: OutputOf, schema: StructType) -> None:
    """Raise ConnectorError if text is asked for as something else."""
    if output.kind == "txt" and [one.dataType for one in schema] != [StringType()]:
        raise ConnectorError(
            f"sink {output.uid!r} writes lines of text: expected a schema of one column of type string"
        )


def rows_of(output: OutputOf, paths: Iterable[str], schema: StructType) -> Iterator[Any]:
    """Yield the rows of files: tuples, or Arrow batches.

    Raises:
        ConnectorError: It can't be read, or a row does not fit `schema`.
    """
    for path in paths:
        partition_values = output.divided_by(path)
        if output.kind == "parquet":
            yield from _parquet(path, schema, partition_values)
        else:
            yield from _values(path, output.kind, schema, partition_values)


def _values(
    path: str, kind: str, schema: StructType, partition_values: dict[str, str | None]
) -> Iterator[tuple[Any, ...]]:
    names = schema.fieldNames()
    own = [name for name in names if name not in partition_values]
    is_text = kind == "txt" or (own == ["value"] and isinstance(schema["value"].dataType, StringType))
    divided_by = {
        name: _typed(path, partition_values[name], schema[name]) for name in names if name in partition_values
    }
    for line in _lines(path):
        values = iter((line.decode(),) if is_text else _fields(path, line, own))
        yield tuple(divided_by[name] if name in partition_values else next(values) for name in names)


def _typed(path: str, text: str | None, field: StructField) -> Any:
    """Return what the name of a directory says, as the column wants it."""
    kind = field.dataType
    try:
        if text is None or isinstance(kind, StringType):
            return text
        if isinstance(kind, IntegralType):
            return int(text)
        if isinstance(kind, BooleanType) and text in ("true", "false"):
            return text == "true"
        if isinstance(kind, DateType):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ConnectorError(
        f"{path}: its directory name has {field.name}={text!r}, which is no {kind.simpleString()}"
    )


def _parquet(path: str, schema: StructType, partition_values: dict[str, str | None]) -> Iterator[Any]:
    library = required("pyarrow.parquet", "parquet")
    arrow = required("pyarrow", "parquet")
    wanted = arrow_schema(schema)
    try:
        with library.ParquetFile(path) as file:
            own = [name for name in schema.fieldNames() if name not in partition_values]
            for batch in file.iter_batches(columns=own, use_threads=False):
                columns = [
                    arrow.repeat(arrow.scalar(partition_values[name], arrow.string()), batch.num_rows)
                    if name in partition_values
                    else batch.column(name)
                    for name in schema.fieldNames()
                ]
                table = arrow.Table.from_arrays(columns, schema.fieldNames())
                yield from table.cast(wanted).to_batches()
    except (OSError, arrow.ArrowException) as error:
        raise ConnectorError(f"{path} can't be read as {schema.simpleString()}: {error}") from error


def _lines(path: str) -> Iterator[bytes]:
    stream = InputStream(InputFiles(path, "/").raw(path), path, is_slow=False)
    try:
        rest = b""
        while data := stream.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        if rest:
            yield rest
    finally:
        stream.close()


def _fields(path: str, line: bytes, names: list[str]) -> tuple[Any, ...]:
    record = json.loads(line)
    if isinstance(record, dict):
        return tuple(record.get(name) for name in names)
    values = record if isinstance(record, list) else [record]
    if len(values) != len(names):
        raise ConnectorError(
            f"{path}: {line[:200].decode(errors='replace')} has {len(values)} values: expected "
            f"{len(names)}, for {', '.join(names)}"
        )
    return tuple(values)
