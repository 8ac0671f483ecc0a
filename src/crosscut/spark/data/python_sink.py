"""PySpark's Python data sources as sinks: `crosscut.spark.sink`."""

from __future__ import annotations

import base64
import logging
import pickle  # noqa: S403 - only to write; see `crosscut.foundation.unpickling` for what is loaded
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from crosscut.connectors.extras import required
from crosscut.connectors.files.rows import checked_row, row_maker
from crosscut.contracts.arrow_checks import check_values
from crosscut.contracts.connectors import JSON, CommitPermit, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.data_pickles import load_data
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.unpickling import RefusedPickleError, loader
from crosscut.protocol.log.entries import CHECKPOINT_IDS_LEAD_MAX
from crosscut.spark.cluster.versions import arrow_schema
from crosscut.spark.data.arrow_records import row_of
from crosscut.spark.data.data_source import DataSourceOf, data_source_of

_LOG = logging.getLogger("crosscut")

_prepared: dict[tuple[str, str, str], dict[CheckpointId, Any]] = {}
"""Messages of this process that are not committed, by lineage, sink and task: for `abort`."""


@checks_options("spark.sink")
def sink(
    kind: type[DataSource],
    options: Mapping[str, Any] | None = None,
    schema: StructType | str | None = None,
    *,
    row: Callable[[Any], Any] | None = None,
    parallel: bool = False,
) -> Sink[Any]:
    """Return a sink that writes with the stream writer of a Python data source of PySpark, as it is.

    At each checkpoint `write` gets the rows since the last one, and its message becomes part of the snapshot.
    When the checkpoint is complete, `commit([message], n)` is called, with the id of the checkpoint as that
    of the batch: it grows, and is never used twice. After a failure it may be called again, for the same n
    and message; as with Spark, a writer that then does nothing is exactly once. `abort` is called for rows
    that were written and belong to no complete checkpoint, as long as the process that wrote them lives; in
    micro-batches, for a batch that was given up, once a later one is committed or its epoch is over.

    One task of the job writes all rows, in order. The rows of one checkpoint are held in memory. With
    `parallel` all tasks write, each its share of the rows, and `commit([message, ...], n)`, called by the
    first of them, gets a message of each that had some.

    Args:
        kind: The class, of `pyspark.sql.datasource.DataSource`. It need not be registered.
        options: As for `df.writeStream.options`: texts.
        schema: Of the rows.
        row: Takes a record, returns a row: a tuple or list by order, a dict, a Row or a dataclass by name.
            Default: the record itself.
        parallel: All tasks write. Rows have no order then.

    Raises:
        ConnectorError: An argument is not as described. Later, in the job: the class has no stream
            writer; what one of its methods raises, by name.

    Examples:
        >>> import crosscut as cc
        >>> sink = cc.spark.sink(FakeDataSource, {"path": "out"}, "name STRING")  # doctest: +SKIP
    """
    checked_row(row)
    found = data_source_of(kind, options, schema)
    if kind.streamWriter is DataSource.streamWriter:
        raise ConnectorError(f"data source {found.name} has no stream writer: expected streamWriter")
    return PythonSink(found, row, parallel)


