"""Kafka under the micro-batch engine, and from one engine to the other, with a real broker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, Armed, until

import crosscut as cc

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")

from kafka_jobs import KafkaDriver, check_prefix, counting, numbers

from crosscut.testing.kafka import KafkaBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as one:
        yield one


def settings(tmp_path: Path, **others: Any) -> cc.Settings:
    given: dict[str, Any] = {"parallelism": 2, "engine": "micro-batch", "checkpoint_interval": "100ms"}
    return cc.Settings(checkpoint_dir=tmp_path / "checkpoints", **(given | others))


def committed(broker: KafkaBroker, group: str, topic: str, partitions: int) -> int:
    """How much a group has committed, over all partitions."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, one) for one in range(partitions)], timeout=30)
        return sum(max(0, one.offset) for one in found)
    finally:
        consumer.close()


def test_topic_to_topic_is_exact_from_one_engine_to_the_other_whoever_is_killed(
    broker: KafkaBroker, started: Any, arm: Any, tmp_path: Path
) -> None:
    """I1, I2, I3, I5: a Python process dies in a batch and when it has staged; partitions come meanwhile."""
    topic, out = "in", "out"
    broker.create_topic(topic, 3)
    broker.create_topic(out, 2)
    armed: Armed = arm("batch.read:kill:1:1", "batch.staged:kill:1:0")
    flow = counting(broker.servers, topic, out, discover_every="200ms", group="counting")
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        numbers(broker, topic, sent, count)
        sent += count

    def has_all() -> bool:
        return check_prefix(broker, out) == sent

    job = started.flow(flow, settings(tmp_path))
    send(3_000)
    until(has_all, "all output of batches", DEADLINE_S)
    broker.add_partitions(topic, 5)
    send(1_000)
    until(has_all, "what is in partitions that have come", DEADLINE_S)
    until(armed.all_fired, "every kill to have happened", DEADLINE_S)
    until(lambda: committed(broker, "counting", topic, 5) == sent, "the offsets of the group", DEADLINE_S)
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    send(1_000)
    job = started.flow(flow, settings(tmp_path, engine="continuous", parallelism=3))
    until(has_all, "all output of continuous tasks", DEADLINE_S)
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    send(1_000)
    job = started.flow(flow, settings(tmp_path, trigger="available_now"))
    job.wait(DEADLINE_S)
    assert job.status == "stopped"
    assert has_all()


def test_topic_to_topic_is_exact_when_the_driver_dies_between_an_entry_and_its_output(
    broker: KafkaBroker, started: Any, tmp_path: Path
) -> None:
    """B2, B3, F1."""
    topic, out = "killed-in", "killed-out"
    broker.create_topic(topic, 3)
    broker.create_topic(out, 2)
    numbers(broker, topic, 0, 4_000)
    trap = "driver.appended:kill:2"
    armed = Armed(tmp_path / "failpoints", (trap,))
    given = {"engine": "micro-batch", "batch_records_max": 1_000, "checkpoint_interval": "100ms"}
    driver = KafkaDriver(
        broker, topic, out, armed.environment, checkpoint_dir=str(tmp_path / "checkpoints"), **given
    )
    try:
        assert driver.wait() == -signal.SIGKILL
    finally:
        driver.kill()
    assert armed.fired == {trap}
    assert check_prefix(broker, out) < 4_000
    job = started.flow(counting(broker.servers, topic, out), settings(tmp_path, engine="continuous"))
    until(lambda: check_prefix(broker, out) == 4_000, "all of the output", DEADLINE_S)
    job.cancel()
