"""Tables in the memory of each worker process, read again from time to time: `crosscut.lookup`."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from reprlib import repr as shortened
from typing import Any
from weakref import WeakSet

from crosscut.connectors.extras import required
from crosscut.contracts.lookup_tables import LookupTable
from crosscut.errors import ConnectorError, CrosscutError
from crosscut.foundation.callables import argument_problem, is_async
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.suggestions import checks_options, did_you_mean
from crosscut.foundation.urls import shown_repr

RELEASED_AFTER_S = 60.0
"""A process releases a table that no task has used for so long, since Spark gives it to other jobs later.
Longer than the pause between two micro-batches."""

OVERDUE_AFTER = 5
"""A warning says that a refresh has not ended after so many times `refresh`, and when that has doubled."""

OVERDUE_LEAST_S = 10.0
"""Before that there is no such warning, however short `refresh` is."""

_ROWS_AT_ONCE = 20_000
"""Arrow keeps the interpreter lock while it makes Python objects: for so many rows at most, records wait."""

_log = logging.getLogger("crosscut.lookup")


@checks_options("lookup")
def lookup(
    table: Any,
    *,
    key: str | Iterable[str] | None = None,
    query: str | None = None,
    refresh: Duration | None = None,
    rows_max: int = 1_000_000,
) -> LookupTable:
    """Return a table for `Stream.lookup`, which each process that looks something up has in memory.

    A dict or a DataFrame is read once, when the flow is built, and travels with the flow. Each worker process
    reads any other table before its first record, and with `refresh` again and again, in a thread. A new
    version replaces the old one as a whole.

    A record gets its row from the version that its process has at that moment. Processes do not switch
    together, and the version is not part of a checkpoint: a record that is processed again after a failure
    may meet a newer one. Committed output stays as it is, as with any code that is not deterministic.

    If the table can't be read at the start, the job fails. If a refresh fails, the process logs a warning,
    keeps the old version, and tries again after `refresh`. One that has not ended after five times `refresh`
    (10 s at least) is waited for, with a warning then and whenever that time has doubled: set timeouts in a
    function that reads over a network.

    A row that is a dict, a list or a set is a copy of its own for each record. Values inside of it, and rows
    that are objects of other classes, are shared by all records: do not change them.

    Args:
        table: One of

            * a dict: the rows by key;
            * a DataFrame (pandas, Polars, Arrow, Spark): Spark's is collected;
            * the path or URL of a Parquet file, or of a directory with Parquet files;
            * a function without arguments that returns a dict, a list of dicts, or a DataFrame (not Spark's);
            * with `query`, a function that opens a connection of the DB-API (sqlite3, psycopg, ...).
        key: The column by which rows are found, or several, for keys that are tuples. Not for a dict.
        query: A select; all its rows are the table.
        refresh: How long after it was read the table is read again. None: never.
        rows_max: A table with more rows is an error.

    Raises:
        ConnectorError: An argument is not as described. Later: the table can't be read, has more rows, or has
            two rows with one key.
        SettingsError: `refresh` is no duration.

    Examples:
        >>> import crosscut as cc
        >>> rates = cc.lookup({"EUR": 1.0, "USD": 1.08})
        >>> flow = cc.Flow("in-euros")
        >>> orders = flow.source(cc.items([{"id": 1, "currency": "USD", "total": 54.0}]))
        >>> def in_euros(order, rate):
        ...     return {**order, "total": order["total"] / rate}
        >>> priced = orders.lookup(rates, "currency", join=in_euros)
    """
    if type(rows_max) is not int or rows_max < 1:
        raise ConnectorError(f"rows_max={rows_max!r}: expected an int of at least 1")
    columns = _key_columns(key)
    if query is not None and (not isinstance(query, str) or not query.strip() or not callable(table)):
        raise ConnectorError(
            f"query={shortened(query)}: expected a select, and as the table a function that opens a "
            f"connection, as in lookup(lambda: sqlite3.connect('shop.db'), query='select * from customers', "
            f"key='id')"
        )
    refresh_s = None if refresh is None else duration_ms(refresh, "refresh") / 1_000
    if refresh_s is not None and refresh_s < 0.001:
        raise ConnectorError(f"refresh={refresh!r}: expected at least 1 ms")
    limits = _Limits(columns, rows_max)
    shown = f"crosscut.lookup({shortened(table)})"
    if callable(table):
        if is_async(table) or (problem := argument_problem(table)):
            problem = "it is an async function; use def" if is_async(table) else problem
            raise ConnectorError(f"table={shortened(table)}: {problem}")
        shown = f"crosscut.lookup({getattr(table, '__name__', shortened(table))})"
        load = partial(_from_function, table, query, limits)
    elif isinstance(table, str | os.PathLike):
        shown = f"crosscut.lookup({shown_repr(os.fspath(table))})"
        load = partial(_from_parquet, os.fspath(table), limits)
    elif refresh is not None:
        raise ConnectorError(
            f"refresh={refresh!r}: {shortened(table)} is a {type(table).__name__}, which does not change; "
            f"pass the path of Parquet files, or a function that reads the table"
        )
    else:
        return _Constant(_rows_of(_collected(table, rows_max), limits), shown)
    return _Loading(load, refresh_s, shown)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What rows are found by, and how many there may be."""

    key: tuple[str, ...]
    rows_max: int

    def check(self, count: int) -> None:
        """Raise ConnectorError if that are too many."""
        if count > self.rows_max:
            raise _never_mended(
                f"the table has more than rows_max={self.rows_max:,} rows: raise it if they fit into the "
                f"memory of each process, or select fewer of them"
            )


def _never_mended(message: str) -> ConnectorError:
    return ConnectorError(message, is_permanent=True)


class _Rows:
    """One version of a table.

    Args:
        rows: By key: as they are, or tuples of the values of `names`.
        names: Columns; None: rows are values of the user's own.
    """

    __slots__ = ("_names", "_rows")

    def __init__(self, rows: Mapping[Any, Any], names: tuple[str, ...] | None) -> None:
        self._rows = rows
        self._names = names

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: Any) -> Any:
        row: Any = self._rows.get(key)
        # Of its own for each caller, which may change it.
        if self._names is not None:
            return None if row is None else dict(zip(self._names, row, strict=True))
        kind = type(row)
        if kind is dict or kind is list or kind is set:
            return row.copy()
        return copy(row) if isinstance(row, dict | list | set) else row


