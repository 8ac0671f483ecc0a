"""Totals per customer over orders that arrive more than once, as they do after retries.

crosscut run examples/orders.py:flow

Every order is made two times. The first keyed step keeps the first copy of each order, the second
adds up what is left. Both keep state, which is part of every checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import crosscut as cc

ORDERS = 50_000
CUSTOMERS = 100


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    customer: str
    cents: int


@dataclass(frozen=True, slots=True)
class Copies:
    """The first copy of an order, and how many there were so far."""

    order: Order
    count: int = 1


@dataclass(frozen=True, slots=True)
class Total:
    orders: int = 0
    cents: int = 0


def order(index: int) -> Order:
    """Make an order; the second half of the indexes repeats the first."""
    number = index % ORDERS
    return Order(number, f"customer-{number * 7 % CUSTOMERS}", cents=100 + number % 900)


def one_more(seen: Copies, other: Copies) -> Copies:
    return Copies(seen.order, seen.count + other.count)


def added(total: Total, order: Order) -> Total:
    return Total(total.orders + 1, total.cents + order.cents)


flow = cc.Flow("order-totals")
(
    flow.source(cc.generate(order, count=2 * ORDERS))
    .named("orders")
    .map(Copies)
    .key_by(lambda copies: copies.order.number)
    .reduce(one_more)
    .named("copies")
    .filter(lambda update: update[1].count == 1)
    .map(lambda update: update[1].order)
    .key_by(lambda order: order.customer)
    .aggregate(Total, added, emit="final")
    .named("totals")
    .sink(cc.files.write_jsonl("order-totals"))
    .named("out")
)

if __name__ == "__main__":
    job = flow.start(cc.Settings(parallelism=2))
    job.wait()
    print(f"{job.status}, {len(job.checkpoints())} checkpoints")
