"""Delta Lake tables: the rows of a task's checkpoint are one commit of the table, with the marker in it.

A commit of Delta names *application transactions*, each with a version. A task has three: how far it has
committed, in which epoch, and whose driver that was. The table refuses a commit that names one which another
commit has moved since the table was looked at. So what is decided on is still true when the commit is made:
that is both the marker and the fence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from reprlib import repr as shortened
from tempfile import TemporaryDirectory
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.arrow_values import schema_of
from crosscut.connectors.files.local_paths import is_remote, local_path
from crosscut.connectors.files.rows import checked_columns, checked_row, row_maker
from crosscut.connectors.secrets import Environment, revealed
from crosscut.connectors.tables.lake import HeldRows, note_of, noted, place_of, without_secrets
from crosscut.connectors.tables.trial import Row, RowsRefused, Tried, tried
from crosscut.connectors.tables.writer import Database, Session, TableWriter
from crosscut.contracts.connectors import CommittedOutput, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.urls import Redaction

Options = Mapping[str, "str | Environment"]

_NOTE = "crosscut"
"""Of the information about a commit: who has made it. Unlike application transactions it can be listed."""

_COMMIT_ATTEMPTS = 1_000
"""For the next version of the table, which all tasks want at once: of 48, 26 fail with the usual 15."""

_COMMITS_MAX = 1_000
"""That a start looks at, the newest first."""

_NO_VALUE = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that Delta keeps as no value in a column that divides the table."""

_CONSTRAINT = "delta.constraints."
_INVALID = "Invalid data found"
"""So begins what the library says of rows that break a rule of the table."""

_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
"""What a column may be to take values of a type: Delta would cut a fraction off without a word."""


@checks_options("delta.sink")
def sink(
    location: str,
    schema: Mapping[str, str] | Any,
    *,
    row: Callable[[Any], Any] | None = None,
    partition_by: str | Sequence[str] = (),
    storage_options: Options | None = None,
) -> Sink:
    """Return a sink that appends records as rows of a Delta Lake table, exactly once.

    Each task makes one commit of the table a checkpoint, if it has records. Rows are held in the snapshot
    until then. Others may append, compact (`optimize`) and vacuum at any time; but the table must not forget
    its application transactions (`delta.setTransactionRetentionDuration`).

    Args:
        location: A path that driver and workers share, or a URL that deltalake knows, such as
            "s3://bucket/table". The table is made if it is not there.
        schema: See `crosscut.files.write_parquet`.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.
        partition_by: Columns by whose values a table that is made is divided.
        storage_options: For deltalake, which reads the environment too ("AWS_ENDPOINT_URL", ...). Secrets as
            `crosscut.environment("NAME")`.

    Raises:
        ConnectorError: deltalake is missing, or an argument is not as described. Later: the table can't be
            reached, or lacks a column; a record is no row of it.

    Examples:
        >>> import crosscut as cc
        >>> schema = {"id": "int64", "country": "string"}
        >>> orders = cc.delta.sink("lake/orders", schema, partition_by="country")
    """
    checked_row(row)
    found = schema_of(schema)
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if names and not set(checked_columns(names)) < set(found.names):
        raise ConnectorError(
            f"partition_by={partition_by!r}: expected some of the columns {', '.join(found.names)}, not all"
        )
    what = "location of a Delta table"
    url = location if is_remote(location) else os.path.abspath(local_path(location, what))
    return DeltaSink(url, found, row, names, dict(storage_options or {}))


@dataclass(frozen=True, eq=False)
class DeltaSink(Sink):
    """See `sink`."""

    location: str
    schema: Any
    row: Callable[[Any], Any] | None
    partition_by: tuple[str, ...]
    storage_options: Options

    def __repr__(self) -> str:
        return f"crosscut.delta.sink({Redaction(self.location).url!r})"

    def describe(self) -> str:
        """Return where the table is, without secrets."""
        return f"Delta table {Redaction(self.location).url}"

    def check(self) -> None:
        """Raise ConnectorError if the table can't be opened or made, or lacks a column."""
        _Delta(self).opened()

    def committed(self) -> Sequence[CommittedOutput]:
        """Return who has written as which task, as far as the newest commits of the table tell."""
        return _Delta(self).committed()

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        to_row = row_maker(self.schema.names, self.row, self.describe())
        return TableWriter(_Delta(self), to_row, context, self.describe())


