"""Rows that are looked up for each record: the function of `map_async`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from reprlib import repr as shortened
from time import monotonic
from typing import Any, Literal

from crosscut.connectors.extras import required
from crosscut.connectors.postgres.values import rows_one_by_one, set_loaders, unreadable
from crosscut.connectors.postgres.writer import (
    CONNECT_TIMEOUT_S,
    checked_conninfo,
    readable_conninfo,
    session_of,
    shown,
)
from crosscut.connectors.secrets import Environment
from crosscut.errors import ConnectorError
from crosscut.foundation.callables import function_problem
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.suggestions import checks_options

Rows = list[tuple[tuple[Any, ...], str]]
"""Each with why values of it can't be read; "" if all can."""

_NOTHING: Any = object()


@checks_options("postgres.lookup")
def lookup(
    conninfo: str | Environment,
    query: str,
    by: Callable[[Any], Any],
    *,
    join: Callable[[Any, Any], Any] | None = None,
    rows: Literal["one", "all"] = "one",
    connections: int = 4,
    cache_rows: int = 10_000,
    cache_for: Duration | None = "1m",
) -> Lookup:
    """Return a function for `map_async` that finds a row of the database for each record.

    A record without a row gets None (with `rows="all"` an empty list): it is never left out. None as a
    parameter is SQL's NULL, which equals nothing: `where id = %s` finds no row for it. More than one row
    where one is expected is an error.

    Answers are kept for a while, also that there is no row; so a change of the table is seen after
    `cache_for` at the latest. A call that is made again after a failure may get another row than the first
    time; the result that went on before a checkpoint counts, as with any call of `map_async`.

    Args:
        conninfo: See `crosscut.postgres.sink`.
        query: A select, with `%s` or `%(name)s` in the place of parameters. A percent sign is `%%`.
        by: Takes a record, returns the parameters: a tuple or list, a dict by name, or one value.
        join: Takes a record and its row, a dict by column or None (or the list of them), and returns the
            result. Default: the pair (record, row).
        rows: "one" or "all".
        connections: That each task opens at most; further calls wait for one.
        cache_rows: How many answers each task keeps, the ones used last.
        cache_for: How long an answer is used. None: each record asks.

    Raises:
        ConnectorError: An argument is not as described. Later, of a call: the server can't be reached or
            refuses the query, or there is more than one row.
        SettingsError: `cache_for` is no duration.

    Examples:
        >>> import crosscut as cc
        >>> customers = cc.postgres.lookup(
        ...     "dbname=shop",
        ...     "select name, country from customers where id = %s",
        ...     by=lambda order: order["customer"],
        ...     join=lambda order, row: {**order, "country": row and row["country"]},
        ... )
        >>> flow = cc.Flow("with-country")
        >>> orders = flow.source(cc.items([{"id": 1, "customer": 7}])).map_async(customers)
    """
    if not isinstance(query, str) or not query.strip():
        raise ConnectorError(f"query={query!r}: expected a select")
    for name, function in (("by", by), ("join", join)):
        if not callable(function) and (name == "by" or function is not None):
            raise ConnectorError(f"{name}={function!r}: expected a function")
        arguments = ("record",) if name == "by" else ("record", "row" if rows == "one" else "rows")
        if function is not None and (problem := function_problem(function, *arguments)):
            raise ConnectorError(f"{name}: {problem}")
    if rows not in ("one", "all"):
        raise ConnectorError(f"rows={rows!r}: expected 'one' or 'all'")
    for name, number, least in (("connections", connections, 1), ("cache_rows", cache_rows, 0)):
        if type(number) is not int or number < least:
            raise ConnectorError(f"{name}={number!r}: expected an int of at least {least}")
    cache_s = 0.0 if cache_for is None else duration_ms(cache_for, "cache_for") / 1_000
    return Lookup(checked_conninfo(conninfo), query, by, join, rows, connections, cache_rows, cache_s)


