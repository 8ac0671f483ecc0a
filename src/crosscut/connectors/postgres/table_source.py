"""The rows of a Postgres table as a source: read in the order of a key, a page at a time.

Each page is a query of its own, from the last key on. So no transaction is open for as long as a job reads,
and a reader can begin after any row.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.rows import checked_columns
from crosscut.connectors.postgres.values import (
    Infinity,
    Malformed,
    MalformedRecord,
    checked_options,
    fetched,
    records_of,
    set_loaders,
)
from crosscut.connectors.postgres.writer import checked_conninfo, connected, shown
from crosscut.connectors.secrets import Environment
from crosscut.connectors.tables.rows import checked_name, qualified, quoted
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options

PAGE_ROWS = 4_096
_WAIT_MS = 1
_INTEGERS = ("smallint", "integer", "bigint")

# Types with their lengths: "character" and "bit" alone are of length 1, and a cast cuts what is longer.
# What the columns of a key are, if they are those of a unique index that is valid and holds all rows.
_KEY = """
    select a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, exists (
        select from pg_index i where i.indrelid = a.attrelid and i.indisunique and i.indisvalid
        and i.indpred is null and i.indexprs is null and (
            select array_agg(k.attname order by k.attname) from pg_attribute k
            where k.attrelid = i.indrelid and k.attnum = any(i.indkey[0:i.indnkeyatts - 1])
        ) = (select array_agg(n::name order by n::name) from unnest(%(key)s::text[]) n))
    from pg_attribute a where a.attrelid = to_regclass(%(table)s) and a.attnum > 0 and not a.attisdropped
