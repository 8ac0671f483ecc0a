"""Kafka under the micro-batch engine, and from one engine to the other, with a real broker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, Armed, until

import crosscut as cc

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")

from kafka_jobs import Feed, KafkaDriver, check_prefix, counting, numbers
from spark_kafka_jobs import lines, run
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

from crosscut.events import EngineSwitched
from crosscut.protocol.effects import EndJob
from crosscut.testing.kafka import KafkaBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as one:
        yield one


def settings(tmp_path: Path, **others: Any) -> cc.Settings:
    given: dict[str, Any] = {
        "parallelism": 2,
        "engine": "micro-batch",
        "checkpoint_interval": "100ms",
        **PATIENT,
    }
    return cc.Settings(checkpoint_dir=tmp_path / "checkpoints", **(given | others))


def committed(broker: KafkaBroker, group: str, topic: str, partitions: int) -> int:
    """How much a group has committed, over all partitions."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": group})
    try:
        found = consumer.committed(
            [TopicPartition(topic, one) for one in range(partitions)], timeout=DEADLINE_S
        )
        return sum(max(0, one.offset) for one in found)
    finally:
        consumer.close()


def test_topic_to_topic_is_exact_from_one_engine_to_the_other_whoever_is_killed(
    broker: KafkaBroker, started: Any, arm: Any, tmp_path: Path
) -> None:
    """I1, I2, I3, I5: a Python process dies in a batch and when it has staged; partitions come meanwhile."""
    feed = Feed(broker, "batches")
    armed: Armed = arm("batch.read:kill:1:1", "batch.staged:kill:1:0")
    flow = counting(broker.servers, feed.topic, feed.out, discover_every="200ms", group="counting")
    job = started.flow(flow, settings(tmp_path))
    feed.send(3_000)
    until(feed.is_counted, "all output of batches", DEADLINE_S)
    broker.add_partitions(feed.topic, 5)
    feed.send(1_000)
    until(feed.is_counted, "what is in partitions that have come", DEADLINE_S)
    until(armed.all_fired, "every kill to have happened", DEADLINE_S)
    until(
        lambda: committed(broker, "counting", feed.topic, 5) == feed.sent,
        "the offsets of the group",
        DEADLINE_S,
    )
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    feed.send(1_000)
    job = started.flow(flow, settings(tmp_path, engine="continuous", parallelism=3))
    until(feed.is_counted, "all output of continuous tasks", DEADLINE_S)
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    feed.send(1_000)
    job = started.flow(flow, settings(tmp_path, engine=cc.MicroBatch(trigger="available_now")))
    job.wait(DEADLINE_S)
    assert job.status == "stopped"
    assert feed.is_counted()


AUTO: dict[str, Any] = {
    "engine": cc.Auto(
        batch_parallelism=3,
        caught_up_at=500,
        behind_at=3_000,
        behind_for="300ms",
        micro_batch=cc.MicroBatch(records_max=1_500),
    ),
    "checkpoint_interval": "100ms",
}


def test_backlog_and_live_records_are_one_job_whoever_dies_around_the_seams(
    broker: KafkaBroker, started: Any, arm: Any, tmp_path: Path
) -> None:
    """B2, B3, F1, I1, I2, I5: drivers die in a batch that is complete and at a seam, and then workers do."""
    feed = Feed(broker, "auto")
    feed.send(9_000)
    # Between the entry of a checkpoint and its output; between the end of one engine and the other.
    for number, trap in enumerate(("driver.appended:kill:2", "engine.switch:kill:1")):
        armed = Armed(tmp_path / f"failpoints-{number}", (trap,))
        checkpoint_dir = str(tmp_path / "checkpoints")
        driver = KafkaDriver(
            broker, feed.topic, feed.out, armed.environment, checkpoint_dir=checkpoint_dir, **AUTO
        )
        try:
            assert driver.wait() == -signal.SIGKILL
        finally:
            driver.kill()
        assert armed.fired == {trap}
        check_prefix(broker, feed.out)
    slow = tmp_path / "slow"
    armed = arm("snapshot.stored:kill:2:1", "batch.staged:kill:1:2")
    flow = counting(broker.servers, feed.topic, feed.out, slow=slow)
    job = started.flow(flow, settings(tmp_path, **AUTO))
    engines: list[str] = []
    job.on_event(lambda event: engines.append(event.engine) if isinstance(event, EngineSwitched) else None)
    until(lambda: engines == ["continuous"], "the job to have caught up", DEADLINE_S)
    for _ in range(3):
        feed.send(200)
        until(feed.is_counted, "live records", DEADLINE_S)
    slow.touch()
    feed.send(8_000)
    until(lambda: engines[:2] == ["continuous", "micro-batch"], "the job to have fallen behind", DEADLINE_S)
    slow.unlink()
    until(lambda: len(engines) >= 3, "the job to have caught up again", DEADLINE_S)
    feed.send(200)
    until(feed.is_counted, "all of the output", DEADLINE_S)
    until(armed.all_fired, "every kill to have happened", DEADLINE_S)
    assert engines[:3] == ["continuous", "micro-batch", "continuous"]