@dataclass(eq=False)
class Lookup:
    """See `lookup`. Called on one event loop at a time."""

    conninfo: str | Environment
    query: str
    by: Callable[[Any], Any]
    join: Callable[[Any, Any], Any] | None
    rows: Literal["one", "all"]
    connections: int
    cache_rows: int
    cache_s: float
    _cache: dict[Any, tuple[float, Any]] = field(default_factory=dict, init=False, repr=False)
    _pool: _Pool | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return f"crosscut.postgres.lookup({self.query!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}, "_pool": None}

    async def __call__(self, record: Any) -> Any:
        """Return `record` joined with its row."""
        parameters = self.by(record)
        if not isinstance(parameters, tuple | list | Mapping):
            parameters = (parameters,)
        key = _hashable(parameters) if self.cache_s and self.cache_rows else _NOTHING
        found = self._kept(key)
        if found is _NOTHING:
            found = await self._asked(parameters)
            self._keep(key, found)
        # Of its own: what one record's function does to a row must not be seen by the next one's.
        if self.rows == "all":
            own: Any = [dict(row) for row in found]
        else:
            own = dict(found[0]) if found else None
        return (record, own) if self.join is None else self.join(record, own)

    def _kept(self, key: Any) -> Any:
        entry = self._cache.pop(key, None) if key is not _NOTHING else None
        if entry is None or entry[0] <= monotonic():
            return _NOTHING
        # Back to the end: the first is the one that has not been used for longest.
        self._cache[key] = entry
        return entry[1]

    def _keep(self, key: Any, found: list[dict[str, Any]]) -> None:
        if key is _NOTHING:
            return
        self._cache.pop(key, None)
        self._cache[key] = (monotonic() + self.cache_s, found)
        while len(self._cache) > self.cache_rows:
            del self._cache[next(iter(self._cache))]

    async def _asked(self, parameters: Any) -> list[dict[str, Any]]:
        psycopg = required("psycopg", "postgres")
        loop = asyncio.get_running_loop()
        if self._pool is None or self._pool.loop is not loop:
            self._pool = _Pool(self.conninfo, self.connections, loop)
        try:
            names, rows = await self._pool.asked(self.query, parameters)
        except psycopg.Error as error:
            raise ConnectorError(f"the look-up {self.query!r} has failed: {shown(error)}") from None
        if len(set(names)) < len(names):
            raise ConnectorError(
                f"the look-up {self.query!r} returns two columns of one name: {', '.join(names)}; use 'as'"
            )
        if reason := next((reason for _, reason in rows if reason), ""):
            raise ConnectorError(
                f"the look-up {self.query!r} finds a row for {shortened(parameters)} that can't be read: "
                f"{reason}; leave the column out, or select it as text",
                is_permanent=True,
            )
        found = [row for row, _ in rows]
        if self.rows == "one" and len(found) > 1:
            raise ConnectorError(
                f"the look-up {self.query!r} finds {len(found)} rows for {shortened(parameters)}, expected "
                f"one or none: use rows='all', or a query that returns one"
            )
        return [dict(zip(names, row, strict=True)) for row in found]


class _Pool:
    """Connections of one event loop, opened when they are needed."""

    def __init__(self, conninfo: str | Environment, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._conninfo = conninfo
        self._free = asyncio.Semaphore(size)
        self._idle: list[Any] = []

    async def asked(self, query: str, parameters: Any) -> tuple[list[str], Rows]:
        """Return names of columns, and rows."""
        async with self._free:
            while self._idle:
                # The server may have been restarted between two calls: that fails neither.
                with suppress(required("psycopg", "postgres").OperationalError):
                    return await self._answer(self._idle.pop(), query, parameters)
            return await self._answer(await self._connected(), query, parameters)

    async def _answer(self, connection: Any, query: str, parameters: Any) -> tuple[list[str], Rows]:
        try:
            cursor = await connection.execute(query, parameters)
            names = [column.name for column in cursor.description or ()]
            try:
                rows = [(row, "") for row in await cursor.fetchall()]
            except unreadable():
                rows = rows_one_by_one(cursor)
        except BaseException:
            # Cancelled in the middle of an answer, perhaps: the next query must not read that.
            _finish(connection)
            raise
        self._idle.append(connection)
        return names, rows

    async def _connected(self) -> Any:
        text = readable_conninfo(self._conninfo)
        connection = await required("psycopg", "postgres").AsyncConnection.connect(
            text,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="crosscut",
            **session_of(text),
        )
        set_loaders(connection, "malformed")
        return connection

    def __del__(self) -> None:
        # The job has ended, or this epoch of it; a function is not told.
        for connection in self._idle:
            _finish(connection)


def _finish(connection: Any) -> None:
    """Close a connection at once; its own `close` needs an event loop, which may be gone."""
    with suppress(Exception):
        connection.pgconn.finish()


def _hashable(parameters: Any) -> Any:
    """Return a key of the cache; no two parameters that differ for the database have the same."""
    values = tuple(parameters.values() if isinstance(parameters, Mapping) else parameters)
    names = tuple(parameters) if isinstance(parameters, Mapping) else ()
    if any(isinstance(value, tuple | frozenset) for value in values):
        # To Python (1,) and (True,) are the same.
        return _NOTHING
    key = (names, tuple(map(type, values)), values)
    try:
        hash(key)
    except TypeError:
        return _NOTHING
    return key
