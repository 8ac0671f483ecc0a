"""What a driver hears of the sinks of a flow before it claims anything."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import CommittedOutput, SinkContext, SinkWriter
from crosscut.driver import job_spec as terms
from crosscut.driver import slow_sinks
from crosscut.errors import ConnectorError
from crosscut.graph.specs import JobGraph
from crosscut.testing.sinks import open_writer, permit, stage

DEADLINE_S = 100.0
REPORTED = threading.Event()


@dataclass(frozen=True)
class Silent(cc.Sink):
    """Says what it has committed only when somebody has complained."""

    reason: str = ""

    def writer(self, context: SinkContext) -> SinkWriter:
        raise NotImplementedError

    def committed(self) -> Sequence[CommittedOutput]:
        if self.reason:
            raise KeyError(self.reason)
        assert REPORTED.wait(DEADLINE_S)
        return ()


def graph_of(*sinks: cc.Sink) -> JobGraph:
    flow = cc.Flow("looked-at")
    numbers = flow.source(cc.generate(int, count=1)).named("numbers")
    for index, sink in enumerate(sinks):
        numbers.map(str).sink(sink).named(f"out-{index}")
    return flow.compile(2, 8)


def test_every_sink_is_asked(tmp_path: Path) -> None:
    sinks = [cc.files.write_text(tmp_path / name) for name in ("a", "b", "c")]
    assert terms.committed_output(graph_of(*sinks)) == ()
    for index, sink in enumerate(sinks[:2]):
        writer = open_writer(sink, 1)
        writer.commit(permit(1 + index), [stage(writer, ["line"], 1 + index)])
        writer.close()
    found = terms.committed_output(graph_of(*sinks))
    assert [(Path(one.location).name, one.checkpoint_id) for one in found] == [("a", 1), ("b", 2)]


def test_a_sink_that_raises_is_named() -> None:
    with pytest.raises(
        ConnectorError, match=r"sink 'out-0' can't report what it has committed.*no such marker"
    ):
        terms.committed_output(graph_of(Silent("no such marker")))


def test_a_sink_that_does_not_answer_is_named_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: Any) -> None:
            said.append(record.getMessage())
            REPORTED.set()

    async def looked() -> Sequence[CommittedOutput]:
        asking = partial(slow_sinks.warned_if_slow, asyncio.get_running_loop())
        return await asyncio.to_thread(terms.committed_output, graph_of(Silent()), asking)

    monkeypatch.setattr(slow_sinks, "SLOW_LOOK_S", 0.01)
    handler = Listening(logging.WARNING)
    slow_sinks.LOGGER.addHandler(handler)
    try:
        assert asyncio.run(looked()) == ()
    finally:
        slow_sinks.LOGGER.removeHandler(handler)
    assert said == ["sink 'out-0' has not reported for 0.01 s what it has committed"]
