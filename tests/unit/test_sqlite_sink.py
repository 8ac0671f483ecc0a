"""What SQLite would change, refuse or add twice is refused before its checkpoint can be complete."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import crosscut as cc
from crosscut.contracts.connectors import SinkWriter
from crosscut.errors import ConnectorError, RefusedRecordError
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage


class Number(IntEnum):
    ONE = 1


class Word(str, Enum):  # noqa: UP042 - as there are many; its str() is another text
    A = "a"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "t.db"


def query(database: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


@dataclass
class Place:
    x: int


def written(sink: cc.Sink, records: list[Any]) -> None:
    sink.check()
    writer = open_writer(sink, 1)
    writer.commit(permit(1), [stage(writer, records, 1)])
    writer.close()


def with_letters(writer: SinkWriter) -> list[tuple[Any, str]]:
    """Ask for dead letters, as the runtime does; return where they go."""
    letters: list[tuple[Any, str]] = []
    writer.set_aside = lambda record, reason: letters.append((record, reason))
    return letters


@pytest.mark.parametrize("key", ["a", ["a", "b"]])
def test_a_key_without_a_value_is_refused_with_its_record(database: Path, key: Any) -> None:
    """P10: NULL equals no other NULL, so such rows would be added for ever."""
    sink = cc.sqlite.sink(database, "t", {"a": "text", "b": "integer", "n": "integer"}, key=key)
    sink.check()
    writer = open_writer(sink, 1)
    with pytest.raises(RefusedRecordError, match=r"\(None, 1, 2\) is refused: .*: column a is of the key"):
        stage(writer, [("x", 1, 1), (None, 1, 2)], 1)
    assert query(database, "select * from t") == []
    writer.close()


def test_a_table_that_takes_null_in_its_key_is_written_to_without(database: Path) -> None:
    """As tables are that were made by earlier releases."""
    query(database, "create table t (a text, n integer, primary key (a))")
    sink = cc.sqlite.sink(database, "t", ["a", "n"], key="a")
    sink.check()
    writer = open_writer(sink, 1)
    letters = with_letters(writer)
    handle = stage(writer, [("x", 1), (None, 1), ("x", 2), (None, 2)], 1)
    writer.commit(permit(1), [handle])
    writer.close()
    assert [record for record, _ in letters] == [(None, 1), (None, 2)]
    assert query(database, "select * from t") == [("x", 2)]


def test_a_type_that_sqlite_would_make_numeric_is_mapped_or_refused(database: Path) -> None:
    words = ["00123", "123", "1e2", "100", "abc"]
    sink = cc.sqlite.sink(database, "t", {"zip": "string", "n": "integer"}, key="zip")
    written(sink, [(word, 1) for word in words])
    assert sorted(query(database, "select * from t")) == sorted((word, 1) for word in words)
    with pytest.raises(ConnectorError, match="SQLite has no type 'ztring', and would make 'zip' numeric"):
        cc.sqlite.sink(database, "t", {"zip": "ztring"})


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("numeric", "00123", "would become a number"),
        ("integer", " 12", "would become a number"),
        ("real", "1e2", "would become a number"),
        ("timestamp", "20200101", "would become a number"),
        ("real", 2**53 + 1, "would be rounded"),
        ("numeric", Decimal("0.12345678901234567890"), "would be rounded"),
        ("numeric", Decimal("NaN"), "is not a number in SQLite"),
        ("integer", 2**63, "beyond 64 bits"),
        ("real", float("inf"), "is not a number in SQLite"),
        ("json", {"a": float("nan")}, "it holds NaN or infinity"),
        ("json", {1: "a", "1": "b"}, "keys become the same text"),
        ("text", "\ud800", "surrogates not allowed"),
        ("text", {1}, "is of type set: expected None, str, bytes in a column of type 'text'"),
        ("text", 1, "is of type int: expected None, str"),
        ("text", 1.5, "is of type float: expected None, str"),
        ("text", True, "is of type bool: expected None, str"),
        ("varchar(9)", date(2020, 1, 1), "is of type date: expected None, str"),
        ("text", Decimal("1.10"), "is of type Decimal: expected None, str"),
        ("text", UUID(int=7), "such as columns={'at': 'datetime'}; convert others in row= of the sink"),
        ("text", {"a": 1}, "need a type that begins with"),
        ("text", [1], "need a type that begins with"),
        ("uuid", [1], "expected None, str, bytes, UUID"),
        ("uuid", 1, "expected None, str, bytes, UUID"),
        ("json", date(2020, 1, 1), "expected None, str, bytes, JSON"),
        ("integer", date(2020, 1, 1), "need a type that begins with"),
        ("blob", date(2020, 1, 1), "need a type that begins with"),
        ("blob", Decimal("1.10"), "is of type Decimal"),
    ],
)
def test_a_value_that_its_column_would_change_or_not_take_is_refused(
    database: Path, kind: str, value: Any, reason: str
) -> None:
    """P10."""
    sink = cc.sqlite.sink(database, "t", {"v": kind})
    sink.check()
    writer = open_writer(sink, 1)
    letters = with_letters(writer)
    writer.commit(permit(1), [stage(writer, [(None,), (value,), ("x",)], 1)])
    writer.close()
    ((_, found),) = letters
    assert reason in found
    assert found.endswith(", column v")
    assert [row for (row,) in query(database, "select v from t")] == [None, "x"]


def test_keys_of_different_types_are_not_one(database: Path) -> None:
    """They were all the row '1'; a date and its text were one, too."""
    sink = cc.sqlite.sink(database, "t", {"k": "text", "v": "integer"}, key="k")
    sink.check()
    writer = open_writer(sink, 1)
    letters = with_letters(writer)
    rows: list[Any] = [(1, 1), ("1", 2), (1.0, 3), (True, 4), (date(2020, 1, 1), 5), ("2020-01-01", 6)]
    writer.commit(permit(1), [stage(writer, rows, 1)])
    writer.close()
    assert sorted(query(database, "select * from t")) == [("1", 2), ("2020-01-01", 6)]
    assert [record for record, _ in letters] == [rows[0], *rows[2:5]]


def test_what_a_column_is_declared_for_is_written_also_where_its_table_was_made_before(
    database: Path,
) -> None:
    """Earlier releases made columns of text where the user had said "json" or "uuid"."""
    query(database, "create table t (j text, u text)")
    rows = [({"a": 1}, UUID(int=7)), ("[1]", "x")]
    written(cc.sqlite.sink(database, "t", {"j": "jsonb", "u": "uuid"}), rows)
    assert query(database, "select * from t") == [('{"a":1}', str(UUID(int=7))), ("[1]", "x")]


def test_values_that_columns_keep_come_back_as_they_are(database: Path) -> None:
    columns = {
        "t": "text", "i": "integer", "r": "real", "n": "decimal(9, 2)", "b": "blob",
        "at": "timestamp", "j": "json", "u": "uuid",
    }  # fmt: skip
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    rows = [
        ("00123", -(2**63), 0.1, Decimal("1.10"), b"\0\xff", moment, {"big": 2**70}, UUID(int=7)),
        (Word.A, True, 1, Decimal(7), "123", date(2020, 1, 1), [1, "x"], "x"),
        ("", 5.0, None, 2.5, 1.5, time(1, 2), True, None),
        (None, Number.ONE, 1e300, None, 2**62, "2020-01-01", 7, None),
        (None, None, None, Decimal.from_float(0.1), None, None, Place(1), None),
    ]
    written(cc.sqlite.sink(database, "t", columns), rows)
    assert query(database, "select * from t") == [
        ("00123", -(2**63), 0.1, 1.1, b"\0\xff", moment.isoformat(),
         '{"big":1180591620717411303424}', str(UUID(int=7))),
        ("a", 1, 1.0, 7, "123", "2020-01-01", '[1,"x"]', "x"),
        ("", 5, None, 2.5, 1.5, "01:02:00", "true", None),
        (None, 1, 1e300, None, 2**62, "2020-01-01", "7", None),
        (None, None, None, 0.1, None, None, '{"x":1}', None),
    ]  # fmt: skip


REFUSALS: list[tuple[str, list[Any], str]] = [
    ("v integer not null", [(None,)], "NOT NULL constraint failed: t.v"),
    ("v integer check (v < 10)", [(10,)], "CHECK constraint failed"),
    ("v integer primary key", [(1,), (7,)], "UNIQUE constraint failed: t.v"),
]


@pytest.mark.parametrize(("column", "bad", "reason"), REFUSALS)
def test_what_a_table_would_refuse_at_commit_fails_the_checkpoint_before(
    database: Path, column: str, bad: list[Any], reason: str
) -> None:
    """P6: else the job could never go on, whatever becomes of the flow."""
    query(database, f"create table t ({column})")
    query(database, "insert into t values (7)")
    sink = cc.sqlite.sink(database, "t", ["v"])
    sink.check()
    writer = open_writer(sink, 1)
    records = [(1,), (2,), *bad, (3,)]
    with pytest.raises(RefusedRecordError, match=reason):
        stage(writer, records, 1)
    writer.close()
    assert query(database, "select * from t") == [(7,)]
    writer = open_writer(sink, 2)
    letters = with_letters(writer)
    handle = stage(writer, records, 1)
    assert query(database, "select * from t") == [(7,)], (
        "nothing is visible before its checkpoint is complete"
    )
    writer.commit(permit(1, 2), [handle])
    writer.commit(permit(2, 2), [stage(writer, bad, 2)])
    writer.close()
    assert [record for record, _ in letters] == [*bad, *bad]
    assert all(reason in why for _, why in letters)
    assert sorted(query(database, "select * from t")) == [(1,), (2,), (3,), (7,)]


def test_a_strict_table_keeps_what_it_takes(database: Path) -> None:
    query(database, "create table t (i integer, a any) strict")
    sink = cc.sqlite.sink(database, "t", ["i", "a"])
    sink.check()
    writer = open_writer(sink, 1)
    letters = with_letters(writer)
    writer.commit(permit(1), [stage(writer, [("x", 1), (1, "001")], 1)])
    writer.close()
    ((record, reason),) = letters
    assert record == ("x", 1) and reason.endswith("cannot store TEXT value in INTEGER column t.i")
    assert query(database, "select * from t") == [(1, "001")]


@pytest.mark.parametrize(
    ("made", "arguments", "message"),
    [
        ("a text, n integer", {"key": "a"}, r"has no unique index on \(\"a\"\), which key= needs"),
        ("a text, n integer, more text not null", {}, "column more must have a value and has no default"),
        ("a text", {}, "has no column n"),
    ],
)
def test_a_table_that_does_not_fit_is_found_before_the_start(
    database: Path, made: str, arguments: Any, message: str
) -> None:
    query(database, f"create table t ({made})")
    with pytest.raises(ConnectorError, match=message):
        cc.sqlite.sink(database, "t", ["a", "n"], **arguments).check()


def test_columns_that_fill_themselves_are_left_out(database: Path) -> None:
    query(database, "create table t (id integer primary key, a text, at text not null default 'now')")
    written(cc.sqlite.sink(database, "t", ["a"]), [("x",), ("y",)])
    assert query(database, "select * from t") == [(1, "x", "now"), (2, "y", "now")]


def test_names_are_those_of_sql(database: Path) -> None:
    for name in ("main.counts", '"app.counts"', '"say ""hi"""'):
        written(cc.sqlite.sink(database, name, {"a": "text"}, key="a"), [("x",)])
    tables = query(database, "select name from sqlite_master where type = 'table' order by name")
    assert tables == [("app.counts",), ("counts",), ("crosscut_markers",), ('say "hi"',)]
    with pytest.raises(ConnectorError, match="has only the schema 'main'"):
        cc.sqlite.sink(database, "app.counts", {"a": "text"})
    for name in ("", ".", "a.b.c", 'a"b', "a.", '"'):
        with pytest.raises(ConnectorError, match="expected the name of a table"):
            cc.sqlite.sink(database, name, {"a": "text"})


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_a_table_conforms(database: Path, tmp_path: Path, check: Callable[[SinkTarget], None]) -> None:
    """F1, F2, F4, F6, F8, C1, I1, I2, I3, N1, P6, P7."""
    sink = cc.sqlite.sink(database, "t", {"line": "text", "n": "integer"})
    sink.check()

    def backup() -> Callable[[], None]:
        copied(database, tmp_path / "backup.db")
        return lambda: copied(tmp_path / "backup.db", database)

    check(
        SinkTarget(
            sink,
            lambda: query(database, "select * from t order by n"),
            lambda i: (f"line {i}", i),
            refused=lambda i: (f"refused {i}", "12"),
            shown=lambda row: (row["line"], row["n"]),
            backup=backup,
        )
    )


def copied(database: Path, to: Path) -> None:
    with closing(sqlite3.connect(database)) as one, closing(sqlite3.connect(to)) as other:
        one.backup(other)


def test_pending_rows_can_be_shown(database: Path) -> None:
    sink = cc.sqlite.sink(database, "t", {"a": "text", "b": "blob"})
    sink.check()
    writer = open_writer(sink, 1)
    handle = stage(writer, [("x", b"\0")], 1)
    assert list(writer.pending_records([handle])) == [{"a": "x", "b": b"\0"}]
    writer.close()


def test_a_row_that_collides_with_one_of_its_checkpoint_is_found(database: Path) -> None:
    query(database, "create table t (a text unique, n integer)")
    sink = cc.sqlite.sink(database, "t", ["a", "n"])
    sink.check()
    writer = open_writer(sink, 1)
    letters = with_letters(writer)
    rows = [(str(number % 60), number) for number in range(100)]
    writer.commit(permit(1), [stage(writer, rows, 1)])
    writer.close()
    assert [record for record, _ in letters] == rows[60:]
    assert sorted(query(database, "select n from t")) == [(number,) for number in range(60)]
