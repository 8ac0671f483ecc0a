"""What event time costs: the same records through the same operators, with timestamps and without, in pairs.

In one process and without Spark: a source's chain, the shuffle with its bytes, a count or a process, as a
worker calls them. Prints a JSON line for each kind with microseconds a record, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter
from crosscut.graph.specs import KeyBySpec, Vertex
from crosscut.operators.building import build, keyed_state
from crosscut.task.chain import Chain
from crosscut.task.outputs import build_output
from crosscut.wire.batches import decode_batch, encode_batch

KEYS = 1_000
BATCH_ROWS = 1_000
BATCHES = 100
CHANNELS = tuple(
    ChannelId(0, TaskId(VertexId("before"), 0), TaskId(VertexId("after"), index)) for index in range(2)
)
RECORDS = [
    [(number * 7 % KEYS, number) for number in range(first, first + BATCH_ROWS)]
    for first in range(0, BATCHES * BATCH_ROWS, BATCH_ROWS)
]


class Last(cc.KeyedProcess[Any, Any]):
    """Keeps the newest record of each key."""

    newest = cc.ValueState[Any]()

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        self.newest.set(record)


class LastWithTimers(Last):
    """And has a timer for each 100 ms in which a key has records."""

    def on_record(self, record: Any, ctx: cc.Context) -> None:
        self.newest.set(record)
        ctx.set_timer((ctx.timestamp or 0) // 100 * 100 + 100)

    def on_timer(self, time: int, ctx: cc.Context) -> None:
        return None


def key_of(record: tuple[int, int]) -> int:
    return record[0]


def time_of(record: tuple[int, int]) -> int:
    return record[1] // 10


def count(keyed: Any) -> Any:
    return keyed.count()


def process(keyed: Any) -> Any:
    return keyed.process(Last())


def timers(keyed: Any) -> Any:
    return keyed.process(LastWithTimers())


def vertices(operator: Callable[[Any], Any], *, is_timed: bool) -> Sequence[Vertex]:
    """Return the vertices of source -> [times ->] key_by => operator -> sink."""
    flow = cc.Flow("timestamps")
    stream: Any = flow.source(cc.items([1]))
    if is_timed:
        stream = stream.assign_timestamps(time_of)
    operator(stream.key_by(key_of)).sink(cc.collect("unused"))
    return flow.compile(2, 128).vertices


def chain_of(vertex: Vertex, emit: Callable[[Batch], None]) -> Chain:
    # Without the source, which does nothing here, and the sink, whose writer is not at hand.
    nodes = [node for node in vertex.chain if node.uid.split("-")[-1] not in ("source", "sink")]
    operators = [build(node, keyed_state(node), None) for node in nodes]
    present = [operator for operator in operators if operator is not None]
    chain = Chain(present, emit, lambda batch, side: None, has_event_time=vertex.has_event_time)
    chain.restore(None, None, [], is_new=True)
    return chain


def seconds(operator: Callable[[Any], Any], *, is_timed: bool) -> float:
    """Return how long it takes for all records."""
    first, second = vertices(operator, is_timed=is_timed)
    key_by = next(node for node in first.chain if isinstance(node.spec, KeyBySpec))
    output = build_output(
        "hash",
        CHANNELS,
        batch_rows=BATCH_ROWS,
        router=KeyRouter(128, len(CHANNELS)),
        key_by_uid=key_by.uid,
        task_index=0,
    )

    def buffer(batch: Batch) -> None:
        output.add(batch)

    sender = chain_of(first, buffer)
    receiver = chain_of(second, lambda batch: None)
    started = time.perf_counter()
    for records in RECORDS:
        feed(sender, Batch(list(records)))
        for _, batch in output.take():
            arrived = decode_batch(encode_batch(batch))
            news = arrived.take_news() if arrived.has_news else None
            feed(receiver, arrived)
            receiver.forward_news(news)
            finish(receiver)
    return time.perf_counter() - started


def feed(chain: Chain, batch: Batch) -> None:
    chain.begin(BATCH_ROWS)
    chain.process(batch)
    finish(chain)


def finish(chain: Chain) -> None:
    while chain.is_midway:
        chain.begin(BATCH_ROWS)
        chain.go_on()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    rows = BATCHES * BATCH_ROWS
    for name, without, with_time in (
        ("count", count, count),
        ("process", process, process),
        ("process with timers", process, timers),
    ):
        pairs = [
            (seconds(without, is_timed=False), seconds(with_time, is_timed=True))
            for _ in range(options.pairs)
        ]
        plain, timed = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(
            json.dumps(
                {
                    "benchmark": "timestamps",
                    "kind": name,
                    "us_per_record": round(plain / rows * 1e6, 3),
                    "us_per_record_timed": round(timed / rows * 1e6, 3),
                    "ratio": round(statistics.median(b / a for a, b in pairs), 3),
                }
            )
        )


if __name__ == "__main__":
    main()