class _Constant(LookupTable):
    """A table that travels with the flow."""

    def __init__(self, rows: _Rows, shown: str) -> None:
        self._rows = rows
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown

    def open(self) -> None:
        """Nothing is left to be done."""

    def get(self, key: Any) -> Any:
        return self._rows.get(key)


@dataclass(eq=False)
class _Loading(LookupTable):
    """A table that each process loads. Copies of it in one process share what one of them has loaded."""

    load: Callable[[], _Rows]
    refresh_s: float | None
    shown: str
    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    _loaded: _Loaded | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return self.shown

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def open(self) -> None:
        self._opened()

    def get(self, key: Any) -> Any:
        return (self._loaded or self._opened()).rows.get(key)

    def _opened(self) -> _Loaded:
        with _LOCK:
            loaded = _LOADED.get(self.identity)
            if loaded is None:
                loaded = _Loaded(self.load, self.refresh_s, self.shown, self.identity)
                _LOADED[self.identity] = loaded
            loaded.users.add(self)
        loaded.begin()
        self._loaded = loaded
        return loaded


class _Loaded:
    """What this process has of a table.

    Attributes:
        rows: The newest version; empty before `begin`.
        users: The tables of tasks that use it; without any it is released after a while.
    """

    def __init__(self, load: Callable[[], _Rows], refresh_s: float | None, shown: str, identity: str) -> None:
        self.rows = _Rows({}, None)
        self.users: WeakSet[_Loading] = WeakSet()
        self._load = load
        self._refresh_s = refresh_s
        self._shown = shown
        self._identity = identity
        self._is_ready = False
        self._beginning = threading.Lock()
        self._used_s = time.monotonic()

    def begin(self) -> None:
        """Load the first version, or wait until another thread has.

        Raises:
            ConnectorError: It can't be loaded.
        """
        with self._beginning:
            self._used_s = time.monotonic()
            if not self._is_ready:
                self.rows = self._read()
                self._is_ready = True
                threading.Thread(target=self._keep, name="crosscut-lookup", daemon=True).start()

    def _read(self) -> _Rows:
        started_s = time.monotonic()
        try:
            rows = self._load()
        except CrosscutError as error:
            raise ConnectorError(f"{self._shown}: {error}", is_permanent=not error.is_transient) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Also SystemExit, at which a thread ends without a word, and panics of libraries in Rust.
            raise ConnectorError(f"{self._shown} can't be read: {type(error).__name__}: {error}") from error
        _log.info("%s: %d rows, read in %.2f s", self._shown, len(rows), time.monotonic() - started_s)
        return rows

    def _keep(self) -> None:
        """Read the table again when it is due, and release it when no task uses it any more."""
        read_s = tried_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            # From the last attempt, or a table that can't be read would be read without a pause.
            due_s = now_s + RELEASED_AFTER_S if self._refresh_s is None else tried_s + self._refresh_s
            # In a thread of its own, which no end of the program waits for.
            time.sleep(max(0.0, min(due_s - now_s, RELEASED_AFTER_S)))
            if self._is_released():
                return
            if self._refresh_s is not None and time.monotonic() >= due_s:
                try:
                    with self._warning_if_it_hangs(self._refresh_s, read_s):
                        self.rows = self._read()
                except ConnectorError as error:
                    _log.warning(
                        "%s; the version read %.0f s ago stays in use, and it is tried again in %g s",
                        error,
                        time.monotonic() - read_s,
                        self._refresh_s,
                    )
                else:
                    read_s = time.monotonic()
                tried_s = time.monotonic()

    @contextmanager
    def _warning_if_it_hangs(self, refresh_s: float, read_s: float) -> Iterator[None]:
        """Warn while a refresh takes too long, and release the table as `_keep` would.

        Args:
            read_s: When the version in use was read.
        """
        has_ended = threading.Event()

        def warn() -> None:
            began_s = time.monotonic()
            wait_s = max(OVERDUE_AFTER * refresh_s, OVERDUE_LEAST_S)
            while not has_ended.wait(began_s + wait_s - time.monotonic()):
                if self._is_released():
                    return
                now_s = time.monotonic()
                _log.warning(
                    "%s: a refresh has not ended after %.0f s; the version read %.0f s ago stays in use "
                    "until it does: set a timeout in what reads the table",
                    self._shown,
                    now_s - began_s,
                    now_s - read_s,
                )
                wait_s *= 2

        threading.Thread(target=warn, name="crosscut-lookup-refresh", daemon=True).start()
        try:
            yield
        finally:
            has_ended.set()

    def _is_released(self) -> bool:
        with _LOCK:
            if self.users or time.monotonic() - self._used_s < RELEASED_AFTER_S:
                return False
            # If a refresh has hung, the process may have loaded the table anew since it was released.
            if _LOADED.get(self._identity) is self:
                del _LOADED[self._identity]
            return True


