"""The Kafka sink that sends at once: what its checkpoints wait for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.kafka.eager import EagerWriter
from crosscut.connectors.kafka.limits import TopicLimits
from crosscut.connectors.kafka.sink import KafkaSink
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId


class BusyProducer:
    """Brokers answer for one message at a time; meanwhile the task sends another one."""

    def __init__(self, task_sends: Callable[[], None]) -> None:
        self.waiting: list[tuple[Any, Callable[[Any, Any], None]]] = []
        self.failing: Any = None
        self._task_sends = task_sends

    def produce_batch(self, topic: str, messages: list[Any], on_delivery: Callable[[Any, Any], None]) -> int:
        self.waiting += [(one["value"], on_delivery) for one in messages]
        return len(messages)

    def poll(self, timeout: float) -> None:
        if timeout:
            self._task_sends()
            value, answer = self.waiting.pop(0)
            is_lost = value == self.failing
            answer(SimpleNamespace(str=lambda: "lost") if is_lost else None, None)

    def flush(self, timeout: float) -> int:
        return len(self.waiting)

    def purge(self) -> None:
        pass


def writer_with(task_sends: str) -> tuple[EagerWriter, BusyProducer]:
    pytest.importorskip("confluent_kafka")
    sink = cc.kafka.sink("localhost:1", "out", guarantee="at least once", encode_value="text")
    assert isinstance(sink, KafkaSink)
    writer = EagerWriter(sink)
    producer = BusyProducer(lambda: writer.write([task_sends]))
    writer._producer = producer
    return writer, producer


def test_a_checkpoint_waits_for_what_was_sent_before_its_barrier_and_nothing_else() -> None:
    writer, producer = writer_with("later")
    writer.write(["before", "before"])
    transaction = writer.rotate(CheckpointId(1))
    assert writer.prepare(transaction) == {"checkpoint": 1, "sent": True}
    assert [value for value, _ in producer.waiting] == [b"later", b"later"]
    assert writer.rotate(CheckpointId(2)) is not None
    assert writer.rotate(CheckpointId(3)) is None


def test_a_message_that_was_not_delivered_fails_the_checkpoint_that_it_belongs_to() -> None:
    writer, producer = writer_with("later")
    producer.failing = b"before"
    writer.write(["before"])
    transaction = writer.rotate(CheckpointId(1))
    with pytest.raises(ConnectorError, match="not delivered: lost"):
        writer.prepare(transaction)


@pytest.mark.parametrize(("options", "linger_ms"), [({}, 1), ({"linger.ms": 5}, 5)])
def test_a_producer_lingers_for_a_millisecond_unless_it_is_told_to_do_otherwise(
    options: dict[str, object], linger_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less, the library's thread does not sleep while it waits for answers."""
    library = pytest.importorskip("confluent_kafka")
    made: list[dict[str, object]] = []
    monkeypatch.setattr(library, "Producer", made.append)
    sink = cc.kafka.sink("localhost:1", "out", guarantee="at least once", options=options)
    assert isinstance(sink, KafkaSink)
    sink._limits["out"] = TopicLimits()  # as `check` leaves them
    EagerWriter(sink).recover(None, [])
    assert [one["linger.ms"] for one in made] == [linger_ms]
