"""`Stream.lookup`: what is a table, which version a record meets, and what happens if it can't be read."""

from __future__ import annotations

import logging
import pickle
import sqlite3
import sys
import threading
import time
from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import crosscut as cc
from crosscut.connectors.simple import lookup as module
from crosscut.errors import ConnectorError, FlowError, SettingsError

DEADLINE_S = 60.0
ROWS = [{"code": "de", "name": "Germany"}, {"code": "fr", "name": "France"}]


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for {what}"
        time.sleep(0.005)


def arrow() -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(ROWS)


def polars() -> Any:
    return pytest.importorskip("polars").DataFrame(ROWS)


def pandas() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


@pytest.mark.parametrize(
    "make", [lambda: ROWS, arrow, polars, pandas], ids=["list", "arrow", "polars", "pandas"]
)
@pytest.mark.parametrize("by_function", [False, True])
def test_a_row_of_a_frame_is_a_dict_of_its_own(make: Callable[[], Any], by_function: bool) -> None:
    frame = make()
    table = cc.lookup((lambda: frame) if by_function else frame, key="code")
    table.open()
    row = table.get("de")
    assert row == ROWS[0]
    row["name"] = "changed"
    assert table.get("de") == ROWS[0]
    assert table.get("xx") is None


def test_a_dict_gives_its_values_and_several_columns_a_tuple() -> None:
    assert cc.lookup({"EUR": 1.0}).get("EUR") == 1.0
    assert cc.lookup(ROWS, key=["code", "name"]).get(("fr", "France")) == ROWS[1]


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ({"n": 1}, lambda row: row.update(n=2)),
        (OrderedDict(n=1), lambda row: row.update(n=2)),
        ([1], lambda row: row.append(2)),
        ({1}, lambda row: row.add(2)),
    ],
    ids=["dict", "a kind of dict", "list", "set"],
)
@pytest.mark.parametrize("by_function", [False, True])
def test_a_row_of_a_dict_is_a_copy_too(row: Any, change: Callable[[Any], object], by_function: bool) -> None:
    rows = {"key": row}
    table = cc.lookup((lambda: rows) if by_function else rows)
    before = pickle.dumps(row)
    found = table.get("key")
    assert type(found) is type(row)
    change(found)
    assert pickle.dumps(table.get("key")) == before


def test_parquet_files_are_read_from_a_file_or_a_directory(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "_SUCCESS").touch()
    for number, row in enumerate(ROWS):
        parquet.write_table(arrow().slice(number, 1), tmp_path / "rows" / f"{number}.parquet")
        assert row["code"]
    assert cc.lookup(tmp_path / "rows", key="code").get("fr") == ROWS[1]
    assert cc.lookup(str(tmp_path / "rows" / "0.parquet"), key="code").get("de") == ROWS[0]
    (tmp_path / "rows" / "_delta_log").mkdir()
    with pytest.raises(ConnectorError, match=r"is a Delta table.*to_pyarrow_table"):
        cc.lookup(tmp_path / "rows", key="code").open()


def test_a_query_is_read_over_a_connection_of_the_database_api(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("create table countries (code text, name text)")
        database.executemany("insert into countries values (:code, :name)", ROWS)
    database.close()
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(path))
        return opened[-1]

    table = cc.lookup(connect, query="select code, name from countries", key="code")
    assert table.get("fr") == ROWS[1]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("select 1")
    with pytest.raises(ConnectorError, match="rows_max=1 rows"):
        cc.lookup(connect, query="select * from countries", key="code", rows_max=1).open()
    with pytest.raises(ConnectorError, match="must be a select"):
        cc.lookup(connect, query="create table other (n)", key="code").open()
    twice = "select code, name, name, 1 as n, code from countries"
    with pytest.raises(ConnectorError, match=r"several columns of one name: code, name; .* 'as'") as raised:
        cc.lookup(connect, query=twice, key="n").open()
    assert raised.value.is_permanent


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"a": 1}, {"refresh": "5m"}, "is a dict, which does not change; pass the path of Parquet files"),
        ({"a": 1}, {"key": "a"}, "a dict has its rows by key already"),
        ({"a": 1, "b": 2}, {"rows_max": 1}, "more than rows_max=1 rows"),
        (ROWS, {}, "key=None: name the column that finds a row, of code, name"),
        (
            ROWS,
            {"key": "cod"},
            "key='cod' is no column of the table, which has code, name; did you mean 'code'",
        ),
        ([*ROWS, ROWS[0]], {"key": "code"}, "2 rows have the key 'de'"),
        (ROWS, {"key": 5}, "key=5: expected the name of a column"),
        (ROWS, {"key": "code", "query": "select 1"}, "expected a select, and as the table a function"),
        (5, {"key": "code"}, "5 of type int is no table"),
        (ROWS, {"key": "code", "rows_max": 0}, "rows_max=0"),
        (lambda one: ROWS, {"key": "code"}, "it is called with \\(\\), and <lambda>"),
        (lambda: ROWS, {"key": "code", "refresh": 0}, "refresh=0: expected at least 1 ms"),
    ],
)
def test_what_is_no_table_is_refused_when_it_is_made(table: Any, options: Any, message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        cc.lookup(table, **options)


def test_an_unknown_option_and_a_table_that_is_none_are_named() -> None:
    with pytest.raises(SettingsError, match="did you mean 'refresh'"):
        cc.lookup({}, refesh="5m")  # type: ignore[call-arg]
    stream = cc.Flow("f").source(cc.items([1]))
    with pytest.raises(FlowError, match=r"expected a table of crosscut\.lookup"):
        stream.lookup({"EUR": 1.0}, "currency")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="join:"):
        stream.lookup(cc.lookup({}), "currency", join=lambda record: record)  # type: ignore[arg-type,misc]