_LOCK = threading.Lock()
_LOADED: dict[str, _Loaded] = {}
"""The tables of this process, by identity: also for the next micro-batch, which has a graph of its own."""


def _key_columns(key: object) -> tuple[str, ...]:
    if key is None:
        return ()
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else ()
    if not columns or not all(isinstance(one, str) and one for one in columns):
        raise ConnectorError(f"key={key!r}: expected the name of a column, or several")
    return columns


def _collected(table: Any, rows_max: int) -> Any:
    """Return a DataFrame of Spark as a table of Arrow, and anything else as it is."""
    if hasattr(table, "sparkSession") and hasattr(table, "toArrow"):
        return table.limit(rows_max + 1).toArrow()
    return table


def _from_function(function: Callable[[], Any], query: str | None, limits: _Limits) -> _Rows:
    if query is None:
        return _rows_of(function(), limits)
    with closing(function()) as connection:
        cursor = connection.cursor()
        cursor.execute(query)
        names = tuple(str(column[0]) for column in cursor.description or ())
        if not names:
            raise _never_mended(f"the query {shortened(query)} returns no rows: it must be a select")
        rows = cursor.fetchmany(limits.rows_max + 1)
    limits.check(len(rows))
    return _by_key(names, rows, limits.key)


def _from_parquet(location: str, limits: _Limits) -> _Rows:
    if os.path.isdir(os.path.join(location, "_delta_log")):
        raise _never_mended(
            f"{location!r} is a Delta table, whose directory also has files of older versions: pass a "
            f"function, as in lookup(lambda: deltalake.DeltaTable({location!r}).to_pyarrow_table(), ...)"
        )
    found = required("pyarrow.dataset", "parquet").dataset(location, format="parquet")
    limits.check(found.count_rows())
    return _rows_of(found.to_table(), limits)


