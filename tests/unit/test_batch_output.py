"""Sinks of batches are called one after the other, in the order in which the driver asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crosscut as cc
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext, SinkWriter
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage
from crosscut.host.calls import start_thread
from crosscut.host.failpoints import Failpoints
from crosscut.microbatch.batch_output import BatchOutput
from crosscut.protocol.messages import DeployTasks, FailureCause
from crosscut.protocol.microbatch import events as on
from crosscut.store.checkpoint_store import open_store

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Noted(cc.Sink):
    """Its writer notes how it is called."""

    calls: list[str] = field(default_factory=list, compare=False)

    def writer(self, context: SinkContext) -> SinkWriter:
        return NotedWriter(self.calls)


class NotedWriter(SinkWriter):
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._calls.append("recover")

    def write(self, records: list[Any]) -> None:
        raise NotImplementedError

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        raise NotImplementedError

    def prepare(self, transaction: Any) -> JSON:
        raise NotImplementedError

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        raise NotImplementedError

    def sweep(self) -> None:
        self._calls.append("sweep")

    def close(self) -> None:
        self._calls.append("close")


def test_what_was_asked_for_before_the_close_is_done_before_it(tmp_path: Path) -> None:
    flow, sink = cc.Flow("closed"), Noted()
    flow.source(cc.generate(int, count=1)).named("numbers").sink(sink).named("out")
    posted: list[on.BatchEvent] = []
    failed: list[FailureCause] = []

    async def closed() -> None:
        store = open_store(str(tmp_path))
        graph = flow.compile(1, 8)
        output = BatchOutput(
            "job", graph, store, Failpoints(None, None), posted.append, failed.append, start_thread
        )
        output.recover(Epoch(1), (DeployTasks(Epoch(1), Lineage("l"), (), CheckpointId(0), (), ()),))
        # In one turn of the loop: none of them has begun.
        output.sweep()
        async with asyncio.timeout(DEADLINE_S):
            await output.close()

    asyncio.run(closed())
    assert sink.calls == ["recover", "sweep", "close"]
    assert posted == [on.OutputRecovered(Epoch(1))]
    assert failed == []