@dataclass(frozen=True, slots=True)
class PythonSink(Sink[Any]):
    """See `sink`."""

    of: DataSourceOf
    row: Callable[[Any], Any] | None
    parallel: bool = False

    @property
    def has_one_task(self) -> bool:
        """One task writes all, unless they do side by side."""
        return not self.parallel

    @property
    def commits_together(self) -> bool:
        """A batch is committed in one call."""
        return self.parallel

    def resolved(self) -> PythonSink:
        """Return it with its schema."""
        return replace(self, of=self.of.resolved())

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return _Writer(self, context)

    def check(self) -> None:
        """Raise ConnectorError if the data source makes no stream writer."""
        self.stream_writer()

    def describe(self) -> str:
        """Return the class and its options."""
        return self.of.describe()

    def stream_writer(self) -> Any:
        """Make the writer.

        Raises:
            ConnectorError: It can't be made.
        """
        made = self.of.made()
        try:
            return made.streamWriter(self.of.columns, False)
        except PySparkNotImplementedError as error:
            raise ConnectorError(f"data source {self.of.name} has no stream writer") from error
        except Exception as error:
            raise ConnectorError(
                f"data source {self.of.name}: streamWriter() raised {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class _Transaction:
    checkpoint_id: CheckpointId
    rows: list[Any]


class _Writer(SinkWriter):
    def __init__(self, sink: PythonSink, context: SinkContext) -> None:
        self._sink = sink
        self._of = sink.of
        self._columns = sink.of.columns.fieldNames()
        self._to_row = row_maker(self._columns, sink.row, f"data source {sink.of.name}")
        self._open: list[Any] = []
        self._writer: Any = None
        task = f"{context.task.vertex}-{context.task.index}"
        self._prepared = _prepared.setdefault((context.lineage, context.sink_uid, task), {})
        self._is_attempt = False
        # Messages of attempts that were not taken, by batch, as long as another one at it may be.
        self._losers: dict[CheckpointId, list[Any]] = {}

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        if permit is not None:
            self.commit(permit, handles)
        # What is left was staged by an older epoch. Of a checkpoint after the restored one that was never
        # completed; others may have been, and another process has committed them meanwhile.
        for n in sorted(self._prepared):
            message = self._prepared.pop(n)
            if permit is None or n > permit.checkpoint_id:
                self._abort([message], n)

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """What it prepares is for the driver to commit or abort, which has the message."""
        self._prepared = {}
        self._is_attempt = True

    def abort(self, handles: Sequence[JSON]) -> None:
        """Note what attempts have written that were not taken.

        Another attempt at the same batch may be committed, and `abort` says of all of the batch that it does
        not count: a writer may remove whatever bears its number. So it is called when a later batch is
        committed and this one was not, or when the epoch is over and the batch with it (`sweep`).
        """
        for handle in handles:
            n, message = self._message(handle)
            self._losers.setdefault(n, []).append(message)

    def sweep(self) -> None:
        """Abort what was noted and is not committed: all that any checkpoint has is visible."""
        for n in sorted(self._losers):
            self._abort(self._losers.pop(n), n)

    def write(self, records: list[Any]) -> None:
        self._open += [row_of(self._columns, self._to_row(record)) for record in records]

    def rotate(self, checkpoint_id: CheckpointId) -> _Transaction | None:
        rows, self._open = self._open, []
        return _Transaction(checkpoint_id, rows) if rows else None

    def prepare(self, transaction: Any) -> JSON:
        n = transaction.checkpoint_id
        try:
            message = self._of.called("write", lambda: self._written(transaction.rows))
            packed = _pickled(message)
            if self._is_attempt:
                # Refused by the driver, the checkpoint would be complete and never be committed.
                load_data(packed)
        except RefusedPickleError as error:
            raise ConnectorError(
                f"data source {self._of.name}: the message {message!r:.200} of write() contains more than "
                f"data. In micro-batches the driver commits, and loads only data: {error}. {_REMEDY}"
            ) from error
        except ConnectorError:
            self._abort_own(None, n)
            raise
        except Exception as error:  # Its own __reduce__ may raise anything.
            self._abort_own(message, n)
            raise ConnectorError(
                f"data source {self._of.name}: the message {message!r:.200} of write() can't be pickled, "
                f"so it can't be kept until the checkpoint is complete: {type(error).__name__}: {error}"
            ) from error
        self._prepared[n] = message
        # A commit of another task is not told here. No id goes further ahead of the completed ones, so
        # what is older than that is part of one, and never aborted.
        for old in [m for m in self._prepared if m < n - CHECKPOINT_IDS_LEAD_MAX]:
            del self._prepared[old]
        return {"checkpoint": n, "message": base64.b64encode(packed).decode("ascii")}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        # None after one that has failed: a writer may take a lower n than its last one for a repetition.
        found: dict[CheckpointId, list[Any]] = {}
        for handle in handles:
            n, message = self._message(handle)
            found.setdefault(n, []).append(message)
        for n, messages in found.items():
            self._of.called("commit", lambda m=messages, n=n: self._made().commit(m, n))  # type: ignore[misc]
            self._prepared.pop(n, None)
            # As with Spark, attempts that were not taken are not reported.
            self._losers.pop(n, None)
        for n in sorted(one for one in self._losers if one < permit.checkpoint_id):
            self._abort(self._losers.pop(n), n)

    def _made(self) -> Any:
        if self._writer is None:
            self._writer = self._sink.stream_writer()
        return self._writer

    def _written(self, rows: list[Any]) -> Any:
        writer = self._made()
        if not isinstance(writer, DataSourceStreamArrowWriter):
            return writer.write(iter(rows))
        arrow = required("pyarrow", "parquet")
        columns = [list(column) for column in zip(*rows, strict=True)]
        schema = arrow_schema(self._of.columns)
        for column, field in zip(columns, schema, strict=True):
            try:
                check_values(arrow, column, field.type)
            except ValueError as error:
                raise ValueError(f"column {field.name}: {error}") from error
        batch = arrow.RecordBatch.from_arrays(
            [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )
        return writer.write(iter([batch]))

    def _message(self, handle: JSON) -> tuple[CheckpointId, Any]:
        match handle:
            case {"checkpoint": int(n), "message": str(packed)}:
                try:
                    return CheckpointId(n), loader()(base64.b64decode(packed))
                except RefusedPickleError as error:
                    raise ConnectorError(
                        f"data source {self._of.name}: the message of checkpoint {n}: {error}. {_REMEDY}"
                    ) from error
            case _:
                pass
        raise ConnectorError(f"{handle!r:.200} is not a transaction of data source {self._of.name}")

    def _abort_own(self, message: Any, n: CheckpointId) -> None:
        if not self._is_attempt:
            self._abort([message], n)

    def _abort(self, messages: list[Any], n: CheckpointId) -> None:
        try:
            self._of.called("abort", lambda: self._made().abort(messages, n))
        except ConnectorError as error:
            # What was written stays invisible: it takes space, no more.
            _LOG.warning("%s", error)


_REMEDY = (
    "Let it consist of plain values, data classes, or classes at the top level of a module of your "
    "program; or use engine='continuous', where workers commit"
)


def _pickled(message: Any) -> bytes:
    """Return `message` with its classes by name, so that the driver finds its own ones; else by value."""
    try:
        return pickle.dumps(message)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(message)  # type: ignore[no-any-return]
