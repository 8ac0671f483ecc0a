"""Sinks that hold records until their checkpoint is complete: how much memory each record takes meanwhile."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import SinkContext
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.protocol.snapshots import KnownCommitted, Part, PendingTransaction
from crosscut.state.parts import PartChain
from crosscut.task.captures import Captures, Stored
from crosscut.task.requests import FrozenTask

COUNT = 2_000
TOPICS = [f"t{number}" for number in range(50)]
EACH_BYTES_MAX = 200
"""Of the smallest records: an object of bytes has 33 bytes beside its own, and its place in a list 8."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: cc.nats.sink("nats://localhost:1", "OUT", "out.a"),
        lambda: cc.http.sink("http://localhost:1", honours_keys=True),
        lambda: cc.kafka.sink("localhost:1", "out", encode_value="json"),
        lambda: cc.kafka.sink("localhost:1", lambda one: f"t{one['n'] % 50}", topics=TOPICS),
    ],
    ids=["nats", "http", "kafka", "kafka by record"],
)
@pytest.mark.parametrize("at_once", [1, 100])
def test_a_small_record_that_is_held_takes_little_memory(make: Callable[[], cc.Sink], at_once: int) -> None:
    """What orjson returns keeps 4 kB, however short it is: 100,000 records a second would be 400 MB."""
    context = SinkContext(Lineage("a"), Epoch(1), TaskId(VertexId("v"), 0), "out")
    writer = make().writer(context)
    batches: list[list[Any]] = [
        [{"n": number} for number in range(first, first + at_once)] for first in range(0, COUNT, at_once)
    ]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for batch in batches:
            writer.write(batch)
        transaction = writer.rotate(CheckpointId(1))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert transaction is not None
    assert after - before < COUNT * EACH_BYTES_MAX
    writer.prepare(transaction)
    assert context.held.size_bytes < COUNT * 50


def test_records_that_are_committed_while_their_snapshot_is_stored_are_said_to_be_of_no_use() -> None:
    """Their file is in no manifest, so the coordinator has to know of it to delete it."""
    captures, one, two = Captures(PartChain(), None), CheckpointId(1), CheckpointId(2)
    parts = {n: Part(f"parts/2/out-0-1-a{n}", 1, "00") for n in (one, two)}
    captures.begin(FrozenTask(two, CheckpointId(0), None, ended=False))
    captures.whole(two)
    assert captures.stored(two, Stored(None, 0, held=parts))
    pending = (PendingTransaction(two, "newer"),)
    assert captures.unused(two, pending) == (parts[one].path,)
    snapshot = captures.acknowledge(two, pending, KnownCommitted(one))
    assert [each.held for each in snapshot.pending] == [parts[two]]
