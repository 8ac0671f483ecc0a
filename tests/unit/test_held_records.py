"""Sinks that hold records until their checkpoint is complete: how much memory each record takes meanwhile."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import crosscut as cc
from crosscut.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.interfaces import SinkContext

COUNT = 2_000
EACH_BYTES_MAX = 200
"""Of the smallest records: an object of bytes has 33 bytes beside its own, and its place in a list 8."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: cc.nats.sink("nats://localhost:1", "OUT", "out.a"),
        lambda: cc.http.sink("http://localhost:1", honours_keys=True),
        lambda: cc.kafka.sink("localhost:1", "out", encode_value="json"),
    ],
    ids=["nats", "http", "kafka"],
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
