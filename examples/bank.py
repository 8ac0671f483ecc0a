"""Transfers between accounts: no money is made or lost, on any cut, whatever fails.

crosscut run examples/bank.py:flow

A transfer takes its amount from one account and goes round the loop as a deposit for the other one. So
while it is on its way the money is in no account; only a consistent cut, with the records in the
channels, adds up. The flow states that as an invariant, and Crosscut holds it against every completed
checkpoint of the running job.
"""

from __future__ import annotations

import random
from functools import partial

import crosscut as cc

OPENING = 1_000
"""What is in each account when it is first used."""

Transfer = tuple[str, int, int, int, int]
""" ("transfer" or "deposit" or "receipt", number, from, to, amount) """

Account = tuple[int, Transfer]
"""(balance, what the last transfer has become)"""

NEW: Account = (OPENING, ("", 0, 0, 0, 0))


def transfer(accounts: int, index: int) -> Transfer:
    choices = random.Random(index)
    payer, payee = choices.sample(range(accounts), 2)
    return "transfer", index, payer, payee, choices.randrange(1, 100)


def account_of(one: Transfer) -> int:
    return one[3] if one[0] == "deposit" else one[2]


def booked(account: Account, one: Transfer) -> Account:
    kind, number, payer, payee, amount = one
    balance = account[0]
    if kind == "deposit":
        return balance + amount, ("receipt", number, payer, payee, amount)
    if amount > balance:
        return balance, ("receipt", number, payer, payee, 0)
    return balance - amount, ("deposit", number, payer, payee, amount)


def once_round(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
    booked_ones = (
        loop.named("counter")
        .key_by(account_of)
        .aggregate(NEW, booked)
        .named("accounts")
        .map(lambda update: update[1][1])
    )
    return (
        booked_ones.filter(lambda one: one[0] == "deposit").named("deposits"),
        booked_ones.filter(lambda one: one[0] == "receipt").named("receipts"),
    )


def money_is_conserved(cut: cc.Cut) -> bool:
    accounts = cut.values("accounts")
    in_accounts = sum(balance for balance, _ in accounts.values())
    # A deposit leaves the accounts towards both filters, so only one of them is asked.
    on_its_way = sum(
        amount
        for uid in ("deposits", "counter", "accounts")
        for kind, _, _, _, amount in cut.in_flight(uid)
        if kind == "deposit"
    )
    return in_accounts + on_its_way == OPENING * len(accounts)


def bank(transfers: int, accounts: int, sink: cc.Sink, rate: float | None = None) -> cc.Flow:
    """Write a receipt for each transfer; of amount 0 if the account did not hold enough."""
    flow = cc.Flow("bank")
    (
        flow.source(cc.generate(partial(transfer, accounts), count=transfers, rate=rate))
        .named("transfers")
        .iterate(once_round)
        .sink(sink)
        .named("out")
    )
    flow.invariant("money is conserved", money_is_conserved, on_broken="stop")
    return flow


flow = bank(100_000, 100, cc.files.write_jsonl("bank-out"), rate=20_000)

if __name__ == "__main__":
    job = flow.start(cc.Settings(parallelism=2, checkpoint_interval="200ms"))
    job.wait()
    print(f"{job.status}, {len(job.checkpoints())} checkpoints")
    for one in job.report().invariants:
        print(f"{one.name}: held on {one.evaluated - one.broken} of {one.evaluated} cuts")
