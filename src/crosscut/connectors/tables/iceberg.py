"""Iceberg tables: the rows of a task's checkpoint are one commit of the table, with the marker in it.

The marker of a task is a property of the table, set in the commit that adds the rows, and stands in the
snapshot of that commit too. A commit is refused by the catalog unless the branch is where it was when the
table was looked at: so what is decided on is still true when the commit is made, which is both the marker and
the fence. Snapshots expire, properties of a table don't: so those are what is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.arrow_values import schema_of
from crosscut.connectors.files.rows import checked_columns, checked_row, row_maker
from crosscut.connectors.secrets import Environment, revealed, shown
from crosscut.connectors.tables.lake import HeldRows, note_of, noted, place_of, without_secrets
from crosscut.connectors.tables.trial import Row, Tried, tried
from crosscut.connectors.tables.writer import Database, Overtaken, Session, TableWriter
from crosscut.contracts.connectors import CommittedOutput, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.urls import HIDDEN, Redaction, shown_repr, shown_url

Catalog = Mapping[str, "str | Environment"]

_PREFIX = "crosscut/"
_NOTE = "crosscut"
_EXTRA = "iceberg"

_log = logging.getLogger("crosscut.iceberg")

_RETRIES = "commit.retry.num-retries"
"""Of a table. The library would put the same commit on top of what came first, without asking us again."""


@checks_options("iceberg.sink")
def sink(
    table: str,
    schema: Mapping[str, str] | Any,
    *,
    catalog: Catalog | None = None,
    catalog_name: str = "default",
    row: Callable[[Any], Any] | None = None,
    partition_by: str | Sequence[str] = (),
) -> Sink:
    """Return a sink that appends records as rows of an Apache Iceberg table, exactly once.

    Each task makes one commit of the table a checkpoint, if it has records. Rows are held in the snapshot of
    the job until then. Others may append, compact and expire snapshots at any time; but properties of the
    table that begin with "crosscut/" must stay.

    Args:
        table: Namespace and name: "lake.orders". It is made if it is not there.
        schema: See `crosscut.files.write_parquet`.
        catalog: Properties of the catalog, as pyiceberg has them: "type", "uri", "warehouse", and those of
            its files ("s3.endpoint", ...). Default: what pyiceberg finds under `catalog_name` in its own
            settings (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`), on the driver and the workers. Secrets as
            `crosscut.environment("NAME")`.
        catalog_name: What the catalog is called.
        row: Takes a record, returns a row: a tuple or list by order, a dict or dataclass by name.
            Default: the record itself.
        partition_by: Columns by whose values a table that is made is divided.

    Raises:
        ConnectorError: pyiceberg is missing, or an argument is not as described. Later: the table can't be
            reached, or has other columns; a record is no row of it.

    Examples:
        >>> import crosscut as cc
        >>> schema = {"id": "int64", "country": "string"}
        >>> local = {"type": "sql", "uri": "sqlite:////lake/catalog.db", "warehouse": "file:///lake"}
        >>> orders = cc.iceberg.sink("shop.orders", schema, catalog=local, partition_by="country")
    """
    checked_row(row)
    if not isinstance(table, str) or not all(table.split(".")[:-1]) or "." not in table.strip("."):
        raise ConnectorError(
            f"table={shown_repr(table)}: expected a namespace and a name, such as 'lake.orders'"
        )
    found = schema_of(schema)
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if names and not set(checked_columns(names)) <= set(found.names):
        raise ConnectorError(
            f"partition_by={partition_by!r}: expected some of the columns {', '.join(found.names)}"
        )
    return IcebergSink(table, found, dict(catalog or {}), catalog_name, row, names)


@dataclass(frozen=True, eq=False)
class IcebergSink(Sink):
    """See `sink`."""

    table: str
    schema: Any
    catalog: Catalog
    catalog_name: str
    row: Callable[[Any], Any] | None
    partition_by: tuple[str, ...]

    def __repr__(self) -> str:
        found = {name: shown_url(str(value)) for name, value in shown(self.catalog).items()}
        return f"crosscut.iceberg.sink({self.table!r}, catalog={found!r:.200})"

    def describe(self) -> str:
        """Return which table it is, without secrets."""
        uri = self.catalog.get("uri", "")
        where = f" at {Redaction(uri).url}" if isinstance(uri, str) and uri else ""
        return f"Iceberg table {self.table} of catalog {self.catalog_name}{where}"

    def check(self) -> None:
        """Raise ConnectorError if the table can't be opened or made, or has other columns."""
        with _opened(_Iceberg(self)) as database:
            database.check()

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what all who have ever written there have committed."""
        with _opened(_Iceberg(self)) as database:
            return database.committed()

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        to_row = row_maker(self.schema.names, self.row, self.describe())
        return TableWriter(_Iceberg(self), to_row, context, self.describe())


@contextmanager
def _opened(database: _Iceberg) -> Iterator[_Iceberg]:
    try:
        yield database
    finally:
        database.close()


class _Iceberg(Database):
    def __init__(self, sink: IcebergSink) -> None:
        self._sink = sink
        self._what = sink.describe()
        self._held = HeldRows(sink.schema, self._what, _EXTRA)
        self._catalog: Any = None

    def tried(self, rows: Sequence[Row], *, only_first: bool) -> Tried:
        # The schema is the table's, or narrower: what it takes the table takes.
        return tried(rows, self._held.encoded, lambda _: None, only_first=only_first)

    def decoded(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        yield from self._held.decoded(data).to_pylist()

    @contextmanager
    def transaction(self) -> Iterator[_IcebergSession]:
        session = _IcebergSession(self._loaded(), self._what, self._held)
        yield session
        errors = required("pyiceberg.exceptions", _EXTRA)
        with self._explained("write to"):
            try:
                session.commit()
            except errors.CommitFailedException:
                self._remove_unnamed(session.made)
                raise

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def _remove_unnamed(self, made: Sequence[str]) -> None:
        """Remove the files of a commit that was refused; best effort.

        Not if the table names any of them after all: the request may have come twice, the first time with
        success, and the answer to that may be lost.
        """
        try:
            table = self._loaded()
            with self._explained("look into"):
                # A snapshot that has expired since has left its manifests to the current one.
                newest = table.current_snapshot()
                named = {one.manifest_list for one in table.metadata.snapshots}
                named |= {one.manifest_path for one in newest.manifests(table.io)} if newest else set()
                if named.isdisjoint(made):
                    for location in made:
                        with suppress(FileNotFoundError):
                            table.io.delete(location)
        except ConnectorError as error:
            _log.warning("%s: a commit was refused; its files remain: %s", self._what, error)

    def check(self) -> None:
        """Make the table if there is none, and look at its columns.

        Raises:
            ConnectorError: That is not possible, or they are others.
        """
        sink, errors = self._sink, required("pyiceberg.exceptions", _EXTRA)
        with self._explained("make"):
            catalog = self._connected()
            if not catalog.table_exists(sink.table):
                catalog.create_namespace_if_not_exists(sink.table.rpartition(".")[0])
                try:
                    made = catalog.create_table_transaction(sink.table, sink.schema)
                    with made.update_spec() as spec:
                        for column in sink.partition_by:
                            spec.add_identity(column)
                    made.commit_transaction()
                except (errors.TableAlreadyExistsError, errors.CommitFailedException):
                    # Somebody else has made it meanwhile; whether it is as we want it, is seen below.
                    pass
        with self._explained("look at"):
            there = self._loaded().schema().as_arrow()
        self._check_columns(there)

    def _check_columns(self, there: Any) -> None:
        ours = self._sink.schema
        if missing := sorted(set(ours.names) - set(there.names)):
            raise ConnectorError(
                f"{self._what} has no column {', '.join(missing)}; it has {', '.join(there.names)}"
            )
        if others := sorted(set(there.names) - set(ours.names)):
            raise ConnectorError(
                f"{self._what} has columns that are not in the schema: {', '.join(others)}; add them, "
                f"with None for rows that have no value"
            )
        for field in ours:
            found = there.field(field.name)
            if not _fits(field.type, found.type):
                raise ConnectorError(
                    f"{self._what}: column {field.name} is of type {found.type}, but schema= has "
                    f"{field.type}; use the type of the table"
                )
            if field.nullable and not found.nullable:
                raise ConnectorError(
                    f"{self._what}: column {field.name} is required, but schema= allows None: "
                    f"give a pyarrow.Schema with pyarrow.field({field.name!r}, ..., nullable=False)"
                )

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what the properties of the table say; nothing is made or changed."""
        with self._explained("look into"):
            if not self._connected().table_exists(self._sink.table):
                return ()
            properties = self._loaded().properties
        found = (noted(text, self._what) for name, text in properties.items() if name.startswith(_PREFIX))
        return tuple(one for one in found if one is not None)

    def _connected(self) -> Any:
        if self._catalog is None:
            sink = self._sink
            library = required("pyiceberg.catalog", _EXTRA)
            self._catalog = library.load_catalog(sink.catalog_name, **revealed(sink.catalog))
        return self._catalog

    def _loaded(self) -> Any:
        """Return the table as it is now."""
        with self._explained("open"):
            return self._connected().load_table(self._sink.table)

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        errors = required("pyiceberg.exceptions", _EXTRA)
        try:
            yield
        except ConnectorError:
            raise
        except errors.CommitFailedException as error:
            raise Overtaken(f"{self._what}: another commit came first: {self._shown(str(error))}") from None
        except Exception as error:  # noqa: BLE001 - catalogs raise what their own libraries do
            text = self._shown(str(error))
            raise ConnectorError(
                f"{self._what}: could not {action} it: {type(error).__name__}: {text:.2000}"
            ) from None

    def _shown(self, text: str) -> str:
        catalog = self._sink.catalog
        for value in catalog.values():
            if isinstance(value, str):
                text = Redaction(value)(text)
        secrets = {
            name: value
            for (name, value), seen in zip(catalog.items(), shown(catalog).values(), strict=True)
            if isinstance(value, Environment) or seen == HIDDEN
        }
        return without_secrets(text, secrets)


class _IcebergSession(Session):
    """One commit: everything is collected, and decided on by the table as it was loaded.

    Attributes:
        made: The files that it has begun to write.
    """

    def __init__(self, table: Any, what: str, held: HeldRows) -> None:
        self._table = table
        self._what = what
        self._held = held
        self._rows: list[Any] = []
        self._place = self._note = ""
        self.made: list[str] = []

    def marker(self, context: SinkContext) -> CommittedOutput | None:
        text = self._table.properties.get(place_of(context))
        found = noted(text, self._what)
        if found is None and text is not None:
            raise ConnectorError(
                f"{self._what}: its property {place_of(context)} is {text!r:.200}, which no longer "
                f"records how far task {context.task} has committed; restore it"
            )
        return found

    def write_marker(self, context: SinkContext, checkpoint_id: CheckpointId) -> None:
        self._place, self._note = place_of(context), note_of(context, checkpoint_id)

    def insert(self, data: bytes) -> int:
        rows = self._held.decoded(data)
        self._rows.append(rows)
        return int(rows.num_rows)

    def commit(self) -> None:
        """Make the commit, if there is anything new to say."""
        table = self._table
        if not self._rows and table.properties.get(self._place) == self._note:
            return
        arrow = required("pyarrow", _EXTRA)
        rows = arrow.concat_tables(self._rows) if self._rows else table.schema().as_arrow().empty_table()
        # Of this copy only: properties go to the catalog as what is set below.
        table.metadata.properties[_RETRIES] = "0"
        table.io = _Noting(table.io, self.made)
        with table.transaction() as commit:
            # A commit without rows is a snapshot too; it keeps the position of the branch.
            commit.append(rows, snapshot_properties={_NOTE: self._note})
            commit.set_properties({self._place: self._note})


class _Noting:
    """The files of a table, with a list of those that are made."""

    def __init__(self, files: Any, made: list[str]) -> None:
        self._files = files
        self._made = made

    def new_output(self, location: str) -> Any:
        self._made.append(location)
        return self._files.new_output(location)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def _fits(ours: Any, there: Any) -> bool:
    """Whether values of one type are kept as they are in a column of another.

    Nested types are compared by the library, with the first commit.
    """
    types = required("pyarrow", _EXTRA).types
    for is_kind in (types.is_integer, types.is_floating):
        if is_kind(ours) or is_kind(there):
            return bool(is_kind(ours) and is_kind(there) and ours.bit_width <= there.bit_width)
    for kinds in (
        (types.is_string, types.is_large_string),
        (types.is_binary, types.is_large_binary),
        (types.is_boolean,),
        (types.is_date32,),
        (types.is_timestamp,),
    ):
        ours_is, there_is = (any(test(kind) for test in kinds) for kind in (ours, there))
        if ours_is or there_is:
            return ours_is and there_is and getattr(ours, "tz", None) == getattr(there, "tz", None)
    return True
