"""Tokens that go round a ring of members, a fixed number of times each.

crosscut run examples/token_ring.py:flow

A member is a key of a keyed loop, and hands every token it gets on to the next one. Members keep how
often they held a token, so a token that is lost or doubled in a failure shows in their counts; and on
every consistent cut each token is in one place: it has not entered, is on its way, or has left.
"""

from __future__ import annotations

from functools import partial

import crosscut as cc

MEMBERS = 12

Token = tuple[int, int, int]
"""(number, at which member, how many hops are left)"""

Member = tuple[int, Token]
"""(how often it held a token, the token it hands on now)"""

NEW: Member = (0, (0, 0, 0))


def handed_on(member: Member, token: Token) -> Member:
    number, at, hops_left = token
    return member[0] + 1, (number, (at + 1) % MEMBERS, hops_left - 1)


def new_token(hops: int, index: int) -> Token:
    return index, index % MEMBERS, hops


def once_round(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
    tokens = (
        loop.named("ring")
        .key_by(lambda token: token[1])
        .aggregate(NEW, handed_on)
        .named("members")
        .map(lambda update: update[1][1])
    )
    return (
        tokens.filter(lambda token: token[2] > 0).named("again"),
        tokens.filter(lambda token: token[2] == 0).named("leaving"),
    )


def token_ring(tokens: int, hops: int, sink: cc.Sink, rate: float | None = None) -> cc.Flow:
    """Let each token make `hops` hops; write (number, member where it left, 0)."""
    flow = cc.Flow("token-ring")
    (
        flow.source(cc.generate(partial(new_token, hops), count=tokens, rate=rate))
        .named("tokens")
        .iterate(once_round)
        .sink(sink)
        .named("out")
    )

    def no_token_is_in_two_places(cut: cc.Cut) -> bool:
        # A record behind the members is sent to both filters: ask for one of them.
        numbers = [token[0] for uid in ("ring", "members", "again") for token in cut.in_flight(uid)]
        return len(numbers) == len(set(numbers))

    def hops_are_conserved(cut: cc.Cut) -> bool:
        # On the last cut, every hop of every token has been counted by a member.
        counted = sum(held for held, _ in cut.values("members").values())
        return counted == tokens * hops if cut.is_quiet else counted <= tokens * hops

    flow.invariant("no token is in two places", no_token_is_in_two_places)
    flow.invariant("hops are conserved", hops_are_conserved)
    return flow


flow = token_ring(200, 60, cc.files.write_jsonl("token-ring-out"))

if __name__ == "__main__":
    job = flow.start(cc.Settings(parallelism=2))
    job.wait()
    print(f"{job.status}, {len(job.checkpoints())} checkpoints")
    for one in job.report().invariants:
        print(f"{one.name}: held on {one.evaluated - one.broken} of {one.evaluated} cuts")
