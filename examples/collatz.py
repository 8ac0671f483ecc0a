"""Lengths of Collatz sequences, with a loop: a number goes round until it is 1.

crosscut run examples/collatz.py:flow

Each number makes one step a turn: halved if it is even, tripled plus one if it is odd. Numbers that
have the same last digit meet in one task, so the loop has a shuffle in it. The job ends when all
input is read and the loop is empty.
"""

from __future__ import annotations

import crosscut as cc

Walk = tuple[int, int, int]
"""(where it began, where it is, how many steps it took)"""


def begin(index: int) -> Walk:
    return index + 2, index + 2, 0


def stepped(walk: Walk) -> Walk:
    start, number, steps = walk
    return start, number // 2 if number % 2 == 0 else 3 * number + 1, steps + 1


def once_round(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
    walks = (
        loop.named("loop")
        .key_by(lambda walk: walk[1] % 10)
        .reduce(lambda _, walk: walk)
        .named("by-digit")
        .map(lambda update: stepped(update[1]))
    )
    return (
        walks.filter(lambda walk: walk[1] != 1).named("again"),
        walks.filter(lambda walk: walk[1] == 1).named("arrived"),
    )


def lengths(count: int, sink: cc.Sink, rate: float | None = None) -> cc.Flow:
    """Write (number, steps until it is 1) for 2 and the `count` - 1 numbers that follow."""
    flow = cc.Flow("collatz")
    (
        flow.source(cc.generate(begin, count=count, rate=rate))
        .named("numbers")
        .iterate(once_round)
        .map(lambda walk: (walk[0], walk[2]))
        .sink(sink)
        .named("out")
    )
    return flow


flow = lengths(20_000, cc.files.write_jsonl("collatz-out"))

if __name__ == "__main__":
    job = flow.start(cc.Settings(parallelism=2))
    job.wait()
    print(f"{job.status}, {len(job.checkpoints())} checkpoints")