def _rows_of(table: Any, limits: _Limits) -> _Rows:
    """Return a version of a table, made of what the user has, or what the user's function has returned."""
    if isinstance(table, Mapping):
        if limits.key:
            raise _never_mended(f"key={list(limits.key)}: a dict has its rows by key already; leave key= out")
        limits.check(len(table))
        return _Rows(dict(table), None)
    if isinstance(table, list) and all(isinstance(one, Mapping) for one in table):
        limits.check(len(table))
        names = tuple(dict.fromkeys(name for row in table for name in row))
        return _by_key(names, [tuple(row.get(name) for name in names) for row in table], limits.key)
    if not hasattr(table, "__arrow_c_stream__"):
        raise _never_mended(
            f"{shortened(table)} of type {type(table).__name__} is no table: expected a dict, a DataFrame of "
            f"pandas, Polars or Arrow, a list of dicts, the path of Parquet files, or a function that "
            f"returns a dict, a DataFrame or a list of dicts"
        )
    arrow = required("pyarrow", "parquet").table(table)
    limits.check(arrow.num_rows)
    rows: list[tuple[Any, ...]] = []
    for batch in arrow.to_batches(max_chunksize=_ROWS_AT_ONCE):
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return _by_key(tuple(arrow.column_names), rows, limits.key)


def _by_key(names: tuple[str, ...], rows: list[tuple[Any, ...]], key: tuple[str, ...]) -> _Rows:
    if not key:
        raise _never_mended(f"key=None: name the column that finds a row, of {', '.join(names)}")
    if missing := [one for one in key if one not in names]:
        raise _never_mended(
            f"key={missing[0]!r} is no column of the table, which has {', '.join(names)}"
            f"{did_you_mean(missing[0], names)}"
        )
    if len(set(names)) < len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        raise _never_mended(
            f"the table has several columns of one name: {', '.join(twice)}; leave out all but one, or "
            f"rename them, in a query with 'as'"
        )
    at = [names.index(one) for one in key]
    if len(at) == 1:
        found = dict(zip((row[at[0]] for row in rows), rows, strict=True))
    else:
        found = dict(zip((tuple(row[one] for one in at) for row in rows), rows, strict=True))
    if len(found) < len(rows):
        counts = Counter(row[at[0]] if len(at) == 1 else tuple(row[one] for one in at) for row in rows)
        ((repeated, count),) = counts.most_common(1)
        raise ConnectorError(
            f"{count} rows have the key {shortened(repeated)}: name columns that identify a row "
            f"({', '.join(names)})"
        )
    return _Rows(found, names)