class Database:
    """A table that changes, and can be away."""

    def __init__(self) -> None:
        self.version = 1
        self.is_away = False
        self.reads = 0
        self.threads: set[int] = set()

    def read(self) -> dict[str, int]:
        self.reads += 1
        self.threads.add(threading.get_ident())
        if self.is_away:
            raise OSError("no route to host")
        return {"version": self.version}


def test_a_refresh_replaces_the_table_in_a_thread_and_keeps_it_if_it_can_not_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database()
    table = cc.lookup(database.read, refresh="10ms")
    table.open()
    assert table.get("version") == 1
    database.version = 2
    until(lambda: table.get("version") == 2, "the new version")
    with caplog.at_level(logging.WARNING, "crosscut.lookup"):
        database.is_away = True
        until(lambda: "no route to host; the version read" in caplog.text, "a warning")
    assert table.get("version") == 2
    database.version, database.is_away = 3, False
    until(lambda: table.get("version") == 3, "the version after that")
    assert len(database.threads - {threading.get_ident()}) == 1


def test_a_function_that_ends_its_thread_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    """Threads end on SystemExit without a word."""
    raised: list[BaseException] = []

    def read() -> dict[str, int]:
        if len(raised) in (1, 2):
            raised.append(SystemExit("no password") if len(raised) == 1 else CancelledError())
            raise raised[-1]
        raised.append(Exception())
        return {"version": len(raised)}

    table = cc.lookup(read, refresh="10ms")
    table.open()
    until(lambda: table.get("version") == 4, "the version after the failures")
    assert "can't be read: SystemExit: no password; the version read" in caplog.text
    assert "can't be read: CancelledError: " in caplog.text

    def exits() -> dict[str, int]:
        sys.exit(3)

    with pytest.raises(ConnectorError, match=r"exits.* can't be read: SystemExit: 3"):
        cc.lookup(exits).open()


def test_a_refresh_that_hangs_is_warned_of_again_and_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "OVERDUE_LEAST_S", 0.01)
    release = threading.Event()
    versions = iter(range(1, 1_000_000))

    def read() -> dict[str, int]:
        if (version := next(versions)) == 2:
            assert release.wait(DEADLINE_S)
        return {"version": version}

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if "has not ended" in one.getMessage()]

    table = cc.lookup(read, refresh="1ms")
    table.open()
    until(lambda: len(warnings()) >= 3, "warnings")
    assert "crosscut.lookup(read)" in warnings()[0] and "the version read" in warnings()[0]
    assert table.get("version") == 1
    release.set()
    until(lambda: table.get("version") > 2, "the versions after that")


def test_a_table_whose_refresh_hangs_is_released_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERDUE_LEAST_S", 0.01)
    monkeypatch.setattr(module, "RELEASED_AFTER_S", 0.01)
    release, hangs = threading.Event(), threading.Event()

    def read() -> dict[str, int]:
        if threading.current_thread() is not threading.main_thread() and not release.is_set():
            hangs.set()
            assert release.wait(DEADLINE_S)
        return {}

    table = cc.lookup(read, refresh="1ms")
    identity = table.identity  # type: ignore[attr-defined]
    before = set(threading.enumerate())
    table.open()
    assert hangs.wait(DEADLINE_S)
    threads = set(threading.enumerate()) - before
    hanging = module._LOADED[identity]
    del table
    until(lambda: identity not in module._LOADED, "the table to be released")
    again = module._Loading(read, None, "again", identity)
    again.open()
    assert module._LOADED[identity] is not hanging
    release.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert module._LOADED[identity].users


def test_a_table_that_can_not_be_read_at_the_start_is_an_error_and_then_is_tried_again() -> None:
    database = Database()
    database.is_away = True
    table = cc.lookup(database.read)
    with pytest.raises(ConnectorError, match="can't be read: OSError: no route to host") as failed:
        table.open()
    assert failed.value.is_transient
    database.is_away = False
    table.open()
    assert table.get("version") == 1
    with pytest.raises(ConnectorError, match="is no table") as failed:
        cc.lookup(lambda: 5).open()
    assert not failed.value.is_transient


def test_copies_of_a_table_in_a_process_share_it_and_without_any_it_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RELEASED_AFTER_S", 0.05)
    reads: list[int] = []
    table = cc.lookup(lambda: {"n": len(reads)} if reads.append(1) is None else {})
    # As the graph of each micro-batch has one.
    copies = [pickle.loads(cloudpickle.dumps(table)) for _ in range(3)]
    before = set(threading.enumerate())
    for one in copies:
        one.open()
    identity = copies[0].identity
    assert len({id(one._loaded) for one in copies}) == 1
    (thread,) = set(threading.enumerate()) - before
    assert identity in module._LOADED
    copies.clear()
    del one
    until(lambda: identity not in module._LOADED, "the table to be released")
    thread.join(DEADLINE_S)
    again = pickle.loads(cloudpickle.dumps(table))
    assert again.get("n") == 1


def test_records_are_joined_or_dead_letters() -> None:
    flow = cc.Flow("orders")
    stream = flow.source(cc.items([1]))
    joined = stream.lookup(
        cc.lookup(ROWS, key="code"), "country", join=lambda o, r: r["name"], on_error="dead letters"
    )
    joined.sink(cc.printing())
    joined.side_output("dead letters").sink(cc.printing())
    node = next(one for v in flow.compile(1, 8).vertices for one in v.chain if "lookup" in one.uid)
    function = node.spec.function  # type: ignore[union-attr]
    assert function({"country": "fr"}) == "France"
    with pytest.raises(TypeError):
        function({"country": "xx"})