"""


@checks_options("postgres.source")
def source(
    conninfo: str | Environment,
    table: str,
    key: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    malformed: Malformed = "fail",
    infinity: Infinity = "malformed",
) -> Source[dict[str, Any]]:
    """Return a source of the rows of a table, as dicts by column.

    What is read is what lies between the smallest and the largest key when the job starts with no checkpoint.
    The rows are read page by page, each as it is then: rows that are changed, added or deleted while the
    job reads may come in either form, or be left out. A key of whole numbers makes a split for each task,
    any other key one. Within a split rows come in the order of the key.

    Args:
        conninfo: See `crosscut.postgres.sink`.
        table: Its name, in the first schema of the search path that has it, or with its schema: "app.orders".
        key: Columns that tell rows apart, not null and with a unique index; mostly the primary key.
        columns: Which to read; default: all.
        malformed: What becomes of a record with a value that Python has none for, such as a year before 1:
            "fail" the job, "skip" it with a warning, or a function. The function takes the record, with the
            texts of such values, and the error, and returns another record.
        infinity: Infinite dates and times are "malformed", or the first and last ones of Python ("limits").

    Raises:
        ConnectorError: An argument is not as described. Later: the server can't be reached, the table is
            empty or missing, or `key` is no key of it.

    Examples:
        >>> import crosscut as cc
        >>> orders = cc.postgres.source("dbname=shop", "orders", key="id")
    """
    checked_conninfo(conninfo)
    names = checked_columns([key] if isinstance(key, str) else key)
    checked_options(malformed, infinity)
    chosen = None if columns is None else checked_columns(columns)
    return PostgresSource(
        conninfo, checked_name(table), names, chosen, malformed=malformed, infinity=infinity
    )


@dataclass(frozen=True, eq=False)
class PostgresSource(Source[dict[str, Any]]):
    """See `source`. A position is the key of the last row, as Postgres writes it; None before the first."""

    conninfo: str | Environment
    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    page_rows: int = PAGE_ROWS
    malformed: Malformed = "fail"
    infinity: Infinity = "malformed"

    def __repr__(self) -> str:
        return f"crosscut.postgres.source({self.table!r})"

    def describe(self) -> str:
        """Say which table this is, and nothing of how it is reached."""
        return f"Postgres table {self.table}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Find the ends of the key, and divide what is between them if it is a whole number."""
        psycopg = required("psycopg", "postgres")
        try:
            with self.connected() as connection:
                return self._splits(connection, parallelism)
        except psycopg.Error as error:
            raise ConnectorError(f"{self.describe()}: {shown(error)}") from None

    def reader(self, split: Split, position: JSON) -> SplitReader[dict[str, Any]]:
        """Go on after the row with the key `position`."""
        match split.detail:
            case {"after": list() | None as after, "to": list(to)}:
                return _PostgresReader(self, after if position is None else position, to)
            case _:
                raise ConnectorError(
                    f"split {split.split_id!r} is not of a Postgres table; is the checkpoint of another "
                    f"source?",
                    split_id=split.split_id,
                )

    @property
    def key_in_order(self) -> list[str]:
        """The columns of the key in SQL; without the table, a name would be that of a result."""
        return [f"t.{quoted(name)}" for name in self.key]

    @property
    def key_as_text(self) -> list[str]:
        """The key in SQL, as positions have it."""
        return [f"{one}::text" for one in self.key_in_order]

    def connected(self) -> Any:
        """Return a new connection."""
        connection = connected(self.conninfo)
        set_loaders(connection, self.infinity)
        return connection

    def _splits(self, connection: Any, parallelism: int) -> list[Split]:
        types = self.key_types(connection)
        query = f"select {', '.join(self.key_as_text)} from {qualified(self.table)} t order by "
        first = connection.execute(query + f"{', '.join(self.key_in_order)} limit 1").fetchone()
        descending = ", ".join(f"{one} desc" for one in self.key_in_order)
        last = connection.execute(query + f"{descending} limit 1").fetchone()
        if first is None or last is None:
            raise ConnectorError(f"{self.describe()} has no rows: fill it before the job starts")
        if len(self.key) > 1 or types[0] not in _INTEGERS:
            return [Split("all", None, {"after": None, "to": list(last)})]
        low, high = int(first[0]) - 1, int(last[0])
        count = min(parallelism, high - low)
        bounds = [low + index * (high - low) // count for index in range(count + 1)]
        return [
            Split(f"{after}-{to}", None, {"after": [str(after)], "to": [str(to)]}, to - after)
            for after, to in pairwise(bounds)
        ]

    def key_types(self, connection: Any) -> list[str]:
        """Return the types of the key's columns.

        Raises:
            ConnectorError: It is no key of the table.
        """
        rows = connection.execute(_KEY, {"key": list(self.key), "table": qualified(self.table)}).fetchall()
        there = {name: (kind, is_set) for name, kind, is_set, _ in rows}
        if not there:
            raise ConnectorError(f"{self.describe()} does not exist", is_permanent=True)
        if missing := sorted({*self.key, *(self.columns or ())} - there.keys()):
            raise ConnectorError(
                f"{self.describe()} has no column {', '.join(missing)}; it has {', '.join(there)}",
                is_permanent=True,
            )
        if not rows[0][3] or not all(there[name][1] for name in self.key):
            raise ConnectorError(
                f"{self.describe()}: {', '.join(self.key)} is no key: expected columns that are not null and "
                f"have a unique index, so that reading can go on after any row",
                is_permanent=True,
            )
        return [there[name][0] for name in self.key]


class _PostgresReader(SplitReader[dict[str, Any]]):
    def __init__(self, source: PostgresSource, position: Any, to: list[Any]) -> None:
        self._source = source
        self._position = position
        self._to = to
        # Asked for, and not kept in the checkpoint: they stand in the query as they are.
        self._types: list[str] = []
        self._rows: list[tuple[list[str], Any]] = []
        self._next = 0
        self._connection: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crosscut-read")
        self._coming: Future[list[tuple[list[str], Any]]] | None = None

    @property
    def position(self) -> JSON:
        position: JSON = self._position
        return position

    def read(self, limit: int) -> list[dict[str, Any]] | Wait | EndOfSplit:
        if self._next == len(self._rows):
            if self._coming is None:
                self._coming = self._thread.submit(self._page, self._position)
            if not self._coming.done():
                return Wait(_WAIT_MS, is_coming=True)
            self._rows, self._next = self._coming.result(), 0
            if not self._rows:
                return EndOfSplit()
            # The next page comes while this one is worked on.
            self._coming = self._thread.submit(self._page, self._rows[-1][0])
        found = self._rows[self._next : self._next + limit]
        records: list[dict[str, Any]] = []
        source = self._source
        for place, row in found:
            try:
                records += records_of(row, source.malformed, source.describe())
            except ConnectorError:
                # Those before it go out first.
                if not records:
                    raise
                break
            self._next += 1
            self._position = place
        return records or Wait(0, is_coming=True)

    def close(self) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()

    def _page(self, after: list[str] | None) -> list[tuple[list[str], Any]]:
        """Return the rows after a key, at most a page. Runs in the thread."""
        source = self._source
        psycopg = required("psycopg", "postgres")
        try:
            if self._connection is None:
                self._connection = source.connected()
                self._types = source.key_types(self._connection)
            key = _literal(", ".join(source.key_in_order))
            bound = ", ".join(f"%s::{_literal(kind)}" for kind in self._types)
            where = f"({key}) <= ({bound})" + (f" and ({key}) > ({bound})" if after is not None else "")
            wanted = ["t.*"] if source.columns is None else [f"t.{quoted(name)}" for name in source.columns]
            what = _literal(f"{', '.join([*source.key_as_text, *wanted])} from {qualified(source.table)} t")
            query = f"select {what} where {where} order by {key} limit {source.page_rows}"
            cursor = self._connection.execute(query, [*self._to, *(after or ())])
            count = len(source.key)
            names = [one.name for one in cursor.description[count:]]
            page: list[tuple[list[str], Any]] = []
            for row, reason in fetched(cursor):
                record = dict(zip(names, row[count:], strict=True))
                page.append((list(row[:count]), MalformedRecord(record, reason) if reason else record))
            return page
        except psycopg.Error as error:
            raise ConnectorError(f"{source.describe()}: {shown(error)}") from None


def _literal(text: str) -> str:
    """Return a part of a query that has parameters, in which "%" is itself."""
    return text.replace("%", "%%")