class _Delta(Database):
    def __init__(self, sink: DeltaSink) -> None:
        self._sink = sink
        self._what = sink.describe()
        self._held = HeldRows(sink.schema, self._what, "delta")
        self._redacted = Redaction(sink.location)
        self._partitioned_by = sink.partition_by
        # Looked up once a writer.
        self._rules: _Rules | None = None

    def tried(self, rows: Sequence[Row], *, only_first: bool) -> Tried:
        if self._rules is None:
            self._rules = _rules_of(self.opened())
        if not self._rules:
            return tried(rows, self._encoded, lambda _: None, only_first=only_first)
        with TemporaryDirectory(prefix="crosscut-delta-") as directory, self._explained("try rows for"):
            table = self._rules.table(directory)
            return tried(rows, self._encoded, lambda data: self._attempt(table, data), only_first=only_first)

    def _attempt(self, table: Any, data: bytes) -> None:
        library = required("deltalake", "delta")
        try:
            library.write_deltalake(table, self._held.decoded(data), mode="append")
        except library.exceptions.DeltaError as error:
            text = str(error)
            if _INVALID not in text:
                raise
            raise RowsRefused(f"{self._rules}: {text[text.index(_INVALID) :]}") from error

    def _encoded(self, rows: Sequence[Row]) -> bytes:
        data = self._held.encoded(rows)
        self._check_partitions(rows)
        return data

    def decoded(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        yield from self._held.decoded(data).to_pylist()

    def _check_partitions(self, rows: Sequence[Row]) -> None:
        names = self._sink.schema.names
        for name in set(self._partitioned_by) & set(names):
            index = names.index(name)
            for row in rows:
                if row[index] in _NO_VALUE:
                    raise RowsRefused(
                        f"it is divided by {name}, and row {shortened(row)} has {row[index]!r} there, which "
                        f"Delta keeps as no value: map it to None, or to another text"
                    )
                if isinstance(row[index], bytes | bytearray | memoryview):
                    raise RowsRefused(
                        f"it is divided by {name}, and row {shortened(row)} has bytes there, which Delta "
                        f"keeps as another text: map them to a text, such as value.hex()"
                    )

    @contextmanager
    def transaction(self) -> Iterator[_DeltaSession]:
        session = _DeltaSession(self.opened(), self._what, self._held)
        yield session
        with self._explained("write to"):
            session.commit()

    def close(self) -> None:
        """Nothing is open."""

    def opened(self) -> Any:
        """Return the table as it is now; make it if there is none.

        Raises:
            ConnectorError: That is not possible, or it lacks a column.
        """
        library, sink = required("deltalake", "delta"), self._sink
        with self._explained("open"):
            table = library.DeltaTable.create(
                sink.location,
                schema=sink.schema,
                mode="ignore",
                partition_by=list(sink.partition_by) or None,
                storage_options=self._options(),
            )
            there = {field.name: field.type for field in table.schema().fields}
            ours = {field.name: field.type for field in library.Schema.from_arrow(sink.schema).fields}
        if missing := sorted(ours.keys() - there.keys()):
            raise ConnectorError(
                f"{self._what} has no column {', '.join(missing)}; it has {', '.join(there)}"
            )
        if others := sorted(there.keys() - ours.keys()):
            raise ConnectorError(
                f"{self._what} has columns that are not in the schema: {', '.join(others)}; add them, "
                f"with None for rows that have no value"
            )
        for name, kind in ours.items():
            if kind.type != there[name].type and there[name].type not in _WIDER.get(kind.type, ()):
                raise ConnectorError(
                    f"{self._what}: column {name} is of type {there[name].type}, but schema= has "
                    f"{kind.type}; use the type of the table"
                )
        self._partitioned_by = tuple(table.metadata().partition_columns)
        return table

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what the newest commits of the table say; nothing is made or changed."""
        library, location = required("deltalake", "delta"), self._sink.location
        with self._explained("look into"):
            try:
                # Not `is_deltatable`: it keeps the interpreter lock as long as the store does not answer.
                table = library.DeltaTable(location, storage_options=self._options())
            except library.exceptions.TableNotFoundError:
                return ()
            commits = table.history(_COMMITS_MAX)
        newest: dict[tuple[str, str, TaskId], CommittedOutput] = {}
        for one in commits:
            if (found := noted(one.get(_NOTE), self._what)) is not None:
                newest.setdefault((found.lineage, found.sink_uid, found.task), found)
        return tuple(newest.values())

    def _options(self) -> dict[str, str] | None:
        return {k: str(v) for k, v in revealed(self._sink.storage_options).items()} or None

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except ConnectorError:
            raise
        except Exception as error:  # noqa: BLE001 - of its casts it raises Exception, with a list of calls
            text = self._shown(str(error).partition("\n   0: ")[0])
            raise ConnectorError(
                f"{self._what}: could not {action} it: {type(error).__name__}: {text}"
            ) from None

    def _shown(self, text: str) -> str:
        return without_secrets(self._redacted(text), self._sink.storage_options)


@dataclass(frozen=True)
class _Rules:
    """What a table asks of its rows beside their types; false if nothing.

    Attributes:
        constraints: Conditions in SQL, by name.
    """

    schema: Any
    constraints: Mapping[str, str]

    def __bool__(self) -> bool:
        return bool(self.constraints) or not all(field.nullable for field in self.schema.fields)

    def __str__(self) -> str:
        needed = [f"{field.name} is not null" for field in self.schema.fields if not field.nullable]
        return f"rows must fulfil {', '.join([*self.constraints.values(), *needed])}"

    def table(self, directory: str) -> Any:
        """Return a table with these rules, in a directory of its own."""
        library = required("deltalake", "delta")
        made = library.DeltaTable.create(directory, schema=self.schema)
        for name, condition in self.constraints.items():
            made.alter.add_constraint({name: condition})
        return made


def _rules_of(table: Any) -> _Rules:
    found = table.metadata().configuration.items()
    constraints = {name.removeprefix(_CONSTRAINT): one for name, one in found if name.startswith(_CONSTRAINT)}
    return _Rules(table.schema(), constraints)


class _DeltaSession(Session):
    """One commit: everything is collected, and decided on by one version of the table."""

    def __init__(self, table: Any, what: str, held: HeldRows) -> None:
        self._table = table
        self._what = what
        self._held = held
        self._rows: list[Any] = []
        self._versions: dict[str, int] = {}
        self._note = ""

    def marker(self, context: SinkContext) -> CommittedOutput | None:
        base = place_of(context)
        epoch = self._table.transaction_version(f"{base}/epoch")
        if epoch is None:
            return None
        is_ours = self._table.transaction_version(f"{base}/driver") == _number(context.driver)
        return CommittedOutput(
            self._what,
            context.lineage,
            context.sink_uid,
            context.task,
            Epoch(epoch),
            context.driver if is_ours else "another",
            CheckpointId(self._table.transaction_version(base) or 0),
        )

    def write_marker(self, context: SinkContext, checkpoint_id: CheckpointId) -> None:
        base = place_of(context)
        self._versions = {
            base: checkpoint_id,
            f"{base}/epoch": context.epoch,
            f"{base}/driver": _number(context.driver),
        }
        self._note = note_of(context, checkpoint_id)

    def insert(self, data: bytes) -> int:
        rows = self._held.decoded(data)
        self._rows.append(rows)
        return int(rows.num_rows)

    def commit(self) -> None:
        """Make the commit."""
        library = required("deltalake", "delta")
        transactions = [library.Transaction(name, version) for name, version in self._versions.items()]
        properties = library.CommitProperties(
            app_transactions=transactions,
            custom_metadata={_NOTE: self._note},
            max_commit_retries=_COMMIT_ATTEMPTS,
        )
        if self._rows:
            rows = required("pyarrow", "delta").concat_tables(self._rows)
            library.write_deltalake(self._table, rows, mode="append", commit_properties=properties)
        else:
            self._table.create_write_transaction(
                actions=[], mode="append", schema=self._table.schema(), commit_properties=properties
            )


def _number(driver: str) -> int:
    """Return a driver's token as a version can be, which is a number."""
    return int.from_bytes(blake2b(driver.encode(), digest_size=7).digest(), "big")