def test_whoever_asks_a_job_at_a_seam_is_answered(broker: KafkaBroker, started: Any, tmp_path: Path) -> None:
    feed = Feed(broker, "asked")
    feed.send(1_000)
    job = started.flow(counting(broker.servers, feed.topic, feed.out), settings(tmp_path, **AUTO))
    events: list[cc.events.JobEvent] = []
    job.on_event(events.append)
    until(lambda: "switching" in (job.status, *map(status_of, events)), "a seam", DEADLINE_S)
    before = [one.checkpoint_id for one in events if isinstance(one, cc.events.CheckpointCompleted)]
    found = job.savepoint(tmp_path / "savepoint", DEADLINE_S)
    assert (Path(found) / "manifest.json").exists()
    seen = [one.checkpoint_id for one in job.report().checkpoints]
    assert seen[: len(before)] == before, "what was seen before the seam is not forgotten"
    until(feed.is_counted, "all of the output", DEADLINE_S)
    # Between the claim of an epoch and its first records a stop takes no last checkpoint, and says so.
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop(DEADLINE_S)
    assert job.status == "stopped"
    until(lambda: isinstance(events[-1], cc.events.Ended), "the last event", DEADLINE_S)
    assert [type(one).__name__ for one in events].count("Ended") == 1


def status_of(event: cc.events.JobEvent) -> str:
    return "switching" if isinstance(event, EngineSwitched) else ""


def test_offsets_that_are_gone_and_a_topic_that_was_made_anew_fail_a_job_in_batches_by_name(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    """I12, without Spark."""
    topic = "gone"
    broker.create_topic(topic, 1)
    flow = cc.Flow("gone")
    source = cc.kafka.source(broker.servers, topic, decode="json", discover_every="10ms")
    flow.source(source).sink(cc.collect(tmp_path / "out"))

    def run(**others: Any) -> EndJob:
        given = settings(tmp_path, parallelism=1, restart=cc.Restart(failures=0), **others)
        end, _ = run_batches(
            flow.compile(1, 128), given, lambda graph, url: LocalJobs(graph, url, Random(1), FaultProfile())
        )
        assert end is not None
        return end

    numbers(broker, topic, 0, 10)
    assert run(engine=cc.MicroBatch(trigger="available_now")).outcome == "stopped"
    numbers(broker, topic, 10, 10)
    broker.delete_records(topic, 0, 15)
    end = run()
    assert end.outcome == "failed"
    assert "messages 10 to 14 were removed by retention or deletion before they were read" in str(end.cause)
    broker.delete_topic(topic)
    broker.create_topic(topic, 1)
    end = run()
    assert end.outcome == "failed"
    assert "recreated" in str(end.cause)


def test_what_sparks_own_source_reads_of_a_topic_is_exact_though_its_driver_dies_between_two_batches(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    """I1, I2: what it has staged is dealt out, and read, and in no checkpoint."""
    topic, count = "by-spark", 1_000
    broker.create_topic(topic, 3)
    numbers(broker, topic, 0, count)
    # In a Spark of their own, each of which takes its time to start.
    for number, (trap, engine) in enumerate([("driver.append:kill:2", "micro-batch"), ("", "continuous")]):
        armed = Armed(tmp_path / f"failpoints-{number}", (trap,) if trap else ())
        arguments = [broker.servers, topic, str(tmp_path), engine, str(count)]
        code = run(arguments, armed.environment if trap else {})
        assert code == (-signal.SIGKILL if trap else 0)
        seen = lines(tmp_path)
        assert len(set(seen)) == len(seen), "no message comes twice"
    assert sorted(map(int, lines(tmp_path))) == list(range(count))
